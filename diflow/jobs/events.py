"""Reads the events of a job."""

from __future__ import annotations

from typing import Any

from diflow.common import keys
from diflow.common.errors import UnauthorizedError
from diflow.jobs import parts
from diflow.jobs.dijobs import DIJOB
from diflow.kube.api import Cluster
from diflow.kube.kinds import EVENT, POD, WORKFLOW


def job_events(name: str, *, cluster: Cluster) -> list[dict[str, Any]]:
    """The events of the job's Workflow, DIJob object and pods, the oldest first; none if the user may not list them."""
    try:
        found = cluster.list_all(EVENT)
    except UnauthorizedError:
        return []
    workflows = _names(name, namespace=None, cluster=cluster)
    about = [e for e in found if any(_is_about(e.get("involvedObject") or {}, each) for each in workflows)]
    return sorted(about, key=event_time)


def allocator_events(name: str, *, namespace: str | None = None, cluster: Cluster) -> list[dict[str, Any]] | None:
    """The allocator's events about the job, the oldest first; None if the user may not list events."""
    workflows = _names(name, namespace=namespace, cluster=cluster)
    about = f"involvedObject.name={name}," if workflows == {name} else ""
    try:
        found = cluster.list_all(EVENT, namespace=namespace, fields=f"{about}involvedObject.kind={WORKFLOW.name}")
    except UnauthorizedError:
        return None
    found = [event for event in found if (event.get("involvedObject") or {}).get("name") in workflows]
    return sorted((event for event in found if is_allocators(event)), key=event_time)


def is_allocators(event: dict[str, Any]) -> bool:
    """Whether the allocator wrote this event."""
    component = (event.get("source") or {}).get("component") or event.get("reportingComponent")
    return bool(component == keys.ALLOCATOR)


def event_time(event: dict[str, Any]) -> str:
    """When an event last happened."""
    series = event.get("series") or {}
    time = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return str(time or event["metadata"].get("creationTimestamp") or "")


def _names(job: str, *, namespace: str | None, cluster: Cluster) -> set[str]:
    """The names of the job's Workflows."""
    return {job, *(part["metadata"]["name"] for part in parts.all_of(cluster, job, namespace=namespace))}


def _is_about(thing: dict[str, Any], name: str) -> bool:
    kind, about = thing.get("kind"), thing.get("name") or ""
    return (kind in (WORKFLOW.name, DIJOB.name) and about == name) or (
        kind == POD.name and about.startswith(f"{name}-")
    )

"""Waits for the end of a job, for a condition, or for its deletion."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from diflow.common.errors import JobFailedError, NotFoundError
from diflow.jobs import dijobs, lookup
from diflow.jobs.checks.connecting import connect
from diflow.jobs.follow import follow
from diflow.kube.api import Cluster

if TYPE_CHECKING:
    from diflow.record.status.status import JobStatus

_PAUSE_SECONDS: Final = 0.5


def wait(
    name: str,
    *,
    namespace: str | None = None,
    timeout_seconds: float | None = None,
    cluster: Cluster | None = None,
    phase: str = "",
) -> JobStatus:
    """Wait until the job has ended, or has reached `phase`, and return its status.

    Raises JobFailedError if the job failed (unless `phase` is Failed), TimeoutError after `timeout_seconds`,
    NotFoundError if the job is deleted.
    """
    cluster = cluster or connect()
    lookup.get(name, namespace=namespace, cluster=cluster)
    seen: JobStatus | None = None
    for snapshot in follow(cluster, name, namespace=namespace, seconds=timeout_seconds):
        if snapshot.workflow is None:
            raise NotFoundError(f"job {name} was deleted before it had ended")
        if snapshot.trouble:
            continue
        seen = snapshot.status
        if phase and has_reached(seen, phase):
            return seen
        if seen.phase == "Failed":
            raise JobFailedError(f"job {name} failed: {seen.message}")
        if seen.ended:
            return seen
    message = f": {seen.message}" if seen and seen.message else ""
    raise TimeoutError(f"job {name} is still {seen.phase if seen else 'Unknown'} after {timeout_seconds:g} s{message}")


def has_reached(status: JobStatus, phase: str) -> bool:
    """Whether the job is in this phase, or has ended and was in it before."""
    return status.phase == phase or (status.ended and any(c.type == phase for c in status.conditions))


def wait_deleted(name: str, *, timeout_seconds: float | None = None, cluster: Cluster) -> None:
    """Wait until there is no such job. Raises TimeoutError after `timeout_seconds`."""
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    while dijobs.find(cluster, name) is not None:
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError(f"job {name} is still there after {timeout_seconds:g} s")
        time.sleep(_PAUSE_SECONDS)
    try:
        for snapshot in follow(cluster, name, seconds=timeout_seconds):
            if snapshot.workflow is None:
                return
    except NotFoundError:
        return
    raise TimeoutError(f"job {name} is still there after {timeout_seconds:g} s")

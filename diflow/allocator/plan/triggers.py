"""Which changes of objects are reasons to plan; after all others, reconciling is enough."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from diflow.allocator.watch import reports
from diflow.kube.kinds import CONFIG_MAP, NODE, POD, RESOURCE_QUOTA, WORKFLOW, Kind
from diflow.record.job import JobRecord
from diflow.record.node import NodeRecord
from diflow.record.pod import PodRecord


def reason_to_plan(kind: Kind, key: str, old: Any, new: Any, *, fraction: float) -> str:
    """Why this change of a record is a reason to plan; "" if it is none. `fraction`: the least change of a speed."""
    if kind is WORKFLOW:
        return _of_job(key, old, new, fraction)
    if kind in (NODE, POD):
        return _of_node(old, new) if kind is NODE else _of_pod(old, new)
    if kind is CONFIG_MAP:
        return "queues"
    if kind is RESOURCE_QUOTA:  # it changes with each pod of its namespace
        return f"quota {key} has more room" if new is None or new.has_more_room_than(old) else ""
    return f"{kind.name} {key} changed" if old != new else ""


def is_news(before: str, now: JobRecord, fraction: float) -> bool:
    """Whether the job's report changes its speed since the report `before`."""
    try:
        return reports.is_news(before, now.texts.profilings, fraction=fraction)
    except Exception:  # problems.py reports one that cannot be read
        return False


def _of_job(key: str, old: JobRecord | None, new: JobRecord | None, fraction: float) -> str:
    if old is None or new is None:
        return f"{key} {'came' if new is not None else 'is gone'}"
    if old.has_ended != new.has_ended or old.is_stopping != new.is_stopping or _refusals(old) < _refusals(new):
        return f"{key} ended or gave its places back"
    asked = (old.needs.roles, old.spec.required, old.wishes.queue, old.notes.excluded) != (
        new.needs.roles,
        new.spec.required,
        new.wishes.queue,
        new.notes.excluded,
    )
    if asked or old.wishes.is_suspended != new.wishes.is_suspended or bool(old.problem) != bool(new.problem):
        return f"{key} asks for something else"
    if is_news(old.texts.profilings, new, fraction):
        return f"{key} reports another speed"
    if old.argo.tree.members != new.argo.tree.members and _finished(old.argo.tree.members.values()) != _finished(
        new.argo.tree.members.values()
    ):
        return f"a replica of {key} ended"
    return ""


def _refusals(read: JobRecord) -> int:
    """How often kube-scheduler did not bind its gang."""
    return 0 if read.notes.allocation is None else read.notes.allocation.refusals


def _finished(phases: Iterable[str]) -> int:
    return sum(phase == "Succeeded" for phase in phases)


def _of_node(old: NodeRecord | None, new: NodeRecord | None) -> str:
    if old is None or new is None:
        return f"node {(new or old).name} {'came' if new is not None else 'is gone'}"  # type: ignore[union-attr]
    same = (
        old.is_open == new.is_open
        and old.allocatable == new.allocatable
        and old.labels == new.labels
        and old.taints == new.taints
        and old.ends == new.ends
    )
    return "" if same else f"node {new.name} changed"


def _of_pod(old: PodRecord | None, new: PodRecord | None) -> str:
    """Capacity that a pod has freed, or that a foreign pod uses now."""
    if new is None:
        return f"pod {old.identity.name} is gone" if old is not None and old.where else ""
    if old is not None and len(old.gates) > len(new.gates) and new.is_gated:
        return f"a gate of pod {new.identity.name} is gone"
    if old is not None and old.request != new.request and new.where:
        return f"pod {new.identity.name} was resized"
    if new.place is None and (old is None or old.where != new.where) and new.where:
        return "a foreign pod came"
    return ""

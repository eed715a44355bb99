"""The one record of a node: what diflow needs of it, read once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from diflow.common import quantities
from diflow.common.predicates import Taint
from diflow.record import untrusted

_IGNORED_TAINTS: Final = frozenset(
    f"node.kubernetes.io/{name}" for name in ("not-ready", "unreachable", "unschedulable", "memory-pressure")
)


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node. `not_ready_since`: in seconds since 1970, None while it is ready."""

    name: str
    allocatable: Mapping[str, int]
    is_schedulable: bool
    not_ready_since: float | None
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    is_missing: bool = False
    """Its object does not exist, but pods are bound to it."""

    @property
    def is_open(self) -> bool:
        return self.is_schedulable and self.not_ready_since is None

    @property
    def is_ready(self) -> bool:
        return self.not_ready_since is None

    @property
    def state(self) -> str:
        """For people: ready, not ready or cordoned."""
        if not self.is_ready:
            return "not ready"
        return "ready" if self.is_schedulable else "cordoned"

    @property
    def trouble(self) -> str:
        """Why no new pods may go there, for people; "" if they may."""
        if self.is_missing:
            return "is gone"
        return "is not ready" if self.not_ready_since is not None else "" if self.is_schedulable else "is cordoned"


def node_record_of(obj: Mapping[str, Any]) -> NodeRecord:
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    ready: Mapping[str, Any] = next((c for c in status.get("conditions") or [] if c.get("type") == "Ready"), {})
    return NodeRecord(
        name=metadata["name"],
        allocatable=quantities.read(status.get("allocatable")),
        is_schedulable=not spec.get("unschedulable"),
        # A new object has no condition yet: it is not ready since its creation.
        not_ready_since=None
        if ready.get("status") == "True"
        else untrusted.seconds(ready.get("lastTransitionTime") or metadata.get("creationTimestamp")),
        labels=metadata.get("labels") or {},
        # Without taints that repeat other fields of the node, and memory-pressure, which most pods tolerate.
        taints=tuple(
            Taint(t.get("key") or "", t.get("value") or "", t.get("effect") or "NoSchedule")
            for t in spec.get("taints") or []
            if t.get("key") not in _IGNORED_TAINTS
        ),
    )

"""The one record of a node: what diflow needs of it, read once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final

from msgspec import Struct

from diflow.common import keys, quantities
from diflow.common.jsontext import parsed, reader
from diflow.common.predicates import Taint, Toleration
from diflow.record import untrusted

_IGNORED_TAINTS: Final = frozenset(
    f"node.kubernetes.io/{name}" for name in ("not-ready", "unreachable", "unschedulable", "memory-pressure")
)
ENDING_TAINTS: Final = frozenset({
    "ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "karpenter.sh/disruption",
    "cloud.google.com/impending-node-termination", "node.cloudprovider.kubernetes.io/shutdown",
    "node.kubernetes.io/out-of-service",
})  # fmt: skip
"""The taints by which autoscalers, clouds and administrators announce that a node ends. A candidate for deletion
(`DeletionCandidateOfClusterAutoscaler`) may stay."""
_ENDING_PREFIXES: Final = ("aws-node-termination-handler/", "node-termination-handler/")


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
    ends: str = ""
    """The taint or condition by which it announces its end; "" if it does not."""

    @property
    def hostname(self) -> str:
        """The value of the label by which pods are sent there. Some clouds and provisioners give another one than the
        node's name."""
        return self.labels.get(keys.HOSTNAME) or self.name

    @property
    def is_open(self) -> bool:
        return self.is_schedulable and self.not_ready_since is None and not self.ends

    @property
    def is_staying(self) -> bool:
        """It is not cordoned, and does not announce its end."""
        return self.is_schedulable and not self.ends

    def untolerated(self, tolerations: Sequence[Toleration]) -> str:
        """The first taint that keeps pods with these tolerations away, as key:effect; "" if none does."""
        for taint in self.taints:
            if taint.effect != "PreferNoSchedule" and not any(one.covers(taint) for one in tolerations):
                return f"{taint.key}:{taint.effect}"
        return ""

    @property
    def is_ready(self) -> bool:
        return self.not_ready_since is None

    @property
    def state(self) -> str:
        """For people: ready, not ready, ending or cordoned."""
        if not self.is_ready:
            return "not ready"
        if self.ends:
            return "ending"
        return "ready" if self.is_schedulable else "cordoned"

    @property
    def trouble(self) -> str:
        """Why no new pods may go there, for people; "" if they may."""
        if self.is_missing:
            return "is gone"
        if self.not_ready_since is not None:
            return "is not ready"
        if self.ends:
            return f"announces its end ({self.ends})"
        return "" if self.is_schedulable else "is cordoned"


def cordoned_since(node: Mapping[str, Any]) -> float:
    """Of the last cause for which diflow cordoned a node, in seconds since 1970; 0 if it never did."""
    return parsed(_read_cordon, untrusted.sub(node, "metadata", "annotations").get(keys.CORDONED), _Cordon()).since


class _Cordon(Struct, frozen=True):
    since: float = 0.0


_read_cordon: Final = reader(_Cordon)


def node_record_of(obj: Mapping[str, Any], *, ending: Set[str] = frozenset()) -> NodeRecord:
    """The record of a node. `ending`: the conditions by which nodes of this cluster announce their end."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    taints = [taint.get("key") or "" for taint in spec.get("taints") or []]
    announced = [key for key in taints if key in ENDING_TAINTS or key.startswith(_ENDING_PREFIXES)]
    announced += [
        str(one.get("type"))
        for one in status.get("conditions") or []
        if one.get("type") in ending and one.get("status") == "True"
    ]
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
        ends=announced[0] if announced else "",
    )

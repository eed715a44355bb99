"""The free capacity of the nodes now: allocatable resources less the requests of all pods, diflow's and others'."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from diflow.common import quantities
from diflow.common.predicates import Toleration
from diflow.record.node import NodeRecord
from diflow.record.pod import PodRecord

_NO_AGES: Mapping[float, float] = {}


def trouble(node: NodeRecord | None) -> str:
    """Why no new pods may go to a node, for people; "" if they may."""
    return "is gone" if node is None else node.trouble


@dataclass(slots=True)
class FreeCapacity:
    """The free capacity that the admissions of one cycle reserve from.

    `ages`: the age in seconds of timestamps that are in the future, because another clock wrote them or this one was
    set back.
    """

    nodes: Mapping[str, NodeRecord]
    free: dict[str, quantities.Amounts] = field(default_factory=dict)
    lost_after_seconds: float = 60.0
    now_seconds: float = 0.0
    ages: Mapping[float, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        nodes: Mapping[str, NodeRecord],
        pods: Iterable[PodRecord],
        *,
        now_seconds: float = 0.0,
        lost_after_seconds: float = 60.0,
    ) -> FreeCapacity:
        free = {name: dict(node.allocatable) for name, node in nodes.items()}
        for pod in pods:
            at = free.get(pod.where)
            if at is not None:
                for name, amount in pod.request.items():
                    if name in at:  # a resource that the node does not offer has no free amount
                        at[name] -= amount
        return cls(nodes, free, lost_after_seconds, now_seconds)

    def at(
        self, now_seconds: float, *, lost_after_seconds: float, ages: Mapping[float, float] = _NO_AGES
    ) -> FreeCapacity:
        """A copy to reserve from at this time."""
        free = {name: dict(amounts_) for name, amounts_ in self.free.items()}
        return FreeCapacity(self.nodes, free, lost_after_seconds, now_seconds, ages)

    def age(self, time: float) -> float:
        """Seconds since `time`."""
        return self.now_seconds - time if time <= self.now_seconds else self.ages.get(time, 0.0)

    def hostname(self, name: str) -> str:
        """The value of the label by which pods are sent to a node."""
        node = self.nodes.get(name)
        return node.hostname if node is not None else name

    def is_lost(self, name: str) -> bool:
        """The node was deleted, or has been not ready for `lost_after_seconds`, so that its pods count as lost."""
        node = self.nodes.get(name)
        if node is None:
            return True
        silent = node.not_ready_since
        return silent is not None and self.age(silent) >= self.lost_after_seconds

    def has_lost(self, pod: PodRecord) -> bool:
        """It is bound to a lost node, where no kubelet ends it."""
        return bool(pod.host) and self.is_lost(pod.host)

    def trouble(self, name: str) -> str:
        """Why no new pods may go to a node, for people; "" if they may."""
        node = self.nodes.get(name)
        if node is not None and not node.is_missing and node.not_ready_since is not None and self.is_lost(name):
            return f"has been silent for {self.age(node.not_ready_since):.0f} s"
        return trouble(node)

    def untolerated(self, name: str, tolerations: Sequence[Toleration]) -> str:
        """Which taint of a node keeps pods with these tolerations away, for people; "" if none does."""
        node = self.nodes.get(name)
        taint = node.untolerated(tolerations) if node is not None and node.taints else ""
        return f"has the taint {taint}, which its pods do not tolerate" if taint else ""

    def is_open(self, name: str) -> bool:
        """New pods may go there."""
        node = self.nodes.get(name)
        return node is not None and node.is_open

    def fits(self, needs: Mapping[str, Mapping[str, int]]) -> bool:
        """Whether each of these nodes is open and has the needed amounts free (node → resource → amount)."""
        return all(
            self.is_open(node) and all(amount <= self.free[node].get(r, 0) for r, amount in need.items() if amount)
            for node, need in needs.items()
        )

    def reserve(self, needs: Mapping[str, Mapping[str, int]] | None) -> bool:
        """Reserve these amounts, if they fit (None: they do not). Returns whether they do."""
        if needs is None or not self.fits(needs):
            return False
        self.take(needs)
        return True

    def take(self, needs: Mapping[str, Mapping[str, int]]) -> None:
        """Reserve these amounts. A node that does not exist any more has none."""
        for node, need in needs.items():
            for name, amount in need.items() if node in self.free else ():
                self.free[node][name] = self.free[node].get(name, 0) - amount

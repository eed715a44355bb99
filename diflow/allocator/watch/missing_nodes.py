"""Nodes whose objects are missing although pods of jobs are bound to them.

An object may be missing for a moment: a kubelet registers again, an administrator restores a deleted node. So such a
node counts as not ready since it was first missed, and becomes lost after the same time as one that is not ready. That
time is kept in memory only: a new leader starts it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Final

from diflow.common import quantities
from diflow.common.quantities import NATIVE
from diflow.record.node import NodeRecord
from diflow.record.pod import PodRecord

MOST_UNKNOWN: Final = 256
"""The most unknown nodes: nodes that this process has never seen, though pods are bound to them. A pod can be created
with any node's name: without a bound, invented names would grow the snapshot. Namespaces take turns, so that one which
names many nodes displaces only its own."""


class MissingNodes:
    """The missing nodes, and since when."""

    def __init__(self) -> None:
        self._nodes: Mapping[str, NodeRecord] = {}
        self._pods: Sequence[PodRecord] = ()
        self._missing: Mapping[str, NodeRecord] = {}
        self._unknown: frozenset[str] = frozenset()
        self._shown: Mapping[str, NodeRecord] = {}

    def among(
        self, nodes: Mapping[str, NodeRecord], pods: Sequence[PodRecord], *, now: float
    ) -> Mapping[str, NodeRecord]:
        """`nodes`, with the missing ones as nodes that are not ready (`now`: seconds since 1970).

        Returns the same mapping as the last call if nothing has changed.
        """
        if nodes is self._nodes and pods is self._pods:
            return self._shown
        guests: dict[str, list[PodRecord]] = {}
        for pod in pods:
            if pod.host and pod.host not in nodes:
                guests.setdefault(pod.host, []).append(pod)
        missing: dict[str, NodeRecord] = {}
        strange: dict[str, list[PodRecord]] = {}
        for name in sorted(name for name, here in guests.items() if any(pod.place is not None for pod in here)):
            known = self._missing.get(name)
            if known is None and (seen := self._nodes.get(name)) is not None:
                since = now if seen.not_ready_since is None else seen.not_ready_since
                known = replace(seen, not_ready_since=since, is_missing=True)
            if known is None or name in self._unknown:
                strange[name] = guests[name]
            else:
                missing[name] = known
        offered: frozenset[str] | None = None
        unknown = frozenset(self._in_turn(strange)[:MOST_UNKNOWN])
        for name in sorted(unknown):
            known = self._missing.get(name)
            if known is None:
                offered = _offered(nodes) if offered is None else offered
                known = _unknown(name, strange[name], now, offered=offered)
            missing[name] = known
        if nodes is not self._nodes or missing != self._missing:
            self._shown = {**nodes, **missing} if missing else nodes
        self._nodes, self._pods, self._missing, self._unknown = nodes, pods, missing, unknown
        return self._shown

    def _in_turn(self, strange: Mapping[str, Sequence[PodRecord]]) -> list[str]:
        """Unknown nodes, round-robin over the namespaces of their pods. Within a namespace those that are tracked
        already come first, as their time would start again."""
        turns: dict[str, int] = {}
        taken: dict[str, int] = {}
        for name in sorted(strange, key=lambda name: (name not in self._unknown, name)):
            for namespace in {pod.identity.namespace for pod in strange[name] if pod.place is not None}:
                turn = taken[namespace] = taken.get(namespace, 0) + 1
                turns[name] = min(turn, turns.get(name, turn))
        return sorted(turns, key=lambda name: (turns[name], name not in self._unknown, name))


def _offered(nodes: Mapping[str, NodeRecord]) -> frozenset[str]:
    return frozenset().union(*(node.allocatable for node in nodes.values()))


def _unknown(name: str, pods: Sequence[PodRecord], now: float, *, offered: Set[str]) -> NodeRecord:
    """A node of which only the `pods` are known: its allocatable resources are their requests, but for resources that
    no other node offers, as a pod can request any."""
    allocatable: quantities.Amounts = {}
    for pod in pods:
        quantities.add(allocatable, {r: value for r, value in pod.request.items() if r in offered or r in NATIVE})
    return NodeRecord(
        name, allocatable, is_schedulable=True, not_ready_since=now, labels={}, taints=(), is_missing=True
    )

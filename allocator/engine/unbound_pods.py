"""Admitted pods that kube-scheduler has not bound yet, and the nodes that are avoided because of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from diflow.allocator.engine.cluster_state import ClusterState
from diflow.allocator.engine.job import Job
from diflow.allocator.engine.records import PodRead

# A pod that kube-scheduler has not tried yet gets this many times the time of one that it has refused: it waits behind
# others, as kube-scheduler binds some 50 a second.
_UNTRIED: Final = 20
# How long a node gets no new pods after kube-scheduler did not bind one to it: (first, longest), doubled each time.
_AVOID_SECONDS: Final = (60.0, 1800.0)


class UnboundPods:
    """Since when pods are unbound. Times are on the monotonic clock, and in memory only."""

    def __init__(self, bind_seconds: float) -> None:
        self._bind_seconds = bind_seconds
        self._since: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._since)

    def overdue(self, state: ClusterState, *, now: float) -> Mapping[str, PodRead]:
        """The pods, by uid, that were not bound in time."""
        waiting = {
            pod.identity.uid: pod
            for pod in state.pods
            if not (pod.gates or pod.host or pod.is_terminating) and pod.place is not None and pod.job in state.jobs
        }
        self._since = {uid: self._since.get(uid, now) for uid in waiting}
        limits = {True: self._bind_seconds, False: _UNTRIED * self._bind_seconds}
        return {
            uid: waiting[uid] for uid, since in self._since.items() if now - since > limits[waiting[uid].is_refused]
        }


class AvoidedNodes:
    """Nodes that get no new pods for a time, although they are open. Times are on the monotonic clock."""

    def __init__(self) -> None:
        self._until: dict[str, tuple[float, float]] = {}

    def update(self, state: ClusterState, overdue: Mapping[str, PodRead], *, now: float) -> None:
        """Avoid the nodes to which these pods were not bound."""
        self._until = {node: known for node, known in self._until.items() if node in state.nodes}
        # Users can create pods that wait for any node: only those that the allocator sent there count.
        sent = {pod.pinned for pod in overdue.values() if _was_sent(pod, state.jobs[pod.job])}
        for node in sent & state.nodes.keys():
            until, pause = self._until.get(node, (-math.inf, 0.0))
            if now >= until:
                pause = pause if now - until < _AVOID_SECONDS[1] else 0.0
                pause = min(max(2 * pause, _AVOID_SECONDS[0]), _AVOID_SECONDS[1])
                self._until[node] = (now + pause, pause)

    def at(self, now: float) -> frozenset[str]:
        """The nodes that are avoided at this time."""
        return frozenset(node for node, (until, _) in self._until.items() if now < until)


def _was_sent(pod: PodRead, job: Job) -> bool:
    """Whether the job holds this place, on the node that the pod is pinned to."""
    at, place = job.read.allocation, pod.place
    granted = pod.identity.uid not in {stray.identity.uid for stray in job.strays()}
    return granted and place is not None and at is not None and at.node(place.task, place.index) == pod.pinned

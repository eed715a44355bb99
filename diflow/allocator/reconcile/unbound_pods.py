"""Admitted pods that kube-scheduler has not bound yet, and the nodes that are avoided because of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from diflow.allocator.watch.cluster_state import ClusterState
from diflow.allocator.watch.job import Job
from diflow.record.pod import PodRecord

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

    def overdue(self, state: ClusterState, *, now: float) -> Mapping[str, PodRecord]:
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
    """Nodes that get no new pods of a namespace for a time, although they are open. Times are on the monotonic clock.

    Each namespace has its own: whatever else its pods ask kube-scheduler for, by their template or by an admission
    webhook, closes no node to others.
    """

    def __init__(self) -> None:
        self._until: dict[tuple[str, str], tuple[float, float]] = {}

    def update(self, state: ClusterState, overdue: Mapping[str, PodRecord], *, now: float) -> None:
        """Avoid the nodes to which these pods were not bound."""
        self._until = {
            key: (until, pause)
            for key, (until, pause) in self._until.items()
            if key[1] in state.nodes and now - until < _AVOID_SECONDS[1]
        }
        # Users can create pods that wait for any node: only those that the allocator sent there count.
        sent = {
            (pod.identity.namespace, pod.pinned)
            for pod in overdue.values()
            if pod.pinned in state.nodes and _was_sent(pod, state.jobs[pod.job])
        }
        for key in sent:
            until, pause = self._until.get(key, (-math.inf, 0.0))
            if now >= until:
                pause = min(max(2 * pause, _AVOID_SECONDS[0]), _AVOID_SECONDS[1])
                self._until[key] = (now + pause, pause)

    def at(self, now: float) -> Mapping[str, frozenset[str]]:
        """Namespace → the nodes that are avoided there at this time."""
        out: dict[str, set[str]] = {}
        for (namespace, node), (until, _) in self._until.items():
            if now < until:
                out.setdefault(namespace, set()).add(node)
        return {namespace: frozenset(nodes) for namespace, nodes in out.items()}

    def anywhere(self, now: float) -> frozenset[str]:
        """The nodes that are avoided in some namespace at this time."""
        return frozenset[str]().union(*self.at(now).values())


def _was_sent(pod: PodRecord, job: Job) -> bool:
    """Whether the job holds this place, on the node that the pod is pinned to."""
    at, place = job.read.notes.allocation, pod.place
    is_granted = pod.identity.uid not in job.strays
    return is_granted and place is not None and at is not None and at.node(place.task, place.index) == pod.pinned

"""Admitted pods that kube-scheduler has not bound yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from diflow.allocator.watch.cluster_state import ClusterState
from diflow.allocator.watch.job import Job
from diflow.record.pod import PodRecord

# A pod that kube-scheduler has not tried yet gets this many times the time of one that it has refused: it waits behind
# others, as kube-scheduler binds some 50 a second.
_UNTRIED: Final = 10


_Place = tuple[str, str, str, tuple[str, int]]
"""(key of the job, uid of its Workflow, round, (task, index))."""


class UnboundPods:
    """Since when replicas are unbound. Times are on the monotonic clock, and in memory only."""

    def __init__(self, bind_seconds: float) -> None:
        self._bind_seconds = bind_seconds
        self._since: dict[_Place, float] = {}
        self._late: set[_Place] = set()

    def __len__(self) -> int:
        return len(self._since)

    def overdue(self, state: ClusterState, *, now: float) -> Mapping[str, PodRecord]:
        """The pods, by uid, of replicas that were not bound in time. A pod that is made again gets no more time, unless
        one of its replica was bound in between: else a place could be kept for ever, and never used."""
        waiting: dict[str, tuple[_Place, PodRecord]] = {}
        over = {place for place in self._since if not _is_current(place, state.jobs.get(place[0]))}
        for pod in state.pods:
            job = state.jobs.get(pod.job)
            if pod.place is None or job is None or (pod.host and not self._since):
                continue
            place = job.key, job.read.identity.uid, pod.round, pod.replica
            if pod.host:
                over.add(place)
            elif not (pod.gates or pod.is_terminating):
                waiting[pod.identity.uid] = place, pod
        there = {place for place, _ in waiting.values()}
        over |= self._late - there  # its pod was ended for that
        kept = {place: since for place, since in self._since.items() if place not in over}
        self._since = kept | {place: self._since.get(place, now) for place in there}
        limits = {True: self._bind_seconds, False: _UNTRIED * self._bind_seconds}
        late = {uid: pod for uid, (place, pod) in waiting.items() if now - self._since[place] > limits[pod.is_refused]}
        self._late = {waiting[uid][0] for uid in late}
        return late


def _is_current(place: _Place, job: Job | None) -> bool:
    _, uid, round_, _ = place
    return job is not None and job.read.identity.uid == uid and job.read.live.current == round_ and not job.is_over

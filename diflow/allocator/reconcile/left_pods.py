"""Pods that go on after Argo has ended them: the kubelet stops those that ignore SIGTERM (`diflow.record.overstay`)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from diflow.allocator.watch.cluster_state import ClusterState
from diflow.allocator.write import patches
from diflow.allocator.write.patches import Note, Write
from diflow.allocator.write.round_robin import in_turns
from diflow.common.durations import timestamp
from diflow.common.words import named
from diflow.record.overstay import patience_seconds
from diflow.record.pod import PodRecord

_MOST_NAMED: Final = 4
_MOST_AT_ONCE: Final = 32
"""Pods that are stopped in a pass, of the namespaces in turns: other decisions wait for these writes."""
_NEXT_SECONDS: Final = 1.0


class LeftPods:
    """Since when pods go on that Argo counts as ended, or whose Workflow has ended. Times are on the monotonic clock,
    and in memory only: with a new leader, a pod gets its grace period once more.

    Also of jobs that the allocator does not place (`scheduling: none`), whose Workflows it does not watch. `namespace`:
    the only one whose pods it may end, "" for all.
    """

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._since: dict[str, float] = {}
        self._due = math.inf

    def due(self) -> float:
        """When the next one is to be stopped; infinite if there is none."""
        return self._due

    def stops(self, state: ClusterState, *, now: float, wall: float) -> list[Write]:
        """The writes that stop those of which the grace period is over. One that is not carried out is repeated when
        the period is over again."""
        left = {pod.uid: pod for pod in _left(state) if self._namespace in ("", pod.namespace)}
        since = {uid: self._since.get(uid, now) for uid in left}
        every = [pod for uid, pod in left.items() if now >= since[uid] + patience_seconds(pod)]
        late = in_turns(every, lambda pod: pod.namespace)[:_MOST_AT_ONCE]
        self._since = since | dict.fromkeys((pod.uid for pod in late), now)
        self._due = min((self._since[uid] + patience_seconds(pod) for uid, pod in left.items()), default=math.inf)
        if len(late) < len(every):
            self._due = now + _NEXT_SECONDS
        by_job: dict[str, list[PodRecord]] = {}
        for pod in late:
            by_job.setdefault(pod.job, []).append(pod)
        at = timestamp(wall)
        return [write for pods in by_job.values() for write in _stops(pods, at)]


def _left(state: ClusterState) -> Iterator[PodRecord]:
    for pod in state.pods:
        if pod.is_let_go and pod.goes_on:
            yield pod
    for job in state.jobs.values():
        if job.read.has_ended:
            yield from (pod for pod in job.pods if pod.goes_on)


def _stops(pods: list[PodRecord], at: str) -> Iterator[Write]:
    """The writes for pods of one job."""
    names = named([f"{pod.task}-{pod.index}" for pod in pods], _MOST_NAMED)
    why = (
        f"Argo has ended {names}, and after the grace period {'it still runs' if len(pods) == 1 else 'they still run'}"
    )
    note = Note("StoppedLate", f"{why}: stopped by {'its node' if len(pods) == 1 else 'their nodes'}", is_warning=True)
    for pod in pods:
        yield replace(patches.stop(pod, pod.job, why, at), note=note if pod is pods[0] else None)

"""Tells the pods of a job the hosts and ranks of all its replicas, when other replicas run.

Such a change is one write for each pod, each with all hosts: for a job of 2,000 replicas 260 MB. So they come after all
decisions, some at a time with namespaces in turns, and a job whose replicas change again waits before its next one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from diflow.allocator.watch.cluster_state import ClusterState
from diflow.allocator.watch.job import Job
from diflow.allocator.write import patches
from diflow.allocator.write.executor import Executor
from diflow.allocator.write.patches import Write
from diflow.allocator.write.round_robin import in_turns
from diflow.common import keys
from diflow.common.clock import Clock
from diflow.kube.sparing import Shares
from diflow.record.pod import roster_digest
from diflow.record.roster import roster

MOST_AT_ONCE: Final = 32
"""Writes in one cycle: decisions that come meanwhile wait for them."""
PAUSE_SECONDS: Final = 10.0
"""The least time between the beginnings of two changes of a job. The wish that holds then is the one that counts."""
_EACH_SECOND, _OF_A_NAMESPACE = 20.0, 2000.0
"""Writes for the pods of one namespace: in each second, and at once, which is one change of the largest job."""


@dataclass(frozen=True, slots=True)
class _Change:
    """A change that was begun. `to`: the uid of the Workflow, and its replicas by task."""

    to: tuple[str, tuple[tuple[str, int], ...]]
    began: float


class Rosters:
    """Which pods were not told yet. All of it may be lost: what pods were told is in their annotations."""

    def __init__(self, executor: Executor, *, clock: Clock) -> None:
        self._executor, self._clock = executor, clock
        self._shares = Shares(share=_EACH_SECOND, burst=_OF_A_NAMESPACE, clock=clock)
        self._told: dict[str, Job] = {}
        self._changes: dict[str, _Change] = {}
        self._due = math.inf

    def due(self) -> float:
        """When there is something to do, if nothing changes, on the clock; infinity if nothing is left."""
        return self._due

    def send(self, state: ClusterState) -> None:
        """Tell some pods what has changed. Raises LostLeadershipError."""
        now = self._clock.monotonic()
        self._due = math.inf
        self._told = {key: job for key, job in self._told.items() if state.jobs.get(key) is job}
        self._changes = {key: change for key, change in self._changes.items() if key in state.jobs}
        found = [write for job in state.jobs.values() if job.key not in self._told for write in self._next(job, now)]
        chosen = in_turns(found, lambda write: write.target.namespace)[:MOST_AT_ONCE]
        if len(found) > len(chosen):
            self._due = now
        for write in chosen:
            self._shares.charge(write.target.namespace, 1.0)
        if chosen:
            self._executor.apply(chosen, state.jobs)

    def _next(self, job: Job, now: float) -> list[Write]:
        """The next writes for a job, if it may have some now."""
        read = job.read
        if job.is_over or read.argo.awaits_admission:
            return []
        writes = list(islice(untold(job), MOST_AT_ONCE + 1))
        if not writes:
            self._told[job.key] = job
            return []
        to, change = (read.identity.uid, tuple(read.running.items())), self._changes.get(job.key)
        left = 0.0
        if change is None or change.to != to:
            left = change.began + PAUSE_SECONDS - now if change is not None else 0.0
            if left <= 0:
                self._changes[job.key] = _Change(to, now)
        left = max(left, self._shares.left_seconds(read.identity.namespace))
        if left > 0:
            self._due = min(self._due, now + left)
            return []
        return [] if self._executor.is_backing_off(job.key) else writes


def untold(job: Job) -> Iterator[Write]:
    """The writes to the running pods of a job whose hosts or ranks have changed."""
    read = job.read
    members = roster(read.identity.name, read.identity.namespace, read.running, short=read.needs.has_short_hosts)
    hosts = members.nodes
    digest, count = roster_digest(hosts), str(len(members.hosts))
    for pod in job.current_pods:
        if pod.is_terminating or not pod.hosts:
            continue
        rank = str(members.rank_of(*pod.replica))
        if (pod.hosts, pod.replicas, pod.rank) != (digest, count, rank):
            right: Mapping[str, str] = {keys.NODES: hosts, keys.REPLICAS: count, keys.RANK: rank}
            yield patches.update_roster(pod, job.key, right)

"""The cluster state and the free capacity of each cycle, from the caches and the clocks."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from diflow.allocator.watch.cluster_state import Caches, ClusterState
from diflow.allocator.watch.free_capacity import FreeCapacity
from diflow.allocator.watch.missing_nodes import MissingNodes
from diflow.allocator.watch.needs import not_created
from diflow.common.clock import Clock
from diflow.record.pod import PodRecord


class ClusterView:
    """`state` and `capacity` reuse what has not changed since the last call."""

    def __init__(self, caches: Caches, *, lost_after_seconds: float, clock: Clock) -> None:
        self._caches, self._lost_after_seconds = caches, lost_after_seconds
        self._clock = clock
        self._missing = MissingNodes()
        self._counted: tuple[FreeCapacity, tuple[PodRecord, ...]] = FreeCapacity({}), ()
        self._timed: ClusterState | None = None
        self._times: Set[float] = frozenset()
        self._ahead: dict[float, float] = {}

    def state(self) -> ClusterState:
        """What the caches show now, with the missing nodes that pods of jobs are bound to as not ready."""
        state = self._caches.state()
        nodes = self._missing.among(state.nodes, state.pods, now=self._clock.wall())
        return state if nodes is state.nodes else replace(state, nodes=nodes)

    def capacity(self, state: ClusterState) -> FreeCapacity:
        """The free capacity now, as a copy to reserve from."""
        capacity, pods = self._counted
        if capacity.nodes is not state.nodes or pods is not state.pods:
            capacity = FreeCapacity.of(state.nodes, state.pods)
            self._counted = capacity, state.pods
        now = self._clock.wall()
        return capacity.at(now, lost_after_seconds=self._lost_after_seconds, ages=self._ages(state, now))

    def unclaimed(self, state: ClusterState) -> FreeCapacity:
        """`capacity`, without that of admitted jobs whose pods do not exist yet."""
        capacity = self.capacity(state)
        for job in state.jobs.values():
            capacity.take(not_created(job, capacity.now_seconds))
        return capacity

    def _ages(self, state: ClusterState, now: float) -> dict[float, float]:
        """The ages of timestamps in the future: the time since they were first seen. The clock may have been set back,
        and other processes write the times of nodes."""
        if state is not self._timed:
            self._timed = state
            known = (job.read.notes.allocation for job in state.jobs.values())
            self._times = {
                *(node.not_ready_since for node in state.nodes.values() if node.not_ready_since is not None),
                *(time for at in known if at is not None for time in (at.since, at.first)),
                *(job.read.first_failure_seconds for job in state.jobs.values()),
                *(job.read.argo.tree.changed for job in state.jobs.values() if job.read.argo.tree.is_stuck),
            }
        clock = self._clock.monotonic()
        self._ahead = {time: self._ahead.get(time, clock) for time in self._times if time > now}
        return {time: clock - seen for time, seen in self._ahead.items()}

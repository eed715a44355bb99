"""What becomes due with time alone: cycles and plans for which no object has to change."""

from __future__ import annotations

import math
from collections.abc import Callable

from diflow.allocator.plan.planner import Planner
from diflow.allocator.reconcile import node_checks
from diflow.allocator.reconcile.admission import start_left
from diflow.allocator.reconcile.one_job import Pace, explain_left, repair_left
from diflow.allocator.reconcile.pending import pending_left
from diflow.allocator.reconcile.unbound_pods import UnboundPods
from diflow.allocator.settings import AllocatorSettings
from diflow.allocator.watch.cluster_state import ClusterState
from diflow.allocator.watch.free_capacity import FreeCapacity
from diflow.allocator.write.executor import Executor
from diflow.common.clock import Clock

# A plan that failed is repeated after this time, as the leader is not ready until one succeeds.
_AGAIN_SECONDS = 15.0
TOO_LATE = "a job is about to be too late"
"""The reason of the plan after which such a job is stopped."""


class Timers:
    """All times are on the monotonic clock. `cycled` and `planned`: when the last cycle and the last plan began."""

    def __init__(
        self,
        settings: AllocatorSettings,
        executor: Executor,
        planner: Planner,
        unbound: UnboundPods,
        clock: Clock,
        *,
        look_due: Callable[[], float],
    ) -> None:
        self._settings, self._executor, self._planner, self._unbound = settings, executor, planner, unbound
        self._clock, self._look_due = clock, look_due
        self.cycled = self.planned = clock.monotonic()
        self._later = math.inf
        self._lost: frozenset[str] = frozenset()

    def due(self) -> float:
        """When the next cycle is due."""
        return min(
            self.planned + self._settings.period_seconds,
            self._later,
            self._look_due(),
            self._executor.next_retry(),
            self.cycled + 1.0 if self._unbound else math.inf,
            self.planned + _AGAIN_SECONDS if self._planner.failing_seconds is not None else math.inf,
        )

    def reasons(self) -> set[str]:
        """Reasons to plan because of the time since the last plan."""
        since, reasons = self._clock.monotonic() - self.planned, set()
        if since >= self._settings.period_seconds:
            reasons.add("period")
        if self._planner.failing_seconds is not None and since >= _AGAIN_SECONDS:
            reasons.add("the last plan failed")
        return reasons

    def expire(self, state: ClusterState, capacity: FreeCapacity) -> list[str]:
        """End expired back-offs, and compute when the next cycle is due if nothing changes. Returns reasons to plan."""
        lost = frozenset(name for name in state.nodes if capacity.is_lost(name))
        reasons = [f"node {name} is silent" for name in sorted(lost - self._lost)]
        self._lost = lost
        reasons += [f"{job} is tried again" for job in self._executor.end_backoffs()]
        promises = self._planner.promises
        if self._clock.monotonic() >= promises.due():
            reasons.append("a place was not taken")
        silent = (
            self._settings.lost_after_seconds - capacity.age(node.not_ready_since)
            for node in state.nodes.values()
            if node.not_ready_since is not None and node.name not in lost
        )
        young = (
            self._settings.between_rounds_seconds - capacity.age(job.read.notes.allocation.since)
            for job in state.jobs.values()
            if job.read.argo.tree.recreated and job.read.notes.allocation is not None
        )
        unexplained = (explain_left(job, capacity, Pace()) for job in state.jobs.values() if job.read.spec.has_rules)
        waiting = [start_left(job, capacity) for job in state.jobs.values()]
        # Before a job is stopped because it is too late, a plan is made that may start it.
        planned_ago = self._planner.planned_ago
        if self._planner.failing_seconds is None and any(-planned_ago < seconds <= 0 for seconds in waiting):
            reasons.append(TOO_LATE)
        pending = (pending_left(job, capacity, usual=self._settings.pending_seconds) for job in state.jobs.values())
        checking = (node_checks.partial_at(job.read) - capacity.now_seconds for job in state.jobs.values())
        repairs = (repair_left(job.read, capacity) for job in state.jobs.values())
        every = (*silent, *young, *unexplained, *waiting, *pending, *checking, *repairs)
        left = min((seconds for seconds in every if seconds > 0), default=math.inf)
        self._later = self._clock.monotonic() + left
        if promises.due() > self._clock.monotonic():
            self._later = min(self._later, promises.due())
        return reasons

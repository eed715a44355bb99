"""What becomes due with time alone: cycles and plans for which no object has to change."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from diflow.allocator.plan.planner import Planner
from diflow.allocator.reconcile import node_checks, run_times
from diflow.allocator.reconcile.admission import start_left
from diflow.allocator.reconcile.all_jobs import Reconciler
from diflow.allocator.reconcile.incomplete import incomplete_left
from diflow.allocator.reconcile.one_job import Pace, explain_left, repair_left
from diflow.allocator.reconcile.pending import pending_left
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
        reconciler: Reconciler,
        clock: Clock,
        *,
        look_due: Sequence[Callable[[], float]],
    ) -> None:
        self._settings, self._executor, self._planner = settings, executor, planner
        self._unbound, self._left = reconciler.unbound, reconciler.left
        self._clock, self._look_due = clock, look_due
        self.cycled = self.planned = clock.monotonic()
        self._later = math.inf
        self._looked = 0.0
        self._lost: frozenset[str] = frozenset()

    def due(self) -> float:
        """When the next cycle is due."""
        return min(
            self.planned + self._settings.period_seconds,
            self._later,
            *(due() for due in self._look_due),
            # What was due by the last cycle was a reason for a plan then.
            *(
                at
                for at in (self._planner.promises.due(), self._planner.pacing.due(), self._planner.effort.due())
                if at > self.cycled
            ),
            self._executor.next_retry(),
            self._left.due(),
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
        promises.look(state.jobs, now=self._clock.monotonic())
        if self._clock.monotonic() >= promises.due():
            reasons.append("a place was not taken")
        if self._clock.monotonic() >= self._planner.pacing.due():
            reasons.append("a resize is due")
        if self._clock.monotonic() >= self._planner.effort.due():
            reasons.append("jobs that took long to plan were left aside")
        pauses = [
            at.paused_until - capacity.now_seconds
            for job in state.jobs.values()
            if (at := job.read.notes.allocation) is not None and at.paused_until
        ]
        if any(-(capacity.now_seconds - self._looked) < left <= 0 for left in pauses):
            reasons.append("a pause has ended")
        self._looked = capacity.now_seconds
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
        limited = (run_times.left(job, now=capacity.now_seconds) for job in state.jobs.values())
        most = self._settings.incomplete_seconds
        short = (incomplete_left(job, capacity, seconds=most) for job in state.jobs.values())
        every = (*short, *limited, *silent, *young, *unexplained, *waiting, *pending, *checking, *repairs, *pauses)
        left = min((seconds for seconds in every if seconds > 0), default=math.inf)
        self._later = self._clock.monotonic() + left
        return reasons

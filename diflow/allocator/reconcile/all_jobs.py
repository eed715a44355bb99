"""Reconciles all jobs: the next writes of each, until the cluster is as decided."""

from __future__ import annotations

import math
import traceback
from collections.abc import Sequence, Set
from operator import attrgetter
from typing import Final

import structlog

from diflow.allocator.reconcile import node_checks, run_times
from diflow.allocator.reconcile.incomplete import incomplete_left
from diflow.allocator.reconcile.left_pods import LeftPods
from diflow.allocator.reconcile.one_job import Pace, end_pods, reconcile
from diflow.allocator.reconcile.pending import limit, not_started
from diflow.allocator.settings import AllocatorSettings
from diflow.allocator.watch.cluster_state import ClusterState
from diflow.allocator.watch.free_capacity import FreeCapacity
from diflow.allocator.watch.job import Job
from diflow.allocator.watch.unbound_pods import UnboundPods
from diflow.allocator.write.executor import Executor
from diflow.allocator.write.patches import Write
from diflow.allocator.write.round_robin import in_turns
from diflow.common.clock import Clock

_MOST_REPAIRS: Final = 4  # in one pass

log = structlog.get_logger("diflow.allocator")


class Reconciler:
    """Skips the jobs that have not changed since a pass without writes, so that a thousand of them cost nothing."""

    def __init__(
        self,
        executor: Executor,
        settings: AllocatorSettings,
        *,
        clock: Clock,
    ) -> None:
        self._executor = executor
        self._pace = Pace(
            settings.between_rounds_seconds,
            bind_seconds=settings.bind_seconds,
            longest_pause_seconds=settings.longest_pause_seconds,
            incomplete_seconds=settings.incomplete_seconds,
        )
        self._most_memory = settings.most_memory_mib
        self._pending_seconds = settings.pending_seconds
        self._clock = clock
        self._unchanged: dict[str, Job] = {}
        self._passed = -math.inf  # when the last pass was, in seconds since 1970
        self.unbound = UnboundPods(settings.bind_seconds)
        self.left = LeftPods(settings.watched_namespace)

    def writes(self, state: ClusterState, capacity: FreeCapacity, *, planned_ago: float) -> list[Write]:
        """The next writes of all jobs. Admissions reserve from `capacity`.

        `planned_ago`: seconds since the last plan that was carried out, infinite without one.
        """
        now, executor = self._clock.wall(), self._executor
        overdue = frozenset(self.unbound.overdue(state, now=self._clock.monotonic()))
        unwritable = executor.unwritable(state.jobs)
        lost = {host for host in {pod.host for pod in state.pods} if host and capacity.is_lost(host)}
        out = self.left.stops(state, now=self._clock.monotonic(), wall=now)
        unchanged: dict[str, Job] = {}
        for job in sorted(state.jobs.values(), key=attrgetter("order")):
            if job.key in unwritable:
                out += end_pods(job, capacity)
                continue
            if (
                self._is_unchanged(job, lost, overdue, now)
                and incomplete_left(job, capacity, seconds=self._pace.incomplete_seconds) > 0
            ):
                unchanged[job.key] = job
                continue
            if executor.is_backing_off(job.key):
                continue
            try:
                writes = not_started(job, capacity, now=now, usual=self._pending_seconds) or reconcile(
                    job,
                    capacity,
                    now=now,
                    pace=self._pace,
                    overdue=overdue,
                    planned_ago=planned_ago,
                    most_memory=self._most_memory,
                )
            except Exception as error:  # one faulty job must not stop the others
                log.error("the job cannot be reconciled", job=job.key, trace=traceback.format_exc(limit=-4))
                executor.backoffs.start(job.key, error)
                continue
            out += writes
            if not writes and not job.read.argo.awaits_admission and not any(pod.is_gated for pod in job.pods):
                unchanged[job.key] = job
        self._unchanged, self._passed = unchanged, now
        return _few_repairs(out)

    def _is_unchanged(self, job: Job, lost: Set[str], overdue: Set[str], now: float) -> bool:
        if self._unchanged.get(job.key) is not job:
            return False
        # With time alone a node becomes lost, a round old enough to be replaced, a pod overdue or pending too long, a
        # job reaches the end of its run time, a node check old enough to be judged without the results that are
        # missing, and a job quiet enough for a repair.
        if job.read.argo.tree.recreated or job.read.argo.tree.is_stuck or job.read.first_failure_seconds:
            return False
        if self._passed < node_checks.partial_at(job.read) <= now or run_times.left(job, now=now) <= 0:
            return False
        if limit(job.read, self._pending_seconds) and any(pod.pending_since for pod in job.pods):
            return False
        return not (lost or overdue) or not any(pod.identity.uid in overdue or pod.host in lost for pod in job.pods)


def _few_repairs(writes: Sequence[Write]) -> list[Write]:
    """The writes, with few repairs: each reads and writes a whole Workflow, for which all others wait. The other jobs
    are repaired in later passes."""
    repairs = in_turns([write for write in writes if write.is_repair], lambda write: write.target.namespace)
    return [*(write for write in writes if not write.is_repair), *repairs[:_MOST_REPAIRS]]

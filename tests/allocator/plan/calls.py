"""Calls of functions of the engine, with the arguments that most tests leave as they are."""

from __future__ import annotations

from diflow.allocator.model.plan import Plan
from diflow.allocator.plan import plan_writes as planning
from diflow.allocator.plan.inputs import Picture
from diflow.allocator.reconcile import one_job as reconciling
from diflow.allocator.reconcile.one_job import Pace
from diflow.allocator.watch.free_capacity import FreeCapacity
from diflow.allocator.watch.job import Job
from diflow.allocator.write.patches import Write

_PACE = Pace()


def reconcile(
    job: Job,
    capacity: FreeCapacity,
    *,
    now: float,
    pace: Pace = _PACE,
    overdue: frozenset[str] = frozenset(),
    planned_ago: float = 0.0,
    most_memory: int | None = None,
) -> list[Write]:
    """As `reconcile.reconcile`."""
    return reconciling.reconcile(
        job, capacity, now=now, pace=pace, overdue=overdue, planned_ago=planned_ago, most_memory=most_memory
    )


def plan_writes(
    shown: Picture, plan: Plan, *, now: float, limit_seconds: float = 300.0
) -> tuple[list[Write], list[Write]]:
    """As `plan_writes.plan_writes`, without free capacity: no job is admitted by the same write. Errors are raised."""

    def failed(_job: Job, error: Exception) -> None:
        raise error

    return planning.plan_writes(
        shown, plan, now=now, limit_seconds=limit_seconds, capacity=FreeCapacity.of({}, ()), failed=failed
    )

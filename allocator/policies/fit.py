"""`fit`: whoever fits starts, in the order of priority and age; nobody is ever moved.

The policy to compare others with, and the one that surprises nobody. The gang that waits longest gets room kept for
it after a while, so that small jobs cannot pass it for ever.
"""

from __future__ import annotations

import numpy as np

from diflow.allocator.arrays import BoolArray, IntArray
from diflow.allocator.ledger import Ledger
from diflow.allocator.plan import Plan, Why
from diflow.allocator.settings import PolicySettings
from diflow.allocator.snapshot import Snapshot
from diflow.allocator.waiting import Feasibility, Reasons, explain_waiting, grow_in_place, reserve, start, start_order


class FitPolicy:
    """First come, first served within a priority, with backfill and one reservation."""

    name = "fit"

    def __init__(self, settings: PolicySettings | None = None) -> None:
        self._settings = settings or PolicySettings()

    def allocate(self, job: int, snapshot: Snapshot) -> Plan:
        only = np.zeros(snapshot.jobs, dtype=np.bool_)
        only[job] = True
        return self._plan(snapshot, only)

    def optimize(self, snapshot: Snapshot) -> Plan:
        return self._plan(snapshot, np.ones(snapshot.jobs, dtype=np.bool_))

    def measure(self, snapshot: Snapshot, plan: Plan) -> float:
        """Replicas placed."""
        del snapshot
        return float(plan.count.sum())

    def _plan(self, snapshot: Snapshot, considered: BoolArray) -> Plan:
        ledger = Ledger(snapshot)
        marks = Reasons(snapshot)
        held = np.zeros(snapshot.jobs, dtype=np.bool_)
        held[snapshot.role_job[snapshot.held_role]] = True
        order = start_order(snapshot)
        start_waiting(
            ledger, order[~held[order]], considered, marks, reserve_after=self._settings.reserve_after_seconds
        )
        grow_in_place(ledger, order, considered, marks)
        return marks.plan(ledger, self.name)


def start_waiting(
    ledger: Ledger,
    order: IntArray,
    considered: BoolArray,
    marks: Reasons,
    *,
    reserve_after: float,
) -> None:
    """Start each waiting job in turn with as much of what it wants as fits, at least its minimum."""
    snapshot = ledger.snapshot
    feasible = Feasibility(snapshot)
    # Free room only shrinks here: a shape that failed once with some minimum fails with any that is as large.
    failed: dict[tuple[int, int, bool], int] = {}
    reserved_for = -1
    for j in order.tolist():
        impossible = feasible.reason(ledger, j) if snapshot.job_queue[j] >= 0 else (Why.NO_SUCH_QUEUE, (0.0, 0.0, 0.0))
        if impossible is not None:
            marks.set(j, *impossible, int(snapshot.job_queue[j]))
            continue
        roles = ledger.roles_of(j)
        shape = (ledger.shape(roles[0]), ledger.job_queue[j] if ledger.capped else -1, bool(len(roles) > 1))
        known = failed.get(shape)
        started = False
        if considered[j] and (known is None or int(snapshot.role_min[roles[0]]) < known or len(roles) > 1):
            started = start(ledger, j)
            if not started and len(roles) == 1:
                failed[shape] = min(known or 2**62, int(snapshot.role_min[roles[0]]))
        if started:
            got = sum(int(ledger.replicas[role]) for role in roles)
            marks.set(j, Why.FITS, (got, sum(int(snapshot.role_desired[role]) for role in roles), 0.0))
            continue
        explain_waiting(ledger, j, reserved_for, marks)
        waited = snapshot.now_seconds - snapshot.job_created_seconds[j]
        if reserved_for < 0 and waited >= reserve_after and marks.why[j] == int(Why.NO_ROOM) and reserve(ledger, j):
            reserved_for = j
            failed.clear()

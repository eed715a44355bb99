"""`goodput`: all preemptible jobs are re-allocated by their reports.

The objective is the sum of the values of all jobs (`values.py`). A knapsack, or on large clusters the greedy on concave
hulls, chooses the replica counts (`targets.py`); placement leaves unchanged jobs where they are (`placing.py`). The
plan is used only if its value exceeds that of the current allocation (`solver.py`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from diflow.allocator.model.arrays import BoolArray, IntArray
from diflow.allocator.model.plan import PREEMPT, RESIZE, Plan, keep_plan
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.fixed_point import followed, is_no_worse, of_whole
from diflow.allocator.policies.goodput.case import Case
from diflow.allocator.policies.goodput.solver import Solver
from diflow.allocator.policies.goodput.table import Tables
from diflow.allocator.policies.limits import as_within_maximums, within_maximums
from diflow.allocator.policies.settings import PolicySettings

Quotas = Callable[[Snapshot], IntArray]
"""The most that the jobs of each queue may hold together (Q×R)."""


class GoodputPolicy:
    """Goodput-optimal re-allocation."""

    def __init__(self, settings: PolicySettings | None = None, *, name: str = "goodput") -> None:
        self.name = name
        self._settings = settings or PolicySettings()
        self._tables = Tables()
        self._last: Case | None = None

    def allocate(self, job: int, snapshot: Snapshot) -> Plan:
        """Start the new job in free capacity, at its most valuable size; no other job changes."""
        snapshot.work.begin()
        only = np.zeros(snapshot.jobs, dtype=np.bool_)
        only[job] = True
        return Solver(Case(snapshot, self._settings, self._tables, only), self.name).solve()

    def optimize(self, snapshot: Snapshot) -> Plan:
        snapshot.work.begin()
        return within_maximums(
            snapshot, self.name, lambda used, restarts: self.plan(used, moved=restarts), keeps_pool=True
        )

    def measure(self, snapshot: Snapshot, plan: Plan) -> float:
        """Sum of the jobs' values under the plan, restart costs included."""
        return self.value(*as_within_maximums(snapshot, plan, keeps_pool=True))

    def value(self, snapshot: Snapshot, plan: Plan, moved: BoolArray | None = None) -> float:
        """As `measure`, of a snapshot whose jobs have given up what is above their maximum. `moved`: as in `plan`."""
        case = self._last
        if moved is not None:
            case = Case(snapshot, self._settings, self._tables, moved=moved)
        elif case is None or case.snapshot is not snapshot:
            # A plan and its measures use the same snapshot.
            case = self._last = Case(snapshot, self._settings, self._tables)
        return case.total(plan)

    def within(self, snapshot: Snapshot, quota: IntArray, *, moved: BoolArray) -> Plan:
        """The best plan in which no queue exceeds its quota (Q×R), even if its value is below the current one. `moved`:
        as in `plan`."""
        return Solver(Case(snapshot, self._settings, self._tables, None, quota, moved=moved), self.name).reach()

    def plan(self, snapshot: Snapshot, *, quotas: Quotas | None = None, moved: BoolArray | None = None) -> Plan:
        """The plan for all jobs. `moved` (J): jobs that start or restart in any case, for which resizing is free."""

        def solver(present: Snapshot, before: Case | None) -> Solver:
            most = quotas(present) if quotas else None
            free = moved if before is None else None
            case = Case(present, self._settings, self._tables, None, most, moved=free, before=before)
            return Solver(case, self.name)

        first = solver(snapshot, None)
        case = self._last = first.case
        plan = followed(snapshot, first.solve(), lambda present: solver(present, case).solve())
        total = case.total
        if ((plan.action == RESIZE) | (plan.action == PREEMPT)).any():
            # Each step was worth it in the state before that step; the whole plan must be worth it in the current one.
            if total(plan) < total(first.keep):
                plan = first.keep
            if not is_no_worse(total(plan), case.values.present_total()):
                plan = keep_plan(snapshot, self.name)
        return of_whole(snapshot, plan)

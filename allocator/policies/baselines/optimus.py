"""An Optimus-like baseline (EuroSys 2018): replicas go where they reduce the time left most; batch sizes stay fixed.

For comparison in the simulator. It knows the time left of each job, uses the same performance model, and ignores the
cost of a move.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from diflow.allocator.model.plan import Plan
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.goodput.case import Case
from diflow.allocator.policies.goodput.optimise import greedy
from diflow.allocator.policies.goodput.placing import Placing
from diflow.allocator.policies.goodput.policy import GoodputPolicy
from diflow.allocator.policies.goodput.table import Tables
from diflow.allocator.policies.goodput.targets import problem_of, replicas_of
from diflow.allocator.policies.settings import PolicySettings

WAITING_FACTOR = 10.0
"""A waiting job counts as ten times slower than in its smallest configuration, so every job gets that first."""


class OptimusPolicy:
    """Greatest reduction of the summed time left, replica by replica."""

    name = "optimus"

    def __init__(self, settings: PolicySettings | None = None) -> None:
        self._settings = settings or PolicySettings()
        self._goodput = GoodputPolicy(self._settings, name=self.name)
        self._tables = Tables()

    def allocate(self, job: int, snapshot: Snapshot) -> Plan:
        return self._goodput.allocate(job, snapshot)

    def measure(self, snapshot: Snapshot, plan: Plan) -> float:
        return self._goodput.measure(snapshot, plan)

    def optimize(self, snapshot: Snapshot) -> Plan:
        case = Case(snapshot, self._settings, self._tables)
        problem = problem_of(case)
        left = np.where(np.isfinite(case.table.left_seconds), case.table.left_seconds, 600.0)
        with np.errstate(divide="ignore"):
            value = np.where(np.isfinite(problem.value), -left[:, None] / case.values.speed, -np.inf)
        column = greedy(replace(problem, value=value, floor=-WAITING_FACTOR * left))
        placing = Placing(case)
        placing.reach(replicas_of(case, column), None)
        return placing.plan(self.name)

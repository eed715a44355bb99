"""From a case to a plan: the better of the best plan found and the plan that changes no running job."""

from __future__ import annotations

from functools import cached_property

from diflow.allocator.model.arrays import IntArray
from diflow.allocator.model.plan import Plan
from diflow.allocator.policies.goodput.case import Case
from diflow.allocator.policies.goodput.optimise import Problem
from diflow.allocator.policies.goodput.placing import Placing
from diflow.allocator.policies.goodput.targets import problem_of, targets
from diflow.allocator.policies.goodput.tiny import CLOSE, is_tiny, searched

MARGIN = 1e-6
"""Relative improvement that a plan needs over the current allocation: less is rounding."""


class Solver:
    """Solves one case; its plans have the policy's `name`."""

    def __init__(self, case: Case, name: str) -> None:
        self.case, self._name = case, name

    def solve(self) -> Plan:
        """The better of the best plan found and `keep`."""
        case, free, total = self.case, self.case.view.free_to_move, self.case.total
        if not free.any():
            return self.keep
        problem = problem_of(case)
        target, bound = targets(case, problem)
        if not case.changes(target).any():
            return self.keep
        plan, kept = self._reach(target, problem), total(self.keep)
        best = max(total(plan), kept)
        if (
            case.pools.count == 1
            and best < CLOSE * bound
            and is_tiny(case)
            and (found := searched(case, problem, best)) is not None
        ):
            plan = found.plan(self._name)
        return plan if total(plan) > kept + MARGIN * abs(kept) else self.keep

    def reach(self) -> Plan:
        """The best plan found, even if its value is below the current one."""
        problem = problem_of(self.case)
        return self._reach(targets(self.case, problem)[0], problem)

    @cached_property
    def keep(self) -> Plan:
        """The plan that changes no running job and starts the jobs that fit."""
        return self._reach(self.case.view.held, None)

    def _reach(self, target: IntArray, problem: Problem | None) -> Plan:
        placing = Placing(self.case)
        placing.reach(target, problem)
        return placing.plan(self._name)

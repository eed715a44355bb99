"""`fit`: by priority, then age; whole gangs or nothing; preemptible jobs share what is left, on few nodes.

A plan is one cycle (`cycle.py`), or several until nothing changes. No speeds, no shares: see docs/policies.md.
"""

from __future__ import annotations

import numpy as np

from diflow.allocator.model.plan import Plan, evictions
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.fit.cycle import GENTLY, STILL, Cycle
from diflow.allocator.policies.fit.reasons import explain
from diflow.allocator.policies.fixed_point import followed, no_worse_than_keeping, of_whole
from diflow.allocator.policies.settings import PolicySettings
from diflow.allocator.policies.waiting import plan_of

RANKS = 4
"""Priorities that the measure distinguishes (the lowest ones count as one)."""


class FitPolicy:
    """First come, first served within a priority, with preemption, backfill and one reservation."""

    name = "fit"

    def __init__(self, settings: PolicySettings | None = None) -> None:
        self._settings = settings or PolicySettings()

    def allocate(self, job: int, snapshot: Snapshot) -> Plan:
        """Start the new job in free capacity; no other job changes."""
        snapshot.work.begin()
        only = np.zeros(snapshot.jobs, dtype=np.bool_)
        only[job] = True
        return self._planned(Cycle(snapshot, self._settings, considered=only))

    def optimize(self, snapshot: Snapshot) -> Plan:
        snapshot.work.begin()
        return of_whole(snapshot, self._optimize(snapshot))

    def _optimize(self, snapshot: Snapshot) -> Plan:
        cycle = Cycle(snapshot, self._settings)
        plan = self._planned(cycle)
        # A waiting job may fit in another way beside those that start.
        if not cycle.disturbs and not (cycle.waiting and cycle.started):
            return plan
        plan = followed(snapshot, plan, lambda after: self._planned(Cycle(after, self._settings)))
        if evictions(snapshot, plan) == 0:
            return plan
        plans = (
            lambda: plan,
            lambda: self._planned(Cycle(snapshot, self._settings, care=GENTLY)),
            lambda: self._planned(Cycle(snapshot, self._settings, care=STILL)),
        )
        return no_worse_than_keeping(snapshot, plans, served, self.name)

    def _planned(self, cycle: Cycle) -> Plan:
        """The plan of a cycle, with its reasons."""
        cycle.run()
        explain(cycle)
        return plan_of(cycle.ledger, self.name, cycle.reasons)

    def measure(self, snapshot: Snapshot, plan: Plan) -> float:
        """Running gangs, then replicas on open nodes, with higher priorities before lower ones (lexicographic)."""
        return served(snapshot, plan)


def served(snapshot: Snapshot, plan: Plan) -> float:
    """For each of the highest priorities: running gangs, then replicas that are not preemptible, then the others."""
    s = snapshot
    after = np.bincount(plan.role, weights=plan.count, minlength=s.roles)
    whole = ~s.jobs_of(after < s.role_min)
    on_open = s.node_open[plan.node] & whole[s.role_job[plan.role]]
    counted = np.bincount(plan.role[on_open], weights=plan.count[on_open], minlength=s.roles)
    replicas = np.bincount(s.role_job, weights=np.minimum(counted, s.role_max), minlength=s.jobs)
    levels = np.unique(s.job_priority)[-(RANKS - 1) :]
    rank = np.searchsorted(levels, s.job_priority, side="right")
    most = float(s.role_max.sum()) + 1.0
    value = 0.0
    for level in range(len(levels), -1, -1):
        there = rank == level
        fixed = float(replicas[there & ~s.job_preemptible].sum()) / most
        moving = float(replicas[there & s.job_preemptible].sum()) / most
        value = value * (s.jobs + 2.0) + float((whole & there).sum()) + fixed / 2 + moving / (4 * most)
    return value

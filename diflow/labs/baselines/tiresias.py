"""A Tiresias-like baseline (NSDI 2019): least attained service in two queues, fixed replica counts, preemption.

For comparison in the simulator. Jobs with little service come first, in the order of their arrival; the others follow.
A running job that is not among the first that fit is stopped.
"""

from __future__ import annotations

import numpy as np

from diflow.allocator.model.ledger import Ledger
from diflow.allocator.model.plan import Plan, Why
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.fit.policy import FitPolicy
from diflow.allocator.policies.settings import PolicySettings
from diflow.allocator.policies.waiting import Feasibility, JobReasons, explain_waiting

LITTLE_REPLICA_SECONDS = 16 * 3600.0
"""Service (replica-seconds) below which a job is in the first queue."""


class TiresiasPolicy:
    """Discretised two-dimensional least attained service."""

    name = "tiresias"

    def __init__(self, settings: PolicySettings | None = None) -> None:
        self._fit = FitPolicy(settings)

    def allocate(self, job: int, snapshot: Snapshot) -> Plan:
        return self._fit.allocate(job, snapshot)

    def measure(self, snapshot: Snapshot, plan: Plan) -> float:
        """As `FitPolicy.measure`."""
        return self._fit.measure(snapshot, plan)

    def optimize(self, snapshot: Snapshot) -> Plan:
        ledger, reasons, feasible = Ledger(snapshot), JobReasons(snapshot), Feasibility(snapshot)
        old = snapshot.job_service_seconds >= LITTLE_REPLICA_SECONDS
        order = np.lexsort((np.arange(snapshot.jobs), snapshot.job_created_seconds, old, -snapshot.job_priority))
        fixed = ~snapshot.job_preemptible & (ledger.replicas[ledger.starts[:-1]] > 0)
        before = {j: ledger.release(j) for j in range(snapshot.jobs) if ledger.holds(j) and not fixed[j]}
        # First choose the jobs that run, by capacity; then place them, so that running jobs stay on their nodes.
        chosen = [j for j in order[~fixed[order] & (snapshot.job_queue >= 0)[order]].tolist() if _put(ledger, j)]
        for j in chosen:
            ledger.release(j)
        for j in [j for j in chosen if j in before]:
            ledger.restore(j, before[j])
        for j in [j for j in chosen if j not in before]:
            if _put(ledger, j):
                got = float(sum(ledger.replicas[role] for role in ledger.roles_of(j)))
                reasons.set(j, Why.FITS, (got, got, 0.0))
        for j in [j for j in order.tolist() if not ledger.holds(j)]:
            if j in before:
                reasons.set(j, Why.PREEMPTED_FOR_PRIORITY, (0.0, 0.0, 0.0))
                continue
            reason = feasible.reason(j) if snapshot.job_queue[j] >= 0 else (Why.NO_SUCH_QUEUE, (0.0, 0.0, 0.0))
            if reason is None:
                reasons.set(j, *explain_waiting(ledger, j))
            else:
                reasons.set(j, *reason)
        return reasons.plan(ledger, self.name)


def _put(ledger: Ledger, job: int) -> bool:
    want = {role: int(ledger.snapshot.role_desired[role]) for role in ledger.roles_of(job)}
    return ledger.try_gang(job, want) is not None

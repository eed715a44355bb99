"""A Tiresias-like baseline (NSDI 2019): least attained service in two queues, fixed replica counts, preemption.

For comparison in the simulator. Jobs with little service come first, in the order of their arrival; the others follow.
A running job that is not among the first that fit is stopped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diflow.allocator.model.ledger import Ledger
from diflow.allocator.model.plan import Plan
from diflow.allocator.model.reasons import Fits, Reason
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.fit.policy import FitPolicy
from diflow.allocator.policies.settings import PolicySettings
from diflow.allocator.policies.waiting import Feasibility, explain_impossible, explain_waiting, first_reasons, plan_of

LITTLE_REPLICA_SECONDS = 16 * 3600.0
"""Service (replica-seconds) below which a job is in the first queue."""


@dataclass(frozen=True, slots=True)
class ServedEnough(Reason):
    def text(self) -> str:
        return "gives way to jobs that have had less service, or came before it"


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
        ledger, reasons, feasible = Ledger(snapshot), first_reasons(snapshot), Feasibility(snapshot)
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
                got = sum(ledger.count[role] for role in ledger.roles_of(j))
                reasons[j] = Fits(got, got)
        for j in [j for j in order.tolist() if not ledger.holds(j)]:
            if j in before:
                reasons[j] = ServedEnough()
            elif (impossible := feasible.impossible(j)) is not None:
                reasons[j] = explain_impossible(ledger, j, impossible)
            else:
                reasons[j] = explain_waiting(ledger, j)
        return plan_of(ledger, self.name, reasons)


def _put(ledger: Ledger, job: int) -> bool:
    want = {role: int(ledger.snapshot.role_desired[role]) for role in ledger.roles_of(job)}
    return ledger.try_gang(job, want) is not None

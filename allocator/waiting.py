"""Why a job cannot start, and room kept for the gang that waits longest: shared by the policies."""

from __future__ import annotations

import numpy as np

from diflow.allocator.arrays import BoolArray, IntArray
from diflow.allocator.ledger import Ledger
from diflow.allocator.packing import slots
from diflow.allocator.plan import Plan, Why, make_plan
from diflow.allocator.snapshot import Snapshot


def start_order(snapshot: Snapshot) -> IntArray:
    """Jobs by priority (higher first), then age, then name."""
    return np.lexsort((np.arange(snapshot.jobs), snapshot.job_created_seconds, -snapshot.job_priority))


def minimum_gang(ledger: Ledger, job: int) -> dict[int, int]:
    return {role: int(ledger.snapshot.role_min[role]) for role in ledger.roles_of(job)}


class Reasons:
    """Why each job is decided on as it is, noted as it comes up."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.why = np.where(snapshot.job_preemptible, int(Why.KEPT), int(Why.KEPT_NOT_PREEMPTIBLE)).astype(np.int64)
        self.values = np.zeros((snapshot.jobs, 3))
        self.subject = np.full(snapshot.jobs, -1, dtype=np.int64)

    def set(self, job: int, why: Why, values: tuple[float, float, float], subject: int = -1) -> None:
        self.why[job], self.values[job], self.subject[job] = int(why), values, subject

    def plan(self, ledger: Ledger, name: str) -> Plan:
        """The ledger's allocation as a plan with these reasons."""
        role, node, count = ledger.triples()
        return make_plan(
            ledger.snapshot, name, role, node, count, why=self.why, values=self.values, subject=self.subject
        )


class Feasibility:
    """Whether a gang's minimum could ever start, on a cluster empty of our jobs; remembered by shape."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._room = snapshot.node_allocatable - snapshot.node_foreign
        self._most: dict[tuple[int, bool], int] = {}

    def reason(self, ledger: Ledger, job: int) -> tuple[Why, tuple[float, float, float]] | None:
        """None if it could; else why not, with the numbers of the text."""
        s = self._snapshot
        if s.nodes == 0 or not s.node_open.any():
            return Why.NO_NODES, (0.0, 0.0, 0.0)
        for role in ledger.roles_of(job):
            key = (ledger.shape(role), True)
            if key not in self._most:
                most = slots(self._room, s.role_request[role], s.eligible(role))
                self._most[key] = int(np.minimum(most, 2**40).sum())
            if self._most[key] < s.role_min[role]:
                return Why.TOO_BIG, (float(s.role_min[role]), float(self._most[key]), 0.0)
        for role in ledger.roles_of(job):
            if ledger.capped and ledger.job_queue[job] >= 0:
                chain = ledger.snapshot.queue_cap[ledger.job_queue[job]]
                if (s.role_request[role] * s.role_min[role] > chain).any():
                    return Why.QUEUE_CAP, (float(s.role_min[role]), 0.0, 0.0)
        return None


Kept = list[tuple[IntArray, IntArray]]
"""What is kept for somebody: (nodes, amounts)."""


def reserve(ledger: Ledger, job: int) -> Kept:
    """Keep room for the job's minimum on the nodes where least is missing. Empty if no set of nodes could hold it.

    Nodes are taken in the order of their free room for the job, until they could hold it if they were empty. Room
    kept is only ever filled by the job itself, so what is missing never grows from one cycle to the next; smaller
    jobs may use what the job would leave over even there.
    """
    s = ledger.snapshot
    base = s.node_allocatable - s.node_foreign
    kept: Kept = []
    for role in ledger.roles_of(job):
        need = int(s.role_min[role])
        eligible = s.eligible(role)
        whole = slots(base, s.role_request[role], eligible)
        now = np.minimum(slots(ledger.free, s.role_request[role], eligible), whole)
        order = np.lexsort((np.arange(s.nodes), -whole, -now))
        order = order[whole[order] > 0]
        if len(order) == 0 or int(np.minimum(whole[order], 2**40).sum()) < need:
            return []
        total = np.cumsum(np.minimum(whole[order], need))
        last = int(np.searchsorted(total, need))
        chosen = order[: last + 1]
        counts = np.minimum(whole[chosen], need)
        counts[-1] = need - (int(total[last - 1]) if last else 0)
        kept.append((chosen, ledger.block(chosen, counts[:, None] * s.role_request[role])))
    return kept


def start(ledger: Ledger, job: int) -> bool:
    """Place the job: what it desires if it fits; else its minimum, and for a single role as much as fits."""
    snapshot = ledger.snapshot
    roles = ledger.roles_of(job)
    wanted = {role: int(snapshot.role_desired[role]) for role in roles}
    if len(roles) == 1:
        role = roles[0]
        count = min(wanted[role], ledger.most(job, role))
        return count >= snapshot.role_min[role] and ledger.try_gang(job, {role: count}) is not None
    return ledger.try_gang(job, wanted) is not None or ledger.try_gang(job, minimum_gang(ledger, job)) is not None


def explain_waiting(
    ledger: Ledger,
    job: int,
    reserved_for: int,
    marks: Reasons,
) -> None:
    """Why a job that could run on an empty cluster does not run on this one."""
    snapshot = ledger.snapshot
    role = max(ledger.roles_of(job), key=lambda r: int(snapshot.role_min[r]))
    need = int(snapshot.role_min[role])
    for r in ledger.roles_of(job):
        if ledger.queue_room(job, r) < snapshot.role_min[r]:
            marks.set(job, Why.QUEUE_CAP, (need, ledger.queue_room(job, r), 0.0), int(snapshot.job_queue[job]))
            return
    fits = min(ledger.most(job, role), 2**31)
    if reserved_for >= 0:
        # Without the reservation it might have fitted: say which gang it waits for.
        marks.set(job, Why.RESERVED, (need, fits, 0.0), reserved_for)
    else:
        marks.set(job, Why.NO_ROOM, (need, fits, 0.0))


def grow_in_place(
    ledger: Ledger,
    order: IntArray,
    considered: BoolArray,
    marks: Reasons,
) -> None:
    """Give jobs that may not be moved the replicas that their users asked for meanwhile: beside what they have."""
    snapshot = ledger.snapshot
    short = np.zeros(snapshot.jobs, dtype=np.bool_)
    short[snapshot.role_job[ledger.replicas < snapshot.role_desired]] = True
    for j in order[(short & ~snapshot.job_preemptible & considered & (snapshot.job_queue >= 0))[order]].tolist():
        roles = ledger.roles_of(j)
        if not ledger.holds(j):
            continue
        if any(0 < ledger.replicas[r] < snapshot.role_min[r] for r in roles):
            # It holds less than a gang (its minimum was raised, or pods are lost): all of it or nothing.
            ledger.try_gang(j, {r: max(0, int(snapshot.role_min[r] - ledger.replicas[r])) for r in roles})
        if any(ledger.replicas[r] < snapshot.role_min[r] for r in roles):
            continue
        for role in roles:
            more = min(int(snapshot.role_desired[role] - ledger.replicas[role]), ledger.most(j, role))
            if more > 0 and ledger.try_gang(j, {role: more}) is not None:
                marks.set(j, Why.GROWN, (float(ledger.replicas[role]), float(more), 0.0))

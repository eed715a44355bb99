"""What the policies share: starting jobs, reserving capacity, and the reasons of waiting jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from diflow.allocator.model.arrays import BoolArray, IntArray, frozen
from diflow.allocator.model.domains import best_domain, most_in_one, rooms
from diflow.allocator.model.ledger import Ledger
from diflow.allocator.model.packing import slots
from diflow.allocator.model.plan import Plan, make_plan
from diflow.allocator.model.reasons import (
    Crowded,
    DoesNotFit,
    Grown,
    LentToPreemptible,
    NoNodes,
    NoSuchQueue,
    PlacedAgain,
    QueueCap,
    Reason,
    Reserved,
    RulesLeaveTooFew,
    TakesTooLong,
    TooBig,
    kept,
)
from diflow.allocator.model.snapshot import UNLIMITED, Snapshot
from diflow.common.words import named


def start_order(snapshot: Snapshot) -> IntArray:
    """Jobs by priority (higher first), then age, then name. Read-only."""
    created, priority = snapshot.job_created_seconds, snapshot.job_priority
    return snapshot.memo.get(
        "start order", (created, priority), lambda: np.lexsort((np.arange(snapshot.jobs), created, -priority))
    )


def minimum_gang(ledger: Ledger, job: int) -> dict[int, int]:
    low = ledger.facts.role_min
    return {role: low[role] for role in ledger.facts.roles_of[job]}


def first_reasons(snapshot: Snapshot) -> list[Reason]:
    """The reason of each job that nothing happens to: a policy replaces those of the others as it decides."""
    return [kept(is_preemptible=is_preemptible) for is_preemptible in snapshot.job_preemptible.tolist()]


def plan_of(ledger: Ledger, name: str, reasons: Sequence[Reason]) -> Plan:
    """The ledger's allocation as a plan with these reasons."""
    return make_plan(ledger.snapshot, name, *ledger.triples(), reasons=reasons)


class Feasibility:
    """Whether a gang's minimum could start on a cluster without the allocator's pods; cached by kind of job."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._facts = snapshot.facts
        self._some_open = bool(snapshot.node_open.any())
        sources = (self._facts, snapshot.node_allocatable, snapshot.node_foreign)
        self._reasons: dict[int, Reason | None] = snapshot.memo.get("feasible", sources, dict)
        self._most: dict[int, int] = snapshot.memo.get("most on an empty cluster", sources, dict)

    def reason(self, job: int) -> Reason | None:
        """None if it could; else why not."""
        kind = self._facts.kinds[job]
        if kind not in self._reasons:
            self._reasons[kind] = self._find(job)
        return self._reasons[kind]

    def impossible(self, job: int) -> Reason | None:
        """As `reason`, also for a job whose queue does not exist."""
        has_queue = self._facts.job_queue[job] >= 0
        return self.reason(job) if has_queue else NoSuchQueue(self._snapshot.job_queue_name[job])

    def possible(self) -> BoolArray:
        """J: jobs that run or could run on an empty cluster. Shares do not count the demand of others."""
        s, facts = self._snapshot, self._facts
        by_kind = [self.reason(job) is None for job in facts.first_of_kind]
        starts: BoolArray = np.array(by_kind, dtype=np.bool_)[facts.kind_of]
        return (starts | s.jobs_of(s.held_by_role() > 0)) & (s.job_queue >= 0)

    def _find(self, job: int) -> Reason | None:
        facts = self._facts
        if not self._some_open:
            return NoNodes()
        if found := self._too_big(job):
            return found
        if job in facts.bound_jobs and (by_rules := self._too_few(job)):
            return by_rules
        queue = facts.job_queue[job]
        if facts.capped and queue >= 0:
            for role in facts.roles_of[job]:
                for r, (asked, cap) in enumerate(zip(facts.request[role], facts.caps[queue], strict=True)):
                    if (need := facts.role_min[role] * asked) > cap:
                        names = self._snapshot.queue_names[queue], self._snapshot.resources[r]
                        return QueueCap(*names, needs=need, left=cap, cap=cap)
        return None

    def _too_big(self, job: int) -> TooBig | Crowded | None:
        """Why its gang fits nowhere beside the pods that stay: not on open and empty nodes either, or only not now."""
        now = self._lacking(job, self._most_of, self._slots)
        if now is None:
            return None
        ever = self._lacking(job, self._most_ever, self._slots_ever)
        return Crowded(*now) if ever is None else TooBig(*ever)

    def _too_few(self, job: int) -> RulesLeaveTooFew | None:
        """Why its gang fits nowhere by its rules about other pods, even if no job held anything."""
        s = self._snapshot
        none = frozen(np.zeros(0, dtype=np.int64))
        sources = (self._facts, s.node_allocatable, s.node_foreign, s.rules)
        empty: Ledger = s.memo.get(
            "empty ledger",
            sources,
            lambda: Ledger(
                replace(
                    s,
                    held_role=none,
                    held_node=none,
                    held_count=none,
                    queue_cap=frozen(np.full_like(s.queue_cap, UNLIMITED)),
                    keeps_guarantees=False,
                    memo=s.apart(),
                )
            ),
        )
        return None if empty.fits(job, minimum_gang(empty, job)) else too_few(empty, job)

    def _lacking(
        self, job: int, most_of: Callable[[int], int], slots_of: Callable[[int], IntArray]
    ) -> tuple[int, int] | None:
        """(replicas needed, those that fit) of a role that does not fit: by itself, or beside the others in one domain
        of the required level, then of the worst role in the best domain. None if all fit. `most_of`: how many of a role
        fit, in one domain if its job requires that; `slots_of`: those on each node (N)."""
        facts = self._facts
        roles = facts.roles_of[job]
        for role in roles:
            if (most := most_of(role)) < facts.role_min[role]:
                return facts.role_min[role], most
        if facts.required[job] < 0 or len(roles) < 2:
            return None
        fits = {role: slots_of(role) for role in roles}
        there = best_domain(self._snapshot, job, fits)
        inside = {role: int(np.minimum(fits[role][there], 2**31).sum()) for role in roles}
        role = max(roles, key=lambda r: ((facts.role_min[r] - inside[r]) / facts.role_min[r], -r))
        return (facts.role_min[role], inside[role]) if inside[role] < facts.role_min[role] else None

    def _most_of(self, role: int) -> int:
        """Replicas of the role that fit beside the pods that stay, in one domain if its job requires that."""
        shape = self._facts.plain[self._facts.shape[role]]
        if shape not in self._most:
            self._most[shape] = most_in_one(self._snapshot, self._facts.level[shape], self._slots(role))
        return self._most[shape]

    def _slots(self, role: int) -> IntArray:
        return empty_slots(self._snapshot, role)

    def _most_ever(self, role: int) -> int:
        level = self._facts.level[self._facts.shape[role]]
        return most_in_one(self._snapshot, level, self._slots_ever(role))

    def _slots_ever(self, role: int) -> IntArray:
        """Replicas of the role that fit on each node (N) if all nodes are open and hold no pods."""
        s = self._snapshot
        return slots(s.node_allocatable, s.role_request[role], s.suits(role))


def empty_slots(snapshot: Snapshot, role: int) -> IntArray:
    """Replicas of the role that fit on each node of an empty cluster (N). Read-only."""
    s, facts = snapshot, snapshot.facts
    known: dict[int, IntArray] = s.memo.get("empty slots", (facts, s.node_allocatable, s.node_foreign), dict)
    shape = facts.plain[facts.shape[role]]
    if shape not in known:
        known[shape] = frozen(slots(s.capacity(), s.role_request[role], facts.eligible(shape)))
    return known[shape]


Kept = list[tuple[IntArray, IntArray]]
"""A reservation: (nodes, amounts) for each role."""


def lift(ledger: Ledger, kept: Kept) -> None:
    """Lift a reservation that `reserve` has made."""
    for nodes, amount in kept:
        ledger.unblock(nodes, amount)


def reserve(ledger: Ledger, job: int, borrowed: IntArray | None = None, *, lasting: IntArray | None = None) -> Kept:
    """Reserve capacity for the job's minimum on the nodes that lack least. Empty if no set of nodes could hold it.

    For a job that requires a domain, all these nodes are in the domain of which the largest part is free.

    Nodes are chosen in descending order of free slots for the job, until they could hold it if they were empty. Only
    the job itself uses the reservation, so what it lacks never grows from cycle to cycle; smaller jobs may use what
    is left over on these nodes. A role that is confined to a pool of nodes gets nodes of that pool. `borrowed` (N×R):
    counts as free for the choice, because borrowers give it back. `lasting` (N×R): used by jobs that may never end.
    """
    s = ledger.snapshot
    kept: Kept = []
    here = _room(ledger, job, borrowed)
    for role in ledger.roles_of(job):
        need = int(s.role_min[role])
        whole = empty_slots(s, role)
        if lasting is not None:
            whole = np.minimum(whole, slots(s.capacity() - lasting, s.role_request[role], s.eligible(role)))
        now = ledger.slots(role)
        if borrowed is not None:
            now = slots(ledger.free + borrowed, s.role_request[role], s.eligible(role))
        if here is not None:
            whole = np.where(here, whole, 0)
        if role in ledger.pool_of:
            whole = np.where(s.node_pool == ledger.pool_of[role], whole, 0)
        now = np.minimum(now, whole)
        order = np.lexsort((-whole, -now))
        order = order[whole[order] > 0]
        if len(order) == 0 or int(np.minimum(whole[order], 2**40).sum()) < need:
            for nodes, amount in kept:
                ledger.unblock(nodes, amount)
            return []
        total = np.cumsum(np.minimum(whole[order], need))
        last = int(np.searchsorted(total, need))
        chosen = order[: last + 1]
        counts = np.minimum(whole[chosen], need)
        counts[-1] = need - (int(total[last - 1]) if last else 0)
        kept.append((chosen, ledger.block(chosen, counts[:, None] * s.role_request[role])))
    return kept


def _room(ledger: Ledger, job: int, borrowed: IntArray | None) -> BoolArray | None:
    """The nodes of the domain in which capacity is reserved for the job; None: all, as it requires no domain.

    Of the domains that could hold the gang if they were empty, the one of which the largest part is free. Only the job
    itself uses the reservation, so another domain is chosen only if the job lacks less there.
    """
    s = ledger.snapshot
    if ledger.facts.required[job] < 0:
        return None
    free = ledger.free if borrowed is None else ledger.free + borrowed
    whole = {role: empty_slots(s, role) for role in ledger.roles_of(job)}
    now = {role: np.minimum(slots(free, s.role_request[role], s.eligible(role)), whole[role]) for role in whole}
    able = rooms(ledger, job, minimum_gang(ledger, job), lambda: s.capacity() - ledger.free)
    inside = np.zeros(s.nodes, dtype=np.bool_)
    for nodes in able:
        inside |= True if nodes is None else nodes
    return best_domain(s, job, now, inside)


def start(ledger: Ledger, job: int) -> bool:
    """Place the job at its desired size if that fits; else as much as fits of a single role, or the minimum gang."""
    snapshot = ledger.snapshot
    roles = ledger.roles_of(job)
    wanted = {role: int(snapshot.role_desired[role]) for role in roles}
    if len(roles) == 1:
        role = roles[0]
        count = min(wanted[role], ledger.most(job, role))
        return count >= snapshot.role_min[role] and ledger.try_gang(job, {role: count}) is not None
    return ledger.try_gang(job, wanted) is not None or ledger.try_gang(job, minimum_gang(ledger, job)) is not None


def too_few(ledger: Ledger, job: int) -> RulesLeaveTooFew | None:
    """How many replicas of its gang its rules about other pods leave, of the task of which the most are missing; None
    if it has none."""
    facts, s = ledger.facts, ledger.snapshot
    ruled = [role for role in ledger.roles_of(job) if role in facts.ruled]
    if not ruled:
        return None
    fits = {role: min(ledger.most(job, role), facts.role_min[role]) for role in ruled}
    worst = max(ruled, key=lambda role: (facts.role_min[role] - fits[role], -role))
    texts = dict.fromkeys(s.rules.all[i].text for role in ruled for i in facts.ruled[role])
    return RulesLeaveTooFew(facts.role_min[worst], fits[worst], named([*texts], 3))


def cap_that_binds(ledger: Ledger, job: int) -> QueueCap | LentToPreemptible | None:
    """The cap of the job's queue or its ancestors that the gang would exceed: the one that leaves the smallest part.
    Else what other queues could claim, if the job is not preemptible."""
    return _cap(ledger, job) or _claimed_by_others(ledger, job)


def _claimed_by_others(ledger: Ledger, job: int) -> LentToPreemptible | None:
    s, room = ledger.snapshot, ledger.fixed_room(job)
    need = ledger.amount(minimum_gang(ledger, job))
    over = [r for r, amount in enumerate(need) if room is not None and amount > 0 and amount > room[r]]
    if room is None or not over:
        return None
    r = max(over, key=lambda r: need[r] / max(1, ledger.facts.total[r]))
    return LentToPreemptible(s.queue_names[ledger.facts.job_queue[job]], s.resources[r], needs=need[r], left=room[r])


def _cap(ledger: Ledger, job: int) -> QueueCap | None:
    facts = ledger.facts
    queue = facts.job_queue[job]
    if not facts.capped or queue < 0:
        return None
    found: QueueCap | None = None
    least = 1.0
    s = ledger.snapshot
    need = ledger.amount(minimum_gang(ledger, job))
    for q in facts.chains[queue]:
        for r, amount in enumerate(need):
            left = max(0, facts.caps[q][r] - ledger.used[q][r])
            if amount > left and left / amount < least:
                least = left / amount
                found = QueueCap(s.queue_names[q], s.resources[r], needs=amount, left=left, cap=facts.caps[q][r])
    return found


def best_room(ledger: Ledger, job: int) -> BoolArray | None:
    """The nodes of the domain in which the largest part of the job's gang fits; None if it requires no domain."""
    if ledger.facts.required[job] < 0:
        return None
    return best_domain(ledger.snapshot, job, {role: ledger.slots_for(job, role) for role in ledger.roles_of(job)})


def fitting(ledger: Ledger, job: int) -> dict[int, int]:
    """Replicas of each of the job's roles that fit, caps aside; in the best domain if the job requires one."""
    there = best_room(ledger, job)
    fits = {role: ledger.slots_for(job, role) for role in ledger.roles_of(job)}
    return {
        role: int(np.minimum(by_node if there is None else by_node[there], 2**31).sum())
        for role, by_node in fits.items()
    }


def worst_role(ledger: Ledger, job: int) -> int:
    """The role of which the largest fraction of the minimum does not fit; the first of equal ones."""
    low, fits = ledger.facts.role_min, fitting(ledger, job)
    return max(ledger.roles_of(job), key=lambda r: ((low[r] - fits[r]) / max(1, low[r]), -r))


def needed_and_fitting(ledger: Ledger, job: int) -> tuple[int, int]:
    """(needed, fitting) replicas of the gang's worst role."""
    role = worst_role(ledger, job)
    return ledger.facts.role_min[role], min(fitting(ledger, job)[role], 2**31)


def explain_waiting(ledger: Ledger, job: int, reserved_for: int = -1, *, left_seconds: float = 0.0) -> Reason:
    """Why a job that could run on an empty cluster does not fit in this ledger, which has no reservation.

    `reserved_for`: the job that has a reservation, for `left_seconds` more (0: unknown). The reason names it only if
    the gang would fit without it.
    """
    if ledger.work.is_spent(job):
        return TakesTooLong()
    cap = cap_that_binds(ledger, job)
    if cap is not None:
        return cap
    need, fits = needed_and_fitting(ledger, job)
    if job in ledger.facts.bound_jobs and not ledger.fits(job, minimum_gang(ledger, job)):
        return too_few(ledger, job) or DoesNotFit(need, fits)
    if reserved_for not in (-1, job) and ledger.fits(job, minimum_gang(ledger, job)):
        return Reserved(need, fits, left_seconds, ledger.snapshot.job_names[reserved_for])
    return DoesNotFit(need, fits)


def explain_impossible(ledger: Ledger, job: int, reason: Reason) -> Reason:
    """`reason`, for which the job can never start; a cap with what it leaves in this ledger."""
    cap = cap_that_binds(ledger, job) if isinstance(reason, QueueCap) else None
    return cap or reason


def broken_gangs(snapshot: Snapshot) -> BoolArray:
    """J: running jobs below their minimum: pods were lost, or the minimum was raised."""
    s = snapshot
    held = s.held_by_role()
    return s.jobs_of(s.held_role) & s.jobs_of(held < s.role_min) & ~s.jobs_of(held > s.role_max)


def make_whole(ledger: Ledger, order: IntArray, considered: BoolArray, reasons: list[Reason]) -> None:
    """Add the missing replicas of gangs below their minimum, where they fit beside the running ones."""
    s, count, low = ledger.snapshot, ledger.count, ledger.facts.role_min
    broken = broken_gangs(s) & considered & (s.job_queue >= 0)
    for j in order[broken[order]].tolist() if broken.any() else ():
        roles = ledger.roles_of(j)
        before = sum(count[r] for r in roles)
        if ledger.try_gang(j, {r: max(0, low[r] - count[r]) for r in roles}) is not None:
            reasons[j] = PlacedAgain(sum(count[r] for r in roles), before)


def grow_in_place(
    ledger: Ledger,
    order: IntArray,
    considered: BoolArray,
    reasons: list[Reason],
    allowed: Callable[[int, int], int] | None = None,
) -> None:
    """Grow jobs that are not preemptible to the desired replicas, beside the pods they have.

    `allowed(job, role)`: a further limit of the growth. It does not limit the completion of a gang that lost pods.
    """
    snapshot, facts, count = ledger.snapshot, ledger.facts, ledger.count
    short = snapshot.jobs_of(ledger.replicas < snapshot.role_desired)
    short &= ~snapshot.job_preemptible & considered & (snapshot.job_queue >= 0)
    if not short.any():
        return
    for j in order[short[order]].tolist():
        roles = ledger.roles_of(j)
        if not ledger.holds(j):
            continue
        if any(0 < count[r] < facts.role_min[r] for r in roles):
            # Below its minimum (it was raised, or pods were lost): all that is missing or nothing.
            ledger.try_gang(j, {r: max(0, facts.role_min[r] - count[r]) for r in roles})
        if any(count[r] < facts.role_min[r] for r in roles):
            continue
        for role in roles:
            more = min(facts.role_desired[role] - count[role], ledger.most(j, role))
            if allowed is not None:
                more = min(more, allowed(j, role))
            if more > 0 and ledger.try_gang(j, {role: more}) is not None:
                reasons[j] = Grown(count[role])

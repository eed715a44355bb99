"""Jobs that hold more than their maximum, because it was lowered: they release the excess before a policy decides.

The policy then decides by its own rules alone: the released capacity is free, and these jobs are ordinary jobs at their
maximum. `fit` does not use this module: it places such jobs again in the order in which it serves all jobs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from diflow.allocator.model.arrays import BoolArray, IntArray
from diflow.allocator.model.ledger import Ledger, Placement
from diflow.allocator.model.plan import KEEP, RESIZE, Plan, carry_out, make_plan
from diflow.allocator.model.reasons import DoesNotFitElsewhere, PlacedAgain
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.fit.backfill import put
from diflow.allocator.policies.fixed_point import joined, of_whole
from diflow.allocator.policies.waiting import first_reasons, minimum_gang, plan_of, start_order

Decide = Callable[[Snapshot, BoolArray | None], Plan]
"""A policy: from a snapshot, and the jobs that restart in any case (J; None: no job), to a plan."""


def above_maximum(snapshot: Snapshot) -> BoolArray:
    """Preemptible jobs of which a role holds more than its maximum (J)."""
    out: BoolArray = snapshot.job_preemptible & snapshot.jobs_of(snapshot.held_by_role() > snapshot.role_max)
    return out


def within_maximums(snapshot: Snapshot, name: str, decide: Decide, *, keeps_pool: bool = False) -> Plan:
    """The plan of `decide`, in which no preemptible job holds more than its maximum if it can give up the rest.

    `name`: the policy's. `keeps_pool`: whether it moves no replica to another pool of nodes for this.
    """
    above = above_maximum(snapshot)
    if not above.any():
        return decide(snapshot, None)
    while True:
        first = _given_up(snapshot, name, above, keeps_pool=keeps_pool)
        restarts = first.action == RESIZE
        plan = joined(snapshot, first, decide(carry_out(snapshot, first), restarts if restarts.any() else None))
        # A gang that lacks replicas of another role, and did not get them, does not restart only to release replicas.
        then = np.bincount(plan.role, weights=plan.count, minlength=snapshot.roles)
        broken = restarts & snapshot.jobs_of(plan.role) & snapshot.jobs_of(then < snapshot.role_min)
        if not broken.any():
            return _explained(snapshot, of_whole(snapshot, plan), keeps_pool=keeps_pool)
        above = above & ~broken


def as_within_maximums(
    snapshot: Snapshot, plan: Plan, *, keeps_pool: bool = False
) -> tuple[Snapshot, Plan, BoolArray | None]:
    """The snapshot and the plan without replicas above a maximum, which have no value when plans are compared; and the
    jobs that restart in any case (J; None: no job)."""
    above = above_maximum(snapshot)
    if not above.any():
        return snapshot, plan, None
    first = _given_up(snapshot, plan.policy, above, keeps_pool=keeps_pool)
    used, restarts = carry_out(snapshot, first), first.action == RESIZE
    kept = above & (plan.action == KEEP)
    of_plan, of_used = ~kept[snapshot.role_job[plan.role]], kept[snapshot.role_job[used.held_role]]
    compared = make_plan(
        used,
        plan.policy,
        np.concatenate([plan.role[of_plan], used.held_role[of_used]]),
        np.concatenate([plan.node[of_plan], used.held_node[of_used]]),
        np.concatenate([plan.count[of_plan], used.held_count[of_used]]),
        reasons=plan.reasons,
    )
    return used, compared, restarts if restarts.any() else None


def on_open(snapshot: Snapshot, held: Placement) -> Placement:
    """The part of `held` that is on open nodes."""
    here = snapshot.node_open
    return {r: (nodes[here[nodes]], counts[here[nodes]]) for r, (nodes, counts) in held.items()}


def within(snapshot: Snapshot, low: dict[int, int], held: Placement) -> dict[int, int]:
    """Replicas held, within the job's minimum (`low`) and maximum."""
    most = snapshot.role_max
    return {r: min(max(least, int(held[r][1].sum()) if r in held else 0), int(most[r])) for r, least in low.items()}


def give_up_in_place(ledger: Ledger, job: int) -> bool:
    """Release what is above the job's maximum: first on nodes where its pods could not start again, then where it has
    the fewest. False if others of its pods could not start again where they are, with nothing changed."""
    s = ledger.snapshot
    given: list[tuple[int, int, IntArray, IntArray]] = []
    for role in ledger.roles_of(job):
        spare = ledger.count[role] - int(s.role_max[role])
        if spare <= 0:
            continue
        nodes, counts = ledger.placement(role)
        usable = s.eligible(role)[nodes] & ~_too_full(ledger, role)[nodes]
        order = np.lexsort((-nodes, counts, usable))
        before = np.cumsum(counts[order]) - counts[order]
        drop = np.clip(spare - before, 0, counts[order])
        given.append((job, role, nodes[order][drop > 0], drop[drop > 0]))
        ledger.give(*given[-1])
    for role in ledger.roles_of(job):
        nodes, _ = ledger.placement(role)
        if not (s.eligible(role)[nodes] & ~_too_full(ledger, role)[nodes]).all():
            for one in given:
                ledger.take(*one)
            return False
    return True


def does_not_fit_elsewhere(ledger: Ledger, job: int) -> DoesNotFitElsewhere:
    """The reason of a job that stays above its maximum: replicas that it needs on open nodes, of the role of which the
    most are needed, and those that fit, of the one of which the fewest do now."""
    held = {r: ledger.placement(r) for r in ledger.roles_of(job)}
    need = max(within(ledger.snapshot, minimum_gang(ledger, job), on_open(ledger.snapshot, held)).values())
    fitting = min([ledger.most(job, r) for r in ledger.roles_of(job)] + [2**31])
    return DoesNotFitElsewhere(need, fitting)


def _too_full(ledger: Ledger, role: int) -> BoolArray:
    """Nodes that have less of a resource that the role asks for than is in use there (N)."""
    out: BoolArray = ((ledger.free < 0) & (ledger.snapshot.role_request[role] > 0)).any(axis=1)
    return out


def _given_up(snapshot: Snapshot, name: str, above: BoolArray, *, keeps_pool: bool) -> Plan:
    """The plan in which these jobs (J) give up what is above their maximum, and nothing else changes."""
    ledger, reasons = Ledger(snapshot), first_reasons(snapshot)
    order = start_order(snapshot)
    for job in order[above[order]].tolist():
        before = sum(ledger.count[r] for r in ledger.roles_of(job))
        if _gives_up(ledger, job, keeps_pool=keeps_pool):
            after = sum(ledger.count[r] for r in ledger.roles_of(job))
            reasons[job] = PlacedAgain(after, before)
    return plan_of(ledger, name, reasons)


def _gives_up(ledger: Ledger, job: int, *, keeps_pool: bool) -> bool:
    """Whether the job is now within its maximum: where it is, or as far as that is not possible, on other nodes; with
    fewer replicas than its maximum if some are on closed nodes and have no place elsewhere."""
    if give_up_in_place(ledger, job):
        return True
    if ledger.job_queue[job] < 0:
        return False  # it gets no new place
    s, low = ledger.snapshot, minimum_gang(ledger, job)
    if keeps_pool:
        ledger.pool_of = _present_pools(ledger, job)
    held = ledger.release(job)
    placed = any(put(ledger, job, want) for want in (within(s, low, held), within(s, low, on_open(s, held))))
    ledger.pool_of = {}
    if not placed:
        ledger.restore(job, held)
    return placed


def _present_pools(ledger: Ledger, job: int) -> dict[int, int]:
    """The pool of nodes of each of the job's roles that holds something."""
    pools = ledger.snapshot.node_pool
    return {r: int(pools[nodes[0]]) for r in ledger.roles_of(job) if len(nodes := ledger.placement(r)[0])}


def _explained(snapshot: Snapshot, plan: Plan, *, keeps_pool: bool) -> Plan:
    """The plan with the reason of each job that stays above its maximum."""
    stay = above_maximum(snapshot) & (plan.action == KEEP)
    if not stay.any():
        return plan
    ledger, reasons = Ledger(carry_out(snapshot, plan)), list(plan.reasons)
    for job in np.flatnonzero(stay).tolist():
        if keeps_pool:
            ledger.pool_of = _present_pools(ledger, job)
        reasons[job] = does_not_fit_elsewhere(ledger, job)
    return replace(plan, reasons=tuple(reasons))

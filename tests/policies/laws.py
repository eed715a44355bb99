"""The laws as functions of (policy, snapshot, plan), which return the violations.

They use only the snapshot and the plan, no code of the policies or the validator.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from diflow.allocator.model.arrays import BoolArray
from diflow.allocator.model.plan import Action, Plan, carry_out, changes, keep_plan
from diflow.allocator.model.reasons import (
    Crowded,
    DoesNotFitElsewhere,
    LentToPreemptible,
    NoNodes,
    NoSuchQueue,
    QueueCap,
    QueueShare,
    Reserved,
    TooBig,
)
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.validate import faults
from diflow.allocator.policies.base import Policy
from tests.policies.halfway import carry_out_first_step
from tests.policies.permute import permuted, same_decisions

KEEP_TO_A_POOL = ("goodput", "fair+goodput")
"""The policies that keep a job inside one pool. `fair` also starts gangs across pools, between queues."""
WAIT, PREEMPT = int(Action.WAIT), int(Action.PREEMPT)
EXCUSED = (Reserved, QueueCap, LentToPreemptible, QueueShare, NoSuchQueue, TooBig, Crowded, NoNodes)
"""Reasons to wait other than free capacity: a quota, a reservation, or a gang that does not fit on the empty cluster.
"""


def sound(snapshot: Snapshot, plan: Plan) -> list[str]:
    """Laws 1, 2, 3 at the end and now, by the validator and by a separate count."""
    out = faults(snapshot, plan)
    use = np.zeros_like(snapshot.node_allocatable)
    np.add.at(use, plan.node, snapshot.role_request[plan.role] * plan.count[:, None])
    held = np.zeros_like(use)
    np.add.at(held, snapshot.held_node, snapshot.role_request[snapshot.held_role] * snapshot.held_count[:, None])
    capacity = snapshot.node_allocatable - snapshot.node_foreign
    if ((use > capacity) & (use > held)).any():
        out.append("law 1: a node is over")
    return out


def keeps_everything(snapshot: Snapshot, plan: Plan) -> bool:
    """Whether the plan keeps the current allocation."""
    return (
        np.array_equal(plan.role, snapshot.held_role)
        and np.array_equal(plan.node, snapshot.held_node)
        and np.array_equal(plan.count, snapshot.held_count)
    )


def nobody_waits_for_nothing(snapshot: Snapshot, plan: Plan) -> list[str]:
    """Law 4, exactly, for jobs of one role: no job waits if its minimum fits in what the plan leaves free."""
    waiting = np.flatnonzero((plan.action == WAIT) | (plan.action == PREEMPT))
    if len(waiting) == 0:
        return []
    starts = np.searchsorted(snapshot.role_job, np.arange(snapshot.jobs + 1))
    told = [j for j in waiting.tolist() if starts[j + 1] - starts[j] == 1 and not isinstance(plan.reasons[j], EXCUSED)]
    if not told:
        return []
    free = snapshot.node_allocatable - snapshot.node_foreign
    free = free - snapshot.usage(plan.role, plan.node, plan.count)
    out = []
    for j in told:
        g = int(starts[j])
        nodes = snapshot.class_nodes[snapshot.role_class[g]] & snapshot.node_open
        if snapshot.job_pinned[j] and (snapshot.held_role == g).any():
            continue
        request = snapshot.role_request[g]
        asked = request > 0
        by_node = (np.maximum(free[:, asked], 0) // request[asked]).min(axis=1) * nodes
        fits = max((int(by_node[room].sum()) for room in open_rooms(snapshot, j, plan.policy)), default=0)
        if fits >= snapshot.role_min[g] and not _capped(snapshot, plan, j, g):
            out.append(f"law 4: {snapshot.job_names[j]} waits ({plan.reasons[j].word}) though {fits} fit")
    return out


def rooms(snapshot: Snapshot, job: int) -> list[BoolArray]:
    """The sets of nodes of which one has to hold all of the job: the domains of the level that it requires."""
    if snapshot.job_required[job] < 0:
        return [np.ones(snapshot.nodes, dtype=np.bool_)]
    row = snapshot.node_domain[snapshot.job_required[job]]
    return [row == domain for domain in sorted(set(row.tolist()) - {-1})]


def open_rooms(snapshot: Snapshot, job: int, policy: str) -> list[BoolArray]:
    """As `rooms`, for policies that keep a job inside one pool of nodes: its part in each pool.

    Without pools for a job that no pool holds even if it is empty, and for one with several roles, of which only the
    elastic one is kept inside one.
    """
    whole = rooms(snapshot, job)
    roles = np.flatnonzero(snapshot.role_job == job)
    if policy not in KEEP_TO_A_POOL or len(roles) != 1:
        return whole
    return [room & pool for pool in _able_pools(snapshot, int(roles[0])) for room in whole] or whole


def _able_pools(snapshot: Snapshot, role: int) -> list[BoolArray]:
    """The pools (N) of which a room holds the role's minimum, if it is empty."""
    request = snapshot.role_request[role]
    asked = request > 0
    empty = np.maximum(snapshot.node_allocatable - snapshot.node_foreign, 0)[:, asked] // request[asked]
    nodes = snapshot.class_nodes[snapshot.role_class[role]] & snapshot.node_open
    by_node = empty.min(axis=1, initial=2**31) * nodes
    pools = [snapshot.node_pool == pool for pool in sorted(set(snapshot.node_pool.tolist()))]
    whole = rooms(snapshot, int(snapshot.role_job[role]))
    return [pool for pool in pools if any(by_node[room & pool].sum() >= snapshot.role_min[role] for room in whole)]


def in_one_pool(snapshot: Snapshot, plan: Plan) -> list[str]:
    """Under `goodput`, a preemptible job of one role that gets pods in this plan is in one pool of nodes, if an empty
    pool holds its minimum at all. A gang that had lost pods is completed beside those that it has, and one that was
    above its maximum in several pools gives up the rest there."""
    if plan.policy != "goodput":
        return []
    out = []
    for j in np.flatnonzero((plan.action == Action.ADMIT) | (plan.action == Action.RESIZE)).tolist():
        roles = np.flatnonzero(snapshot.role_job == j)
        held = int(snapshot.held_count[np.isin(snapshot.held_role, roles)].sum())
        lost_pods = 0 < held < snapshot.role_min[roles].sum()
        if len(roles) != 1 or not snapshot.job_preemptible[j] or lost_pods or not _able_pools(snapshot, int(roles[0])):
            continue
        there = set(snapshot.node_pool[plan.node[plan.role == roles[0]]].tolist())
        if len(there) > 1 and not _only_gives_up(snapshot, plan, int(roles[0])):
            out.append(f"pools: {snapshot.job_names[j]} is in {len(there)} of them")
    return out


def _only_gives_up(snapshot: Snapshot, plan: Plan, role: int) -> bool:
    """Whether a role that was above its maximum gets nothing on any node."""
    s = snapshot
    mine, then = s.held_role == role, plan.role == role
    before = np.bincount(s.held_node[mine], s.held_count[mine], s.nodes)
    after = np.bincount(plan.node[then], plan.count[then], s.nodes)
    return bool(before.sum() > s.role_max[role] and (after <= before).all())


def _capped(snapshot: Snapshot, plan: Plan, job: int, role: int) -> bool:
    """Whether the gang would lift its queue, or an ancestor, above a cap."""
    queue = int(snapshot.job_queue[job])
    amount = snapshot.role_request[plan.role] * plan.count[:, None]
    owner = snapshot.job_queue[snapshot.role_job[plan.role]]
    need = snapshot.role_min[role] * snapshot.role_request[role]
    for _ in range(snapshot.queues):
        inside = np.array([queue in _upwards(snapshot, q) for q in range(snapshot.queues)])
        used = amount[(owner >= 0) & inside[owner]].sum(axis=0)
        if ((used + need > snapshot.queue_cap[queue]) & (need > 0)).any():
            return True
        queue = int(snapshot.queue_parent[queue])
        if queue < 0:
            return False
    return False


def _upwards(snapshot: Snapshot, queue: int) -> list[int]:
    chain = [queue]
    while snapshot.queue_parent[chain[-1]] >= 0 and int(snapshot.queue_parent[chain[-1]]) not in chain:
        chain.append(int(snapshot.queue_parent[chain[-1]]))
    return chain


def excuses_hold(snapshot: Snapshot, plan: Plan) -> list[str]:
    """The reasons that name a queue, the nodes or a reservation are true."""
    out = []
    for j in np.flatnonzero(plan.action == WAIT).tolist():
        reason = plan.reasons[j]
        if isinstance(reason, NoSuchQueue) and snapshot.job_queue[j] >= 0:
            out.append(f"{snapshot.job_names[j]}: its queue exists")
        if isinstance(reason, NoNodes) and snapshot.node_open.any():
            out.append(f"{snapshot.job_names[j]}: there are nodes")
        if isinstance(reason, Reserved) and reason.job == snapshot.job_names[j]:
            out.append(f"{snapshot.job_names[j]}: waits for a reservation of nobody")
    return out


def same_bytes(policy: Policy, snapshot: Snapshot, plan: Plan, rng: np.random.Generator) -> list[str]:
    """Law 5: the same input in another order gives the same bytes."""
    out = []
    if policy.optimize(snapshot).to_bytes(snapshot) != plan.to_bytes(snapshot):
        out.append("law 5: a second call gave other bytes")
    other = permuted(snapshot, rng)
    if not same_decisions(snapshot, plan, other, policy.optimize(other)):
        out.append("law 5: another order of the input gave other decisions")
    return out


def settles(policy: Policy, snapshot: Snapshot, plan: Plan) -> list[str]:
    """Law 6: the plan is a fixed point, and halfway through it nothing else starts."""
    out = []
    after = carry_out(snapshot, plan)
    again = policy.optimize(after)
    if changes(again):
        changed = [snapshot.job_names[j] for j in np.flatnonzero((again.action >= 1) & (again.action <= 3))]
        out.append(f"law 6: a second cycle changed {changed}")
    middle = carry_out_first_step(snapshot, plan)
    bad = faults(middle, policy.optimize(middle))
    return out + [f"law 6, in the middle of a plan: {line}" for line in bad]


def no_worse_than_keeping(policy: Policy, snapshot: Snapshot, plan: Plan) -> list[str]:
    """Law 7."""
    if keeps_everything(snapshot, plan):
        return []
    now, kept = policy.measure(snapshot, plan), policy.measure(snapshot, keep_plan(snapshot, "keep"))
    return [f"law 7: {now} is below {kept} of keeping"] if now < kept - 1e-9 * max(1.0, abs(kept)) else []


def within_maximums(snapshot: Snapshot, plan: Plan) -> list[str]:
    """Law 18: no preemptible job holds more than its maximum after the plan, unless the plan says why: it could not
    start again with fewer replicas where it is, and does not fit elsewhere, or it lacks a part of its gang."""
    s = snapshot
    then = np.bincount(plan.role, weights=plan.count, minlength=s.roles).astype(np.int64)
    above = s.jobs_of(then > s.role_max) & s.job_preemptible
    if not above.any():
        return []
    free = s.node_allocatable - s.node_foreign - s.usage(plan.role, plan.node, plan.count)
    usable = s.class_nodes[s.role_class[plan.role], plan.node] & s.node_open[plan.node]
    usable &= ~((free[plan.node] < 0) & (s.role_request[plan.role] > 0)).any(axis=1)
    stuck = s.jobs_of(plan.role[~usable]) | s.jobs_of(then < s.role_min)
    out = []
    for j in np.flatnonzero(above).tolist():
        reason = plan.reasons[j]
        if not isinstance(reason, DoesNotFitElsewhere):
            out.append(f"law 18: {s.job_names[j]} holds more than its maximum and is told {reason.word}")
        elif not stuck[j]:
            out.append(f"law 18: {s.job_names[j]} holds more than its maximum and could give it up where it is")
    return out


def without_profile(snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, job_profile=(None,) * snapshot.jobs)

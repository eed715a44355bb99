"""The immutable list of decisions that a policy returns, and what becomes of a snapshot when it is carried out.

A plan says what each job shall hold. Pods that are to come are either bound now, or promised on what is being
released: a promise costs nothing until the room is there, and the daemon admits the whole gang at once when it is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from diflow.allocator.arrays import BoolArray, FloatArray, IntArray, frozen
from diflow.allocator.snapshot import Snapshot


class Action(IntEnum):
    """What happens to one job."""

    KEEP = 0
    ADMIT = 1
    RESIZE = 2
    PREEMPT = 3
    WAIT = 4


class Why(IntEnum):
    """The reason of a decision; `explain.text` puts it into words with the three values beside it."""

    KEPT = 0
    KEPT_NOT_PREEMPTIBLE = 1
    FITS = 2
    NO_ROOM = 3
    TOO_BIG = 4
    NO_NODES = 5
    NO_SUCH_QUEUE = 6
    QUEUE_CAP = 7
    QUEUE_SHARE = 8
    RESERVED = 9
    PREEMPTED_FOR_PRIORITY = 10
    RECLAIMED = 11
    GAIN = 12
    SHRUNK_FOR_OTHERS = 13
    GROWN = 15
    POLICY_FAILED = 16
    EXPLORES = 19
    PLACED_AGAIN = 20
    NO_ROOM_ELSEWHERE = 21
    TOO_SOON = 22
    GAIN_TOO_SMALL = 23


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """For each job of the snapshot: an action, what it shall hold, whether it may start at once, and why.

    `role`, `node`, `count` are the allocation to reach, as triples sorted by role and node. `bind_now` is true for a
    job whose new pods fit at this instant beside everything that runs or terminates. `why` is a Why for each job and
    `values` (J×3) the numbers of its text. `subject` is the index of the queue or job that the reason names, or -1.
    """

    policy: str
    action: IntArray
    role: IntArray
    node: IntArray
    count: IntArray
    bind_now: BoolArray
    why: IntArray
    values: FloatArray
    subject: IntArray

    def to_bytes(self, snapshot: Snapshot) -> bytes:
        """The plan as JSON, the same bytes for the same decisions."""
        starts = snapshot.role_starts()
        places = np.searchsorted(self.role, np.arange(snapshot.roles + 1))
        out: dict[str, object] = {}
        for j, name in enumerate(snapshot.job_names):
            pods = {
                snapshot.role_names[g]: {
                    snapshot.node_names[int(self.node[a])]: int(self.count[a])
                    for a in range(int(places[g]), int(places[g + 1]))
                }
                for g in range(int(starts[j]), int(starts[j + 1]))
                if places[g + 1] > places[g]
            }
            out[name] = {
                "action": Action(int(self.action[j])).name.lower(),
                "now": bool(self.bind_now[j]),
                "pods": pods,
                "why": Why(int(self.why[j])).name.lower(),
                "values": [round(float(v), 9) for v in self.values[j]],
                "subject": int(self.subject[j]),
            }
        return json.dumps({"policy": self.policy, "jobs": out}, sort_keys=True, separators=(",", ":")).encode()


def make_plan(
    snapshot: Snapshot,
    policy: str,
    role: IntArray,
    node: IntArray,
    count: IntArray,
    *,
    why: IntArray,
    values: FloatArray | None = None,
    subject: IntArray | None = None,
) -> Plan:
    """The plan that reaches this allocation: actions follow from the difference to the present.

    A job that starts is bound now when all its pods fit at this instant beside the others that are bound now, taken
    in the order of their creation; otherwise its pods are promised. A job that changes while it holds something is
    promised: its old pods must stop first. One that may not be moved and only grows is treated like a newcomer.
    """
    keep = count > 0
    role, node, count = role[keep], node[keep], count[keep]
    order = np.lexsort((node, role))
    role, node, count = role[order], node[order], count[order]
    before = snapshot.held_by_role()
    after = np.bincount(role, weights=count, minlength=snapshot.roles).astype(np.int64)
    held_before = _by_job(snapshot, before)
    held_after = _by_job(snapshot, after)
    changed = _changed_jobs(snapshot, role, node, count)
    action = np.full(snapshot.jobs, Action.KEEP, dtype=np.int64)
    action[changed] = Action.RESIZE
    action[changed & (held_before == 0)] = Action.ADMIT
    action[changed & (held_after == 0)] = Action.PREEMPT
    action[~changed & (held_after == 0)] = Action.WAIT
    bind = _bind_now(snapshot, role, node, count, action)
    empty = np.zeros((snapshot.jobs, 3))
    return Plan(
        policy=policy,
        action=_done(action),
        role=_done(role),
        node=_done(node),
        count=_done(count),
        bind_now=frozen(bind),
        why=_done(why.astype(np.int64)),
        values=frozen(empty if values is None else values),
        subject=_done(np.full(snapshot.jobs, -1, dtype=np.int64) if subject is None else subject),
    )


def keep_plan(snapshot: Snapshot, policy: str, why: Why = Why.KEPT) -> Plan:
    """The plan that changes nothing: what holds when a policy fails, is late, or returns a bad plan."""
    holds = _by_job(snapshot, snapshot.held_by_role()) > 0
    reasons = np.where(holds, int(why), int(Why.POLICY_FAILED)).astype(np.int64)
    return make_plan(
        snapshot, policy, snapshot.held_role.copy(), snapshot.held_node.copy(), snapshot.held_count.copy(), why=reasons
    )


def carry_out(snapshot: Snapshot, plan: Plan, *, now_seconds: float | None = None) -> Snapshot:
    """The snapshot after the plan was carried out and every terminated pod has gone."""
    now = snapshot.now_seconds if now_seconds is None else now_seconds
    stopped = plan.action == Action.PREEMPT
    changed = (plan.action == Action.ADMIT) | (plan.action == Action.RESIZE)
    never = snapshot.job_started_seconds < 0
    return replace(
        snapshot,
        now_seconds=now,
        node_releasing=_done(np.zeros_like(snapshot.node_releasing)),
        held_role=plan.role,
        held_node=plan.node,
        held_count=plan.count,
        job_started_seconds=frozen(np.where((changed | stopped) & never, now, snapshot.job_started_seconds)),
        job_changed_seconds=frozen(np.where(changed | stopped, now, snapshot.job_changed_seconds)),
        job_restarts=_done(snapshot.job_restarts + (changed & ~never)),
    )


def carry_out_first_step(snapshot: Snapshot, plan: Plan) -> Snapshot:
    """The snapshot in the middle of the plan: what had to go is terminating, what is bound now is there,
    what was promised is not there yet."""
    action = plan.action
    stays = (action == Action.KEEP) | ((action == Action.ADMIT) & plan.bind_now)
    grows = (action == Action.RESIZE) & plan.bind_now
    by_role = (stays | grows)[snapshot.role_job]
    now_there = by_role[plan.role] if len(plan.role) else np.zeros(0, dtype=np.bool_)
    leaves = ~(by_role[snapshot.held_role]) if len(snapshot.held_role) else np.zeros(0, dtype=np.bool_)
    gone = snapshot.usage(snapshot.held_role[leaves], snapshot.held_node[leaves], snapshot.held_count[leaves])
    return replace(
        snapshot,
        node_releasing=_done(snapshot.node_releasing + gone),
        job_started_seconds=frozen(
            np.where(
                (action == Action.ADMIT) & plan.bind_now & (snapshot.job_started_seconds < 0),
                snapshot.now_seconds,
                snapshot.job_started_seconds,
            )
        ),
        held_role=_done(plan.role[now_there]),
        held_node=_done(plan.node[now_there]),
        held_count=_done(plan.count[now_there]),
    )


def changes(plan: Plan) -> int:
    """How many jobs the plan does anything to."""
    return int(((plan.action != Action.KEEP) & (plan.action != Action.WAIT)).sum())


def evictions(snapshot: Snapshot, plan: Plan) -> int:
    """How many replicas fewer the jobs hold, summed over the jobs that lose some."""
    after = np.bincount(plan.role, weights=plan.count, minlength=snapshot.roles).astype(np.int64)
    return int(np.maximum(snapshot.held_by_role() - after, 0).sum())


def _changed_jobs(snapshot: Snapshot, role: IntArray, node: IntArray, count: IntArray) -> BoolArray:
    width = max(1, snapshot.nodes)
    new, old = role * width + node, snapshot.held_role * width + snapshot.held_node
    out = np.zeros(snapshot.jobs, dtype=np.bool_)
    for keys, roles, counts, others, other_counts in (
        (new, role, count, old, snapshot.held_count),
        (old, snapshot.held_role, snapshot.held_count, new, count),
    ):
        if len(keys):
            at = np.searchsorted(others, keys)
            at_safe = np.minimum(at, max(0, len(others) - 1))
            same = (others[at_safe] == keys) & (other_counts[at_safe] == counts) if len(others) else keys < 0
            out[snapshot.role_job[roles[~same]]] = True
    return out


def _bind_now(snapshot: Snapshot, role: IntArray, node: IntArray, count: IntArray, action: IntArray) -> BoolArray:
    bind = np.zeros(snapshot.jobs, dtype=np.bool_)
    fresh = (action == Action.ADMIT) | ((action == Action.RESIZE) & ~snapshot.job_preemptible)
    if not fresh.any():
        return bind
    job = snapshot.role_job[role]
    take = fresh[job]
    triple_job, triple_role, triple_node, triple_count = job[take], role[take], node[take], count[take].copy()
    # What a growing job already holds is in use already.
    if len(snapshot.held_role):
        width = max(1, snapshot.nodes)
        old = snapshot.held_role * width + snapshot.held_node
        keys = triple_role * width + triple_node
        at = np.minimum(np.searchsorted(old, keys), len(old) - 1)
        triple_count -= np.where(old[at] == keys, snapshot.held_count[at], 0)
    # A job that would have to give something up here cannot start beside it.
    shrinks = np.zeros(snapshot.jobs, dtype=np.bool_)
    np.logical_or.at(shrinks, triple_job, triple_count < 0)
    free = snapshot.idle()
    need = snapshot.usage(triple_role, triple_node, triple_count)
    if (need <= free)[need.any(axis=1)].all() and not shrinks.any():
        bind[fresh] = True
        return bind
    free = free.copy()
    jobs = np.flatnonzero(fresh & ~shrinks)
    jobs = jobs[np.lexsort((jobs, snapshot.job_created_seconds[jobs], -snapshot.job_priority[jobs]))]
    order = np.argsort(triple_job, kind="stable")
    bounds = np.searchsorted(triple_job[order], np.arange(snapshot.jobs + 1))
    for j in jobs.tolist():
        mine = order[bounds[j] : bounds[j + 1]]
        where, inverse = np.unique(triple_node[mine], return_inverse=True)
        amount = np.zeros((len(where), free.shape[1]), dtype=np.int64)
        np.add.at(amount, inverse, snapshot.role_request[triple_role[mine]] * triple_count[mine, None])
        if ((amount <= free[where]) | (amount == 0)).all():
            free[where] -= amount
            bind[j] = True
    return bind


def _by_job(snapshot: Snapshot, by_role: IntArray) -> IntArray:
    return np.bincount(snapshot.role_job, weights=by_role, minlength=snapshot.jobs).astype(np.int64)


def _done(array: IntArray) -> IntArray:
    frozen(array)
    return array

"""The immutable list of decisions that a policy returns, and what becomes of a snapshot when it is carried out.

A plan says what each job shall hold. Pods that are to come are either bound now, or promised on what is being
released: a promise costs nothing until the room is there, and the daemon admits the whole gang at once when it is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray, frozen
from diflow.allocator.model.snapshot import Snapshot


class Action(IntEnum):
    """What happens to one job."""

    KEEP = 0
    ADMIT = 1
    RESIZE = 2
    PREEMPT = 3
    WAIT = 4


KEEP, ADMIT, RESIZE, PREEMPT, WAIT = map(int, Action)
"""The actions as plain numbers: what arrays of them are compared with."""


class Why(IntEnum):
    """The reason of a decision; `reason_texts.text` puts it into words with the three values beside it.

    What the values of a reason to wait are (amounts in base units; r: the index of a resource):

    | reasons | values | subject |
    |---|---|---|
    | NO_ROOM | replicas of a role that the gang needs, that fit | |
    | ITS_TURN | replicas needed, that fit in the room kept, seconds that it is kept on | |
    | RESERVED | replicas needed, that fit in all, seconds that room is kept on (0: no end) | for whom |
    | QUEUE_CAP | amount needed, left below the cap, r | the queue that is capped |
    | QUEUE_SHARE, OWN_SHARE | amount held, deserved, r | the queue (OWN_SHARE: its own jobs alone) |
    | NO_SURPLUS | amount that the gang lacks, that others hold above what they deserve, r | its queue |
    | GUARANTEED_ELSEWHERE | amount that the gang lacks, that others hold above guarantees, r | the queue |

    Of a job that lost something they are the replicas left and those before, and the subject is who got something.
    """

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
    QUEUE_GUARANTEE = 24
    SHARED_IN_QUEUE = 25
    GAVE_BACK_KEPT_ROOM = 26
    RECLAIMED_BY_GUARANTEE = 27
    ITS_TURN = 28
    NO_SURPLUS = 29
    GUARANTEED_ELSEWHERE = 30
    OWN_SHARE = 31


NAMES_A_JOB = frozenset(
    {
        Why.RESERVED,
        Why.PREEMPTED_FOR_PRIORITY,
        Why.RECLAIMED,
        Why.RECLAIMED_BY_GUARANTEE,
        Why.SHRUNK_FOR_OTHERS,
        Why.SHARED_IN_QUEUE,
        Why.GAVE_BACK_KEPT_ROOM,
    }
)
"""Reasons whose subject is a job; that of the others is a queue."""


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
    some = count > 0
    if not some.all():
        role, node, count = role[some], node[some], count[some]
    key = role * max(1, snapshot.nodes) + node
    if (key[1:] < key[:-1]).any():
        order = key.argsort(kind="stable")
        role, node, count, key = role[order], node[order], count[order], key[order]
    changed = _changed_jobs(snapshot, key, role, count)
    before, after = snapshot.jobs_of(snapshot.held_role), snapshot.jobs_of(role)
    action = _ACTIONS[changed.view(np.int8), before.view(np.int8), after.view(np.int8)]
    bind = _bind_now(snapshot, role, node, count, action)
    return Plan(
        policy=policy,
        action=_done(action),
        role=_done(role),
        node=_done(node),
        count=_done(count),
        bind_now=frozen(bind),
        why=_done(why.astype(np.int64)),
        values=frozen(np.zeros((snapshot.jobs, 3)) if values is None else values),
        subject=_done(np.full(snapshot.jobs, -1, dtype=np.int64) if subject is None else subject),
    )


def keep_plan(snapshot: Snapshot, policy: str, why: Why = Why.KEPT) -> Plan:
    """The plan that changes nothing: what holds when a policy fails, is late, or returns a bad plan."""
    holds = snapshot.jobs_of(snapshot.held_role)
    reasons = np.where(holds, int(why), int(Why.POLICY_FAILED))
    return make_plan(
        snapshot, policy, snapshot.held_role.copy(), snapshot.held_node.copy(), snapshot.held_count.copy(), why=reasons
    )


def carry_out(snapshot: Snapshot, plan: Plan, *, now_seconds: float | None = None) -> Snapshot:
    """The snapshot after the plan was carried out and every terminated pod has gone."""
    now = snapshot.now_seconds if now_seconds is None else now_seconds
    stopped = plan.action == PREEMPT
    changed = (plan.action == ADMIT) | (plan.action == RESIZE)
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
    stays = (action == KEEP) | ((action == ADMIT) & plan.bind_now)
    grows = (action == RESIZE) & plan.bind_now
    by_role = (stays | grows)[snapshot.role_job]
    now_there = by_role[plan.role] if len(plan.role) else np.zeros(0, dtype=np.bool_)
    leaves = ~(by_role[snapshot.held_role]) if len(snapshot.held_role) else np.zeros(0, dtype=np.bool_)
    gone = snapshot.usage(snapshot.held_role[leaves], snapshot.held_node[leaves], snapshot.held_count[leaves])
    return replace(
        snapshot,
        node_releasing=_done(snapshot.node_releasing + gone),
        job_started_seconds=frozen(
            np.where(
                (action == ADMIT) & plan.bind_now & (snapshot.job_started_seconds < 0),
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
    return int(np.count_nonzero((plan.action != KEEP) & (plan.action != WAIT)))


def evictions(snapshot: Snapshot, plan: Plan) -> int:
    """How many replicas fewer the jobs hold, summed over the jobs that lose some."""
    after = np.bincount(plan.role, weights=plan.count, minlength=snapshot.roles).astype(np.int64)
    return int(np.maximum(snapshot.held_by_role() - after, 0).sum())


_ACTIONS: IntArray = np.array(
    [
        [[WAIT, KEEP], [WAIT, KEEP]],
        [[WAIT, ADMIT], [PREEMPT, RESIZE]],
    ],
    dtype=np.int64,
)
"""By whether a job's allocation changes, whether it holds something before, and whether after."""


def _changed_jobs(snapshot: Snapshot, key: IntArray, role: IntArray, count: IntArray) -> BoolArray:
    """Jobs that do not hold what they held. `key`: role and node of each triple in one number, ascending."""
    out = np.zeros(snapshot.jobs, dtype=np.bool_)
    before, held = snapshot.held_role * max(1, snapshot.nodes) + snapshot.held_node, snapshot.held_count
    if len(key) == len(before) and (key == before).all():
        out[snapshot.role_job[role[count != held]]] = True
        return out
    for keys, roles, counts, others, other_counts in (
        (key, role, count, before, held),
        (before, snapshot.held_role, held, key, count),
    ):
        if not len(others):
            out[snapshot.role_job[roles]] = True
        elif len(keys):
            at = np.minimum(others.searchsorted(keys), len(others) - 1)
            out[snapshot.role_job[roles[(others[at] != keys) | (other_counts[at] != counts)]]] = True
    return out


def _bind_now(snapshot: Snapshot, role: IntArray, node: IntArray, count: IntArray, action: IntArray) -> BoolArray:
    fresh: BoolArray = (action == ADMIT) | ((action == RESIZE) & ~snapshot.job_preemptible)
    if not fresh.any():
        return fresh
    job = snapshot.role_job[role]
    take = fresh[job]
    job, role, node, count = job[take], role[take], node[take], count[take]
    # What a growing job already holds is in use already.
    if len(snapshot.held_role):
        width = max(1, snapshot.nodes)
        before, key = snapshot.held_role * width + snapshot.held_node, role * width + node
        at = np.minimum(before.searchsorted(key), len(before) - 1)
        count = count - np.where(before[at] == key, snapshot.held_count[at], 0)
    # A job that would have to give something up here cannot start beside it.
    fresh[job[count < 0]] = False
    if not fresh[job].all():
        take = fresh[job]
        job, role, node, count = job[take], role[take], node[take], count[take]
    free = snapshot.idle()
    need = snapshot.usage(role, node, count)
    tight: BoolArray = np.any((need > free) & (need > 0), axis=1)
    if not tight.any():
        return fresh
    # Elsewhere nobody is in anybody's way; of those that meet on a tight node the first ones start.
    meets = np.zeros(snapshot.jobs, dtype=np.bool_)
    meets[job[tight[node]]] = True
    bind = fresh & ~meets
    _first_come(snapshot, np.flatnonzero(meets), bind, free, (job, role, node, count))
    return bind


def _first_come(
    snapshot: Snapshot,
    jobs: IntArray,
    bind: BoolArray,
    free: IntArray,
    triples: tuple[IntArray, IntArray, IntArray, IntArray],
) -> None:
    """Bind those of `jobs` that fit in `free`, one after the other, the higher priority and the older first."""
    job, role, node, count = triples
    order = np.lexsort((jobs, snapshot.job_created_seconds[jobs], -snapshot.job_priority[jobs]))
    bounds = job.searchsorted(np.arange(snapshot.jobs + 1)).tolist()
    amounts, nodes = (snapshot.role_request[role] * count[:, None]).tolist(), node.tolist()
    room = free.tolist()
    for j in jobs[order].tolist():
        need: dict[int, list[int]] = {}
        for at in range(bounds[j], bounds[j + 1]):
            so_far = need.get(nodes[at])
            need[nodes[at]] = (
                amounts[at] if so_far is None else [a + b for a, b in zip(so_far, amounts[at], strict=True)]
            )
        if all(a <= b or a == 0 for n, asked in need.items() for a, b in zip(asked, room[n], strict=True)):
            for n, asked in need.items():
                room[n] = [b - a for a, b in zip(asked, room[n], strict=True)]
            bind[j] = True


def _done(array: IntArray) -> IntArray:
    frozen(array)
    return array

"""The immutable plan that a policy returns, and the snapshot that results from carrying it out.

A plan gives the target allocation of each job. New pods are either bound now or promised capacity that is being
released. A promise uses nothing until the capacity is free; the allocator then admits the whole gang at once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from diflow.allocator.model.arrays import BoolArray, IntArray, frozen
from diflow.allocator.model.reasons import KEPT, PolicyFailed, Reason
from diflow.allocator.model.snapshot import Snapshot


class Action(IntEnum):
    """What happens to one job."""

    KEEP = 0
    ADMIT = 1
    RESIZE = 2
    PREEMPT = 3
    WAIT = 4


KEEP, ADMIT, RESIZE, PREEMPT, WAIT = map(int, Action)
"""The actions as plain integers, to compare arrays with."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """For each job of the snapshot: an action, the target allocation, whether it may start now, and the reason.

    `role`, `node`, `count` (A) are the target allocation as triples sorted by role and node. `bind_now` (J): the job's
    new pods fit now, beside everything that runs or terminates. `reasons` (J): why.
    """

    policy: str
    action: IntArray
    role: IntArray
    node: IntArray
    count: IntArray
    bind_now: BoolArray
    reasons: tuple[Reason, ...]

    def to_bytes(self, snapshot: Snapshot) -> bytes:
        """The plan as canonical JSON: the same bytes for the same decisions."""
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
                "why": self.reasons[j].word,
                "facts": self.reasons[j].facts(),
            }
        data = {"policy": self.policy, "jobs": out}
        return json.dumps(data, sort_keys=True, separators=(",", ":"), default=str).encode()


def make_plan(
    snapshot: Snapshot,
    policy: str,
    role: IntArray,
    node: IntArray,
    count: IntArray,
    *,
    reasons: Sequence[Reason],
) -> Plan:
    """The plan with this target allocation, and a reason for each job; actions follow from what changes.

    A job that starts is bound now if all its pods fit now beside the other jobs bound now, by priority, then age;
    otherwise its pods are promised. A running job that changes is promised: its old pods must stop first. A job that
    is not preemptible and only grows is treated like a new one.
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
        action=frozen(action),
        role=frozen(role),
        node=frozen(node),
        count=frozen(count),
        bind_now=frozen(bind),
        reasons=tuple(reasons),
    )


def keep_plan(snapshot: Snapshot, policy: str) -> Plan:
    """The plan that changes nothing: the fallback when a policy fails, is late, or returns an invalid plan."""
    failed = PolicyFailed()
    reasons = [KEPT if holds else failed for holds in snapshot.jobs_of(snapshot.held_role).tolist()]
    held = snapshot.held_role.copy(), snapshot.held_node.copy(), snapshot.held_count.copy()
    return make_plan(snapshot, policy, *held, reasons=reasons)


def carry_out(snapshot: Snapshot, plan: Plan, *, now_seconds: float | None = None) -> Snapshot:
    """The snapshot after the plan is carried out and all terminating pods are gone."""
    now = snapshot.now_seconds if now_seconds is None else now_seconds
    stopped = plan.action == PREEMPT
    changed = (plan.action == ADMIT) | (plan.action == RESIZE)
    never = snapshot.job_started_seconds < 0
    return replace(
        snapshot,
        now_seconds=now,
        node_releasing=frozen(np.zeros_like(snapshot.node_releasing)),
        held_role=plan.role,
        held_node=plan.node,
        held_count=plan.count,
        job_started_seconds=frozen(np.where((changed | stopped) & never, now, snapshot.job_started_seconds)),
        job_changed_seconds=frozen(np.where(changed | stopped, now, snapshot.job_changed_seconds)),
        job_restarts=frozen(snapshot.job_restarts + (changed & ~never)),
    )


def changes(plan: Plan) -> int:
    """Number of jobs that the plan changes."""
    return int(np.count_nonzero((plan.action != KEEP) & (plan.action != WAIT)))


def evictions(snapshot: Snapshot, plan: Plan) -> int:
    """Replicas lost, summed over the roles that lose some."""
    after = np.bincount(plan.role, weights=plan.count, minlength=snapshot.roles).astype(np.int64)
    return int(np.maximum(snapshot.held_by_role() - after, 0).sum())


_ACTIONS: IntArray = np.array(
    [
        [[WAIT, KEEP], [WAIT, KEEP]],
        [[WAIT, ADMIT], [PREEMPT, RESIZE]],
    ],
    dtype=np.int64,
)
"""Indexed by whether the allocation changes, whether the job holds pods before, and whether after."""


def _changed_jobs(snapshot: Snapshot, key: IntArray, role: IntArray, count: IntArray) -> BoolArray:
    """Jobs whose allocation changes (J). `key`: role and node of each triple as one number, ascending."""
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
    # What a growing job holds is already counted as used.
    if len(snapshot.held_role):
        width = max(1, snapshot.nodes)
        before, key = snapshot.held_role * width + snapshot.held_node, role * width + node
        at = np.minimum(before.searchsorted(key), len(before) - 1)
        count = count - np.where(before[at] == key, snapshot.held_count[at], 0)
    # A job that loses pods on a node cannot start new ones beside them.
    fresh[job[count < 0]] = False
    if not fresh[job].all():
        take = fresh[job]
        job, role, node, count = job[take], role[take], node[take], count[take]
    free = snapshot.idle()
    need = snapshot.usage(role, node, count)
    tight: BoolArray = np.any((need > free) & (need > 0), axis=1)
    if not tight.any():
        return fresh
    # Only jobs on a node that is too full for all of them compete: the first ones start.
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
    """Bind those of `jobs` that fit in `free` (N×R), in the order of priority, then age."""
    job, role, node, count = triples
    order = np.lexsort((jobs, snapshot.job_created_seconds[jobs], -snapshot.job_priority[jobs]))
    bounds = job.searchsorted(np.arange(snapshot.jobs + 1)).tolist()
    amounts, nodes = (snapshot.role_request[role] * count[:, None]).tolist(), node.tolist()
    left = free.tolist()
    for j in jobs[order].tolist():
        need: dict[int, list[int]] = {}
        for at in range(bounds[j], bounds[j + 1]):
            so_far = need.get(nodes[at])
            need[nodes[at]] = (
                amounts[at] if so_far is None else [a + b for a, b in zip(so_far, amounts[at], strict=True)]
            )
        if all(a <= b or a == 0 for n, asked in need.items() for a, b in zip(asked, left[n], strict=True)):
            for n, asked in need.items():
                left[n] = [b - a for a, b in zip(asked, left[n], strict=True)]
            bind[j] = True

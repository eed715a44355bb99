"""The independent validator of every plan, before anything is written.

It shares no code with the policies and reads only the snapshot and the plan. Each fault is one line that names the job
or the node.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from diflow.allocator.model.arrays import BoolArray, IntArray
from diflow.allocator.model.plan import ADMIT, KEEP, PREEMPT, RESIZE, WAIT, Plan
from diflow.allocator.model.reasons import Reason
from diflow.allocator.model.rules import Rule, broken
from diflow.allocator.model.snapshot import UNLIMITED, Snapshot

MOST_FAULTS = 20
"""Faults reported at most: more do not help to find the cause."""


def faults(snapshot: Snapshot, plan: Plan) -> list[str]:
    """What is wrong with the plan, at most MOST_FAULTS lines; empty if it is valid."""
    shape = _shape(snapshot, plan)
    if shape:
        return shape
    found: list[str] = []
    change = _difference(snapshot, plan)
    # A plan that changes nothing can only have wrong actions.
    checks = (
        (_actions,)
        if change.untouched.all()
        else (_gangs, _not_moved, _places, _domains, _rules, _nodes, _caps, _actions)
    )
    for check in checks:
        found += check(snapshot, change)
        if len(found) >= MOST_FAULTS:
            break
    return found[:MOST_FAULTS]


def _shape(s: Snapshot, p: Plan) -> list[str]:
    return _lengths(s, p) or _placements(s, p)


def _lengths(s: Snapshot, p: Plan) -> list[str]:
    if len({len(p.role), len(p.node), len(p.count)}) != 1:
        return ["the plan's role, node and count differ in length"]
    for name in ("action", "bind_now", "reasons"):
        if len(getattr(p, name)) != s.jobs:
            return [f"the plan's {name} has {len(getattr(p, name))} entries for {s.jobs} jobs"]
    if strange := [kind.__name__ for kind in set(map(type, p.reasons)) if not issubclass(kind, Reason)]:
        return [f"the plan has a reason that is none: {min(strange)}"]
    return []


def _placements(s: Snapshot, p: Plan) -> list[str]:
    if len(p.role) and not (
        (p.role >= 0).all() and (p.role < s.roles).all() and (p.node >= 0).all() and (p.node < s.nodes).all()
    ):
        return ["the plan names a role or a node that is not in the snapshot"]
    if (p.count <= 0).any():
        return ["the plan places a count that is not positive"]
    key = p.role * max(1, s.nodes) + p.node
    if (np.diff(key) <= 0).any():
        return ["the plan's placements are not sorted by role and node, or name a pair twice"]
    return []


class _Change(NamedTuple):
    """Replicas of each (role, node) pair before and after, which jobs do not change (J), and the plan."""

    role: IntArray
    node: IntArray
    before: IntArray
    after: IntArray
    untouched: BoolArray
    plan: Plan


def _difference(s: Snapshot, p: Plan) -> _Change:
    width = max(1, s.nodes)
    held, planned = s.held_role * width + s.held_node, p.role * width + p.node
    untouched = np.ones(s.jobs, dtype=np.bool_)
    if np.array_equal(held, planned):
        untouched[s.role_job[p.role[s.held_count != p.count]]] = False
        return _Change(p.role, p.node, s.held_count, p.count, untouched, p)
    key = np.concatenate([held, planned])
    before = np.concatenate([s.held_count, np.zeros_like(p.count)])
    after = np.concatenate([np.zeros_like(s.held_count), p.count])
    unique, where = np.unique(key, return_inverse=True)
    b, a = np.zeros(len(unique), dtype=np.int64), np.zeros(len(unique), dtype=np.int64)
    np.add.at(b, where, before)
    np.add.at(a, where, after)
    role = unique // width
    untouched[s.role_job[role[b != a]]] = False
    return _Change(role, unique % width, b, a, untouched, p)


def _gangs(s: Snapshot, change: _Change) -> list[str]:
    total = np.zeros(s.roles, dtype=np.int64)
    np.add.at(total, change.role, change.after)
    some, all_ready = s.jobs_of(total > 0), ~s.jobs_of((total < s.role_min) | (total > s.role_max))
    bad = some & ~all_ready & ~change.untouched
    out = [f"job {s.job_names[j]}: its gang would have neither 0 nor between min and max" for j in np.flatnonzero(bad)]
    odd = s.jobs_of(total % s.role_unit > 0) & ~change.untouched
    fault = "its replicas would be no multiple of its unit"
    return out + [f"job {s.job_names[j]}: {fault}" for j in np.flatnonzero(odd)]


def _not_moved(s: Snapshot, change: _Change) -> list[str]:
    role, node, before, after, _, _ = change
    job = s.role_job[role]
    moved = np.unique(job[(after < before) & ~s.job_preemptible[job]])
    out = [f"job {s.job_names[j]} is not preemptible and would lose pods" for j in moved]
    if not s.job_pinned.any():
        return out
    held = s.jobs_of(s.held_role)
    # A pinned job may shrink, or grow on the nodes that it is on.
    width = max(1, s.nodes)
    at_home = np.isin(job * width + node, s.role_job[s.held_role] * width + s.held_node)
    left = np.unique(job[(after > before) & ~at_home & s.job_pinned[job] & held[job]])
    return out + [f"job {s.job_names[j]} cannot leave its nodes and would" for j in left]


def _places(s: Snapshot, change: _Change) -> list[str]:
    role, node, before, after, _, _ = change
    more = after > before
    allowed = s.class_nodes[s.role_class[role], node] & s.node_open[node]
    bad = more & ~allowed
    return [
        f"job {s.job_names[s.role_job[r]]}: new pods on {s.node_names[n]}, where they may not run"
        for r, n in zip(role[bad], node[bad], strict=True)
    ]


def _domains(s: Snapshot, change: _Change) -> list[str]:
    """A job that requires a domain and gets pods is then in one domain of that level."""
    job = s.role_job[change.role]
    out: list[str] = []
    for j in np.unique(job[(change.after > change.before) & (s.job_required[job] >= 0)]).tolist():
        level = int(s.job_required[j])
        there = set(s.node_domain[level, change.node[(job == j) & (change.after > 0)]].tolist())
        if len(there) > 1 or -1 in there:
            out.append(f"job {s.job_names[j]} would not be in one {s.level_names[level]}")
    return out


def _rules(s: Snapshot, change: _Change) -> list[str]:
    """New pods are where the rules about other pods allow them."""
    if not s.rules.all:
        return []
    found = broken(s.rules, change.role, change.node, change.before, change.after)
    return [f"job {s.job_names[s.role_job[role]]}: new pods against {rule.text}" for role, rule in found.items()]


def against_rules(snapshot: Snapshot, plan: Plan) -> dict[int, Rule]:
    """The jobs of which a plan places new pods where a rule about other pods forbids it: job → the rule."""
    if not snapshot.rules.all:
        return {}
    change = _difference(snapshot, plan)
    found = broken(snapshot.rules, change.role, change.node, change.before, change.after)
    return {int(snapshot.role_job[role]): rule for role, rule in found.items()}


def _amounts(s: Snapshot, role: IntArray, node: IntArray, count: IntArray) -> IntArray:
    out = np.zeros((s.nodes, len(s.resources)), dtype=np.int64)
    np.add.at(out, node, s.role_request[role] * count[:, None])
    return out


def _nodes(s: Snapshot, change: _Change) -> list[str]:
    """The plan overcommits no node, neither at the end nor now, with terminating pods counted."""
    role, node, before, after, _, p = change
    held = _amounts(s, role, node, before)
    final = _amounts(s, role, node, after)
    capacity = s.node_allocatable - s.node_foreign
    # A node that is overcommitted already (it shrank, or a foreign pod came) is no fault if it gets no more.
    over = ((final > capacity) & (final > held)).any(axis=1)
    out = [f"node {s.node_names[n]} would be given more than it has" for n in np.flatnonzero(over)]
    more = after > before
    now = p.bind_now[s.role_job[role]] & more
    added = _amounts(s, role[now], node[now], (after - before)[now])
    burst = ((held + s.node_releasing + added > capacity) & (added > 0)).any(axis=1)
    return out + [
        f"node {s.node_names[n]}: pods would be bound before the terminating ones have gone"
        for n in np.flatnonzero(burst)
    ]


def _caps(s: Snapshot, change: _Change) -> list[str]:
    if (s.queue_cap >= UNLIMITED).all():
        return []
    role, _, before, after, _, _ = change
    out: list[str] = []
    queue = s.job_queue[s.role_job[role]]
    for q in range(s.queues):
        inside = np.zeros(s.queues + 1, dtype=np.bool_)
        inside[q] = True
        for _ in range(s.queues):
            grown = inside.copy()
            grown[:-1] |= inside[s.queue_parent] & (s.queue_parent >= 0)
            if (grown == inside).all():
                break
            inside = grown
        mine = inside[queue] & (queue >= 0)
        use = (s.role_request[role[mine]] * after[mine, None]).sum(axis=0)
        had = (s.role_request[role[mine]] * before[mine, None]).sum(axis=0)
        if ((use > s.queue_cap[q]) & (use > had)).any():
            out.append(f"queue {s.queue_names[q]} would be above its cap")
    return out


def _actions(s: Snapshot, change: _Change) -> list[str]:
    role, _, before, after, _, p = change
    job = s.role_job[role]
    had, has = np.zeros(s.jobs, dtype=np.bool_), np.zeros(s.jobs, dtype=np.bool_)
    had[job[before > 0]], has[job[after > 0]] = True, True
    want = np.where(
        change.untouched,
        np.where(has, KEEP, WAIT),
        np.where(had, np.where(has, RESIZE, PREEMPT), ADMIT),
    )
    out = [f"job {s.job_names[j]}: its action does not say what its pods do" for j in np.flatnonzero(want != p.action)]
    # New pods of a preemptible job start after its old ones are gone; only other jobs may grow while they run.
    wrong = p.bind_now & ~((p.action == ADMIT) | ((p.action == RESIZE) & ~s.job_preemptible))
    return out + [
        f"job {s.job_names[j]}: it is bound now although none of its pods may start now" for j in np.flatnonzero(wrong)
    ]

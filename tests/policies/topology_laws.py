"""The laws of topology as functions of (snapshot, plan), which return the violations. They use no code of policies.

Law 4 and the reasons (laws.py, reasons.py) count what fits in one domain for the jobs that require one.
"""

from __future__ import annotations

import re

import numpy as np

from diflow.allocator.model.arrays import IntArray
from diflow.allocator.model.plan import ADMIT, Plan
from diflow.allocator.model.reasons import DoesNotFit
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.reasons import reason_texts
from tests.policies.reasons import RESERVE_AFTER


def topology_holds(snapshot: Snapshot, plan: Plan) -> list[str]:
    """All laws of topology. `fit` alone chooses the nodes of whole gangs at their final size, so law 17 is for it."""
    found = [*stays_in_one_domain(snapshot, plan), *texts_are_true(snapshot, plan)]
    return found + (is_not_spread(snapshot, plan) if plan.policy == "fit" else [])


def stays_in_one_domain(snapshot: Snapshot, plan: Plan) -> list[str]:
    """Law 16: a job that requires a domain is in one, unless its labels changed under it and it gains nothing."""
    out = []
    for j in np.flatnonzero(snapshot.job_required >= 0).tolist():
        row = snapshot.node_domain[snapshot.job_required[j]]
        before, after = _places(snapshot, j, None), _places(snapshot, j, plan)
        there = set(row[after > 0].tolist())
        if (len(there) > 1 or -1 in there) and (after > before).any():
            out.append(f"law 16: {snapshot.job_names[j]} is in {sorted(there)} of level {snapshot.job_required[j]}")
    return out


def is_not_spread(snapshot: Snapshot, plan: Plan) -> list[str]:
    """Law 17: a job of one role that starts on several nodes is in one domain of the narrowest level if, beside all
    others, it fits there with all its replicas. Not judged if capacity may be reserved for a job that waits."""
    s, out = snapshot, list[str]()
    waits = ~s.jobs_of(plan.role) & (s.now_seconds - s.job_created_seconds >= RESERVE_AFTER)
    if waits.any():
        return out
    free = s.node_allocatable - s.node_foreign - s.usage(plan.role, plan.node, plan.count)
    row = s.node_domain[-1]
    for j in np.flatnonzero(plan.action == ADMIT).tolist():
        roles = np.flatnonzero(s.role_job == j)
        if len(roles) > 1:
            continue
        mine, request = _places(s, j, plan), s.role_request[roles[0]]
        there = set(row[mine > 0].tolist())
        if np.count_nonzero(mine) == 1 or (len(there) == 1 and -1 not in there):
            continue
        nodes = s.class_nodes[s.role_class[roles[0]]] & s.node_open
        asked = request > 0
        slots = (np.maximum(free + mine[:, None] * request, 0)[:, asked] // request[asked]).min(axis=1) * nodes
        for domain in sorted(set(row.tolist()) - {-1}):
            if slots[row == domain].sum() >= mine.sum():
                out.append(
                    f"law 17: {s.job_names[j]} is on {np.flatnonzero(mine)}, and {s.domain_names[domain]} holds it"
                )
                break
    return out


_FREE = re.compile(r"(\S+) has (\S+) free(?: and fits (\d+))?")


def texts_are_true(snapshot: Snapshot, plan: Plan) -> list[str]:
    """The numbers in the text of a job that does not fit in one domain: each that it names is counted again."""
    s, out = snapshot, list[str]()
    free = np.maximum(s.node_allocatable - s.node_foreign - s.usage(plan.role, plan.node, plan.count), 0)
    for j in np.flatnonzero(~s.jobs_of(plan.role)).tolist():
        level = int(s.job_required[j])
        if level < 0 or not isinstance(plan.reasons[j], DoesNotFit):
            continue
        text = reason_texts.text(s, plan, j)
        named = re.search(rf"it needs (\S+) (\S+) in one {s.level_names[level]}: ", text)
        if named is not None:
            out += [f"text: {text!r}: {wrong}" for wrong in _wrong(s, j, free, text, (named[1], named[2]))]
        else:
            out.append(f"text: {text!r} names no domain")
    return out


def _wrong(s: Snapshot, job: int, free: IntArray, text: str, needs: tuple[str, str]) -> list[str]:
    roles = np.flatnonzero(s.role_job == job).tolist()
    r, row = s.resources.index(needs[1]), s.node_domain[s.job_required[job]]
    scale = 1000 if needs[1] == "cpu" else 1
    out = []
    gang = [int(s.role_min[g] * s.role_request[g, r]) for g in roles]
    if round(float(needs[0]) * scale) not in ([sum(gang)] if "together" in text else gang):
        out.append("it needs another amount")
    told = _FREE.findall(text)
    if not told and (row >= 0).any():
        out.append("it names no domain")
    for name, amount, fits in told:
        domain = s.domain_names.index(name)
        open_here = [(row == domain) & s.node_open & s.class_nodes[s.role_class[g]] for g in roles]
        open_here += [np.any(open_here, axis=0)] if "together" in text else []
        amounts = [int(free[nodes, r].sum()) for nodes in open_here]
        if round(float(amount) * scale) not in amounts:
            out.append(f"{name} has {amounts} free")
        slots = [_slots(s, g, free, nodes) for g, nodes in zip(roles, open_here, strict=False)]
        if (fits == "") is not ("together" in text) or (fits and int(fits) not in slots):
            out.append(f"{name} fits {slots}")
        if len(roles) == 1 and int(fits) >= s.role_min[roles[0]]:
            out.append(f"{name} fits the whole gang")
    return out


def _slots(s: Snapshot, role: int, free: IntArray, nodes: IntArray) -> int:
    request = s.role_request[role]
    return int((free[nodes][:, request > 0] // request[request > 0]).min(axis=1).sum())


def _places(snapshot: Snapshot, job: int, plan: Plan | None) -> IntArray:
    """N: the replicas of the job on each node, by the plan or now."""
    s = snapshot
    role, node, count = (plan.role, plan.node, plan.count) if plan else (s.held_role, s.held_node, s.held_count)
    mine = s.role_job[role] == job
    out = np.zeros(s.nodes, dtype=np.int64)
    np.add.at(out, node[mine], count[mine])
    return out

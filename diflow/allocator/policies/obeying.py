"""Plans that obey the rules about other pods (`diflow/allocator/model/rules.py`), whatever policy makes them.

Policies that place gangs by the ledger obey them. In a plan of another one, or of a search without the ledger, a job
that would break a rule is placed anew with as many replicas, where the plan leaves room. If that fails, it gets nothing
new, and the policy is asked again: so it costs others nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from diflow.allocator.model.arrays import frozen
from diflow.allocator.model.ledger import Ledger
from diflow.allocator.model.plan import WAIT, Plan, keep_plan, make_plan
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.validate import against_rules
from diflow.allocator.policies.waiting import start_order, too_few

_MOST_CALLS: Final = 4


def obeying(optimize: Callable[[Snapshot], Plan], snapshot: Snapshot) -> Plan:
    """The plan of `optimize` in which no new pods are against a rule. It takes at most five calls: in the last one no
    job with rules gets anything new."""
    if not snapshot.rules.all:
        return optimize(snapshot)
    bad: set[int] = set()
    with snapshot.work.one_plan():
        for call in range(_MOST_CALLS + 1):
            plan = optimize(_without(snapshot, bad) if bad else snapshot)
            wrong = set(against_rules(snapshot, plan))
            if wrong:
                plan, wrong = _placed_anew(snapshot, plan, [*wrong])
            if not wrong:
                return _explained(snapshot, plan, bad)
            bad |= wrong if call < _MOST_CALLS - 1 else snapshot.facts.bound_jobs
    return keep_plan(snapshot, plan.policy)


def _placed_anew(snapshot: Snapshot, plan: Plan, jobs: list[int]) -> tuple[Plan, set[int]]:
    """(the plan with these jobs placed by their rules, those for which there is no room so)."""
    s = snapshot
    mine = np.isin(s.role_job[plan.role], jobs)
    stays = np.isin(s.role_job[s.held_role], jobs) & ~s.job_preemptible[s.role_job[s.held_role]]
    parts = (
        np.concatenate([plan.role[~mine], s.held_role[stays]]),
        np.concatenate([plan.node[~mine], s.held_node[stays]]),
        np.concatenate([plan.count[~mine], s.held_count[stays]]),
    )
    order = np.lexsort((parts[1], parts[0]))
    role, node, count = (frozen(part[order]) for part in parts)
    ledger = Ledger(replace(s, held_role=role, held_node=node, held_count=count))
    wanted = np.bincount(plan.role, weights=plan.count, minlength=s.roles).astype(np.int64).tolist()
    left = set()
    for job in sorted(jobs, key=start_order(s).tolist().index):
        want = {r: wanted[r] - ledger.count[r] for r in ledger.roles_of(job)}
        if ledger.try_gang(job, want) is None and not _fewer(ledger, job, want):
            left.add(job)
    return make_plan(s, plan.policy, *ledger.triples(), reasons=plan.reasons), left


def _fewer(ledger: Ledger, job: int, want: dict[int, int]) -> bool:
    """Place as many replicas of a job of one task as its rules allow, if that is enough for its gang."""
    if len(want) != 1:
        return False
    ((role, count),) = want.items()
    fits = min(count, ledger.most(job, role))
    is_enough = ledger.count[role] + fits >= ledger.facts.role_min[role]
    return fits > 0 and is_enough and ledger.try_gang(job, {role: fits}) is not None


def _explained(snapshot: Snapshot, plan: Plan, bad: set[int]) -> Plan:
    """The plan with the reason of each of these jobs that waits."""
    waits = [job for job in bad if plan.action[job] == WAIT]
    if not waits:
        return plan
    ledger, reasons = Ledger(snapshot), list(plan.reasons)
    for job in waits:
        reasons[job] = too_few(ledger, job) or reasons[job]
    return replace(plan, reasons=tuple(reasons))


def _without(snapshot: Snapshot, jobs: set[int]) -> Snapshot:
    """The snapshot in which these jobs get nothing new: those that hold something may give it up."""
    s, mine = snapshot, np.zeros(snapshot.jobs, dtype=np.bool_)
    mine[list(jobs)] = True
    held = s.held_by_role()
    stays = mine[s.role_job] & (held > 0)
    most = np.where(stays, np.minimum(s.role_max, held), s.role_max)
    holds = s.jobs_of(held > 0)
    return replace(
        s,
        role_max=frozen(np.maximum(most, 1)),
        role_min=frozen(np.where(stays, np.minimum(s.role_min, held), s.role_min)),
        role_desired=frozen(np.where(stays, np.minimum(s.role_desired, held), s.role_desired)),
        job_pinned=frozen(s.job_pinned | (mine & holds)),
        job_queue=frozen(np.where(mine & ~holds, -1, s.job_queue)),
    )

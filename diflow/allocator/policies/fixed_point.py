"""Iterate a policy on the predicted state until it reaches a fixed point.

A plan that the next cycle would change again is not worth its restarts. The result is one plan from the current state
to the fixed point, or to the state after a few rounds if there is none by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from diflow.allocator.model.plan import KEEP, Plan, carry_out, changes, keep_plan, make_plan
from diflow.allocator.model.reasons import Change, Loss
from diflow.allocator.model.snapshot import Snapshot

ROUNDING = 1e-9
"""Relative difference of measures that counts as equal: sums in another order."""
ROUNDS = 8
MOST_JOBS = 200
"""Above this number of jobs a plan is not iterated: single replicas matter little there, and planning time is short."""


def followed(snapshot: Snapshot, plan: Plan, look: Callable[[Snapshot], Plan]) -> Plan:
    """`plan` followed by the plans of `look` on the predicted state, until one changes nothing, as one plan."""
    if snapshot.jobs > MOST_JOBS or not changes(plan):
        return plan
    seen = {_allocation(plan)}
    for _ in range(ROUNDS):
        again = look(carry_out(snapshot, plan))
        if not changes(again):
            return _as_waiting(snapshot, plan, again)
        if leaves_home(snapshot, again):
            return plan
        plan = joined(snapshot, plan, again)
        # If the plans repeat, no state in the loop is better than the others.
        if not changes(plan) or _allocation(plan) in seen:
            break
        seen.add(_allocation(plan))
    return plan


def _allocation(plan: Plan) -> tuple[bytes, bytes, bytes]:
    return plan.role.tobytes(), plan.node.tobytes(), plan.count.tobytes()


def joined(snapshot: Snapshot, plan: Plan, again: Plan) -> Plan:
    """One plan for `plan` and then `again`, which is for the snapshot after `plan`."""
    # A job that the second plan does not change keeps the reason of the first.
    reasons = [
        before if action == KEEP else reason
        for action, before, reason in zip(again.action.tolist(), plan.reasons, again.reasons, strict=True)
    ]
    return make_plan(snapshot, plan.policy, again.role, again.node, again.count, reasons=reasons)


def _as_waiting(snapshot: Snapshot, plan: Plan, again: Plan) -> Plan:
    """`plan`, after which `again` changes nothing. Jobs that one step of it started and a later one stopped never ran:
    they get the reasons of `again`, by which they wait."""
    reasons = list(plan.reasons)
    for job in np.flatnonzero(~snapshot.jobs_of(snapshot.held_role) & ~snapshot.jobs_of(plan.role)).tolist():
        if isinstance(reasons[job], Loss):
            reasons[job] = again.reasons[job]
    return replace(plan, reasons=tuple(reasons))


def of_whole(snapshot: Snapshot, plan: Plan) -> Plan:
    """The plan with reasons for all of its steps together: each counts what one step changed."""
    held = snapshot.replicas_of_jobs(snapshot.held_by_role())
    then = snapshot.replicas_of_jobs(plan.count, plan.role)
    asked = snapshot.replicas_of_jobs(snapshot.role_desired)
    jobs = np.flatnonzero((held > 0) | (then > 0))
    columns = (held[jobs], then[jobs], asked[jobs], plan.action[jobs] == KEEP, snapshot.job_preemptible[jobs])
    reasons = list(plan.reasons)
    for job, change in zip(jobs.tolist(), map(Change, *(column.tolist() for column in columns)), strict=True):
        reasons[job] = reasons[job].of_whole(change)
    return replace(plan, reasons=tuple(reasons))


def no_worse_than_keeping(
    snapshot: Snapshot, plans: Iterable[Callable[[], Plan]], measure: Callable[[Snapshot, Plan], float], name: str
) -> Plan:
    """The first of these plans that measures no lower than the current allocation; else the plan that keeps it.

    Each step of a plan may improve the state before it, although the whole plan does not improve the current state.
    """
    keep = keep_plan(snapshot, name)
    kept = measure(snapshot, keep)
    for plan in plans:
        found = plan()
        if is_no_worse(measure(snapshot, found), kept):
            return found
    return keep


def is_no_worse(value: float, kept: float) -> bool:
    """Whether `value` is at least `kept`, up to ROUNDING."""
    return value >= kept - ROUNDING * abs(kept)


def leaves_home(snapshot: Snapshot, plan: Plan) -> bool:
    """Whether the plan puts a pinned job on other nodes, because one step stopped it and the next started it."""
    if not snapshot.job_pinned.any():
        return False
    pinned = snapshot.job_pinned[snapshot.role_job]
    if not pinned[snapshot.held_role].any():
        return False
    width = max(1, snapshot.nodes)
    job = snapshot.role_job
    had = np.unique(job[snapshot.held_role])
    mine = pinned[plan.role] & np.isin(job[plan.role], had)
    home = job[snapshot.held_role] * width + snapshot.held_node
    return bool((~np.isin((job[plan.role] * width + plan.node)[mine], home)).any())

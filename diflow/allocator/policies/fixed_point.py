"""Iterate a policy on the predicted state until it reaches a fixed point.

A plan that the next cycle would change again is not worth its restarts. The result is one plan from the current state
to the fixed point, or to the state after a few rounds if there is none by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from diflow.allocator.model.arrays import frozen
from diflow.allocator.model.plan import KEEP, NAMES_A_JOB, Plan, Why, carry_out, changes, keep_plan, make_plan
from diflow.allocator.model.snapshot import Snapshot

ROUNDING = 1e-9
"""Relative difference of measures that counts as equal: sums in another order."""
_LOSSES = tuple(
    int(why)
    for why in (
        *(Why.PREEMPTED_FOR_PRIORITY, Why.RECLAIMED, Why.RECLAIMED_BY_GUARANTEE, Why.SHARED_IN_QUEUE),
        *(Why.GAVE_BACK_RESERVATION, Why.SHRUNK_FOR_OTHERS),
    )
)
"""Reasons of jobs that lose replicas to another job."""
_OF_REPLICAS = (int(Why.FITS), int(Why.GROWN), int(Why.PLACED_AGAIN), *_LOSSES)
"""Reasons of running jobs whose values are replicas."""
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
    kept = again.action == KEEP
    return make_plan(
        snapshot,
        plan.policy,
        again.role,
        again.node,
        again.count,
        why=np.where(kept, plan.why, again.why),
        values=np.where(kept[:, None], plan.values, again.values),
        subject=np.where(kept, plan.subject, again.subject),
    )


def _as_waiting(snapshot: Snapshot, plan: Plan, again: Plan) -> Plan:
    """`plan`, after which `again` changes nothing. Jobs that one step of it started and a later one stopped never ran:
    they get the reasons of `again`, by which they wait."""
    idle = ~snapshot.jobs_of(snapshot.held_by_role() > 0) & ~snapshot.jobs_of(plan.role)
    never_ran = idle & np.isin(plan.why, _LOSSES)
    if not never_ran.any():
        return plan
    return replace(
        plan,
        why=frozen(np.where(never_ran, again.why, plan.why)),
        values=frozen(np.where(never_ran[:, None], again.values, plan.values)),
        subject=frozen(np.where(never_ran, again.subject, plan.subject)),
    )


def recounted(snapshot: Snapshot, plan: Plan) -> Plan:
    """The plan with reasons that count replicas before and after the whole plan.

    The reasons of its steps count what each step changed, and a later step may have reverted an earlier one.
    """
    s = snapshot
    held = np.bincount(s.role_job, weights=s.held_by_role(), minlength=s.jobs)
    then = np.bincount(s.role_job[plan.role], weights=plan.count, minlength=s.jobs)
    counts = np.isin(plan.why, _OF_REPLICAS) & (~np.isin(plan.why, tuple(NAMES_A_JOB)) | (plan.subject >= 0))
    # The last step may have kept a job that an earlier one moved.
    counts |= np.isin(plan.why, (int(Why.KEPT), int(Why.KEPT_NOT_PREEMPTIBLE))) & (plan.action != KEEP)
    stopped = counts & (then == 0) & (held > 0) & np.isin(plan.why, _LOSSES)
    changed = np.flatnonzero(counts & (then > 0))
    if not len(changed) and not stopped.any():
        return plan
    why, values, subject = plan.why.copy(), plan.values.copy(), plan.subject.copy()
    values[stopped, 0], values[stopped, 1] = 0.0, held[stopped]
    for job in changed.tolist():
        before, after, reason = held[job], then[job], Why(int(why[job]))
        if plan.action[job] == KEEP:
            why[job] = int(Why.KEPT if s.job_preemptible[job] else Why.KEPT_NOT_PREEMPTIBLE)
        elif before == 0:
            wanted = values[job, 1] if reason is Why.FITS else s.role_desired[s.role_job == job].sum()
            why[job], values[job] = int(Why.FITS), (after, max(after, wanted), 0)
        elif after > before:
            why[job], values[job] = int(reason if reason is Why.PLACED_AGAIN else Why.GROWN), (after, before, 0)
        else:
            # A stopped job may start again elsewhere with as many replicas.
            lost = reason in NAMES_A_JOB and (after < before or reason is Why.PREEMPTED_FOR_PRIORITY)
            why[job], values[job] = int(reason if lost else Why.PLACED_AGAIN), (after, before, 0)
        if Why(int(why[job])) not in NAMES_A_JOB:
            subject[job] = -1
    return replace(plan, why=frozen(why), values=frozen(values), subject=frozen(subject))


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

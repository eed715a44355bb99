"""The reasons of a cycle of `fit`, from its final allocation."""

from __future__ import annotations

import numpy as np

from diflow.allocator.model.reasons import (
    DoesNotFitElsewhere,
    Fits,
    GainTooSmall,
    Grown,
    Kept,
    Loss,
    PlacedAgain,
    PreemptedForPriority,
    Reason,
    TooSoon,
)
from diflow.allocator.policies.fit.backfill import at_most, roles_that_scale
from diflow.allocator.policies.fit.cycle import Cycle
from diflow.allocator.policies.limits import does_not_fit_elsewhere
from diflow.allocator.policies.waiting import explain_impossible, explain_waiting, minimum_gang


def explain(cycle: Cycle) -> None:
    """Set the reasons of all jobs."""
    s, ledger = cycle.snapshot, cycle.ledger
    most = np.where(s.job_preemptible[s.role_job], s.role_max, s.role_desired)
    before, after, asked = (s.replicas_of_jobs(count).tolist() for count in (cycle.held, ledger.replicas, most))
    explained: dict[tuple[int, int], Reason] = {}
    for j in range(s.jobs):
        if not after[j]:
            cycle.reasons[j] = _waiting(cycle, j, before, after, explained)
        elif not cycle.ran[j]:
            cycle.reasons[j] = Fits(after[j], asked[j])
        elif j in cycle.blame or after[j] > before[j]:
            cycle.reasons[j] = _holding(cycle, j, before[j], after[j])
    _explain_not_growing(cycle, after)


def _holding(cycle: Cycle, job: int, before: int, after: int) -> Reason:
    """The reason of a job that held so many replicas, and holds others in the end."""
    why, other = cycle.blame.get(job, (Kept, -1))
    other = _receiver(cycle, other)
    if why is DoesNotFitElsewhere:
        return does_not_fit_elsewhere(cycle.ledger, job)
    if after > before and why is not PlacedAgain:
        return Grown(after)  # it may have lost replicas in this cycle and gained more since
    if issubclass(why, Loss) and (after < before or why.may_stay_as_large):
        return why(after, before, cycle.snapshot.job_names[other])
    return PlacedAgain(after, before)


def _receiver(cycle: Cycle, job: int) -> int:
    """The job that holds in the end what was taken for `job`, which may itself have been preempted; -1 for none."""
    seen, at = set[int](), job
    while at >= 0 and at not in seen:
        if any(cycle.ledger.count[r] > cycle.held[r] for r in cycle.ledger.roles_of(at)):
            return at
        seen.add(at)
        at = cycle.blame.get(at, (Kept, -1))[1]
    return job


def _waiting(
    cycle: Cycle, job: int, before: list[int], after: list[int], explained: dict[tuple[int, int], Reason]
) -> Reason:
    """The reason of a job that holds nothing. Of all jobs: replicas `before` and `after`. `explained`: the reasons so
    far, as equal jobs wait for the same one."""
    ledger = cycle.ledger
    why, other = cycle.blame.get(job, (Kept, -1))
    stopped = why is PreemptedForPriority and before[job] > 0 and after[other] > before[other]
    # A job that fits again waits because of another job's reservation or its missing queue, not the preemption.
    is_kept_out = cycle.turn is not None or ledger.job_queue[job] < 0
    if stopped and not (is_kept_out and ledger.fits(job, minimum_gang(ledger, job))):
        return PreemptedForPriority(0, before[job], cycle.snapshot.job_names[other])
    if job in cycle.impossible:
        return explain_impossible(ledger, job, cycle.impossible[job])
    kind = ledger.facts.kinds[job], job if ledger.facts.pinned[job] else -1
    if kind not in explained:
        left = max(0.0, cycle.turn.until - cycle.snapshot.now_seconds) if cycle.turn is not None else 0.0
        explained[kind] = explain_waiting(ledger, job, cycle.reserved_for, left_seconds=left)
    return explained[kind]


def _explain_not_growing(cycle: Cycle, after: list[int]) -> None:
    """Reasons of jobs that do not grow into free capacity: they were resized recently, or would gain too little."""
    s, ledger, reasons = cycle.snapshot, cycle.ledger, cycle.reasons
    late = cycle.changed_lately()
    for j in np.flatnonzero(cycle.below_maximum()).tolist():
        if not isinstance(reasons[j], Kept):
            continue
        more = sum(min(ledger.most(j, r), int(s.role_max[r] - ledger.replicas[r])) for r in roles_that_scale(ledger, j))
        if more <= 0 or at_most(ledger, j):
            continue
        if late[j]:
            reasons[j] = TooSoon(after[j], more, float(s.now_seconds - s.job_changed_seconds[j]))
        elif j in cycle.too_small:
            reasons[j] = GainTooSmall(after[j], more)

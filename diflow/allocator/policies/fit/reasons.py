"""The reasons of a cycle of `fit`, from its final allocation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from diflow.allocator.model.arrays import IntArray
from diflow.allocator.model.plan import Why
from diflow.allocator.policies.fit.backfill import at_most, roles_that_scale
from diflow.allocator.policies.limits import needed_and_fitting_elsewhere
from diflow.allocator.policies.waiting import Explained, explain_impossible, explain_waiting, minimum_gang

if TYPE_CHECKING:
    from diflow.allocator.policies.fit.cycle import Cycle


def explain(cycle: Cycle) -> None:
    """Set the reasons of all jobs."""
    s, ledger = cycle.snapshot, cycle.ledger
    before = np.bincount(s.role_job, weights=cycle.held, minlength=s.jobs)
    after = np.bincount(s.role_job, weights=ledger.replicas, minlength=s.jobs)
    explained: dict[tuple[int, int], Explained] = {}
    for j in np.flatnonzero(after == 0).tolist():
        _explain_waiting(cycle, j, before, after, explained)
    most = np.where(s.job_preemptible[s.role_job], s.role_max, s.role_desired)
    most = np.bincount(s.role_job, weights=most, minlength=s.jobs)
    for j in np.flatnonzero(after > 0).tolist():
        _explain_holding(cycle, j, before, after, most)
    _explain_not_growing(cycle, after)


def _explain_holding(cycle: Cycle, job: int, before: IntArray, after: IntArray, most: IntArray) -> None:
    """The reason of a job that holds something in the end. Of `before`, `after` and `most` (J): replicas held, and the
    most that it asks for."""
    ledger, reasons = cycle.ledger, cycle.reasons
    why, subject = cycle.blame.get(job, (Why.KEPT, -1))
    subject = _receiver(cycle, subject)
    if not cycle.ran[job]:
        reasons.set(job, Why.FITS, (after[job], most[job], 0.0))
    elif why == Why.DOES_NOT_FIT_ELSEWHERE:
        reasons.set(job, why, (*needed_and_fitting_elsewhere(ledger, job), 0.0))
    elif after[job] > before[job] and (why == Why.KEPT or subject >= 0):
        # It may have lost replicas in this cycle and gained more since.
        reasons.set(job, Why.GROWN, (after[job], before[job], most[job]))
    elif why != Why.KEPT:
        lost = subject < 0 or after[job] < before[job] or why == Why.PREEMPTED_FOR_PRIORITY
        numbers = (after[job], before[job], 0.0)
        reasons.set(job, why if lost else Why.PLACED_AGAIN, numbers, subject if lost else -1)


def _receiver(cycle: Cycle, job: int) -> int:
    """The job that holds in the end what was taken for `job`, which may itself have been preempted; -1 for none."""
    seen, at = set[int](), job
    while at >= 0 and at not in seen:
        if any(cycle.ledger.count[r] > cycle.held[r] for r in cycle.ledger.roles_of(at)):
            return at
        seen.add(at)
        at = cycle.blame.get(at, (Why.KEPT, -1))[1]
    return job


def _explain_waiting(
    cycle: Cycle, job: int, before: IntArray, after: IntArray, explained: dict[tuple[int, int], Explained]
) -> None:
    """The reason of a job that holds nothing. `explained`: the reasons so far, as equal jobs wait for the same one."""
    ledger, reasons = cycle.ledger, cycle.reasons
    why, subject = cycle.blame.get(job, (Why.DOES_NOT_FIT, -1))
    stopped = why == Why.PREEMPTED_FOR_PRIORITY and before[job] > 0 and after[subject] > before[subject]
    # A job that fits again waits because of another job's reservation or its missing queue, not the preemption.
    is_kept_out = cycle.turn is not None or ledger.job_queue[job] < 0
    if stopped and not (is_kept_out and ledger.fits(job, minimum_gang(ledger, job))):
        reasons.set(job, why, (0.0, before[job], 0.0), subject)
        return
    if job in cycle.impossible:
        reasons.set(job, *explain_impossible(ledger, job, cycle.impossible[job]))
        return
    kind = ledger.facts.kinds[job], job if ledger.facts.pinned[job] else -1
    if kind not in explained:
        left = max(0.0, cycle.turn.until - cycle.snapshot.now_seconds) if cycle.turn is not None else 0.0
        explained[kind] = explain_waiting(ledger, job, cycle.reserved_for, left_seconds=left)
    reasons.set(job, *explained[kind])


def _explain_not_growing(cycle: Cycle, after: IntArray) -> None:
    """Reasons of jobs that do not grow into free capacity: they were resized recently, or would gain too little."""
    s, ledger, reasons = cycle.snapshot, cycle.ledger, cycle.reasons
    late = cycle.changed_lately()
    for j in np.flatnonzero(cycle.below_maximum() & (after > 0)).tolist():
        more = sum(min(ledger.most(j, r), int(s.role_max[r] - ledger.replicas[r])) for r in roles_that_scale(ledger, j))
        if more <= 0 or at_most(ledger, j) or reasons.why[j] != int(Why.KEPT):
            continue
        if late[j]:
            since = float(s.now_seconds - s.job_changed_seconds[j])
            reasons.set(j, Why.TOO_SOON, (float(after[j]), float(more), since))
        elif j in cycle.too_small:
            reasons.set(j, Why.GAIN_TOO_SMALL, (float(after[j]), float(more), 0.0))

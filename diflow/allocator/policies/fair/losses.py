"""The reasons of jobs that lost replicas to other jobs, and of all jobs that hold something, for a whole plan."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from diflow.allocator.model.arrays import IntArray
from diflow.allocator.model.ledger import Ledger
from diflow.allocator.model.plan import KEEP, Plan
from diflow.allocator.model.reasons import (
    Change,
    Grown,
    Loss,
    PlacedAgain,
    PreemptedForPriority,
    Reclaimed,
    ReclaimedByGuarantee,
    Reserved,
    SharedInQueue,
)
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.fair.claims import Entitlements, asked_for
from diflow.allocator.policies.fair.shares import Shares


@dataclass(frozen=True, slots=True)
class Given:
    """A loss of `victim` for `receiver`."""

    victim: int
    receiver: int
    why: type[Loss]


def with_final_reasons(
    snapshot: Snapshot, plan: Plan, given: Iterable[Given], shares: Shares | None = None, *, losers_only: bool = False
) -> Plan:
    """The plan with reasons for its whole, for jobs that hold or held something.

    The plan may join several cycles, and a later one may have reverted what an earlier one did. `given`: the losses in
    all of them, in order. `shares`: the shares of the snapshot, if reasons have to agree with them.
    """
    s = snapshot
    held = s.replicas_of_jobs(s.held_by_role())
    then = s.replicas_of_jobs(plan.count, plan.role)
    if not ((held > 0) | (then > 0)).any():
        return plan
    takers: dict[int, list[Given]] = {}
    for one in given:
        takers.setdefault(one.victim, []).append(one)
    reasons = list(plan.reasons)
    asked = s.replicas_of_jobs(s.role_desired)
    below = s.jobs_of(s.held_by_role() < s.role_min)
    receivers = _Receivers(s, takers, then - held, shares)
    for job in np.flatnonzero((held > 0) | (then > 0)).tolist():
        before, after, reason = int(held[job]), int(then[job]), reasons[job]
        if losers_only and after >= before and not isinstance(reason, Loss):
            continue
        if after == 0 and isinstance(reason, Reserved):
            continue  # it would fit again without the reservation
        if after < before and (found := receivers.of(job, stopped=after == 0)) is not None:
            reasons[job] = found.why(after, before, s.job_names[found.receiver])
        elif after:
            is_kept, is_preemptible = bool(plan.action[job] == KEEP), bool(s.job_preemptible[job])
            plain = Change(before, after, int(asked[job]), is_kept, is_preemptible).reason()
            reasons[job] = PlacedAgain(after, before) if below[job] and isinstance(plain, Grown) else plain
    return replace(plan, reasons=tuple(reasons))


class _Receivers:
    """Finds the job that holds what another lost. `gain` (J): replicas that each job gained by the whole plan."""

    def __init__(
        self, snapshot: Snapshot, takers: dict[int, list[Given]], gain: IntArray, shares: Shares | None
    ) -> None:
        self._snapshot, self._takers, self._gain, self._shares = snapshot, takers, gain, shares
        self._entitlements: Entitlements | None = None

    def of(self, job: int, *, stopped: bool) -> Given | None:
        """The last job for which the job's replicas were taken; or, if that one lost them again, the next receiver.

        A receiver whose queue was entitled to them in the initial state is preferred: several steps together may move
        what the last of them alone had no right to.
        """
        first = next(self._candidates(job, stopped=stopped), None)
        if first is None:
            return None
        for found in itertools.chain(self._candidates(job, stopped=stopped), self._others(job)):
            why = self._right(found)
            if why is not None:
                return Given(job, found.receiver, why)
        return first

    def _candidates(self, job: int, *, stopped: bool) -> Iterator[Given]:
        """Sharing the surplus of a queue never stops a job (`stopped`)."""
        seen, at = {job}, [job]
        while at:
            after: list[int] = []
            for one in (one for victim in at for one in reversed(self._takers.get(victim, []))):
                if self._gain[one.receiver] > 0 and not (stopped and one.why is SharedInQueue):
                    why = one.why if one.victim == job else _between(self._snapshot, job, one.receiver)
                    if why is not None:
                        yield Given(job, one.receiver, why)
                if one.receiver not in seen:
                    seen.add(one.receiver)
                    after.append(one.receiver)
            at = after

    def _others(self, job: int) -> Iterator[Given]:
        """Jobs that hold more than before."""
        for other in np.flatnonzero(self._gain > 0).tolist():
            why = _between(self._snapshot, job, other)
            if why is not None:
                yield Given(job, other, why)

    def _right(self, one: Given) -> type[Loss] | None:
        """The reason that entitled the receiver's queue in the initial state to what the victim held, or None."""
        s, shares = self._snapshot, self._shares
        if one.why is not Reclaimed or shares is None:
            return one.why
        if self._entitlements is None:
            self._entitlements = Entitlements(Ledger(s), shares)
        entitlements = self._entitlements
        mine, theirs = entitlements.apart(int(s.job_queue[one.receiver]), int(s.job_queue[one.victim]))
        if not mine or not theirs:
            return None
        asked = asked_for(s.role_request[s.role_job == one.receiver].sum(axis=0).tolist())
        counted = entitlements.counted(mine[-1], asked)
        if any(entitlements.claimed(mine[-1], (r,)) < min(1.0, entitlements.ratio(theirs[-1], (r,))) for r in counted):
            return Reclaimed
        used, sure = entitlements.ledger.used, entitlements.guarantee
        lacks = any(used[q][r] < sure[q][r] for q in mine for r in entitlements.counted(q, asked))
        return ReclaimedByGuarantee if lacks else None


def _between(snapshot: Snapshot, victim: int, receiver: int) -> type[Loss] | None:
    """The reason that lets one take from the other, if no direct exchange is recorded."""
    s = snapshot
    if s.job_queue[victim] != s.job_queue[receiver]:
        return Reclaimed
    return PreemptedForPriority if s.job_priority[victim] < s.job_priority[receiver] else None

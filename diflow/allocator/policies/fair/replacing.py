"""Exchanges of whole gangs, judged by what the victim's queue holds after its other gangs have used what is left.

A gang that is larger than what its queue may lose is kept by the rule of `claims.py`, even where smaller gangs of its
queue wait: without it the queue would be below the claimant's. With those gangs in its place it is not. So no gang
above a share keeps a gang waiting to which its queue is entitled, if the queues then share better.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from diflow.allocator.model.arrays import IntArray
from diflow.allocator.model.reasons import Reclaimed
from diflow.allocator.model.work import CELLS
from diflow.allocator.policies.fair.claims import Claim, asked_for
from diflow.allocator.policies.fair.reservation import Reservation
from diflow.allocator.policies.fair.shares import dominant
from diflow.allocator.policies.fair.state import State
from diflow.allocator.policies.fair.transactions import Transactions
from diflow.allocator.policies.fair.victims import order_of_victims
from diflow.allocator.policies.waiting import minimum_gang

MOST_EXCHANGES = 128
"""Sets of victims that are tried in one cycle. The next cycle continues."""
MOST_REPLACEMENTS = 32
"""Waiting gangs of the victims' queue that are tried in their place."""


class Replacing:
    """Starts gangs within their queues' shares in place of gangs of one other queue, which others of it replace."""

    def __init__(self, state: State, transactions: Transactions, reservation: Reservation) -> None:
        self._state, self._transactions, self._reservation = state, transactions, reservation
        self._tried = 0

    def for_shares(self) -> None:
        """Exchange gangs until none gets anything."""
        if (self._state.holders() & self._state.snapshot.job_preemptible).any():
            self._transactions.until_none_takes(self._entitled, self._replace_for)

    def _entitled(self) -> list[int]:
        """Waiting jobs whose queues stay within their shares with them, those of the poorest queue first."""
        state, facts = self._state, self._state.facts
        out = [job for job in state.in_order(state.allowed & ~state.holders()) if self._is_entitled(job)]
        ranks = {q: state.queue_rank(q) for q in {facts.job_queue[job] for job in out}}
        return sorted(out, key=lambda job: ranks[facts.job_queue[job]])

    def _is_entitled(self, job: int) -> bool:
        """Whether the job's queue and its ancestors stay within their shares with its gang."""
        state, ledger = self._state, self._state.ledger
        need = ledger.amount(minimum_gang(ledger, job))
        return state.entitlements.stays_within(state.facts.chains[state.facts.job_queue[job]], need, asked_for(need))

    def _replace_for(self, job: int) -> bool:
        state, ledger, reservation = self._state, self._state.ledger, self._reservation
        if ledger.holds(job) or not self._is_entitled(job):
            return False  # an earlier exchange has started it, or others of its queue
        undo = state.remembered()
        lifted = reservation.lift() if reservation.is_open_to(job) else []
        victims = ledger.searched(job, partial(self._replaced, job))
        if victims is None:
            if lifted:
                reservation.put_back(lifted)
            undo()
            return False
        if lifted:
            reservation.keep()
        self._transactions.gave(job, victims, Reclaimed)
        return True

    def _replaced(self, job: int) -> list[int] | None:
        """The victims in whose place the job and others have started; None, with nothing changed, if there are none."""
        state, facts, ledger = self._state, self._state.facts, self._state.ledger
        need = ledger.amount(minimum_gang(ledger, job))
        claim = Claim(state.entitlements, facts.job_queue[job], need, priority=facts.priority[job])
        for victims in self._sets_of_victims(job, claim, need):
            self._tried += 1
            if self._tried > MOST_EXCHANGES:
                return None
            undo = state.remembered()
            if any(self._exchange(job, claim, victims, order) for order in (list, self._largest_first)):
                return victims
            undo()
        return None

    def _sets_of_victims(self, job: int, claim: Claim, need: list[int]) -> Iterator[list[int]]:
        """Gangs of one queue that together with what is idle are enough: single ones, then two of them, then all."""
        state, s, ledger, asked = self._state, self._state.snapshot, self._state.ledger, list(claim.asked)
        able = state.holders() & s.job_preemptible & ~s.job_pinned & claim.possible_victims()[s.job_queue]
        able &= s.job_restarts < state.settings.most_stops
        if (may := s.takes_from(job)) is not None:
            able &= may
        order = order_of_victims(s)
        candidates: IntArray = order[able[order]]
        ledger.work.charge(len(candidates))
        queue = s.job_queue[candidates]
        held = np.array([ledger.held_amount(victim) for victim in candidates.tolist()], dtype=np.int64)
        held = held.reshape(-1, len(need))[:, asked]
        lacks = np.array(need)[asked] - ledger.free.clip(min=0).sum(axis=0)[asked]
        for first in np.flatnonzero((held >= lacks).all(axis=1)).tolist():
            yield [int(candidates[first])]
        for first in range(len(candidates)):
            ledger.work.charge(10 + held.size // CELLS)
            enough = (queue[first + 1 :] == queue[first]) & (held[first + 1 :] + held[first] >= lacks).all(axis=1)
            for second in np.flatnonzero(enough).tolist():
                yield candidates[[first, first + 1 + second]].tolist()
        if len(candidates) > 2 and len(np.unique(queue)) == 1 and (held.sum(axis=0) >= lacks).all():
            yield candidates.tolist()

    def _exchange(self, job: int, claim: Claim, victims: list[int], order: Callable[[list[int]], list[int]]) -> bool:
        """Stop the victims, and start the job and other gangs, those of the victims' queue first. False, with nothing
        changed, if the queues would not share better."""
        state, ledger, facts = self._state, self._state.ledger, self._state.facts
        waiting = state.in_order(state.allowed & ~state.holders() & ~state.snapshot.job_modest)
        queue = facts.job_queue[victims[0]]
        theirs = [other for other in waiting if facts.job_queue[other] == queue][:MOST_REPLACEMENTS]
        others = [other for other in waiting if facts.job_queue[other] != queue][:MOST_REPLACEMENTS]
        before, used = ledger.held_by([job, *victims, *theirs, *others]), [list(row) for row in ledger.used]
        met = claim.met_beside(victims[0])
        for victim in victims:
            ledger.release(victim)
        if ledger.try_gang(job, minimum_gang(ledger, job)) is not None:
            state.mark(job)
            self._start(order(theirs))
            self._start(order(others))
            if claim.is_met_by(victims, used, met):
                return True
        ledger.return_to(before)
        return False

    def _start(self, jobs: list[int]) -> None:
        """Start these jobs in this order where they fit, first within their queues' shares."""
        ledger = self._state.ledger
        for within_share, job in itertools.product((True, False), jobs):
            if ledger.holds(job) or (within_share and not self._is_entitled(job)):
                continue
            if ledger.try_gang(job, minimum_gang(ledger, job)) is not None:
                self._state.mark(job)

    def _largest_first(self, jobs: list[int]) -> list[int]:
        """These jobs, of each priority the largest gang first: they use more of what is left."""
        ledger, facts, total = self._state.ledger, self._state.facts, self._state.total
        size = {job: dominant(ledger.amount(minimum_gang(ledger, job)), total) for job in jobs}
        return sorted(jobs, key=lambda job: (-facts.priority[job], -size[job]))

"""Idle capacity: the steps `allocate`, within shares, and `backfill`, beyond them. Nothing is preempted here.

Queues have their turns, the one furthest below its share first; of each queue first its waiting gangs in job order,
then single replicas of its running jobs, the smallest dominant share first.
"""

from __future__ import annotations

import heapq

from diflow.allocator.model.arrays import BoolArray
from diflow.allocator.model.packing import ANY_NUMBER
from diflow.allocator.model.reasons import Fits
from diflow.allocator.policies.fair.claims import asked_for
from diflow.allocator.policies.fair.reservation import Reservation
from diflow.allocator.policies.fair.shares import dominant
from diflow.allocator.policies.fair.state import State
from diflow.allocator.policies.waiting import minimum_gang

_Entry = tuple[float, int, int]
"""A growing job in a heap: its dominant share, its place in the job order, the job."""


def serve(state: State, reservation: Reservation, *, within_share: bool) -> None:
    """Place all jobs in unreserved idle capacity; preemptible jobs may borrow the reservation."""
    if reservation.pauses:
        reservation.lift()
    else:
        reservation.keep()
    Serving(state, reservation, within_share=within_share).serve(state.allowed)
    if reservation.pauses:
        reservation.keep()
    elif reservation.kept:
        s, turn, among = state.snapshot, reservation.turn, state.allowed
        # Without `turn` the gang has started outside its reservation: a role may fit on other nodes by then.
        if turn is not None:
            among = among & s.job_preemptible & (s.job_priority <= state.facts.priority[turn.job])
        reservation.lift()
        Serving(state, reservation, within_share=within_share).serve(among)
        reservation.keep()


class Serving:
    """One pass over waiting and growing jobs. Nothing is released in it, so what did not fit once never fits.

    `_too_big`: for each shape (and queue, if there are caps) the smallest gang that did not fit. `_above_share`: the
    kinds of jobs whose gang is above its queue's share.
    """

    def __init__(self, state: State, reservation: Reservation, *, within_share: bool) -> None:
        self._state, self._reservation, self._within_share = state, reservation, within_share
        self._too_big: dict[tuple[int, int, bool], int] = {}
        self._above_share: set[int] = set()

    def serve(self, among: BoolArray) -> None:
        """Place the jobs of `among` (J) that wait or hold less than they may get."""
        state, queue_of = self._state, self._state.facts.job_queue
        waiting, short = state.in_order(among & ~state.holders()), state.in_order(among & state.short())
        if not (waiting or short) or not state.ledger.takes_any():
            return
        queues = range(state.snapshot.queues)
        gangs: list[list[int]] = [[] for _ in queues]
        for job in reversed(waiting):
            gangs[queue_of[job]].append(job)
        place = {job: at for at, job in enumerate(short)}
        growing: list[list[_Entry]] = [[] for _ in queues]
        for job in short:
            if state.grows(job):
                heapq.heappush(growing[queue_of[job]], self._entry(job, place))
        heap = [(state.queue_rank(q), q) for q in queues if gangs[q] or growing[q]]
        heapq.heapify(heap)
        while heap:
            _, q = heapq.heappop(heap)
            while gangs[q]:
                job = gangs[q].pop()
                if self.start(job):
                    if job in place:
                        heapq.heappush(growing[q], self._entry(job, place))
                    break
            else:
                while growing[q]:
                    _, _, job = heapq.heappop(growing[q])
                    if self._grow(job):
                        heapq.heappush(growing[q], self._entry(job, place))
                        break
            if gangs[q] or growing[q]:
                heapq.heappush(heap, (state.queue_rank(q), q))

    def start(self, job: int) -> bool:
        """Start a gang. False if it may not start or does not fit, with nothing changed."""
        turn = self._reservation.turn
        if turn is not None and job == turn.job:
            return self._reservation.start()
        state, facts, ledger = self._state, self._state.facts, self._state.ledger
        role = facts.roles_of[job][0]
        # With several roles, one may fit elsewhere, and then the others too.
        alone = len(facts.roles_of[job]) == 1
        key = self._key(job, role)
        if alone and facts.role_min[role] >= self._too_big.get(key, ANY_NUMBER):
            return False
        if facts.kinds[job] in self._above_share or ledger.work.is_spent(job):
            return False
        gang = minimum_gang(ledger, job)
        if not self._is_within_share(job, ledger.amount(gang)):
            self._above_share.add(facts.kinds[job])
            return False
        if ledger.try_gang(job, gang) is None:
            if alone:
                self._too_big[key] = facts.role_min[role]
            return False
        state.mark(job)
        return True

    def _grow(self, job: int) -> bool:
        """Place one more replica of a running job. False if it gets none."""
        state, facts, ledger = self._state, self._state.facts, self._state.ledger
        for role in facts.roles_of[job]:
            key = self._key(job, role)
            if ledger.count[role] >= state.aim[role] or (not ledger.is_bound(job) and self._too_big.get(key) == 1):
                continue
            if not self._is_within_share(job, facts.request[role]):
                continue
            if ledger.try_gang(job, {role: 1}) is not None:
                state.mark(job, is_new=isinstance(state.reasons[job], Fits))
                return True
            if not ledger.is_bound(job):
                self._too_big[key] = 1
        return False

    def _key(self, job: int, role: int) -> tuple[int, int, bool]:
        """Roles with the same key fit on the same nodes within the same limits of their queue."""
        facts = self._state.facts
        return facts.shape[role], facts.job_queue[job] if facts.capped else -1, facts.is_fixed(job)

    def _entry(self, job: int, place: dict[int, int]) -> _Entry:
        return dominant(self._state.ledger.held_amount(job), self._state.total), place[job], job

    def _is_within_share(self, job: int, need: list[int]) -> bool:
        entitlements = self._state.entitlements
        return not self._within_share or entitlements.stays_within(
            entitlements.chains[self._state.facts.job_queue[job]], need, asked_for(need)
        )

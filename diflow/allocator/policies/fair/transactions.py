"""Transactions: searches for victims within the limits of a cycle. Each evicts and places all or nothing.

In which order victims are chosen is in `victims.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray
from diflow.allocator.model.reasons import GaveBackReservation, Loss, ReclaimedByGuarantee
from diflow.allocator.policies.fair.losses import Given
from diflow.allocator.policies.fair.measure import Worth
from diflow.allocator.policies.fair.reservation import Reservation
from diflow.allocator.policies.fair.state import State
from diflow.allocator.policies.fair.victims import MayTake, Reach, evict_for, order_of_victims

MOST_TRANSACTIONS = 64
"""Preemptions and reclaims tried in one cycle: each may look at hundreds of victims. The next cycle continues."""
MOST_FOR_GUARANTEES = 6
"""How often a guarantee is served from one job for the jobs of one namespace within the time that such losses count."""
MOST_LOOKS = 1024
"""Gangs for which victims are considered in one cycle, most of them without a search."""
MOST_CANDIDATES = 32_768
"""Candidates of all searches of one cycle together, as many as all of its searches have in a cluster of 512 jobs. A
search that fails asks each of them."""


class Transactions:
    """The transactions of one cycle. `careful`: whether an exchange that lowers the measure of the whole is refused."""

    def __init__(self, state: State, reservation: Reservation, *, careful: bool) -> None:
        self._state, self._reservation, self._careful = state, reservation, careful
        self.searches = 0
        """Searches so far, without those that were ruled out beforehand."""
        self._looks = self._candidates = 0
        self.succeeded = False
        """Whether any transaction succeeded."""
        self.given: list[Given] = []
        """Losses of jobs for others, in order."""

    @property
    def exhausted(self) -> bool:
        """Whether the limits of the cycle are reached."""
        return self.searches >= MOST_TRANSACTIONS or self._looks >= MOST_LOOKS or self._candidates >= MOST_CANDIDATES

    def until_none_takes(self, wanting: Callable[[], list[int]], take: Callable[[int], bool]) -> None:
        """Let each of these jobs take for its request, in order and repeatedly, until none gets anything.

        What failed is not tried again, also not for a job with equal requests and allocation, until something changes.
        A job that is bound to nodes or a domain is only compared with itself, because it can use other nodes than its
        equals.
        """
        state, s, facts = self._state, self._state.snapshot, self._state.facts
        progress = True
        while progress:
            progress = False
            for job in wanting():
                if self.exhausted:
                    return
                counts = [state.ledger.count[role] for role in facts.roles_of[job]]
                nodes = job if state.ledger.is_bound(job) else -1, self._reservation.is_open_to(job)
                mine = (job if s.modest[job] else -1, s.owners[job] if len(s.spared) else -1)
                look = (take.__name__, facts.kinds[job], facts.priority[job], *nodes, *mine, *counts)
                tried = state.cached("tried", set[tuple[object, ...]])
                if look not in tried:
                    tried.add(look)
                    with state.ledger.work.of(job):
                        progress |= take(job)

    def take(  # noqa: PLR0913 (the terms of one exchange)
        self,
        job: int,
        want: dict[int, int],
        victims: BoolArray,
        may_take: MayTake,
        why: type[Loss],
        *,
        keeps: FloatArray | None = None,
        borrowers: BoolArray | None = None,
        surplus_only: bool = False,
        must_be_worth_it: bool = False,
        is_accepted: Callable[[], bool] = lambda: True,
    ) -> bool:
        """One transaction: evict some of `victims` (J) and place `want` for the job. False with nothing changed if no
        victims are found, or the limits of the cycle are reached.

        `why`: the reason of the losses; that of `borrowers` (J) is that they give back the reservation. `keeps` (Q×R):
        what the victims' queues keep at least; None: nothing. `must_be_worth_it`: refuse an exchange that lowers the
        measure of the whole: exchanges inside a queue may leave it with less, because gangs differ in size.
        `is_accepted`: whether the state after the exchange is accepted; only with `must_be_worth_it`.
        """
        state, reservation = self._state, self._reservation
        able = state.snapshot.takes_from(job, MOST_FOR_GUARANTEES if why is ReclaimedByGuarantee else 0)
        victims = victims if able is None else victims & able
        if not self._caps_allow(job, want, victims):
            return False
        self._looks += 1
        if self.exhausted:
            return False
        is_open = reservation.is_open_to(job)
        reach = self._reach(victims, keeps)
        if not reach.is_enough(want, reservation.kept if is_open else ()):
            return False
        order = order_of_victims(state.snapshot)
        candidates = [victim for victim in order[victims[order]].tolist() if victim != job]
        # Between queues, and for a growing job, only amounts count, not the number of running jobs.
        running = must_be_worth_it and not state.ledger.holds(job)
        lifted = reservation.lift() if is_open else []
        found: list[int] | None = None
        # Without this bound most searches on a full cluster would fail after hundreds of steps.
        if reach.fits_on_nodes(want):
            self.searches += 1
            self._candidates += len(candidates)
            search = partial(evict_for, state.ledger, job, want, candidates, may_take, surplus_only=surplus_only)
            if must_be_worth_it or self._careful:
                jobs = [job, *candidates]
                search = partial(self._if_worth_it, search, jobs, running=running, is_accepted=is_accepted)
            found = state.ledger.searched(job, search)
        if found is None:
            if lifted:
                reservation.put_back(lifted)
            state.all_was_undone()
            return False
        if lifted:
            reservation.keep()
        state.mark(job)
        self._all_gave(job, found, borrowers, why)
        return True

    def _all_gave(self, job: int, victims: list[int], borrowers: BoolArray | None, why: type[Loss]) -> None:
        lent = [victim for victim in victims if borrowers is not None and borrowers[victim]]
        self.gave(job, lent, GaveBackReservation)
        self.gave(job, [victim for victim in victims if victim not in lent], why)

    def gave(self, job: int, victims: list[int], why: type[Loss]) -> None:
        """Record that these jobs lost something to the job, which has it."""
        self.succeeded = True
        self._reservation.end(job)
        self.given += [Given(victim, job, why) for victim in victims]

    def _if_worth_it(
        self,
        search: Callable[[], list[int] | None],
        jobs: list[int],
        *,
        running: bool,
        is_accepted: Callable[[], bool],
    ) -> list[int] | None:
        """The victims of a search that changes these jobs; None, with nothing changed, if it finds none, or if the
        measure of the whole falls, or the state is not accepted."""
        state = self._state
        before = state.ledger.held_by(jobs)
        # Most searches fail and change nothing.
        worth = state.cached(("worth", running), lambda: self._worth(running=running))
        found = search()
        if found is not None and (self._worth(running=running).is_below(worth) or not is_accepted()):
            state.ledger.return_to(before)
            return None
        return found

    def _worth(self, *, running: bool) -> Worth:
        return self._state.measure.of(self._state.ledger.replicas, running=running)

    def _caps_allow(self, job: int, want: dict[int, int], victims: BoolArray) -> bool:
        """Whether caps allow this much more once these jobs have lost all that they hold."""
        ledger, facts = self._state.ledger, self._state.facts
        if ledger.within_caps(job, want):
            return True
        if (room := ledger.fixed_room(job)) is not None and any(
            amount > 0 and amount > left for amount, left in zip(ledger.amount(want), room, strict=True)
        ):
            return False
        s, need = ledger.snapshot, ledger.amount(want)
        held = s.demand_by_job(ledger.replicas)
        for q in facts.chains[facts.job_queue[job]]:
            inside = np.array([q in facts.chains[other] for other in range(s.queues)] + [False], dtype=np.bool_)
            theirs = held[victims & inside[s.job_queue]].sum(axis=0).tolist()
            for amount, used, given, cap in zip(need, ledger.used[q], theirs, facts.caps[q], strict=True):
                if amount > 0 and used - given + amount > cap:
                    return False
        return True

    def _reach(self, victims: BoolArray, keeps: FloatArray | None) -> Reach:
        """The upper bound of what these jobs could lose."""

        def found() -> Reach:
            ledger = self._state.ledger
            over: FloatArray | None = None
            if keeps is not None:
                over = np.where(keeps > 0, np.maximum(ledger.queue_used - keeps + 1e-6, 0.0), np.inf)
            return Reach(ledger, victims, over)

        return self._state.cached((victims.tobytes(), b"" if keeps is None else keeps.tobytes()), found)

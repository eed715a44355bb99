"""The gang whose turn it is in a cycle, and the capacity reserved for it.

When a turn begins, and how long its reservation lasts, is in `policies/turns.py`.
"""

from __future__ import annotations

import math

import numpy as np

from diflow.allocator.policies.fair.claims import asked_for
from diflow.allocator.policies.fair.shares import dominant
from diflow.allocator.policies.fair.state import State
from diflow.allocator.policies.turns import (
    Turn,
    borrowers,
    largest_late,
    last_older_start,
    lasting_use,
    turn_of,
    waits_since,
)
from diflow.allocator.policies.waiting import Kept, lift, minimum_gang, reserve


class Reservation:
    """`turn`: that of the gang whose turn it is, if it still waits. `first_turn`: the same when the cycle began.
    `kept`: what the ledger reserves for the gang."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.turn: Turn | None = None
        self.first_turn: Turn | None = None
        self.kept: Kept = []

    @property
    def pauses(self) -> bool:
        """Whether this is a pause of the oldest gang's reservation."""
        return self.turn is not None and not self.turn.has_reservation

    def find(self) -> Turn | None:
        """Set the gang whose turn it is: the first by priority and age that has waited long enough, in a queue below
        its share; of equal age the one of the queue that lacks most."""
        self.first_turn = self.turn = self._find()
        return self.turn

    def start(self) -> bool:
        """Start the gang if it fits, whatever its queue's share."""
        assert self.turn is not None
        state, job = self._state, self.turn.job
        if not state.ledger.holds(job) and state.ledger.try_gang(job, minimum_gang(state.ledger, job)) is None:
            return False
        state.mark(job)
        self.turn = None
        return True

    def start_or_keep(self) -> None:
        """Start the gang whose turn it was if it fits by now (it may have been preempted again); else reserve capacity
        for it."""
        if self.first_turn is None or self._state.ledger.holds(self.first_turn.job):
            return
        self.lift()
        self.turn = self.first_turn
        if not self.start():
            self.keep()

    def keep(self) -> None:
        """Reserve capacity for the gang where it lacks least, borrowed capacity counted as free.

        In a pause of the reservation, gangs that fit may use the capacity, but none may preempt for a remainder:
        otherwise the passing of time alone would stop jobs.
        """
        state, turn = self._state, self.turn
        if turn is None or state.settings.reserve_for_seconds <= 0 or self.kept:
            return
        s = state.snapshot
        _, lent = borrowers(s, turn, state.holders() & state.ran)
        borrowed = None
        if lent.any():
            role, node, count = state.ledger.triples()
            mine = lent[s.role_job[role]]
            borrowed = s.usage(role[mine], node[mine], count[mine])
        self.kept = reserve(state.ledger, turn.job, borrowed, lasting=lasting_use(s, turn))

    def lift(self) -> Kept:
        """Lift the reservation; returns what it was."""
        kept, self.kept = self.kept, []
        lift(self._state.ledger, kept)
        return kept

    def put_back(self, kept: Kept) -> None:
        """Reserve again what `lift` returned, after all changes since then were undone."""
        for nodes, amount in kept:
            self._state.ledger.block(nodes, amount)
        self.kept = kept

    def end(self, job: int) -> None:
        """End the reservation if it was for this job, which has started."""
        if self.turn is not None and job == self.turn.job:
            self.lift()
            self.turn = None

    def is_open_to(self, job: int) -> bool:
        """Whether victims may be searched for this job as if there were no reservation: the gang itself, jobs that come
        before it, and preemptible jobs."""
        facts, turn = self._state.facts, self.turn
        return (
            bool(self.kept)
            and turn is not None
            and (
                job == turn.job
                or facts.priority[job] > facts.priority[turn.job]
                or bool(self._state.snapshot.job_preemptible[job])
            )
        )

    def _find(self) -> Turn | None:
        state = self._state
        s, facts, ledger = state.snapshot, state.facts, state.ledger
        holders = state.holders()
        since = waits_since(s)
        waits = state.allowed & ~holders & ~s.modest & (s.now_seconds - since >= state.settings.reserve_after_seconds)
        if not waits.any():
            return None
        rank = np.zeros(s.queues + 1)
        rank[sorted(range(s.queues), key=state.queue_rank)] = np.arange(s.queues)
        order = np.lexsort((np.arange(s.jobs), rank[s.job_queue], since, -s.job_priority))
        late = largest_late(s, holders, state.settings)
        refused: set[tuple[int, int]] = set()
        for job in order[waits[order]].tolist():
            kind = facts.kinds[job], facts.priority[job]
            if kind in refused:
                continue
            gang = minimum_gang(ledger, job)
            large = dominant(ledger.amount(gang), state.total)
            if late < large / 2 and all(ledger.queue_headroom(job, r) >= n for r, n in gang.items()):
                found = turn_of(
                    s,
                    job,
                    waits_since=float(since[job]),
                    size=self._size_to_share(job),
                    settings=state.settings,
                    after=last_older_start(s, job, holders),
                )
                if found is not None:
                    return found
            # Younger jobs of its kind have no turn either.
            refused.add(kind)
        return None

    def _size_to_share(self, job: int) -> float:
        """The gang over its queue's share, the largest over the counted resources and the queue's ancestors; infinite
        if one of them holds its share."""
        state, entitlements = self._state, self._state.entitlements
        queue, need = state.facts.job_queue[job], state.ledger.amount(minimum_gang(state.ledger, job))
        asked = asked_for(need)
        if entitlements.is_full(queue, asked):
            return math.inf
        return max(
            (
                need[r] / entitlements.deserved[q][r]
                for q in state.facts.chains[queue]
                for r in entitlements.counted(q, asked)
            ),
            default=0.0,
        )

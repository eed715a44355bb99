"""One cycle of the fair policies over one ledger: starts, growth, preemption and reclaiming.

A cycle first completes broken gangs, serves guarantees, and gives the oldest gang its turn. Then it runs a list of
steps, which settings select and order:

    allocate   queues in turn, the one furthest below its share first: its first gang, then single replicas
    backfill   idle capacity for all jobs, also of queues above their share: it can be reclaimed
    preempt    inside a queue: from lower priorities, and from the surplus of equal ones, all or nothing
    reclaim    across queues, from those that hold more of their share, all or nothing
"""

from __future__ import annotations

from collections.abc import Sequence

from diflow.allocator.model.plan import Plan
from diflow.allocator.model.reasons import Reason
from diflow.allocator.policies.fair.idle_capacity import Serving, serve
from diflow.allocator.policies.fair.preemption import Preemption
from diflow.allocator.policies.fair.reclaiming import Reclaiming
from diflow.allocator.policies.fair.replacing import Replacing
from diflow.allocator.policies.fair.reservation import Reservation
from diflow.allocator.policies.fair.state import State
from diflow.allocator.policies.fair.transactions import Transactions
from diflow.allocator.policies.fair.waiting_reasons import explain_waiting_jobs
from diflow.allocator.policies.waiting import make_whole, plan_of

GENTLE = ("allocate", "backfill")
"""The steps without preemption."""
BETWEEN_QUEUES = ("allocate", "backfill", "reclaim")
"""The steps that decide between queues."""


class Cycle:
    """One cycle from a new state. `inside_queues`: whether jobs of equal priority share their queue's surplus.
    `careful`: whether an exchange that lowers the measure of the whole is refused."""

    def __init__(self, state: State, *, inside_queues: bool = True, careful: bool = False) -> None:
        self._state, self._inside_queues = state, inside_queues
        self._reservation = Reservation(state)
        self.transactions = Transactions(state, self._reservation, careful=careful)
        self._preemption = Preemption(state, self.transactions)
        self._reclaiming = Reclaiming(state, self.transactions)
        self._replacing = Replacing(state, self.transactions, self._reservation)

    def run(self, steps: Sequence[str], name: str) -> Plan:
        """The plan of these steps, with the reasons of waiting jobs."""
        self._decide(steps)
        explain_waiting_jobs(self._state, self._reservation)
        return plan_of(self._state.ledger, name, self._state.reasons)

    def decided_by(self, steps: Sequence[str], name: str) -> Plan:
        """The plan of these steps, without the reasons of waiting jobs."""
        self._decide(steps)
        return plan_of(self._state.ledger, name, self._state.reasons)

    def reasons(self) -> list[Reason]:
        """The reasons of waiting jobs for the snapshot as it is."""
        self._reservation.find()
        explain_waiting_jobs(self._state, self._reservation)
        return self._state.reasons

    def _decide(self, steps: Sequence[str]) -> None:
        state = self._state
        make_whole(state.ledger, state.order(), state.allowed, state.reasons)
        self._reclaiming.serve_guarantees(takes="reclaim" in steps)
        self._serve_the_oldest(takes="reclaim" in steps or "preempt" in steps)
        for step in steps:
            getattr(self, step)()
        if self.transactions.succeeded:
            # Start waiting jobs that fit in what evictions left over.
            self._reservation.start_or_keep()
            self.backfill()

    def allocate(self) -> None:
        """Place gangs and replicas within their queues' shares."""
        serve(self._state, self._reservation, within_share=True)

    def backfill(self) -> None:
        """Place all jobs that fit in idle capacity."""
        serve(self._state, self._reservation, within_share=False)

    def preempt(self) -> None:
        """Preempt inside each queue, for jobs of higher priority and for new jobs beside jobs that can shrink."""
        self._preemption.by_priority()
        self._share_inside_queues()

    def reclaim(self) -> None:
        """Reclaim across queues, for jobs of queues below their share or guarantee."""
        self._reclaiming.serve_guarantees(takes=True)
        self._reclaiming.for_shares()
        self._replacing.for_shares()
        self._share_inside_queues()

    def _share_inside_queues(self) -> None:
        if self._inside_queues:
            self._preemption.share_surplus()

    def _serve_the_oldest(self, *, takes: bool) -> None:
        """Start the oldest gang whatever its queue's share, if necessary with borrowed capacity; else reserve capacity
        for it."""
        state, turn = self._state, self._reservation.find()
        if turn is None or self._reservation.start():
            return
        # The reservation does not apply to jobs that come before the gang.
        serving, priority = Serving(state, self._reservation, within_share=True), state.facts.priority
        for other in state.in_order(state.allowed & ~state.holders()):
            if priority[other] > priority[turn.job]:
                serving.start(other)
        if not (takes and self._inside_queues and self._reclaiming.for_oldest(turn)):
            self._reservation.keep()

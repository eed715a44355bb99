"""The most that the jobs of each queue may hold together."""

from __future__ import annotations

from diflow.allocator.model.arrays import IntArray
from diflow.allocator.model.ledger import Ledger
from diflow.allocator.model.packing import ANY_NUMBER
from diflow.allocator.model.reasons import QueueShare
from diflow.allocator.model.snapshot import Facts
from diflow.allocator.policies.fair.prepared import share_of
from diflow.allocator.policies.waiting import minimum_gang


class Quota:
    """`most` (Q×R): the quota of each queue; None: no quotas. Jobs without a queue have none."""

    def __init__(self, facts: Facts, most: IntArray | None) -> None:
        self.most, self._facts = most, facts
        self._rows: list[list[int]] | None = None if most is None else most.tolist()

    def admits(self, ledger: Ledger, job: int, want: dict[int, int]) -> bool:
        """Whether the job may get `want` (role → more replicas)."""
        return self._rows is None or self._exceeded(ledger, job, want) < 0

    def slots(self, ledger: Ledger, job: int, role: int) -> int:
        """Replicas of `role` that the job may still get."""
        queue = self._facts.job_queue[job]
        if self._rows is None or queue < 0:
            return ANY_NUMBER
        allowed, used = self._rows[queue], ledger.used[queue]
        left = [(allowed[r] - used[r]) // amount for r, amount in self._facts.asks[self._facts.shape[role]]]
        return max(0, min(left, default=ANY_NUMBER))

    def explain(self, ledger: Ledger, job: int) -> QueueShare | None:
        """The reason of a gang that would exceed its queue's quota; None if it would not."""
        gang, queue = minimum_gang(ledger, job), self._facts.job_queue[job]
        r = self._exceeded(ledger, job, gang)
        if self._rows is None or r < 0:
            return None
        used, most, need = ledger.used[queue][r], self._rows[queue][r], ledger.amount(gang)[r]
        return share_of(ledger.snapshot, queue, r, holds=used, deserves=most, needs=need)

    def _exceeded(self, ledger: Ledger, job: int, want: dict[int, int]) -> int:
        """The first resource whose quota `want` would exceed; -1: none."""
        queue = self._facts.job_queue[job]
        if self._rows is None or queue < 0:
            return -1
        allowed, used = self._rows[queue], ledger.used[queue]
        over = (r for r, more in enumerate(ledger.amount(want)) if more and used[r] + more > allowed[r])
        return next(over, -1)

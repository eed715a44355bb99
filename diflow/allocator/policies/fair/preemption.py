"""Preemption inside queues: by priority, and from the surplus of equal priorities for jobs that start."""

from __future__ import annotations

from collections.abc import Callable

from diflow.allocator.model.arrays import BoolArray
from diflow.allocator.model.reasons import PreemptedForPriority, SharedInQueue
from diflow.allocator.policies.fair.claims import asked_for
from diflow.allocator.policies.fair.shares import ROUNDING, dominant
from diflow.allocator.policies.fair.state import State
from diflow.allocator.policies.fair.transactions import Transactions
from diflow.allocator.policies.fair.victim_filters import RULES, Rule, agreed, keeping
from diflow.allocator.policies.fair.victims import MayTake


class Preemption:
    """Preemption inside each queue."""

    def __init__(self, state: State, transactions: Transactions) -> None:
        self._state, self._transactions = state, transactions

    def by_priority(self) -> None:
        """Preempt for jobs of higher priority."""
        self._transactions.until_none_takes(self._outranking, self._preempt_for)

    def share_surplus(self) -> None:
        """Jobs that held nothing when the cycle began take from what jobs of their queue and priority (or below) hold
        above their minimum: up to their own minimum in any case, beyond it down to equal dominant shares."""
        self._transactions.until_none_takes(self._new_jobs, self._share_with)

    def _outranking(self) -> list[int]:
        """Jobs that want something and have a higher priority than a possible victim.

        The lowest priority of possible victims never falls while higher priorities take from lower ones.
        """
        state, s = self._state, self._state.snapshot
        lowest = s.job_priority.min(initial=_HIGHEST, where=state.holders() & s.job_preemptible)
        return state.in_order(state.short() & state.allowed & (s.job_priority > lowest))

    def _preempt_for(self, job: int) -> bool:
        """One transaction for a job, with victims of lower priority in its queue."""
        state, s = self._state, self._state.snapshot
        rank, queue = state.facts.priority[job], state.facts.job_queue[job]
        lower: BoolArray = state.holders() & s.job_preemptible & (s.job_priority < rank) & (s.job_queue == queue)
        if not lower.any():
            return False
        for want in state.requests(job):
            able, may_take = agreed(self._rules(), job, want, lower)
            if able is not lower and not able.any():
                continue
            grows = state.grows(job)
            if grows:
                may_take = _both(may_take, self._no_larger_gang(want))
            if self._transactions.take(job, want, able, may_take, PreemptedForPriority, must_be_worth_it=grows):
                return True
        return False

    def _new_jobs(self) -> list[int]:
        state = self._state
        return state.in_order(state.short() & state.allowed & ~state.ran) if state.with_surplus().any() else []

    def _share_with(self, job: int) -> bool:
        state, s, facts = self._state, self._state.snapshot, self._state.facts
        givers = state.with_surplus() & (s.job_queue == facts.job_queue[job]) & (s.job_priority <= facts.priority[job])
        givers[job] = False
        if not givers.any():
            return False
        before = [list(state.ledger.used[q]) for q in facts.chains[facts.job_queue[job]]]
        for want in state.requests(job):
            able, may_take = agreed(self._rules(), job, want, givers)
            if state.ledger.holds(job):
                may_take = _both(may_take, self._down_to_equal(job, want))
            if state.entitlements.guaranteed:
                may_take = _both(may_take, self._with_guarantees(job, want, before))
            if self._transactions.take(
                job,
                want,
                able,
                may_take,
                SharedInQueue,
                surplus_only=True,
                must_be_worth_it=True,
                is_accepted=self._takes_nothing_beyond_share(job, want, before),
            ):
                return True
        return False

    def _rules(self) -> list[Rule]:
        """The victim filters, for the current state of the ledger."""
        state = self._state
        return state.cached("rules", lambda: [RULES[name](state.ledger) for name in state.settings.victims])

    def _no_larger_gang(self, want: dict[int, int]) -> MayTake:
        """Whether a gang that would be stopped is no larger than the growth of a running job."""
        state = self._state
        most = dominant(state.ledger.amount(want), state.total) + _SAME
        return lambda victim, amount: state.has_surplus(victim) or dominant(amount, state.total) <= most

    def _down_to_equal(self, job: int, want: dict[int, int]) -> MayTake:
        """Whether a victim keeps at least the dominant share that the job ends with."""
        ledger, total = self._state.ledger, self._state.total
        return keeping(ledger, total, dominant(ledger.held_amount(job, want), total) - _SAME)

    def _takes_nothing_beyond_share(
        self, job: int, want: dict[int, int], before: list[list[int]]
    ) -> Callable[[], bool]:
        """Whether the queue and its ancestors hold no more than `before` of any contended resource that is requested,
        or no more than they deserve: other queues would reclaim it, and the exchange would repeat forever."""
        entitlements, ledger = self._state.entitlements, self._state.ledger
        chain, asked = entitlements.chains[self._state.facts.job_queue[job]], asked_for(ledger.amount(want))

        def accepted() -> bool:
            return all(
                ledger.used[q][r] <= max(had[r], entitlements.deserved[q][r] + ROUNDING)
                for q, had in zip(chain, before, strict=True)
                for r in entitlements.counted(q, asked)
            )

        return accepted

    def _with_guarantees(self, job: int, want: dict[int, int], before: list[list[int]]) -> MayTake:
        """Whether the queue and its ancestors keep their guarantees of what is contended: replicas differ in size."""
        entitlements, ledger = self._state.entitlements, self._state.ledger
        chain, need = entitlements.chains[self._state.facts.job_queue[job]], ledger.amount(want)
        return lambda _victim, amount: entitlements.keep_guarantees_instead(chain, amount, need, before)


def _both(one: MayTake, other: MayTake) -> MayTake:
    return lambda victim, amount: one(victim, amount) and other(victim, amount)


_HIGHEST = 2**62
_SAME = 1e-9
"""Dominant shares that differ by less are equal."""

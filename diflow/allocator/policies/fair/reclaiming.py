"""Reclaiming across queues: for guarantees, for shares, and for the oldest gang. The rule is in `claims.py`."""

from __future__ import annotations

from diflow.allocator.model.reasons import Reclaimed, ReclaimedByGuarantee
from diflow.allocator.policies.fair.claims import Claim
from diflow.allocator.policies.fair.state import State
from diflow.allocator.policies.fair.transactions import Transactions
from diflow.allocator.policies.fair.victims import MayTake
from diflow.allocator.policies.turns import Turn, borrowers
from diflow.allocator.policies.waiting import minimum_gang


class Reclaiming:
    """Reclaiming from other queues."""

    def __init__(self, state: State, transactions: Transactions) -> None:
        self._state, self._transactions = state, transactions

    def serve_guarantees(self, *, takes: bool) -> None:
        """Place gangs and replicas within their queues' guarantees, before all others. `takes`: by reclaiming too."""
        if self._state.entitlements.guaranteed:
            while not self._transactions.exhausted and self._serve_guarantees_once(takes=takes):
                pass

    def _serve_guarantees_once(self, *, takes: bool) -> bool:
        """Serve each job once; returns whether any got something."""
        state, progress = self._state, False
        for job in state.wanting():
            for want in state.requests(job):
                if not state.entitlements.lacks_guarantee(state.facts.job_queue[job], state.ledger.amount(want)):
                    continue
                if state.ledger.try_gang(job, want) is not None:
                    state.mark(job)
                    progress = True
                elif takes and self._reclaim(job, want, by_guarantee=True):
                    progress = True
                if progress:
                    break
        return progress

    def for_shares(self) -> None:
        """Reclaim for jobs of queues below their share."""
        self._transactions.until_none_takes(self._poorest_first, self._reclaim_for)

    def _poorest_first(self) -> list[int]:
        """Jobs that want something, those of the queue with the smallest part of its share first."""
        state = self._state
        if not (state.holders() & state.snapshot.job_preemptible).any():
            return []
        wanting, queue = state.wanting(), state.facts.job_queue
        ranks = {q: state.queue_rank(q) for q in {queue[job] for job in wanting}}
        return sorted(wanting, key=lambda job: ranks[queue[job]])

    def _reclaim_for(self, job: int) -> bool:
        return any(self._reclaim(job, want, by_guarantee=False) for want in self._state.requests(job))

    def _reclaim(self, job: int, want: dict[int, int], *, by_guarantee: bool) -> bool:
        """One transaction across queues."""
        state, s = self._state, self._state.snapshot
        claim = Claim(
            state.entitlements,
            state.facts.job_queue[job],
            state.ledger.amount(want),
            priority=state.facts.priority[job],
            by_guarantee=by_guarantee,
            grows_by=sum(want.values()) if state.grows(job) else 0,
        )
        gives = claim.possible_victims()
        if not gives.any():
            return False
        able = state.holders() & s.job_preemptible & gives[s.job_queue]
        if not able.any():
            return False
        may_take = claim.may_take if by_guarantee else self._unless_stopped_often(claim.may_take)
        why = ReclaimedByGuarantee if by_guarantee else Reclaimed
        return self._transactions.take(job, want, able, may_take, why, keeps=claim.floor())

    def for_oldest(self, turn: Turn) -> bool:
        """Start the gang with what jobs of its queue borrowed since its turn began, and what other queues hold above
        their shares, if both together are enough."""
        state, s, job = self._state, self._state.snapshot, turn.job
        queue, rank, want = state.facts.job_queue[job], state.facts.priority[job], minimum_gang(state.ledger, job)
        holds = state.holders() & state.ran
        lent, wholly = (which & (s.job_queue == queue) for which in borrowers(s, turn, holds))
        if not lent.any():
            return False
        claim = Claim(state.entitlements, queue, state.ledger.amount(want), priority=rank)
        able = lent | (holds & s.job_preemptible & claim.possible_victims()[s.job_queue])

        def may_take(victim: int, amount: list[int]) -> bool:
            if lent[victim]:
                return bool(wholly[victim]) or state.has_surplus(victim)
            return claim.may_take(victim, amount)

        agreed = self._unless_stopped_often(may_take)
        return self._transactions.take(job, want, able, agreed, Reclaimed, borrowers=lent, must_be_worth_it=True)

    def _unless_stopped_often(self, may_take: MayTake) -> MayTake:
        """A filter for shares and turns: a job that was moved `most_stops` times keeps its minimum."""
        state, most = self._state, self._state.settings.most_stops
        restarts: list[int] = state.snapshot.job_restarts.tolist()

        def agrees(victim: int, amount: list[int]) -> bool:
            return (restarts[victim] < most or state.has_surplus(victim)) and may_take(victim, amount)

        return agrees

"""The reasons of waiting jobs, from the state after a plan.

The ledger is the state after the plan without reservations, so a reader can count every number in the cluster and the
plan. Nothing is decided here. Of several limits that bind, the first of these is reported:

1. a cap of the job's queue or an ancestor;
2. a reservation: for the job itself, or for another job if it would fit without it;
3. guarantees: its queue is below its own, and others hold too little above theirs;
4. its share: a queue of its chain holds its share while others could give;
5. the shares of others, which hold too little above them;
6. free capacity.
"""

from __future__ import annotations

import numpy as np

from diflow.allocator.model.arrays import FloatArray
from diflow.allocator.model.ledger import Ledger
from diflow.allocator.model.reasons import (
    DoesNotFit,
    GuaranteedElsewhere,
    GuaranteeHeld,
    ItsTurn,
    NoSurplus,
    QueueShare,
    Reason,
    Reserved,
    TakesTooLong,
)
from diflow.allocator.policies.fair.claims import Entitlements, asked_for
from diflow.allocator.policies.fair.prepared import share_of
from diflow.allocator.policies.fair.reservation import Reservation
from diflow.allocator.policies.fair.state import State
from diflow.allocator.policies.turns import Turn
from diflow.allocator.policies.waiting import (
    Kept,
    best_room,
    cap_that_binds,
    explain_impossible,
    minimum_gang,
    needed_and_fitting,
    worst_role,
)


def explain_waiting_jobs(state: State, reservation: Reservation) -> None:
    """Set the reasons of waiting jobs. Lifts the reservation."""
    facts, ledger = state.facts, state.ledger
    reservation.keep()
    pauses, turn, kept = reservation.pauses, reservation.turn, reservation.lift()
    binding = Binding(
        ledger,
        state.entitlements,
        turn=turn,
        kept=[] if pauses else kept,
        within_share="backfill" not in state.settings.steps,
    )
    explained: dict[int, Reason] = {}
    for j in np.flatnonzero(~state.holders()).tolist():
        if (reason := state.feasible.impossible(j)) is not None:
            state.reasons[j] = explain_impossible(ledger, j, reason)
        elif facts.pinned[j] or (turn is not None and turn.job == j):
            state.reasons[j] = binding.of(j)
        else:
            kind = facts.kinds[j]
            if kind not in explained:
                explained[kind] = binding.of(j)
            state.reasons[j] = explained[kind]


class Binding:
    """What prevents jobs from starting in this ledger.

    `turn`, `kept`: that of the gang with a reservation, and the reservation, which the ledger does not contain.
    `within_share`: whether jobs start only within their queues' shares, even if there is free capacity.
    """

    def __init__(
        self, ledger: Ledger, entitlements: Entitlements, *, turn: Turn | None, kept: Kept, within_share: bool
    ) -> None:
        self._ledger, self._entitlements, self._within_share = ledger, entitlements, within_share
        self._turn = turn if kept else None
        self._kept = kept
        self._children = _children(entitlements.chains)
        self._held = self._stoppable()
        self._above: dict[bool, list[list[float]]] = {}

    def of(self, job: int) -> Reason:
        """The reason for which the job waits."""
        ledger = self._ledger
        if ledger.work.is_spent(job):
            return TakesTooLong()
        cap = cap_that_binds(ledger, job)
        if cap is not None:
            return cap
        turn = self._turn
        need, fits = needed_and_fitting(ledger, job)
        if turn is not None and turn.job == job:
            return ItsTurn(need, self._fits_in_kept(job), self._left(turn))
        gang = minimum_gang(ledger, job)
        if ledger.fits(job, gang):
            if turn is not None:
                return Reserved(need, fits, self._left(turn), ledger.snapshot.job_names[turn.job])
            share = self._above_share(job) if self._within_share else None
            return share or DoesNotFit(need, fits)
        return self._share(job) or DoesNotFit(need, fits)

    # -- free capacity --

    def _left(self, turn: Turn) -> float:
        return turn.until - self._ledger.snapshot.now_seconds

    def _fits_in_kept(self, job: int) -> int:
        """Replicas of the role named by `needed_and_fitting` that fit in the reservation now."""
        ledger = self._ledger
        role = worst_role(ledger, job)
        _, amounts = self._kept[ledger.roles_of(job).index(role)]
        asks = ledger.facts.asks[ledger.shape(role)]
        rows: list[list[int]] = amounts.tolist()
        return sum(min((row[r] // amount for r, amount in asks), default=0) for row in rows)

    # -- shares --

    def _share(self, job: int) -> Reason | None:
        """The guarantee or share that binds, if others hold something that could be taken."""
        ledger, entitlements = self._ledger, self._entitlements
        need = ledger.amount(minimum_gang(ledger, job))
        asked = asked_for(need)
        chain = entitlements.chains[ledger.job_queue[job]]
        if (held := self._held_by_fixed_jobs(job, chain, need)) is not None:
            return held
        elsewhere = [r for r in asked if self._others(chain, self._held, r) > 0]
        counted = [r for r in elsewhere if any(r in entitlements.counted(q, asked) for q in chain)]
        if not counted:
            return None
        lacks = {r: lack for r, lack in self._lacks(job, need).items() if r in counted}
        for q in chain if entitlements.guaranteed else ():
            if entitlements.covers(q, need):
                short = self._too_little(chain, lacks, guarantees=True)
                if short is not None:
                    return GuaranteedElsewhere(ledger.snapshot.queue_names[q], *short)
        for q in chain:
            for r in entitlements.counted(q, asked):
                used, share = ledger.used[q][r], entitlements.deserved[q][r]
                if used >= share * _FULL and self._others([q], self._held, r) > 0:
                    return share_of(ledger.snapshot, q, r, holds=used, deserves=share, needs=need[r])
        short = self._too_little(chain, lacks, guarantees=False)
        return None if short is None else NoSurplus(*short)

    def _held_by_fixed_jobs(self, job: int, chain: list[int], need: list[int]) -> GuaranteeHeld | None:
        """The guarantee that covers the gang, if others hold so much that it cannot be met by stopping jobs."""
        s, entitlements = self._ledger.snapshot, self._entitlements
        covering = [q for q in chain if entitlements.guaranteed and entitlements.covers(q, need)]
        if not covering:
            return None
        fixed = self._fixed()
        for r, lack in sorted(self._lacks(job, need).items(), key=lambda item: -item[1]):
            others = {q: fixed[q][r] for q in range(s.queues) if q not in chain and fixed[q][r] > 0}
            if others and self._others(chain, self._held, r) < lack:
                where = tuple(dict.fromkeys(s.queue_names[q].partition("/")[0] for q in others))
                return GuaranteeHeld(s.queue_names[covering[0]], s.resources[r], lack, sum(others.values()), where)
        return None

    def _fixed(self) -> list[list[int]]:
        """Q×R: what jobs of each queue itself hold that are not preemptible."""
        s = self._ledger.snapshot
        out = np.zeros((s.queues, len(s.resources)), dtype=np.int64)
        mine = ~s.job_preemptible & (s.job_queue >= 0)
        np.add.at(out, s.job_queue[mine], s.demand_by_job(self._ledger.replicas)[mine])
        rows: list[list[int]] = out.tolist()
        return rows

    def _above_share(self, job: int) -> QueueShare | None:
        """The first queue of the chain that the gang would lift above its share."""
        ledger, entitlements = self._ledger, self._entitlements
        need = ledger.amount(minimum_gang(ledger, job))
        asked = asked_for(need)
        for q in entitlements.chains[ledger.job_queue[job]]:
            for r in entitlements.counted(q, asked):
                used, share = ledger.used[q][r], entitlements.deserved[q][r]
                if used + need[r] > share:
                    return share_of(ledger.snapshot, q, r, holds=used, deserves=share, needs=need[r])
        return None

    def _too_little(
        self, chain: list[int], lacks: dict[int, int], *, guarantees: bool
    ) -> tuple[str, int, float] | None:
        """(resource, what the gang lacks, what others could lose) for the resource that is most short; None if others
        hold enough above their guarantees or shares."""
        most: tuple[str, int, float] | None = None
        for r, lack in lacks.items():
            above = self._others(chain, self._surplus(guarantees=guarantees), r)
            if above < lack - _ROUNDING and (most is None or (lack - above) * most[1] > (most[1] - most[2]) * lack):
                most = self._ledger.snapshot.resources[r], lack, above
        return most

    def _lacks(self, job: int, need: list[int]) -> dict[int, int]:
        """By resource: the gang's request minus what is idle on eligible nodes, if positive; of a gang that requires a
        domain, on those of the best one, and of one that is confined to a pool, on those of the pool."""
        ledger, facts = self._ledger, self._ledger.facts
        nodes = np.zeros(ledger.snapshot.nodes, dtype=np.bool_)
        for role in facts.roles_of[job]:
            pool = ledger.pool_of.get(role)
            eligible = facts.eligible(facts.shape[role])
            nodes |= eligible if pool is None else eligible & (ledger.snapshot.node_pool == pool)
        there = best_room(ledger, job)
        if there is not None:
            nodes &= there
        idle = np.maximum(ledger.free[nodes], 0).sum(axis=0).tolist()
        return {r: amount - idle[r] for r, amount in enumerate(need) if amount > idle[r]}

    def _others(self, chain: list[int], amounts: list[list[float]], resource: int) -> float:
        """The sum of `amounts` over the siblings of these queues."""
        out = 0.0
        for q in chain:
            above = self._entitlements.chains[q][1:2]
            out += sum(amounts[other][resource] for other in self._children[above[0] if above else -1] if other != q)
        return out

    def _surplus(self, *, guarantees: bool) -> list[list[float]]:
        """Q×R: what preemptible jobs hold above their queues' guarantees or shares."""
        if guarantees not in self._above:
            entitlements = self._entitlements
            keeps = np.array(entitlements.guarantee if guarantees else entitlements.deserved, dtype=np.float64)
            over = np.maximum(self._ledger.queue_used - keeps, 0.0)
            over[over < _ROUNDING] = 0.0
            self._above[guarantees] = _upwards(self._own(), over, entitlements.chains)
        return self._above[guarantees]

    def _stoppable(self) -> list[list[float]]:
        """Q×R: what preemptible jobs hold, in each queue and its descendants."""
        own = self._own()
        return _upwards(own, np.full(own.shape, np.inf), self._entitlements.chains)

    def _own(self) -> FloatArray:
        s = self._ledger.snapshot
        held = s.demand_by_job(self._ledger.replicas)
        out = np.zeros((s.queues, len(s.resources)))
        mine = s.job_preemptible & (s.job_queue >= 0)
        np.add.at(out, s.job_queue[mine], held[mine])
        return out


def _children(chains: list[list[int]]) -> dict[int, list[int]]:
    """The children of each queue; of -1: the queues at the top."""
    out: dict[int, list[int]] = {q: [] for q in range(-1, len(chains))}
    for q, chain in enumerate(chains):
        out[chain[1] if len(chain) > 1 else -1].append(q)
    return out


def _upwards(
    own: FloatArray,
    most: FloatArray,
    chains: list[list[int]],
) -> list[list[float]]:
    """Q×R: sums over each queue and its descendants, each limited to `most`."""
    out = own.copy()
    for q in sorted(range(len(chains)), key=lambda q: -len(chains[q])):
        out[q] = np.minimum(out[q], most[q])
        above = chains[q][1:2]
        if above and len(chains[above[0]]) < len(chains[q]):
            out[above[0]] += out[q]
    rows: list[list[float]] = out.tolist()
    return rows


_FULL = 1 - 1e-9
_ROUNDING = 1e-6

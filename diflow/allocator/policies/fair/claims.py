"""The rule by which one queue reclaims from another.

Two queues are compared below their nearest common ancestor, because everything above is the same for both. Only
resources that are requested and contended there count: of any other resource each queue deserves its demand, and could
not be taken below that.

A queue below its share may take from another

* what that one holds above its share, of any counted resource; or
* what leaves it better off than the claimant is now (leximin), if the claimant gains as much of its share as the other
  one loses: otherwise shares that are not whole replicas would never be reached. A job that grows does so by one
  replica at a time, stops no gang, and leaves its queue within its share: it would lose anything beyond that again as
  soon as jobs of the other queue share among themselves, and so on forever.

A job that is stopped may start again at once, in place of jobs of lower priority of its own queue. Then these are what
the queue loses, and the exchange is judged by that as well: otherwise the queue could lose its guarantee, or have less
than the claimant's, which would take from it in turn, and so on forever.

A queue below its guarantee may take everything above the guarantees of others: a guarantee ranks above any surplus.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray
from diflow.allocator.model.ledger import Ledger
from diflow.allocator.policies.fair.shares import ROUNDING, Shares, value_of
from diflow.allocator.policies.waiting import minimum_gang

Resources = tuple[int, ...]
"""Indices of resources."""


def asked_for(need: Sequence[int]) -> Resources:
    """The resources of which this amount (R) is positive."""
    return tuple(r for r, amount in enumerate(need) if amount > 0)


class Entitlements:
    """Held over deserved shares of queues, by counted resources, in the current state of the ledger."""

    def __init__(self, ledger: Ledger, shares: Shares) -> None:
        s = ledger.snapshot
        self.ledger = ledger
        self.deserved: list[list[float]] = shares.deserved.tolist()
        self.guarantee: list[list[int]] = s.queue_guarantee.tolist()
        self.guaranteed = bool(s.queue_guarantee.any())
        self._contended: list[list[bool]] = shares.contended.tolist()
        self._total = ledger.facts.total
        self._most = max(self._total)
        self._asked: dict[tuple[int, Resources], Resources] = {}
        self.chains = ledger.facts.chains

    def apart(self, one: int, other: int) -> tuple[list[int], list[int]]:
        """The two queues, each with its ancestors up to below the nearest common one. One of them is empty if it
        contains the other."""
        ours, theirs = self.chains[one], self.chains[other]
        return [q for q in ours if q not in theirs], [q for q in theirs if q not in ours]

    def counted(self, queue: int, asked: Resources) -> Resources:
        """The requested resources that are contended between this queue and its siblings."""
        found = self._asked.get((queue, asked))
        if found is None:
            chain = self.chains[queue]
            row = self._contended[chain[1] if len(chain) > 1 else -1]
            found = self._asked[queue, asked] = tuple(r for r in asked if row[r])
        return found

    def ratio(self, queue: int, counted: Resources, less: Sequence[int] | None = None) -> float:
        """What the queue holds, minus `less`, over its share: the largest over the counted resources.

        0 if none counts; infinite if it holds a resource of which it deserves nothing. A resource that it neither
        deserves nor holds does not count: a queue that uses no GPUs gives no cpu to queues that do.
        """
        used, share, most = self.ledger.used[queue], self.deserved[queue], 0.0
        for r in counted:
            if not used[r]:
                continue
            if share[r] <= ROUNDING:
                return math.inf
            held = used[r] - less[r] if less is not None else used[r]
            most = max(most, held / share[r])
        return most

    def claimed(self, queue: int, asked: Resources) -> float:
        """As `ratio`, for a queue that requests all of these: infinite if it deserves nothing of one."""
        counted = self.counted(queue, asked)
        if any(self.deserved[queue][r] <= ROUNDING for r in counted):
            return math.inf
        return self.ratio(queue, counted)

    def weight(self, queue: int, counted: Resources) -> float:
        """The queue's share as a fraction of the cluster, the largest over the counted resources."""
        return max((self.deserved[queue][r] / self._total[r] for r in counted), default=0.0)

    def rank(self, queue: int, counted: Resources) -> tuple[float, float]:
        """Sort key among siblings: by held over deserved, smallest first, queues that deserve nothing last; then by
        deserved share, largest first."""
        weight = self.weight(queue, counted)
        return math.inf if counted and weight * self._most <= ROUNDING else self.ratio(queue, counted), -weight

    def is_full(self, queue: int, asked: Resources) -> bool:
        """Whether the queue, or an ancestor, holds its share of a requested and contended resource."""
        return any(self.claimed(q, asked) >= 1 - _SAME for q in self.chains[queue])

    def stays_within(self, queues: Sequence[int], need: Sequence[int], asked: Resources) -> bool:
        """Whether all these queues stay within their shares with `need` more."""
        for q in queues:
            used, share = self.ledger.used[q], self.deserved[q]
            if any(used[r] + need[r] > share[r] + ROUNDING for r in self.counted(q, asked)):
                return False
        return True

    def lacks_guarantee(self, queue: int, need: Sequence[int]) -> bool:
        """Whether the queue, or an ancestor, has a guarantee that covers `need` more."""
        return self.guaranteed and any(self.covers(q, need) for q in self.chains[queue])

    def covers(self, queue: int, need: Sequence[int]) -> bool:
        """Whether the queue's own guarantee covers `need` more of any contended resource."""
        used, sure = self.ledger.used[queue], self.guarantee[queue]
        asked = asked_for(need)
        return any(used[r] + need[r] <= sure[r] for r in self.counted(queue, asked))

    def keep_guarantees(self, queues: Sequence[int], less: Sequence[int], asked: Resources) -> bool:
        """Whether these queues, each the parent of the one before it, keep their guarantees when they lose `less`: of
        requested resources that are contended there or further up, and of all that are not requested."""
        counted = {r for r, amount in enumerate(less) if amount and r not in asked}
        for q in reversed(queues):
            counted.update(self.counted(q, asked))
            used, sure = self.ledger.used[q], self.guarantee[q]
            if any(sure[r] and less[r] and used[r] - less[r] < sure[r] for r in counted):
                return False
        return True

    def keep_guarantees_instead(
        self, chain: Sequence[int], less: Sequence[int], more: Sequence[int], before: Sequence[Sequence[int]]
    ) -> bool:
        """Whether a queue and all its ancestors (`chain`) keep what they are guaranteed of what they held `before`,
        when they lose `less` and get `more`: of resources that are contended there or further up."""
        lost = asked_for(less)
        counted: set[int] = set()
        for q, had in zip(reversed(chain), reversed(before), strict=True):
            counted.update(self.counted(q, lost))
            used, sure = self.ledger.used[q], self.guarantee[q]
            if any(used[r] - less[r] + more[r] < min(sure[r], had[r]) for r in counted):
                return False
        return True

    def kept_guarantees(self, queues: Sequence[int], before: Sequence[Sequence[int]]) -> bool:
        """Whether these queues hold what they are guaranteed of what they held `before` (Q×R)."""
        return not self.guaranteed or all(
            now >= min(sure, had)
            for q in queues
            for now, sure, had in zip(self.ledger.used[q], self.guarantee[q], before[q], strict=True)
        )

    def met(self, queue: int, counted: Resources, more: Sequence[int] | None = None, sign: int = 1) -> float:
        """The value of the met part of the queue's share, with `more` added (or, by `sign`, removed), of the cluster:
        by the counted resource with the largest held over deserved."""
        used, share = self.ledger.used[queue], self.deserved[queue]
        ratio = weight = 0.0
        for r in counted:
            if share[r] > ROUNDING:
                held = used[r] + (sign * more[r] if more is not None else 0)
                ratio, weight = max(ratio, held / share[r]), max(weight, share[r] / self._total[r])
        return value_of(min(1.0, ratio)) * weight


class Claim:
    """The claim of one job against other queues: `need` (R) more for a job of `queue` with this priority. `grows_by`:
    the replicas by which a running job grows.

    Valid for the state of the ledger when it is made, until its search ends.
    """

    def __init__(
        self,
        entitlements: Entitlements,
        queue: int,
        need: list[int],
        *,
        priority: int,
        by_guarantee: bool = False,
        grows_by: int = 0,
    ) -> None:
        self._s, self._queue, self._need, self._grows_by = entitlements, queue, need, grows_by
        self._priority, self._by_guarantee = priority, by_guarantee
        self.asked: Resources = asked_for(need)
        chain = entitlements.chains[queue]
        self._ratios = [entitlements.claimed(q, self.asked) for q in chain]
        self._sides: dict[int, _Side | None] = {}
        self._used_before = {q: list(entitlements.ledger.used[q]) for q in chain} if entitlements.guaranteed else {}
        self._met_before: dict[int, float] = {}
        """Met shares of the victims' queues before the search, by the queue below the common ancestor."""
        self._lower: dict[tuple[int, int], list[int]] = {}

    def possible_victims(self) -> BoolArray:
        """Q+1: queues from which something might be taken; the last row (jobs without a queue) is false."""
        s = self._s.ledger.snapshot
        out = np.zeros(s.queues + 1, dtype=np.bool_)
        # A queue that has its share claims nothing: its own share counts at every level.
        if self._by_guarantee or self._ratios[0] < 1 - _SAME:
            for q in range(s.queues):
                out[q] = self._side(q) is not None
        return out

    def floor(self) -> FloatArray:
        """Q×R: what queues keep at least of requested resources: infinite if they keep all, 0 if they may lose all."""
        s = self._s.ledger.snapshot
        out = np.zeros((s.queues, len(s.resources)))
        for q in range(s.queues):
            side = self._side(q)
            if side is None:
                out[q] = np.inf
            elif not self._by_guarantee and len(counted := self._s.counted(side.below[0], self.asked)) == 1:
                out[q, counted[0]] = side.least * self._s.deserved[q][counted[0]]
        return out

    def may_take(self, victim: int, amount: list[int]) -> bool:
        """Whether `amount` (R) may be taken from this job."""
        facts = self._s.ledger.facts
        side = self._side(facts.job_queue[victim])
        if side is None or not side.gives or not self._keeps_guarantees(side, amount):
            return False
        if self._by_guarantee:
            return True
        left = self._left(side, amount)
        is_below = left < 1 - _SAME
        return (
            not (is_below and (left <= side.least + _SAME or facts.priority[victim] > self._priority))
            and not (self._stops(victim, amount) and not self._may_be_displaced(side, victim))
            and not (is_below and not (self._is_modest(victim, amount) and self._is_worth(side, amount)))
        )

    def is_met_by(self, victims: Sequence[int], before: Sequence[Sequence[int]], met: float) -> bool:
        """Whether the queues share better in the present state, in which the claimant and others have started in the
        place of victims of one queue, than when they held `before` (Q×R), which `met` (as `met_beside`) of their
        shares: the rules of `may_take`, for the outcome."""
        entitlements, facts = self._s, self._s.ledger.facts
        side = self._side(facts.job_queue[victims[0]])
        if side is None or not entitlements.kept_guarantees([*side.below, *side.above], before):
            return False
        left = self._left(side, [0] * len(self._need))
        if left >= 1 - _SAME:
            return True
        if left <= side.least + _SAME or any(facts.priority[victim] > self._priority for victim in victims):
            return False
        return self.met_beside(victims[0]) >= met - _SAME

    def met_beside(self, victim: int) -> float:
        """The met shares of the claimant's queue, the victim's, and their siblings, below the common ancestor."""
        entitlements, side = self._s, self._side(self._s.ledger.facts.job_queue[victim])
        parent = entitlements.chains[side.mine][1:2] if side is not None else []
        siblings = (q for q, chain in enumerate(entitlements.chains) if chain[1:2] == parent)
        return sum(entitlements.met(q, entitlements.counted(q, self.asked)) for q in siblings)

    def _left(self, side: _Side, amount: Sequence[int]) -> float:
        """Held over deserved of the victim's queues without `amount` (R), the smallest of them; at most 1."""
        entitlements, lowest = self._s, 1.0
        for q in side.below:
            counted = entitlements.counted(q, self.asked)
            if counted:
                # Resources that the victim does not lose do not matter for this exchange.
                given = tuple(r for r in counted if amount[r] > 0) or counted
                lowest = min(lowest, entitlements.ratio(q, given, amount))
        return lowest

    def _is_modest(self, victim: int, amount: list[int]) -> bool:
        """Whether a growing job takes one replica and stops no gang."""
        return not self._grows_by or (self._grows_by == 1 and not self._stops(victim, amount))

    def _stops(self, victim: int, amount: list[int]) -> bool:
        return amount == self._s.ledger.held_amount(victim)

    def _may_be_displaced(self, side: _Side, victim: int) -> bool:
        """Whether the victim's queues could also lose the jobs in whose place it would start again, if there are any:
        the job with the fewest replicas that holds the victim's minimum of the counted resources, or several."""
        entitlements, ledger = self._s, self._s.ledger
        need = ledger.amount(minimum_gang(ledger, victim))
        counted = [r for r in entitlements.counted(side.mine, self.asked) if need[r] > 0]
        lost = [0] * len(need)
        roles_of, count = ledger.facts.roles_of, ledger.count
        for job in sorted(self._jobs_below(victim), key=lambda job: sum(count[role] for role in roles_of[job])):
            held = ledger.held_amount(job)
            alone = all(held[r] >= need[r] for r in counted)
            lost = held if alone else [a + b for a, b in zip(lost, held, strict=True)]
            if alone or all(lost[r] >= need[r] for r in counted):
                return self._keeps_guarantees(side, lost) and self._left(side, lost) > side.least + _SAME
        return True

    def _jobs_below(self, victim: int) -> list[int]:
        """The jobs of lower priority in the victim's queue that can be stopped."""
        s, facts = self._s.ledger.snapshot, self._s.ledger.facts
        queue, priority = key = facts.job_queue[victim], facts.priority[victim]
        if key not in self._lower:
            able = s.job_preemptible & ~s.job_pinned & (s.job_queue == queue) & (s.job_priority < priority)
            self._lower[key] = np.flatnonzero(able).tolist()
        return self._lower[key]

    def _keeps_guarantees(self, side: _Side, amount: list[int]) -> bool:
        """Whether the victim's queues and the common ancestors keep their guarantees in this exchange."""
        return not self._s.guaranteed or (
            self._s.keep_guarantees(side.below, amount, self.asked) and self._is_sure_above(side, amount)
        )

    def _is_sure_above(self, side: _Side, amount: list[int]) -> bool:
        """Whether the common ancestors keep their guarantees in this exchange: of counted resources, and of those that
        the victim loses although they were not requested."""
        entitlements = self._s
        not_asked = [r for r, given in enumerate(amount) if given and r not in self.asked]
        for q in side.above:
            used, sure, before = entitlements.ledger.used[q], entitlements.guarantee[q], self._used_before[q]
            for r in (*entitlements.counted(q, self.asked), *not_asked):
                if used[r] - amount[r] + self._need[r] < min(sure[r], before[r]):
                    return False
        return True

    def _is_worth(self, side: _Side, amount: list[int]) -> bool:
        """Whether the victims' queues, with this exchange, lose no more of their shares than the claimant's gains."""
        entitlements = self._s
        mine = entitlements.counted(side.mine, self.asked)
        gain = entitlements.met(side.mine, mine, self._need) - entitlements.met(side.mine, mine)
        loss = 0.0
        for top, before in self._met_before.items():
            less = amount if top == side.below[-1] else None
            loss += before - entitlements.met(top, entitlements.counted(top, self.asked), less, -1)
        return loss <= gain + _SAME

    def _side(self, queue: int) -> _Side | None:
        if queue < 0:
            return None
        if queue not in self._sides:
            self._sides[queue] = self._make_side(queue)
        return self._sides[queue]

    def _make_side(self, queue: int) -> _Side | None:
        entitlements = self._s
        # No exchange with the queue itself, its ancestors and its descendants.
        ours, below = entitlements.apart(self._queue, queue)
        if not ours or not below:
            return None
        above, mine = entitlements.chains[queue][len(below) :], ours[-1]
        if self._by_guarantee:
            # Only a guarantee below the common ancestor distinguishes the two.
            return _Side(below, above, mine, 0.0) if any(entitlements.covers(q, self._need) for q in ours) else None
        least = max(self._ratios[: len(ours)])
        if not entitlements.counted(mine, self.asked) or least >= 1 - _SAME:
            return None
        ratios = [entitlements.ratio(q, counted) for q in below if (counted := entitlements.counted(q, self.asked))]
        if any(ratio <= least + _SAME for ratio in ratios):
            return None
        self._met_before[below[-1]] = entitlements.met(below[-1], entitlements.counted(below[-1], self.asked))
        gives = not self._grows_by or entitlements.stays_within(ours, self._need, self.asked)
        if self._grows_by > 1 and any(ratio < 1 - _SAME for ratio in ratios):
            # Growth by several replicas takes nothing from a queue below its share.
            gives = False
        return _Side(below, above, mine, least, gives=gives)


class _Side:
    """A victim's side of an exchange: its queues below the common ancestor, the common ancestors, the claimant's queue
    below them, the claimant's current held over deserved share (`least`), and whether anything may be taken (`gives`).
    """

    __slots__ = ("above", "below", "gives", "least", "mine")

    def __init__(self, below: list[int], above: list[int], mine: int, least: float, *, gives: bool = True) -> None:
        self.below, self.above, self.mine, self.least, self.gives = below, above, mine, least, gives


_SAME = 1e-9
"""Ratios that differ by less are equal."""

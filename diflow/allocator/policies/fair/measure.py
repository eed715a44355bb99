"""The objective of `fair`: met guarantees first, each resource by itself, then met shares, by the resource of which a
queue holds the largest part.

By this measure no plan is below the current allocation. Priorities count inside a queue only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray
from diflow.allocator.model.plan import Plan
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.fair.shares import ROUNDING, Shares, queue_demand, usable_capacity, value_of

RANKS = 4
"""Priorities that the measure distinguishes (the lowest ones count as one)."""
RANK = 1e3
"""Weight of a priority, in multiples of the next lower one."""


@dataclass(frozen=True, slots=True, order=True)
class Worth:
    """The value of a plan, compared lexicographically."""

    guarantees: float
    shares: float

    def is_below(self, other: Worth) -> bool:
        """Whether it is less, up to rounding."""
        parts = ((self.guarantees, other.guarantees), (self.shares, other.shares))
        for mine, theirs in parts:
            slack = _SAME * max(1.0, abs(theirs))
            if abs(mine - theirs) > slack:
                return mine < theirs
        return False

    def number(self) -> float:
        """One number with the same order, up to floating-point precision."""
        return self.guarantees * 1e12 + self.shares


class Measure:
    """The worth of plans for one snapshot. `within` (J): the jobs whose demand the shares count. `start` (G): the
    replicas that plans start from, if they are not the snapshot's."""

    def __init__(
        self,
        snapshot: Snapshot,
        shares: Shares,
        within: BoolArray | None = None,
        start: IntArray | None = None,
    ) -> None:
        s = self.snapshot = snapshot
        self._total = np.maximum(usable_capacity(s), 1).astype(np.float64)
        levels = np.unique(s.job_priority)[-(RANKS - 1) :]
        self._levels = len(levels) + 1
        rank = np.searchsorted(levels, s.job_priority, side="right")
        # A row for each queue and level, the highest first; the last for jobs without a queue.
        row = s.job_queue * self._levels + (len(levels) - rank)
        self._row = np.where(s.job_queue >= 0, row, s.queues * self._levels)[s.role_job]
        below = np.minimum(row + 1, (s.job_queue + 1) * self._levels - 1)
        self._surplus_row = np.where(s.job_queue >= 0, below, s.queues * self._levels)[s.role_job]
        self._chains = s.facts.chains
        own = queue_demand(s, s.role_desired, within=within)
        lacked = _lacked(s, shares)
        counts = lacked | ~lacked.any(axis=1, keepdims=True)
        self._share: FloatArray = np.where(counts & (shares.deserved > ROUNDING), shares.deserved, np.inf)
        self._weight: FloatArray = (np.where(np.isfinite(self._share), self._share, 0.0) / self._total).max(
            axis=1, initial=0.0
        )
        # A queue that deserves nothing of a resource it asks for has no right to what it holds.
        self._weight[(counts & (own > 0) & (shares.deserved <= ROUNDING)).any(axis=1)] = 0.0
        # Where no queue lacks a resource, losing it does not violate a guarantee.
        self._sure: IntArray = np.where(shares.contended[s.queue_parent], s.queue_guarantee, 0)
        self._bonus = _bonus(s)
        self._job_rank: FloatArray = RANK ** (self._levels - 1.0 - self._row[s.facts.starts[:-1]] % self._levels)
        self._start = self._met(s.held_by_role() if start is None else start)

    def of_plan(self, plan: Plan) -> Worth:
        return self.of(np.bincount(plan.role, weights=plan.count, minlength=self.snapshot.roles))

    def of(self, replicas: IntArray | FloatArray, *, running: bool = False) -> Worth:
        """The worth of an allocation of so many replicas of each role (G). `running`: also count running jobs, for
        exchanges among jobs of one queue."""
        by_rank = RANK ** np.arange(self._levels - 1, -1, -1)
        sure, met = self._met(replicas)
        if not running:
            sure = _no_more_lost_than_in_all(sure, self._start[0])
            met = _lost_by_whole_queues(met, self._start[1])
        guarantees, shares = (float(_differences(part).sum(axis=0) @ by_rank) for part in (sure.sum(axis=2), met))
        if running:
            s = self.snapshot
            shares += float((self._bonus * ~s.jobs_of(replicas < s.role_min) * self._job_rank).sum())
        return Worth(guarantees, shares)

    def _met(self, replicas: IntArray | FloatArray) -> tuple[FloatArray, ...]:
        """Q×L×R, Q×L: met guarantees and met shares of each priority level and those above it."""
        s = self.snapshot
        gangs = np.minimum(replicas, s.role_min)
        held = np.zeros((s.queues * self._levels + 1, len(s.resources)))
        np.add.at(held, self._row, s.role_request * gangs[:, None])
        # Replicas above the minimum count one level lower, because they are the first to be preempted.
        np.add.at(held, self._surplus_row, s.role_request * (replicas - gangs)[:, None])
        # Higher priorities use up the share first.
        so_far = held[:-1].reshape(s.queues, self._levels, -1).cumsum(axis=1)
        parts: FloatArray = np.minimum((so_far / self._share[:, None, :]).max(axis=2, initial=0.0), 1.0)
        met = value_of(parts) * self._weight[:, None]
        sure = np.zeros_like(so_far)
        if self._sure.any():
            below = np.zeros_like(so_far)
            for q, chain in enumerate(self._chains):
                below[chain] += so_far[q]
            sure = np.minimum(below, self._sure[:, None, :]) / self._total
        return sure, met


def _no_more_lost_than_in_all(met: FloatArray, start: FloatArray) -> FloatArray:
    """Q×L×R: `met`, but no level of a queue loses more than the whole queue does: for guarantees, which no queue loses
    to another one, but only by preemption inside it."""
    lost = np.maximum(start[:, -1:] - met[:, -1:], 0.0)
    return np.maximum(met, start - lost)


def _lost_by_whole_queues(met: FloatArray, start: FloatArray) -> FloatArray:
    """Q×L: `met`, but only the whole queue loses anything, and none of its levels.

    Between queues priorities do not count: a queue's loss to another queue weighs as much as what that one gains,
    whatever the priorities of the jobs that lose (those of lower priority may not be preemptible, or of no use).
    """
    out = np.maximum(met, start)
    out[:, -1] = met[:, -1]
    return out


def _differences(by_level: FloatArray) -> FloatArray:
    """Q×L: the difference of each level to the one above it."""
    out = by_level.copy()
    out[:, 1:] -= by_level[:, :-1]
    return out


def _lacked(snapshot: Snapshot, shares: Shares) -> BoolArray:
    """Q×R: resources for which a queue, or one of its ancestors, competes with its siblings."""
    s = snapshot
    out = np.zeros((s.queues, len(s.resources)), dtype=np.bool_)
    for q, chain in enumerate(s.facts.chains):
        for at in chain:
            out[q] |= shares.contended[int(s.queue_parent[at])]
    return out


def _bonus(snapshot: Snapshot) -> FloatArray:
    """J: the bonus of a running job: twice the largest replica of its queue's jobs that can shrink.

    A job that starts in place of others' surplus may need less than the replica that it replaces.
    """
    s = snapshot
    spare = (s.role_max > s.role_min) & s.job_preemptible[s.role_job]
    size = (s.role_request / np.maximum(usable_capacity(s), 1)).max(axis=1, initial=0.0) * spare
    most = np.zeros(s.queues + 1)
    np.maximum.at(most, s.job_queue[s.role_job], size)
    out: FloatArray = 2 * most[s.job_queue]
    return out


_SAME = 1e-9
"""Relative difference of worths that counts as equal; small, because lower priorities have small weights."""

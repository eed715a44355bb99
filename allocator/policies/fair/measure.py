"""What a plan of the fair policies is worth: what it meets of guarantees first, then of shares.

A plan is never worse than keeping everything, by this.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray
from diflow.allocator.model.plan import Plan
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.fair.shares import ROUNDING, Shares, queue_demand, total_room

RANKS = 4
"""Priorities that the measure tells apart (the lower ones count as one)."""
RANK = 1e3
"""A priority counts so many times as much as the next lower one."""


@dataclass(frozen=True, slots=True, order=True)
class Worth:
    """Compared in this order."""

    guarantees: float
    shares: float

    def is_below(self, other: Worth) -> bool:
        """Whether it is less, but for the order of sums."""
        parts = ((self.guarantees, other.guarantees), (self.shares, other.shares))
        for mine, theirs in parts:
            slack = _SAME * max(1.0, abs(theirs))
            if abs(mine - theirs) > slack:
                return mine < theirs
        return False

    def number(self) -> float:
        """One number of the same order, as far as numbers of this size tell the parts apart."""
        return self.guarantees * 1e12 + self.shares


class Measure:
    """The worth of one snapshot's plans. `within` (J): jobs that ask for something, as the shares were computed. `kept`
    (roles and counts): what plans begin with, if it is not what the snapshot holds."""

    def __init__(
        self,
        snapshot: Snapshot,
        shares: Shares,
        within: BoolArray | None = None,
        kept: tuple[IntArray, IntArray] | None = None,
    ) -> None:
        s = self.snapshot = snapshot
        self._total = np.maximum(total_room(s), 1).astype(np.float64)
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
        # A queue that deserves nothing of what it asks for holds whatever it holds by nobody's right.
        self._weight[(counts & (own > 0) & (shares.deserved <= ROUNDING)).any(axis=1)] = 0.0
        # Of what nobody lacks, a queue that loses it does not go without.
        self._sure: IntArray = np.where(shares.contended[s.queue_parent], s.queue_guarantee, 0)
        self._bonus = _bonus(s)
        self._job_rank: FloatArray = RANK ** (self._levels - 1.0 - self._row[s.facts.starts[:-1]] % self._levels)
        self._kept = self._met(*(kept or (s.held_role, s.held_count)))

    def of_plan(self, plan: Plan) -> Worth:
        return self.of(plan.role, plan.count)

    def of(self, role: IntArray, count: IntArray, *, running: bool = False) -> Worth:
        """The worth of an allocation of so many replicas of these roles. `running`: jobs that run count beside what
        they hold, as it is to be among jobs of one queue."""
        by_rank = RANK ** np.arange(self._levels - 1, -1, -1)
        met = self._met(role, count)
        if not running:
            met = tuple(_no_more_lost_than_in_all(part, kept) for part, kept in zip(met, self._kept, strict=True))
        guarantees, shares = (float(_differences(part).sum(axis=0) @ by_rank) for part in met)
        if running:
            shares += float((self._bonus * self._runs(role, count) * self._job_rank).sum())
        return Worth(guarantees, shares)

    def _runs(self, role: IntArray, count: IntArray) -> BoolArray:
        s = self.snapshot
        return ~s.jobs_of(np.bincount(role, weights=count, minlength=s.roles) < s.role_min)

    def _met(self, role: IntArray, count: IntArray) -> tuple[FloatArray, ...]:
        """Q×L, Q×L: what is met of guarantees and of shares by each level and those above it."""
        s = self.snapshot
        replicas = np.bincount(role, weights=count, minlength=s.roles)
        gangs = np.minimum(replicas, s.role_min)
        held = np.zeros((s.queues * self._levels + 1, len(s.resources)))
        np.add.at(held, self._row, s.role_request * gangs[:, None])
        # What is above the minimum counts as one priority less: it is what others are served from first.
        np.add.at(held, self._surplus_row, s.role_request * (replicas - gangs)[:, None])
        # Higher priorities use up the share first.
        so_far = held[:-1].reshape(s.queues, self._levels, -1).cumsum(axis=1)
        met = np.minimum((so_far / self._share[:, None, :]).max(axis=2, initial=0.0), 1.0) * self._weight[:, None]
        sure = np.zeros_like(met)
        if self._sure.any():
            below = np.zeros_like(so_far)
            for q, chain in enumerate(self._chains):
                below[chain] += so_far[q]
            sure = (np.minimum(below, self._sure[:, None, :]) / self._total).sum(axis=2)
        return sure, met


def _no_more_lost_than_in_all(met: FloatArray, kept: FloatArray) -> FloatArray:
    """Q×L: what is met, where a level of a queue loses no more of what is kept now than the queue loses in all.

    Other queues take what a queue has beyond its share from whoever of it can give: its lower priorities may be bound
    to stay, and keep the rest of the share.
    """
    lost = np.maximum(kept[:, -1:] - met[:, -1:], 0.0)
    return np.maximum(met, kept - lost)


def _differences(by_level: FloatArray) -> FloatArray:
    """Q×L: what each level adds to those above it."""
    out = by_level.copy()
    out[:, 1:] -= by_level[:, :-1]
    return out


def _lacked(snapshot: Snapshot, shares: Shares) -> BoolArray:
    """Q×R: resources that are contended between a queue, or one above it, and its siblings."""
    s = snapshot
    out = np.zeros((s.queues, len(s.resources)), dtype=np.bool_)
    for q, chain in enumerate(s.facts.chains):
        for at in chain:
            out[q] |= shares.contended[int(s.queue_parent[at])]
    return out


def _bonus(snapshot: Snapshot) -> FloatArray:
    """J: what a running job counts beside its share: twice the largest replica of its queue's jobs that can shrink.

    A job that starts in the place of others' surplus may ask for less than one of their replicas.
    """
    s = snapshot
    spare = (s.role_max > s.role_min) & s.job_preemptible[s.role_job]
    size = (s.role_request / np.maximum(total_room(s), 1)).max(axis=1, initial=0.0) * spare
    most = np.zeros(s.queues + 1)
    np.maximum.at(most, s.job_queue[s.role_job], size)
    out: FloatArray = 2 * most[s.job_queue]
    return out


_SAME = 1e-9
"""Worths that differ by this part are the same: lower priorities count little beside higher ones, but they count."""

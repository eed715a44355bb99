"""The turn of the gang that waits longest: when it begins, and how long capacity is reserved for it.

A gang that is larger than its queue's deserved share, or than what ever comes free at once, would starve by shares and
priorities alone. So one gang at a time, the oldest, gets a turn after it has waited `reserve_after_seconds`, multiplied
by its size over its queue's deserved share if the gang is larger. From then on

* it may start before other jobs and lift its queue above its share; guarantees still come first;
* capacity is reserved for it against jobs that could not be stopped again. With `fair`, preemptible jobs borrow it and
  give it back as soon as that lets the gang start;
* the reservation lasts `reserve_for_seconds`, pauses for three times as long, and returns for twice as long, and so on:
  it gets rarer if it brings nothing, and any running job that ends does so within one of them. A job that is created in
  its last sixth ends it early: then a decision follows from an event that people can see, not from the passing of time;
* it waits for no job that may never end: one that cannot be stopped and ran through the whole reservation before, or
  one of the gang's own namespace that ran when its turn began. On what these hold nothing is reserved, and if the gang
  does not fit without that, no capacity at all.

No gang has a turn while a gang runs that is at least half as large, itself waited that long, and started within the
last eight times `reserve_for_seconds`: gangs of that size do start, as late as all others, and more turns would only
move the waiting from few jobs to many. One that has run for longer may run for ever, and says nothing of this any more.
In a cluster loaded to 1.5 times its capacity, turns without this rule tripled the wait of single replicas and shortened
that of the largest gangs by a fifth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray
from diflow.allocator.model.snapshot import Snapshot, namespace_of
from diflow.allocator.policies.fair.shares import usable_capacity
from diflow.allocator.policies.settings import PolicySettings


@dataclass(frozen=True, slots=True)
class Turn:
    """The gang whose turn it is. `since`: when its turn began; `until`: when its reservation ends, 0.0 while it has
    none; `before`: when the reservation before began, minus infinity without one (seconds, as in the snapshot)."""

    job: int
    since: float
    until: float
    before: float = -math.inf

    @property
    def has_reservation(self) -> bool:
        return self.until > 0.0


def waits_since(snapshot: Snapshot) -> FloatArray:
    """J: since when a job that holds nothing waits: since it was stopped or created."""
    s = snapshot
    return np.where(
        s.job_started_seconds >= 0, np.maximum(s.job_changed_seconds, s.job_created_seconds), s.job_created_seconds
    )


def largest_late(snapshot: Snapshot, holds: BoolArray, settings: PolicySettings) -> float:
    """Dominant share of the largest gang that started lately, after it had waited long enough for a turn; 0.0: none."""
    s = snapshot
    # A job that starts in this cycle starts now.
    unknown = np.where(s.jobs_of(s.held_role), s.job_created_seconds, s.now_seconds)
    started = np.where(s.job_started_seconds >= 0, s.job_started_seconds, unknown)
    late = holds & (started - s.job_created_seconds >= settings.reserve_after_seconds)
    late &= s.now_seconds - started <= _LATELY * settings.reserve_for_seconds
    sizes = s.demand_by_job(s.role_min)[late] / np.maximum(usable_capacity(s), 1)
    return float(sizes.max(initial=0.0))


def last_older_start(snapshot: Snapshot, job: int, holds: BoolArray) -> float:
    """When the last of the jobs created before this one began to wait was started: until then it was their turn. Minus
    infinity if there is none. That an older job is resized since then is no turn: a job that is resized every few
    minutes would keep that of every younger gang away, or make its reservation begin anew."""
    s = snapshot
    older = holds & (s.job_created_seconds <= waits_since(s)[job])
    return float(s.job_started_seconds.max(initial=-math.inf, where=older))


def turn_of(
    snapshot: Snapshot,
    job: int,
    *,
    waits_since: float,
    size: float,
    settings: PolicySettings,
    after: float = -math.inf,
) -> Turn | None:
    """The turn of a waiting job, or None if it has not begun. `size`: its gang over its queue's deserved share;
    `after`: when the previous turn ended."""
    wait = settings.reserve_after_seconds
    since = max(waits_since + wait * max(1.0, size), after + wait)
    if not snapshot.now_seconds >= since:
        return None
    until, before = _kept_until(since, snapshot, settings)
    return Turn(job, since, until, before)


def _kept_until(since: float, snapshot: Snapshot, settings: PolicySettings) -> tuple[float, float]:
    """(when the reservation ends, 0.0 if there is none now; when the one before began)."""
    begin, length, now, before = since, settings.reserve_for_seconds, snapshot.now_seconds, -math.inf
    if not math.isfinite(since) or length <= 0:
        return 0.0, before
    while begin + length <= now:
        before = begin
        begin += length * (1 + _RARER)
        length *= 2
    newest = float(snapshot.job_created_seconds.max(initial=-math.inf))
    return (begin + length if begin <= now and newest < begin + length * _EARLIEST_END else 0.0), before


def lasting_use(snapshot: Snapshot, turn: Turn) -> IntArray | None:
    """N×R that jobs hold for whose end the gang's reservation does not wait; None if there are none."""
    s = snapshot
    unknown = np.where(s.job_started_seconds >= 0, s.job_started_seconds, s.job_created_seconds)
    lasts = unknown < turn.before
    if namespace_of(s.job_names[turn.job]):
        lasts |= (s.owners == s.owners[turn.job]) & (unknown < turn.since)
    held = (lasts & ~s.job_preemptible)[s.role_job[s.held_role]]
    return s.usage(s.held_role[held], s.held_node[held], s.held_count[held]) if held.any() else None


def borrowers(snapshot: Snapshot, turn: Turn, holds: BoolArray) -> tuple[BoolArray, BoolArray]:
    """J, J: younger preemptible jobs of its priority or below that changed after its turn began; those of them that
    started after it, and so borrowed all they hold. Jobs placed before the turn give nothing back."""
    s = snapshot
    younger = holds & (s.job_created_seconds > waits_since(s)[turn.job])
    able = younger & s.job_preemptible & (s.job_priority <= s.job_priority[turn.job])
    return able & (s.job_changed_seconds >= turn.since), able & (s.job_started_seconds >= turn.since)


_LATELY = 8
"""For how many lengths of the first reservation a gang that started late keeps others of its size from a turn."""
_RARER = 3
"""The pause after a reservation, in lengths of it: a gang that never starts takes a fourth of the time at most."""
_EARLIEST_END = 5 / 6
"""Fraction of a reservation's time after which the next job to be created ends it."""

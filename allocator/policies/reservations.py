"""The gang that waits longest: when its turn comes, how long room is kept for it, and who gives it back.

Shares and priorities decide who is served. A gang that is larger than what its queue deserves, or than what ever comes
free at once, would wait for ever by them. So one gang at a time, the oldest, gets a turn when it has waited for
`reserve_after_seconds`, times its size over what its queue deserves if that is less. From then on

* it may start before others although it lifts its queue above its share, but guarantees are served before it;
* room is kept for it from jobs that could not be stopped again. Where the policy is `fair`, preemptible jobs borrow the
  room meanwhile: they give it back as soon as that lets the gang start;
* the keeping ends after `reserve_for_seconds`, pauses for `reserve_after_seconds`, and comes again for twice as long,
  and so on: whatever runs ends within one of them. It ends with the first job that comes in its last sixth, if one
  does: what is decided when a job comes is decided for a reason that people see, and not because time went by.

Nobody has a turn while a gang runs that is at least half as large and had itself waited so long: gangs of that size are
served then, late as all others, and more turns would only put the waiting of the many in the place of that of the few.
In an overloaded cluster (1.5 times what it can do) turns without that rule trebled the wait of single replicas and
shortened that of the largest gangs by a fifth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.fair.shares import total_room
from diflow.allocator.policies.settings import PolicySettings


@dataclass(frozen=True, slots=True)
class Oldest:
    """The gang whose turn it is. `since`: when its turn began; `until`: when the keeping of room for it ends, or 0.0
    while room is not kept (seconds, as in the snapshot)."""

    job: int
    since: float
    until: float

    @property
    def keeps_room(self) -> bool:
        return self.until > 0.0


def waits_since(snapshot: Snapshot) -> FloatArray:
    """J: since when a job waits, if it holds nothing: since it was stopped, or since it was created."""
    s = snapshot
    return np.where(
        s.job_started_seconds >= 0, np.maximum(s.job_changed_seconds, s.job_created_seconds), s.job_created_seconds
    )


def largest_late(snapshot: Snapshot, holds: BoolArray, settings: PolicySettings) -> float:
    """The largest gang that runs after it had waited for a turn, as a part of the cluster; 0.0 if there is none."""
    s = snapshot
    # What starts in this cycle starts now.
    unknown = np.where(s.jobs_of(s.held_role), s.job_created_seconds, s.now_seconds)
    started = np.where(s.job_started_seconds >= 0, s.job_started_seconds, unknown)
    late = holds & (started - s.job_created_seconds >= settings.reserve_after_seconds)
    sizes = s.demand_by_job(s.role_min)[late] / np.maximum(total_room(s), 1)
    return float(sizes.max(initial=0.0))


def last_older_start(snapshot: Snapshot, job: int, holds: BoolArray) -> float:
    """When the last job got what it holds that was there before this one began to wait: until then it was that job's
    turn. Minus infinity if there is none."""
    s = snapshot
    older = holds & (s.job_created_seconds <= waits_since(s)[job])
    return float(s.job_changed_seconds.max(initial=-math.inf, where=older))


def turn(
    snapshot: Snapshot,
    job: int,
    *,
    waits_since: float,
    size: float,
    settings: PolicySettings,
    after: float = -math.inf,
) -> Oldest | None:
    """The turn of a job that waits, or None before it. `size`: its gang over what its queue deserves; `after`: when the
    last one's turn ended."""
    wait = settings.reserve_after_seconds
    since = max(waits_since + wait * max(1.0, size), after + wait)
    if not snapshot.now_seconds >= since:
        return None
    return Oldest(job, since, _kept_until(since, snapshot, settings))


def _kept_until(since: float, snapshot: Snapshot, settings: PolicySettings) -> float:
    begin, length, now = since, settings.reserve_for_seconds, snapshot.now_seconds
    if not math.isfinite(since) or length <= 0:
        return 0.0
    while begin + length <= now:
        begin += length + settings.reserve_after_seconds
        length *= 2
    newest = float(snapshot.job_created_seconds.max(initial=-math.inf))
    return begin + length if begin <= now and newest < begin + length * _EARLIEST_END else 0.0


def borrowers(snapshot: Snapshot, oldest: Oldest, holds: BoolArray) -> tuple[BoolArray, BoolArray]:
    """J, J: younger preemptible jobs of its priority or below that got something after its turn had begun; those of
    them that started after that, and so got all that they hold. So nobody has to give anything back merely because time
    went by."""
    s = snapshot
    younger = holds & (s.job_created_seconds > waits_since(s)[oldest.job])
    able = younger & s.job_preemptible & (s.job_priority <= s.job_priority[oldest.job])
    return able & (s.job_changed_seconds >= oldest.since), able & (s.job_started_seconds >= oldest.since)


_EARLIEST_END = 5 / 6
"""The part of its time after which the keeping of room ends with the next job that comes."""

"""Rounds of a preemptible job that end soon after their beginning, again and again, for reasons that do not count: a
program that is killed each time, a node that evicts it. The first ones are followed by the next one at once, as
evictions come in bursts. Then the job gives its places back and pauses, twice as long each time.

How many there were in a row, and the end of the pause, are in the allocation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from diflow.allocator.watch.free_capacity import FreeCapacity
from diflow.allocator.watch.job import Job
from diflow.common.durations import backoff, span, timestamp
from diflow.common.limits import MOST_MOVES
from diflow.record.allocation import Allocation

SOON_SECONDS: Final = 300.0
"""A round that has lasted so long has done something."""
AT_ONCE: Final = 3
"""So many in a row are followed by the next round at once."""
_FIRST_PAUSE_SECONDS: Final = 30.0


class Loss:
    """The end of the current round of a job. `longest_pause`: in seconds, between two rounds."""

    def __init__(self, job: Job, capacity: FreeCapacity, *, now: float, longest_pause: float) -> None:
        at = job.read.placed
        self._now = now
        self.count = 0
        """How many rounds in a row have ended soon, with this one."""
        if at is not None and capacity.age(at.since) < SOON_SECONDS:
            self.count = min(MOST_MOVES, at.losses + 1)
        self.pause = 0.0
        """Seconds until the next round."""
        if self.count > AT_ONCE:
            self.pause = backoff((_FIRST_PAUSE_SECONDS, longest_pause), self.count - AT_ONCE - 1)

    def noted(self, at: Allocation) -> Allocation:
        """The allocation of the next round."""
        return replace(at, losses=self.count, paused_until=self._now + self.pause if self.pause else 0.0)

    @property
    def text(self) -> str:
        """What follows, for people; "" if the next round begins at once."""
        if not self.pause:
            return ""
        return (
            f"{self.count} rounds in a row ended within {span(SOON_SECONDS)}: it waits for {span(self.pause)}, until "
            f"{timestamp(self._now + self.pause)}"
        )

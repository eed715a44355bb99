"""Which jobs are left alone for a while, because writes for them were refused."""

from __future__ import annotations

import math
from collections.abc import Container, MutableMapping
from typing import Any, Final

import structlog

from diflow.common.clock import SYSTEM, Clock
from diflow.common.durations import backoff
from diflow.common.errors import ConflictError

_SECONDS: Final = (0.5, 60.0)
# Passes with conflicts in a row after which a job is backed off: Argo and the kubelets change its objects too.
_CONFLICTS: Final = 4

log = structlog.get_logger("diflow.allocator")


class Backoffs:
    """The back-offs of all jobs. A pass over the jobs counts once for each job, however many of its writes are refused:
    a gang of a hundred pods would otherwise be left alone for a minute after one moment without an API server.

    `clock` returns monotonic seconds.
    """

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}
        self._tries: dict[str, tuple[int, float]] = {}
        self._conflicts: dict[str, int] = {}
        self.refusals: dict[str, str] = {}
        """Why the last write was refused, by job in back-off."""

    def is_active(self, job: str) -> bool:
        """Whether the job is in back-off."""
        return self._clock.monotonic() < self._until.get(job, -math.inf)

    def jobs(self) -> frozenset[str]:
        """The jobs in back-off, and those whose back-off is over but not yet ended."""
        return frozenset(self._until)

    def next_end(self) -> float:
        """When the first back-off ends, on the clock; infinity if there is none."""
        return min(self._until.values(), default=math.inf)

    def end_expired(self) -> list[str]:
        """End the back-offs that are over. Returns their jobs."""
        now = self._clock.monotonic()
        out = [job for job, until in self._until.items() if until <= now]
        for job in out:
            del self._until[job]
            self.refusals.pop(job, None)
        return out

    def keep(self, jobs: Container[str]) -> None:
        """Forget all other jobs, which do not exist any more."""
        tables: tuple[MutableMapping[str, Any], ...] = (self._until, self._tries, self._conflicts, self.refusals)
        for table in tables:
            for job in [job for job in table if job not in jobs]:
                del table[job]

    def succeeded(self, job: str) -> None:
        """All writes for the job were carried out in a pass."""
        self._tries.pop(job, None)
        self._conflicts.pop(job, None)

    def conflicted(self, job: str) -> str:
        """Writes for the job conflicted in a pass. Returns why it is backed off now, "" if it is not.

        The writes of each plan for a job whose objects change all the time would conflict again.
        """
        count = self._conflicts[job] = self._conflicts.get(job, 0) + 1
        if count < _CONFLICTS:
            return ""
        text = "its Workflow or its pods are changed by others all the time, so nothing can be decided for it"
        self.start(job, ConflictError(f"{text}: its writes conflicted {count} times in a row"))
        return text

    def start(self, job: str, error: Exception) -> bool:
        """Start a back-off of the job, longer each time. Returns whether it is not the first one in a row."""
        now = self._clock.monotonic()
        before, at = self._tries.get(job, (0, now))
        tries = before + 1 if now - at < 2 * _SECONDS[1] else 1
        pause = backoff(_SECONDS, tries - 1, error)
        self._tries[job] = (tries, now)
        self._until[job] = max(self._until.get(job, 0.0), now + pause)
        self.refusals[job] = str(error)
        log.warning("a write was refused", job=job, why=str(error), again_seconds=round(pause, 1))
        return tries > 1

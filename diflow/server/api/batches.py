"""Writes for each job: what comes while a write of the job is under way, or soon after it, shares the next one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import structlog
from cachetools import LRUCache, TTLCache

from diflow.common.clock import Clock
from diflow.common.durations import backoff
from diflow.common.errors import DiflowError, NotFoundError
from diflow.server.api.cache import JobKey
from diflow.server.http.errors import ApiError, unavailable

_MOST_JOBS: Final = 20_000

Batch = TypeVar("Batch")
Result = TypeVar("Result")

log = structlog.get_logger("diflow.server")


@dataclass(frozen=True, slots=True)
class Pace:
    """How often batches are written."""

    between_seconds: float
    """The shortest time between the beginnings of two writes of one job."""
    backoff_seconds: tuple[float, float] = (1.0, 30.0)
    """The time after a first failure, doubled after each further one, and the longest."""
    before: Callable[[JobKey], Awaitable[None]] | None = None
    """Awaited before each write, for other reasons to wait. What comes meanwhile is in that write."""


@dataclass(slots=True)
class _Line(Generic[Batch]):
    """What waits of one job, and the task that writes it."""

    batch: Batch | None
    writer: asyncio.Task[None] | None = None


class JobBatches(Generic[Batch, Result]):
    """Batches of all jobs, of which one of a job at a time is written. For one event loop.

    `write(key, batch, last)` writes one; `last` is what the write before returned for this job, None if that is not
    known. If it raises DiflowError or ApiError, the batch is written again, less and less often; after NotFoundError
    or any other exception it is dropped. `merge(earlier, later)` makes one batch of two, of which it may change the
    earlier. `what` they are of is for the log; the results of `most_kept` jobs are kept.
    """

    def __init__(
        self,
        write: Callable[[JobKey, Batch, Result | None], Awaitable[Result | None]],
        merge: Callable[[Batch, Batch], Batch],
        *,
        what: str,
        pace: Pace,
        clock: Clock,
        most_kept: int = 256,
    ) -> None:
        self._write = write
        self._merge = merge
        self._what = what
        self._pace = pace
        self._clock = clock
        self._lines: dict[JobKey, _Line[Batch]] = {}
        self._began: TTLCache[JobKey, float] = TTLCache(_MOST_JOBS, pace.between_seconds, timer=clock.monotonic)
        self._results: LRUCache[JobKey, Result] = LRUCache(most_kept)
        self._pauses: set[asyncio.Future[Any]] = set()
        self.is_closing = False

    def __contains__(self, key: JobKey) -> bool:
        """Whether something of this job waits or is being written."""
        return key in self._lines

    def waiting(self, key: JobKey) -> Batch | None:
        """What waits of this job."""
        line = self._lines.get(key)
        return line.batch if line is not None else None

    def all_waiting(self) -> list[Batch]:
        """What waits of all jobs."""
        return [line.batch for line in self._lines.values() if line.batch is not None]

    def last(self, key: JobKey) -> Result | None:
        """What the last write of this job has returned, if it is kept."""
        return self._results.get(key)

    def kept(self) -> set[JobKey]:
        """The jobs whose results are kept."""
        return set(self._results)

    def forget(self, keys: Iterable[JobKey]) -> None:
        """Forget the results of these jobs."""
        for key in keys:
            self._results.pop(key, None)

    def add(self, key: JobKey, batch: Batch) -> None:
        """Have it written with what waits already of this job. Raises ApiError (503) if too many jobs wait."""
        line = self._lines.get(key)
        if line is not None:
            line.batch = batch if line.batch is None else self._merge(line.batch, batch)
            return
        if len(self._lines) >= _MOST_JOBS:
            raise unavailable("too many jobs report at once")
        line = self._lines[key] = _Line(batch)
        line.writer = asyncio.ensure_future(self._serve(key, line))

    async def pause(self, seconds: float) -> None:
        """Sleep for so long, but not beyond the call of `close`."""
        if seconds <= 0 or self.is_closing:
            return
        sleep = asyncio.ensure_future(self._clock.pause(seconds))
        self._pauses.add(sleep)
        try:
            await asyncio.wait([sleep])
        finally:
            self._pauses.discard(sleep)
            sleep.cancel()

    async def close(self, *, seconds: float) -> None:
        """Write what waits now, within so many seconds. Afterwards `all_waiting` is what was not written."""
        self.is_closing = True
        for sleep in self._pauses:
            sleep.cancel()
        writers = [line.writer for line in self._lines.values() if line.writer is not None]
        if not writers:
            return
        _, late = await asyncio.wait(writers, timeout=seconds)
        for writer in late:
            writer.cancel()
        if late:
            await asyncio.wait(late)

    async def _serve(self, key: JobKey, line: _Line[Batch]) -> None:
        """Write what waits of a job until nothing does."""
        between, began, failures = self._pace.between_seconds, self._began.get(key, -math.inf), 0
        try:
            while line.batch is not None:
                seconds = max(between, backoff(self._pace.backoff_seconds, failures - 1)) if failures else between
                await self.pause(began + seconds - self._clock.monotonic())
                if self._pace.before is not None:
                    await self._pace.before(key)
                began = self._began[key] = self._clock.monotonic()
                if await self._is_done(key, line):
                    failures = 0
                    continue
                failures += 1
                if self.is_closing:
                    return
        finally:
            if not self.is_closing:
                del self._lines[key]

    async def _is_done(self, key: JobKey, line: _Line[Batch]) -> bool:
        """Write what waits now of a job. Returns whether it has not to be written again."""
        batch, line.batch = line.batch, None
        assert batch is not None
        job = "/".join(key)
        try:
            result = await self._write(key, batch, self._results.get(key))
        except NotFoundError:
            return True  # the job is gone
        except (DiflowError, ApiError) as error:
            log.warning(f"{self._what} are not written yet", job=job, why=str(error))
            self._restore(line, batch)
            return False
        except asyncio.CancelledError:
            self._restore(line, batch)
            raise
        except Exception as error:
            log.error(f"{self._what} cannot be written", job=job, why=f"{type(error).__name__}: {error}")
            return True
        self._results.pop(key, None)
        if result is not None:
            self._results[key] = result
        return True

    def _restore(self, line: _Line[Batch], batch: Batch) -> None:
        line.batch = batch if line.batch is None else self._merge(batch, line.batch)

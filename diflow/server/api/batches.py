"""Writes for each job: what comes while a write of the job is under way, or soon after it, shares the next one."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import structlog
from cachetools import TTLCache

from diflow.common.clock import Clock
from diflow.common.durations import backoff
from diflow.common.errors import DiflowError, NotFoundError
from diflow.server.api.cache import JobKey
from diflow.server.http.errors import ApiError, unavailable
from diflow.server.http.parts import Parts

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
    """Awaited before each write, for other reasons to wait. What comes meanwhile is in that write. If it raises, that
    counts as a failed write."""


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
        self.waiting: dict[JobKey, Batch] = {}
        """What waits, by job."""
        self.results: Parts[JobKey, Result] = Parts(most_kept, timer=clock.monotonic)
        """What the last write of a job has returned; may be removed at any time."""
        self.is_closing = False
        self._writers: dict[JobKey, asyncio.Task[None]] = {}
        self._began: TTLCache[JobKey, float] = TTLCache(_MOST_JOBS, pace.between_seconds, timer=clock.monotonic)
        self._jobs_of: Counter[str] = Counter()
        self._pauses: set[asyncio.Future[Any]] = set()

    def __contains__(self, key: JobKey) -> bool:
        """Whether something of this job waits or is being written."""
        return key in self._writers

    def add(self, key: JobKey, batch: Batch) -> None:
        """Have it written with what waits already of this job. Raises ApiError (503) if too many jobs of its namespace
        wait."""
        is_new = key not in self._writers
        if is_new and self._jobs_of[key[0]] >= _MOST_JOBS:
            raise unavailable(f"too many jobs of namespace {key[0]} report at once")
        self.waiting[key] = self._merge(self.waiting[key], batch) if key in self.waiting else batch
        if is_new:
            self._jobs_of[key[0]] += 1
            self._writers[key] = asyncio.ensure_future(self._serve(key))

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
        """Write what waits now, within so many seconds. Afterwards `waiting` is what was not written."""
        self.is_closing = True
        for sleep in self._pauses:
            sleep.cancel()
        if self._writers:
            _, late = await asyncio.wait(self._writers.values(), timeout=seconds)
            for writer in late:
                writer.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _serve(self, key: JobKey) -> None:
        """Write what waits of a job until nothing does."""
        between, began, failures = self._pace.between_seconds, self._began.get(key, -math.inf), 0
        try:
            while key in self.waiting and not (self.is_closing and failures):
                seconds = max(between, backoff(self._pace.backoff_seconds, failures - 1)) if failures else between
                await self.pause(began + seconds - self._clock.monotonic())
                may_begin = await self._may_begin(key)
                began = self._began[key] = self._clock.monotonic()
                failures = 0 if may_begin and await self._is_done(key) else failures + 1
        finally:
            del self._writers[key]
            self._jobs_of -= Counter([key[0]])

    async def _may_begin(self, key: JobKey) -> bool:
        """Wait as `Pace.before` says. Returns False if that fails."""
        try:
            if self._pace.before is not None:
                await self._pace.before(key)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            log.error(f"{self._what} are not written yet", job="/".join(key), why=why)
            return False
        return True

    async def _is_done(self, key: JobKey) -> bool:
        """Write what waits now of a job. Returns whether it has not to be written again."""
        batch, job = self.waiting.pop(key), "/".join(key)
        try:
            result = await self._write(key, batch, self.results.get(key))
        except NotFoundError:
            return True  # the job is gone
        except (DiflowError, ApiError, asyncio.CancelledError) as error:
            self.waiting[key] = self._merge(batch, self.waiting[key]) if key in self.waiting else batch
            if isinstance(error, asyncio.CancelledError):
                raise
            log.warning(f"{self._what} are not written yet", job=job, why=str(error))
            return False
        except Exception as error:
            log.error(f"{self._what} cannot be written", job=job, why=f"{type(error).__name__}: {error}")
            return True
        self.results.pop(key)
        if result is not None:
            self.results.keep(key, result, tenant=key[0])
        return True

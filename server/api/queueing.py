"""Lets the writes of one job go one after the other, so that callers of one server are not in each other's way.

Each write reads the job, thinks and patches the version that it read: of two at once one is refused by the API server
and begins again, and of ten some never get through. Writers elsewhere (another server, the CLI, Argo) are still met by
the version alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from diflow.server.api.cache import JobKey
from diflow.server.http.errors import unavailable
from diflow.server.http.pool import Pool

WAITING: Final = 64
"""Writes of one job that may wait: at a few hundredths of a second each, about as many as are answered in time."""

Result = TypeVar("Result")


@dataclass(slots=True)
class _Turn:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0
    users: int = 0


class JobWrites:
    """Writes in a pool of threads, at most one at a time for each job. It is for one event loop."""

    def __init__(self, pool: Pool, *, most: int = WAITING) -> None:
        self._pool = pool
        self._most = most
        self._turns: dict[JobKey, _Turn] = {}
        self._running: set[asyncio.Task[object]] = set()

    @property
    def jobs(self) -> int:
        """Jobs with a write under way or waiting."""
        return len(self._turns)

    @property
    def busy(self) -> int:
        """Writes of all jobs that are under way."""
        return self._pool.busy

    def waiting(self, namespace: str, job: str) -> int:
        """Writes of this job that wait for the one under way."""
        turn = self._turns.get((namespace, job))
        return turn.waiting if turn is not None else 0

    async def run(self, key: JobKey, call: Callable[[], Result]) -> Result:
        """What `call` gives, or raises, when it is its turn.

        A caller who is cancelled while waiting has asked for nothing; one who is cancelled later does not end the call,
        and the next one waits for its end. Raises ApiError (503) when too many wait.
        """
        turn = self._turns.setdefault(key, _Turn())
        if turn.waiting >= self._most:
            raise unavailable(f"{self._most} requests of this job wait already")
        turn.users += 1
        turn.waiting += 1
        try:
            await turn.lock.acquire()
        except BaseException:
            self._leave(key, turn)
            raise
        finally:
            turn.waiting -= 1
        task = asyncio.ensure_future(self._held(key, turn, call))
        self._running.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    async def _held(self, key: JobKey, turn: _Turn, call: Callable[[], Result]) -> Result:
        try:
            return await self._pool.run(call)
        finally:
            turn.lock.release()
            self._leave(key, turn)

    def _leave(self, key: JobKey, turn: _Turn) -> None:
        turn.users -= 1
        if not turn.users:
            del self._turns[key]

    def _done(self, task: asyncio.Task[object]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # looked at here, as its caller may have gone

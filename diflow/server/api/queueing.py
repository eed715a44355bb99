"""Serialises the writes of each job, so that callers of one server do not conflict with each other.

Each write reads the job and patches the version that it read: of two concurrent ones the API server refuses one, which
is tried again; of ten, some would never succeed. Against other writers (another server, the CLI, Argo) the version
alone protects.
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
"""The most waiting writes of one job: at a few hundredths of a second each, about as many as end in time."""

Result = TypeVar("Result")


@dataclass(slots=True)
class _Turn:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0
    users: int = 0


class JobWrites:
    """Writes in a pool of threads, at most one at a time for each job; namespaces take turns. For one event loop."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._turns: dict[JobKey, _Turn] = {}

    @property
    def jobs(self) -> int:
        """The number of jobs with a running or waiting write."""
        return len(self._turns)

    @property
    def busy(self) -> int:
        """The number of running writes of all jobs, and of those that wait for their turn alone."""
        return self._pool.busy

    def waiting(self, namespace: str, job: str) -> int:
        """The number of this job's writes that wait for the running one."""
        turn = self._turns.get((namespace, job))
        return turn.waiting if turn is not None else 0

    async def run(self, key: JobKey, call: Callable[[], Result]) -> Result:
        """Run `call` when the job's earlier writes are done; return its result, or raise its exception.

        Cancelling the caller while it waits drops the call; later, the call runs to its end, and the next one waits for
        it. Raises ApiError (503) if too many wait.
        """
        turn = self._turns.setdefault(key, _Turn())
        if turn.waiting >= WAITING:
            raise unavailable(f"{WAITING} requests of this job wait already")
        turn.users += 1
        turn.waiting += 1
        try:
            await turn.lock.acquire()
        except BaseException:
            self._leave(key, turn)
            raise
        finally:
            turn.waiting -= 1
        try:
            running = await self._pool.begin(call, tenant=key[0])
        except BaseException:
            self._end(key, turn)
            raise
        running.add_done_callback(lambda _: self._end(key, turn))
        return await asyncio.shield(running)

    def _end(self, key: JobKey, turn: _Turn) -> None:
        turn.lock.release()
        self._leave(key, turn)

    def _leave(self, key: JobKey, turn: _Turn) -> None:
        turn.users -= 1
        if not turn.users:
            del self._turns[key]

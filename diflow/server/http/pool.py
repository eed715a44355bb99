"""Runs blocking calls in a bounded number of threads, so that the event loop never waits for the API server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from diflow.server.http.errors import unavailable

Result = TypeVar("Result")


class Pool:
    """At most `threads` calls run and `waiting` calls wait; further calls are refused at once (503)."""

    def __init__(self, name: str, *, threads: int, waiting: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._limit = threads + waiting
        self._busy = 0
        self._is_closed = False

    @property
    def busy(self) -> int:
        """Calls that run or wait."""
        return self._busy

    async def run(self, call: Callable[[], Result]) -> Result:
        """Run `call` and return its result, or raise its exception. Cancelling the caller does not stop the call.

        Raises ApiError (503) if too many calls wait already, or after `close`.
        """
        if self._busy >= self._limit:
            raise unavailable("too many requests to the cluster at once")
        if self._is_closed:
            raise unavailable("this server is shutting down")
        self._busy += 1
        future = asyncio.get_running_loop().run_in_executor(self._executor, call)
        future.add_done_callback(self._done)
        return await asyncio.shield(future)

    def _done(self, future: asyncio.Future[Result]) -> None:
        self._busy -= 1
        if not future.cancelled():
            future.exception()  # retrieved here: the caller may be gone, and asyncio would log it as never retrieved

    def close(self) -> None:
        """Accept no further calls. Running calls end by their own timeouts."""
        self._is_closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)

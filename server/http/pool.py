"""Lets blocking calls wait in threads of a bounded number, so that the event loop never waits for the API server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from diflow.server.http.errors import unavailable

Result = TypeVar("Result")


class Pool:
    """At most `threads` calls at work and `waiting` before them; what comes beyond is told 503 at once."""

    def __init__(self, name: str, *, threads: int, waiting: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._most = threads + waiting
        self._busy = 0
        self._is_closed = False

    @property
    def busy(self) -> int:
        """Calls at work or waiting."""
        return self._busy

    async def run(self, call: Callable[[], Result]) -> Result:
        """What `call` gives, or raises. A caller who is cancelled does not end the call itself.

        Raises ApiError (503) when too many wait already.
        """
        if self._busy >= self._most:
            raise unavailable("too much is being asked of the cluster at once")
        if self._is_closed:
            raise unavailable("this server is ending")
        self._busy += 1
        future = asyncio.get_running_loop().run_in_executor(self._executor, call)
        future.add_done_callback(self._done)
        return await asyncio.shield(future)

    def _done(self, future: asyncio.Future[Result]) -> None:
        self._busy -= 1
        if not future.cancelled():
            future.exception()  # looked at here, as its caller may have gone

    def close(self) -> None:
        """Take no more. Calls at work are left to end by their own time-outs."""
        self._is_closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)

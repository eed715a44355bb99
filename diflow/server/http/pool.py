"""Runs blocking calls in a bounded number of threads, so that the event loop never waits for the API server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from diflow.common.clock import SYSTEM, Clock
from diflow.server.http.errors import unavailable
from diflow.server.http.turns import Turns

Result = TypeVar("Result")


class Pool:
    """At most `threads` calls run, for which tenants take turns (`turns.py`), and `waiting` calls wait; of more, the
    tenant with the most loses one (503). `rate`: the most calls a second of all tenants, after `burst` at once, of both
    of which one tenant gets `part`."""

    def __init__(
        self,
        name: str,
        *,
        threads: int,
        waiting: int,
        rate: float = float("inf"),
        burst: float = 1.0,
        part: float = 1.0,
        clock: Clock = SYSTEM,
    ) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._turns = Turns(rate=rate, burst=burst, part=part, places=threads, most=waiting, clock=clock)
        self._is_closed = False

    @property
    def busy(self) -> int:
        """Calls that run or wait."""
        return self._turns.busy

    async def run(self, call: Callable[[], Result], *, tenant: str = "") -> Result:
        """Run `call` and return its result, or raise its exception. Cancelling the caller drops a call that waits, and
        does not stop one that runs. `tenant`: who bears its cost.

        Raises ApiError (503) if too many calls wait already, or after `close`.
        """
        return await asyncio.shield(await self.begin(call, tenant=tenant))

    async def begin(self, call: Callable[[], Result], *, tenant: str = "") -> asyncio.Future[Result]:
        """As `run`, but return when the call has begun to run."""
        await self._turns.wait(tenant)
        if self._is_closed:
            self._turns.done(tenant)
            raise unavailable("this server is shutting down")
        future = asyncio.get_running_loop().run_in_executor(self._executor, call)
        future.add_done_callback(lambda done: self._done(done, tenant))
        return future

    def _done(self, future: asyncio.Future[Result], tenant: str) -> None:
        self._turns.done(tenant)
        if not future.cancelled():
            future.exception()  # retrieved here: the caller may be gone, and asyncio would log it as never retrieved

    def close(self) -> None:
        """Accept no further calls. Running calls end by their own timeouts."""
        self._is_closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)

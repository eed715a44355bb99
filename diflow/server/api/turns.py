"""A rate of writes that all jobs share; their namespaces take turns.

Each write into a Workflow costs the API server a write, and Argo a look at the whole Workflow. A thousand jobs that
report every second would leave nothing of either for other work.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import Final

from diflow.common.clock import Clock
from diflow.server.http.buckets import Buckets

_SHORTEST_SECONDS: Final = 0.001  # a shorter wait may be too short to change the clock


class Turns:
    """`rate` turns a second in the long run, and `burst` of them at once after a pause. For one event loop."""

    def __init__(self, *, rate: float, burst: float, clock: Clock) -> None:
        self._bucket = Buckets(rate=rate, burst=burst, most=1, clock=clock)
        self._pause = clock.pause
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._giver: asyncio.Task[None] | None = None
        self._is_open = False

    async def wait(self, namespace: str) -> None:
        """Wait for the next turn of this namespace."""
        if self._is_open or not (self._waiting or self._bucket.take("")):
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(namespace, deque()).append(turn)
        if self._giver is None:
            self._giver = asyncio.ensure_future(self._give())
        await turn

    def open(self) -> None:
        """Let everything pass from now on: the process ends."""
        self._is_open = True
        for turns in self._waiting.values():
            for turn in turns:
                if not turn.done():
                    turn.set_result(None)
        self._waiting.clear()

    async def _give(self) -> None:
        try:
            while self._waiting:
                namespace, turns = next(iter(self._waiting.items()))
                while turns and turns[0].done():  # its caller was cancelled
                    turns.popleft()
                if not turns:
                    del self._waiting[namespace]
                elif seconds := self._bucket.take(""):
                    await self._pause(max(seconds, _SHORTEST_SECONDS))
                else:
                    turns.popleft().set_result(None)
                    self._waiting.move_to_end(namespace)
        finally:
            self._giver = None

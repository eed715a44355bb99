"""Calls that concurrent requests share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SharedCalls(Generic[K, V]):
    """For each key, one call at a time, whose result all callers get. For one event loop."""

    def __init__(self) -> None:
        self._running: dict[K, asyncio.Task[V]] = {}

    async def result(self, key: K, start: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """The result of the running call, or of the one that `start` returns. A caller that leaves does not end it."""
        call = self._running.get(key)
        if call is None:
            call = self._running[key] = asyncio.ensure_future(start())
            call.add_done_callback(lambda done: self._forget(key, done))
        return await asyncio.shield(call)

    def _forget(self, key: K, done: asyncio.Task[V]) -> None:
        self._running.pop(key, None)
        if not done.cancelled():
            done.exception()  # retrieved here: the callers may be gone

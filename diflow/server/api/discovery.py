"""Long polls for the addresses of a job's replicas: they wait for changes of the cache, and send no requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from diflow.server.api.cache import Cache, JobKey
from diflow.server.http.errors import unavailable

_LOOK_SECONDS: Final = 1.0

Found = TypeVar("Found")


class Discovery:
    """At most `most` callers wait at a time. For one event loop."""

    def __init__(self, cache: Cache, *, most: int = 4096) -> None:
        self._cache = cache
        self._most = most
        self._waiting: dict[JobKey, set[asyncio.Event]] = {}
        self._count = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unsubscribe: Callable[[], None] = lambda: None

    @property
    def waiting(self) -> int:
        """The number of waiting callers."""
        return self._count

    def start(self) -> None:
        """Subscribe to the cache's changes; to be called in the event loop."""
        self._loop = asyncio.get_running_loop()
        self._unsubscribe = self._cache.subscribe(self._changed)

    def stop(self) -> None:
        """Unsubscribe, and wake all waiting callers."""
        self._unsubscribe()
        for events in list(self._waiting.values()):
            for event in events:
                event.set()

    async def wait(self, key: JobKey, look: Callable[[], Found | None], *, seconds: float) -> Found | None:
        """Call `look` at each change of this job until it returns a value; None after `seconds`.

        Raises ApiError (503) if too many callers wait already, and whatever `look` raises.
        """
        found = look()
        if found is not None or seconds <= 0:
            return found
        if self._count >= self._most:
            raise unavailable("too many requests wait already")
        loop = asyncio.get_running_loop()
        ends = loop.time() + seconds
        event = asyncio.Event()
        self._count += 1
        self._waiting.setdefault(key, set()).add(event)
        try:
            while (left := ends - loop.time()) > 0:
                event.clear()
                found = look()
                if found is not None:
                    return found
                try:
                    # The cache may become stale, or fresh again, without a change of this job.
                    await asyncio.wait_for(event.wait(), min(left, _LOOK_SECONDS))
                except TimeoutError:
                    continue
            return look()
        finally:
            self._count -= 1
            events = self._waiting[key]
            events.discard(event)
            if not events:
                del self._waiting[key]

    def _changed(self, key: JobKey) -> None:
        """Called in a reflector's thread when something of this job has changed."""
        loop = self._loop
        if key in self._waiting and loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake, key)

    def _wake(self, key: JobKey) -> None:
        for event in self._waiting.get(key, ()):
            event.set()

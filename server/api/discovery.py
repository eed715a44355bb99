"""Long polls for the addresses of a job's replicas: they wait on the cache, and nobody is asked meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from diflow.server.api.cache import Cache, JobKey
from diflow.server.http.errors import unavailable

_LOOK_SECONDS: Final = 1.0

Found = TypeVar("Found")


class Discovery:
    """At most `most` callers wait at a time. It is for one event loop, in which it must be made."""

    def __init__(self, cache: Cache, *, most: int = 4096) -> None:
        self._cache = cache
        self._most = most
        self._waiting: dict[JobKey, set[asyncio.Event]] = {}
        self._count = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leave: Callable[[], None] = lambda: None

    @property
    def waiting(self) -> int:
        """Callers that wait now."""
        return self._count

    def start(self) -> None:
        """Be told of changes, in the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._leave = self._cache.subscribe(self._changed)

    def stop(self) -> None:
        """Be told no more, and let all go who wait."""
        self._leave()
        for events in list(self._waiting.values()):
            for event in events:
                event.set()

    async def wait(self, key: JobKey, look: Callable[[], Found | None], *, seconds: float) -> Found | None:
        """What `look` finds, asked anew at each change of this job; None after `seconds`.

        Raises ApiError (503) if too many wait already, and whatever `look` raises.
        """
        found = look()
        if found is not None or seconds <= 0:
            return found
        if self._count >= self._most:
            raise unavailable("too many wait already")
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
                    # A cache becomes too old, or fresh again, without a change of this job.
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
        """In a reflector's thread: something of this job has changed."""
        loop = self._loop
        if key in self._waiting and loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake, key)

    def _wake(self, key: JobKey) -> None:
        for event in self._waiting.get(key, ()):
            event.set()

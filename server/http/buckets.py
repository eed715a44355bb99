"""Token buckets, one for each name, in bounded memory: who asks too often is told when to come again."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

from cachetools import LRUCache


class Buckets:
    """Each name may take `burst` at once, and `rate` a second for long. Only the `most` names used last are known.

    `clock` gives monotonic seconds. It is for one thread, such as that of an event loop.
    """

    def __init__(
        self, *, rate: float, burst: float, most: int = 10_000, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = rate
        self._burst = max(1.0, burst)
        self._clock = clock
        self._levels: LRUCache[Hashable, tuple[float, float]] = LRUCache(most)

    def take(self, name: Hashable) -> float:
        """0 if this name may go on now, else the seconds after which it may."""
        now = self._clock()
        level, since = self._levels.get(name, (self._burst, now))
        level = min(self._burst, level + (now - since) * self._rate)
        if level < 1.0:
            self._levels[name] = (level, now)
            return (1.0 - level) / self._rate
        self._levels[name] = (level - 1.0, now)
        return 0.0

    def give(self, name: Hashable) -> None:
        """Take one of the last ones back: it is not to be counted."""
        known = self._levels.get(name)
        if known is not None:
            self._levels[name] = (min(self._burst, known[0] + 1.0), known[1])

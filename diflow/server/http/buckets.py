"""Token buckets, one for each name, in bounded memory: a rate limit that says when to retry."""

from __future__ import annotations

from collections.abc import Hashable

from cachetools import LRUCache

from diflow.common.clock import SYSTEM, Clock


class Buckets:
    """Each name may take `burst` tokens at once and `rate` tokens per second in the long run.

    The `most` names used last are kept. Not thread-safe: for one event loop.
    """

    def __init__(self, *, rate: float, burst: float, most: int = 10_000, clock: Clock = SYSTEM) -> None:
        self._rate = rate
        self._burst = max(1.0, burst)
        self._clock = clock
        self._levels: LRUCache[Hashable, tuple[float, float]] = LRUCache(most)

    def take(self, name: Hashable, *, scale: float = 1.0) -> float:
        """Take one token: returns 0 if there was one, else the seconds until there is. `scale`: so many times the rate
        and the burst are allowed to this name."""
        now, rate, burst = self._clock.monotonic(), self._rate * scale, self._burst * scale
        level, since = self._levels.get(name, (burst, now))
        level = min(burst, level + (now - since) * rate)
        if level < 1.0:
            self._levels[name] = (level, now)
            return (1.0 - level) / rate
        self._levels[name] = (level - 1.0, now)
        return 0.0

    def refund(self, name: Hashable) -> None:
        """Put one token back: a request that is not to be counted."""
        known = self._levels.get(name)
        if known is not None:
            self._levels[name] = (min(self._burst, known[0] + 1.0), known[1])

"""A limited share of processor time for what each namespace's objects cost their readers.

One watch brings the changes of all namespaces. A user who changes an object again and again that takes long to read
would delay what a process knows of everybody's. So the time is measured, and objects of a namespace that has used its
share are read later; until then they are known as they were.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from diflow.common.clock import SYSTEM, Clock

Key = tuple[str, str]
"""(namespace, name)."""


@dataclass(slots=True)
class _Spent:
    seconds: float
    at: float


class Shares:
    """What each namespace has spent: `share` seconds in each second are its own, and up to `burst` seconds at once.

    `processor` returns the seconds of a processor that this thread has used.
    """

    def __init__(
        self,
        *,
        share: float,
        burst: float,
        clock: Clock = SYSTEM,
        processor: Callable[[], float] = time.thread_time,
    ) -> None:
        self.share, self.burst = share, burst
        self._clock, self._processor = clock, processor
        self._lock = threading.Lock()
        self._spent: dict[str, _Spent] = {}

    def may(self, namespace: str) -> bool:
        """Whether the namespace has time left."""
        with self._lock:
            return self._now(namespace) < self.burst

    def timer(self) -> Callable[[], float]:
        """A function that returns the seconds of a processor that this thread has used since now."""
        began = self._processor()
        return lambda: self._processor() - began

    def charge(self, namespace: str, seconds: float) -> None:
        """The namespace has cost so many seconds."""
        with self._lock:
            now = self._now(namespace)
            self._spent[namespace] = _Spent(now + seconds, self._clock.monotonic())

    @contextmanager
    def paid_by(self, namespace: str) -> Iterator[None]:
        """Charge the namespace for what this thread does in the block."""
        took = self.timer()
        try:
            yield
        finally:
            self.charge(namespace, took())

    def spent_seconds(self, namespace: str) -> float:
        """What the namespace has cost and is not paid for by its share yet."""
        with self._lock:
            return self._now(namespace)

    def left_seconds(self, namespace: str) -> float:
        """Until when the namespace has no time left, in seconds from now; 0 if it has some."""
        with self._lock:
            return max(0.0, (self._now(namespace) - self.burst) / self.share)

    def _now(self, namespace: str) -> float:
        spent = self._spent.get(namespace)
        if spent is None:
            return 0.0
        now = self._clock.monotonic()
        spent.seconds, spent.at = max(0.0, spent.seconds - self.share * (now - spent.at)), now
        if spent.seconds == 0.0:
            del self._spent[namespace]
        return spent.seconds


class Late:
    """The objects that are read later, as their namespace has used its share. Each call needs a lock of the caller, or
    is of one thread."""

    def __init__(self, shares: Shares, *, clock: Clock = SYSTEM) -> None:
        self._shares, self._clock = shares, clock
        self._since: OrderedDict[Key, float] = OrderedDict()

    def add(self, key: Key, since: float | None = None) -> None:
        """Read this object later. `since`: since when it waits, if it was tried before (on the clock)."""
        self._since.setdefault(key, self._clock.monotonic() if since is None else since)

    def discard(self, key: Key) -> float | None:
        """It was read, or does not exist any more. Returns since when it waited; None if it did not."""
        return self._since.pop(key, None)

    def due(self) -> list[Key]:
        """The objects that may be read now, at most one of a namespace: that which waits longest."""
        first: dict[str, Key] = {}
        for key in self._since:
            first.setdefault(key[0], key)
        return [key for key in first.values() if self._shares.may(key[0])]

    def __len__(self) -> int:
        return len(self._since)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._since)

    def ages(self) -> Mapping[str, float]:
        """For how many seconds an object of each namespace waits, of all the longest."""
        now, longest = self._clock.monotonic(), dict[str, float]()
        for key, since in self._since.items():
            longest[key[0]] = max(now - since, longest.get(key[0], 0.0))
        return longest

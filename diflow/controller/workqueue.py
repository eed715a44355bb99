"""Which jobs are looked at next: each at most once at a time, after its time has come, namespaces in turn.

It knows only keys and times. A namespace with thousands of changed jobs delays those of others by one look each.
"""

from __future__ import annotations

import heapq
import threading
from collections import OrderedDict
from typing import Final

from diflow.common.clock import SYSTEM, Clock

Key = tuple[str, str]
"""(namespace, name)."""

_LOOK_SECONDS: Final = 1.0
# Times of looks that came earlier than at these. A key that changes all the time, and is to be looked at in an hour,
# would else leave thousands.
_MOST_STALE: Final = 1_000


class WorkQueue:
    """Keys with the times from which they are due."""

    def __init__(self, *, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._due: dict[Key, float] = {}
        self._later: list[tuple[float, Key]] = []
        self._ready: OrderedDict[str, OrderedDict[Key, None]] = OrderedDict()
        self._rests: dict[Key, float] = {}
        self._busy: set[Key] = set()
        self._again: dict[Key, float] = {}

    def add(self, key: Key) -> None:
        """Look at the key as soon as its rest is over."""
        with self._changed:
            self._add(key, self._clock.monotonic())

    def pop(self, stop: threading.Event) -> Key | None:
        """The next key that is due, which is busy until `done`. Waits for it; None when `stop` is set."""
        while not stop.is_set():
            key = self.take()
            if key is not None:
                return key
            with self._changed:
                if not self._ready:
                    left = self._later[0][0] - self._clock.monotonic() if self._later else _LOOK_SECONDS
                    self._changed.wait(min(max(left, 0.001), _LOOK_SECONDS))
        return None

    def take(self) -> Key | None:
        """The next key that is due, without waiting."""
        with self._changed:
            now = self._clock.monotonic()
            while self._later and self._later[0][0] <= now:
                due, key = heapq.heappop(self._later)
                if self._due.get(key) == due:
                    self._ready.setdefault(key[0], OrderedDict())[key] = None
            if not self._ready:
                return None
            namespace, keys = next(iter(self._ready.items()))
            key, _ = keys.popitem(last=False)
            if keys:
                self._ready.move_to_end(namespace)
            else:
                del self._ready[namespace]
            del self._due[key]
            self._busy.add(key)
            return key

    def done(self, key: Key, *, again: float | None = None, rest: float = 0.0) -> None:
        """The look at this key is over: look again in `again` seconds (None: when it is added), and not within `rest`
        seconds for any reason."""
        with self._changed:
            now = self._clock.monotonic()
            self._busy.discard(key)
            if rest > 0:
                self._rests[key] = now + rest
            added = self._again.pop(key, None)
            if added is not None:
                self._add(key, added)
            if again is not None:
                self._add(key, now + again)

    def forget(self, key: Key) -> None:
        """The key does not exist any more."""
        with self._changed:
            self._rests.pop(key, None)

    def __len__(self) -> int:
        """How many keys are due, or will be."""
        with self._changed:
            return len(self._due)

    def _add(self, key: Key, due: float) -> None:
        """Call with the lock held."""
        if key in self._busy:
            self._again[key] = min(due, self._again.get(key, due))
            return
        rest = self._rests.get(key, 0.0)
        if rest <= self._clock.monotonic():
            self._rests.pop(key, None)
        due = max(due, rest)
        if due < self._due.get(key, float("inf")) and key not in self._ready.get(key[0], ()):
            self._due[key] = due
            heapq.heappush(self._later, (due, key))
            if len(self._later) > 2 * len(self._due) + _MOST_STALE:
                self._later = [(when, other) for other, when in self._due.items()]
                heapq.heapify(self._later)
            self._changed.notify()

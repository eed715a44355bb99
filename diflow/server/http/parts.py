"""What is kept for a while in bounded memory, in parts of tenants, so that none displaces what belongs to others."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Parts(Generic[K, V]):
    """Values by key, `most` in all. One more takes the place of a value of the tenant that has the most: of the one
    that it has not used for the longest time. `timer` returns seconds. Not thread-safe."""

    def __init__(self, most: int, *, timer: Callable[[], float]) -> None:
        self._most = most
        self._timer = timer
        self._tenant: dict[K, str] = {}
        self._parts: dict[str, OrderedDict[K, tuple[V, float]]] = {}

    def get(self, key: K) -> V | None:
        """The value, None if it is not kept (any more)."""
        tenant = self._tenant.get(key)
        if tenant is None:
            return None
        value, ends = self._parts[tenant][key]
        if ends <= self._timer():
            self.pop(key)
            return None
        self._parts[tenant].move_to_end(key)
        return value

    def keep(self, key: K, value: V, *, tenant: str, seconds: float = math.inf) -> None:
        """Keep a value of this tenant for so long."""
        self.pop(key)
        if len(self._tenant) >= self._most:
            largest = max(self._parts.values(), key=len)
            own = self._parts.get(tenant)
            self.pop(next(iter(own if own is not None and len(own) >= len(largest) else largest)))
        self._tenant[key] = tenant
        self._parts.setdefault(tenant, OrderedDict())[key] = value, self._timer() + seconds

    def pop(self, key: K) -> None:
        """Forget a value, if it is kept."""
        tenant = self._tenant.pop(key, None)
        if tenant is None:
            return
        part = self._parts[tenant]
        del part[key]
        if not part:
            del self._parts[tenant]

    def clear(self) -> None:
        self._tenant.clear()
        self._parts.clear()

    def __iter__(self) -> Iterator[K]:
        return iter(list(self._tenant))

    def __len__(self) -> int:
        return len(self._tenant)

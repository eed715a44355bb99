"""Bounds what a process keeps of the objects of each namespace, in bytes of its memory.

Each object is bounded by itself, but not how many there are. A namespace that fills its part gets no more objects kept
whole; those of others do not notice.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any, Final

from msgspec import Raw

Key = tuple[str, str]
"""(namespace, name)."""

_GROWTH: Final = 1.25
"""What is kept already may grow until the namespace has this many times its part: a job that runs is not let go because
others were added."""
_NOT_COUNTED: Final = (type, ModuleType, FunctionType)


@dataclass(slots=True)
class _Namespace:
    """`own`: the bytes of each object by name, without what it shares; `shared`: (uses, bytes, what) by identity. The
    names in `left_out` are not kept whole."""

    total: int = 0
    own: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    shared: dict[int, tuple[int, int, Any]] = field(default_factory=dict)
    left_out: OrderedDict[str, None] = field(default_factory=OrderedDict)


class KeptBytes:
    """What is kept of each namespace; at most `most` bytes. Any thread may call it."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._lock = threading.Lock()
        self._spaces: dict[str, _Namespace] = {}

    def admits(self, key: Key, kept: object, shared: Sequence[object] = ()) -> bool:
        """Count this object, in place of an earlier one of its key; False if its namespace has no room for it: then
        nothing is counted. `shared`: parts of it that other objects may have too, and that count once."""
        with self._lock:
            space = self._spaces.setdefault(key[0], _Namespace())
            before = _uncounted(space, key[1])
            own = bytes_of([kept], beside=shared)
            added = {id(one): one for one in shared}
            new = {name: bytes_of([one]) for name, one in added.items() if name not in space.shared}
            size = own + sum(new.values())
            most = self.most * _GROWTH if before else self.most
            if space.total + size > most and size > before:
                space.left_out[key[1]] = None
                return False
            space.left_out.pop(key[1], None)
            for name, one in added.items():
                uses, part, _ = space.shared.get(name, (0, new.get(name, 0), one))
                space.shared[name] = uses + 1, part, one
            space.own[key[1]] = own, tuple(added)
            space.total += size
            return True

    def forget(self, key: Key) -> None:
        """This object is not kept any more."""
        with self._lock:
            space = self._spaces.get(key[0])
            if space is None:
                return
            _uncounted(space, key[1])
            space.left_out.pop(key[1], None)
            if not space.own and not space.left_out:
                del self._spaces[key[0]]

    def next_left_out(self, namespace: str) -> str:
        """The object that was left out first, if there may be room for it now; "" if there is none."""
        with self._lock:
            space = self._spaces.get(namespace)
            if space is None or not space.left_out or space.total >= self.most:
                return ""
            name = next(iter(space.left_out))
            space.left_out.move_to_end(name)
            return name

    def bytes_in(self, namespace: str) -> int:
        """The bytes that are counted for a namespace."""
        with self._lock:
            space = self._spaces.get(namespace)
            return space.total if space is not None else 0

    def full(self) -> dict[str, int]:
        """How many objects of each namespace are left out, if some are."""
        with self._lock:
            return {name: len(space.left_out) for name, space in self._spaces.items() if space.left_out}


def _uncounted(space: _Namespace, name: str) -> int:
    """Count an object no more. Returns its bytes, with those that no other one shares."""
    own, parts = space.own.pop(name, (0, ()))
    freed = own
    for part in parts:
        uses, size, one = space.shared.pop(part)
        if uses > 1:
            space.shared[part] = uses - 1, size, one
        else:
            freed += size
    space.total -= freed
    return freed


def bytes_of(roots: Iterable[object], *, beside: Iterable[object] = ()) -> int:
    """The bytes of these objects with all that they refer to, without `beside` and what that refers to."""
    seen = {id(one) for one in beside}
    left = list(roots)
    total = 0
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, _NOT_COUNTED):
            continue
        seen.add(id(one))
        # A part of a text that is not parsed yet; its own answer to getsizeof is not a size.
        total += len(bytes(one)) if isinstance(one, Raw) else sys.getsizeof(one)
        left.extend(gc.get_referents(one))
    return total

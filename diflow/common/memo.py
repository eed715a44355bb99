"""A cache of parsed texts, bounded in bytes.

`functools.lru_cache` bounds the number of texts, not their length. A user who may change a Workflow chooses the texts
and how many there are: a thousand long ones would exhaust the memory of the process.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import lru_cache, wraps
from typing import Any, Final, Protocol, TypeVar

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")

MIB = 2**20
_SHARE = 16
"""One key may take at most 1/16 of the bytes; results of larger keys are not cached."""
_LONGEST_SHARED: Final = 512


@lru_cache(maxsize=16_384)
def _same_text(text: str) -> str:
    return text


class _Decorator(Protocol):
    def __call__(self, read: Callable[[Key], Result], /) -> Callable[[Key], Result]: ...


def same_text(text: str) -> str:
    """One shared object for equal texts, of which many objects have the same. They live at least as long as the last
    owner, and are kept for the most recently used ones."""
    return _same_text(text) if len(text) <= _LONGEST_SHARED else text


def remembered(*, most_bytes: int, size: Callable[[Any], int] = sys.getsizeof) -> _Decorator:
    """Cache a function of one argument for the most recently used arguments, up to `most_bytes` in total.

    `size` is the number of bytes that an argument takes. Exceptions are not cached.
    """

    def decorate(read: Callable[[Key], Result]) -> Callable[[Key], Result]:
        kept: OrderedDict[Key, tuple[Result, int]] = OrderedDict()
        lock = threading.Lock()
        left = most_bytes

        @wraps(read)
        def careful(key: Key) -> Result:
            nonlocal left
            with lock:
                found = kept.get(key)
                if found is not None:
                    kept.move_to_end(key)
                    return found[0]
            result, needed = read(key), size(key)
            if needed > most_bytes // _SHARE:
                return result
            with lock:
                if key not in kept:
                    kept[key] = result, needed
                    left -= needed
                while left < 0:
                    _, (_, freed) = kept.popitem(last=False)
                    left += freed
            return result

        return careful

    return decorate

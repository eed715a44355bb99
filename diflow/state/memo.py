"""Remembers what was read from a text, in a bounded number of bytes.

`functools.lru_cache` bounds how many texts are remembered and not how long they are. Who may change a Workflow chooses
the texts, and writes as many different ones as he likes: a thousand of them would fill the memory of the process.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, Protocol, TypeVar

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")

MIB = 2**20
_SHARE = 16
"""One key takes at most this part of the bytes; what is read from a larger one is not remembered."""


class _Decorator(Protocol):
    def __call__(self, read: Callable[[Key], Result], /) -> Callable[[Key], Result]: ...


def remembered(*, most_bytes: int, size: Callable[[Any], int] = sys.getsizeof) -> _Decorator:
    """Keep what a function of one argument gave, for the arguments used last, of `most_bytes` together.

    `size` is how many bytes an argument takes. What the function raises is not kept.
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

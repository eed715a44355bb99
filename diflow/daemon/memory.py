"""Gives memory that a process does not use any more back to the system.

glibc keeps what is freed between other parts, and gives each thread a heap of its own: after a hundred readings of a
Workflow of 14 MB that nobody keeps, a process of 140 MB had 820. Its limit would end it with nothing to blame.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_STATM: Final = Path("/proc/self/statm")
_PAGE: Final = 4096
_EVERY_SECONDS: Final = 1.0
_GROWTH: Final = 32 * 2**20
"""Bytes by which the process must have grown since the last time. Giving back takes a few milliseconds."""
_MOST_LOOKS: Final = 5
_M_ARENA_MAX: Final = -8
_ARENAS: Final = 2


class Heap:
    """The memory of this process. `size` returns its resident bytes, `trim` gives back what is free."""

    def __init__(self, size: Callable[[], int], trim: Callable[[], object]) -> None:
        self._size, self._trim = size, trim
        self._least = size()
        self._looks = 0

    def look(self) -> None:
        """Give back what is free if the process has grown, and every few looks: what is freed later does not show."""
        self._looks += 1
        size = self._size()
        if size - self._least > _GROWTH or self._looks >= _MOST_LOOKS:
            self._trim()
            self._least, self._looks = self._size(), 0
        self._least = min(self._least, size)


@contextmanager
def kept_small() -> Iterator[None]:
    """Look once a second, in a thread, until the end of the block. Does nothing without glibc."""
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_M_ARENA_MAX, _ARENAS)
        heap = Heap(_resident, lambda: libc.malloc_trim(0))
    except (OSError, AttributeError):
        yield
        return
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(_EVERY_SECONDS):
            heap.look()

    threading.Thread(target=work, name="memory", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _resident() -> int:
    return int(_STATM.read_text().split()[1]) * _PAGE

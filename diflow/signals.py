"""How a daemon ends on a signal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def ending_on_signals(end: Callable[[], None]) -> Iterator[None]:
    """TERM and INT call `end`, in a thread; a second one ends the process at once."""
    before: dict[int, Any] = {}

    def on_signal(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        # In a thread: the main thread, which runs this handler, may hold a lock that `end` needs.
        threading.Thread(target=end, name="signal", daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, on_signal)
    try:
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)

"""The time, sleep and chance of a process, in one value that tests replace."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final


async def _pause(seconds: float) -> None:
    import asyncio  # noqa: PLC0415 (slow to import, and only the server has an event loop)

    await asyncio.sleep(seconds)


@dataclass(frozen=True, slots=True)
class Clock:
    """Where a process has its time and chance from; without arguments from the machine."""

    monotonic: Callable[[], float] = time.monotonic
    """Seconds that only grow, from any beginning."""
    wall: Callable[[], float] = time.time
    """Seconds since 1970."""
    sleep: Callable[[float], object] = time.sleep
    """Sleeps for so many seconds; blocks."""
    pause: Callable[[float], Awaitable[object]] = _pause
    """Sleeps for so many seconds in an event loop."""
    wait: Callable[[threading.Event, float], object] = threading.Event.wait
    """Waits for an event, for at most so many seconds."""
    jitter: Callable[[float, float], float] = random.uniform
    """A number between these two."""


SYSTEM: Final = Clock()

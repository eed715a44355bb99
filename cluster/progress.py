"""Lines of progress on stderr, each with the seconds since the command began."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

Progress = Callable[[str], None]


def reporter() -> Progress:
    """A function that prints one line."""
    began = time.monotonic()

    def report(line: str) -> None:
        print(f"[{time.monotonic() - began:6.1f} s] {line}", file=sys.stderr, flush=True)

    return report

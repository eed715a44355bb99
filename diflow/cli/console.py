"""What every command prints with: data to stdout, chatter to stderr, colours only where someone looks at them."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing import TextIO

_CODES: Final = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35", "cyan": "36", "dim": "2",
                 "bold": "1"}  # fmt: skip
_PHASES: Final = {
    "Succeeded": "green",
    "Running": "green",
    "Failed": "red",
    "Error": "red",
    "Unknown": "red",
    "Pending": "yellow",
    "Starting": "yellow",
    "Restarting": "yellow",
    "Rescheduling": "yellow",
}
# Colours that can be told apart on dark and on light screens; ranks take them in turn.
_TURNS: Final = ("cyan", "green", "yellow", "magenta", "blue")


def colours(stream: TextIO) -> bool:
    """Whether to write colours: to a terminal, unless NO_COLOR is set (https://no-color.org)."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str, *, on: bool) -> str:
    """Text in a colour, when it is `on`."""
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if on and colour in _CODES else text


def phase_colour(phase: str) -> str:
    """The colour of a phase of a job or a pod."""
    return _PHASES.get(phase, "")


def turn_colour(number: int) -> str:
    """The colour of the n-th of several."""
    return _TURNS[number % len(_TURNS)]


def say(text: str = "") -> None:
    """Print data."""
    sys.stdout.write(f"{text}\n")


def note(text: str) -> None:
    """Print a remark that is not data."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def warn(text: str) -> None:
    """Print a warning."""
    note(f"{paint('warning:', 'yellow', on=colours(sys.stderr))} {text}")


def complain(text: str) -> None:
    """Print an error."""
    note(f"{paint('error:', 'red', on=colours(sys.stderr))} {text}")

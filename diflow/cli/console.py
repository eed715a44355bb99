"""Output of all commands: data to stdout, messages to stderr, colours only on terminals."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

    from rich.table import Table

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
# Colours that are distinct on dark and light backgrounds; ranks use them in turn.
_TURNS: Final = ("cyan", "green", "yellow", "magenta", "blue")
# Our own colours (group 1); control characters of both sets; and bidirectional controls.
_CONTROL: Final = re.compile(
    rf"(\x1b\[(?:0|{'|'.join(_CODES.values())})m)"
    "|[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)


PLAIN: Final = "diflow-plain"
"""The name of the codec error handler `plain`."""
_ASCII: Final = {
    "→": "->",
    "✓": "ok",
    "✗": "no",
    "–": "-",
    "—": "-",
    "…": "...",
    "×": "x",
    "█": "#",
    "─": "-",
    "│": "|",
}


class DetachedError(Exception):
    """Ctrl-C while following a job, which continues. The message says how to follow it again."""


def plain(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that the output cannot encode: by similar ASCII, else by an escape."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(_ASCII.get(c) or c.encode("ascii", "backslashreplace").decode() for c in text), error.end


def encodes(stream: TextIO, text: str) -> bool:
    """Whether a stream can encode a text."""
    try:
        text.encode(getattr(stream, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def colours(stream: TextIO) -> bool:
    """Whether to write colours: to a terminal, unless NO_COLOR is set (https://no-color.org)."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str, *, on: bool) -> str:
    """Text in a colour if `on`."""
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if on and colour in _CODES else text


def phase_colour(phase: str) -> str:
    """The colour of a phase of a job or a pod."""
    return _PHASES.get(phase, "")


def turn_colour(number: int) -> str:
    """The colour of the n-th of several."""
    return _TURNS[number % len(_TURNS)]


def harmless(text: str) -> str:
    """Escape control characters except line ends, tabs and our own colours.

    Much of the output is text of users, whose escape sequences a terminal would execute.
    """
    return _CONTROL.sub(lambda found: found[0] if found[1] else ascii(found[0])[1:-1], text)


def rich_table(*, expand: bool = False) -> Table:
    """A table of the live views, in the style of the plain ones (`diflow.common.tables`)."""
    from rich.table import Table  # noqa: PLC0415 (plain commands start without it)

    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", expand=expand)


def say(text: str = "") -> None:
    """Print text to stdout."""
    sys.stdout.write(f"{harmless(text)}\n")


def note(text: str) -> None:
    """Print a message to stderr."""
    sys.stderr.write(f"{harmless(text)}\n")
    sys.stderr.flush()


def warn(text: str) -> None:
    """Print a warning."""
    note(f"{paint('warning:', 'yellow', on=colours(sys.stderr))} {text}")


def once(say: Callable[[str], None]) -> Callable[[str], None]:
    """Says each text once."""
    said: set[str] = set()

    def say_new(text: str) -> None:
        if text not in said:
            said.add(text)
            say(text)

    return say_new


def complain(text: str) -> None:
    """Print an error."""
    note(f"{paint('error:', 'red', on=colours(sys.stderr))} {text}")

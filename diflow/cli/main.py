"""Runs a command and converts its errors to one line and an exit code."""

from __future__ import annotations

import codecs
import errno
import gc
import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from diflow.cli.console import PLAIN, DetachedError, complain, note, plain
from diflow.common.errors import DiflowError

TIMED_OUT = 124  # as timeout(1) has it
_COLLECT_AFTER_OBJECTS = 200_000
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
_COMPLETES = "_DIFLOW_COMPLETE"  # the variable with which a completion script calls diflow
INTERRUPTED = 130  # as shells have it: 128 + SIGINT


class Nowhere(io.TextIOBase):
    """Replaces a standard output that was closed when the process started."""

    def __init__(self) -> None:
        super().__init__()
        self._file = os.open(os.devnull, os.O_WRONLY)  # else a socket would get this file descriptor, and the output
        self.was_written = False

    def fileno(self) -> int:
        return self._file

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        """Discard the text."""
        self.was_written = self.was_written or bool(text)
        return len(text)


def run(args: Sequence[str] | None = None) -> NoReturn:
    """Run `diflow` with these arguments (by default those of the process), and exit."""
    _write_what_the_terminal_can()
    collect_rarely()
    sys.exit(code_of(args))


def collect_rarely() -> None:
    """Set the thresholds of Python's garbage collector for millions of small objects without cycles.

    With the default ones it would take three quarters of the time of a list of a thousand Workflows.
    """
    gc.set_threshold(_COLLECT_AFTER_OBJECTS, 50, 50)


def _write_what_the_terminal_can() -> None:
    """Replace characters that stdout or stderr cannot encode (such as an arrow in ASCII); replace closed streams."""
    codecs.register_error(PLAIN, plain)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Nowhere())
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=PLAIN)


def code_of(args: Sequence[str] | None = None) -> int:
    """Run `diflow` and return its exit code. Tracebacks are shown only if DIFLOW_DEBUG is set."""
    try:
        from diflow.cli.app import root  # noqa: PLC0415 (its errors must be caught here too)

        if _COMPLETES in os.environ:
            from typer._completion_classes import completion_init  # noqa: PLC0415 (typer offers it nowhere else)

            completion_init()
        given = _in_full(sys.argv[1:] if args is None else args)
        result = root()(args=given, prog_name="diflow", standalone_mode=False)
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        code = _ended_by(error)
        if code is None:
            raise
    else:
        code = result if isinstance(result, int) else 0
    if isinstance(sys.stdout, Nowhere) and sys.stdout.was_written:
        complain("standard output is closed: what was to be printed is lost")
        return code or 1
    return code


def _full_output(error: BaseException) -> str:
    """Why the output cannot be written, if that is the error; else ""."""
    if not isinstance(error, OSError) or error.filename is not None or error.errno not in _FULL:
        return ""
    return error.strerror or str(error)


def _write_no_more() -> None:
    """Prevent further writes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _in_full(args: Sequence[str]) -> list[str]:
    """Add the default to `submit --dry-run`: typer does not support options with an optional value."""
    if args[:1] != ["submit"]:
        return list(args)
    follows = [*args[1:], ""]
    return [
        "--dry-run=client" if arg == "--dry-run" and after not in ("client", "server") else arg
        for arg, after in zip(args, follows, strict=True)
    ]


def _is_interrupt(error: BaseException) -> bool:
    """Whether this is Ctrl-C, also as the cause of another error.

    Python 3.11 raises a RuntimeError from a KeyboardInterrupt in `__set_name__`, that is during an import.
    """
    at: BaseException | None = error
    while at is not None:
        if isinstance(at, KeyboardInterrupt):
            return True
        at = at.__cause__
    return type(error).__name__ == "Abort"


def _ended_by(error: BaseException) -> int | None:
    """Print the error and return its exit code; None for an error to show with its traceback."""
    code: int | None = 1
    if _is_interrupt(error):
        code = INTERRUPTED
    elif isinstance(error, DetachedError):
        note(str(error))
        code = INTERRUPTED
    elif isinstance(error, BrokenPipeError):
        _write_no_more()  # the reader (head, a pager) has exited
        code = 0
    elif why := _full_output(error):
        _write_no_more()
        complain(f"the output cannot be written: {why}")
    elif hasattr(error, "show") and hasattr(error, "exit_code"):  # typer's own, of wrong usage
        error.show()
        code = int(error.exit_code)
    elif os.environ.get("DIFLOW_DEBUG", "") not in ("", "0"):
        code = None
    elif isinstance(error, DiflowError):
        complain(str(error))
        code = error.exit_code
    elif isinstance(error, TimeoutError):
        complain(str(error))
        code = TIMED_OUT
    else:
        text = " ".join(str(error).split()) or "no message"
        complain(f"unexpected {type(error).__name__}: {text} (DIFLOW_DEBUG=1 shows where; please report it)")
    return code

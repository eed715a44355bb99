"""The errors that a user can meet, and the one place that turns them into a line and an exit code.

CartpoleError
├── SettingError   an environment variable is missing or wrong
├── WireError      what came over the network is not a frame of ours
├── LinkError      the learner refused us, or could not be reached for too long
└── StoreError     the folder for checkpoints cannot be used
"""

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

EXIT_FAILED = 1
EXIT_TERMINATED = 128 + signal.SIGTERM


class CartpoleError(Exception):
    """Anything that ends a process of this job with one clear line instead of a trace-back."""


class SettingError(CartpoleError):
    """An environment variable is missing or wrong: the pod template or the command line has to change."""


class WireError(CartpoleError):
    """A peer sent something that is not a frame of this protocol: the connection is of no more use."""


class LinkError(CartpoleError):
    """The learner refused this process, or could not be reached for too long."""


class StoreError(CartpoleError):
    """The folder for checkpoints cannot be used."""


def say(text: str) -> None:
    """Write one line to the log at once: a pod's log is a pipe, and a pipe is buffered in blocks."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def exit_on_sigterm() -> None:
    """End at once on SIGTERM: for the roles that keep nothing worth saving."""

    def leave(_number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(EXIT_TERMINATED)

    signal.signal(signal.SIGTERM, leave)


def run(program: Callable[[], int]) -> NoReturn:
    """Run a role to its end and leave with its exit code; known errors become one line on stderr."""
    try:
        code = program()
    except CartpoleError as error:
        sys.stderr.write(f"error: {error}\n")
        code = EXIT_FAILED
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else EXIT_FAILED
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads that sit in a blocking read must not hold the process back.
    os._exit(code)

"""How a daemon that works while it leads ends: by a signal, or because another process has become the leader."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

import structlog

from diflow.common.errors import LostLeadershipError
from diflow.daemon.memory import kept_small

# After a loss of leadership nothing is written; if the work still hangs after this time, the process exits.
_LONGEST_END_SECONDS: Final = 20.0


class Watched(Protocol):
    """What a process says about itself."""

    def health(self) -> str:
        """Why this process should be restarted, or ""."""

    def readiness(self) -> tuple[bool, str]:
        """(whether it is ready, the state or reason as text)."""


class Tenure:
    """The time for which a process runs as a daemon. `wake`: makes the work notice that `stop` is set."""

    def __init__(self, name: str, *, wake: Callable[[], None] = lambda: None) -> None:
        self.stop = threading.Event()
        self._log = structlog.get_logger(name)
        self._wake = wake
        self._exits: list[threading.Timer] = []

    def lose(self, why: str) -> None:
        """Another process leads: end the work, and the process if the work does not end."""
        self._log.error("the lead is lost", why=why)
        timer = threading.Timer(_LONGEST_END_SECONDS, os._exit, (LostLeadershipError.exit_code,))
        timer.daemon = True
        self._exits.append(timer)
        timer.start()
        self.end()

    def end(self) -> None:
        """End the work."""
        self.stop.set()
        self._wake()

    def watch(self, process: Watched, abandon: Callable[[str], None], *, every_seconds: float = 5.0) -> None:
        """Log each change of readiness, and `abandon` the lead when the process hangs, in a thread, until the end.

        A leader that hangs stops renewing its Lease, so that another process leads when it has expired.
        """
        given = (process, abandon, every_seconds)
        threading.Thread(target=self._watch, args=given, name="troubles", daemon=True).start()

    def _watch(self, process: Watched, abandon: Callable[[str], None], every_seconds: float) -> None:
        last = ""
        while not self.stop.wait(every_seconds):
            if ill := process.health():
                abandon(ill)
            is_ready, text = process.readiness()
            if text != last:
                last = text
                if is_ready:
                    self._log.info("ready", state=text)
                else:
                    self._log.warning("not ready", why=text)

    def serve(self, work: Callable[[threading.Event], None], **details: str) -> int:
        """Do the work until `stop` is set. Returns the exit code: 5 when leadership was lost.

        `details` are logged at the start.
        """
        code = 0
        with kept_small(), _ending_on_signals(self.end):
            self._log.info("started", **details)
            try:
                work(self.stop)
            except LostLeadershipError:
                code = LostLeadershipError.exit_code
            finally:
                self.stop.set()
                for timer in self._exits:
                    timer.cancel()
        code = LostLeadershipError.exit_code if self._exits else code
        self._log.info("ended", code=code)
        return code


@contextmanager
def _ending_on_signals(end: Callable[[], None]) -> Iterator[None]:
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

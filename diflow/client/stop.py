"""Handles SIGTERM, which the kubelet sends at the start of the grace period.

Python runs signal handlers, and thus the callbacks, in the main thread between two of its instructions. A previous
handler is called as well.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from diflow.common.errors import InvalidError

log = logging.getLogger("diflow.client")

Callback = Callable[[], object]


class Stop:
    """Whether SIGTERM was received, and its callbacks."""

    def __init__(self) -> None:
        self._callbacks: list[Callback] = []
        self._noticed = False
        self._installed = False
        self._before: Any = None

    def add(self, callback: Callback | None) -> None:
        """Call `callback` on the signal; immediately if it was received already.

        From the first call on, the signal no longer ends the process. Raises InvalidError if the first call is not from
        the main thread.
        """
        if not self._installed:
            if threading.current_thread() is not threading.main_thread():
                raise InvalidError(
                    "on_stop works only from the main thread, as Python handles signals there alone: call it there "
                    "once, before you start threads"
                )
            self._before = signal.signal(signal.SIGTERM, self._handle)
            self._installed = True
        if callback is None:
            return
        self._callbacks.append(callback)
        if self._noticed:
            self._call(callback)

    def noticed(self) -> bool:
        """Whether the signal was received. A call from the main thread also installs the handler."""
        if not self._installed and threading.current_thread() is threading.main_thread():
            self.add(None)
        return self._noticed

    def forget(self) -> None:
        """Restore the previous handler in a forked process, without callbacks."""
        if self._installed and signal.getsignal(signal.SIGTERM) == self._handle:
            with contextlib.suppress(ValueError):  # not its main thread
                signal.signal(signal.SIGTERM, signal.SIG_DFL if self._before is None else self._before)
                self._installed = False
        self._callbacks, self._noticed = [], False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        callbacks = [] if self._noticed else list(self._callbacks)
        self._noticed = True
        try:
            self._call_all(callbacks)
        finally:
            if callable(self._before):
                self._before(number, frame)

    def _call_all(self, callbacks: list[Callback]) -> None:
        """Call each one, even if an earlier one raises SystemExit."""
        if callbacks:
            try:
                self._call(callbacks[0])
            finally:
                self._call_all(callbacks[1:])

    def _call(self, callback: Callback) -> None:
        try:
            callback()
        except Exception:
            log.exception("the callback %r of on_stop failed", callback)

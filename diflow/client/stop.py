"""Notices that this process is to stop: the SIGTERM that the kubelet sends before its grace period begins.

Python runs handlers of signals in the main thread alone, between two of its instructions, and so callbacks run. A
handler that was there before is called as well.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from diflow.errors import InvalidError

log = logging.getLogger("diflow.client")

Callback = Callable[[], object]


class Stop:
    """Whether SIGTERM has come, and who is told of it."""

    def __init__(self) -> None:
        self._callbacks: list[Callback] = []
        self._noticed = False
        self._installed = False
        self._before: Any = None

    def add(self, callback: Callback | None) -> None:
        """Call this when the signal comes; at once if it has. The first time it must be the main thread that asks.

        From then on the signal itself ends nothing any more: the program does. Raises InvalidError in another thread.
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
        """Whether the signal has come. Asked from the main thread, it is looked out for from then on."""
        if not self._installed and threading.current_thread() is threading.main_thread():
            self.add(None)
        return self._noticed

    def forget(self) -> None:
        """In a process that was forked: the signal means what it meant before, and nobody here is told of it."""
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
        """Each is called, even if one before it ends the process (sys.exit)."""
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

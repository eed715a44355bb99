"""The background thread for requests to the server, so that the training never waits for the network.

There is one pending report, which a newer one replaces. In a job with `health`, the last report is sent again when
there was none for a while: it says that the process lives, though it makes no steps, as while it saves.

A caller that needs a response queues a call and waits at most for its timeout, even if name resolution, connection or
response hang. Failed requests are retried with exponential backoff and jitter, and Retry-After is respected.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from diflow.client.wire import GoneError, Wire
from diflow.common.clock import Clock
from diflow.common.errors import DiflowError, UnauthorizedError, UnavailableError

log = logging.getLogger("diflow.client")

REPORT_SECONDS: Final = 1.0
"""Between two reports of one process. The server writes at most once per second for a whole job."""

_ANSWER_SECONDS: Final = 10.0  # for one attempt; the server's own limit
_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 60.0
_PATIENCE_SECONDS: Final = 15.0  # a server that sends Retry-After is working: it is logged only after this time
_MOST_CALLS: Final = 64  # pending calls; more are an error

Body = Mapping[str, Any]


@dataclass(slots=True, eq=False)
class Call:
    """A request whose caller waits until `deadline` (of the courier's clock)."""

    method: str
    path: str
    body: Body | None
    key: str | None
    deadline: float
    due: float
    tries: int = 0
    done: threading.Event = field(default_factory=threading.Event)
    data: Any = None
    error: DiflowError | None = None

    def end(self, *, data: Any = None, error: DiflowError | None = None) -> None:
        """Wake the caller with the result."""
        self.data, self.error = data, error
        self.done.set()


class Courier:
    """The pending reports and calls. `report_path` is where reports are posted.

    The thread starts with the first of them. Tests call `turn`, one iteration of the thread, instead.
    """

    def __init__(
        self,
        wire: Wire,
        *,
        report_path: str,
        clock: Clock,
        threaded: bool,
        heartbeat_seconds: float | None = None,
    ) -> None:
        self._wire = wire
        self._report_path = report_path
        self._heartbeat_seconds = heartbeat_seconds
        self._clock = clock
        self._threaded = threaded
        self._told = ""
        self.forget()

    def forget(self) -> None:
        """Reset everything: a forked process has neither the thread nor valid locks."""
        # Reentrant: a signal handler may report while the training does.
        self._changed = threading.Condition(threading.RLock())
        self._calls: deque[Call] = deque()
        self._make: Callable[[], Body] | None = None
        self._last: Callable[[], Body] | None = None  # of a job with heartbeats
        self._beat_due = 0.0
        self._report_due = 0.0
        self._held_until = 0.0
        self._failures = 0
        self._failing_since = 0.0
        self._closing = False
        self._is_over = False
        self._thread: threading.Thread | None = None
        self._wire.forget()

    def report(self, make: Callable[[], Body]) -> None:
        """Send the result of `make` instead of a pending report. Never raises and never blocks."""
        with self._changed:
            if self._closing or self._is_over:
                return
            self._make = make
            if self._heartbeat_seconds is not None:
                self._last = make
            try:
                self._wake()
            except RuntimeError as error:
                self._tell(f"nothing can be reported: {error}")

    def begin(self, method: str, path: str, body: Body | None, *, key: str | None, seconds: float) -> Call:
        """Queue a request; see `wait`. Raises UnavailableError if that is not possible."""
        now = self._clock.monotonic()
        call = Call(method, path, body, key, deadline=now + seconds, due=now)
        with self._changed:
            if self._closing:
                raise UnavailableError("this client is closed")
            if len(self._calls) >= _MOST_CALLS:
                raise UnavailableError(f"{_MOST_CALLS} calls wait for the server's answer already")
            self._calls.append(call)
            try:
                self._wake()
            except RuntimeError as error:
                self._calls.remove(call)
                raise UnavailableError(f"the server cannot be asked: {error}") from None
        return call

    def wait(self, call: Call, *, seconds: float) -> Any:
        """The `data` of a call's response. Raises the call's DiflowError, or UnavailableError after `seconds`."""
        if not call.done.wait(seconds):
            with self._changed:
                if call in self._calls:
                    self._calls.remove(call)
            if not call.done.is_set():
                raise UnavailableError(
                    f"no answer to {call.method} {call.path} within {seconds:g} s; it may have been done all the same"
                )
        if call.error is not None:
            raise call.error
        return call.data

    def close(self, *, seconds: float) -> None:
        """Send the pending report, unless the server asked for a pause, and stop; takes at most `seconds`."""
        with self._changed:
            self._closing = True
            thread = self._thread
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(seconds)

    def turn(self) -> float | None:
        """Send what is due. Returns the seconds until the next request is due, None if there is none."""
        now = self._clock.monotonic()
        with self._changed:
            if self._closing and self._held_until > now:
                self._make = None  # the server asked for a pause that is longer than the time left
            if self._make is None and self._last is not None and self._beat_due <= now and not self._closing:
                self._make = self._last
            call = next((c for c in self._calls if self._call_at(c) <= now), None)
            if call is not None:
                self._calls.remove(call)
            make = self._make if call is None and self._report_at() <= now else None
            if make is not None:
                self._make = None
                self._report_due = now + REPORT_SECONDS
                self._beat_due = now + (self._heartbeat_seconds or 0.0)
        if call is not None:
            self._ask(call)
        elif make is not None:
            self._send(make)
        with self._changed:
            return self._until_next()

    def _until_next(self) -> float | None:
        times = [self._call_at(call) for call in self._calls]
        if self._make is not None:
            times.append(self._report_at())
        elif self._last is not None and not self._closing:
            times.append(max(self._beat_due, self._report_at()))
        return max(0.0, min(times) - self._clock.monotonic()) if times else None

    def _call_at(self, call: Call) -> float:
        """When a call may be sent; while closing it fails immediately."""
        return 0.0 if self._closing else call.due

    def _report_at(self) -> float:
        """When the pending report may be sent: while closing immediately, unless the server asked for a pause."""
        return self._held_until if self._closing else max(self._report_due, self._held_until)

    def _wake(self) -> None:
        if self._threaded and self._thread is None:
            thread = threading.Thread(target=self._run, name="diflow-client", daemon=True)
            thread.start()
            self._thread = thread
        self._changed.notify_all()

    def _run(self) -> None:
        changed = self._changed
        while True:
            self.turn()
            with changed:
                wait = self._until_next()
                if wait is None and self._closing:
                    break
                if wait is None or wait > 0:
                    changed.wait(wait)
        self._wire.close()

    def _ask(self, call: Call) -> None:
        if self._closing or self._clock.monotonic() >= call.deadline:
            call.end(error=UnavailableError("this client is closed" if self._closing else "the server was too slow"))
            return
        call.tries += 1
        try:
            call.end(data=self._exchange(call.method, call.path, lambda: call.body, key=call.key))
        except UnavailableError as error:
            now = self._clock.monotonic()
            call.due = now + self._pause(call.tries, error)
            if isinstance(error, UnauthorizedError) or call.due >= call.deadline:
                call.end(error=error)
                return
            with self._changed:
                self._calls.append(call)
        except DiflowError as error:
            call.end(error=error)

    def _send(self, make: Callable[[], Body]) -> None:
        try:
            self._exchange("POST", self._report_path, make, key=None)
        except GoneError as error:
            # Normal: at each resize, every pod of the previous round gets this response.
            with self._changed:
                self._is_over, self._make, self._last = True, None, None
            log.info("reports end here: %s", error)
        except DiflowError as error:
            now = self._clock.monotonic()
            self._failing_since = self._failing_since if self._failures else now
            self._failures += 1
            with self._changed:
                after = error.retry_after_seconds if isinstance(error, UnavailableError) else None
                pause = self._pause(self._failures, error)
                if after is not None:
                    self._held_until = self._clock.monotonic() + pause
                self._report_due = max(self._report_due, self._clock.monotonic() + pause)
                if isinstance(error, UnavailableError) and self._make is None and not self._closing:
                    self._make = make  # retry, unless there is a newer one
            if after is None or now - self._failing_since >= _PATIENCE_SECONDS:
                self._tell(f"reports do not arrive, and the training continues without them: {error}")
        else:
            self._failures = 0
            self._tell("")

    def _exchange(self, method: str, path: str, make: Callable[[], Body | None], *, key: str | None) -> Any:
        try:
            return self._wire.ask(method, path, make(), key=key, timeout_seconds=_ANSWER_SECONDS)
        except DiflowError:
            raise
        except Exception as error:  # the thread must survive: callers wait for it
            log.debug("a request ended in an error that nobody expected", exc_info=True)
            raise UnavailableError(f"the server could not be asked: {type(error).__name__}: {error}") from error

    def _pause(self, failures: int, error: DiflowError) -> float:
        """Exponential backoff with 50% jitter; or Retry-After plus at most 10%."""
        after = error.retry_after_seconds if isinstance(error, UnavailableError) else None
        if after is not None:
            return after * (1 + self._clock.jitter(0.0, 0.1))
        longest = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** min(failures - 1, 16))
        return longest * self._clock.jitter(0.5, 1.0)

    def _tell(self, problem: str) -> None:
        """Log once when reports start to fail or the error changes, and once when they succeed again."""
        if problem == self._told:
            return
        was, self._told = self._told, problem
        if problem:
            log.warning("%s", problem)
        elif was:
            log.info("reports arrive again")

"""The one thread in which a training process talks to the server, so that the training never waits for the network.

A report waits in one place, where a newer one replaces it. Whoever needs an answer leaves a call and waits no longer
than it said, whatever happens to the name lookup, the connection or the answer. What fails is tried again after pauses
that grow and differ from process to process; the server's own word for how long (Retry-After) is kept.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from diflow.client.wire import GoneError, Wire
from diflow.errors import DiflowError, UnauthorizedError, UnavailableError

log = logging.getLogger("diflow.client")

REPORT_SECONDS: Final = 1.0
"""Between two reports of one process. The server writes no more than once a second for a whole job."""

_ANSWER_SECONDS: Final = 10.0  # for one try; the server itself gives up then
_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 60.0
_PATIENCE_SECONDS: Final = 15.0  # a server that says when to come again is at work: only if it lasts is it told
_MOST_CALLS: Final = 64  # that wait: more than that is a mistake, and is told so

Body = Mapping[str, Any]


@dataclass(slots=True, eq=False)
class Call:
    """A request that somebody waits for, until `deadline` (of the courier's clock)."""

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
        """Let whoever waits go on."""
        self.data, self.error = data, error
        self.done.set()


class Courier:
    """Reports and calls on their way. `report_path` is where reports are posted.

    The thread starts at the first of them. `turn` does what it does, once; tests call it instead.
    """

    def __init__(
        self, wire: Wire, *, report_path: str, clock: Callable[[], float], chance: Callable[[], float], threaded: bool
    ) -> None:
        self._wire = wire
        self._report_path = report_path
        self._clock = clock
        self._chance = chance
        self._threaded = threaded
        self._told = ""
        self.forget()

    def forget(self) -> None:
        """Begin anew with nothing under way: a process that was forked has neither the thread nor its locks."""
        # Reentrant: a signal's handler may report while the training does.
        self._changed = threading.Condition(threading.RLock())
        self._calls: deque[Call] = deque()
        self._make: Callable[[], Body] | None = None
        self._report_due = 0.0
        self._held_until = 0.0
        self._failures = 0
        self._failing_since = 0.0
        self._closing = False
        self._is_over = False
        self._thread: threading.Thread | None = None
        self._wire.forget()

    def report(self, make: Callable[[], Body]) -> None:
        """Send what `make` will return, in place of a report that still waits. Never raises, and never waits."""
        with self._changed:
            if self._closing or self._is_over:
                return
            self._make = make
            try:
                self._wake()
            except RuntimeError as error:
                self._tell(f"nothing can be reported: {error}")

    def begin(self, method: str, path: str, body: Body | None, *, key: str | None, seconds: float) -> Call:
        """Ask the server something; see `wait`. Raises UnavailableError if it cannot even be begun."""
        now = self._clock()
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
        """The `data` of a call's answer. Raises the DiflowError that it ended with; UnavailableError in time."""
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
        """Send the report that still waits, if the server lets it, and end; `seconds` at most."""
        with self._changed:
            self._closing = True
            thread = self._thread
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(seconds)

    def turn(self) -> float | None:
        """Do what is due, if anything is. Returns the seconds until something else is, None if nothing is in sight."""
        now = self._clock()
        with self._changed:
            if self._closing and self._held_until > now:
                self._make = None  # the server asked for a pause that goes beyond our end
            call = next((c for c in self._calls if self._call_at(c) <= now), None)
            if call is not None:
                self._calls.remove(call)
            make = self._make if call is None and self._report_at() <= now else None
            if make is not None:
                self._make = None
                self._report_due = now + REPORT_SECONDS
        if call is not None:
            self._ask(call)
        elif make is not None:
            self._send(make)
        with self._changed:
            return self._until_next()

    def _until_next(self) -> float | None:
        times = [self._call_at(call) for call in self._calls] + ([self._report_at()] if self._make is not None else [])
        return max(0.0, min(times) - self._clock()) if times else None

    def _call_at(self, call: Call) -> float:
        """When a call may go; on the way out it is told at once that it cannot."""
        return 0.0 if self._closing else call.due

    def _report_at(self) -> float:
        """When the report that waits may go: on the way out at once, unless the server asked for a pause."""
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
        if self._closing or self._clock() >= call.deadline:
            call.end(error=UnavailableError("this client is closed" if self._closing else "the server was too slow"))
            return
        call.tries += 1
        try:
            call.end(data=self._exchange(call.method, call.path, lambda: call.body, key=call.key))
        except UnavailableError as error:
            now = self._clock()
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
            # At each change of the job's size this is told to every pod of the round before: no cause for alarm.
            with self._changed:
                self._is_over, self._make = True, None
            log.info("reports end here: %s", error)
        except DiflowError as error:
            now = self._clock()
            self._failing_since = self._failing_since if self._failures else now
            self._failures += 1
            with self._changed:
                after = error.retry_after_seconds if isinstance(error, UnavailableError) else None
                pause = self._pause(self._failures, error)
                if after is not None:
                    self._held_until = self._clock() + pause
                self._report_due = max(self._report_due, self._clock() + pause)
                if isinstance(error, UnavailableError) and self._make is None and not self._closing:
                    self._make = make  # it goes again, unless there is a newer one
            if after is None or now - self._failing_since >= _PATIENCE_SECONDS:
                self._tell(f"reports do not arrive, and the training goes on without: {error}")
        else:
            self._failures = 0
            self._tell("")

    def _exchange(self, method: str, path: str, make: Callable[[], Body | None], *, key: str | None) -> Any:
        try:
            return self._wire.ask(method, path, make(), key=key, timeout_seconds=_ANSWER_SECONDS)
        except DiflowError:
            raise
        except Exception as error:  # the thread must live: others wait for it
            log.debug("a request ended in an error that nobody expected", exc_info=True)
            raise UnavailableError(f"the server could not be asked: {type(error).__name__}: {error}") from error

    def _pause(self, failures: int, error: DiflowError) -> float:
        """Doubling, of which half is left to chance; what the server asks for, and a tenth more at most."""
        after = error.retry_after_seconds if isinstance(error, UnavailableError) else None
        if after is not None:
            return after * (1 + 0.1 * self._chance())
        longest = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** min(failures - 1, 16))
        return longest * (0.5 + 0.5 * self._chance())

    def _tell(self, problem: str) -> None:
        """One line when reports begin to fail, or fail in another way, and one when they arrive again."""
        if problem == self._told:
            return
        was, self._told = self._told, problem
        if problem:
            log.warning("%s", problem)
        elif was:
            log.info("reports arrive again")

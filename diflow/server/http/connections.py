"""All connections of one listener: which are admitted, which are closed at a limit, and which deadline has passed.

`Connections` checks all deadlines a few times a second, which costs a request much less than a timer each.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from diflow.server.http.origins import Origins

if TYPE_CHECKING:
    from diflow.server.settings import ServerSettings

# Checking a thousand connections takes a fifth of a millisecond.
SWEEP_SECONDS: Final = 0.25
# At the limit of connections, requests that are incomplete for so long are dropped first. Most arrive in milliseconds.
GRACE_SECONDS: Final = 1.0
# The kernel is asked (poll) whether a client has just sent something: for this many clients at a time.
_MOST_POLLED: Final = 8

log = structlog.get_logger("diflow.server")


class Peer(Protocol):
    """A connection (`connection.Connection`), as far as it is closed at a limit, or at a deadline."""

    read_by: float
    answer_by: float

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def is_busy(self) -> bool: ...
    @property
    def may_be_dropped(self) -> bool: ...
    def has_unread(self) -> bool: ...
    def expire(self, now: float) -> None: ...
    def abort(self) -> None: ...
    def drop(self) -> None: ...
    def drain(self) -> None: ...
    def end_poll(self) -> None: ...
    def close_after_answer(self) -> None: ...


class Connections:
    """The connections of one listener, and which of them are closed at a limit.

    `on_refusal(status, reason)` is called for each refusal. Everything runs in the event loop's thread.
    """

    def __init__(self, settings: ServerSettings, *, on_refusal: Callable[[int, str], None] = lambda *_: None) -> None:
        self.settings = settings
        self.on_refusal = on_refusal
        self.is_shutting_down = False
        self.open: dict[Peer, str] = {}  # and their addresses
        self.idle: dict[Peer, None] = {}  # the longest idle one first
        self.polls: dict[Peer, None] = {}  # long polls, the oldest first
        self.draining: set[Peer] = set()
        self.detached: set[Peer] = set()  # the client is gone, the handler still runs
        self.unfinished: dict[Peer, float] = {}  # since when a request is incomplete, the oldest first
        self._origins = Origins(settings.connections_per_address)

    @property
    def busy(self) -> int:
        """Connections with a request in progress, including detached ones."""
        return sum(connection.is_busy for connection in self.open) + len(self.detached)

    def admit(self, connection: Peer, address: str) -> str:
        """Admit a connection, or return the reason for the refusal."""
        if why := self._origins.refusal(address):
            return why
        is_full = len(self.open) + len(self.detached) >= self.settings.connections
        if is_full and not self._free_place(connection.loop.time()):
            return "too many connections"
        self.open[connection] = address
        self._origins.add(address)
        return ""

    def _free_place(self, now: float) -> bool:
        """Close one connection to make place for another; returns whether there was one.

        In this order: a request that is incomplete for `GRACE_SECONDS` (which costs its client nothing), an idle
        connection, a long poll (its client asks again), any incomplete request.
        """
        if (slow := self._unfinished(until=now - GRACE_SECONDS)) is not None:
            slow.drop()
        elif (idle := _without_input(self.idle)) is not None:
            idle.drain()
        elif self.polls:
            next(iter(self.polls)).end_poll()
        elif (new := self._unfinished(until=now)) is not None:
            new.drop()
        else:
            return False
        return True

    def _unfinished(self, *, until: float) -> Peer | None:
        """The connection with the oldest incomplete request that began at `until` or before."""
        before = itertools.takewhile(lambda item: item[1] <= until, self.unfinished.items())
        return _without_input(connection for connection, _ in before if connection.may_be_dropped)

    def remove(self, connection: Peer) -> None:
        """Forget a connection that was admitted."""
        address = self.open.pop(connection, None)
        if address is None:
            return
        self.idle.pop(connection, None)
        self.polls.pop(connection, None)
        self.unfinished.pop(connection, None)
        self._origins.remove(address)

    def sweep(self, now: float) -> None:
        """End what has passed its deadline. `now` is the loop's time."""
        for group in (self.open, self.draining, self.detached):
            for connection in [c for c in group if c.read_by <= now or c.answer_by <= now]:
                try:
                    connection.expire(now)
                except Exception:  # a fault in one connection must not disable the limits of the others
                    log.exception("a connection is aborted")
                    connection.abort()

    def begin_shutdown(self) -> None:
        """From now on each response closes its connection."""
        self.is_shutting_down = True
        for connection in self.open:
            connection.close_after_answer()

    def end_polls(self) -> None:
        """Answer all long polls: their clients' next attempt reaches another replica."""
        for connection in list(self.open):
            connection.end_poll()

    def close_idle(self) -> None:
        """Close idle connections, except those with input that has not been read yet."""
        for connection in list(self.idle):
            if not connection.has_unread():
                connection.drain()

    def abort(self) -> None:
        """Abort all connections."""
        for connection in [*self.open, *self.draining, *self.detached]:
            connection.abort()


def _without_input(connections: Iterable[Peer]) -> Peer | None:
    """The first of these connections without unread input, among `_MOST_POLLED`."""
    return next((c for c in itertools.islice(connections, _MOST_POLLED) if not c.has_unread()), None)

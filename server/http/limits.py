"""Limits of one client on time, bytes and connections, enforced on the connection, before any handler runs.

uvicorn's protocol has no timeout for the head or the body of a request, and no limit of their size; a handler cannot
add them, as it is called only when the head is complete. `Connection` is uvicorn's protocol and adds a deadline for
each phase. `Connections` checks all deadlines a few times a second, which costs a request much less than a timer each.

Each refusal is a response in the envelope of the API, with a request id, and closes the connection:

    400  not HTTP (also Content-Length with chunks, or two of them), or not exactly one Host
    405  an unknown method
    408  the head or the body was not complete in time
    413  the body is too long, as declared or as counted; the rest is not read
    431  the head is too long
    503  no response in time, or too many connections; with Retry-After

This module knows no routes, except which of them are long polls.
"""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import json
import math
import re
import secrets
import select
from collections import deque
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import httptools
import structlog
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

if TYPE_CHECKING:
    from uvicorn import Config
    from uvicorn.server import ServerState

    from diflow.server.settings import ServerSettings

# Checking a thousand connections takes a fifth of a millisecond.
SWEEP_SECONDS: Final = 0.25
_RETRY_AFTER_SECONDS: Final = 1
# Input that is read and discarded after the last response of a connection. A client whose connection is reset at once
# may never see that response (RFC 9112, 9.6).
_DISCARDED_BYTES: Final = 256 * 1024
# Bytes on the wire per byte of a body, at most: chunks of one byte need six.
_FRAMING: Final = 8
_MOST_FIELDS: Final = 100
# A network (in most clusters the pods of one node) may have this many times the connections of one address.
_NETWORK_SHARE: Final = 2
# At the limit of connections, requests that are incomplete for so long are dropped first. Most arrive in milliseconds.
GRACE_SECONDS: Final = 1.0
# The kernel is asked (poll) whether a client has just sent something: for this many clients at a time.
_MOST_POLLED: Final = 8
_POLLS: Final = ("/discover/",)
# The first line of a request with a method that the parser does not know.
_REQUEST: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,32} [!-~]+ HTTP/1\.[01]\r?\n")
_METHODS: Final = b"DELETE, GET, HEAD, POST, PUT"

log = structlog.get_logger("diflow.server")


class Origins:
    """Counts connections by address and by network; `most` are allowed for one address (0: no limit)."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts: dict[str, int] = {}

    def refusal(self, address: str) -> str:
        """Why this address may not open a further connection, or ""."""
        if not self._most:
            return ""
        if self._counts.get(address, 0) >= self._most:
            return f"more than {self._most} connections from one address"
        network, most = _network(address), _NETWORK_SHARE * self._most
        if self._counts.get(network, 0) >= most:
            return f"more than {most} connections from the network {network}"
        return ""

    def add(self, address: str) -> None:
        for origin in (address, _network(address)):
            self._counts[origin] = self._counts.get(origin, 0) + 1

    def remove(self, address: str) -> None:
        for origin in (address, _network(address)):
            count = self._counts.get(origin, 0) - 1
            if count > 0:
                self._counts[origin] = count
            else:
                self._counts.pop(origin, None)


def plain_address(peer: object) -> str:
    """The peer's address, as plain IPv4 on a dual-stack socket; "" if there is none."""
    return str(peer[0]).removeprefix("::ffff:") if isinstance(peer, tuple) and peer else ""


def _network(address: str) -> str:
    """The network of an address: /24 of IPv4, /64 of IPv6."""
    if ":" not in address:
        return f"{address.rpartition('.')[0]}.0/24"
    try:
        bits = int(ipaddress.IPv6Address(address)) >> 64
    except ValueError:
        return address
    return f"{ipaddress.IPv6Address(bits << 64)}/64"


class Connections:
    """The connections of one listener, and which of them are closed at a limit.

    `on_refusal(status, reason)` is called for each refusal. Everything runs in the event loop's thread.
    """

    def __init__(self, settings: ServerSettings, *, on_refusal: Callable[[int, str], None] = lambda *_: None) -> None:
        self.settings = settings
        self.on_refusal = on_refusal
        self.is_shutting_down = False
        self.open: set[Connection] = set()
        self.idle: dict[Connection, None] = {}  # the longest idle one first
        self.polls: dict[Connection, None] = {}  # long polls, the oldest first
        self.draining: set[Connection] = set()
        self.detached: set[Connection] = set()  # the client is gone, the handler still runs
        self.unfinished: dict[Connection, float] = {}  # since when a request is incomplete, the oldest first
        self._origins = Origins(settings.connections_per_address)

    @property
    def busy(self) -> int:
        """Connections with a request in progress, including detached ones."""
        return sum(connection.is_busy for connection in self.open) + len(self.detached)

    def admit(self, connection: Connection, address: str) -> str:
        """Admit a connection, or return the reason for the refusal."""
        if why := self._origins.refusal(address):
            return why
        is_full = len(self.open) + len(self.detached) >= self.settings.connections
        if is_full and not self._free_place(connection.loop.time()):
            return "too many connections"
        self.open.add(connection)
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

    def _unfinished(self, *, until: float) -> Connection | None:
        """The connection with the oldest incomplete request that began at `until` or before."""
        before = itertools.takewhile(lambda item: item[1] <= until, self.unfinished.items())
        return _without_input(connection for connection, _ in before if connection.may_be_dropped)

    def remove(self, connection: Connection, address: str) -> None:
        """Forget a connection that was admitted."""
        if connection not in self.open:
            return
        self.open.discard(connection)
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


class Connection(HttpToolsProtocol):
    """One connection. Each phase has a deadline; phases overlap only if the client pipelines requests:

    reading     the head, then the body, must be complete by `read_by`
    answering   the handler must be done, and the client must have read the response, by `answer_by`
    idle        no request; closed at `read_by`
    draining    the last response was written; aborted at `read_by`
    detached    the client is gone and the handler still runs; cancelled at `answer_by`
    """

    def __init__(
        self,
        pool: Connections,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        loop: asyncio.AbstractEventLoop,
        *,
        server: tuple[str, int],
        scheme: str = "http",
    ) -> None:
        super().__init__(config=config, server_state=server_state, app_state=app_state, _loop=loop)
        self._pool = pool
        self._limits = pool.settings
        self.server = server
        self.scheme = scheme  # type: ignore[assignment]
        self.read_by = math.inf
        self.answer_by = math.inf
        self._address = ""
        self._socket_transport: asyncio.Transport
        self._draining_transport: _DrainingTransport
        self._ignores_input = False
        self._is_reading = False
        self._in_head = False
        self._is_too_long = False
        self._head_bytes = 0
        self._fields = 0
        self._body_bytes = 0
        self._raw_bytes = 0
        self._chunk_bytes = 0
        self._discarded = 0
        self._served = 0
        self._incoming: RequestResponseCycle | None = None  # its body is being read
        self._running: RequestResponseCycle | None = None
        self._task: asyncio.Task[None] | None = None

    # --- opening and closing --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        peer = transport.get_extra_info("peername")
        self._address = plain_address(peer)
        self.client = (self._address, int(peer[1])) if peer else None
        self._socket_transport = transport
        self._draining_transport = _DrainingTransport(self, transport)
        self.transport = self._draining_transport  # type: ignore[assignment]
        self.flow = FlowControl(transport)
        why = self._pool.admit(self, self._address)
        if not why:
            self.connections.add(self)
            now = self.loop.time()
            self.read_by = now + self._limits.header_seconds
            self._pool.unfinished[self] = now
            return
        self._pool.on_refusal(503, why)
        if len(self._pool.draining) >= self._limits.refusals:
            self._ignores_input = True
            transport.abort()
            return
        self._write_refusal(503, why)
        self.drain()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (the reason makes no difference)
        self.connections.discard(self)
        self._pool.remove(self, self._address)
        self._pool.draining.discard(self)
        self._ignores_input = True
        for cycle in {self._running, self.cycle, *(waiting for waiting, _ in self.pipeline)}:
            if cycle is not None:
                cycle.disconnected = not cycle.response_complete
                cycle.message_event.set()
        self.pipeline.clear()
        self.flow.resume_writing()
        self.read_by = math.inf
        self.parser = None  # type: ignore[assignment]
        self._draining_transport.forget()
        if self._task is not None:  # it may be writing to the cluster: it runs until its deadline, and counts as open
            self.answer_by = min(self.answer_by, self.loop.time() + self._limits.answer_seconds)
            self._pool.detached.add(self)

    def drain(self) -> None:
        """Close once the client has read the last response, at the latest after `linger_seconds`."""
        if self in self._pool.draining:
            return
        self._ignores_input = True
        self._pool.remove(self, self._address)
        self._pool.draining.add(self)
        self.read_by = self.loop.time() + self._limits.linger_seconds
        self.answer_by = math.inf
        if self._socket_transport.is_closing():
            return
        if not self._is_reading and not self._is_unread():
            self._socket_transport.close()
        elif self._socket_transport.can_write_eof():
            self._socket_transport.write_eof()
            self._socket_transport.resume_reading()

    @property
    def may_be_dropped(self) -> bool:
        """A request is incomplete, and no earlier one waits for its response."""
        return not self._ignores_input and not self.pipeline and (self._task is None or self._incoming is self._running)

    def drop(self) -> None:
        """Close it, while its request is incomplete, to make place for another connection."""
        why = "too many connections, and this request is incomplete"
        has_answer = self._incoming is not None and self._incoming.response_started
        if has_answer or len(self._pool.draining) >= self._limits.refusals:
            self._pool.on_refusal(503, why)
            self._ignores_input = True
            self._pool.remove(self, self._address)
            self.abort()
            return
        self._refuse(503, why)

    def _is_unread(self) -> bool:
        return self.flow.read_paused or self.has_unread()

    def has_unread(self) -> bool:
        """Whether the client has sent something that has not been read yet."""
        if self._socket_transport.is_closing():
            return False
        descriptor = self._socket_transport.get_extra_info("socket").fileno()
        asked = select.poll()
        asked.register(descriptor, select.POLLIN)
        return bool(asked.poll(0))

    def abort(self) -> None:
        """Cancel the handler and reset the connection."""
        if self._task is not None:
            self._task.cancel()
        self._socket_transport.abort()

    @property
    def is_busy(self) -> bool:
        """Whether a request is in progress: partly received, or not answered yet."""
        return self._task is not None or self._is_reading or bool(self.pipeline)

    def close_after_answer(self) -> None:
        """Let the response to the current request close the connection."""
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.keep_alive = False

    def end_poll(self) -> None:
        """If its request is a long poll, answer it now."""
        if self._running is not None and self._task is not None and _is_poll(self._running):
            self._time_out()

    # --- input: uvicorn's and httptools' callbacks -----------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._ignores_input:
            self._discarded += len(data)
            if self._discarded > _DISCARDED_BYTES:
                self._socket_transport.pause_reading()
            return
        self._raw_bytes += len(data)
        self._chunk_bytes = len(data)
        begins = not self._is_reading
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # The request is answered in HTTP/1.1; the parser reads nothing after it.
            self._ignores_input = True
            self.close_after_answer()
        except httptools.HttpParserError as error:
            if self._ignores_input:
                pass
            elif isinstance(error, httptools.HttpParserInvalidMethodError) and begins and _REQUEST.match(data):
                self._refuse(405, "this method is not supported")
            else:
                self._refuse(400, "this is not an HTTP request")
        if self._ignores_input:
            return
        if self._in_head and self._raw_bytes > self._limits.header_bytes:
            self._refuse(431, f"the head is longer than {self._limits.header_bytes} bytes")
        elif self._is_reading and self._raw_bytes > _FRAMING * self._limits.body_bytes:
            self._refuse(413, f"the body is longer than {self._limits.body_bytes} bytes")
        elif self.pipeline:
            self.read_by = math.inf  # reading is paused until the requests before it are answered

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._ignores_input:
            return
        if not self._is_reading and self._served:  # the first request's deadline counts from the connection
            now = self.loop.time()
            self.read_by = now + self._limits.header_seconds
            self._pool.idle.pop(self, None)
            self._pool.unfinished[self] = now
        self._is_reading = self._in_head = True
        self._is_too_long = False
        self._head_bytes = self._fields = self._body_bytes = 0
        self._raw_bytes = self._chunk_bytes  # not the bytes of this chunk that ended the request before

    def on_url(self, url: bytes) -> None:
        self._head_bytes += len(url)
        if self._head_bytes > self._limits.header_bytes:
            self._is_too_long = True
            return
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + 4
        self._fields += 1
        if self._head_bytes > self._limits.header_bytes or self._fields > _MOST_FIELDS:
            self._is_too_long = True
            return
        if self._in_head:  # trailers after a chunked body are ignored
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._ignores_input:
            return
        self._in_head = False
        self._raw_bytes = 0
        self.read_by = self.loop.time() + self._limits.body_seconds
        if self._is_too_long:
            self._refuse(431, f"the head is longer than {self._limits.header_bytes} bytes")
            return
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (not hosts and self.parser.get_http_version() != "1.0"):
            self._refuse(400, "a request of HTTP/1.1 has one Host field")
            return
        if self._declared() > self._limits.body_bytes:
            self._refuse(413, f"the body is longer than {self._limits.body_bytes} bytes")
            return
        if len(self.pipeline) >= self._limits.pipelined:
            self._refuse(503, "too many requests wait on one connection")
            return
        super().on_headers_complete()
        self._incoming = self.cycle
        self._served += 1
        if self._pool.is_shutting_down or self._served >= self._limits.requests_per_connection:
            self.cycle.keep_alive = False

    def _declared(self) -> int:
        for name, value in self.headers:
            if name == b"content-length":  # the parser has checked that this is one number
                return int(value)
        return 0

    def on_body(self, body: bytes) -> None:
        if self._ignores_input:
            return
        self._body_bytes += len(body)
        if self._body_bytes > self._limits.body_bytes:
            self._refuse(413, f"the body is longer than {self._limits.body_bytes} bytes")
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._ignores_input:
            return
        super().on_message_complete()
        self._chunk_bytes = 0
        self._is_reading = False
        self._incoming = None
        self.read_by = math.inf
        self._pool.unfinished.pop(self, None)
        if self._running is self.cycle and self._task is not None:
            self.answer_by = self._answer_by(self.cycle)
        elif self._task is None and not self.pipeline:
            self._become_idle()

    # --- output ---------------------------------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        if _is_poll(cycle):
            self._pool.polls[self] = None
        self.answer_by = math.inf if cycle.more_body else self._answer_by(cycle)
        self._task = self.loop.create_task(self._run(cycle, app))
        self.tasks.add(self._task)

    async def _run(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Call the application; whatever it does, the client gets a response or a closed connection."""
        try:
            await app(cycle.scope, cycle.receive, cycle.send)
            if not cycle.response_complete and not cycle.disconnected:
                raise RuntimeError("the handler returned before its response was complete")
        except asyncio.CancelledError:
            pass  # by _time_out or _refuse, which have answered the client
        except BaseException as error:
            if not cycle.disconnected:
                self._failed(cycle, error)
        finally:
            self._handler_done(cycle)
        if self._running is cycle and cycle.response_complete:
            self._next()

    def _handler_done(self, cycle: RequestResponseCycle) -> None:
        """Forget the handler's task."""
        cycle.on_response = lambda: None
        if self._running is cycle and self._task is not None:
            self.tasks.discard(self._task)
            self._task = None
            self._pool.polls.pop(self, None)
            self._pool.detached.discard(self)

    def _failed(self, cycle: RequestResponseCycle, error: BaseException) -> None:
        """The handler raised: log it, and answer 500 without details."""
        log.error("a request failed", path=cycle.scope["path"], exc_info=error)
        if cycle.response_started:
            self._socket_transport.abort()
            return
        self._write_refusal(500, "internal error: see the log of the server")
        cycle.disconnected = True
        self.drain()

    def _answer_by(self, cycle: RequestResponseCycle) -> float:
        poll_seconds = self._limits.poll_seconds if _is_poll(cycle) else 0.0
        return self.loop.time() + self._limits.answer_seconds + poll_seconds

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        # The next request starts when the handler has returned: see _run.

    def _next(self) -> None:
        """After a response: start the next pipelined request, or wait for one."""
        self.answer_by = math.inf
        if self in self._pool.draining or self._socket_transport.is_closing():
            return
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
        if self.pipeline:
            return
        self.flow.resume_reading()
        if self._ignores_input and self._task is None:
            self.drain()
        elif self._is_reading:
            if self.read_by == math.inf:
                limits = self._limits
                self.read_by = self.loop.time() + (limits.header_seconds if self._in_head else limits.body_seconds)
        elif self._task is None:
            self._become_idle()

    def _become_idle(self) -> None:
        self.read_by = self.loop.time() + self._limits.idle_seconds
        self._pool.idle[self] = None

    # --- refusals -------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Act on a deadline that has passed."""
        if self in self._pool.draining:
            self._socket_transport.abort()
        elif self.answer_by <= now:
            self._time_out()
        elif self in self._pool.idle:
            self.drain()
        elif self._incoming is not None and self._incoming.response_started:
            self._socket_transport.abort()  # already answered, but the body of its request does not end
        else:
            in_body = self._is_reading and not self._in_head
            what, seconds = ("body", self._limits.body_seconds) if in_body else ("head", self._limits.header_seconds)
            self._refuse(408, f"the {what} of the request did not come within {seconds:g} s")

    def _time_out(self) -> None:
        """The handler, or the client that reads the response, has exceeded `answer_by`."""
        cycle, task = self._running, self._task
        if cycle is None or task is None:
            return
        task.cancel()
        if cycle.disconnected:
            self.answer_by = math.inf
            return
        self._pool.on_refusal(503, "no answer in time")
        if cycle.response_started:
            self._socket_transport.abort()
            return
        if _is_poll(cycle):
            self._write_refusal(408, "the long poll has timed out; ask again")
        else:
            self._write_refusal(503, "there was no answer in time; the request may have taken effect")
        cycle.disconnected = True
        self.drain()

    def _refuse(self, status: int, why: str) -> None:
        """Refuse the request that is being read, and ignore further input. Earlier requests are answered first."""
        self._pool.on_refusal(status, why)
        self._ignores_input = True
        self._pool.unfinished.pop(self, None)
        request, self._incoming = self._incoming, None
        if request is not None and request is not self._running:
            self.pipeline = deque(waiting for waiting in self.pipeline if waiting[0] is not request)
            request = None
        if self.pipeline or (self._task is not None and request is None):
            last = self.pipeline[0][0] if self.pipeline else self._running
            if last is not None:
                last.keep_alive = False  # its response closes the connection: a refusal cannot be sent before it
            self.read_by = math.inf
            return
        if request is not None:
            if self._task is not None:
                self._task.cancel()
                self._handler_done(request)  # a task that is cancelled before its first step never runs its `finally`
            if request.response_started:
                self.drain()
                return
            request.disconnected = True
        self._write_refusal(status, why)
        self.drain()

    def _write_refusal(self, status: int, why: str) -> None:
        body = json.dumps({"success": False, "code": 1, "message": why, "data": None}).encode()
        fields = [
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"x-request-id", secrets.token_hex(8).encode()),
            *([(b"retry-after", str(_RETRY_AFTER_SECONDS).encode())] if status == 503 else []),
            *([(b"allow", _METHODS)] if status == 405 else []),
            (b"connection", b"close"),
        ]
        head = b"".join(b"%s: %s\r\n" % field for field in fields)
        line = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
        self._socket_transport.write(line + head + b"\r\n" + body)


def _without_input(connections: Iterable[Connection]) -> Connection | None:
    """The first of these connections without unread input, among `_MOST_POLLED`."""
    return next((c for c in itertools.islice(connections, _MOST_POLLED) if not c.has_unread()), None)


class _DrainingTransport:
    """The transport as uvicorn's code sees it: `close` drains the connection instead of closing it at once."""

    __slots__ = ("_connection", "is_closing", "write")

    def __init__(self, connection: Connection, transport: asyncio.Transport) -> None:
        self._connection: Connection | None = connection
        self.write = transport.write
        self.is_closing = transport.is_closing

    def close(self) -> None:
        if self._connection is not None:
            self._connection.drain()

    def forget(self) -> None:
        """Break the reference cycle, so that a closed connection is freed at once."""
        self._connection = None


def _is_poll(cycle: RequestResponseCycle) -> bool:
    return str(cycle.scope["path"]).startswith(_POLLS)

"""What one client may cost: time, bytes and connections, held on the connection itself, before any of our handlers run.

uvicorn's protocol sets no time for a head or a body to come, nor any size; a handler cannot do it either, as it is only
called when a head is there. So `Connection` is uvicorn's protocol with a reckoning of its own: it has dates by which
something must have happened, and `Connections` looks at all of them a few times a second. That costs a request next to
nothing, where a timer for each would have to be made and taken back.

Each refusal is an answer in the envelope of the API, with a request id, and ends the connection:

    400  not HTTP (also a Content-Length beside chunks, or two of them), or not one Host
    405  a method that HTTP does not know
    408  the head or the body has not come in time
    413  the body is too long: declared or counted; the rest is not read
    431  the head is too long
    503  no answer in time, or too many connections; with Retry-After

It knows nothing of routes, but for which of them wait on purpose.
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

# A look at a thousand connections takes a fifth of a millisecond.
SWEEP_SECONDS: Final = 0.25
_RETRY_AFTER_SECONDS: Final = 1
# What is still taken, and thrown away, of a client that goes on to send after the answer that ends its connection. One
# that is reset at once may never see the answer (RFC 9112, 9.6).
_DISCARDED_BYTES: Final = 256 * 1024
# Chunks have a frame, which counts as well: a body of single bytes is six times as long on the wire.
_FRAMING: Final = 8
_MOST_FIELDS: Final = 100
# A network (the pods of one node, as clusters mostly number them) may have twice what one address may.
_NETWORK_SHARE: Final = 2
# A request that has not come whole for so long is dropped first when there is no room. Most come in milliseconds.
GRACE_SECONDS: Final = 1.0
# Whether a client has sent something just now is asked of the kernel: of so many at a time.
_LOOKS: Final = 8
_POLLS: Final = ("/discover/",)
# The first line of a request whose method the parser does not know.
_REQUEST: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,32} [!-~]+ HTTP/1\.[01]\r?\n")
_METHODS: Final = b"DELETE, GET, HEAD, POST, PUT"

log = structlog.get_logger("diflow.server")


class Origins:
    """How many connections come from each address and each network; `most` of one address (0: no limit)."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts: dict[str, int] = {}

    def refusal(self, address: str) -> str:
        """Why no further connection may come from this address, or ""."""
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
    """The address of a socket's other end, as IPv4 has it on a socket for both; "" if there is none."""
    return str(peer[0]).removeprefix("::ffff:") if isinstance(peer, tuple) and peer else ""


def _network(address: str) -> str:
    """The network of an address: /24, and /64 of IPv6."""
    if ":" not in address:
        return f"{address.rpartition('.')[0]}.0/24"
    try:
        bits = int(ipaddress.IPv6Address(address)) >> 64
    except ValueError:
        return address
    return f"{ipaddress.IPv6Address(bits << 64)}/64"


class Connections:
    """The connections of one listener: who is there, who has to go, and why somebody was sent away.

    `on_refusal(status, reason)` is told of each refusal. Everything is called in the loop's thread.
    """

    def __init__(self, settings: ServerSettings, *, on_refusal: Callable[[int, str], None] = lambda *_: None) -> None:
        self.settings = settings
        self.on_refusal = on_refusal
        self.ending = False
        self.open: set[Connection] = set()
        self.idle: dict[Connection, None] = {}  # the one that has been idle for longest comes first
        self.polls: dict[Connection, None] = {}  # the one that has waited on purpose for longest comes first
        self.leaving: set[Connection] = set()
        self.orphans: set[Connection] = set()
        self.unfinished: dict[Connection, float] = {}  # since when a whole request is waited for, the longest first
        self._origins = Origins(settings.connections_per_address)

    @property
    def busy(self) -> int:
        """Connections with a request under way, those that the client has left among them."""
        return sum(connection.is_busy for connection in self.open) + len(self.orphans)

    def enter(self, connection: Connection, address: str) -> str:
        """Let a connection in, or give the reason why not."""
        if why := self._origins.refusal(address):
            return why
        is_full = len(self.open) + len(self.orphans) >= self.settings.connections
        if is_full and not self._make_room(connection.loop.time()):
            return "too many connections"
        self.open.add(connection)
        self._origins.add(address)
        return ""

    def _make_room(self, now: float) -> bool:
        """End one connection for another. First goes who has not sent a whole request for a while: that costs a client
        nothing. Else who asks nothing, who waits on purpose (it asks again), and at last who has just begun."""
        if (slow := self._unfinished(until=now - GRACE_SECONDS)) is not None:
            slow.drop()
        elif (idle := _silent(self.idle)) is not None:
            idle.leave()
        elif self.polls:
            next(iter(self.polls)).end_poll()
        elif (new := self._unfinished(until=now)) is not None:
            new.drop()
        else:
            return False
        return True

    def _unfinished(self, *, until: float) -> Connection | None:
        """The connection that has been without a whole request for longest, and at least since then."""
        before = itertools.takewhile(lambda item: item[1] <= until, self.unfinished.items())
        return _silent(connection for connection, _ in before if connection.may_be_dropped)

    def left(self, connection: Connection, address: str) -> None:
        """Count a connection no longer, that had been let in."""
        if connection not in self.open:
            return
        self.open.discard(connection)
        self.idle.pop(connection, None)
        self.polls.pop(connection, None)
        self.unfinished.pop(connection, None)
        self._origins.remove(address)

    def sweep(self, now: float) -> None:
        """End what has taken too long. `now` is the loop's time."""
        for group in (self.open, self.leaving, self.orphans):
            for connection in [c for c in group if c.read_by <= now or c.answer_by <= now]:
                try:
                    connection.expire(now)
                except Exception:  # of one connection: the limits of all others must go on
                    log.exception("a connection is ended by force")
                    connection.abort()

    def begin_ending(self) -> None:
        """From now on each answer ends its connection."""
        self.ending = True
        for connection in self.open:
            connection.answer_once_more()

    def end_polls(self) -> None:
        """Answer those who wait on purpose: their next try goes elsewhere."""
        for connection in list(self.open):
            connection.end_poll()

    def close_idle(self) -> None:
        """Close connections on which nothing has been asked; one with a request already at the door is kept for it."""
        for connection in list(self.idle):
            if not connection.has_unread():
                connection.leave()

    def abort(self) -> None:
        """End all, at once."""
        for connection in [*self.open, *self.leaving, *self.orphans]:
            connection.abort()


class Connection(HttpToolsProtocol):
    """One connection. Its phases overlap only where a client sends requests before it has its answers:

    reading     a head, then a body, has to come by `read_by`
    answering   the handler has to be done, and its answer taken, by `answer_by`
    idle        nothing is asked; closed at `read_by`
    leaving     the last answer is on its way; reset at `read_by`
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
        self._real: asyncio.Transport
        self._exit: _Exit
        self._is_deaf = False
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
        self._own: RequestResponseCycle | None = None  # the request whose body is being read
        self._running: RequestResponseCycle | None = None
        self._task: asyncio.Task[None] | None = None

    # --- coming and going -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        peer = transport.get_extra_info("peername")
        self._address = plain_address(peer)
        self.client = (self._address, int(peer[1])) if peer else None
        self._real = transport
        self._exit = _Exit(self, transport)
        self.transport = self._exit  # type: ignore[assignment]
        self.flow = FlowControl(transport)
        why = self._pool.enter(self, self._address)
        if not why:
            self.connections.add(self)
            now = self.loop.time()
            self.read_by = now + self._limits.header_seconds
            self._pool.unfinished[self] = now
            return
        self._pool.on_refusal(503, why)
        if len(self._pool.leaving) >= self._limits.refusals:
            self._is_deaf = True
            transport.abort()
            return
        self._write_refusal(503, why)
        self.leave()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (gone is gone)
        self.connections.discard(self)
        self._pool.left(self, self._address)
        self._pool.leaving.discard(self)
        self._is_deaf = True
        for cycle in {self._running, self.cycle, *(waiting for waiting, _ in self.pipeline)}:
            if cycle is not None:
                cycle.disconnected = not cycle.response_complete
                cycle.message_event.set()
        self.pipeline.clear()
        self.flow.resume_writing()
        self.read_by = math.inf
        self.parser = None  # type: ignore[assignment]
        self._exit.forget()
        if self._task is not None:  # it may be writing to the cluster: it has its time, and is counted until then
            self.answer_by = min(self.answer_by, self.loop.time() + self._limits.answer_seconds)
            self._pool.orphans.add(self)

    def leave(self) -> None:
        """Close when the client has taken the last answer, or soon in any case."""
        if self in self._pool.leaving:
            return
        self._is_deaf = True
        self._pool.left(self, self._address)
        self._pool.leaving.add(self)
        self.read_by = self.loop.time() + self._limits.linger_seconds
        self.answer_by = math.inf
        if self._real.is_closing():
            return
        if not self._is_reading and not self._is_unread():
            self._real.close()
        elif self._real.can_write_eof():
            self._real.write_eof()
            self._real.resume_reading()

    @property
    def may_be_dropped(self) -> bool:
        """A request is waited for, and nobody waits for the answer to an earlier one."""
        return not self._is_deaf and not self.pipeline and (self._task is None or self._own is self._running)

    def drop(self) -> None:
        """End it for another one, while its request has not come whole."""
        why = "too many connections, and this request has not come whole"
        has_answer = self._own is not None and self._own.response_started
        if has_answer or len(self._pool.leaving) >= self._limits.refusals:
            self._pool.on_refusal(503, why)
            self._is_deaf = True
            self._pool.left(self, self._address)
            self.abort()
            return
        self._refuse(503, why)

    def _is_unread(self) -> bool:
        return self.flow.read_paused or self.has_unread()

    def has_unread(self) -> bool:
        """Whether the client has sent something that was not read yet."""
        if self._real.is_closing():
            return False
        descriptor = self._real.get_extra_info("socket").fileno()
        asked = select.poll()
        asked.register(descriptor, select.POLLIN)
        return bool(asked.poll(0))

    def abort(self) -> None:
        """End it at once."""
        if self._task is not None:
            self._task.cancel()
        self._real.abort()

    @property
    def is_busy(self) -> bool:
        """Whether a request is under way: some of it has come, or an answer is owed."""
        return self._task is not None or self._is_reading or bool(self.pipeline)

    def answer_once_more(self) -> None:
        """The answer that is owed ends the connection; so does the next one."""
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.keep_alive = False

    def end_poll(self) -> None:
        """If its request waits on purpose, answer it now."""
        if self._running is not None and self._task is not None and _is_poll(self._running):
            self._give_up()

    # --- what comes in --------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            self._discarded += len(data)
            if self._discarded > _DISCARDED_BYTES:
                self._real.pause_reading()
            return
        self._raw_bytes += len(data)
        self._chunk_bytes = len(data)
        begins = not self._is_reading
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # What was asked for is answered in plain HTTP. The parser reads nothing after it.
            self._is_deaf = True
            self.answer_once_more()
        except httptools.HttpParserError as error:
            if self._is_deaf:
                pass
            elif isinstance(error, httptools.HttpParserInvalidMethodError) and begins and _REQUEST.match(data):
                self._refuse(405, "there is no such method here")
            else:
                self._refuse(400, "this is not an HTTP request")
        if self._is_deaf:
            return
        if self._in_head and self._raw_bytes > self._limits.header_bytes:
            self._refuse(431, f"the head is longer than {self._limits.header_bytes} bytes")
        elif self._is_reading and self._raw_bytes > _FRAMING * self._limits.body_bytes:
            self._refuse(413, f"the body is longer than {self._limits.body_bytes} bytes")
        elif self.pipeline:
            self.read_by = math.inf  # it is not the client's fault that nothing more is read now

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._is_deaf:
            return
        if not self._is_reading and self._served:  # the first one's time runs from the connection
            now = self.loop.time()
            self.read_by = now + self._limits.header_seconds
            self._pool.idle.pop(self, None)
            self._pool.unfinished[self] = now
        self._is_reading = self._in_head = True
        self._is_too_long = False
        self._head_bytes = self._fields = self._body_bytes = 0
        self._raw_bytes = self._chunk_bytes  # what came together with the end of the request before is let off

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
        if self._in_head:  # a field behind the chunks of a body is of no use here
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._is_deaf:
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
        self._own = self.cycle
        self._served += 1
        if self._pool.ending or self._served >= self._limits.requests_per_connection:
            self.cycle.keep_alive = False

    def _declared(self) -> int:
        for name, value in self.headers:
            if name == b"content-length":  # the parser has seen to it that this is one number
                return int(value)
        return 0

    def on_body(self, body: bytes) -> None:
        if self._is_deaf:
            return
        self._body_bytes += len(body)
        if self._body_bytes > self._limits.body_bytes:
            self._refuse(413, f"the body is longer than {self._limits.body_bytes} bytes")
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._is_deaf:
            return
        super().on_message_complete()
        self._chunk_bytes = 0
        self._is_reading = False
        self._own = None
        self.read_by = math.inf
        self._pool.unfinished.pop(self, None)
        if self._running is self.cycle and self._task is not None:
            self.answer_by = self._answer_by(self.cycle)
        elif self._task is None and not self.pipeline:
            self._rest()

    # --- what goes out --------------------------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        if _is_poll(cycle):
            self._pool.polls[self] = None
        self.answer_by = math.inf if cycle.more_body else self._answer_by(cycle)
        self._task = self.loop.create_task(self._run(cycle, app))
        self.tasks.add(self._task)

    async def _run(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Call the application; whatever it does, the client gets an answer or a closed connection."""
        try:
            await app(cycle.scope, cycle.receive, cycle.send)
            if not cycle.response_complete and not cycle.disconnected:
                raise RuntimeError("the handler gave no whole answer")
        except asyncio.CancelledError:
            pass  # by _give_up or _refuse, which have seen to the client
        except BaseException as error:
            if not cycle.disconnected:
                self._failed(cycle, error)
        finally:
            self._ended(cycle)
        if self._running is cycle and cycle.response_complete:
            self._next()

    def _ended(self, cycle: RequestResponseCycle) -> None:
        """The handler owes nothing any more."""
        cycle.on_response = lambda: None
        if self._running is cycle and self._task is not None:
            self.tasks.discard(self._task)
            self._task = None
            self._pool.polls.pop(self, None)
            self._pool.orphans.discard(self)

    def _failed(self, cycle: RequestResponseCycle, error: BaseException) -> None:
        """The handler has a fault: say so without saying what it is, and tell the log."""
        log.error("a request failed", path=cycle.scope["path"], exc_info=error)
        if cycle.response_started:
            self._real.abort()
            return
        self._write_refusal(500, "the server has a fault; its log says more")
        cycle.disconnected = True
        self.leave()

    def _answer_by(self, cycle: RequestResponseCycle) -> float:
        longer = self._limits.poll_seconds if _is_poll(cycle) else 0.0
        return self.loop.time() + self._limits.answer_seconds + longer

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        # The next request is begun when the handler has returned: see _run.

    def _next(self) -> None:
        """After an answer: the next request that waits, or rest."""
        self.answer_by = math.inf
        if self in self._pool.leaving or self._real.is_closing():
            return
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
        if self.pipeline:
            return
        self.flow.resume_reading()
        if self._is_deaf and self._task is None:
            self.leave()
        elif self._is_reading:
            if self.read_by == math.inf:
                limits = self._limits
                self.read_by = self.loop.time() + (limits.header_seconds if self._in_head else limits.body_seconds)
        elif self._task is None:
            self._rest()

    def _rest(self) -> None:
        self.read_by = self.loop.time() + self._limits.idle_seconds
        self._pool.idle[self] = None

    # --- refusals -------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """A date has passed: end what it was for."""
        if self in self._pool.leaving:
            self._real.abort()
        elif self.answer_by <= now:
            self._give_up()
        elif self in self._pool.idle:
            self.leave()
        elif self._own is not None and self._own.response_started:
            self._real.abort()  # it has its answer, and does not end its request
        else:
            in_body = self._is_reading and not self._in_head
            what, seconds = ("body", self._limits.body_seconds) if in_body else ("head", self._limits.header_seconds)
            self._refuse(408, f"the {what} of the request did not come within {seconds:g} s")

    def _give_up(self) -> None:
        """The handler, or the client that should take its answer, has taken too long."""
        cycle, task = self._running, self._task
        if cycle is None or task is None:
            return
        task.cancel()
        if cycle.disconnected:
            self.answer_by = math.inf
            return
        self._pool.on_refusal(503, "no answer in time")
        if cycle.response_started:
            self._real.abort()
            return
        if _is_poll(cycle):
            self._write_refusal(408, "what is waited for has not come; ask again")
        else:
            self._write_refusal(503, "there was no answer in time; it may have been done nevertheless")
        cycle.disconnected = True
        self.leave()

    def _refuse(self, status: int, why: str) -> None:
        """Refuse the request that is being read, and read nothing more. Those before it are answered first."""
        self._pool.on_refusal(status, why)
        self._is_deaf = True
        self._pool.unfinished.pop(self, None)
        own, self._own = self._own, None
        if own is not None and own is not self._running:
            self.pipeline = deque(waiting for waiting in self.pipeline if waiting[0] is not own)
            own = None
        if self.pipeline or (self._task is not None and own is None):
            last = self.pipeline[0][0] if self.pipeline else self._running
            if last is not None:
                last.keep_alive = False  # its end is that of the connection: a refusal has no place before it
            self.read_by = math.inf
            return
        if own is not None:
            if self._task is not None:
                self._task.cancel()
                self._ended(own)  # a task that had not begun will not tell
            if own.response_started:
                self.leave()
                return
            own.disconnected = True
        self._write_refusal(status, why)
        self.leave()

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
        self._real.write(line + head + b"\r\n" + body)


def _silent(connections: Iterable[Connection]) -> Connection | None:
    """One of the first of these that has sent nothing just now."""
    return next((c for c in itertools.islice(connections, _LOOKS) if not c.has_unread()), None)


class _Exit:
    """What uvicorn's code sees of the transport: `Connection.leave` closes it, when the client has its answer."""

    __slots__ = ("_connection", "is_closing", "write")

    def __init__(self, connection: Connection, transport: asyncio.Transport) -> None:
        self._connection: Connection | None = connection
        self.write = transport.write
        self.is_closing = transport.is_closing

    def close(self) -> None:
        if self._connection is not None:
            self._connection.leave()

    def forget(self) -> None:
        """The connection has gone: without this it would stay in memory until the collector finds the circle."""
        self._connection = None


def _is_poll(cycle: RequestResponseCycle) -> bool:
    return str(cycle.scope["path"]).startswith(_POLLS)

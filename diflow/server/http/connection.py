"""One connection, with limits of time and bytes that hold before any handler runs.

uvicorn's protocol has no timeout for the head or the body of a request, and no limit of their size; a handler cannot
add them, as it is called only when the head is complete. `Connection` is uvicorn's protocol with a deadline for each
phase, which `Connections` checks, and with limits for the `Incoming` request.

Each refusal is a response (`refusals.py`) and closes the connection:

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
import math
import re
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import httptools
import structlog
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from diflow.server.http.incoming import Incoming
from diflow.server.http.origins import plain_address
from diflow.server.http.refusals import refusal
from diflow.server.http.transport import DrainingTransport

if TYPE_CHECKING:
    from uvicorn import Config
    from uvicorn.server import ServerState

    from diflow.server.http.connections import Connections

_POLLS: Final = ("/discover/",)
# The first line of a request with a method that the parser does not know.
_REQUEST: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,32} [!-~]+ HTTP/1\.[01]\r?\n")

log = structlog.get_logger("diflow.server")


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
        self._transport: DrainingTransport
        self._ignores_input = False
        self._incoming = Incoming(pool.settings)
        self._served = 0
        self._answer: _Answer | None = None

    # --- opening and closing --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        peer = transport.get_extra_info("peername")
        address = plain_address(peer)
        self.client = (address, int(peer[1])) if peer else None
        self._transport = DrainingTransport(transport, drain=self.drain)
        self.transport = self._transport  # type: ignore[assignment]
        self.flow = FlowControl(transport)
        why = self._pool.admit(self, address)
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
        self._pool.remove(self)
        self._pool.draining.discard(self)
        self._ignores_input = True
        answered = self._answer.cycle if self._answer is not None else None
        for cycle in {answered, self.cycle, *(waiting for waiting, _ in self.pipeline)}:
            if cycle is not None:
                cycle.disconnected = not cycle.response_complete
                cycle.message_event.set()
        self.pipeline.clear()
        self.flow.resume_writing()
        self.read_by = math.inf
        self.parser = None  # type: ignore[assignment]
        self._transport.forget()
        if self._answer is not None:  # it may be writing to the cluster: it runs until its deadline, and counts as open
            self.answer_by = min(self.answer_by, self.loop.time() + self._limits.answer_seconds)
            self._pool.detached.add(self)

    def drain(self) -> None:
        """Close once the client has read the last response, at the latest after `linger_seconds`."""
        if self in self._pool.draining:
            return
        self._ignores_input = True
        self._pool.remove(self)
        self._pool.draining.add(self)
        self.read_by = self.loop.time() + self._limits.linger_seconds
        self.answer_by = math.inf
        self._transport.end(is_read=not self._incoming.is_open and not self.flow.read_paused)

    @property
    def may_be_dropped(self) -> bool:
        """A request is incomplete, and no earlier one waits for its response."""
        if self._ignores_input or self.pipeline:
            return False
        return self._answer is None or self._answer.cycle is self._incoming.cycle

    def drop(self) -> None:
        """Close it, while its request is incomplete, to make place for another connection."""
        why = "too many connections, and this request is incomplete"
        has_answer = self._incoming.cycle is not None and self._incoming.cycle.response_started
        if has_answer or len(self._pool.draining) >= self._limits.refusals:
            self._pool.on_refusal(503, why)
            self._ignores_input = True
            self._pool.remove(self)
            self.abort()
            return
        self._refuse(503, why)

    def has_unread(self) -> bool:
        """Whether the client has sent something that has not been read yet."""
        return self._transport.has_unread()

    def abort(self) -> None:
        """Cancel the handler and reset the connection."""
        if self._answer is not None:
            self._answer.task.cancel()
        self._transport.abort()

    @property
    def is_busy(self) -> bool:
        """Whether a request is in progress: partly received, or not answered yet."""
        return self._answer is not None or self._incoming.is_open or bool(self.pipeline)

    def close_after_answer(self) -> None:
        """Let the response to the current request close the connection."""
        if self.cycle is not None and not self.cycle.response_started:
            self.cycle.keep_alive = False

    def end_poll(self) -> None:
        """If its request is a long poll, answer it now."""
        if self._answer is not None and _is_poll(self._answer.cycle):
            self._time_out()

    # --- input: uvicorn's and httptools' callbacks -----------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._ignores_input:
            self._transport.discard(len(data))
            return
        begins = not self._incoming.is_open
        self._incoming.receive(len(data))
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
        if self._incoming.is_exceeded:
            self._refuse_length(431 if self._incoming.in_head else 413)
        elif self.pipeline:
            self.read_by = math.inf  # reading is paused until the requests before it are answered

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._ignores_input:
            return
        if not self._incoming.is_open and self._served:  # the first request's deadline counts from the connection
            now = self.loop.time()
            self.read_by = now + self._limits.header_seconds
            self._pool.idle.pop(self, None)
            self._pool.unfinished[self] = now
        self._incoming.begin()

    def on_url(self, url: bytes) -> None:
        if self._incoming.takes_head(len(url)):
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        is_taken = self._incoming.takes_head(len(name) + len(value) + 4, fields=1)
        if is_taken and self._incoming.in_head:  # trailers after a chunked body are ignored
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._ignores_input:
            return
        self._incoming.end_head()
        self.read_by = self.loop.time() + self._limits.body_seconds
        if self._incoming.is_head_too_long:
            self._refuse_length(431)
            return
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (not hosts and self.parser.get_http_version() != "1.0"):
            self._refuse(400, "a request of HTTP/1.1 has one Host field")
            return
        if self._declared() > self._limits.body_bytes:
            self._refuse_length(413)
            return
        if len(self.pipeline) >= self._limits.pipelined:
            self._refuse(503, "too many requests wait on one connection")
            return
        super().on_headers_complete()
        self._incoming.cycle = self.cycle
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
        if self._incoming.takes_body(len(body)):
            super().on_body(body)
        else:
            self._refuse_length(413)

    def on_message_complete(self) -> None:
        if self._ignores_input:
            return
        super().on_message_complete()
        self._incoming.end()
        self.read_by = math.inf
        self._pool.unfinished.pop(self, None)
        if self._answer is None and not self.pipeline:
            self._become_idle()
        elif self._answer is not None and self._answer.cycle is self.cycle:
            self.answer_by = self._answer_by(self.cycle)

    # --- output ---------------------------------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if _is_poll(cycle):
            self._pool.polls[self] = None
        self.answer_by = math.inf if cycle.more_body else self._answer_by(cycle)
        self._answer = _Answer(cycle, self.loop.create_task(self._run(cycle, app)))
        self.tasks.add(self._answer.task)

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
        if cycle.response_complete:
            self._next()

    def _handler_done(self, cycle: RequestResponseCycle) -> None:
        """Forget the handler's task."""
        cycle.on_response = lambda: None
        if self._answer is not None and self._answer.cycle is cycle:
            self.tasks.discard(self._answer.task)
            self._answer = None
            self._pool.polls.pop(self, None)
            self._pool.detached.discard(self)

    def _failed(self, cycle: RequestResponseCycle, error: BaseException) -> None:
        """The handler raised: log it, and answer 500 without details."""
        log.error("a request failed", path=cycle.scope["path"], exc_info=error)
        if cycle.response_started:
            self._transport.abort()
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
        if self in self._pool.draining or self._transport.is_closing():
            return
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
        if self.pipeline:
            return
        self.flow.resume_reading()
        if self._ignores_input and self._answer is None:
            self.drain()
        elif self._incoming.is_open:
            if self.read_by == math.inf:
                self.read_by = self.loop.time() + self._time_to_read()[1]
        elif self._answer is None:
            self._become_idle()

    def _become_idle(self) -> None:
        self.read_by = self.loop.time() + self._limits.idle_seconds
        self._pool.idle[self] = None

    # --- refusals -------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Act on a deadline that has passed."""
        if self in self._pool.draining:
            self._transport.abort()
        elif self.answer_by <= now:
            self._time_out()
        elif self in self._pool.idle:
            self.drain()
        elif self._incoming.cycle is not None and self._incoming.cycle.response_started:
            self._transport.abort()  # already answered, but the body of its request does not end
        else:
            what, seconds = self._time_to_read()
            self._refuse(408, f"the {what} of the request did not come within {seconds:g} s")

    def _time_to_read(self) -> tuple[str, float]:
        """The part of the request that comes next, and how many seconds it may take."""
        in_body = self._incoming.is_open and not self._incoming.in_head
        return ("body", self._limits.body_seconds) if in_body else ("head", self._limits.header_seconds)

    def _time_out(self) -> None:
        """The handler, or the client that reads the response, has exceeded `answer_by`."""
        if self._answer is None:
            return
        cycle = self._answer.cycle
        self._answer.task.cancel()
        if cycle.disconnected:
            self.answer_by = math.inf
            return
        self._pool.on_refusal(503, "no answer in time")
        if cycle.response_started:
            self._transport.abort()
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
        request, self._incoming.cycle = self._incoming.cycle, None
        earlier = deque(waiting for waiting in self.pipeline if waiting[0] is not request)
        if len(earlier) < len(self.pipeline):
            self.pipeline, request = earlier, None
        answer = self._answer
        if answer is not None and answer.cycle is not request:
            last = self.pipeline[0][0] if self.pipeline else answer.cycle
            last.keep_alive = False  # its response closes the connection: a refusal cannot be sent before it
            self.read_by = math.inf
            return
        if request is not None:
            if answer is not None:
                answer.task.cancel()
                self._handler_done(request)  # a task that is cancelled before its first step never runs its `finally`
            if request.response_started:
                self.drain()
                return
            request.disconnected = True
        self._write_refusal(status, why)
        self.drain()

    def _refuse_length(self, status: int) -> None:
        what, most = ("head", self._limits.header_bytes) if status == 431 else ("body", self._limits.body_bytes)
        self._refuse(status, f"the {what} is longer than {most} bytes")

    def _write_refusal(self, status: int, why: str) -> None:
        self._transport.write(refusal(status, why, self.server_state.default_headers))


@dataclass(frozen=True, slots=True)
class _Answer:
    """The request that is being answered, and the task of its handler."""

    cycle: RequestResponseCycle
    task: asyncio.Task[None]


def _is_poll(cycle: RequestResponseCycle) -> bool:
    return str(cycle.scope["path"]).startswith(_POLLS)

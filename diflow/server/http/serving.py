"""The server process: its sockets, signals and graceful shutdown.

One process, one event loop (uvloop), uvicorn's protocol with our limits. The order of the shutdown loses no accepted
request:

    1. SIGTERM: /readyz returns 503. Requests are still served, and each response closes its connection, so that
       clients reconnect to another replica.
    2. After `drain_seconds` the cluster routes no new connections here. Connections in the backlog are accepted, and
       the listening socket is closed.
    3. Requests in progress are answered; long polls are answered with 408, ask again.
    4. The application's lifespan ends: reports that were taken are written. Then the process exits.

Steps 3 and 4 take `ending_seconds` at most. A further signal ends the current wait.

This module knows no routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog
import uvicorn
import uvloop
from uvicorn.lifespan.on import LifespanOn
from uvicorn.server import ServerState

from diflow.common.errors import InvalidError
from diflow.server.http.connection import Connection
from diflow.server.http.connections import GRACE_SECONDS, SWEEP_SECONDS, Connections
from diflow.server.http.origins import Origins, plain_address
from diflow.server.http.tls import Certificates
from diflow.server.telemetry import App, Pages, Telemetry
from diflow.version import __version__

if TYPE_CHECKING:
    from diflow.server.settings import ServerSettings

_BACKLOG: Final = 2048
# Files besides the clients' connections: the log, connections to the API server.
_OTHER_FILES: Final = 64
# The share of `ending_seconds` that step 4 has for itself, so that slow requests do not cost other jobs their reports.
_FLUSH_SHARE: Final = 0.4
_TICK_SECONDS: Final = 1.0
_REPEAT_SECONDS: Final = 60.0
_PAGE_CONNECTIONS: Final = 64

log = structlog.get_logger("diflow.server")


def serve(
    app: App,
    settings: ServerSettings,
    *,
    telemetry: Telemetry,
    on_ending: Callable[[], None] = lambda: None,
) -> int:
    """Serve the application until a signal. Returns the exit code: 0, or 1 if it could not start or end in time.

    The log line "started" has the ports; `on_ending` is called at the first signal. Raises InvalidError for an address
    or a certificate that cannot be used.
    """
    _allow_files(settings)
    certificates = None
    if settings.tls_certificate is not None and settings.tls_key is not None:
        certificates = Certificates(settings.tls_certificate, settings.tls_key)
    with contextlib.ExitStack() as sockets, _forwarded_logs():
        api = sockets.enter_context(_bound(settings.host, settings.port))
        pages = (
            sockets.enter_context(_bound(settings.host, settings.metrics_port)) if settings.metrics_port >= 0 else None
        )
        process = _Process(app, settings, telemetry, certificates, on_ending)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(process.run(api, pages))


class _Process:
    def __init__(
        self,
        app: App,
        settings: ServerSettings,
        telemetry: Telemetry,
        certificates: Certificates | None,
        on_ending: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._on_ending = on_ending
        self._telemetry = telemetry
        self._certificates = certificates
        self._signals = 0
        self._signalled = asyncio.Event()
        self._was_ready = True
        self._last_warning = float("-inf")
        self._api = Connections(settings, on_refusal=telemetry.refusal)
        few = {"connections": _PAGE_CONNECTIONS, "connections_per_address": _PAGE_CONNECTIONS // 2}
        self._pages = Connections(settings.model_copy(update=few))
        self._config = _configuration(app)
        self._page_config = _configuration(Pages(telemetry))
        self._state = ServerState()
        telemetry.watch(self._api)

    async def run(self, api: socket.socket, pages: socket.socket | None) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        beats = [
            asyncio.create_task(_repeat(seconds, what))
            for seconds, what in (
                (SWEEP_SECONDS, self._sweep),
                (_TICK_SECONDS, self._tick),
                (self._settings.tls_check_seconds, self._renew),
            )
        ]
        listeners: list[Listener] = []
        lifespan = LifespanOn(self._config)
        try:
            self._set_date_header()
            if pages is not None:
                listeners.append(Listener(pages, self._page_config, connections=self._pages, state=self._state))
                await listeners[-1].open()
            await lifespan.startup()
            if lifespan.should_exit:
                log.error("the application could not start")
                return 1
            api_listener = Listener(
                api,
                self._config,
                connections=self._api,
                state=self._state,
                app_state=lifespan.state,
                certificates=self._certificates,
            )
            await api_listener.open()
            port, page_port = api.getsockname()[1], pages.getsockname()[1] if pages is not None else 0
            log.info("started", version=__version__, port=port, metrics_port=page_port, tls=bool(self._certificates))
            await self._signalled.wait()
            return await self._end(api_listener, lifespan)
        finally:
            for listener in listeners:
                await listener.close()
            self._pages.abort()
            for beat in beats:
                beat.cancel()

    # --- shutdown ---------------------------------------------------------------------------------------------------

    def _on_signal(self) -> None:
        self._signals += 1
        self._signalled.set()
        if self._signals > 2:
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().remove_signal_handler(number)

    async def _end(self, listener: Listener, lifespan: LifespanOn) -> int:
        settings, connections = self._settings, self._api
        log.info("ending", seconds=settings.drain_seconds, busy=connections.busy)
        self._telemetry.is_ending = True
        self._on_ending()
        connections.begin_shutdown()
        await self._until(lambda: False, seconds=settings.drain_seconds)
        began = time.monotonic()
        await listener.close()
        connections.end_polls()
        answers = settings.ending_seconds * (1 - _FLUSH_SHARE)
        in_time = await self._until(lambda: self._is_quiet(listener), seconds=answers)
        if not in_time:
            log.warning("requests are left unanswered", busy=connections.busy)
        left = max(0.1, settings.ending_seconds - (time.monotonic() - began))
        try:
            async with asyncio.timeout(left):
                await lifespan.shutdown()
        except TimeoutError:
            log.error("reports could not be written in time", seconds=settings.ending_seconds)
            in_time = False
        connections.abort()
        log.info("ended", in_time=in_time, requests=self._state.total_requests)
        return 0 if in_time and not lifespan.shutdown_failed else 1

    def _is_quiet(self, listener: Listener) -> bool:
        self._api.close_idle()
        return not self._api.open and not self._api.detached and not self._api.draining and not listener.handshakes

    async def _until(self, true: Callable[[], bool], *, seconds: float) -> bool:
        """Wait until `true()`, for `seconds` at most; a further signal ends the wait. Returns whether it is true."""
        signals, ends = self._signals, time.monotonic() + seconds
        while not true():
            if self._signals > signals or time.monotonic() >= ends:
                return False
            await asyncio.sleep(0.02)
        return True

    # --- periodic work ------------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        now = asyncio.get_running_loop().time()
        for connections in (self._api, self._pages):
            connections.sweep(now)

    def _tick(self) -> None:
        self._set_date_header()
        why, now = self._telemetry.why_not_ready(), time.monotonic()
        if not why and not self._was_ready:
            log.info("ready")
        elif why and not self._telemetry.is_ending and (self._was_ready or now - self._last_warning > _REPEAT_SECONDS):
            log.warning("not ready", why=why)
            self._last_warning = now
        self._was_ready = not why

    def _set_date_header(self) -> None:
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]

    def _renew(self) -> None:
        if self._certificates is not None:
            self._certificates.reload()


async def _repeat(seconds: float, what: Callable[[], None]) -> None:
    """Call `what` every `seconds`. An exception is logged; the next call is made all the same."""
    while True:
        await asyncio.sleep(seconds)
        try:
            what()
        except Exception:
            log.exception("a periodic task failed", what=what.__name__)


class Listener:
    """A listening socket for HTTP or HTTPS. `Connections` enforces the limits."""

    def __init__(
        self,
        sock: socket.socket,
        config: uvicorn.Config,
        *,
        connections: Connections,
        state: ServerState,
        app_state: dict[str, Any] | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        self._socket = sock
        self._connections = connections
        self._certificates = certificates
        self._server: asyncio.AbstractServer | None = None
        self._accepting: asyncio.Task[None] | None = None
        self.handshakes: dict[asyncio.Task[None], float] = {}  # and when they began, the oldest first
        self._origins = Origins(connections.settings.connections_per_address)
        self._make = partial(
            Connection,
            connections,
            config,
            state,
            app_state or {},
            server=sock.getsockname()[:2],
            scheme="http" if certificates is None else "https",
        )

    async def open(self) -> None:
        """Start to accept connections."""
        loop = asyncio.get_running_loop()
        self._socket.setblocking(False)
        if self._certificates is None:
            self._server = await loop.create_server(partial(self._make, loop), sock=self._socket, backlog=_BACKLOG)
            return
        self._socket.listen(_BACKLOG)
        self._accepting = loop.create_task(self._accept(self._certificates))

    async def close(self) -> None:
        """Accept the connections in the backlog, then stop."""
        asked = select.poll()
        asked.register(self._socket.fileno(), select.POLLIN)
        ends = time.monotonic() + 1.0
        while asked.poll(0) and time.monotonic() < ends:
            await asyncio.sleep(0)
        if self._server is not None:
            self._server.close()
        if self._accepting is not None:
            self._accepting.cancel()
        self._socket.close()

    async def _accept(self, certificates: Certificates) -> None:
        """Accept TLS connections: asyncio's own server counts none before its handshake, and keeps one certificate."""
        loop = asyncio.get_running_loop()
        limits = self._connections.settings
        while True:
            try:
                sock, peer = await loop.sock_accept(self._socket)
            except OSError as error:
                log.warning("a connection cannot be accepted", why=str(error))
                await asyncio.sleep(0.1)
                continue
            address = plain_address(peer)
            why = self._origins.refusal(address)
            if not why and len(self._connections.open) + len(self.handshakes) >= limits.connections + limits.refusals:
                why = self._free_place(loop.time())
            if why:
                sock.close()  # a response would need a handshake
                self._connections.on_refusal(503, why)
                continue
            task = loop.create_task(self._handshake(sock, certificates))
            self.handshakes[task] = loop.time()
            self._origins.add(address)
            task.add_done_callback(partial(self._handshake_done, address))

    def _free_place(self, now: float) -> str:
        """Cancel the oldest handshake; returns the reason if none is old enough."""
        task, began = next(iter(self.handshakes.items()), (None, now))
        if task is None or now - began < GRACE_SECONDS:
            return "too many connections"
        del self.handshakes[task]
        task.cancel()
        return ""

    def _handshake_done(self, address: str, task: asyncio.Task[None]) -> None:
        self.handshakes.pop(task, None)
        self._origins.remove(address)

    async def _handshake(self, sock: socket.socket, certificates: Certificates) -> None:
        loop = asyncio.get_running_loop()
        limits = self._connections.settings
        try:
            await loop.connect_accepted_socket(
                partial(self._make, loop),
                sock,
                ssl=certificates.context,
                ssl_handshake_timeout=limits.header_seconds,
                ssl_shutdown_timeout=limits.linger_seconds,
            )
        except (OSError, EOFError, asyncio.CancelledError) as error:  # ssl's errors are OSErrors
            sock.close()
            log.debug("the TLS handshake failed", why=str(error))


# --- configuration, sockets and logs ----------------------------------------------------------------------------------


def _configuration(app: App) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="on",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # anybody can write such a header
        server_header=False,
    )
    config.load()
    return config


@contextlib.contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    """A socket bound to this address; by default to all addresses, of IPv4 and, where there is one, IPv6."""
    kinds = [socket.AF_INET6 if ":" in host else socket.AF_INET]
    if not host and socket.has_dualstack_ipv6():
        kinds = [socket.AF_INET6, socket.AF_INET]  # IPv6 may be compiled in and disabled
    why = ""
    for kind in kinds:
        try:
            with socket.socket(kind) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if kind == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(bool(host)))
                sock.bind((host, port))
                found = sock.dup()
        except OSError as error:
            why = why or error.strerror or str(error)
            continue
        with found:
            yield found
        return
    raise InvalidError(f"{host or '*'}:{port} cannot be listened on: {why}")


def _allow_files(settings: ServerSettings) -> None:
    """Raise the limit of open files to what the connections need, or log a warning."""
    needed = settings.connections + 2 * settings.refusals + 2 * _PAGE_CONNECTIONS + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < needed:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(needed, hard) if hard > 0 else needed, hard))
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < needed:
        log.warning("fewer files may be open than connections need", files=hard, needed=needed)


class _Forward(logging.Handler):
    """Forwards the logs of uvicorn and asyncio to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        said = {"from": record.name, **({"exc_info": record.exc_info} if record.exc_info else {})}
        log.log(record.levelno, record.getMessage(), **said)


@contextlib.contextmanager
def _forwarded_logs() -> Iterator[None]:
    handler = _Forward(logging.WARNING)
    loggers = [logging.getLogger(name) for name in ("uvicorn.error", "asyncio")]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
            logger.propagate = True

"""The HTTP server of a daemon for metrics and probes, with bounds on connections, threads and the time of each.

    /metrics   counters and times, in Prometheus' text form
    /healthz   200 while the process works; 503 if it hangs: restart it
    /readyz    200 while it is ready; else 503 with the reason

The standard library's threading server has one thread for each connection and waits for a request indefinitely. Here
each connection has a deadline, and beyond the most connections the oldest one is closed, so that the kubelet's probes
get through while other clients keep connections open.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http import HTTPStatus
from socketserver import TCPServer
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from diflow.common.clock import SYSTEM, Clock
from diflow.common.errors import InvalidError

MOST_CONNECTIONS: Final = 32
"""At a time, each with a thread of its own. Prometheus and the kubelet need one or two each."""
CONNECTION_SECONDS: Final = 10.0
"""The longest time of a connection, from accepting it to closing it."""
_LOOK_SECONDS: Final = 0.25

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
"""A WSGI application."""


def probes(metrics: App, *, health: Callable[[], str], readiness: Callable[[], tuple[bool, str]]) -> App:
    """The WSGI application that serves all three pages. `health`: why to restart the process, or ""; `readiness`:
    whether it is ready, and the state or reason as text."""

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO")
        if path == "/metrics":
            return metrics(environ, start)
        if path == "/healthz":
            trouble = health()
            good, text = not trouble, trouble or "ok"
        elif path == "/readyz":
            good, text = readiness()
        else:
            start("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
            return [b"there are /metrics, /healthz and /readyz\n"]
        status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
        start(f"{status.value} {status.phrase}", [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{text}\n".encode()]

    return answer


@contextmanager
def serving(port: int, app: Any) -> Iterator[WSGIServer]:
    """Serve a WSGI application on this port of all addresses, in threads. Raises InvalidError if the port is taken."""
    with _bound(port, app) as server:
        threading.Thread(target=server.serve_forever, args=(_LOOK_SECONDS,), name="pages", daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


class _Server(WSGIServer):
    request_queue_size = 128

    def __init__(self, *given: Any, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._threads = ThreadPoolExecutor(MOST_CONNECTIONS, thread_name_prefix="page")
        self._open: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__(*given)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer.server_bind resolves the host's name, which takes seconds without DNS
        self.server_name, self.server_port = "", self.server_address[1]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            # Insertion order: the oldest connections come first.
            excess = list(self._open)[: max(0, len(self._open) + 1 - MOST_CONNECTIONS)]
            self._open[request] = self._clock.monotonic()
        for oldest in excess:
            self._hang_up(oldest)
        self._threads.submit(self._answer, request, client_address)

    def service_actions(self) -> None:
        """Called by `serve_forever` every `_LOOK_SECONDS` and after each new connection."""
        ends = self._clock.monotonic() - CONNECTION_SECONDS
        with self._lock:
            late = [request for request, since in self._open.items() if since <= ends]
        for request in late:
            self._hang_up(request)

    def server_close(self) -> None:
        with self._lock:
            left = list(self._open)
        for request in left:
            self._hang_up(request)
        super().server_close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of a connection, as when a client has closed it."""

    def _answer(self, request: socket.socket, client_address: Any) -> None:
        try:
            with self._lock:
                is_open = request in self._open
            if is_open:
                self.finish_request(request, client_address)
        except Exception:
            self.handle_error(request, client_address)
        finally:
            with self._lock:
                self._open.pop(request, None)
            self.shutdown_request(request)

    def _hang_up(self, request: socket.socket) -> None:
        """Shut the connection down; the thread that reads or writes it then ends and closes it."""
        with self._lock:
            self._open.pop(request, None)
        with suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)


class _DualServer(_Server):
    address_family = socket.AF_INET6

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


class _Silent(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Log nothing: probes come every few seconds."""


def _bound(port: int, app: Any) -> WSGIServer:
    kinds: list[type[_Server]] = [_DualServer, _Server] if socket.has_dualstack_ipv6() else [_Server]
    why = ""
    for kind in kinds:  # the kernel may have IPv6 compiled in but disabled
        try:
            return make_server("", port, app, server_class=kind, handler_class=_Silent)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
    raise InvalidError(f"port {port} for metrics cannot be used: {why}")

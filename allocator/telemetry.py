"""What an administrator sees of the daemon: log lines, metrics for Prometheus, and its health for the kubelet.

    /metrics   counters and times, in Prometheus' text form
    /healthz   200 while the loop turns; 503 when it has stood still for too long: restart the process
    /readyz    200 while the daemon leads with good caches, or stands by; 503 with the reason otherwise

It decides nothing, and a reader that is slow or absent never holds the loop up.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, make_wsgi_app

from diflow.allocator.plan import Action
from diflow.errors import InvalidError

if TYPE_CHECKING:
    from diflow.allocator.daemon import Allocator, Cycle
    from diflow.allocator.elector import Elector

# One cycle may send thousands of writes, and wait for the policy's time limit; more than this is a loop that hangs.
STILL_SECONDS: Final = 180.0
_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_WATCH_SECONDS: Final = 5.0


class Telemetry:
    """Counts what an allocator does, and knows how it is. Give `cycle` to the Allocator as its `on_cycle`."""

    def __init__(
        self, elector: Elector, *, clock: Callable[[], float] = time.monotonic, watch_seconds: float = _WATCH_SECONDS
    ) -> None:
        self._elector = elector
        self._clock = clock
        self._watch_seconds = watch_seconds
        self._allocator: Allocator | None = None
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        here: dict[str, Any] = {"namespace": "diflow", "subsystem": "allocator", "registry": self.registry}
        self._cycles = Counter("cycles", "Cycles, by whether they planned or only carried out.", ["planned"], **here)
        self._seconds = Histogram(
            "cycle_seconds", "How long a cycle took, its writes included.", buckets=_BUCKETS, **here
        )
        self._policy = Histogram("policy_seconds", "How long the policy took to plan.", buckets=_BUCKETS, **here)
        self._writes = Counter("writes", "Writes that the API server accepted.", **here)
        self._troubled = Counter("blind_cycles", "Cycles in which nothing was decided, as the caches were old.", **here)
        self._failed = Counter("policy_failures", "Plans that changed nothing: the policy failed or was late.", **here)
        self._jobs = Gauge("jobs", "Jobs under the allocator that have not ended.", **here)
        self._waiting = Gauge("waiting_jobs", "Jobs that waited for room after the last plan.", **here)
        self._refused = Gauge("refused_jobs", "Jobs left alone for now, as writes for them were refused.", **here)
        self._leader = Gauge("leader", "1 while this process leads.", **here)
        self._paused = Gauge("paused", "1 while somebody has paused the allocator.", **here)
        self._leader.set_function(lambda: float(elector.is_leader()))
        self._paused.set_function(lambda: float(self._allocator is not None and bool(self._allocator.paused())))
        self._refused.set_function(lambda: float(len(self._allocator.applier.refusals)) if self._allocator else 0.0)
        for planned in ("yes", "no"):
            self._cycles.labels(planned)

    def watch(self, allocator: Allocator) -> None:
        """Say whose health is asked for."""
        self._allocator = allocator

    def cycle(self, cycle: Cycle) -> None:
        """Count a cycle."""
        self._cycles.labels("yes" if cycle.planned else "no").inc()
        self._seconds.observe(cycle.seconds)
        self._writes.inc(cycle.writes)
        if cycle.trouble:
            self._troubled.inc()
            return
        self._jobs.set(cycle.jobs)
        if cycle.policy_trouble:
            self._failed.inc()
        if cycle.planned:
            self._policy.observe(cycle.policy_seconds)
            last = self._allocator.last if self._allocator is not None else None
            self._waiting.set(int((last[1].action == int(Action.WAIT)).sum()) if last is not None else 0)

    def health(self) -> str:
        """Why this process should be started again, or "" if it is well."""
        if self._allocator is None or not self._elector.is_leader():
            return ""  # one that waits to lead does nothing, which is right
        still = self._clock() - self._allocator.woke
        return f"the loop has stood still for {still:.0f} s" if still > STILL_SECONDS else ""

    def readiness(self) -> tuple[bool, str]:
        """(whether it does its work, in words)."""
        if not self._elector.is_leader():
            trouble = self._elector.trouble
            return not trouble, trouble or f"standing by; {self._elector.holder or 'nobody'} leads"
        trouble = self._allocator.caches.trouble() if self._allocator is not None else "starting"
        return not trouble, trouble or "leading"

    # --- over HTTP ----------------------------------------------------------------------------------------------------

    def app(self) -> Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]:
        """The WSGI application that serves all three pages."""
        metrics = make_wsgi_app(self.registry)

        def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
            path = environ.get("PATH_INFO")
            if path == "/metrics":
                page: Iterable[bytes] = metrics(environ, start)
                return page
            if path == "/healthz":
                trouble = self.health()
                good, text = not trouble, trouble or "ok"
            elif path == "/readyz":
                good, text = self.readiness()
            else:
                start("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
                return [b"there are /metrics, /healthz and /readyz\n"]
            status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
            start(f"{status.value} {status.phrase}", [("Content-Type", "text/plain; charset=utf-8")])
            return [f"{text}\n".encode()]

        return answer

    @contextmanager
    def serving(self, port: int) -> Iterator[None]:
        """Serve on this port of all addresses, in a thread; on 0 nothing is. Raises InvalidError if it is taken."""
        if not port:
            yield
            return
        with _bound(port, self.app()) as server:
            threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
            try:
                yield
            finally:
                server.shutdown()

    def tell_troubles(self, stop: threading.Event) -> None:
        """Log, in a thread, what keeps this process from leading or from seeing the cluster; once each, and its end."""
        threading.Thread(target=self._tell_troubles, args=(stop,), name="troubles", daemon=True).start()

    def _tell_troubles(self, stop: threading.Event) -> None:
        log = structlog.get_logger("diflow.allocator")
        told = ""
        while not stop.wait(self._watch_seconds):
            good, text = self.readiness()
            if text == told:
                continue
            told = text
            if good:
                log.info("ready", state=text)
            else:
                log.warning("not ready", why=text)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's own looks the host's name up, which takes seconds without DNS
        self.server_name, self.server_port = "", self.server_address[1]
        self.setup_environ()


class _DualServer(_Server):
    address_family = socket.AF_INET6

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


def _bound(port: int, app: Any) -> WSGIServer:
    kinds: list[type[_Server]] = [_DualServer, _Server] if socket.has_dualstack_ipv6() else [_Server]
    why = ""
    for kind in kinds:  # a machine may have IPv6 built in and switched off
        try:
            return make_server("", port, app, server_class=kind, handler_class=_Silent)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
    raise InvalidError(f"port {port} for metrics cannot be used: {why}")


class _Silent(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Probes come every few seconds: they are no news."""

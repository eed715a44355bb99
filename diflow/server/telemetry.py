"""Metrics for Prometheus and health checks, on a port of their own.

    /metrics   counters and histograms, in Prometheus' text format
    /healthz   200 while the event loop runs
    /readyz    200 while the API can answer; else, and from SIGTERM on, 503 with the reason

The values of labels come from fixed sets (routes, status codes, outcomes), never from requests: a client could create
millions of series. Everything is counted in the event loop's thread or under prometheus-client's locks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sized
from dataclasses import dataclass
from typing import Any, Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from diflow.common.errors import ConflictError, InvalidError, NotFoundError
from diflow.kube.api import Cluster
from diflow.kube.kinds import Kind

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_REASONS: Final = {400: "not_http", 408: "slow", 413: "body", 431: "head", 503: "no_room_or_time"}
NO_ROUTE: Final = "(none)"


@dataclass(frozen=True, slots=True)
class Answered:
    """A finished request, for the counters. `route` is its pattern, "" if no route matched."""

    method: str
    route: str
    status: int
    seconds: float


class Counted(Protocol):
    """The connections of a listener, as far as they are counted: which are open, and how many have a request in
    progress."""

    @property
    def open(self) -> Sized: ...
    @property
    def busy(self) -> int: ...


class Telemetry:
    """The server's counters and its readiness.

    `trouble` returns why the API cannot answer, or ""; `ages` the age in seconds of each kind's cache.
    """

    def __init__(
        self,
        *,
        trouble: Callable[[], str] = lambda: "",
        ages: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self.trouble = trouble
        self.ages = ages
        self.is_ending = False
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        here: dict[str, Any] = {"namespace": "diflow", "subsystem": "server", "registry": self.registry}
        self._requests = Counter("requests", "Responses, by route and code.", ["route", "method", "code"], **here)
        self._seconds = Histogram(
            "request_seconds",
            "From the head of a request to the end of its response.",
            ["route"],
            buckets=_BUCKETS,
            **here,
        )
        self._refusals = Counter("refusals", "Requests and connections refused at a limit.", ["limit"], **here)
        self._asked = Counter(
            "cluster_requests", "Reviews and writes sent to the API server.", ["kind", "outcome"], **here
        )
        self._age = Gauge("cache_age_seconds", "Since the cache of a kind was known to be current.", ["kind"], **here)
        self._open = Gauge("connections", "Open connections.", **here)
        self._busy = Gauge("busy_connections", "Open connections with a request in progress.", **here)
        self._ready = Gauge("ready", "1 while the API can answer.", **here)
        self._ready.set_function(lambda: float(not self.why_not_ready()))
        self._known: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        for limit in _REASONS.values():
            self._refusals.labels(limit)

    # --- counting ---------------------------------------------------------------------------------------------------

    def answered(self, answer: Answered) -> None:
        """Count a finished request."""
        route, method, code = answer.route or NO_ROUTE, answer.method, answer.status
        found = self._known.get((route, method, code))
        if found is None:
            shown = method if method in _METHODS else "other"
            found = (self._requests.labels(route, shown, str(code or "none")), self._seconds.labels(route))
            if shown == method:
                self._known[route, method, code] = found
        found[0].inc()
        found[1].observe(answer.seconds)

    def refusal(self, status: int, why: str) -> None:  # noqa: ARG002 (free text is no label)
        """Count a refusal at a limit (`Connections` calls this)."""
        self._refusals.labels(_REASONS.get(status, "other")).inc()

    def asked(self, kind: str, outcome: str) -> None:
        """Count a review or a write (`CountedCluster` calls this)."""
        self._asked.labels(kind, outcome).inc()

    def watch(self, connections: Counted) -> None:
        """Report the numbers of these connections."""
        self._open.set_function(lambda: float(len(connections.open)))
        self._busy.set_function(lambda: float(connections.busy))

    def why_not_ready(self) -> str:
        """Why the API cannot answer now, or ""."""
        return "ending" if self.is_ending else self.trouble()

    def page(self) -> bytes:
        """The current values, in Prometheus' text format."""
        for kind, seconds in self.ages().items():
            self._age.labels(kind).set(seconds)
        return generate_latest(self.registry)


class CountedCluster(Cluster):
    """A cluster that calls `on_request(kind, outcome)` after each review and each write."""

    on_request: Callable[[str, str], None] = staticmethod(lambda *_: None)

    def create(self, kind: Kind, body: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        with self._counted(kind):
            return super().create(kind, body, **options)

    def patch(self, kind: Kind, name: str, body: Mapping[str, Any] | list[Any], **options: Any) -> dict[str, Any]:
        with self._counted(kind):
            return super().patch(kind, name, body, **options)

    @contextlib.contextmanager
    def _counted(self, kind: Kind) -> Iterator[None]:
        outcome = "failed"
        try:
            yield
            outcome = "done"
        except (InvalidError, ConflictError, NotFoundError):
            outcome = "refused"  # the object has changed meanwhile, or is gone
            raise
        finally:
            self.on_request(kind.plural, outcome)


class Pages:
    """The ASGI application of the metrics port: the three pages."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 (no body is read)
        if scope["type"] != "http":
            return
        code, kind, body = self._answer(scope["path"], scope["method"])
        fields = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": code, "headers": fields})
        await send({"type": "http.response.body", "body": body})

    def _answer(self, path: str, method: str) -> tuple[int, str, bytes]:
        text = "text/plain; charset=utf-8"
        if method not in ("GET", "HEAD"):
            return 405, text, b"only GET\n"
        if path == "/metrics":
            return 200, CONTENT_TYPE_LATEST, self._telemetry.page()
        if path == "/healthz":
            return 200, text, b"ok\n"
        if path == "/readyz":
            why = self._telemetry.why_not_ready()
            return (503, text, f"{why}\n".encode()) if why else (200, text, b"ok\n")
        return 404, text, b"there are /metrics, /healthz and /readyz\n"

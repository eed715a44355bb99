"""What an administrator sees of the server: numbers for Prometheus, on a port of their own, and its health.

    /metrics   counters and times, in Prometheus' text form
    /healthz   200 while the loop turns: whoever answers is what is asked about
    /readyz    200 while the API can be answered; 503 with the reason otherwise, and from SIGTERM on

A label's values come from our own tables (routes, codes, words for outcomes), never from what somebody sent: a client
could make a million series. Everything is counted in the loop's thread or under prometheus-client's own locks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from diflow.errors import ConflictError, InvalidError, NotFoundError
from diflow.kube.api import Cluster
from diflow.kube.kinds import Kind

if TYPE_CHECKING:
    from diflow.server.http.frame import Answered
    from diflow.server.http.limits import Connections

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_REASONS: Final = {400: "not_http", 408: "slow", 413: "body", 431: "head", 503: "no_room_or_time"}
NO_ROUTE: Final = "(none)"


class Telemetry:
    """Counts what the server does, and knows how it is.

    `trouble` gives the reason why nothing can be answered now, or ""; `ages` the seconds since each cache was in step.
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
        self._requests = Counter("requests", "Answers, by route and code.", ["route", "method", "code"], **here)
        self._seconds = Histogram(
            "request_seconds",
            "From the head of a request to the end of its answer.",
            ["route"],
            buckets=_BUCKETS,
            **here,
        )
        self._refusals = Counter("refusals", "Requests and connections sent away by a limit.", ["limit"], **here)
        self._asked = Counter(
            "cluster_requests", "Reviews and writes that the cluster was asked for.", ["kind", "outcome"], **here
        )
        self._age = Gauge("cache_age_seconds", "Since the copy of a kind was known to be in step.", ["kind"], **here)
        self._open = Gauge("connections", "Connections that are open.", **here)
        self._busy = Gauge("busy_connections", "Those of them with a request under way.", **here)
        self._ready = Gauge("ready", "1 while the API can be answered.", **here)
        self._ready.set_function(lambda: float(not self.why_not_ready()))
        self._known: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        for limit in _REASONS.values():
            self._refusals.labels(limit)

    # --- what is counted --------------------------------------------------------------------------------------------

    def answered(self, answer: Answered) -> None:
        """A request is over."""
        route, method, code = answer.route or NO_ROUTE, answer.method, answer.status
        found = self._known.get((route, method, code))
        if found is None:
            shown = method if method in _METHODS else "other"
            found = (self._requests.labels(route, shown, str(code or "none")), self._seconds.labels(route))
            if shown == method:
                self._known[route, method, code] = found
        found[0].inc()
        found[1].observe(answer.seconds)

    def refusal(self, status: int, why: str) -> None:  # noqa: ARG002 (words are for people: no label)
        """A limit was met (`Connections` calls this)."""
        self._refusals.labels(_REASONS.get(status, "other")).inc()

    def asked(self, kind: str, outcome: str) -> None:
        """The cluster was asked for a review or a write. Both are words of ours (see CountedCluster)."""
        self._asked.labels(kind, outcome).inc()

    def watch(self, connections: Connections) -> None:
        """Show how many connections there are."""
        self._open.set_function(lambda: float(len(connections.open)))
        self._busy.set_function(lambda: float(connections.busy))

    def why_not_ready(self) -> str:
        """Why the API cannot be answered now, or ""."""
        return "ending" if self.is_ending else self.trouble()

    def page(self) -> bytes:
        """The numbers of now, in Prometheus' text form."""
        for kind, seconds in self.ages().items():
            self._age.labels(kind).set(seconds)
        return generate_latest(self.registry)


class CountedCluster(Cluster):
    """The cluster, with what is asked of it counted: `tell(kind, outcome)` hears of each review and each write."""

    tell: Callable[[str, str], None] = staticmethod(lambda *_: None)

    def create(self, kind: Kind, body: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        with self._told(kind):
            return super().create(kind, body, **options)

    def patch(self, kind: Kind, name: str, body: Mapping[str, Any] | list[Any], **options: Any) -> dict[str, Any]:
        with self._told(kind):
            return super().patch(kind, name, body, **options)

    @contextlib.contextmanager
    def _told(self, kind: Kind) -> Iterator[None]:
        outcome = "failed"
        try:
            yield
            outcome = "done"
        except (InvalidError, ConflictError, NotFoundError):
            outcome = "refused"  # it has changed meanwhile, or has gone
            raise
        finally:
            self.tell(kind.plural, outcome)


class Pages:
    """The three pages, as an application of their own for the metrics' port."""

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

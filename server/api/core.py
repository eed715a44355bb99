"""The parts that the routes are made of, put together in one place, and what every route of a job does first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import structlog
from starlette.types import Receive, Scope, Send

from diflow.errors import DiflowError
from diflow.server.api.access import Access, Caller, Verb
from diflow.server.api.cache import Cache, JobView
from diflow.server.api.desires import Desires, check_readable
from diflow.server.api.discovery import Discovery
from diflow.server.api.identity import Identity
from diflow.server.api.queueing import JobWrites
from diflow.server.api.reporting import Reporter
from diflow.server.http.buckets import Buckets
from diflow.server.http.errors import ApiError, forbidden, gone, not_found, too_many
from diflow.server.http.exchange import Exchange
from diflow.server.http.frame import late
from diflow.server.http.pool import Pool
from diflow.server.settings import ServerSettings

Handler = Callable[[Exchange], Awaitable[None]]

_PROBE_SECONDS: Final = (1.0, 30.0)

log = structlog.get_logger("diflow.server")


@dataclass(slots=True)
class Core:
    """Everything that the routes share. `clock` gives monotonic seconds."""

    settings: ServerSettings
    cache: Cache
    identity: Identity
    access: Access
    desires: Desires
    reporter: Reporter
    discovery: Discovery
    writes: JobWrites
    buckets: Buckets
    pools: tuple[Pool, ...] = ()
    clock: Callable[[], float] = time.monotonic
    is_ending: bool = False
    """The process has been told to end: whoever chooses a server should choose another one."""
    authoriser: str = "the authoriser has not been asked yet"
    """Why nobody can be told apart now, or ""."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def readiness(self) -> tuple[bool, str]:
        """(whether requests can be answered, in words). It never blocks, and may be asked from any thread."""
        why = "ending" if self.is_ending else self.cache.trouble() or self.authoriser
        return not why, why or "ready"

    async def start(self) -> None:
        """Begin what works beside the requests. Called in the event loop that serves them."""
        self.discovery.start()
        if self.settings.unproven_pods:
            log.warning(
                "pods are served without a token",
                why="DIFLOW_SERVER_UNPROVEN_PODS is set",
                meaning="a pod is known by its address alone, and may ask for all jobs of its namespace",
            )
        task = asyncio.ensure_future(self._probe())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def stop(self) -> None:
        """Let go who waits, and write what was taken."""
        self.discovery.stop()
        for task in list(self.tasks):
            task.cancel()
        await self.reporter.close()
        for pool in self.pools:
            pool.close()

    async def job(self, exchange: Exchange, namespace: str, name: str, verb: Verb) -> tuple[JobView, Caller]:
        """The job that a request is about, and who asks: what comes before everything else, in the order in which
        nobody learns what he may not know. Raises ApiError: 401, 403, 404, 429 or 503."""
        caller = await self.access.caller(
            exchange.token, namespace=namespace, job=name, verb=verb, address=exchange.address
        )
        exchange.scope["state"]["caller"] = caller.name
        view = self.cache.job(namespace, name)
        if view is None:
            raise not_found(f"there is no job {namespace}.{name}")
        wait = self.buckets.take((namespace, name))
        if wait:
            raise too_many(f"too many requests for job {namespace}.{name}", after_seconds=wait)
        check_readable(view.workflow)
        return view, caller

    async def reported(self, exchange: Exchange, namespace: str, name: str) -> tuple[JobView, Caller]:
        """The same, for a report: the job has not ended, and a pod that asks is its own. Raises ApiError: 403, 410."""
        view, caller = await self.job(exchange, namespace, name, "patch")
        if caller.is_foreign:
            raise forbidden("reports about a job are taken from its own pods, and this one is of another job")
        check_not_over(view)
        return view, caller

    async def _probe(self) -> None:
        """Ask for a review of nothing until one is made: then tokens can be told apart."""
        low, high = _PROBE_SECONDS
        pause = low
        told = ""
        while True:
            try:
                await self.identity.probe()
            except (DiflowError, ApiError) as error:
                self.authoriser = f"tokens cannot be reviewed: {error}"
                if str(error) != told:
                    told = str(error)
                    log.warning("tokens cannot be reviewed", why=told)
                await asyncio.sleep(pause)
                pause = min(high, 2 * pause)
                continue
            self.authoriser = ""
            return


def check_not_over(view: JobView) -> None:
    """Raises ApiError (410) if the job has ended: then it has no replicas, and gets none."""
    if view.workflow.is_over:
        raise gone(f"job {view.namespace}.{view.name} has ended")


class Endpoint:
    """An ASGI endpoint that hands each method to its function, within `seconds` (None: it takes care itself)."""

    def __init__(self, route: str, *, seconds: float | None, **methods: Handler) -> None:
        self.route = route
        self._seconds = seconds
        self._methods = {name.upper(): handler for name, handler in methods.items()}
        if "GET" in self._methods:
            self._methods["HEAD"] = self._methods["GET"]
        self.allowed = ", ".join(sorted(self._methods))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["route"] = self.route
        handler = self._methods.get(scope["method"])
        if handler is None:
            raise ApiError(405, f"there is only {self.allowed} here", headers={"Allow": self.allowed})
        exchange = Exchange(scope, receive, send)
        if self._seconds is None:
            await handler(exchange)
            return
        try:
            async with asyncio.timeout(self._seconds):
                await handler(exchange)
        except TimeoutError:
            raise late() from None

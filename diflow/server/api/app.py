"""The ASGI application. All it uses is passed in; there are no globals.

    app = create_app(cluster=..., cache=..., settings=...)     # the caller starts and stops the cache

`app.state.core` is the `Core`: the status page uses its cache, identity and access, the process its readiness.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from diflow.common.clock import SYSTEM, Clock
from diflow.kube.api import Cluster
from diflow.server.api.access import Access
from diflow.server.api.adaptdl import AdaptDL
from diflow.server.api.cache import Cache
from diflow.server.api.checks import Checks
from diflow.server.api.core import Core, Endpoint
from diflow.server.api.discovery import Discovery
from diflow.server.api.identity import Identity, Kept
from diflow.server.api.modules import ModuleChanges
from diflow.server.api.queueing import JobWrites
from diflow.server.api.reporting import Reporter
from diflow.server.api.scale_requests import ScaleRequests
from diflow.server.api.shards import Shards
from diflow.server.api.v1alpha1 import V1Alpha1
from diflow.server.api.v2alpha1 import V2Alpha1
from diflow.server.http import envelope
from diflow.server.http.buckets import Buckets
from diflow.server.http.errors import ApiError, not_found, unavailable
from diflow.server.http.exchange import Exchange
from diflow.server.http.frame import Frame
from diflow.server.http.pool import Pool
from diflow.server.settings import ServerSettings
from diflow.server.telemetry import Answered

_REVIEWERS = 8
_WAITING = 256
# Reports: frequent requests that change no wanted state.
_ROUTINE = ("/profilings", "/shards", "/checks", "/hints/{namespace}/{name}")


def create_app(
    *,
    cluster: Cluster,
    cache: Cache,
    settings: ServerSettings,
    clock: Clock = SYSTEM,
    on_answer: Callable[[Answered], None] = lambda _: None,
    routes: Callable[[Core], Sequence[BaseRoute]] = lambda _: (),
    waiters: int = 4096,
) -> Starlette:
    """The API as an ASGI application.

    `on_answer` is called after each request. `routes` returns further routes, matched after the API's. `waiters`: the
    most concurrent long polls.
    """
    core = _core(cluster, cache, settings, clock=clock, waiters=waiters)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await core.start()
        try:
            yield
        finally:
            await core.stop()

    app = Starlette(
        routes=[*api_routes(core), *routes(core)],
        middleware=[Middleware(Frame, on_answer=on_answer, routine=_ROUTINE, clock=clock)],
        exception_handlers={HTTPException: _http_error},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.core = core
    return app


def _core(
    cluster: Cluster,
    cache: Cache,
    settings: ServerSettings,
    *,
    clock: Clock,
    waiters: int,
) -> Core:
    """Create and connect the parts of the API."""
    cluster_once = cluster.without_retries(read_seconds=5.0, connect_seconds=3.0)
    reviews = Pool("reviews", threads=_REVIEWERS, waiting=_WAITING)
    writes = Pool("writes", threads=settings.writers, waiting=_WAITING)
    reports = Pool("reports", threads=settings.writers, waiting=4 * _WAITING)
    shards = Pool("shards", threads=settings.writers, waiting=_WAITING)
    kept = Kept(settings.review_seconds, settings.denial_seconds, settings.reviews_kept)
    unproven, between_seconds = settings.unproven_pods, settings.write_seconds
    scale_requests = ScaleRequests(cluster, cache, clock=clock)
    identity = Identity(cluster_once, reviews, kept=kept, clock=clock)
    return Core(
        settings=settings,
        cache=cache,
        identity=identity,
        access=Access(cluster_once, cache, identity, reviews, unproven_pods=unproven, kept=kept, clock=clock),
        scale_requests=scale_requests,
        modules=ModuleChanges(cluster, cache, scale_requests, clock=clock),
        reporter=Reporter(
            cluster, cache, reports, between_seconds=between_seconds, rate=settings.report_rate, clock=clock
        ),
        discovery=Discovery(cache, most=waiters),
        writes=JobWrites(writes),
        shards=Shards(cluster, cache, shards, between_seconds=between_seconds, clock=clock),
        checks=Checks(cluster, cache, reports, between_seconds=between_seconds, clock=clock),
        buckets=Buckets(rate=settings.job_rate, burst=settings.job_burst, clock=clock),
        pools=(reviews, writes, reports, shards),
        clock=clock,
    )


def api_routes(core: Core) -> list[BaseRoute]:
    """The routes of the API, the most frequent first."""
    found = [*V2Alpha1(core).endpoints(), *V1Alpha1(core).endpoints(), *AdaptDL(core).endpoints(), *_own(core)]
    return [Route(path, endpoint) for path, endpoint in found]


def _own(core: Core) -> list[tuple[str, Endpoint]]:
    """diflow's own routes: health, and the OpenAPI document."""
    from diflow.server.api.openapi import text  # noqa: PLC0415 (only here, and for the generated file)

    document = text().encode()

    async def healthz(exchange: Exchange) -> None:
        await exchange.answer(b"", content_type=b"text/plain; charset=utf-8")

    async def readyz(exchange: Exchange) -> None:
        good, _ = core.readiness()  # the reason is for administrators: in the log, and on the metrics port
        if not good:
            raise unavailable("the server is not ready", after_seconds=1.0)
        await exchange.answer(envelope.success("ready"))

    async def openapi(exchange: Exchange) -> None:
        await exchange.answer(document)

    pages = {"/healthz": healthz, "/readyz": readyz, "/openapi.json": openapi}
    return [(path, Endpoint(path, seconds=None, get=handler)) for path, handler in pages.items()]


async def _http_error(_: Request, error: Exception) -> Response:
    """Starlette's own errors, such as 404 for an unknown path, in the envelope."""
    if isinstance(error, HTTPException) and error.status_code != 404:
        raise ApiError(error.status_code, str(error.detail), headers=dict(error.headers or {}))
    raise not_found("there is nothing at this path")

"""The ASGI application. All it uses is passed in; there are no globals.

    app = create_app(cluster=..., cache=..., settings=...)     # the caller starts and stops the cache

`app.state.core` is the `Core`: the status page uses its cache, identity and access, the process its readiness.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from diflow.common.clock import SYSTEM, Clock
from diflow.kube.api import Cluster
from diflow.kube.kinds import ACCESS_REVIEW, TOKEN_REVIEW
from diflow.server.api.access import Access
from diflow.server.api.cache import Cache
from diflow.server.api.checks import Checks
from diflow.server.api.core import Core
from diflow.server.api.discovery import Discovery
from diflow.server.api.identity import Identity
from diflow.server.api.openapi import tags, text
from diflow.server.api.own import Own
from diflow.server.api.queueing import JobWrites
from diflow.server.api.reporting import Reporter
from diflow.server.api.reviews import AT_ONCE_SECONDS, DENIALS_AT_ONCE, DENIALS_PER_SECOND, Kept, Reviews
from diflow.server.api.scale_requests import ScaleRequests
from diflow.server.api.shards import Shards
from diflow.server.http.buckets import Buckets
from diflow.server.http.errors import ApiError, not_found
from diflow.server.http.frame import Frame
from diflow.server.http.pool import Pool
from diflow.server.http.turns import Turns
from diflow.server.settings import ServerSettings
from diflow.server.telemetry import Answered

_REVIEWERS = 8
_WAITING = 256
# So many seconds of a common rate may be used at once after a pause: of reports, which wait, and of requests for
# replicas, for which a caller waits.
_REPORTS_AT_ONCE_SECONDS = 2.0
_WRITES_AT_ONCE_SECONDS = 4.0
# What one namespace gets of the rate of these writes, and of those at once.
_MOST_OF_ONE = 0.4


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
    parts = [Own(core, text().encode()) if part is Own else part(core) for part in tags()]
    endpoints = [Route(path, endpoint) for part in parts for path, endpoint in part.endpoints()]
    reports = frozenset(route for part in parts for route in part.reports())

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await core.start()
        try:
            yield
        finally:
            await core.stop()

    app = Starlette(
        routes=[*endpoints, *routes(core)],
        middleware=[Middleware(Frame, on_answer=on_answer, routine=reports, clock=clock)],
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
    reviews = Pool("reviews", threads=_REVIEWERS, waiting=_WAITING)
    rate, burst = settings.write_rate, _WRITES_AT_ONCE_SECONDS * settings.write_rate
    writes = Pool(
        "writes", threads=settings.writers, waiting=_WAITING, rate=rate, burst=burst, part=_MOST_OF_ONE, clock=clock
    )
    reports = Pool("reports", threads=settings.writers, waiting=4 * _WAITING)
    shards = Pool("shards", threads=settings.writers, waiting=_WAITING)

    def turns(rate: float) -> Turns:
        return Turns(rate=rate, burst=_REPORTS_AT_ONCE_SECONDS * rate, clock=clock)

    reviews_of = partial(
        Reviews[Any, Any],
        cluster.without_retries(read_seconds=5.0, connect_seconds=3.0),
        pool=reviews,
        kept=Kept(settings.review_seconds, settings.denial_seconds, settings.reviews_kept),
        rates=Buckets(rate=settings.review_rate, burst=AT_ONCE_SECONDS * settings.review_rate, clock=clock),
        denials=Buckets(rate=DENIALS_PER_SECOND, burst=DENIALS_AT_ONCE, clock=clock),
        clock=clock,
    )
    between_seconds = settings.write_seconds
    identity = Identity(reviews_of(TOKEN_REVIEW), clock=clock)
    return Core(
        settings=settings,
        cluster=cluster,
        cache=cache,
        identity=identity,
        access=Access(cache, identity, reviews_of(ACCESS_REVIEW), unproven_pods=settings.unproven_pods),
        scale_requests=ScaleRequests(cluster, cache, clock=clock),
        reporter=Reporter(
            cluster, cache, reports, between_seconds=between_seconds, turns=turns(settings.report_rate), clock=clock
        ),
        discovery=Discovery(cache, most=waiters),
        writes=JobWrites(writes),
        shards=Shards(
            cluster, cache, shards, between_seconds=between_seconds, turns=turns(settings.shard_rate), clock=clock
        ),
        checks=Checks(
            cluster, cache, reports, between_seconds=between_seconds, turns=turns(settings.write_rate), clock=clock
        ),
        buckets=Buckets(rate=settings.job_rate, burst=settings.job_burst, clock=clock),
        pools=(reviews, writes, reports, shards),
        clock=clock,
    )


async def _http_error(_: Request, error: Exception) -> Response:
    """Starlette's own errors, such as 404 for an unknown path, in the envelope."""
    if isinstance(error, HTTPException) and error.status_code != 404:
        raise ApiError(error.status_code, str(error.detail), headers=dict(error.headers or {}))
    raise not_found("there is nothing at this path")

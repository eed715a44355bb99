"""What the routes share, and the checks that every route of a job begins with."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

import structlog

from diflow.common.clock import SYSTEM, Clock
from diflow.common.errors import DiflowError
from diflow.kube.api import Cluster
from diflow.server.api.access import Access, Caller, Verb
from diflow.server.api.cache import Cache, ServedJob
from diflow.server.api.checks import Checks
from diflow.server.api.discovery import Discovery
from diflow.server.api.identity import Identity
from diflow.server.api.queueing import JobWrites
from diflow.server.api.reporting import Reporter
from diflow.server.api.scale_requests import ScaleRequests, check_readable
from diflow.server.api.shards import Shards
from diflow.server.http.buckets import Buckets
from diflow.server.http.errors import ApiError, forbidden, gone, not_found, too_many
from diflow.server.http.exchange import Exchange
from diflow.server.http.pool import Pool
from diflow.server.settings import ServerSettings

_PROBE_SECONDS: Final = (1.0, 30.0)
_RATED_REPLICAS: Final = 250  # a larger job may send more requests, in proportion

log = structlog.get_logger("diflow.server")


@dataclass(slots=True)
class Core:
    """Everything that the routes share."""

    settings: ServerSettings
    cluster: Cluster
    cache: Cache
    identity: Identity
    access: Access
    scale_requests: ScaleRequests
    reporter: Reporter
    discovery: Discovery
    writes: JobWrites
    shards: Shards
    checks: Checks
    buckets: Buckets
    pools: tuple[Pool, ...] = ()
    clock: Clock = SYSTEM
    is_ending: bool = False
    """The process shuts down: /readyz returns 503, so that clients use another replica."""
    authoriser: str = "tokens have not been reviewed yet"
    """Why tokens cannot be reviewed now, or ""."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def readiness(self) -> tuple[bool, str]:
        """(whether requests can be answered, the reason if not). Never blocks; callable from any thread."""
        why = "ending" if self.is_ending else self.cache.trouble() or self.authoriser
        return not why, why or "ready"

    async def start(self) -> None:
        """Start the background work. To be called in the event loop that serves the requests."""
        self.discovery.start()
        if self.settings.unproven_pods:
            log.warning(
                "pods are served without a token",
                why="DIFLOW_SERVER_UNPROVEN_PODS is set",
                meaning="a pod is identified by its address alone, and may scale all jobs of its namespace",
            )
        for work in (self._probe(), self.reporter.listen(lambda: self.readiness()[0])):
            task = asyncio.ensure_future(work)
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def stop(self) -> None:
        """Answer the long polls, and write the reports that were taken."""
        self.discovery.stop()
        for task in list(self.tasks):
            task.cancel()
        await self.reporter.close()
        await self.checks.close()
        for pool in self.pools:
            pool.close()

    async def job(
        self, exchange: Exchange, namespace: str, name: str, verb: Verb, *, late: bool = False
    ) -> tuple[ServedJob, Caller]:
        """The job of a request, and its caller. Authorisation comes first: a 404 must not reveal which jobs exist.
        `late`: also for pods of earlier rounds that have not ended.

        Raises ApiError: 401, 403, 404, 409, 410, 429 or 503.
        """
        caller = await self.access.caller(
            exchange.token, namespace=namespace, job=name, verb=verb, address=exchange.address, late=late
        )
        exchange.scope["state"]["caller"] = caller.name
        view = self.cache.job(namespace, name)
        if view is None:
            raise not_found(f"there is no job {namespace}.{name}")
        wait = self.buckets.take((namespace, name), scale=max(1.0, len(view.pods) / _RATED_REPLICAS))
        if wait:
            raise too_many(f"too many requests for job {namespace}.{name}", after_seconds=wait)
        check_readable(view.workflow)
        return view, caller

    async def reported(
        self, exchange: Exchange, namespace: str, name: str, *, late: bool = False
    ) -> tuple[ServedJob, Caller]:
        """As `job`, for a report: refused (403) from a pod of another job, and (410) when the job has ended."""
        view, caller = await self.job(exchange, namespace, name, "patch", late=late)
        if caller.is_foreign:
            raise forbidden("reports about a job are taken from its own pods, and this one is of another job")
        check_not_over(view)
        return view, caller

    async def _probe(self) -> None:
        """Send a TokenReview until one succeeds: from then on the server is ready."""
        low, high = _PROBE_SECONDS
        pause = low
        last = ""
        while True:
            try:
                await self.identity.probe()
            except (DiflowError, ApiError) as error:
                self.authoriser = f"tokens cannot be reviewed: {error}"
                if str(error) != last:
                    last = str(error)
                    log.warning("tokens cannot be reviewed", why=last)
                await asyncio.sleep(pause)
                pause = min(high, 2 * pause)
                continue
            self.authoriser = ""
            return


def check_not_over(view: ServedJob) -> None:
    """Raises ApiError (410) if the job has ended."""
    if view.workflow.is_over:
        raise gone(f"job {view.namespace}.{view.name} has ended")

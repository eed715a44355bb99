"""Reviews by the API server (TokenReview, SubjectAccessReview): one for concurrent requests, kept for a short time.

Each review costs the API server the same, whatever it finds: tenants take turns at them, and have a rate of them. The
caches are bounded, with parts of tenants. Denials have their own, so that a flood of them evicts nothing that was
allowed, and a lower rate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from diflow.common.clock import Clock
from diflow.common.errors import DiflowError
from diflow.kube.api import Cluster
from diflow.kube.kinds import Kind
from diflow.server.http.buckets import Buckets
from diflow.server.http.errors import from_diflow, too_many
from diflow.server.http.parts import Parts
from diflow.server.http.pool import Pool

DENIALS_PER_SECOND: Final = 20.0
DENIALS_AT_ONCE: Final = 100.0
AT_ONCE_SECONDS: Final = 10.0
"""So many seconds of the rate of reviews may be made at once."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Kept:
    """How long reviews are kept, and how many."""

    seconds: float = 60.0
    denial_seconds: float = 10.0
    most: int = 10_000


@dataclass(frozen=True, slots=True)
class Found(Generic[V]):
    """What a review has found, for how many seconds it may be kept, and in whose part."""

    value: V
    seconds: float
    tenant: str


class Reviews(Generic[K, V]):
    """The reviews of one kind, made in a pool of threads and kept as `kept` says. All of a payer are limited by
    `rates`; those of an address that do not allow anything by `denials`, too. For one event loop."""

    def __init__(
        self, cluster: Cluster, kind: Kind, pool: Pool, *, kept: Kept, rates: Buckets, denials: Buckets, clock: Clock
    ) -> None:
        self._cluster = cluster
        self._kind = kind
        self._pool = pool
        self._rates = rates
        self._denials = denials
        self._known: Parts[K, V] = Parts(kept.most, timer=clock.monotonic)
        self._denied: Parts[K, bool] = Parts(kept.most, timer=clock.monotonic)
        self._denial_seconds = kept.denial_seconds
        self._running: dict[K, asyncio.Task[V | None]] = {}
        self.keep_seconds = kept.seconds

    def known(self, key: K) -> V | None:
        """What was found a moment ago; None if that is not known."""
        return self._known.get(key)

    async def result(
        self, key: K, spec: Mapping[str, Any], read: Callable[[Any], Found[V] | None], *, address: str, payer: str
    ) -> V | None:
        """What a review has found, None for a denial: `read` takes it out of the status. Concurrent callers share the
        review, and one that leaves does not end it. `payer`: whose turn it takes, an account or an address.

        Raises ApiError: 429 for too many reviews of this payer or denials of this address, 503 if the API server cannot
        be reached.
        """
        if self._denied.get(key):
            return None
        call = self._running.get(key)
        if call is None:
            if wait := self._denials.take(address):
                why = "too many invalid tokens or refused requests from this address"
                raise too_many(why, after_seconds=wait)
            if wait := self._rates.take(payer):
                self._denials.refund(address)
                raise too_many(f"too many new tokens, or rights to review, of {payer}", after_seconds=wait)
            call = self._running[key] = asyncio.ensure_future(self._ask(key, spec, read, address, payer))
            call.add_done_callback(lambda done: self._forget(key, done))
        return await asyncio.shield(call)

    async def made(self, spec: Mapping[str, Any], *, payer: str = "") -> Any:
        """Make a review, and return its status. Raises DiflowError and ApiError."""
        body = {"apiVersion": self._kind.api_version, "kind": self._kind.name, "spec": spec}
        return (await self._pool.run(lambda: self._cluster.create(self._kind, body), tenant=payer)).get("status")

    async def _ask(
        self, key: K, spec: Mapping[str, Any], read: Callable[[Any], Found[V] | None], address: str, payer: str
    ) -> V | None:
        try:
            found = read(await self.made(spec, payer=payer))
        except DiflowError as error:
            raise from_diflow(error) from None
        if found is None:
            if self._denial_seconds > 0:
                self._denied.keep(key, True, tenant=payer, seconds=self._denial_seconds)
            return None
        self._denials.refund(address)
        if found.seconds > 0:
            self._known.keep(key, found.value, tenant=found.tenant, seconds=found.seconds)
        return found.value

    def _forget(self, key: K, done: asyncio.Task[V | None]) -> None:
        self._running.pop(key, None)
        if not done.cancelled():
            done.exception()  # retrieved here: the callers may be gone

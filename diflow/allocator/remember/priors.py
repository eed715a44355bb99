"""The records of applications as policies read them, and what a job inherits from that of its application."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Final

import numpy as np

from diflow.allocator.model.arrays import frozen
from diflow.allocator.model.profile import COLUMNS, PARTS, Prior, Profile, clean
from diflow.allocator.watch.node_pools import NodePools
from diflow.common import keys
from diflow.common.clock import Clock
from diflow.common.names import pool_number
from diflow.kube.reflector import Reflector
from diflow.record.job import JobRecord
from diflow.record.namespace import applications
from diflow.record.namespace.applications import BINS, Application

REFRESH_SECONDS: Final = 300.0
"""For so long plans use a memory as it was read: each change of it means a new fit for all jobs of the application."""
REFRESH_NEW_SECONDS: Final = 10.0
"""The same, for a job whose application is not in it."""
_MOST_KEPT: Final = 20_000
"""Jobs whose profile is kept."""

assert BINS == PARTS


class Priors:
    """Adds to the profiles of jobs what the memories say of their applications. `config_maps`: the cache of these."""

    def __init__(self, config_maps: Reflector, pools: NodePools, *, clock: Clock) -> None:
        self._config_maps, self._pools, self._clock = config_maps, pools, clock
        self._of_namespace: dict[str, tuple[object, dict[str, dict[str, Prior]], float]] = {}
        self._profiles: dict[str, tuple[tuple[Profile | None, Prior, dict[str, Prior], bool], Profile]] = {}

    def profile(self, read: JobRecord, profile: Profile | None) -> Profile | None:
        """The profile of a job with what is known of its application; the same object while neither has changed."""
        of_pools = self._of_pools(read) if read.needs.application else None
        if not of_pools:
            return profile
        # Of another type of GPU the shape of the curve is still a better guess than none; the last one is the newest.
        pool = self._pools.of(read.notes.allocation)
        prior = of_pools.get(pool) or next(reversed(of_pools.values()))
        are_several = len(of_pools) > 1 or self._pools.are_several()
        basis = profile, prior, of_pools, are_several
        known = self._profiles.get(read.key)
        if known is None or any(was is not now for was, now in zip(known[0], basis, strict=True)):
            if len(self._profiles) > _MOST_KEPT:
                self._profiles.clear()
            made = replace(profile or Profile(), prior=prior, **(_in_pools(of_pools, pool) if are_several else {}))
            known = self._profiles[read.key] = basis, made
        return known[1]

    def _of_pools(self, read: JobRecord) -> dict[str, Prior] | None:
        """What is known of the job's application, by pool."""
        namespace = read.identity.namespace
        item = self._config_maps.items().get((namespace, keys.APPLICATIONS))
        if item is None:
            self._of_namespace.pop(namespace, None)
            return None
        kept, now = self._of_namespace.get(namespace), self._clock.monotonic()
        if kept is None or (kept[0] is not item and now - kept[2] >= self._least_age(read, kept[1])):
            found: dict[str, dict[str, Prior]] = {}
            for (name, pool), record in applications.parse(item["text"]).items():
                found.setdefault(name, {})[pool] = prior_of(record)
            kept = self._of_namespace[namespace] = item, found, now
        return kept[1].get(read.needs.application)

    @staticmethod
    def _least_age(read: JobRecord, known: Mapping[str, object]) -> float:
        """How old the priors of a namespace must be, in seconds, before a change of its memory is read for this job."""
        return REFRESH_SECONDS if read.needs.application in known else REFRESH_NEW_SECONDS


def prior_of(application: Application) -> Prior:
    """The record as a prior. A record is of one pool, so its observations have the pool 0."""
    batches = application.batches
    rows = [(n, r, batch, own, step, 0) for n, r, batch, own, step, _ in application.shapes]
    noise = np.array([np.nan if value is None else np.exp(value) for value in application.noise])
    return Prior(
        # Models are kept by version for all namespaces: of a CRC, a user could make one that another's record has.
        version=int.from_bytes(blake2b(repr(application).encode(), digest_size=8).digest()),
        observations=clean(np.array(rows, dtype=np.float64).reshape(-1, COLUMNS)),
        noise=frozen(noise),
        works=frozen(np.sort(np.array(application.works, dtype=np.float64))),
        restart_seconds=application.restart_seconds,
        misses=float("nan") if application.misses is None else application.misses,
        initial_batch=batches.initial,
        min_batch=batches.least,
        max_batch=batches.most,
        min_local_batch=batches.local_least,
        max_local_batch=batches.local_most,
        accumulation=batches.accumulation,
    )


def _in_pools(of_pools: Mapping[str, Prior], pool: str) -> dict[str, Any]:
    """What a profile says of several pools: the records of the application, and the largest batch of a replica in those
    where the job is not."""
    return {
        "priors": {pool_number(name): prior for name, prior in of_pools.items()},
        "local_batches": {
            pool_number(name): prior.max_local_batch
            for name, prior in of_pools.items()
            if name != pool and prior.max_local_batch > 1
        },
    }

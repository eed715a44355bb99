"""The record of an application as a policy reads it."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

import numpy as np

from diflow.allocator.model.arrays import frozen
from diflow.allocator.model.prior import PARTS, Prior
from diflow.allocator.model.profile import COLUMNS, clean
from diflow.state.applications import BINS, Application

assert BINS == PARTS


def prior_of(application: Application, pools: Mapping[str, int] | None = None) -> Prior:
    """The record as a prior. `pools`: the index of each pool of nodes."""
    batches = application.batches
    pool = (pools or {}).get(application.pool, 0)
    rows = [(n, r, batch, own, step, pool) for n, r, batch, own, step, _ in application.shapes]
    noise = np.array([np.nan if value is None else np.exp(value) for value in application.noise])
    return Prior(
        # Models are kept by version for all namespaces: of a CRC, a user could make one that another's record has.
        version=int.from_bytes(blake2b(repr((application, pool)).encode(), digest_size=8).digest()),
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

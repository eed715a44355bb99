"""What earlier jobs of a job's application have shown, as a policy reads it.

`diflow/state/applications.py` has the form in which it is kept.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from diflow.allocator.model.arrays import FloatArray, frozen
from diflow.allocator.model.profile import COLUMNS, clean
from diflow.state.applications import BINS, Application, Batches


def _nothing() -> FloatArray:
    return frozen(np.zeros(0))


@dataclass(frozen=True, slots=True, eq=False)
class Prior:
    """The memory of an application. `version` changes with anything else.

    `observations`: rows as in a profile. `noise` (BINS): gradient variance over squared norm in each part of the
    progress, NaN where it is unknown. `works`: the work of finished jobs in iterations of the initial batch size,
    ascending. `misses`: by how much the record was wrong about later jobs, as a logarithm; NaN: unknown.
    """

    version: int = 0
    observations: FloatArray = field(default_factory=lambda: frozen(np.zeros((0, COLUMNS))))
    noise: FloatArray = field(default_factory=lambda: frozen(np.full(BINS, np.nan)))
    works: FloatArray = field(default_factory=_nothing)
    restart_seconds: float | None = None
    misses: float = float("nan")
    initial_batch: int = 1
    min_batch: int = 1
    max_batch: int = 1
    min_local_batch: int = 1
    max_local_batch: int = 1
    accumulation: bool = True


def prior_of(application: Application, pools: Mapping[str, int] | None = None) -> Prior:
    """The record as a prior. `pools`: the index of each pool of nodes."""
    batches: Batches = application.batches
    pool = (pools or {}).get(application.pool, 0)
    rows = [(n, r, batch, own, step, pool) for n, r, batch, own, step, _ in application.shapes]
    noise = np.array([np.nan if value is None else np.exp(value) for value in application.noise])
    return Prior(
        version=zlib.crc32(repr((application, pool)).encode()),
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

"""What a running job reports about itself: the observations that policies use.

Users' programs send profiles, so they may be missing, partial or wrong. `clean` selects what can be used; nothing here
raises on a bad report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from diflow.allocator.model.arrays import FloatArray, frozen

# Columns of `Profile.observations`.
NODES, REPLICAS, LOCAL_BATCH, ACCUMULATION_SECONDS, STEP_SECONDS, POOL = range(6)
COLUMNS = 6
# Of more distinct configurations only the newest are used: the fit stays below a millisecond.
MOST_OBSERVATIONS = 256
PARTS = 10
"""Parts of a job's progress for which the gradient noise is kept."""


def _nothing() -> FloatArray:
    return np.zeros((0, COLUMNS))


@dataclass(frozen=True, slots=True, eq=False)
class Prior:
    """What earlier jobs of a job's application have shown: its memory. `version` changes with anything else.

    `diflow/record/namespace/applications.py` has the form in which it is kept, and
    `diflow/allocator/remember/priors.py` makes this one of it.

    `observations`: rows as in a profile. `noise` (PARTS): gradient variance over squared norm in each part of the
    progress, NaN where it is unknown. `works`: the work of finished jobs in iterations of the initial batch size,
    ascending. `misses`: by how much the record was wrong about later jobs, as a logarithm; NaN: unknown.
    """

    version: int = 0
    observations: FloatArray = field(default_factory=lambda: frozen(np.zeros((0, COLUMNS))))
    noise: FloatArray = field(default_factory=lambda: frozen(np.full(PARTS, np.nan)))
    works: FloatArray = field(default_factory=lambda: frozen(np.zeros(0)))
    restart_seconds: float | None = None
    misses: float = float("nan")
    initial_batch: int = 1
    min_batch: int = 1
    max_batch: int = 1
    min_local_batch: int = 1
    max_local_batch: int = 1
    accumulation: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """Everything one job reported so far.

    `observations`: a row for each configuration seen, with the columns named above: nodes, replicas, samples per
    replica and step, seconds of a step without synchronisation, seconds of a step with it, number of the node pool
    (`diflow.common.names.pool_number`).
    `version` changes whenever anything else does, `observations_version` whenever the observations do: they are cache
    keys of tables and fits. `parameters` is the performance model (goodput/model.py) if the job or a simulator fitted
    it; otherwise the policy does. `profiled_replicas`: the most replicas that the job says it ran with, which may be
    more than the observations show.
    `fraction_done` is progress towards the job's end (0..1), `work_done` the same in units of goodput (iterations of
    `initial_batch` samples). If either is None, the work left is unknown.
    `prior`: what earlier jobs of its application have shown, None if nothing is known.
    `priors`: the same by the number of the node pool, if several are known.
    `min_batch`: the smallest total batch that the job may use, if that is more than `initial_batch`.
    `local_batches`: the largest batch of a replica, by the number of the node pool, where it is not `max_local_batch`.
    `restart_seconds`: how long the job stands still for a move, as measured with itself; None: unknown.
    """

    version: int = 0
    observations_version: int = 0
    observations: FloatArray = field(default_factory=_nothing)
    parameters: FloatArray | None = None
    profiled_replicas: int = 0
    grad_sqr: float | None = None
    grad_var: float | None = None
    initial_batch: int = 1
    max_batch: int = 1
    min_batch: int = 0
    min_local_batch: int = 1
    max_local_batch: int = 1
    accumulation: bool = True
    fraction_done: float | None = None
    work_done: float | None = None
    prior: Prior | None = None
    priors: Mapping[int, Prior] = field(default_factory=dict)
    local_batches: Mapping[int, int] = field(default_factory=dict)
    restart_seconds: float | None = None


def clean(observations: FloatArray) -> FloatArray:
    """The plausible rows: finite, positive, at most one node per replica; a step's own part is at most the step."""
    rows = np.asarray(observations, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] not in (COLUMNS - 1, COLUMNS) or not len(rows):
        return _nothing()
    if rows.shape[1] == COLUMNS - 1:
        rows = np.column_stack([rows, np.zeros(len(rows))])
    rows = rows[np.isfinite(rows).all(axis=1)]
    with np.errstate(all="ignore"):
        good = (
            (rows[:, NODES] >= 1)
            & (rows[:, REPLICAS] >= rows[:, NODES])
            & (rows[:, REPLICAS] <= 1e6)
            & (rows[:, LOCAL_BATCH] > 0)
            & (rows[:, LOCAL_BATCH] <= 1e9)
            & (rows[:, STEP_SECONDS] > 1e-7)
            & (rows[:, STEP_SECONDS] < 1e6)
            & (rows[:, ACCUMULATION_SECONDS] < 1e6)
            & (rows[:, POOL] >= 0)
        )
    rows = rows[good][-MOST_OBSERVATIONS:]
    # Clock jitter can make the part longer than the whole step: it is clipped to the whole.
    part = np.clip(rows[:, ACCUMULATION_SECONDS], 1e-7, rows[:, STEP_SECONDS])
    out = rows.copy()
    out[:, ACCUMULATION_SECONDS] = part
    return frozen(out)


def gradient_noise(profile: Profile) -> tuple[float, float] | None:
    """(grad_sqr, grad_var) if both are usable. None: a larger batch is taken to be as good as more steps."""
    sqr, var = profile.grad_sqr, profile.grad_var
    if sqr is None or var is None or not np.isfinite(sqr) or not np.isfinite(var) or sqr < 0 or var < 0:
        return None
    return (float(sqr), float(var)) if sqr + var > 0 else None

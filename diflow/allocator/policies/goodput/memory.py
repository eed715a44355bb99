"""What a job inherits from the earlier jobs of its application.

The memory (`Prior`) says how an application scales. Its absolute times are not used as they are: machines, images and
data change them, so they are multiplied by the factor that fits the job's own times. If the memory predicts these times
badly even then, it is ignored, and the job is treated as the first of its application.
"""

from __future__ import annotations

import math

import numpy as np

from diflow.allocator.model.arrays import FloatArray
from diflow.allocator.model.profile import (
    ACCUMULATION_SECONDS,
    LOCAL_BATCH,
    NODES,
    REPLICAS,
    STEP_SECONDS,
    Prior,
    Profile,
    clean,
    gradient_noise,
)
from diflow.allocator.policies.goodput.model import ALPHA_C, BETA_C, efficiency, step_seconds

MOST_MISS = 0.25
"""A memory that is off by more than this, as a logarithm, is dropped: the difference between 2 times as fast and 2.6
times."""
LEAST_GAIN = 1.3
"""Speed on two replicas, in multiples of that on one, from which a memory counts as encouraging."""
SPREAD = (0.8, 1.0, 1.25)
"""Work of a job like an earlier one, as multiples of the earlier one's: jobs of one application differ a little."""
SPREAD_WEIGHTS = (0.25, 0.5, 0.25)
LEAST_PART = 0.1
"""Of the work of the longest job before: what a job that has done more than that is assumed to have left."""


def is_trusted(prior: Prior) -> bool:
    """Whether the memory has predicted the later jobs well, as far as that is known."""
    return not prior.misses > MOST_MISS  # NaN: there was only one job


def residuals(rows: FloatArray, params: FloatArray) -> FloatArray:
    """How much longer each observed time is than the model says, as a logarithm: of steps without synchronisation, then
    of whole steps (2K)."""
    batch = rows[:, LOCAL_BATCH]
    own = params[ALPHA_C] + params[BETA_C] * batch
    step = step_seconds(params, rows[:, NODES] > 1, rows[:, REPLICAS], batch, np.zeros(len(rows)))
    seen = np.concatenate([rows[:, ACCUMULATION_SECONDS], rows[:, STEP_SECONDS]])
    with np.errstate(divide="ignore", over="ignore"):
        out: FloatArray = np.log(seen / np.maximum(np.concatenate([own, step]), 1e-12))
    return out


def miss(rows: FloatArray, params: FloatArray) -> float:
    """By how much a model is wrong about these observations beyond a common factor, as a logarithm; NaN: no
    observations."""
    if not len(rows):
        return math.nan
    off = residuals(rows, params)
    return float(np.abs(off - np.median(off)).mean())


def inherited(rows: FloatArray, prior: Prior, params: FloatArray) -> FloatArray | None:
    """The memory's observations, in the job's own time, at numbers of replicas where the job has none of its own (K×6).

    `rows`: the job's own observations, at least one. `params`: the model of the memory. None: the memory does not fit.
    """
    off = residuals(rows, params)
    scale = float(np.median(off))
    if not np.isfinite(scale) or float(np.abs(off - scale).mean()) > MOST_MISS:
        return None
    if _discourages(rows, params):
        return None
    seen = {(bool(nodes > 1), int(replicas)) for nodes, replicas in rows[:, [NODES, REPLICAS]].tolist()}
    known = prior.observations
    fresh = [(bool(n > 1), int(r)) not in seen for n, r in known[:, [NODES, REPLICAS]].tolist()]
    out = known[np.array(fresh, dtype=np.bool_)].copy()
    out[:, [ACCUMULATION_SECONDS, STEP_SECONDS]] *= math.exp(scale)
    return out


def _discourages(rows: FloatArray, params: FloatArray) -> bool:
    """Whether the memory says that a job which has run on one replica alone gains little from a second one.

    No observation on one replica can refute that, and a wrong memory would keep the job there until its end. So the
    memory is not used until the job has run on several replicas.
    """
    if rows[:, REPLICAS].max() > 1:
        return False
    batch, none = rows[-1:, LOCAL_BATCH], np.zeros(1)
    one, two = (step_seconds(params, np.array([False]), np.array([count]), batch, none)[0] for count in (1.0, 2.0))
    return bool(2 * one < LEAST_GAIN * two)


def noise_at(prior: Prior, fraction: float | None) -> float:
    """Gradient variance over squared norm at this progress (None: the beginning), from the nearest part where it is
    known; infinity if it is nowhere."""
    known = np.flatnonzero(np.isfinite(prior.noise))
    if not len(known):
        return math.inf
    at = min(int((fraction or 0.0) * len(prior.noise)), len(prior.noise) - 1)
    return float(prior.noise[known[np.abs(known - at).argmin()]])


def work_ahead(works: FloatArray, done: float) -> float:
    """Work that a job which has done this much has left: the mean over the earlier jobs that did more (their mean
    residual life); NaN without any earlier job."""
    if not len(works):
        return math.nan
    sizes = (works[:, None] * np.array(SPREAD)).ravel()
    weights = np.broadcast_to(np.array(SPREAD_WEIGHTS), (len(works), len(SPREAD))).ravel()
    longer = sizes > done
    least = LEAST_PART * float(works.max())
    if not longer.any():
        return least
    mean = float(((sizes - done) * weights)[longer].sum() / weights[longer].sum())
    return max(mean, least)


def work_of(profile: Profile, *, seconds: float) -> float | None:
    """The work of a job that has ended, in iterations of its initial batch size; None if its report says too little.

    Its own count, or else an estimate: its running time at the goodput of its newest observation.
    """
    if profile.work_done is not None and math.isfinite(profile.work_done) and profile.work_done > 0:
        return profile.work_done
    rows = clean(profile.observations)
    if not len(rows) or seconds <= 0:
        return None
    newest = rows[-1]
    scale = np.array([newest[REPLICAS] * newest[LOCAL_BATCH] / max(1, profile.initial_batch)])
    found = gradient_noise(profile)
    noise = np.array([found[1] / found[0] if found is not None and found[0] > 0 else math.inf])
    rate = float((scale * efficiency(np.maximum(scale, 1e-9), noise))[0]) / float(newest[STEP_SECONDS])
    return seconds * rate if math.isfinite(rate) and rate > 0 else None

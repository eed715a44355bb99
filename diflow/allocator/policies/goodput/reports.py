"""What the jobs have reported, as columns of numbers for each pool of nodes; only new reports are read.

The model of a job in a pool is its own if it has fitted one (times the ratio of the pools' speeds), unless what earlier
jobs of its application have shown adds to it. Otherwise it is fitted to the observations of `pooled.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from diflow.allocator.model.arrays import FloatArray
from diflow.allocator.model.profile import NODES, POOL, REPLICAS, Prior, Profile, clean, gradient_noise
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.goodput.fitting import fit_all
from diflow.allocator.policies.goodput.gangs import Pools
from diflow.allocator.policies.goodput.memory import noise_at
from diflow.allocator.policies.goodput.model import GAMMA, PARAMETERS, Limits
from diflow.allocator.policies.goodput.pooled import PoolSeen, in_pools

# The columns: the seven parameters of the model (NaN: none), then these.
SEEN, SPANNED, INITIAL, LEAST, MOST, LOCAL_LEAST, LOCAL_MOST, ACCUMULATION, NOISE, LEFT, RESTART = range(
    PARAMETERS, PARAMETERS + 11
)
COLUMNS = PARAMETERS + 11
_NO_REPORT = (*[np.nan] * PARAMETERS, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, np.inf, np.nan, np.nan)


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """What was read of a job for the pools of a `cluster`: `columns` (P×COLUMNS) and its clean observations, `own`. If
    its model does not depend on these alone: what is known of it in each pool, `seen`, to which the model is fitted if
    there are `keys` of its rows."""

    profile: Profile
    cluster: object
    own: FloatArray
    seen: Sequence[PoolSeen]
    keys: tuple[bytes, ...]
    columns: FloatArray


class Reports:
    """Reads the reports of snapshots."""

    def __init__(self) -> None:
        self._models: dict[int, FloatArray] = {}
        self._known: dict[str, _Known] = {}
        self._fits: dict[bytes, FloatArray] = {}
        self._sources: tuple[object, ...] = ()
        self._data: FloatArray = np.zeros((0, 1, COLUMNS))

    def read(self, snapshot: Snapshot, pools: Pools) -> FloatArray:
        """What is known of the jobs in each pool (J×P×COLUMNS). Read-only."""
        sources = snapshot.job_profile, snapshot.job_names, pools
        if len(self._sources) == len(sources) and all(a is b for a, b in zip(self._sources, sources, strict=True)):
            return self._data
        models = self._models = _models_of(snapshot.job_profile, self._models)
        last, self._known = self._known, {}
        fits, self._fits = self._fits, {}
        nothing = np.array([_NO_REPORT] * pools.count)
        columns, new = [], []
        unfitted: dict[bytes, FloatArray] = {}
        for name, profile in zip(snapshot.job_names, snapshot.job_profile, strict=True):
            if profile is None:
                columns.append(nothing)
                continue
            known = last.get(name)
            if known is None or known.profile is not profile or known.cluster != pools.key:
                known = _read(profile, pools, models, known)
                new.append(known)
            for key, one in zip(known.keys, known.seen, strict=False):
                if key in fits:
                    self._fits[key] = fits[key]
                elif len(one.rows):
                    unfitted[key] = one.rows
            self._known[name] = known
            columns.append(known.columns)
        # Not started from an earlier fit: a plan must depend only on the snapshot.
        self._fits.update(zip(unfitted, fit_all(list(unfitted.values()), apart=True), strict=True))
        for known in new:
            for row, key in zip(known.columns, known.keys, strict=False):
                found = self._fits.get(key)
                if found is not None and np.isfinite(found).all():
                    row[:PARAMETERS] = found
        self._sources, self._data = sources, np.array(columns).reshape(snapshot.jobs, pools.count, COLUMNS)
        return self._data


def _models_of(profiles: Sequence[Profile | None], known: dict[int, FloatArray]) -> dict[int, FloatArray]:
    """The models of the priors of these profiles, by version."""
    some = [profile for profile in profiles if profile is not None]
    priors = {p.prior.version: p.prior for p in some if p.prior is not None}
    priors.update({prior.version: prior for p in some for prior in p.priors.values()})
    out = {version: known[version] for version in priors if version in known}
    new = [prior for version, prior in sorted(priors.items()) if version not in out]
    found = fit_all([prior.observations for prior in new], apart=True)
    out.update({prior.version: model for prior, model in zip(new, found, strict=True)})
    return out


def _read(profile: Profile, pools: Pools, models: dict[int, FloatArray], last: _Known | None) -> _Known:
    """`models`: of the priors, by version. `last`: what was read of the job before."""
    before = last if last is not None and last.cluster == pools.key and _is_like(last.profile, profile) else None
    own, model = before.own if before is not None else clean(profile.observations), _own_model(profile)
    seen: Sequence[PoolSeen] = before.seen if before is not None else ()
    if not seen and (model is None or profile.prior is not None or profile.priors):
        seen = in_pools(profile, pools.numbers, pools.speeds, models)
    if model is None or any(one.inherits for one in seen):
        keys = before.keys if before is not None else ()
        keys = keys or tuple(blake2b(one.rows.tobytes(), digest_size=16).digest() for one in seen)
        return _Known(profile, pools.key, own, seen, keys, _columns(profile, own, pools.numbers, seen))
    columns = _columns(profile, own, pools.numbers, [None] * pools.count)
    ratio = _measured_speed(own, dict(zip(pools.numbers, pools.speeds, strict=True))) / np.array(pools.speeds)
    columns[:, :GAMMA] = model[:GAMMA] * ratio[:, None]
    columns[:, GAMMA] = model[GAMMA]
    return _Known(profile, pools.key, own, seen, (), columns)


def _is_like(one: Profile, other: Profile) -> bool:
    """Whether two profiles of a job have the same observations and priors."""
    are_priors = one.prior is other.prior and len(one.priors) == len(other.priors)
    return (
        are_priors
        and all(other.priors.get(number) is prior for number, prior in one.priors.items())
        and np.array_equal(one.observations, other.observations)
    )


def _own_model(profile: Profile) -> FloatArray | None:
    """The model that the job has fitted itself; None if it has none, or one that cannot be true."""
    if profile.parameters is None or np.shape(profile.parameters) != (PARAMETERS,):
        return None
    found = np.asarray(profile.parameters, dtype=np.float64)
    is_sane = bool(np.isfinite(found).all() and (found >= 0).all() and 1.0 <= found[GAMMA] <= 10.0)
    return found if is_sane else None


def _measured_speed(own: FloatArray, speed_of: Mapping[int, float]) -> float:
    """The speed of the pool in which the job has fitted its own model: that of its newest row of a known pool, or 1.

    The pool where it runs does not matter: a plan that moves the job, or starts it, does not change what it measured.
    """
    return next((speed_of[int(pool)] for pool in own[::-1, POOL].tolist() if pool in speed_of), 1.0)


def _columns(profile: Profile, own: FloatArray, numbers: Sequence[int], seen: Sequence[PoolSeen | None]) -> FloatArray:
    """The columns of the job in the pools of these numbers, without the models (P×COLUMNS). `own`: its clean
    observations; `seen`: what is known of it in each pool, if a model is fitted to that."""
    noise = gradient_noise(profile)
    # A model without observations is the job's own, and covers several nodes.
    common = [
        *[np.nan] * PARAMETERS,
        max(float(profile.profiled_replicas), float(own[:, REPLICAS].max(initial=0))),
        float(not len(own) or (own[:, NODES] > 1).any()),
        *_batches(profile),
        noise[1] / noise[0] if noise is not None and noise[0] > 0 else np.inf,
        work_left(profile),
        np.nan,
    ]
    out = np.array([common] * len(numbers))
    for row, number, one in zip(out, numbers, seen, strict=True):
        if one is not None:
            row[SEEN] = max(row[SEEN], one.reach)
            row[SPANNED] = float((one.rows[:, NODES] > 1).any())
        prior = (one.prior if one is not None else None) or profile.prior
        if prior is not None:
            if not len(own) and profile.parameters is None:
                # It has not run yet.
                row[INITIAL : ACCUMULATION + 1] = _batches(prior)
            if profile.grad_sqr is None:
                row[NOISE] = noise_at(prior, profile.fraction_done)
            if math.isnan(row[LEFT]) and profile.fraction_done is not None and len(prior.works):
                row[LEFT] = float(np.median(prior.works)) * min(max(1.0 - profile.fraction_done, 1e-3), 1.0)
            row[RESTART] = np.nan if prior.restart_seconds is None else prior.restart_seconds
        if profile.restart_seconds is not None:
            row[RESTART] = profile.restart_seconds
        if number in profile.local_batches:
            row[LOCAL_MOST] = max(row[LOCAL_LEAST], float(profile.local_batches[number]))
    return out


def _batches(given: Profile | Prior) -> tuple[float, ...]:
    """Batch limits, and whether gradients may be accumulated, in the order of the columns."""
    initial, local = max(1, given.initial_batch), max(1, given.min_local_batch)
    least, most = max(initial, given.min_batch), max(initial, given.max_batch, given.min_batch)
    return initial, least, most, local, max(local, given.max_local_batch), given.accumulation


def limits_of(data: FloatArray) -> Limits:
    """The limits of jobs from their columns (J×COLUMNS)."""
    return Limits(
        initial=data[:, INITIAL],
        least=data[:, LEAST],
        most=data[:, MOST],
        local_least=data[:, LOCAL_LEAST],
        local_most=data[:, LOCAL_MOST],
        accumulation=data[:, ACCUMULATION] > 0,
        noise=data[:, NOISE],
    )


def work_left(profile: Profile) -> float:
    """Work left of the job in iterations of M0; NaN: unknown."""
    done, work = profile.fraction_done, profile.work_done
    if done is None or work is None or not (math.isfinite(done) and math.isfinite(work)):
        return math.nan
    return work * max(1.0 - done, 1e-3) / done if 0 < done <= 1 and work > 0 else math.nan

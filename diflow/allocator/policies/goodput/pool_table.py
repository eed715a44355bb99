"""Goodput of every job at every useful configuration in every pool of nodes, for clusters with several pools.

The same table as that of `table.py`, with a row for each job and pool.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray
from diflow.allocator.model.domains import most_in_one
from diflow.allocator.model.profile import NODES, POOL, REPLICAS, Profile, clean
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.goodput.fitting import fit_all
from diflow.allocator.policies.goodput.gangs import Gangs, View
from diflow.allocator.policies.goodput.memory import noise_at
from diflow.allocator.policies.goodput.model import ALPHA_C, GAMMA, PARAMETERS
from diflow.allocator.policies.goodput.pooled import PoolSeen, in_pools
from diflow.allocator.policies.goodput.table import (
    ACCUMULATION,
    INITIAL,
    LEFT,
    LOCAL_LEAST,
    LOCAL_MOST,
    NO_REPORT,
    NOISE,
    READ_COLUMNS,
    RESTART,
    SEEN,
    SPANNED,
    Bounds,
    Table,
    Tables,
    is_sane,
    models_of_priors,
    prior_limits,
    reported_limits,
    work_left,
)
from diflow.allocator.policies.settings import PolicySettings
from diflow.allocator.policies.waiting import empty_slots
from diflow.common.names import pool_number


@dataclass(frozen=True, slots=True, eq=False)
class PoolTable:
    """Of J jobs in P pools: as `Table`, with a second axis for the pool.

    `able` (J×P): whether an empty pool holds the job's minimum. `homeless` (J): no pool does; such a job may be spread
    over several, and counts as able to be in the largest. `base` (J): goodput of the smallest configuration on an
    average pool, to which speeds and `left_seconds` relate. `present` (J): of the current placement.
    """

    replicas: IntArray
    goodput: FloatArray
    spread: FloatArray
    anyway: BoolArray
    able: BoolArray
    homeless: BoolArray
    per_node: IntArray
    base: FloatArray
    present: FloatArray
    left_seconds: FloatArray
    known: BoolArray
    restart_seconds: FloatArray

    def of(self, pool: IntArray) -> Table:
        """The table of the jobs in these pools (J)."""
        rows = np.arange(len(pool))
        return Table(
            self.replicas[rows, pool],
            self.goodput[rows, pool],
            self.present,
            self.spread[rows, pool],
            self.left_seconds,
            self.known,
            self.anyway[rows, pool],
            self.restart_seconds,
        )


def pool_slots(snapshot: Snapshot, elastic: IntArray) -> tuple[IntArray, IntArray]:
    """(replicas of each job's elastic role that one empty node of each pool holds at most, and all of them together, of
    one domain if the job requires that) (J×P each)."""

    def make() -> tuple[IntArray, IntArray]:
        pools, shapes = len(snapshot.pool_names), snapshot.facts.shape
        one: dict[int, tuple[IntArray, IntArray]] = {}
        for role in elastic.tolist():
            if shapes[role] not in one:
                fits = np.minimum(empty_slots(snapshot, role), 2**31)
                level = snapshot.facts.level[shapes[role]]
                there = [np.where(snapshot.node_pool == pool, fits, 0) for pool in range(pools)]
                most = np.array([int(by_node.max(initial=0)) for by_node in there], dtype=np.int64)
                total = np.array([most_in_one(snapshot, level, by_node) for by_node in there], dtype=np.int64)
                one[shapes[role]] = most, total
        found = [one[shapes[role]] for role in elastic.tolist()]
        shape = len(found), pools
        return (
            np.array([most for most, _ in found], dtype=np.int64).reshape(shape),
            np.array([total for _, total in found], dtype=np.int64).reshape(shape),
        )

    sources = (snapshot.facts, snapshot.node_allocatable, snapshot.node_foreign, snapshot.node_pool)
    return snapshot.memo.get("pool slots", sources, make)


class PoolTables(Tables):
    """Makes the pool table of a snapshot; caches what did not change."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[str, _Known] = {}
        self._fits: dict[bytes, FloatArray] = {}
        self._rows: tuple[object, tuple[str, ...]] = (None, ())

    def make_pools(
        self, snapshot: Snapshot, gangs: Gangs, view: View, settings: PolicySettings, *, patience_seconds: float
    ) -> PoolTable:
        """The table of all jobs. `view.pool`: the pool where each job runs, or -1."""
        jobs, pools = snapshot.jobs, len(snapshot.pool_names)
        flat = self._read_pools(snapshot).reshape(jobs * pools, READ_COLUMNS)
        most, total = pool_slots(snapshot, gangs.elastic)
        able: BoolArray = np.greater_equal(total, gangs.low[:, None])
        homeless: BoolArray = ~np.any(able, axis=1)
        able[homeless, total[homeless].argmax(axis=1)] = True
        total = np.where(homeless[:, None], gangs.high[:, None], total)
        high = np.maximum(np.minimum(gangs.high[:, None], total), gangs.low[:, None])
        # A job that no pool holds alone may be in several.
        here = (view.pool[:, None] == np.arange(pools)) | homeless[:, None]
        started = snapshot.job_started_seconds
        silent = (started >= 0) & (snapshot.now_seconds - started >= patience_seconds)
        untold = np.where(silent, gangs.desired, np.maximum(gangs.low, settings.largest_start))
        bounds = Bounds(
            np.repeat(gangs.low, pools),
            high.ravel(),
            np.maximum(most, 1).ravel(),
            np.where(here, view.held[:, None], 0).ravel(),
            np.where(here, view.held_nodes[:, None], 0).ravel(),
            np.repeat(untold, pools),
        )
        replicas, anyway, value = self._filled(
            self._names(snapshot), flat, bounds, settings.largest_growth, settings.between_nodes
        )
        value = value.reshape(jobs, pools, -1)
        known = np.isfinite(flat[:, ALPHA_C]).reshape(jobs, pools)
        value = np.where(known[:, :, None], value, value * snapshot.pool_speed[:, None])
        goodput = np.where(able[:, :, None], value[:, :, 2:], 0.0)
        first = goodput[:, :, 0]
        usable = able & (first > 0)
        logs = np.where(usable, np.log(np.where(usable, first, 1.0)), 0.0).sum(axis=1)
        several = usable.sum(axis=1)
        # Of one pool the mean is exactly its value.
        base = np.where(several == 1, first.max(axis=1), np.exp(logs / np.maximum(several, 1)))
        data = flat.reshape(jobs, pools, READ_COLUMNS)
        left = np.mean([self._work_left(snapshot, data[:, p], np.maximum(most[:, p], 1)) for p in range(pools)], axis=0)
        rows = np.arange(jobs)
        at = np.maximum(view.pool, 0)
        return PoolTable(
            replicas.reshape(jobs, pools, -1),
            goodput,
            np.where(able, value[:, :, 1], 0.0),
            anyway.reshape(jobs, pools, -1) & able[:, :, None],
            able,
            homeless,
            np.maximum(most, 1),
            base,
            np.where(view.pool >= 0, value[rows, at, 0], 0.0),
            np.where(known.all(axis=1) & (several > 0), left / base, np.nan),
            known[rows, at],
            data[:, 0, RESTART],
        )

    def _names(self, snapshot: Snapshot) -> tuple[str, ...]:
        """A name for each job and pool, the same object for the same jobs."""
        if self._rows[0] is not snapshot.job_names or len(self._rows[1]) != snapshot.jobs * len(snapshot.pool_names):
            self._rows = (
                snapshot.job_names,
                tuple(f"{name}/{pool}" for name in snapshot.job_names for pool in snapshot.pool_names),
            )
        return self._rows[1]

    def _read_pools(self, snapshot: Snapshot) -> FloatArray:
        """What is known of the jobs in each pool (J×P×READ_COLUMNS); only new reports are read."""
        numbers = tuple(pool_number(name) for name in snapshot.pool_names)
        cluster = numbers, tuple(snapshot.pool_speed.tolist())
        models = self._priors = _models_of(snapshot.job_profile, self._priors)
        last, self._known = self._known, {}
        fresh: list[tuple[_Known, int, bytes]] = []
        unfitted: dict[bytes, FloatArray] = {}
        fits, self._fits = self._fits, {}
        for name, profile in zip(snapshot.job_names, snapshot.job_profile, strict=True):
            known = last.get(name)
            if known is None or known.profile is not profile or known.cluster != cluster:
                known = _read(profile, cluster, models)
            for at, rows in enumerate(known.rows):
                if not len(rows):
                    continue
                key = known.keys[at]
                if key in fits:
                    self._fits[key] = fits[key]
                elif key not in self._fits:
                    unfitted.setdefault(key, rows)
                fresh.append((known, at, key))
            self._known[name] = known
        found = fit_all(list(unfitted.values()), apart=True)
        self._fits.update(zip(unfitted, found, strict=True))
        for known, at, key in fresh:
            params = self._fits[key]
            if known.columns[at, 0] != params[0]:
                known.columns[at, :PARAMETERS] = params
        table = [self._known[name].columns for name in snapshot.job_names]
        return np.array(table).reshape(snapshot.jobs, len(numbers), READ_COLUMNS)


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """What was read of a job: `columns` (P×READ_COLUMNS), and the observations `rows` of each pool to which the model
    is fitted, with their `keys`. `cluster`: what it was read for."""

    profile: Profile | None
    cluster: object
    columns: FloatArray
    rows: tuple[FloatArray, ...] = ()
    keys: tuple[bytes, ...] = ()


_Cluster = tuple[tuple[int, ...], tuple[float, ...]]


def _read(profile: Profile | None, cluster: _Cluster, models: dict[int, FloatArray]) -> _Known:
    numbers, speeds = cluster
    if profile is None:
        return _Known(profile, cluster, np.array([NO_REPORT] * len(numbers)))
    given = profile.parameters
    seen = in_pools(profile, numbers, speeds, models)
    is_given = given is not None and np.shape(given) == (PARAMETERS,) and is_sane(np.asarray(given, dtype=np.float64))
    # A model of its own without what earlier jobs have shown.
    if given is not None and is_given and not any(one.inherits for one in seen):
        columns = _columns(profile, numbers, [None] * len(numbers))
        ratio = _measured_speed(profile, dict(zip(numbers, speeds, strict=True))) / np.array(speeds)
        columns[:, :GAMMA] = np.asarray(given)[:GAMMA] * ratio[:, None]
        columns[:, GAMMA] = float(given[GAMMA])
        return _Known(profile, cluster, columns)
    columns = _columns(profile, numbers, seen)
    rows = tuple(one.rows for one in seen)
    return _Known(profile, cluster, columns, rows, tuple(part.tobytes() for part in rows))


def _measured_speed(profile: Profile, speed_of: Mapping[int, float]) -> float:
    """The speed of the pool in which the job has fitted its own model: that of its newest row of a known pool, or 1.

    The pool where it runs does not matter: a plan that moves the job, or starts it, does not change what it measured.
    """
    rows = clean(profile.observations)
    found = [speed_of[int(pool)] for pool in rows[::-1, POOL].tolist() if pool in speed_of]
    return found[0] if found else 1.0


def _columns(profile: Profile, numbers: Sequence[int], seen: Sequence[PoolSeen | None]) -> FloatArray:
    """The columns of the job in the pools of these numbers, without the models (P×READ_COLUMNS)."""
    own = clean(profile.observations)
    common = [np.nan] * PARAMETERS + [
        max(float(profile.profiled_replicas), float(own[:, REPLICAS].max(initial=0))),
        float(not len(own) or (own[:, NODES] > 1).any()),
        *reported_limits(profile),
        work_left(profile),
    ]
    out = np.array([[*common, np.nan]] * len(numbers))
    for row, number, one in zip(out, numbers, seen, strict=True):
        if one is not None:
            row[SEEN] = max(row[SEEN], one.reach)
            row[SPANNED] = float((one.rows[:, NODES] > 1).any())
        prior = (one.prior if one is not None else None) or profile.prior
        if prior is not None:
            if not len(own) and profile.parameters is None:
                row[INITIAL : ACCUMULATION + 1] = prior_limits(prior)
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


def _models_of(profiles: tuple[Profile | None, ...], known: dict[int, FloatArray]) -> dict[int, FloatArray]:
    """The model of each prior of these profiles, in any pool, by its version."""
    return models_of_priors(
        (
            *profiles,
            *(
                Profile(prior=prior)
                for prior in {
                    prior.version: prior for p in profiles if p is not None for prior in p.priors.values()
                }.values()
            ),
        ),
        known,
    )

"""Goodput of every job at every useful configuration, computed once a cycle for all jobs and cached.

A configuration is a number of replicas of the job's elastic role. Inside a node: powers of two and the full node (any
set of those packs without waste); beyond: whole nodes. The job's minimum and its current count are always included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray
from diflow.allocator.model.prior import Prior
from diflow.allocator.model.profile import NODES, REPLICAS, Profile, clean, gradient_noise
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.goodput.fitting import fit_all
from diflow.allocator.policies.goodput.memory import inherited, is_trusted, noise_at, work_ahead
from diflow.allocator.policies.goodput.model import ALPHA_C, ALPHA_N, BETA_N, PARAMETERS, Limits, best_batches

MOST_COLUMNS = 24
"""Configurations of whole nodes per job; for more nodes than this the steps become geometric."""
UNKNOWN_SPEEDUP = 0.5
"""A job without reports is assumed to run R^0.5 times as fast on R replicas: between no gain and linear gain, so it is
neither starved nor preferred to jobs with reports."""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """`replicas` (J×C), ascending in each row, padded with 0; `goodput` (J×C) in iterations of M0 per second.

    `present` (J): goodput of the current placement. `spread` (J): goodput of the first configuration on several nodes.
    `left_seconds` (J): time to the job's end at the first configuration, NaN if unknown. `known` (J): whether the job
    has a model. `anyway` (J×C): configurations that do not depend on the current allocation. `restart_seconds` (J): the
    restart cost of its application, NaN if it is not known.
    """

    replicas: IntArray
    goodput: FloatArray
    present: FloatArray
    spread: FloatArray
    left_seconds: FloatArray
    known: BoolArray
    anyway: BoolArray
    restart_seconds: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """As the arguments of `Tables.make`. `untold` (J): the most replicas of a job without a model."""

    low: IntArray
    high: IntArray
    per_node: IntArray
    held: IntArray
    held_nodes: IntArray
    untold: IntArray


class Tables:
    """Makes the table of a snapshot; caches values of jobs whose reports and limits did not change."""

    def __init__(self) -> None:
        self._reports: dict[str, _Report] = {}
        self._priors: dict[int, FloatArray] = {}
        self._read_from: tuple[object, object] = (None, None)
        self._data = np.zeros((0, READ_COLUMNS))
        self._made = _Made((), self._data, *(np.zeros((0, 1), dtype=kind) for kind in (int, bool, float)))

    def make(
        self,
        snapshot: Snapshot,
        *,
        low: IntArray,
        high: IntArray,
        desired: IntArray,
        per_node: IntArray,
        held: IntArray,
        held_nodes: IntArray,
        growth: float,
        start: int,
        between_nodes: float,
        patience_seconds: float,
    ) -> Table:
        """The table of all jobs.

        All arrays are J. `low`, `high`: bounds of replicas; `desired`: desired replicas; `per_node`: replicas that fit
        on one node; `held`, `held_nodes`: current replicas, and on how many nodes. `growth`, `start`,
        `between_nodes`: as in PolicySettings; `patience_seconds`: a job that runs longer without reports is assumed
        never to report.
        """
        data = self._read(snapshot)
        # A job assumed never to report may have its desired replicas.
        started = snapshot.job_started_seconds
        silent = (started >= 0) & (snapshot.now_seconds - started >= patience_seconds)
        bounds = Bounds(low, high, per_node, held, held_nodes, np.where(silent, desired, np.maximum(low, start)))
        replicas, anyway, value = self._filled(snapshot.job_names, data, bounds, growth, between_nodes)
        goodput = value[:, 2:]
        first, known = goodput[:, 0], np.isfinite(data[:, ALPHA_C])
        with np.errstate(divide="ignore", invalid="ignore"):
            left_seconds = np.where(known & (first > 0), self._work_left(snapshot, data, per_node) / first, np.nan)
        return Table(replicas, goodput, value[:, 0], value[:, 1], left_seconds, known, anyway, data[:, RESTART])

    def _filled(
        self, names: tuple[str, ...], data: FloatArray, bounds: Bounds, growth: float, between_nodes: float
    ) -> tuple[IntArray, BoolArray, FloatArray]:
        """Configurations and which of them do not depend on the allocation (J×C), and goodput (J×(2 + C)): of the
        current placement, of the first configuration on several nodes, and of each configuration."""
        low, high, per_node, held = bounds.low, bounds.high, bounds.per_node, bounds.held
        known: BoolArray = np.isfinite(data[:, ALPHA_C])
        reach = np.where(known, np.maximum(np.floor(growth * data[:, SEEN]), 1), bounds.untold)
        top = np.minimum(high, np.maximum(reach, low)).astype(np.int64)
        reached = np.minimum(high, np.maximum(top, held))
        replicas, anyway = self._grid(low, top, per_node, held, reached)
        # Columns 0 and 1: the current placement, and the smallest configuration on several nodes.
        count = np.empty((len(held), replicas.shape[1] + 2), dtype=np.int64)
        count[:, 0], count[:, 1], count[:, 2:] = np.maximum(held, 1), replicas[:, 0], replicas
        several = count > per_node[:, None]
        several[:, 0], several[:, 1] = bounds.held_nodes > 1, replicas[:, 0] > 1
        value = self._values(names, data, known=known, count=count, several=several, between_nodes=between_nodes)
        if not known.all():
            value[~known] = np.power(count[~known].astype(np.float64), UNKNOWN_SPEEDUP)
        value[:, 0][held == 0] = 0.0
        value[:, 2:][replicas == 0] = 0.0
        return replicas, anyway, value

    def _read(self, snapshot: Snapshot) -> FloatArray:
        """What the jobs reported (J×READ_COLUMNS); only new reports are read."""
        if self._read_from[0] is snapshot.job_profile and self._read_from[1] is snapshot.job_names:
            return self._data
        last, self._reports = self._reports, {}
        unfitted: list[tuple[_Report, FloatArray]] = []
        models = self._priors = models_of_priors(snapshot.job_profile, self._priors)
        for name, profile in zip(snapshot.job_names, snapshot.job_profile, strict=True):
            report = last.get(name)
            if report is None or report.profile is not profile:
                if profile is not None and profile.prior is not None:
                    report, rows = _inherit(profile, profile.prior, models[profile.prior.version], report)
                else:
                    report, rows = _read_report(profile, report)
                if len(rows):
                    unfitted.append((report, rows))
            self._reports[name] = report
        # Not started from an earlier fit: a plan must depend only on the snapshot.
        for (report, _), found in zip(unfitted, fit_all([rows for _, rows in unfitted], apart=True), strict=True):
            if np.isfinite(found).all():
                report.columns[:PARAMETERS] = found.tolist()
        self._read_from = snapshot.job_profile, snapshot.job_names
        columns = [self._reports[name].columns for name in snapshot.job_names]
        self._data = np.array(columns).reshape(snapshot.jobs, READ_COLUMNS)
        return self._data

    @staticmethod
    def _work_left(snapshot: Snapshot, data: FloatArray, per_node: IntArray) -> FloatArray:
        """Work left of each job in iterations of M0 (J); NaN: unknown.

        Of a job that reports a fraction alone it follows from what it has done; of one that reports no progress it is
        the mean residual life among the earlier jobs of its application. What a job has done is its running time at the
        speed of the mean number of replicas that it held, which a plan does not change."""
        left = data[:, LEFT].copy()
        found: list[tuple[int, FloatArray | None, float]] = []
        for j in np.flatnonzero(np.isnan(left) & np.isfinite(data[:, ALPHA_C])).tolist():
            profile = snapshot.job_profile[j]
            if profile is None:
                continue
            works = profile.prior.works if profile.prior is not None and len(profile.prior.works) else None
            fraction = profile.fraction_done
            if fraction is not None and 0 < fraction <= 1:
                found.append((j, None, max(1.0 - fraction, 1e-3) / fraction))
            elif works is not None:
                found.append((j, works, 0.0))
        if not found:
            return left
        rows = np.array([j for j, _, _ in found], dtype=np.int64)
        started = snapshot.job_started_seconds[rows]
        ran = np.where(started >= 0, np.maximum(snapshot.now_seconds - started, 0.0), 0.0)
        held = _mean_replicas(snapshot, rows, ran)
        low = held.astype(np.int64)
        for begin in range(0, len(rows), 4096):
            part = slice(begin, begin + 4096)
            of, counts = data[rows[part]], np.column_stack([low[part], low[part] + 1])
            good, _, _ = best_batches(of[:, :PARAMETERS], _of(of), counts, counts > per_node[rows[part]][:, None])
            done = ran[part] * (good[:, 0] + (held[part] - low[part]) * (good[:, 1] - good[:, 0]))
            for (j, works, rest), amount in zip(found[part], done.tolist(), strict=True):
                if works is not None:
                    left[j] = work_ahead(works, amount)
                elif amount > 0:
                    left[j] = amount * rest
        return left

    def _values(
        self,
        names: tuple[str, ...],
        data: FloatArray,
        *,
        known: BoolArray,
        count: IntArray,
        several: BoolArray,
        between_nodes: float,
    ) -> FloatArray:
        """Goodput of each known job at each configuration; unchanged values are those of the last call."""
        out = np.zeros(count.shape)
        todo = known[:, None] & (count > 0)
        last = self._made.along(names)
        if last is not None:
            width = min(count.shape[1], last.count.shape[1])
            same = (count[:, :width] == last.count[:, :width]) & (several[:, :width] == last.several[:, :width])
            same &= ((last.data == data) | (np.isnan(last.data) & np.isnan(data))).all(axis=1)[:, None]
            out[:, :width] = np.where(same, last.value[:, :width], 0.0)
            todo[:, :width] &= ~same
        rows, columns = todo.nonzero()
        for begin in range(0, len(rows), 4096):
            row, column = rows[begin : begin + 4096], columns[begin : begin + 4096]
            reports = data[row]
            params = reports[:, :PARAMETERS]
            if between_nodes > 1.0:
                params[:, (ALPHA_N, BETA_N)] *= np.where(reports[:, SPANNED] > 0, 1.0, between_nodes)[:, None]
            good, _, _ = best_batches(params, _of(reports), count[row, column][:, None], several[row, column][:, None])
            out[row, column] = good[:, 0]
        self._made = _Made(names, data, count, several, out.copy())
        return out

    @staticmethod
    def _grid(*bounds: IntArray) -> tuple[IntArray, BoolArray]:
        """Configurations of each job (J×C), ascending, padded with 0; which do not depend on the allocation (J×C).

        `bounds` (J each): minimum, maximum, replicas that fit on one node, current replicas, and the larger of maximum
        and current replicas.
        """
        rows = [_configurations(*key) for key in zip(*[bound.tolist() for bound in bounds], strict=True)]
        lengths = np.array([len(counts) for counts, _ in rows], dtype=np.int64)
        width = int(lengths.max(initial=1))
        out, anyway = np.zeros((len(rows), width), dtype=np.int64), np.zeros((len(rows), width), dtype=np.bool_)
        if rows:
            filled = np.arange(width) < lengths[:, None]
            out[filled] = np.concatenate([counts for counts, _ in rows])
            anyway[filled] = np.concatenate([mask for _, mask in rows])
        return out, anyway


# Columns of `Tables._read`: the seven parameters (NaN: no model), then these.
SEEN, SPANNED, INITIAL, LEAST, MOST, LOCAL_LEAST, LOCAL_MOST, ACCUMULATION, NOISE, LEFT, RESTART = range(
    PARAMETERS, PARAMETERS + 11
)
READ_COLUMNS = PARAMETERS + 11
NO_REPORT = (*[np.nan] * PARAMETERS, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, np.inf, np.nan, np.nan)


@dataclass(frozen=True, slots=True, eq=False)
class _Report:
    """What was read from a profile (READ_COLUMNS), and whether its parameters were fitted here: to its observations
    alone (`is_fitted`), or also to those that it `inherits`, with this model of the memory, on up to `reach`
    replicas."""

    profile: Profile | None
    columns: list[float]
    is_fitted: bool = False
    inherits: FloatArray | None = None
    reach: float = 0.0


def _read_report(profile: Profile | None, last: _Report | None) -> tuple[_Report, FloatArray]:
    """(the report, the observations to which its parameters have to be fitted: no rows if they are known).

    `last`: the job's last report; its fit is used again for the same observations.
    """
    nothing = np.zeros((0, 6))
    if profile is None:
        return _Report(profile, list(NO_REPORT)), nothing
    rows, given = clean(profile.observations), profile.parameters
    # A model without observations is the job's own, and covers several nodes.
    several = (rows[:, NODES] > 1).any() or (given is not None and not len(rows))
    largest = max(float(rows[:, REPLICAS].max(initial=0)), profile.profiled_replicas)
    columns = [np.nan] * PARAMETERS + [largest, float(several), *reported_limits(profile), work_left(profile)]
    columns.append(np.nan if profile.restart_seconds is None else profile.restart_seconds)
    if given is not None and np.shape(given) == (PARAMETERS,) and is_sane(np.asarray(given, dtype=np.float64)):
        columns[:PARAMETERS] = np.asarray(given, dtype=np.float64).tolist()
        return _Report(profile, columns), nothing
    before = last.profile if last is not None and last.is_fitted else None
    if last is not None and before is not None and before.observations_version == profile.observations_version:
        columns[:PARAMETERS] = last.columns[:PARAMETERS]
        return _Report(profile, columns, is_fitted=True), nothing
    return _Report(profile, columns, is_fitted=len(rows) > 0), rows


def models_of_priors(profiles: tuple[Profile | None, ...], known: dict[int, FloatArray]) -> dict[int, FloatArray]:
    """The model of each prior of these profiles, by its version."""
    priors = {p.prior.version: p.prior for p in profiles if p is not None and p.prior is not None}
    out = {version: known[version] for version in priors if version in known}
    new = [prior for version, prior in sorted(priors.items()) if version not in out]
    for prior, found in zip(new, fit_all([prior.observations for prior in new], apart=True), strict=True):
        out[prior.version] = found
    return out


def _inherit(profile: Profile, prior: Prior, model: FloatArray, last: _Report | None) -> tuple[_Report, FloatArray]:
    """As `_read_report`, for a job whose application is known. `model`: the one of the prior."""
    plain, rows = _read_report(profile, last)
    columns, nothing = plain.columns, np.zeros((0, 6))
    if profile.restart_seconds is None and prior.restart_seconds is not None:
        columns[RESTART] = prior.restart_seconds
    is_useful = bool(np.isfinite(model).all()) and is_trusted(prior)
    if profile.grad_sqr is None:
        columns[NOISE] = noise_at(prior, profile.fraction_done)
    if math.isnan(columns[LEFT]) and profile.fraction_done is not None and len(prior.works):
        columns[LEFT] = float(np.median(prior.works)) * min(max(1.0 - profile.fraction_done, 1e-3), 1.0)
    if not is_useful:
        return plain, rows
    before = last.profile if last is not None and last.inherits is model else None
    if last is not None and before is not None and before.observations_version == profile.observations_version:
        columns[:PARAMETERS] = last.columns[:PARAMETERS]
        columns[SEEN] = max(columns[SEEN], last.reach)
        columns[SPANNED] = last.columns[SPANNED]
        return _Report(profile, columns, inherits=model, reach=last.reach), nothing
    own = clean(profile.observations)
    if not len(own):
        if profile.parameters is None:
            # It has not run yet: all of this is its predecessors'.
            columns[:PARAMETERS] = model.tolist()
            columns[INITIAL : ACCUMULATION + 1] = prior_limits(prior)
            columns[SEEN] = float(prior.observations[:, REPLICAS].max())
            columns[SPANNED] = float((prior.observations[:, NODES] > 1).any())
        return plain, rows
    more = inherited(own, prior, model)
    if more is None or not len(more):
        return plain, rows
    reach = float(more[:, REPLICAS].max())
    columns[SEEN] = max(columns[SEEN], reach)
    columns[SPANNED] = float(columns[SPANNED] > 0 or (more[:, NODES] > 1).any())
    return _Report(profile, columns, inherits=model, reach=reach), np.concatenate([more, own])


@dataclass(frozen=True, slots=True, eq=False)
class _Made:
    """The values of the last call (J×C), and what they were made from."""

    names: tuple[str, ...]
    data: FloatArray
    count: IntArray
    several: BoolArray
    value: FloatArray

    def along(self, names: tuple[str, ...]) -> _Made | None:
        """The rows of these jobs, in this order; None if it has none of them. A new job has counts of -1."""
        if self.names == names:
            return self
        rows = {name: row for row, name in enumerate(self.names)}
        back = np.array([rows.get(name, -1) for name in names], dtype=np.int64)
        if not (back >= 0).any():
            return None
        count = np.where((back >= 0)[:, None], self.count[back], -1)
        return _Made(names, self.data[back], count, self.several[back], self.value[back])


@lru_cache(maxsize=100_000)
def _configurations(low: int, top: int, per_node: int, held: int, reach: int) -> tuple[IntArray, BoolArray]:
    """(configurations of a job, which of them do not depend on its allocation). As the bounds of `Tables._grid`."""
    counts = _counts(low, reach, per_node, held)
    return counts, np.isin(counts, _counts(low, top, per_node, 0))


def _counts(low: int, top: int, per_node: int, held: int) -> IntArray:
    whole = max(1, per_node)
    inside = {1 << i for i in range(whole.bit_length()) if 1 << i <= whole} | {whole}
    beyond = list(range(2 * whole, top + 1, whole))
    if len(beyond) > MOST_COLUMNS:
        picked = np.unique(np.round(np.geomspace(2, top // whole, MOST_COLUMNS)).astype(int)) * whole
        beyond = picked.tolist()
    found = {count for count in (*inside, *beyond) if low <= count <= top} | {low}
    if low <= held <= top:
        found.add(held)
    return np.array(sorted(found), dtype=np.int64)


def is_sane(params: FloatArray) -> bool:
    return bool(np.isfinite(params).all() and (params >= 0).all() and 1.0 <= params[-1] <= 10.0)


def reported_limits(profile: Profile) -> tuple[float, float, float, float, float, float, float]:
    """Batch limits, whether gradients may be accumulated, and gradient noise, in the order of the columns."""
    initial, local = max(1, profile.initial_batch), max(1, profile.min_local_batch)
    found = gradient_noise(profile)
    return (
        initial,
        max(initial, profile.min_batch),
        max(initial, profile.max_batch, profile.min_batch),
        local,
        max(local, profile.max_local_batch),
        profile.accumulation,
        found[1] / found[0] if found is not None and found[0] > 0 else np.inf,
    )


def _mean_replicas(snapshot: Snapshot, rows: IntArray, ran: FloatArray) -> FloatArray:
    """The mean number of replicas that these jobs held while they ran. If a job's service equals its running
    time, its replicas were not counted: the number of its newest observation is used."""
    mean = snapshot.job_service_seconds[rows] / np.maximum(ran, 1e-9)
    held = np.clip(mean, 1.0, 1e6)
    for at in np.flatnonzero((np.abs(mean - 1.0) < 1e-6) & (ran > 0)).tolist():
        profile = snapshot.job_profile[rows[at]]
        seen = clean(profile.observations)[:, REPLICAS] if profile is not None else np.zeros(0)
        if len(seen):
            held[at] = float(seen[-1])
    return held


def prior_limits(prior: Prior) -> tuple[float, float, float, float, float, float]:
    """Batch limits of a prior, in the order of the columns."""
    initial, local = max(1, prior.initial_batch), max(1, prior.min_local_batch)
    return (
        initial,
        max(initial, prior.min_batch),
        max(initial, prior.max_batch, prior.min_batch),
        local,
        max(local, prior.max_local_batch),
        float(prior.accumulation),
    )


def _of(data: FloatArray) -> Limits:
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

"""Goodput of every job at every useful configuration in every pool, computed once a cycle for all jobs and cached.

A configuration is a number of replicas of the job's elastic role. Inside a node: powers of two and the full node (any
set of those packs without waste); beyond: whole nodes. The job's minimum and its current count are always included.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray
from diflow.allocator.model.domains import most_in_one
from diflow.allocator.model.profile import REPLICAS, clean
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.goodput.gangs import Gangs, Pools, View, pools_of
from diflow.allocator.policies.goodput.memory import work_ahead
from diflow.allocator.policies.goodput.model import ALPHA_C, ALPHA_N, BETA_N, PARAMETERS, best_batches
from diflow.allocator.policies.goodput.reports import LEFT, RESTART, SEEN, SPANNED, Reports, limits_of
from diflow.allocator.policies.settings import PolicySettings
from diflow.allocator.policies.waiting import empty_slots

MOST_COLUMNS = 24
"""Configurations of whole nodes per job; for more nodes than this the steps become geometric."""
UNKNOWN_SPEEDUP = 0.5
"""A job without reports is assumed to run R^0.5 times as fast on R replicas: between no gain and linear gain, so it is
neither starved nor preferred to jobs with reports."""
SILENT_PERIODS = 5
"""Periods after which a running job without reports is assumed never to report."""
_BLOCK = 4096
"""Configurations whose goodput is computed at a time: the intermediate arrays stay in the cache."""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The configurations of J jobs in P pools.

    | field | shape | meaning |
    |---|---|---|
    | replicas | J×P×C | ascending, padded with 0 |
    | goodput | J×P×C | iterations of M0 per second |
    | anyway | J×P×C | configurations that do not depend on the current allocation |
    | spread | J×P | goodput of the first configuration on several nodes |
    | able | J×P | whether the pool holds the job's minimum if it is empty |
    | per_node | J×P | replicas that fit on one empty node, at least 1 |
    | confined | J | whether a plan keeps the job in one pool |
    | base | J | goodput of the smallest configuration in an average pool: speeds are relative to it |
    | present | J | goodput of the current placement |
    | left_seconds | J | time to the end at that speed, NaN if unknown |
    | known | J | whether the job has a model |
    | restart_seconds | J | restart cost of the job or its application, NaN if unknown |

    Jobs are not confined if there is only one pool. A job that no pool holds is not either: it may be in several, and
    counts as able to be in the largest.
    """

    replicas: IntArray
    goodput: FloatArray
    anyway: BoolArray
    spread: FloatArray
    able: BoolArray
    per_node: IntArray
    confined: BoolArray
    base: FloatArray
    present: FloatArray
    left_seconds: FloatArray
    known: BoolArray
    restart_seconds: FloatArray

    def of(self, pool: IntArray) -> Table:
        """The table of each job in one of the pools (J): the arrays lack the axis P."""
        at = np.arange(len(pool)), pool
        return replace(
            self,
            replicas=self.replicas[at],
            goodput=self.goodput[at],
            anyway=self.anyway[at],
            spread=self.spread[at],
            able=self.able[at],
            per_node=self.per_node[at],
        )


def column_of(replicas: IntArray, count: IntArray) -> IntArray:
    """The largest configuration of each job with at most `count` (J) replicas; 0 if there is none. `replicas`: J×C."""
    out: IntArray = np.maximum(((replicas <= count[:, None]) & (replicas > 0)).sum(axis=1) - 1, 0)
    return out


@dataclass(frozen=True, slots=True, eq=False)
class _Bounds:
    """Of each job in each pool (J×P): bounds of its replicas, those that fit on one node, those that it holds, and on
    how many nodes. `untold` (J×1): the most replicas of a job without a model. `able` (J×P), `confined` (J): as in
    `Table`."""

    low: IntArray
    high: IntArray
    per_node: IntArray
    held: IntArray
    held_nodes: IntArray
    untold: IntArray
    able: BoolArray
    confined: BoolArray


class Tables:
    """Makes the table of a snapshot; caches values of jobs whose reports and limits did not change."""

    def __init__(self) -> None:
        self._reports = Reports()
        self._made: _Made | None = None

    def make(self, snapshot: Snapshot, gangs: Gangs, view: View, settings: PolicySettings) -> Table:
        """The table of all jobs. `view.pool`: the pool where each job runs, or -1."""
        pools = pools_of(snapshot)
        data = self._reports.read(snapshot, pools)
        bounds = _bounds(snapshot, pools, gangs, view, settings)
        known = np.isfinite(data[:, :, ALPHA_C])
        replicas, anyway, value = self._filled(snapshot.job_names, data, bounds, settings)
        value = np.where(known[:, :, None], value, value * np.array(pools.speeds)[:, None])
        able = bounds.able
        goodput = np.where(able[:, :, None], value[:, :, 2:], 0.0)
        first = goodput[:, :, 0]
        usable = able & (first > 0)
        several = usable.sum(axis=1)
        logs = np.where(usable, np.log(np.where(usable, first, 1.0)), 0.0).sum(axis=1)
        # Of one pool the mean is exactly its value.
        base = np.where(several == 1, first.max(axis=1), np.exp(logs / np.maximum(several, 1)))
        left = [_work_left(snapshot, data[:, p], bounds.per_node[:, p]) for p in range(pools.count)]
        at = np.arange(snapshot.jobs), np.maximum(view.pool, 0)
        return Table(
            replicas=replicas,
            goodput=goodput,
            anyway=anyway & able[:, :, None],
            spread=np.where(able, value[:, :, 1], 0.0),
            able=able,
            per_node=bounds.per_node,
            confined=bounds.confined,
            base=base,
            present=value[:, :, 0][at],
            left_seconds=np.where(known.all(axis=1) & (several > 0), np.mean(left, axis=0) / base, np.nan),
            known=known[at],
            restart_seconds=data[:, 0, RESTART],
        )

    def _filled(
        self, names: tuple[str, ...], data: FloatArray, bounds: _Bounds, settings: PolicySettings
    ) -> tuple[IntArray, BoolArray, FloatArray]:
        """Configurations and which of them do not depend on the allocation (J×P×C), and goodput (J×P×(2 + C)): of the
        current placement, of the first configuration on several nodes, and of each configuration."""
        low, high, per_node, held = bounds.low, bounds.high, bounds.per_node, bounds.held
        known: BoolArray = np.isfinite(data[:, :, ALPHA_C])
        reach = np.where(known, np.maximum(np.floor(settings.largest_growth * data[:, :, SEEN]), 1), bounds.untold)
        top = np.minimum(high, np.maximum(reach, low)).astype(np.int64)
        replicas, anyway = _grid(low, top, per_node, held, np.minimum(high, np.maximum(top, held)))
        # Columns 0 and 1: the current placement, and the smallest configuration on several nodes.
        count = np.empty((*held.shape, replicas.shape[2] + 2), dtype=np.int64)
        count[:, :, 0], count[:, :, 1], count[:, :, 2:] = np.maximum(held, 1), replicas[:, :, 0], replicas
        several = count > per_node[:, :, None]
        several[:, :, 0], several[:, :, 1] = bounds.held_nodes > 1, replicas[:, :, 0] > 1
        value = self._values(names, data, count, several, settings.between_nodes)
        if not known.all():
            value[~known] = np.power(count[~known].astype(np.float64), UNKNOWN_SPEEDUP)
        value[:, :, 0][held == 0] = 0.0
        value[:, :, 2:][replicas == 0] = 0.0
        return replicas, anyway, value

    def _values(
        self, names: tuple[str, ...], data: FloatArray, count: IntArray, several: BoolArray, between_nodes: float
    ) -> FloatArray:
        """Goodput of each known job at each configuration; unchanged values are those of the last call."""
        out = np.zeros(count.shape)
        todo = np.isfinite(data[:, :, ALPHA_C])[:, :, None] & (count > 0)
        last = self._made.along(names) if self._made is not None else None
        if last is not None and last.data.shape == data.shape:
            width = min(count.shape[2], last.count.shape[2])
            part = np.s_[:, :, :width]
            same = (count[part] == last.count[part]) & (several[part] == last.several[part])
            same &= ((last.data == data) | (np.isnan(last.data) & np.isnan(data))).all(axis=2)[:, :, None]
            out[part] = np.where(same, last.value[part], 0.0)
            todo[part] &= ~same
        every = todo.nonzero()
        for begin in range(0, len(every[0]), _BLOCK):
            jobs, pools, columns = (index[begin : begin + _BLOCK] for index in every)
            reports = data[jobs, pools]
            params = reports[:, :PARAMETERS]
            if between_nodes > 1.0:
                params[:, (ALPHA_N, BETA_N)] *= np.where(reports[:, SPANNED] > 0, 1.0, between_nodes)[:, None]
            at = jobs, pools, columns
            good, _, _ = best_batches(params, limits_of(reports), count[at][:, None], several[at][:, None])
            out[at] = good[:, 0]
        self._made = _Made(names, data, count, several, out.copy())
        return out


@dataclass(frozen=True, slots=True, eq=False)
class _Made:
    """The values of a call (J×P×C), and what they were made from."""

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
        count = np.where((back >= 0)[:, None, None], self.count[back], -1)
        return _Made(names, self.data[back], count, self.several[back], self.value[back])


def _bounds(snapshot: Snapshot, pools: Pools, gangs: Gangs, view: View, settings: PolicySettings) -> _Bounds:
    per_node, total = _slots(snapshot, pools, gangs.elastic)
    able: BoolArray = total >= gangs.low[:, None]
    confined: BoolArray = np.any(able, axis=1) & (pools.count > 1)
    able[~confined, total[~confined].argmax(axis=1)] = True
    high = np.where(confined[:, None], np.minimum(gangs.high[:, None], total), gangs.high[:, None])
    here = (view.pool[:, None] == np.arange(pools.count)) | ~confined[:, None]
    # A job assumed never to report may have its desired replicas.
    started, patience = snapshot.job_started_seconds, SILENT_PERIODS * settings.period_seconds
    silent = (started >= 0) & (snapshot.now_seconds - started >= patience)
    return _Bounds(
        low=np.broadcast_to(gangs.low[:, None], total.shape),
        high=np.maximum(high, gangs.low[:, None]),
        per_node=np.maximum(per_node, 1),
        held=np.where(here, view.held[:, None], 0),
        held_nodes=np.where(here, view.held_nodes[:, None], 0),
        untold=np.where(silent, gangs.desired, np.maximum(gangs.low, settings.largest_start))[:, None],
        able=able,
        confined=confined,
    )


def _slots(snapshot: Snapshot, pools: Pools, elastic: IntArray) -> tuple[IntArray, IntArray]:
    """(replicas of each job's elastic role that one empty node of each pool holds at most, and all of them together, of
    one domain if the job requires that) (J×P each)."""

    def make() -> tuple[IntArray, IntArray]:
        shapes = snapshot.facts.shape
        row: dict[int, int] = {}
        most: list[list[int]] = []
        total: list[list[int]] = []
        for role in elastic.tolist():
            if shapes[role] not in row:
                row[shapes[role]] = len(row)
                fits = np.minimum(empty_slots(snapshot, role), 2**31)
                there = [np.where(pools.of_node == pool, fits, 0) for pool in range(pools.count)]
                most.append([int(by_node.max(initial=0)) for by_node in there])
                level = snapshot.facts.level[shapes[role]]
                total.append([most_in_one(snapshot, level, by_node) for by_node in there])
        at = [row[shapes[role]] for role in elastic.tolist()]
        shape = -1, pools.count
        return np.array(most, dtype=np.int64).reshape(shape)[at], np.array(total, dtype=np.int64).reshape(shape)[at]

    sources = (snapshot.facts, snapshot.node_allocatable, snapshot.node_foreign, pools)
    return snapshot.memo.get("pool slots", sources, make)


def _grid(*bounds: IntArray) -> tuple[IntArray, BoolArray]:
    """Configurations of each job in each pool (J×P×C), ascending, padded with 0; which do not depend on the allocation
    (J×P×C).

    `bounds` (J×P each): minimum, maximum, replicas that fit on one node, current replicas, and the larger of maximum
    and current replicas.
    """
    rows = [_configurations(*key) for key in zip(*[bound.ravel().tolist() for bound in bounds], strict=True)]
    lengths = np.array([len(counts) for counts, _ in rows], dtype=np.int64)
    width = int(lengths.max(initial=1))
    out, anyway = np.zeros((len(rows), width), dtype=np.int64), np.zeros((len(rows), width), dtype=np.bool_)
    if rows:
        filled = np.arange(width) < lengths[:, None]
        out[filled] = np.concatenate([counts for counts, _ in rows])
        anyway[filled] = np.concatenate([mask for _, mask in rows])
    shape = (*bounds[0].shape, width)
    return out.reshape(shape), anyway.reshape(shape)


@lru_cache(maxsize=100_000)
def _configurations(low: int, top: int, per_node: int, held: int, reach: int) -> tuple[IntArray, BoolArray]:
    """(configurations of a job, which of them do not depend on its allocation). As the bounds of `_grid`."""
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


def _work_left(snapshot: Snapshot, data: FloatArray, per_node: IntArray) -> FloatArray:
    """Work left of each job in a pool in iterations of M0 (J); NaN: unknown. `data`: J×COLUMNS.

    Of a job that reports a fraction alone it follows from what it has done; of one that reports no progress it is the
    mean residual life among the earlier jobs of its application. What a job has done is its running time at the speed
    of the mean number of replicas that it held, which a plan does not change."""
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
    for begin in range(0, len(rows), _BLOCK):
        part = slice(begin, begin + _BLOCK)
        of, counts = data[rows[part]], np.column_stack([low[part], low[part] + 1])
        good, _, _ = best_batches(of[:, :PARAMETERS], limits_of(of), counts, counts > per_node[rows[part]][:, None])
        done = ran[part] * (good[:, 0] + (held[part] - low[part]) * (good[:, 1] - good[:, 0]))
        for (j, works, rest), amount in zip(found[part], done.tolist(), strict=True):
            if works is not None:
                left[j] = work_ahead(works, amount)
            elif amount > 0:
                left[j] = amount * rest
    return left


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

"""Goodput of every job at every configuration worth trying, computed once a cycle for all jobs and remembered.

A configuration is a number of replicas of the job's elastic role. Inside a node: powers of two and the full node (any
set of those packs without waste); beyond: whole nodes. The job's minimum, its present count and, for a job that
reports nothing, what its user asked for are always among them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diflow.allocator.arrays import BoolArray, FloatArray, IntArray
from diflow.allocator.goodput.fitting import fit_all
from diflow.allocator.goodput.model import ALPHA_N, BETA_N, PARAMETERS, Limits, best_batches
from diflow.allocator.profile import NODES, REPLICAS, Profile, clean, gradient_noise
from diflow.allocator.snapshot import Snapshot

MOST_COLUMNS = 24
"""Configurations a job: beyond this the steps between whole nodes become geometric."""
UNKNOWN_SPEEDUP = 0.5
"""A job that reports nothing is taken to run R^0.5 times as fast on R replicas: between a job that gains nothing and
one that gains all, so neither starved nor fed before those that show what they gain."""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """J×C: `replicas` ascending in each row, padded with 0; `goodput` beside it, in iterations of M0 a second.

    `present` (J) is the goodput of what the job holds now, as it is placed; `spread` (J) that of its first
    configuration when it has to span nodes. `left_seconds` (J): time to the end at the first
    configuration, NaN where unknown. `known` (J): whether there is a model of the job. `anyway` (J×C):
    configurations that would be there too if the job held nothing.
    """

    replicas: IntArray
    goodput: FloatArray
    present: FloatArray
    spread: FloatArray
    left_seconds: FloatArray
    known: BoolArray
    anyway: BoolArray


class Tables:
    """Makes the table of a snapshot; remembers the rows of jobs whose reports, limits and cluster did not change."""

    def __init__(self) -> None:
        self._fits: dict[str, tuple[int, FloatArray]] = {}
        self._rows: dict[str, tuple[tuple[object, ...], FloatArray]] = {}
        self._seen: dict[str, tuple[int, int, bool]] = {}
        self._grids: dict[tuple[int, int, int, int, int], tuple[IntArray, BoolArray]] = {}

    def make(
        self,
        snapshot: Snapshot,
        jobs: IntArray,
        *,
        low: IntArray,
        high: IntArray,
        wanted: IntArray,
        per_node: IntArray,
        held: IntArray,
        held_nodes: IntArray,
        growth: float,
        between_nodes: float,
        patience_seconds: float,
    ) -> Table:
        """The table of these jobs (all arrays follow `jobs`).

        `low`, `high`: bounds of replicas; `wanted`: what the user asked for; `per_node`: the most that one node takes;
        `held`, `held_nodes`: replicas held now, and on how many nodes.
        """
        profiles = [snapshot.job_profile[j] for j in jobs.tolist()]
        params = self._parameters(snapshot, jobs, profiles)
        known: BoolArray = np.asarray(np.isfinite(params).all(axis=1))
        seen, spanned = self._history(snapshot, jobs, profiles)
        params[:, (ALPHA_N, BETA_N)] *= np.where(spanned, 1.0, between_nodes)[:, None]
        limits = _limits(profiles)
        # A job that has been running for a while and reports nothing never will: it may have what its user asked for.
        silent = (snapshot.job_started_seconds[jobs] >= 0) & (
            snapshot.now_seconds - snapshot.job_started_seconds[jobs] >= patience_seconds
        )
        reach = np.where(known, np.maximum(np.floor(growth * seen), 1), np.where(silent, wanted, low))
        top = np.minimum(high, np.maximum(reach, low)).astype(np.int64)
        replicas, anyway = self._grid(low, top, per_node, held, np.minimum(high, np.maximum(top, held)))
        goodput = np.zeros(replicas.shape)
        present, spread = np.zeros(len(jobs)), np.zeros(len(jobs))
        if known.any():
            extra = np.column_stack([present, spread])
            self._known_rows(
                snapshot,
                jobs,
                profiles,
                known,
                params=params,
                limits=limits,
                replicas=replicas,
                per_node=per_node,
                held=held,
                held_nodes=held_nodes,
                goodput=goodput,
                extra=extra,
            )
            present, spread = extra[:, 0], extra[:, 1]
        other = ~known
        goodput[other] = np.power(replicas[other].astype(np.float64), UNKNOWN_SPEEDUP)
        present[other] = np.power(held[other].astype(np.float64), UNKNOWN_SPEEDUP)
        spread[other] = goodput[other, 0]
        goodput[replicas == 0] = 0.0
        left = _left(profiles)
        with np.errstate(divide="ignore", invalid="ignore"):
            first = np.where(goodput[:, 0] > 0, goodput[:, 0], np.nan)
            left_seconds = np.where(known, left / first, np.nan)
        return Table(replicas, goodput, present, spread, left_seconds, known, anyway)

    def _history(
        self, snapshot: Snapshot, jobs: IntArray, profiles: list[Profile | None]
    ) -> tuple[FloatArray, BoolArray]:
        """(largest number of replicas seen, whether the job has been on several nodes)."""
        seen, spanned = np.zeros(len(jobs)), np.zeros(len(jobs), dtype=np.bool_)
        for i, (j, profile) in enumerate(zip(jobs.tolist(), profiles, strict=True)):
            if profile is None:
                continue
            name = snapshot.job_names[j]
            known = self._seen.get(name)
            if known is None or known[0] != profile.observations_version:
                rows = clean(profile.observations)
                several = bool((rows[:, NODES] > 1).any())
                largest = int(rows[:, REPLICAS].max(initial=0))
                known = self._seen[name] = (profile.observations_version, largest, several)
            seen[i], spanned[i] = known[1], known[2]
        return seen, spanned

    def _parameters(self, snapshot: Snapshot, jobs: IntArray, profiles: list[Profile | None]) -> FloatArray:
        out = np.full((len(jobs), PARAMETERS), np.nan)
        todo: list[tuple[int, FloatArray, int]] = []
        for i, (j, profile) in enumerate(zip(jobs.tolist(), profiles, strict=True)):
            if profile is None:
                continue
            given = profile.parameters
            if given is not None and np.shape(given) == (PARAMETERS,) and _sane(np.asarray(given, dtype=np.float64)):
                out[i] = given
                continue
            name = snapshot.job_names[j]
            remembered = self._fits.get(name)
            if remembered is not None and remembered[0] == profile.observations_version:
                out[i] = remembered[1]
                continue
            rows = clean(profile.observations)
            if len(rows):
                todo.append((i, rows, profile.observations_version))
        if todo:
            # Never from an earlier fit: the answer must depend on the snapshot alone.
            for (i, _, version), fit in zip(todo, fit_all([rows for _, rows, _ in todo]), strict=True):
                out[i] = fit
                self._fits[snapshot.job_names[int(jobs[i])]] = (version, fit)
        if len(self._fits) > 4 * len(jobs) + 1024:
            names = set(snapshot.job_names)
            self._fits = {name: value for name, value in self._fits.items() if name in names}
            self._seen = {name: value for name, value in self._seen.items() if name in names}
            self._rows = {name: value for name, value in self._rows.items() if name in names}
        return out

    def _known_rows(
        self,
        snapshot: Snapshot,
        jobs: IntArray,
        profiles: list[Profile | None],
        known: BoolArray,
        *,
        params: FloatArray,
        limits: Limits,
        replicas: IntArray,
        per_node: IntArray,
        held: IntArray,
        held_nodes: IntArray,
        goodput: FloatArray,
        extra: FloatArray,
    ) -> None:
        width = replicas.shape[1]
        # The last columns: the present placement on the nodes that it is on, and the smallest one over several nodes.
        everything = np.column_stack([replicas, np.maximum(held, 1), replicas[:, 0]])
        several = np.column_stack([replicas > per_node[:, None], held_nodes > 1, replicas[:, 0] > 1])
        todo: list[int] = []
        keys: dict[int, tuple[object, ...]] = {}
        for i in np.flatnonzero(known).tolist():
            profile = profiles[i]
            assert profile is not None
            key = (
                profile.version,
                profile.observations_version,
                params[i].tobytes(),
                everything[i].tobytes(),
                several[i].tobytes(),
            )
            remembered = self._rows.get(snapshot.job_names[int(jobs[i])])
            if remembered is not None and remembered[0] == key:
                goodput[i], extra[i] = remembered[1][:width], remembered[1][width:]
            else:
                todo.append(i)
                keys[i] = key
        for begin in range(0, len(todo), 512):
            part = np.array(todo[begin : begin + 512])
            # Padding is computed as one replica and thrown away.
            good, _, _ = best_batches(params[part], _part(limits, part), np.maximum(everything[part], 1), several[part])
            for i, row in zip(part.tolist(), good, strict=True):
                goodput[i], extra[i] = row[:width], row[width:]
                self._rows[snapshot.job_names[int(jobs[i])]] = (keys[i], row)
        extra[held == 0, 0] = 0.0

    def _grid(
        self, low: IntArray, top: IntArray, per_node: IntArray, held: IntArray, reached: IntArray
    ) -> tuple[IntArray, BoolArray]:
        """Configurations of each job, ascending, padded with 0 at the end; which would be there if it held nothing.

        `top`: the most that it may have; `reached`: the same or what it holds, if that is more.
        """
        rows = []
        keys = zip(low.tolist(), top.tolist(), per_node.tolist(), held.tolist(), reached.tolist(), strict=True)
        for key in keys:
            row = self._grids.get(key)
            if row is None:
                least, most, whole, now, reach = key
                counts = _configurations(least, reach, whole, now)
                row = self._grids[key] = counts, np.isin(counts, _configurations(least, most, whole, 0))
            rows.append(row)
        if len(self._grids) > 100_000:
            self._grids.clear()
        width = max((len(row) for row, _ in rows), default=1)
        out, anyway = np.zeros((len(rows), width), dtype=np.int64), np.zeros((len(rows), width), dtype=np.bool_)
        for i, (counts, mask) in enumerate(rows):
            out[i, : len(counts)] = counts
            anyway[i, : len(counts)] = mask
        return out, anyway


def _configurations(low: int, top: int, per_node: int, held: int) -> IntArray:
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


def _sane(params: FloatArray) -> bool:
    return bool(np.isfinite(params).all() and (params >= 0).all() and 1.0 <= params[-1] <= 10.0)


def _limits(profiles: list[Profile | None]) -> Limits:
    table = np.ones((len(profiles), 6))
    accumulation = np.ones(len(profiles), dtype=np.bool_)
    noise = np.full(len(profiles), np.inf)
    for i, p in enumerate(profiles):
        if p is None:
            continue
        initial = max(1, p.initial_batch)
        local = max(1, p.min_local_batch)
        table[i] = (
            initial,
            max(initial, p.min_batch),
            max(initial, p.max_batch, p.min_batch),
            local,
            max(local, p.max_local_batch),
            0,
        )
        accumulation[i] = p.accumulation
        found = gradient_noise(p)
        if found is not None:
            noise[i] = found[1] / found[0] if found[0] > 0 else np.inf
    return Limits(
        initial=table[:, 0],
        least=table[:, 1],
        most=table[:, 2],
        local_least=table[:, 3],
        local_most=table[:, 4],
        accumulation=accumulation,
        noise=noise,
    )


def _part(limits: Limits, rows: IntArray) -> Limits:
    return Limits(
        initial=limits.initial[rows],
        least=limits.least[rows],
        most=limits.most[rows],
        local_least=limits.local_least[rows],
        local_most=limits.local_most[rows],
        accumulation=limits.accumulation[rows],
        noise=limits.noise[rows],
    )


def _left(profiles: list[Profile | None]) -> FloatArray:
    """Work left of each job in iterations of M0, from what is done and its part of the whole; NaN: unknown."""
    out = np.full(len(profiles), np.nan)
    for i, p in enumerate(profiles):
        if p is None or p.fraction_done is None or p.work_done is None:
            continue
        done, work = p.fraction_done, p.work_done
        if np.isfinite(done) and np.isfinite(work) and 0 < done <= 1 and work > 0:
            out[i] = work * max(1.0 - done, 1e-3) / done
    return out

"""Who gets how many replicas: the greedy on the concave hull of each job's curve, over whole arrays.

Each job's curve of value against cost is replaced by its upper concave hull; the hull's segments of all jobs are taken
by falling slope until the room of every group that they draw on is used up. For divisible room that is the optimum; for
whole replicas `exact_counts` closes the gap where one resource decides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diflow.allocator.arrays import BoolArray, FloatArray, IntArray

ROUNDS = 40
"""Passes of the greedy over what still fits; a handful is used unless groups of many sizes compete."""


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """J jobs, C configurations, R resources, groups of room.

    `value` (J×C), not finite where impossible; `amount` (J×C×R) resources of a configuration; `cost` (J×C) its size in
    one number, ascending; `room` (G×R) what each group has; `groups` (J×K) the groups that a job draws on, -1 for none.
    `floor` (J): the value of nothing.
    """

    value: FloatArray
    amount: IntArray
    cost: FloatArray
    room: IntArray
    groups: IntArray
    floor: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class _Segments:
    job: IntArray
    begin: IntArray
    end: IntArray
    slope: FloatArray


def greedy(problem: Problem) -> IntArray:
    """Per job the best column (-1: nothing), as far as the hull tells."""
    jobs = len(problem.value)
    column = np.full(jobs, -1, dtype=np.int64)
    if jobs == 0:
        return column
    segments = hull(problem.value, problem.cost, problem.floor)
    order = np.lexsort((segments.begin, segments.job, -segments.slope))
    job, begin, end = segments.job[order], segments.begin[order], segments.end[order]
    room = problem.room.astype(np.int64).copy()
    dead = np.zeros(jobs, dtype=np.bool_)
    for _ in range(ROUNDS):
        if len(job) == 0:
            break
        before = np.where(begin[:, None] >= 0, problem.amount[job, np.maximum(begin, 0)], 0)
        need = problem.amount[job, end] - before
        fits = np.ones(len(job), dtype=np.bool_)
        alone = np.ones(len(job), dtype=np.bool_)
        for k in range(problem.groups.shape[1]):
            group = problem.groups[job, k]
            inside = group >= 0
            ahead = _running_sum(need, group, len(room))
            have = room[np.maximum(group, 0)]
            fits &= ~inside | ((ahead <= have) | (need <= 0)).all(axis=1)
            alone &= ~inside | ((need <= have) | (need <= 0)).all(axis=1)
        # A segment that does not fit by itself ends its job here; so does one whose predecessor is left out.
        dead[job[~alone]] = True
        first_out = np.full(jobs, len(job), dtype=np.int64)
        np.minimum.at(first_out, job[~fits], np.flatnonzero(~fits))
        taken = fits & (np.arange(len(job)) < first_out[job]) & ~dead[job]
        column[job[taken]] = end[taken]
        for k in range(problem.groups.shape[1]):
            group = problem.groups[job, k]
            mine = taken & (group >= 0)
            add_rows(room, group[mine], -need[mine])
        left = ~taken & ~dead[job]
        if not taken.any() and not (~alone).any():
            break
        job, begin, end = job[left], begin[left], end[left]
    return column


def hull(value: FloatArray, cost: FloatArray, floor: FloatArray) -> _Segments:
    """Segments of the upper concave hull of each job's (cost, value), from (0, floor), as far as it rises."""
    jobs, width = value.shape
    at_value, at_cost = floor.astype(np.float64).copy(), np.zeros(jobs)
    at_column = np.full(jobs, -1, dtype=np.int64)
    rows = np.arange(jobs)
    found: list[tuple[IntArray, IntArray, IntArray, FloatArray]] = []
    value = np.where(np.isfinite(value), value, -np.inf)
    for _ in range(width):
        with np.errstate(divide="ignore", invalid="ignore"):
            steep = (value[rows] - at_value[rows, None]) / (cost[rows] - at_cost[rows, None])
        steep = np.where((np.arange(width) > at_column[rows, None]) & np.isfinite(steep), steep, -np.inf)
        # The farthest of equally steep points: fewer segments, and no choice that hangs on rounding.
        best = width - 1 - steep[:, ::-1].argmax(axis=1)
        top = steep[np.arange(len(rows)), best]
        rising = top > 0
        if not rising.any():
            break
        rows, best, top = rows[rising], best[rising], top[rising]
        found.append((rows, at_column[rows].copy(), best, top))
        at_column[rows], at_value[rows], at_cost[rows] = best, value[rows, best], cost[rows, best]
    if not found:
        none = np.zeros(0, dtype=np.int64)
        return _Segments(none, none, none, np.zeros(0))
    return _Segments(
        np.concatenate([f[0] for f in found]),
        np.concatenate([f[1] for f in found]),
        np.concatenate([f[2] for f in found]),
        np.concatenate([f[3] for f in found]),
    )


def _running_sum(amount: IntArray, group: IntArray, groups: int) -> IntArray:
    """Sum of `amount` over the rows of the same group up to and with each row."""
    if groups == 1:
        return np.cumsum(amount, axis=0)
    order = np.argsort(group, kind="stable")
    total = np.cumsum(amount[order], axis=0)
    ids = group[order]
    first = np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1])))
    lengths = np.diff(np.concatenate((first, [len(ids)])))
    base = np.repeat(total[first] - amount[order][first], lengths, axis=0)
    out = np.empty_like(amount)
    out[order] = total - base
    return out


def add_rows(room: IntArray, group: IntArray, amount: IntArray) -> None:
    """Add each row of `amount` to the row of `room` that `group` names."""
    for r in range(room.shape[1]):
        np.add.at(room[:, r], group, amount[:, r])


def improve(
    problem: Problem, column: IntArray, room: IntArray, *, movable: BoolArray, rounds: int
) -> tuple[IntArray, IntArray]:
    """Fill what the hull left over: single raises to any column that fits, best slope first. (columns, room left)."""
    column = column.copy()
    room = room.copy()
    width = problem.value.shape[1]
    rows = np.arange(len(column))
    for _ in range(rounds):
        now = np.where(column >= 0, problem.value[rows, np.maximum(column, 0)], problem.floor)
        now_cost = np.where(column >= 0, problem.cost[rows, np.maximum(column, 0)], 0.0)
        now_amount = np.where(column[:, None] >= 0, problem.amount[rows, np.maximum(column, 0)], 0)
        need = problem.amount - now_amount[:, None, :]
        ok = np.isfinite(problem.value) & (np.arange(width) > column[:, None]) & movable[:, None]
        for k in range(problem.groups.shape[1]):
            group = problem.groups[:, k]
            have = room[np.maximum(group, 0)][:, None, :]
            ok &= (group < 0)[:, None] | ((need <= have) | (need <= 0)).all(axis=2)
        with np.errstate(invalid="ignore", divide="ignore"):
            steep = (problem.value - now[:, None]) / (problem.cost - now_cost[:, None])
        steep = np.where(ok & np.isfinite(steep), steep, -np.inf)
        if steep.size == 0:
            break
        job, col = divmod(int(steep.argmax()), width)
        if steep[job, col] <= 0:
            break
        for k in range(problem.groups.shape[1]):
            if problem.groups[job, k] >= 0:
                room[problem.groups[job, k]] -= need[job, col]
        column[job] = col
    return column, room


def exact_counts(problem: Problem, *, most_work: int) -> tuple[IntArray | None, float]:
    """The best columns where one resource of one group decides, and their value: a knapsack solved exactly.

    The value bounds every choice from above; the columns are None where another resource does not allow them. (None,
    inf) where it does not apply. Takes jobs × configurations passes over the room in whole units, at most `most_work`.
    """
    jobs, width = problem.value.shape
    if jobs == 0 or jobs * width > most_work or len(np.unique(problem.groups[:, 0])) != 1 or problem.groups[0, 0] < 0:
        return None, np.inf
    if (problem.groups[:, 1:] >= 0).any():
        return None, np.inf
    room = problem.room[problem.groups[0, 0]]
    usable = np.isfinite(problem.value)
    if not usable.any():
        return None, np.inf
    largest = np.where(usable[:, :, None], problem.amount, 0).max(axis=1).sum(axis=0)
    scarce = int(np.argmax(largest / np.maximum(room, 1)))
    amount = problem.amount[:, :, scarce]
    unit = int(np.gcd.reduce(np.concatenate([amount[usable], [0]]))) or 1
    units, size = amount // unit, int(room[scarce]) // unit
    if size > 1024:
        return None, np.inf
    best = np.zeros(size + 1)
    picked = np.full((jobs, size + 1), -1, dtype=np.int64)
    for j in range(jobs):
        new = best + problem.floor[j]
        for c in np.flatnonzero(usable[j]).tolist():
            need = int(units[j, c])
            if need > size:
                continue
            other = best[: size + 1 - need] + problem.value[j, c]
            better = other > new[need:] * (1 + 1e-12)
            if better.any():
                new[need:][better] = other[better]
                picked[j, need:][better] = c
        best = new
    column = np.full(jobs, -1, dtype=np.int64)
    at = int(best.argmax())
    for j in range(jobs - 1, -1, -1):
        column[j] = picked[j, at]
        if column[j] >= 0:
            at -= int(units[j, column[j]])
    rows = np.flatnonzero(column >= 0)
    fits = (problem.amount[rows, column[rows]].sum(axis=0) <= room).all()
    return column if fits else None, float(best.max())


def worth(problem: Problem, column: IntArray) -> float:
    """Summed value of these columns."""
    rows = np.arange(len(column))
    return float(np.where(column >= 0, problem.value[rows, np.maximum(column, 0)], problem.floor).sum())

"""Replica counts by a greedy on the concave hull of each job's value curve, vectorised.

Each job's curve of value against cost is replaced by its upper concave hull; the hull segments of all jobs are taken by
descending slope until the capacity of every group that they draw on is used up. That is optimal for divisible capacity;
for whole replicas `knapsack.py` closes the gap if one resource of each group is scarce.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import le, sub

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """J jobs, C configurations, R resources, G groups of capacity.

    `value` (J×C), not finite where impossible; `amount` (J×C×R) resources of a configuration; `cost` (J×C) its size as
    one number, ascending; `capacity` (G×R) that of each group; `groups` (J×K) its groups, -1: none;
    `floor` (J) the value of nothing.
    """

    value: FloatArray
    amount: IntArray
    cost: FloatArray
    capacity: IntArray
    groups: IntArray
    floor: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class _Segments:
    job: IntArray
    begin: IntArray
    end: IntArray
    slope: FloatArray


def greedy(problem: Problem) -> IntArray:
    """The column of each job (J) by the greedy; -1: nothing."""
    segments = hull(problem.value, problem.cost, problem.floor)
    order = np.lexsort((segments.begin, segments.job, -segments.slope))
    job, begin, end = segments.job[order], segments.begin[order], segments.end[order]
    need = problem.amount[job, end] - np.where(begin[:, None] >= 0, problem.amount[job, begin], 0)
    capacity: list[list[int]] = np.maximum(problem.capacity, 0).tolist()
    column = [-1] * len(problem.value)
    done: set[int] = set()
    for j, last, more, groups in zip(
        job.tolist(), end.tolist(), need.tolist(), problem.groups[job].tolist(), strict=True
    ):
        if j in done:
            continue
        drawn = [capacity[g] for g in groups if g >= 0]
        for there in drawn:
            if not all(map(le, more, there)):
                done.add(j)
                break
        else:
            column[j] = last
            for there in drawn:
                there[:] = map(sub, there, more)
    return np.array(column, dtype=np.int64)


def hull(value: FloatArray, cost: FloatArray, floor: FloatArray) -> _Segments:
    """Rising segments of the upper concave hull of each job's (cost, value) points, from (0, floor)."""
    jobs, width = value.shape
    at_value, at_cost = floor.astype(np.float64).copy(), np.zeros(jobs)
    at_column = np.full(jobs, -1, dtype=np.int64)
    rows, columns = np.arange(jobs), np.arange(width)
    found: list[tuple[IntArray, IntArray, IntArray, FloatArray]] = []
    value = np.where(np.isfinite(value), value, -np.inf)
    for _ in range(width):
        with np.errstate(divide="ignore", invalid="ignore"):
            steep = (value - at_value[:, None]) / (cost - at_cost[:, None])
        steep = np.where((columns > at_column[:, None]) & np.isfinite(steep), steep, -np.inf)
        # The farthest of equally steep points: fewer segments, and fewer choices that depend on rounding.
        best = width - 1 - steep[:, ::-1].argmax(axis=1)
        top = steep[np.arange(len(rows)), best]
        rising = (top > 0).nonzero()[0]
        if not len(rising):
            break
        rows, best, value, cost = rows[rising], best[rising], value[rising], cost[rising]
        found.append((rows, at_column[rising], best, top[rising]))
        at = np.arange(len(rows))
        at_column, at_value, at_cost = best, value[at, best], cost[at, best]
    if not found:
        none = np.zeros(0, dtype=np.int64)
        return _Segments(none, none, none, np.zeros(0))
    return _Segments(
        np.concatenate([f[0] for f in found]),
        np.concatenate([f[1] for f in found]),
        np.concatenate([f[2] for f in found]),
        np.concatenate([f[3] for f in found]),
    )


def add_rows(capacity: IntArray, group: IntArray, amount: IntArray) -> None:
    """Add each row of `amount` to the row of `capacity` that `group` names."""
    for r in range(capacity.shape[1]):
        np.add.at(capacity[:, r], group, amount[:, r])


def improve(problem: Problem, column: IntArray, capacity: IntArray, *, movable: BoolArray, rounds: int) -> IntArray:
    """Use what the greedy left over (`capacity`): raise jobs to any larger column that fits, steepest slope first, at
    most `rounds` times. Returns the columns."""
    column = column.copy()
    capacity = capacity.copy()
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
            have = capacity[np.maximum(group, 0)][:, None, :]
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
                capacity[problem.groups[job, k]] -= need[job, col]
        column[job] = col
    return column


def within_capacity(problem: Problem, column: IntArray) -> bool:
    """Whether these columns fit in every group."""
    used = in_use(problem, column)
    return bool(((used <= problem.capacity) | (used == 0)).all())


def in_use(problem: Problem, column: IntArray) -> IntArray:
    """G×R used by these columns."""
    used = np.zeros_like(problem.capacity)
    some = (column >= 0).nonzero()[0]
    for k in range(problem.groups.shape[1]):
        group = problem.groups[some, k]
        mine = some[group >= 0]
        add_rows(used, group[group >= 0], problem.amount[mine, column[mine]])
    return used

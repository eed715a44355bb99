"""Who gets how many replicas: the greedy on the concave hull of each job's curve, over whole arrays.

Each job's curve of value against cost is replaced by its upper concave hull; the hull's segments of all jobs are taken
by falling slope until the room of every group that they draw on is used up. For divisible room that is the optimum; for
whole replicas `exact_counts` closes the gap where one resource decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import le, sub

import numpy as np
from numpy.lib.stride_tricks import as_strided

from diflow.allocator.arrays import BoolArray, FloatArray, IntArray

ROUNDS = 40
"""Passes of the greedy over what still fits; a handful is used unless groups of many sizes compete."""


FEW_SEGMENTS = 2000
"""Segments up to which the greedy goes through them one by one."""


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
    need = problem.amount[job, end] - np.where(begin[:, None] >= 0, problem.amount[job, begin], 0)
    group = problem.groups[job]
    if len(job) == 0:
        return column
    if len(job) <= FEW_SEGMENTS:
        owner, ends, out = job.tolist(), end.tolist(), column.tolist()
        for row in _one_by_one(owner, need.tolist(), group.tolist(), np.maximum(problem.room, 0).tolist()):
            out[owner[row]] = ends[row]
        return np.array(out, dtype=np.int64)
    room = problem.room.copy()
    for _ in range(ROUNDS):
        fits, alone = _fits(need, group, room)
        if fits.all():
            column[job] = end
            break
        # A segment that does not fit by itself ends its job there; one whose predecessor is left out has to wait.
        at = np.arange(len(job))
        taken = fits & (at < _first(~fits, job, jobs)[job])
        column[job[taken]] = end[taken]
        for k in range(group.shape[1]):
            mine = taken & (group[:, k] >= 0)
            add_rows(room, group[mine, k], -need[mine])
        left = ~taken & (at < _first(~alone, job, jobs)[job])
        if not left.any():
            break
        job, end, need, group = job[left], end[left], need[left], group[left]
    return column


def _first(rows: BoolArray, job: IntArray, jobs: int) -> IntArray:
    """The first of these rows of each job; the number of all rows where there is none."""
    out = np.full(jobs, len(rows), dtype=np.int64)
    at = rows.nonzero()[0]
    np.minimum.at(out, job[at], at)
    return out


def _one_by_one(job: list[int], need: list[list[int]], group: list[list[int]], room: list[list[int]]) -> Iterator[int]:
    """The segments that are taken, one after the other: what the rounds over whole arrays come to, and cheaper where
    there are few."""
    dead: set[int] = set()
    for row, (j, more, groups) in enumerate(zip(job, need, group, strict=True)):
        if j in dead:
            continue
        rooms = [room[g] for g in groups if g >= 0]
        for there in rooms:
            if not all(map(le, more, there)):
                dead.add(j)
                break
        else:
            for there in rooms:
                there[:] = map(sub, there, more)
            yield row


def _fits(need: IntArray, group: IntArray, room: IntArray) -> tuple[BoolArray, BoolArray]:
    """Which segments fit in the room of their groups: after all those before them, and by themselves."""
    nothing = need <= 0
    fits, alone = np.ones(need.shape, dtype=np.bool_), np.ones(need.shape, dtype=np.bool_)
    for k in range(group.shape[1]):
        mine = group[:, k]
        have = room[mine]
        outside = (mine < 0)[:, None] | nothing
        fits &= (_running_sum(need, mine, len(room)) <= have) | outside
        alone &= (need <= have) | outside
    return np.asarray(fits.all(axis=1)), np.asarray(alone.all(axis=1))


def hull(value: FloatArray, cost: FloatArray, floor: FloatArray) -> _Segments:
    """Segments of the upper concave hull of each job's (cost, value), from (0, floor), as far as it rises."""
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
        # The farthest of equally steep points: fewer segments, and no choice that hangs on rounding.
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
    """The best columns where each job draws on one group and one resource of each group decides, and their value:
    knapsacks solved exactly.

    The value bounds every choice from above. The columns are None where they ask for more than there is of another
    resource, or of a group that several of these groups share. (None, inf) where it does not apply. Takes jobs ×
    configurations passes over the room in whole units, at most `most_work`.
    """
    jobs, width = problem.value.shape
    if jobs == 0 or jobs * width > most_work:
        return None, np.inf
    usable = np.isfinite(problem.value)
    some: BoolArray = np.any(usable, axis=1)
    if not some.any():
        return None, np.inf
    # Groups are listed from the widest to the narrowest; the wider ones are looked at in the end.
    row = some.nonzero()[0]
    row = row[problem.groups[row, -1].argsort(kind="stable")]
    group = problem.groups[row, -1]
    if group[0] < 0:
        return None, np.inf
    begins = np.ones(len(group), dtype=np.bool_)
    np.not_equal(group[1:], group[:-1], out=begins[1:])
    first = begins.nonzero()[0]
    groups, mine = group[first], begins.cumsum() - 1
    at = np.arange(len(row)) - first[mine]
    usable, room = usable[row], problem.room[groups]
    amount = np.where(usable[:, :, None], problem.amount[row], 0)
    largest = np.add.reduceat(amount.max(axis=1), first, axis=0)
    scarce = (largest / np.maximum(room, 1)).argmax(axis=1)
    units = np.take_along_axis(amount, scarce[mine][:, None, None], axis=2)[:, :, 0]
    unit = np.maximum(np.gcd.reduceat(np.gcd.reduce(units, axis=1), first), 1)
    size = room[np.arange(len(groups)), scarce] // unit
    if (size > 1024).any():
        return None, np.inf
    units = np.where(usable, units // unit[mine][:, None], size.max() + 1)
    column = np.full(jobs, -1, dtype=np.int64)
    column[row], best = _knapsacks(problem.value[row], problem.floor[row], units, size, knapsack=mine, at=at)
    best += float(problem.floor[~some].sum())
    return column if _have_room(problem, column) else None, best


def _have_room(problem: Problem, column: IntArray) -> bool:
    """Whether no group has to give more than it has."""
    used = in_use(problem, column)
    return bool(((used <= problem.room) | (used == 0)).all())


def in_use(problem: Problem, column: IntArray) -> IntArray:
    """G×R: what these columns take of each group."""
    used = np.zeros_like(problem.room)
    some = (column >= 0).nonzero()[0]
    for k in range(problem.groups.shape[1]):
        group = problem.groups[some, k]
        mine = some[group >= 0]
        add_rows(used, group[group >= 0], problem.amount[mine, column[mine]])
    return used


def _knapsacks(
    value: FloatArray, floor: FloatArray, units: IntArray, size: IntArray, *, knapsack: IntArray, at: IntArray
) -> tuple[IntArray, float]:
    """(the best column of each job, -1 for nothing; what they are worth together).

    Several knapsacks side by side, one job of each at a time: `size` (K) are their rooms, job j is number `at[j]` of
    knapsack `knapsack[j]`. `units` (J×C): what a configuration takes of the room; more than any room where it is
    impossible.
    """
    width = value.shape[1]
    count, turns, most = len(size), int(at.max()) + 1, int(size.max())
    # Nothing is one configuration more; in a knapsack of fewer jobs it is all that the missing ones have.
    values = np.full((turns, count, width + 1), -np.inf)
    values[:, :, 0] = 0.0
    values[at, knapsack, 0], values[at, knapsack, 1:] = floor, value
    takes = np.zeros((turns, count, width + 1), dtype=np.int64)
    takes[at, knapsack, 1:] = np.minimum(units, most + 1)
    # Best value of the first jobs at each room, knapsack after knapsack; before each the rooms below 0: impossible.
    rooms = most + 1
    best = np.full((turns + 1, count, 2 * rooms), -np.inf)
    best[0, :, rooms:] = 0.0
    turn, _, one = best.strides
    windows = as_strided(best, (turns + 1, (2 * count - 1) * rooms + 1, rooms), (turn, one, one), writeable=False)
    # Where the room 0 of each knapsack is, less what a configuration takes.
    less = (2 * np.arange(count) + 1)[:, None] * rooms - takes
    for t in range(turns):
        found = windows[t, less[t]]
        found += values[t, :, :, None]
        np.maximum.reduce(found, axis=1, out=best[t + 1, :, rooms:])
    ends = np.where(np.arange(rooms) <= size[:, None], best[turns, :, rooms:], -np.inf)
    left, total = ends.argmax(axis=1).tolist(), float(ends.max(axis=1).sum())
    # Back through the turns, number by number: a few of each job are looked at.
    chosen = np.empty((turns, count), dtype=np.int64)
    flat, begins, gains, taken = best.reshape(turns + 1, -1), less.tolist(), values.tolist(), takes.tolist()
    for t in range(turns - 1, -1, -1):
        known = flat[t].item
        for k, room in enumerate(left):
            there = [known(room + begin) + one for begin, one in zip(begins[t][k], gains[t][k], strict=True)]
            chosen[t, k] = picked = _first_best(there)
            left[k] -= taken[t][k][picked]
    return chosen[at, knapsack] - 1, total


def _first_best(values: list[float]) -> int:
    """The first of those that differ from the best by rounding alone."""
    most = max(values)
    least = most - 1e-12 * abs(most)
    for at, value in enumerate(values):
        if value >= least:
            return at
    return -1


def worth(problem: Problem, column: IntArray) -> float:
    """Summed value of these columns."""
    rows = np.arange(len(column))
    return float(np.where(column >= 0, problem.value[rows, np.maximum(column, 0)], problem.floor).sum())

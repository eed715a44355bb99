"""Exact replica counts, if each job draws on one group and one resource of each group is scarce.

Each group is then a multiple-choice knapsack: each job adds one configuration or nothing. The knapsacks are solved side
by side with dynamic programming over the jobs and the capacity in whole units.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.lib.stride_tricks import as_strided

from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray
from diflow.allocator.policies.goodput.optimise import Problem, within_capacity

MOST_CAPACITY = 1024
"""Largest capacity of a knapsack, in units."""
LANES = 4
"""Parts of a knapsack with many jobs that are solved side by side and then joined."""
LONG, NARROW = 16, 256
"""A knapsack is solved in lanes from this number of jobs on, up to this capacity: joining wider lanes costs more than
they save."""


class Knapsacks:
    """The solved knapsacks of a problem. `value` is an upper bound of every choice."""

    def __init__(self, problem: Problem, items: _Items) -> None:
        self._problem, self._items = problem, items
        turns, lanes, _ = items.values.shape
        width = int(items.size.max()) + 1
        # Best value of the first jobs at each capacity, for each lane; the first half is padding for negative capacity
        # (-inf).
        best = self._best = np.full((turns + 1, lanes, 2 * width), -np.inf)
        best[0, :, width:] = 0.0
        # Index of capacity 0 of each lane, less the units of each configuration.
        self._less: IntArray = (2 * np.arange(lanes) + 1)[:, None] * width - items.takes
        turn, _, one = best.strides
        shape = (turns + 1, (2 * lanes - 1) * width + 1, width)
        windows = as_strided(best, shape, (turn, one, one), writeable=False)
        for t in range(turns):
            found = windows[t, self._less[t]]
            found += items.values[t, :, :, None]
            np.maximum.reduce(found, axis=1, out=best[t + 1, :, width:])
        # Join the lanes: for each knapsack the best value of its first lanes at each capacity.
        ends = best[turns].reshape(len(items.size), items.lanes, 2 * width)
        self._ends, self._joined = ends, [ends[:, 0, width:]]
        for lane in range(1, items.lanes):
            self._joined.append(_join(self._joined[-1], ends[:, lane]))
        within = np.arange(width) <= items.size[:, None]
        last = np.where(within, self._joined[-1], -np.inf)
        self._used: list[int] = last.argmax(axis=1).tolist()
        self.value = float(last.max(axis=1).sum()) + items.rest

    @classmethod
    def of(cls, problem: Problem, *, most_work: int) -> Knapsacks | None:
        """None if the problem is of another form or has more than `most_work` jobs × configurations."""
        items = _items(problem) if problem.value.size <= most_work else None
        return None if items is None else cls(problem, items)

    def with_value(self, value: FloatArray) -> Knapsacks:
        """The knapsacks with other values (J×C) of the same possible configurations."""
        items = self._items
        values = items.values.copy()
        values[items.turn, items.lane, 1:] = value[items.job]
        return Knapsacks(replace(self._problem, value=value), replace(items, values=values))

    def columns(self) -> IntArray | None:
        """The best column of each job (J), -1 for nothing; None if they exceed the capacity of another resource, or of
        a wider group."""
        items = self._items
        turns, lanes, _ = items.values.shape
        left = [capacity for k, most in enumerate(self._used) for capacity in self._shared_out(k, most)]
        # Backtrack through the turns with plain numbers: there are few options per job.
        chosen = np.empty((turns, lanes), dtype=np.int64)
        begins, gains, takes = self._less.tolist(), items.values.tolist(), items.takes.tolist()
        for t in range(turns - 1, -1, -1):
            known = self._best[t].item
            for lane, capacity in enumerate(left):
                there = [
                    known(capacity + begin) + gain for begin, gain in zip(begins[t][lane], gains[t][lane], strict=True)
                ]
                chosen[t, lane] = picked = _first_best(there)
                left[lane] -= takes[t][lane][picked]
        column = np.full(len(self._problem.value), -1, dtype=np.int64)
        column[items.job] = chosen[items.turn, items.lane] - 1
        return column if within_capacity(self._problem, column) else None

    def _shared_out(self, knapsack: int, capacity: int) -> list[int]:
        """How this capacity of a knapsack is divided among its lanes."""
        out: list[int] = []
        ends = self._ends[knapsack]
        width = ends.shape[1] // 2
        for lane in range(self._items.lanes - 1, 0, -1):
            before = self._joined[lane - 1][knapsack, : capacity + 1]
            there = before + ends[lane, width : width + capacity + 1][::-1]
            first = _first_best(there.tolist())
            out.append(capacity - first)
            capacity = first
        return [capacity, *reversed(out)]


@dataclass(frozen=True, slots=True, eq=False)
class _Items:
    """The items of the knapsacks: turns × lanes × (nothing, and C configurations).

    `values`, `takes` (in units; above any capacity if impossible); `job`, `turn`, `lane`: index, turn and lane of each
    job that has a possible configuration; `size` (K): capacity of each knapsack, which has `lanes` lanes; `rest`: value
    of the other jobs.
    """

    values: FloatArray
    takes: IntArray
    job: IntArray
    turn: IntArray
    lane: IntArray
    size: IntArray
    lanes: int
    rest: float


def _items(problem: Problem) -> _Items | None:
    usable = np.isfinite(problem.value)
    some: BoolArray = np.any(usable, axis=1)
    job = some.nonzero()[0]
    if not len(job):
        return None
    # Groups are listed from the widest to the narrowest; `columns` checks the wider ones.
    job = job[problem.groups[job, -1].argsort(kind="stable")]
    group = problem.groups[job, -1]
    if group[0] < 0:
        return None
    begins = np.ones(len(group), dtype=np.bool_)
    np.not_equal(group[1:], group[:-1], out=begins[1:])
    first = begins.nonzero()[0]
    groups, mine = group[first], begins.cumsum() - 1
    at = np.arange(len(job)) - first[mine]
    usable, capacity = usable[job], problem.capacity[groups]
    amount = np.where(usable[:, :, None], problem.amount[job], 0)
    largest = np.add.reduceat(amount.max(axis=1), first, axis=0)
    scarce = (largest / np.maximum(capacity, 1)).argmax(axis=1)
    units = np.take_along_axis(amount, scarce[mine][:, None, None], axis=2)[:, :, 0]
    unit = np.maximum(np.gcd.reduceat(np.gcd.reduce(units, axis=1), first), 1)
    size: IntArray = capacity[np.arange(len(groups)), scarce] // unit
    most = int(size.max())
    if most > MOST_CAPACITY:
        return None
    units = np.where(usable, np.minimum(units // unit[mine][:, None], most + 1), most + 1)
    lanes = LANES if at.max() + 1 >= LONG and most <= NARROW else 1
    turn, lane = at // lanes, mine * lanes + at % lanes
    # Column 0 is nothing; lanes with fewer jobs are padded with jobs that have only this column.
    shape = (int(turn.max()) + 1, len(groups) * lanes, 1 + problem.value.shape[1])
    values, takes = np.full(shape, -np.inf), np.zeros(shape, dtype=np.int64)
    values[:, :, 0] = 0.0
    values[turn, lane, 0], values[turn, lane, 1:] = problem.floor[job], problem.value[job]
    takes[turn, lane, 1:] = units
    return _Items(values, takes, job, turn, lane, size, lanes, float(problem.floor[~some].sum()))


def _join(best: FloatArray, more: FloatArray) -> FloatArray:
    """K×S: best value of two parts together at each capacity. `best` K×S; `more` K×2S, padding first."""
    count, width = best.shape
    row, one = more.strides
    # [k, u, s]: best value of the second part at capacity s - u.
    shape, strides = (count, width + 1, width), (row, one, one)
    less = as_strided(more, shape=shape, strides=strides, writeable=False)[:, :0:-1]
    out: FloatArray = (best[:, :, None] + less).max(axis=1)
    return out


def _first_best(values: list[float]) -> int:
    """Index of the first value that equals the best up to rounding."""
    most = max(values)
    least = most - 1e-12 * abs(most)
    for at, value in enumerate(values):
        if value >= least:
            return at
    return -1

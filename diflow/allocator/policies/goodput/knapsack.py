"""Exact replica counts, if each job draws on one group and one resource of each group is scarce.

Each group is then a multiple-choice knapsack: each job adds one configuration or nothing. The knapsacks are solved side
by side with dynamic programming over the jobs and the capacity in whole units.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray
from diflow.allocator.policies.goodput.optimise import Problem, within_capacity

MOST_CAPACITY = 1024
"""Largest capacity of a knapsack, in units."""


def exact_columns(problem: Problem, *, most_work: int) -> tuple[IntArray | None, float]:
    """(the best column of each job (J), -1 for nothing; an upper bound of the value of every choice).

    No columns if the problem is of another form, has more than `most_work` jobs × configurations (both without a
    bound: infinity), or if the best columns exceed the capacity of another resource or of a wider group.
    """
    items = _items(problem) if problem.value.size <= most_work else None
    if items is None:
        return None, np.inf
    turns, knapsacks, _ = items.values.shape
    width = int(items.size.max()) + 1
    # Best value of the first jobs at each capacity; the first half is padding for negative capacity (-inf).
    best = np.full((turns + 1, knapsacks, 2 * width), -np.inf)
    best[0, :, width:] = 0.0
    rows, capacities = np.arange(knapsacks)[:, None, None], np.arange(width, 2 * width)
    for t in range(turns):
        less = capacities - items.takes[t, :, :, None]
        np.max(best[t][rows, less] + items.values[t, :, :, None], axis=1, out=best[t + 1, :, width:])
    within = np.arange(width) <= items.size[:, None]
    last = np.where(within, best[turns, :, width:], -np.inf)
    left: list[int] = last.argmax(axis=1).tolist()
    bound = float(last.max(axis=1).sum()) + items.rest
    # Backtrack through the turns with plain numbers: there are few options per job.
    chosen = np.empty((turns, knapsacks), dtype=np.int64)
    gains, takes = items.values.tolist(), items.takes.tolist()
    for t in range(turns - 1, -1, -1):
        for k, capacity in enumerate(left):
            known = best[t, k].item
            there = [known(width + capacity - take) + gain for take, gain in zip(takes[t][k], gains[t][k], strict=True)]
            chosen[t, k] = picked = _first_best(there)
            left[k] -= takes[t][k][picked]
    column = np.full(len(problem.value), -1, dtype=np.int64)
    column[items.job] = chosen[items.turn, items.knapsack] - 1
    return column if within_capacity(problem, column) else None, bound


@dataclass(frozen=True, slots=True, eq=False)
class _Items:
    """The items of the knapsacks: turns × knapsacks × (nothing, and C configurations).

    `values`, `takes` (in units; above any capacity if impossible); `job`, `turn`, `knapsack`: index, turn and knapsack
    of each job that has a possible configuration; `size` (K): capacity of each knapsack; `rest`: value of the other
    jobs.
    """

    values: FloatArray
    takes: IntArray
    job: IntArray
    turn: IntArray
    knapsack: IntArray
    size: IntArray
    rest: float


def _items(problem: Problem) -> _Items | None:
    usable = np.isfinite(problem.value)
    some: BoolArray = np.any(usable, axis=1)
    job = some.nonzero()[0]
    if not len(job):
        return None
    # Groups are listed from the widest to the narrowest; `exact_columns` checks the wider ones.
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
    # Column 0 is nothing; knapsacks with fewer jobs are padded with jobs that have only this column.
    shape = (int(at.max()) + 1, len(groups), 1 + problem.value.shape[1])
    values, takes = np.full(shape, -np.inf), np.zeros(shape, dtype=np.int64)
    values[:, :, 0] = 0.0
    values[at, mine, 0], values[at, mine, 1:] = problem.floor[job], problem.value[job]
    takes[at, mine, 1:] = units
    return _Items(values, takes, job, at, mine, size, float(problem.floor[~some].sum()))


def _first_best(values: list[float]) -> int:
    """Index of the first value that equals the best up to rounding."""
    most = max(values)
    least = most - 1e-12 * abs(most)
    for at, value in enumerate(values):
        if value >= least:
            return at
    return -1

"""Who gets how many replicas, exactly: where each job draws on one group and one resource of each group decides.

That is a knapsack for each group, of which each job puts one configuration or nothing in. They are solved side by side,
one job of each at a time, by the best value of the first jobs at each room in whole units.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.lib.stride_tricks import as_strided

from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray
from diflow.allocator.policies.goodput.optimise import Problem, have_room

MOST_ROOM = 1024
"""Units of room of a knapsack."""
LANES = 4
"""Parts that a long knapsack is solved in, side by side."""
LONG, NARROW = 16, 256
"""Jobs from which on a knapsack is long, and units up to which its parts are put together at less than they save."""


class Knapsacks:
    """The knapsacks of a problem, solved. `value` bounds every choice from above."""

    def __init__(self, problem: Problem, items: _Items) -> None:
        self._problem, self._items = problem, items
        turns, lanes, _ = items.values.shape
        rooms = int(items.size.max()) + 1
        # Best value of the first jobs at each room, lane after lane; before each the rooms below 0: impossible.
        best = self._best = np.full((turns + 1, lanes, 2 * rooms), -np.inf)
        best[0, :, rooms:] = 0.0
        # Where the room 0 of each lane is, less what a configuration takes.
        self._less: IntArray = (2 * np.arange(lanes) + 1)[:, None] * rooms - items.takes
        turn, _, one = best.strides
        shape = (turns + 1, (2 * lanes - 1) * rooms + 1, rooms)
        windows = as_strided(best, shape, (turn, one, one), writeable=False)
        for t in range(turns):
            found = windows[t, self._less[t]]
            found += items.values[t, :, :, None]
            np.maximum.reduce(found, axis=1, out=best[t + 1, :, rooms:])
        # Lane by lane put together: of each knapsack the best at each room of the first lanes.
        ends = best[turns].reshape(len(items.size), items.lanes, 2 * rooms)
        self._ends, self._joined = ends, [ends[:, 0, rooms:]]
        for lane in range(1, items.lanes):
            self._joined.append(_joined(self._joined[-1], ends[:, lane]))
        within = np.arange(rooms) <= items.size[:, None]
        last = np.where(within, self._joined[-1], -np.inf)
        self._room: list[int] = last.argmax(axis=1).tolist()
        self.value = float(last.max(axis=1).sum()) + items.rest

    @classmethod
    def of(cls, problem: Problem, *, most_work: int) -> Knapsacks | None:
        """None where it does not apply, or where it takes more than `most_work` jobs × configurations."""
        items = _items(problem) if problem.value.size <= most_work else None
        return None if items is None else cls(problem, items)

    def with_value(self, value: FloatArray) -> Knapsacks:
        """The same where configurations are worth something else (J×C); those that are possible are the same."""
        items = self._items
        values = items.values.copy()
        values[items.turn, items.lane, 1:] = value[items.job]
        return Knapsacks(replace(self._problem, value=value), replace(items, values=values))

    def columns(self) -> IntArray | None:
        """The best column of each job, -1 for nothing; None where they ask for more than there is of another resource,
        or of a group that several of the groups share."""
        items = self._items
        turns, lanes, _ = items.values.shape
        left = [room for k, most in enumerate(self._room) for room in self._shared_out(k, most)]
        # Back through the turns, number by number: a few of each job are looked at.
        chosen = np.empty((turns, lanes), dtype=np.int64)
        begins, gains, takes = self._less.tolist(), items.values.tolist(), items.takes.tolist()
        for t in range(turns - 1, -1, -1):
            known = self._best[t].item
            for lane, room in enumerate(left):
                there = [
                    known(room + begin) + gain for begin, gain in zip(begins[t][lane], gains[t][lane], strict=True)
                ]
                chosen[t, lane] = picked = _first_best(there)
                left[lane] -= takes[t][lane][picked]
        column = np.full(len(self._problem.value), -1, dtype=np.int64)
        column[items.job] = chosen[items.turn, items.lane] - 1
        return column if have_room(self._problem, column) else None

    def _shared_out(self, knapsack: int, room: int) -> list[int]:
        """What each lane of a knapsack has of this room."""
        out: list[int] = []
        ends = self._ends[knapsack]
        rooms = ends.shape[1] // 2
        for lane in range(self._items.lanes - 1, 0, -1):
            before = self._joined[lane - 1][knapsack, : room + 1]
            there = before + ends[lane, rooms : rooms + room + 1][::-1]
            first = _first_best(there.tolist())
            out.append(room - first)
            room = first
        return [room, *reversed(out)]


@dataclass(frozen=True, slots=True, eq=False)
class _Items:
    """What goes into the knapsacks: turns × lanes × (nothing, and C configurations).

    `values`, `takes` (units; more than any room where it is impossible); of each of the jobs that may have anything its
    number, turn and lane; `size` (K): the room of each knapsack, which has `lanes` lanes; `rest`: what the other jobs
    are worth.
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
    # Groups are listed from the widest to the narrowest; the wider ones are looked at in the end.
    job = job[problem.groups[job, -1].argsort(kind="stable")]
    group = problem.groups[job, -1]
    if group[0] < 0:
        return None
    begins = np.ones(len(group), dtype=np.bool_)
    np.not_equal(group[1:], group[:-1], out=begins[1:])
    first = begins.nonzero()[0]
    groups, mine = group[first], begins.cumsum() - 1
    at = np.arange(len(job)) - first[mine]
    usable, room = usable[job], problem.room[groups]
    amount = np.where(usable[:, :, None], problem.amount[job], 0)
    largest = np.add.reduceat(amount.max(axis=1), first, axis=0)
    scarce = (largest / np.maximum(room, 1)).argmax(axis=1)
    units = np.take_along_axis(amount, scarce[mine][:, None, None], axis=2)[:, :, 0]
    unit = np.maximum(np.gcd.reduceat(np.gcd.reduce(units, axis=1), first), 1)
    size: IntArray = room[np.arange(len(groups)), scarce] // unit
    most = int(size.max())
    if most > MOST_ROOM:
        return None
    units = np.where(usable, np.minimum(units // unit[mine][:, None], most + 1), most + 1)
    lanes = LANES if at.max() + 1 >= LONG and most <= NARROW else 1
    turn, lane = at // lanes, mine * lanes + at % lanes
    # Nothing is one configuration more; where a lane has fewer jobs it is all that the missing ones have.
    shape = (int(turn.max()) + 1, len(groups) * lanes, 1 + problem.value.shape[1])
    values, takes = np.full(shape, -np.inf), np.zeros(shape, dtype=np.int64)
    values[:, :, 0] = 0.0
    values[turn, lane, 0], values[turn, lane, 1:] = problem.floor[job], problem.value[job]
    takes[turn, lane, 1:] = units
    return _Items(values, takes, job, turn, lane, size, lanes, float(problem.floor[~some].sum()))


def _joined(best: FloatArray, more: FloatArray) -> FloatArray:
    """K×S: the best at each room of two parts, `best` (K×S) and `more` (K×2S, the rooms below 0 first)."""
    count, rooms = best.shape
    row, one = more.strides
    # [k, u, s]: the second part's best at the room s less u.
    shape, strides = (count, rooms + 1, rooms), (row, one, one)
    less = as_strided(more, shape=shape, strides=strides, writeable=False)[:, :0:-1]
    out: FloatArray = (best[:, :, None] + less).max(axis=1)
    return out


def _first_best(values: list[float]) -> int:
    """The first of those that differ from the best by rounding alone."""
    most = max(values)
    least = most - 1e-12 * abs(most)
    for at, value in enumerate(values):
        if value >= least:
            return at
    return -1

"""The number of a job's replicas over time, in few enough numbers to keep for a thousand jobs.

Derived from the Workflow's nodes, which have for each pod when it was created, whether it ran, and when it ended. They
do not have when a pod passed its scheduling gate; the allocation has when the job got its first nodes
(docs/decisions/0005).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from diflow.record.status.observe import Attempt
from diflow.record.untrusted import seconds

_MOST_STEPS: Final = 96
_MOST_ROUNDS: Final = 32


@dataclass(frozen=True, slots=True)
class Step:
    """From `at` on (seconds since 1970): running replicas by task, and replicas whose pods wait or start."""

    at: int
    running: tuple[int, ...]
    waiting: int

    @property
    def total(self) -> int:
        """Running replicas."""
        return sum(self.running)


@dataclass(frozen=True, slots=True)
class History:
    """`tasks` names the columns of `Step.running`; `rounds` has the start times of the rounds after the first."""

    tasks: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    rounds: tuple[int, ...] = ()

    @property
    def peak(self) -> int:
        """The most replicas at any time, running or not."""
        return max((step.total + step.waiting for step in self.steps), default=0)


def history(
    attempts: Sequence[Attempt], tasks: Sequence[str], *, begin: float, first: float = 0.0, since: tuple[str, float]
) -> History:
    """The history of these attempts. Times are seconds since 1970.

    `begin` is when the job was submitted, `first` when it got its first nodes (0: not known); `since` is (a round, when
    it got its nodes).
    """
    column = {task: i for i, task in enumerate(tasks)}
    changes: list[tuple[int, tuple[int, int], int, int]] = []  # (time, replica, running, waiting)
    rounds: dict[str, int] = {}
    starts = _starts(attempts)
    for attempt in attempts:
        made = seconds(attempt.created)
        if made <= 0:
            continue
        place = (column.get(attempt.task, 0), attempt.index)
        began = int(max(made, begin))
        rounds[attempt.round] = min(rounds.get(attempt.round, began), began)
        ended = int(max(_end(attempt, starts), began)) if attempt.phase in ("Succeeded", "Failed") else 0
        changes.append((began, place, 0, 1))
        if attempt.ready:
            admitted = max(seconds(attempt.ready), first, since[1] if attempt.round == since[0] else 0.0, began)
            ran = min(int(admitted), ended) if ended else int(admitted)
            changes.append((ran, place, 1, -1))
            if ended:
                changes.append((ended, place, -1, 0))
        elif ended:
            changes.append((ended, place, 0, -1))
    steps = [Step(int(begin), (0,) * len(column), 0)]
    running, waiting = [0] * len(column), 0
    # A replica may have two pods for a while: the new one waits until the old one is gone.
    pods: dict[tuple[int, int], tuple[int, int]] = {}
    for at, place, run, wait in sorted(changes, key=lambda change: change[0]):
        before = pods.get(place, (0, 0))
        after = pods[place] = (before[0] + run, before[1] + wait)
        running[place[0]] += (after[0] > 0) - (before[0] > 0)
        waiting += _waits(after) - _waits(before)
        step = Step(at, tuple(running), waiting)
        if steps[-1].at == at:
            steps[-1] = step
        else:
            steps.append(step)
    begun = sorted(rounds.values())[1:]
    return History(tuple(tasks), _thinned(steps), tuple(begun[-_MOST_ROUNDS:]))


def _waits(pods: tuple[int, int]) -> bool:
    """Whether a replica waits, by the numbers of its pods that run and that do not."""
    return pods[1] > 0 and pods[0] == 0


def _starts(attempts: Sequence[Attempt]) -> list[tuple[int, float]]:
    """(index, creation of the first pod) of each round, in order."""
    first: dict[int, float] = {}
    for attempt in attempts:
        if (made := seconds(attempt.created)) > 0:
            first[attempt.round_index] = min(first.get(attempt.round_index, made), made)
    return sorted(first.items())


def _end(attempt: Attempt, starts: Sequence[tuple[int, float]]) -> float:
    """When it ended. Argo records no end of a pod that never passed its gate: then the start of the next round."""
    if attempt.finished:
        return seconds(attempt.finished)
    at = bisect_right(starts, attempt.round_index, key=lambda start: start[0])
    return starts[at][1] if at < len(starts) else 0.0


def _thinned(steps: list[Step]) -> tuple[Step, ...]:
    """At most `_MOST_STEPS` steps: of each interval the lowest, which shows a restart, and the last."""
    if len(steps) <= _MOST_STEPS:
        return tuple(steps)
    begin, end = steps[0].at, steps[-1].at
    stretch = max(1.0, (end - begin + 1) / (_MOST_STEPS // 2 - 1))
    kept: list[Step] = [steps[0]]
    group: list[Step] = []
    for step in steps[1:]:
        if group and int((step.at - begin) / stretch) != int((group[0].at - begin) / stretch):
            kept += _low_and_last(group)
            group = []
        group.append(step)
    return (*kept, *_low_and_last(group))


def _low_and_last(group: Sequence[Step]) -> list[Step]:
    low = min(group, key=lambda step: step.total)
    return [low] if low is group[-1] else [low, group[-1]]

"""Isolates faulty jobs, so that one job cannot prevent the plan for all others.

A job whose standing, view, plan or write raises is left out: it keeps its pods, gets nothing more, and an Event tells
its owner. It is tried again when it has changed, but not before a back-off that doubles each time, so that a job which
is edited all the time costs no more than an unchanged one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from diflow.allocator.watch.job import Job

MOST_CULPRITS: Final = 4
"""The most faulty jobs that are searched for in one cycle. Those found are left out of later plans."""
_PAUSE_SECONDS: Final = (1.0, 600.0)
_LONGEST: Final = 200

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Out:
    job: Job
    text: str
    since: float
    pause: float


class TooLongError(Exception):
    """The search for the job at fault takes too long."""


class LeftOut:
    """The jobs that are left out of plans, and why. Times are in seconds since 1970."""

    def __init__(self) -> None:
        self._out: dict[str, _Out] = {}
        self._pauses: dict[str, tuple[float, float]] = {}

    def add(self, job: Job, error: Exception | str, *, now: float) -> None:
        """Leave a job out of plans from now on."""
        low, high = _PAUSE_SECONDS
        pause, at = self._pauses.get(job.key, (0.0, now))
        pause = min(high, 2 * pause) if pause and abs(now - at) < 10 * high else low
        self._pauses[job.key] = pause, now
        self._out[job.key] = _Out(job, message(error), now, pause)

    def remove(self, jobs: Sequence[Job]) -> None:
        """Plan these jobs again, as they were not the cause."""
        for job in jobs:
            self._out.pop(job.key, None)
            self._pauses.pop(job.key, None)

    def without(self, jobs: Sequence[Job], *, now: float) -> list[Job]:
        """The jobs that are planned: a job that has changed since it was left out is included after its back-off."""
        there = {job.key: job for job in jobs}
        for key in [*self._out]:
            out, job = self._out[key], there.get(key)
            if job is None or (job is not out.job and not 0 <= now - out.since < out.pause):
                del self._out[key]
        for key in self._pauses.keys() - there.keys():
            del self._pauses[key]
        return [job for job in jobs if job.key not in self._out]

    def texts(self) -> Mapping[str, str]:
        """Why each job is left out, by its key."""
        return {key: out.text for key, out in self._out.items()}


def message(error: Exception | str) -> str:
    """The message to the owner of a job that is left out."""
    what = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    return (
        f"nothing can be planned for it ({what[:_LONGEST]}); it keeps what it has: "
        "undo what was edited in its Workflow, or ask the administrator to look into the allocator's log"
    )


def culprit(items: Sequence[_T], fails: Callable[[Sequence[_T]], bool]) -> _T | None:
    """The item without which `items` would not fail; None if there is none.

    If two fail only together, the one that also fails with others. `fails` is called at most 2 log2(n) + 4 times.
    """
    if not items or fails(()) or not fails(items):
        return None
    shortest = _shortest(items, fails)
    last = shortest[-1]
    if len(shortest) > 1 and fails([item for item in items if item is not last]):
        other = _shortest(shortest[::-1], fails)[-1]
        if other is not last and not fails([item for item in items if item is not other]):
            return other
    return last


def _shortest(items: Sequence[_T], fails: Callable[[Sequence[_T]], bool]) -> Sequence[_T]:
    """The shortest prefix of `items` that fails; all of `items` fail, and the empty prefix does not."""
    good, bad = 0, len(items)
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (good, middle) if fails(items[:middle]) else (middle, bad)
    return items[:bad]

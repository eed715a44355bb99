"""Isolates faulty jobs, so that one job cannot prevent the plan for all others.

A job whose standing, view, plan or write raises is left out: it keeps its pods, gets nothing more, and an Event tells
its owner. It is tried again when it has changed, but not before a back-off that doubles each time, so that a job which
is edited all the time costs no more than an unchanged one.

With whose waiting jobs a plan was late, that namespace waits for some time, and longer when it happens again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from diflow.allocator.reasons.readers import SOME_JOB, owner
from diflow.allocator.watch.job import Job

MOST_CULPRITS: Final = 4
"""The most faulty jobs that are searched for in one cycle. Those found are left out of later plans."""
_PAUSE_SECONDS: Final = (1.0, 600.0)
_LATE_SECONDS: Final = (60.0, 3600.0)
_LONGEST: Final = 200

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Out:
    job: Job
    text: str
    since: float
    pause: float


@dataclass(frozen=True, slots=True)
class _Late:
    """A namespace with whose waiting jobs a plan was late."""

    text: str
    since: float
    pause: float

    def lasts(self, now: float) -> bool:
        return 0 <= now - self.since < self.pause


class TooLongError(Exception):
    """The search for the job at fault takes too long."""


class LeftOut:
    """The jobs that are left out of plans, and why. Times are in seconds since 1970."""

    def __init__(self) -> None:
        self._out: dict[str, _Out] = {}
        self._pauses: dict[str, tuple[float, float]] = {}
        self._late: dict[str, _Late] = {}
        self._texts: dict[str, str] = {}

    def add(self, job: Job, error: Exception | str, *, now: float) -> None:
        """Leave a job out of plans from now on."""
        low, high = _PAUSE_SECONDS
        pause, at = self._pauses.get(job.key, (0.0, now))
        pause = min(high, 2 * pause) if pause and abs(now - at) < 10 * high else low
        self._pauses[job.key] = pause, now
        self._out[job.key] = _Out(job, message(error, job), now, pause)

    def add_late(self, namespace: str, *, now: float) -> None:
        """Leave the waiting jobs of a namespace out of plans for a time, as a plan with them was late. The time doubles
        with each plan that is late again within ten times the last one."""
        low, high = _LATE_SECONDS
        before = self._late.get(namespace)
        again = before is not None and abs(now - before.since) < 10 * before.pause
        pause = min(high, 2 * before.pause) if before is not None and again else low
        text = (
            f"nothing is planned for it for {pause:g} s: with the jobs of its namespace that wait, a plan took longer "
            "than it may; submit fewer at once, or jobs of fewer tasks"
        )
        self._late[namespace] = _Late(text, now, pause)

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
        self._late = {name: late for name, late in self._late.items() if now - late.since < 10 * late.pause}
        waiting = {name: late.text for name, late in self._late.items() if late.lasts(now)}
        self._texts = {
            job.key: waiting[job.read.identity.namespace]
            for job in (jobs if waiting else ())
            if job.read.identity.namespace in waiting and not _holds(job)
        }
        return [job for job in jobs if job.key not in self._out and job.key not in self._texts]

    def texts(self) -> Mapping[str, str]:
        """Why each job is left out, by its key."""
        return {**self._texts, **{key: out.text for key, out in self._out.items()}}


def _holds(job: Job) -> bool:
    """Whether the job holds places, or has pods in some."""
    at = job.read.notes.allocation
    return bool(at is not None and at.has_node) or any(pod.host for pod in job.pods)


def without_culprits(
    make: Callable[[Sequence[Job]], _T],
    jobs: Sequence[Job],
    left_out: LeftOut,
    *,
    fault: Callable[[Job], Exception | None],
    now: float,
) -> _T:
    """What `make` makes of the jobs without those that are left out, or with which it raises: these are left out from
    now on. `fault`: the error of a job by itself. Raises the error of `make` if no single job is the cause."""

    def fails(some: Sequence[Job]) -> bool:
        try:
            make(some)
        except Exception:
            return True
        return False

    error: Exception = RuntimeError("nothing was made")
    for turn in range(MOST_CULPRITS):
        planned = left_out.without(jobs, now=now)
        try:
            return make(planned)
        except Exception as failure:  # unexpected data of some job
            error = failure
        alone = [(job, wrong) for job in planned if (wrong := fault(job)) is not None] if turn == 0 else []
        for job, wrong in alone:
            left_out.add(job, wrong, now=now)
        if alone:
            continue
        worst = culprit(planned, fails)
        if worst is None:
            break
        left_out.add(worst, error, now=now)
    raise error


def message(error: Exception | str, job: Job) -> str:
    """The message to the owner of a job that is left out. An error may be of several jobs, and name others."""
    what = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    what = owner(job.read.identity.namespace).told(what, lambda _: SOME_JOB)
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

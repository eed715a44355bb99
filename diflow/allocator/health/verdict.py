"""What the signals of a job's replicas mean together: who is silent, stalled or slow, and who is to restart.

Not every replica has to report. If several replicas of a task report, all of them have to. If only one does, such as
rank 0 of a collective, the others of its task are not judged by their own steps. A job without any report is stalled
after the deadline of the first step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from diflow.allocator.health import judging
from diflow.allocator.health.judging import SLOW, Bools, Floats
from diflow.common.deadlines import Deadlines

WINDOW: Final = 30
SAMPLE_SECONDS: Final = 60
"""A rate is measured over the last half hour, by a sample a minute: what is shorter than a third of that, such as a
checkpoint, does not change it (tests/allocator/health)."""
STILL_SLOW: Final = 1.6
"""A rank that was slow counts as slow until its factor is below this: without the difference to SLOW, one near the
limit would be reported as slow and as recovered in turns."""
SLOW_SAMPLES: Final = 5
"""A rank is slow when that many samples say so, one after the other."""
LEAST_SAMPLES: Final = 25
"""With fewer, a checkpoint of ten minutes would be most of what is seen."""
_AS_LONG: Final = 0.9


@dataclass(frozen=True)
class Signs:
    """The signs of life of all ranks at one time, in seconds of the server's clock; `nan`: never, or unknown.

    `heard`: the last sign of life, `moved`: the last rise of the step, `steps`: that step, `work`: seconds of a step
    without waiting for others. A server has listened without a break since `since`.
    """

    at: float
    since: float
    heard: Floats
    moved: Floats
    steps: Floats
    work: Floats


@dataclass(frozen=True)
class Verdict:
    """Sets of ranks, and how many times slower than the others the slow ones are. `behind`: those that the other
    hanging ranks wait for, if that is known; `restart`: all that have to be restarted together."""

    silent: frozenset[int] = frozenset()
    stalled: frozenset[int] = frozenset()
    behind: frozenset[int] = frozenset()
    restart: frozenset[int] = frozenset()
    slow: Mapping[int, float] = field(default_factory=dict)
    is_before_first: bool = False
    """The stalled ranks never made a step."""
    is_proven: bool = False
    """All ranks that have to report have made a step since their pods began."""

    @property
    def hanging(self) -> frozenset[int]:
        """The ranks that are silent or stalled."""
        return self.silent | self.stalled


class Samples:
    """The last steps of each rank, of one round. What is kept may be lost at any time: it is measured again."""

    def __init__(self, tasks: Sequence[int]) -> None:
        self.tasks = tuple(tasks)
        ranks = sum(tasks)
        self._times = np.full((WINDOW, ranks), np.nan)
        self._steps = np.full((WINDOW, ranks), np.nan)
        self._work = np.full((WINDOW, ranks), np.nan)
        self._began = np.full(ranks, np.nan)
        self._at = -np.inf
        self._next = 0
        self.factor = np.full(ranks, np.nan)
        """How many times slower each rank is than the others of its task."""
        self.minutes = np.zeros(ranks, np.int64)
        """For how many samples each has been slow."""

    def compared(self) -> list[int]:
        """The ranks whose speed is known beside that of others."""
        ranks: list[int] = np.flatnonzero(~np.isnan(self.factor)).tolist()
        return ranks

    def add(self, signs: Signs, began: Floats) -> None:
        """Take a sample, if the last one is old enough. A rank with a new pod begins again."""
        is_new = ~(began == self._began)
        if is_new.any():
            for kept in (self._times, self._steps, self._work):
                kept[:, is_new] = np.nan
            self.factor[is_new], self.minutes[is_new] = np.nan, 0
            self._began = began.copy()
        if signs.at - self._at < SAMPLE_SECONDS:
            return
        self._at = signs.at
        known = (signs.moved >= began) & (signs.heard >= began)
        self._times[self._next] = np.where(known, signs.heard, np.nan)
        self._steps[self._next] = np.where(known, signs.steps, np.nan)
        self._work[self._next] = np.where(known, signs.work, np.nan)
        self._next = (self._next + 1) % WINDOW
        slopes = judging.rates(self._times, self._steps, least=LEAST_SAMPLES)
        whole = np.where(np.isfinite(slopes), _whole_rates(self._times, self._steps), np.nan)
        work = _work_rates(self._work)
        for first, end in _spans(self.tasks):
            # A rank that pauses now and then has a low median slope, and one whose counter has jumped a low rate over
            # the whole window: one that is slow has both. Of ranks that make each step together, only the time without
            # waiting tells them apart.
            by_slope, by_whole, by_work = (judging.slowness(rate[first:end]) for rate in (slopes, whole, work))
            self.factor[first:end] = np.fmax(np.minimum(by_slope, by_whole), by_work)
        with np.errstate(invalid="ignore"):
            self.minutes = np.where(self.factor >= SLOW, self.minutes + 1, 0)


def judge(
    signs: Signs,
    began: Floats,
    tasks: Sequence[int],
    deadlines: Deadlines,
    *,
    samples: Samples | None = None,
    was_slow: frozenset[int] = frozenset(),
    done: Bools | None = None,
) -> Verdict:
    """The verdict at the time of the signs. `began`: when the present pod of each rank began (`nan`: it has none, or is
    not to be judged). `tasks`: the number of ranks of each task, in their order. `done`: the ranks that have ended."""
    ranks = sum(tasks)
    now, since, heard, moved, steps = signs.at, signs.since, signs.heard, signs.moved, signs.steps
    spans = _spans(tasks)
    silent = judging.silent(began, heard, now, deadlines, since=since)
    expected = _expected(moved, spans)
    stalled = judging.stalled(began, moved, now, deadlines, since=since) & expected
    advances = moved >= began if done is None else (moved >= began) | done
    is_proven = bool(advances[expected].all())
    hanging = silent | stalled
    slow = _slow(samples, hanging, was_slow) if samples is not None else {}
    if not hanging.any():
        return Verdict(slow=slow, is_proven=is_proven)
    idle = now - np.maximum(np.where(moved >= began, moved, began), since)
    restart, behind = hanging.copy(), np.zeros(ranks, bool)
    for first, end in spans:
        part = slice(first, end)
        if not hanging[part].any():
            continue
        # In a collective the others wait, and would fail if only one began again; so do those that never report.
        waits = idle[part] >= _AS_LONG * np.max(idle[part][hanging[part]])
        restart[part] |= np.isfinite(began[part]) & (waits | ~np.isfinite(moved[part]))
        reporting = restart[part] & expected[part]
        behind[part] = judging.culprits(reporting, silent[part], steps[part])
        if (behind[part] == reporting).all():
            behind[part] = False
    return Verdict(
        _set(silent),
        _set(stalled),
        _set(behind),
        _set(restart),
        slow,
        is_before_first=bool(not (moved[stalled] >= began[stalled]).any()),
    )


def _slow(samples: Samples, hanging: Bools, was_slow: frozenset[int]) -> dict[int, float]:
    with np.errstate(invalid="ignore"):
        found = ~hanging & (samples.factor >= STILL_SLOW)
    return {
        rank: float(samples.factor[rank])
        for rank in np.flatnonzero(found).tolist()
        if samples.minutes[rank] >= SLOW_SAMPLES or rank in was_slow
    }


def _expected(moved: Floats, spans: Sequence[tuple[int, int]]) -> Bools:
    """The ranks whose steps are to be judged."""
    reports = np.isfinite(moved)
    if not reports.any():
        return np.ones(len(moved), bool)
    out = reports.copy()
    for first, end in spans:
        if reports[first:end].sum() > 1:
            out[first:end] = True
    return out


def _spans(tasks: Sequence[int]) -> list[tuple[int, int]]:
    ends = np.cumsum(tasks).tolist() if tasks else []
    return [(end - count, end) for count, end in zip(tasks, ends, strict=True)]


def _whole_rates(times: Floats, steps: Floats) -> Floats:
    """Steps per second of each rank from its first sample to its last one."""
    known = np.isfinite(times)
    first = np.where(known, times, np.inf).argmin(axis=0)
    last = np.where(known, times, -np.inf).argmax(axis=0)
    columns = np.arange(times.shape[1])
    apart = times[last, columns] - times[first, columns]
    risen = steps[last, columns] - steps[first, columns]
    out: Floats = np.divide(risen, apart, out=np.full(apart.shape, np.nan), where=apart > 0)
    return out


def _work_rates(work: Floats) -> Floats:
    out = np.full(work.shape[-1], np.nan)
    enough = np.isfinite(work).sum(axis=0) >= LEAST_SAMPLES
    if enough.any():
        out[enough] = 1.0 / np.nanmedian(work[:, enough], axis=0)
    return out


def _set(found: Bools) -> frozenset[int]:
    return frozenset(np.flatnonzero(found).tolist())

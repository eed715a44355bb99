"""What the signals of a job's replicas mean together: who is silent, stands still or is slow, and who is to restart.

Not every replica reports. Those of which nothing is known are judged by the others of their task: where several report,
all have to; where one reports, as rank 0 of a collective does, it speaks for all. A job of which no replica ever
reports is given the time of the first step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from diflow.allocator.health import judging
from diflow.allocator.health.judging import SLOW, Bools, Deadlines, Floats
from diflow.state.signals import NEVER, Signals

WINDOW: Final = 30
SAMPLE_SECONDS: Final = 60
"""A rate is measured over the last half hour, by a sample a minute: what is shorter than a third of that, such as a
checkpoint, does not change it (tests/allocator/health)."""
STILL_SLOW: Final = 1.6
"""A rank that was slow counts as slow until it is less so than this, so that none is reported by turns."""
_AS_LONG: Final = 0.9


@dataclass(frozen=True)
class Verdict:
    """Sets of ranks, and how many times slower than the others the slow ones are. `behind`: those that the other
    standing ranks wait for, if that is known; `again`: all that have to be restarted together."""

    silent: frozenset[int] = frozenset()
    stopped: frozenset[int] = frozenset()
    behind: frozenset[int] = frozenset()
    again: frozenset[int] = frozenset()
    slow: Mapping[int, float] = field(default_factory=dict)
    is_before_first: bool = False
    """The ranks that have stopped never made a step."""
    is_proven: bool = False
    """All ranks that have to report have made a step since their pods began."""

    @property
    def standing(self) -> frozenset[int]:
        """The ranks that are silent or have stopped."""
        return self.silent | self.stopped


class Samples:
    """The last steps of each rank, of one round. What is kept may be lost at any time: it is measured again."""

    def __init__(self, ranks: int) -> None:
        self._times = np.full((WINDOW, ranks), np.nan)
        self._steps = np.full((WINDOW, ranks), np.nan)
        self._work = np.full((WINDOW, ranks), np.nan)
        self._began = np.full(ranks, np.nan)
        self._at = -np.inf
        self._next = 0
        self.rate = np.full(ranks, np.nan)
        """Steps per second of each rank, by its own steps."""
        self.work_rate = np.full(ranks, np.nan)
        """The same, without the time in which it waits for others."""

    @property
    def ranks(self) -> int:
        return len(self._began)

    def add(self, signals: Signals, began: Floats) -> None:
        """Take a sample, if the last one is old enough. A rank with a new pod begins again."""
        anew = ~(began == self._began)
        if anew.any():
            for kept in (self._times, self._steps, self._work):
                kept[:, anew] = np.nan
            self._began = began.copy()
        if signals.at - self._at < SAMPLE_SECONDS:
            return
        self._at = signals.at
        count = min(self.ranks, len(signals.heard))
        heard, moved, steps = (_floats(values, self.ranks) for values in (signals.heard, signals.moved, signals.steps))
        known = (moved >= began) & (heard >= began)
        self._times[self._next] = np.where(known, heard, np.nan)
        self._steps[self._next] = np.where(known, steps, np.nan)
        work = np.full(self.ranks, np.nan)
        work[:count] = signals.work[:count] if signals.work else np.nan
        self._work[self._next] = np.where(known & (work > 0), work, np.nan)
        self._next = (self._next + 1) % WINDOW
        self.rate = judging.rates(self._times, self._steps)
        self.work_rate = _work_rates(self._work)


def judge(
    signals: Signals,
    began: Floats,
    tasks: Sequence[int],
    deadlines: Deadlines,
    *,
    samples: Samples | None = None,
    was_slow: frozenset[int] = frozenset(),
) -> Verdict:
    """The verdict at the time of the signals. `began`: when the present pod of each rank began (`nan`: it has none, or
    is not to be judged). `tasks`: the number of ranks of each task, in their order."""
    ranks = sum(tasks)
    now, since = float(signals.at), float(signals.since)
    heard, moved, steps = (_floats(values, ranks) for values in (signals.heard, signals.moved, signals.steps))
    steps = np.where(np.isfinite(moved), steps, np.nan)
    spans = _spans(tasks)
    silent = judging.silent(began, heard, now, deadlines, since=since)
    expected = _expected(moved, spans)
    stopped = judging.stopped(began, moved, now, deadlines, since=since) & expected
    is_proven = bool((moved >= began)[expected].all())
    standing = silent | stopped
    slow: dict[int, float] = {}
    if samples is not None:
        for first, end in spans:
            for rate in (samples.rate[first:end], samples.work_rate[first:end]):
                factor = judging.slowness(np.where(standing[first:end], np.nan, rate))
                with np.errstate(invalid="ignore"):
                    found = np.flatnonzero(factor >= STILL_SLOW)
                for rank in found.tolist():
                    if factor[rank] >= SLOW or first + rank in was_slow:
                        slow[first + rank] = max(float(factor[rank]), slow.get(first + rank, 0.0))
    if not standing.any():
        return Verdict(slow=slow, is_proven=is_proven)
    idle = now - np.maximum(np.where(moved >= began, moved, began), since)
    again, behind = standing.copy(), np.zeros(ranks, bool)
    for first, end in spans:
        part = slice(first, end)
        if not standing[part].any():
            continue
        # In a collective the others wait, and would fail if only one began again; so do those that never report.
        waits = idle[part] >= _AS_LONG * np.max(idle[part][standing[part]])
        again[part] |= np.isfinite(began[part]) & (waits | ~np.isfinite(moved[part]))
        reporting = again[part] & expected[part]
        behind[part] = judging.culprits(reporting, silent[part], steps[part])
        if (behind[part] == reporting).all():
            behind[part] = False
    return Verdict(
        _set(silent),
        _set(stopped),
        _set(behind),
        _set(again),
        slow,
        is_before_first=bool(not (moved[stopped] >= began[stopped]).any()),
    )


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


def _floats(values: Sequence[int], ranks: int) -> Floats:
    """By rank, `nan` for what is not known."""
    out = np.full(ranks, np.nan)
    given = np.asarray(values[:ranks], dtype=np.float64)
    out[: len(given)] = np.where(given == NEVER, np.nan, given)
    return out


def _work_rates(work: Floats) -> Floats:
    out = np.full(work.shape[-1], np.nan)
    enough = np.isfinite(work).sum(axis=0) >= judging.MIN_SAMPLES
    if enough.any():
        out[enough] = 1.0 / np.nanmedian(work[:, enough], axis=0)
    return out


def _set(found: Bools) -> frozenset[int]:
    return frozenset(np.flatnonzero(found).tolist())

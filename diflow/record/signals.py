"""The signs of life of a job's replicas, as the server keeps them beside the reports (`profilings`).

    {"round": "3", "at": 1800000000, "since": 1799990000,
     "heard": [2, 1, -1], "moved": [2, 1, -1], "steps": [700, 0, 0], "work": [0.25, 0.24, 0]}

Each list has an entry for each rank. `heard` and `moved`: seconds before `at` at which the replica last showed a sign
of life, and at which its step last rose; -1: never in this round. `steps`: the step of the first rank, then the
differences to the rank before, which are small where the ranks work together. `work`: seconds of a step without
waiting for others, 0 if unknown; the list is left out if it is unknown for all.

`since`: a server has listened without a break since then. So what a rank did not say before is no silence, and time
in which no server listened does not count: all is judged by the clock of the server at `at`, and by no other one.
While there is nothing to report, a server writes when a deadline has passed, and now and then (`next_write`).

Only jobs with `health` have this. A thousand ranks take about 10 kB. Users can edit the text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from diflow.common.deadlines import Deadlines
from diflow.common.jsontext import lenient, parsed
from diflow.common.limits import MOST_REPLICAS
from diflow.record.types import Round

NAME: Final = "signals"
"""The key of the signals in the parameter `profilings`."""
LONGEST: Final = 30_000
"""Characters of the signals. With the reports, they are fewer than readers accept."""
NEVER: Final = -1
BREAK_SECONDS: Final = 30
"""After a longer time without a write, only a server that has listened all the time knows that there was nothing to
write. Another one begins with what it hears itself."""
BEAT_SECONDS: Final = 10
"""The shortest time after which a server writes that it listens, though there is nothing to report."""
IDLE_SECONDS: Final = 60
"""The longest. Each of these writes changes the job's Workflow, and an API server carries out some dozens a second."""
_AFTER_SECONDS: Final = 120
"""How long after a deadline of a replica all `BEAT_SECONDS` are written: its pod may have begun later than it was
created, and the process that judges may have been away."""
_LONGEST: Final = 262_144
_HIGHEST_STEP: Final = 10**15
_LATEST: Final = 10**11
_LONGEST_WORK: Final = 1e6


@dataclass(frozen=True, slots=True)
class Signals:
    """The signs of life by rank. Times are whole seconds since 1970; `NEVER` is -1. Lists have the same length."""

    round: str
    at: int
    since: int
    heard: tuple[int, ...] = ()
    moved: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    work: tuple[float, ...] = ()

    def text(self) -> dict[str, Any]:
        """As plain data. The highest ranks are left out if it would be too long."""
        count = len(self.heard)
        while True:
            out = self._first(count)
            if _length(out) <= LONGEST:
                return out
            count = count * 3 // 4

    def _first(self, count: int) -> dict[str, Any]:
        steps = self.steps[:count]
        return {
            "round": self.round,
            "at": self.at,
            "since": self.since,
            "heard": [_before(self.at, time) for time in self.heard[:count]],
            "moved": [_before(self.at, time) for time in self.moved[:count]],
            "steps": [*steps[:1], *(after - before for before, after in pairwise(steps))],
            **({"work": list(self.work[:count])} if any(self.work[:count]) else {}),
        }


@dataclass(frozen=True, slots=True)
class Sign:
    """One sign of life. `step` and `work` are None if it does not say them; `is_alive`: it is more than a report by a
    monitor that has seen nothing move."""

    at: float
    step: int | None = None
    work: float | None = None
    is_alive: bool = True


def folded(
    before: Signals | None,
    signs: Mapping[int, Sign],
    *,
    round_: str,
    replicas: int,
    now: float,
    listening: float | None = None,
) -> Signals:
    """The signals with these signs by rank, as a server writes them at `now`. `listening`: the time since which this
    server has listened without a break; None if it does not know."""
    at = int(now)
    began = at if listening is None else min(at, math.ceil(listening))
    if before is None or at < before.at - BREAK_SECONDS:
        since = at
    elif began > before.at + BREAK_SECONDS:
        since = began
    else:
        since = before.since
        at = max(at, before.at)  # another server's clock may be ahead
    count = min(max(replicas, 0), MOST_REPLICAS)
    old = before if before is not None and before.round == round_ else Signals(round_, at, since)
    heard, moved, steps = (_sized(values, count) for values in (old.heard, old.moved, old.steps))
    work = [*old.work[:count], *([0.0] * (count - len(old.work)))]
    for rank, sign in signs.items():
        if not 0 <= rank < count:
            continue
        seen = min(int(sign.at), at)
        if sign.step is not None and (moved[rank] == NEVER or sign.step != steps[rank]):
            # A lower step is that of a program that began again, which is a move as well.
            moved[rank] = max(moved[rank], seen)
            steps[rank] = min(sign.step, _HIGHEST_STEP)
            heard[rank] = max(heard[rank], seen)
        if sign.is_alive:
            heard[rank] = max(heard[rank], seen)
        if sign.work is not None:
            work[rank] = float(f"{sign.work:.3g}")
    steps = [max(0, step) for step in steps]
    return Signals(round_, at, since, tuple(heard), tuple(moved), tuple(steps), tuple(work))


def next_write(found: Signals | None, deadlines: Deadlines, *, round_: str, began: Iterable[float]) -> float:
    """When a server has to write that it listens, if there is nothing to report until then; 0: at once.

    That is after the next time at which a replica may be silent or stalled, and each `IDLE_SECONDS`. `began`: when the
    pods of the round began, or somewhat earlier.
    """
    if found is None:
        return 0.0
    if found.round != round_:
        return found.at + BEAT_SECONDS
    passes = [
        *(max(time, found.since) + deadlines.heartbeat for time in found.heard if time != NEVER),
        *(max(time, found.since) + deadlines.progress for time in found.moved if time != NEVER),
        *(max(time, found.since) + deadlines.first_progress for time in began),
    ]
    soon = (max(found.at + BEAT_SECONDS, time + 1) for time in passes if time > found.at - _AFTER_SECONDS)
    return min(found.at + IDLE_SECONDS, min(soon, default=math.inf))


def of(text: str) -> Signals | None:
    """The signals beside the reports in this text; None if there are none, or if they are not what a server writes."""
    found = parsed(_read, text, None)
    return found.signals.parsed() if found is not None and found.signals is not None else None


_Before = Annotated[tuple[Annotated[int, Meta(ge=NEVER)], ...], Meta(max_length=MOST_REPLICAS)]


class _Written(Struct, frozen=True):
    round: Round
    at: Annotated[int, Meta(ge=1, le=_LATEST)]
    since: Annotated[int, Meta(ge=1)]
    heard: _Before
    moved: _Before
    steps: Annotated[
        tuple[Annotated[int, Meta(ge=-_HIGHEST_STEP, le=_HIGHEST_STEP)], ...], Meta(max_length=MOST_REPLICAS)
    ]
    work: Annotated[tuple[Annotated[float, Meta(ge=0, lt=_LONGEST_WORK)], ...], Meta(max_length=MOST_REPLICAS)] = ()

    def __post_init__(self) -> None:
        lengths, steps = {len(self.heard), len(self.moved), len(self.steps)}, tuple(accumulate(self.steps))
        if self.since > self.at or any(time > self.at for time in (*self.heard, *self.moved)):
            raise ValueError("no times")
        if len(lengths) > 1 or len(self.work) not in (0, len(self.heard)):
            raise ValueError("different lengths")
        if any(not 0 <= step <= _HIGHEST_STEP for step in steps):
            raise ValueError("no steps")

    def parsed(self) -> Signals:
        heard, moved = (tuple(_time(self.at, value) for value in values) for values in (self.heard, self.moved))
        return Signals(self.round, self.at, self.since, heard, moved, tuple(accumulate(self.steps)), self.work)


class _Beside(Struct, frozen=True):
    signals: _Written | None = None


_read: Final = lenient(_Beside, most_characters=_LONGEST)


def _sized(values: tuple[int, ...], count: int) -> list[int]:
    return [*values[:count], *([NEVER] * (count - len(values)))]


def _before(at: int, time: int) -> int:
    return NEVER if time == NEVER else max(0, at - time)


def _time(at: int, before: int) -> int:
    return NEVER if before == NEVER else at - before


def _length(out: Mapping[str, Any]) -> int:
    """The characters of this as JSON, or a little more."""
    numbers = (value for name in ("heard", "moved", "steps", "work") for value in out.get(name, ()))
    return 200 + sum(len(f"{value}") + 1 for value in numbers)

"""What the allocator found of a job's replicas: the annotation `diflow/health` of the Workflow.

    {"round": "3", "time": "2026-11-21T09:40:44Z", "why": "...", "silent": "3", "stalled": "0-7", "behind": "3",
     "slow": {"5": 3.1}, "restarts": 1, "last": "...", "lastTime": "...",
     "stop": {"until": 1800000000, "members": {"worker": "0-7"}}}

`silent`, `stalled` and `behind` are ranks, and so are the keys of `slow`. `restarts`: how often the job's `health` has
restarted replicas, over all rounds. `stop`: the replicas whose pods were to be ended, those made until that time (of
the API server); the allocator does so until none is left. Users can edit the text: an invalid one counts as missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Self

from msgspec import Meta, Struct

from diflow.common.jsontext import canonical_json, parsed, reader
from diflow.common.limits import MOST_HEALTH_RESTARTS, MOST_REPLICAS, MOST_TASKS
from diflow.record import untrusted
from diflow.record.types import LATEST_SECONDS, Round

LONGEST_WHY: Final = 600
_LONGEST: Final = 65_536
_MOST_SLOW: Final = 64
_HIGHEST_FACTOR: Final = 1e6
_RANGE: Final = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Stop:
    """The replicas (indices by task) whose pods that were made until then are to be ended, and made again."""

    until: float
    members: Mapping[str, frozenset[int]]

    def has(self, task: str, index: int, created: float) -> bool:
        """Whether a pod of this replica, made at that time, is to be ended."""
        return created <= self.until and index in self.members.get(task, ())


@dataclass(frozen=True, slots=True)
class HealthState:
    """What was found. `why` is "" if all is well; `behind` are the ranks that the others wait for. `last`: why replicas
    were restarted the last time, and when. `is_unheard`: no server writes what the job reports, so nothing is known."""

    round: str = ""
    time: str = ""
    why: str = ""
    silent: frozenset[int] = frozenset()
    stalled: frozenset[int] = frozenset()
    behind: frozenset[int] = frozenset()
    slow: Mapping[int, float] = field(default_factory=dict)
    restarts: int = 0
    last: str = ""
    last_time: str = ""
    stop: Stop | None = None
    is_unheard: bool = False

    def is_about(self, round_: str) -> bool:
        """Whether it says something of this round."""
        return bool(self.why) and self.round == round_

    def text(self) -> str:
        """As the annotation has it."""
        out: dict[str, Any] = {"round": self.round, "time": self.time, "why": self.why[:LONGEST_WHY]}
        for name, ranks in (("silent", self.silent), ("stalled", self.stalled), ("behind", self.behind)):
            if ranks:
                out[name] = ranges(ranks)
        if self.slow:
            first = sorted(self.slow, key=lambda rank: (-self.slow[rank], rank))[:_MOST_SLOW]
            out["slow"] = {str(rank): min(_HIGHEST_FACTOR, round(self.slow[rank], 2)) for rank in sorted(first)}
        if self.is_unheard:
            out["unheard"] = True
        out["restarts"] = self.restarts
        if self.last:
            out |= {"last": self.last[:LONGEST_WHY], "lastTime": self.last_time}
        if self.stop is not None:
            members = {task: ranges(indices) for task, indices in self.stop.members.items()}
            out["stop"] = {"until": self.stop.until, "members": members}
        return canonical_json(out)

    @classmethod
    def parse(cls, text: Any) -> Self | None:
        """Read the annotation; None if it is missing or invalid."""
        given = parsed(_read, text, None)
        if given is None:
            return None
        return cls(
            round=given.round,
            time=untrusted.time(given.time),
            why=given.why[:LONGEST_WHY],
            silent=numbers(given.silent),
            stalled=numbers(given.stalled),
            behind=numbers(given.behind),
            slow={int(rank): factor for rank, factor in given.slow.items() if int(rank) < MOST_REPLICAS},
            restarts=given.restarts,
            last=given.last[:LONGEST_WHY],
            last_time=untrusted.time(given.last_time),
            stop=None if given.stop is None else given.stop.parsed(),
            is_unheard=given.unheard,
        )


class _Stop(Struct, frozen=True):
    until: Annotated[float, Meta(gt=0, lt=LATEST_SECONDS)]
    members: Annotated[dict[Annotated[str, Meta(pattern=r"^[a-z0-9-]{1,63}\Z")], str], Meta(max_length=MOST_TASKS)]

    def parsed(self) -> Stop:
        found = {task: numbers(text) for task, text in self.members.items()}
        return Stop(self.until, {task: indices for task, indices in found.items() if indices})


_Rank = Annotated[str, Meta(pattern=r"^[0-9]{1,4}\Z")]
_Factor = Annotated[float, Meta(gt=0, le=_HIGHEST_FACTOR)]


class _Given(Struct, frozen=True, rename="camel"):
    round: Round
    time: str = ""
    why: str = ""
    silent: str = ""
    stalled: str = ""
    behind: str = ""
    slow: Annotated[dict[_Rank, _Factor], Meta(max_length=_MOST_SLOW)] = {}
    restarts: Annotated[int, Meta(ge=0, le=MOST_HEALTH_RESTARTS)] = 0
    last: str = ""
    last_time: str = ""
    stop: _Stop | None = None
    unheard: bool = False


_read: Final = reader(_Given, most_characters=_LONGEST)


def ranges(found: Iterable[int]) -> str:
    """Numbers as text, such as "0-7,9"."""
    out: list[list[int]] = []
    for number in sorted(set(found)):
        if out and number == out[-1][1] + 1:
            out[-1][1] = number
        else:
            out.append([number, number])
    return ",".join(f"{low}-{high}" if high > low else f"{low}" for low, high in out)


def numbers(text: Any) -> frozenset[int]:
    """The numbers in such a text, below the most replicas of a job; none if it is anything else.

    The ranges have to rise, as `ranges` writes them: a text of a few kB that repeats a range would take a second.
    """
    out: set[int] = set()
    last = -1
    for part in text.split(",", MOST_REPLICAS) if isinstance(text, str) and text else ():
        found = _RANGE.fullmatch(part)
        low, high = (int(found[1]), int(found[2] or found[1])) if found is not None else (1, 0)
        if not last < low <= high < MOST_REPLICAS:
            return frozenset()
        out.update(range(low, high + 1))
        last = high
    return frozenset(out)

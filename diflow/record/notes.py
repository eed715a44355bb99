"""The server's record of the replica requests that it carried out, in a job's annotation `diflow/requests`.

    {"done": [[digest of an Idempotency-Key, digest of the request], ...],
     "ranges": {task: {"range": [1, 4], "bounds": [1, 2]}}}

`diflow scale` reads it too: when a user sets bounds, the range recorded for that task is dropped. Users who may patch
the Workflow can write this text, so invalid entries are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from diflow.common.jsontext import canonical_json
from diflow.common.limits import MOST_REPLICAS
from diflow.record import untrusted

KEYS_KEPT: Final = 64
_LONGEST: Final = 65_536  # of the text; what the server writes stays below 8 KiB
_LONGEST_DIGEST: Final = 64

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Noted:
    """The range that a task had before the server replaced its `bounds` by the requested number of replicas."""

    range: Range
    bounds: Range


@dataclass(frozen=True, slots=True)
class Notes:
    """The requests carried out (digest of the key → digest of the request), and the recorded range of each task."""

    done: Mapping[str, str] = field(default_factory=dict)
    ranges: Mapping[str, Noted] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> Notes:
        """Parse the annotation, without invalid entries."""
        given = untrusted.mapping(text, most_brackets=untrusted.FEW) if len(text) <= _LONGEST else {}
        done, ranges = given.get("done"), given.get("ranges")
        return cls(
            {pair[0]: pair[1] for pair in done if _is_done(pair)} if isinstance(done, list) else {},
            {task: noted for task, item in ranges.items() if (noted := _noted(item))}
            if isinstance(ranges, dict)
            else {},
        )

    def range_of(self, task: str, bounds: Range | None) -> Range | None:
        """The range recorded for a task, if its bounds are still those that the server wrote with it."""
        noted = self.ranges.get(task)
        return noted.range if noted is not None and noted.bounds == bounds else None

    def without_range(self, task: str) -> Notes:
        """The notes without the range of this task, for bounds that were set since."""
        return replace(self, ranges={name: noted for name, noted in self.ranges.items() if name != task})

    def text(self) -> str:
        """The annotation's text, with the newest keys only."""
        ranges = {task: {"range": noted.range, "bounds": noted.bounds} for task, noted in self.ranges.items()}
        return canonical_json({"done": list(self.done.items())[-KEYS_KEPT:], "ranges": ranges})


def _is_done(pair: Any) -> bool:
    return (
        isinstance(pair, list)
        and len(pair) == 2
        and all(isinstance(digest, str) and len(digest) <= _LONGEST_DIGEST for digest in pair)
    )


def _noted(item: Any) -> Noted | None:
    given = item if isinstance(item, dict) else {}
    span, bounds = _range(given.get("range")), _range(given.get("bounds"))
    return Noted(span, bounds) if span and bounds else None


def _range(value: Any) -> Range | None:
    if not isinstance(value, list) or len(value) != 2 or not all(type(number) is int for number in value):
        return None
    low, high = value
    return (low, high) if 1 <= low <= high <= MOST_REPLICAS else None

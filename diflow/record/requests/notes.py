"""The server's record of the replica requests that it carried out, in a job's annotation `diflow/requests`.

    {"done": [[digest of an Idempotency-Key, digest of the request], ...],
     "ranges": {task: {"range": [1, 4], "bounds": [1, 2]}}}

`diflow scale` reads it too: when a user sets bounds, the range recorded for that task is dropped. Users who may patch
the Workflow can write this text, so invalid entries are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Final

from msgspec import Meta, Struct

from diflow.common.jsontext import canonical_json, lenient, parsed
from diflow.record.types import Count

KEYS_KEPT: Final = 64
_LONGEST: Final = 65_536  # of the text; what the server writes stays below 8 KiB
_LONGEST_DIGEST: Final = 64

Range = tuple[Count, Count]


@dataclass(frozen=True, slots=True)
class Noted:
    """The range that a task had before the server replaced its `bounds` by the requested number of replicas."""

    range: Range
    bounds: Range

    def __post_init__(self) -> None:
        if self.range[0] > self.range[1] or self.bounds[0] > self.bounds[1]:
            raise ValueError("a minimum above its maximum")


@dataclass(frozen=True, slots=True)
class Notes:
    """The requests carried out (digest of the key → digest of the request), and the recorded range of each task."""

    done: Mapping[str, str] = field(default_factory=dict)
    ranges: Mapping[str, Noted] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> Notes:
        """Parse the annotation, without invalid entries."""
        given = parsed(_read, text, _Given())
        return cls(dict(given.done), given.ranges)

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


_Digest = Annotated[str, Meta(max_length=_LONGEST_DIGEST)]


class _Given(Struct, frozen=True):
    done: tuple[tuple[_Digest, _Digest], ...] = ()
    ranges: dict[str, Noted] = {}


_read: Final = lenient(_Given, most_characters=_LONGEST)

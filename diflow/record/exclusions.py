"""The nodes that are left out for one job: the annotation `diflow/excluded-nodes` of its Workflow.

An exclusion ends by itself, so that no job is kept from all nodes for ever. The allocator alone writes the record; an
edited one has an effect on its own job only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Self

from msgspec import Meta

from diflow.common.durations import backoff
from diflow.common.jsontext import canonical_json, lenient, parsed
from diflow.common.words import counted
from diflow.record import untrusted
from diflow.record.types import Moment, Node

MOST_EXCLUDED: Final = 16
"""Nodes in a job's record. When so many are left out because of the same program, the nodes are not the reason."""
FIRST_SECONDS: Final = 3600.0
"""How long a node is left out at first. A node with a fault is seldom repaired sooner."""
LONGEST_SECONDS: Final = 86_400.0
"""The longest time: each further exclusion of a node lasts twice as long as the one before."""
PENDING: Final = "pending"
"""The source of the exclusion of a node on which a pod did not start. Its attempts number the tries of the job."""
_PAUSE_SECONDS: Final = (60.0, 1800.0)
"""Before the third try, and the longest pause, as for places that no pod uses (allocator/plan/timeouts.py)."""
MOST_ATTEMPTS: Final = 16
"""Ended attempts that one exclusion remembers."""
_LONGEST_NAME: Final = 253
_LONGEST_REASON: Final = 300
_LONGEST_SOURCE: Final = 40
_LONGEST_ATTEMPT: Final = 160
_LONGEST_TEXT: Final = 32_768
_NODES_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Exclusion:
    """One node that is left out from `since` to `until` (seconds since 1970), and why.

    `source`: what found the fault, such as `failure` or `node-check`. `attempts`: the ended attempts that it is the
    consequence of, so that none of them has it twice.
    """

    node: Annotated[Node, Meta(min_length=1)]
    reason: Annotated[str, Meta(max_length=_LONGEST_REASON)]
    source: Annotated[str, Meta(max_length=_LONGEST_SOURCE)]
    since: Moment
    until: Moment
    attempts: tuple[Annotated[str, Meta(max_length=_LONGEST_ATTEMPT)], ...] = ()

    def to_data(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "reason": self.reason,
            "source": self.source,
            "since": round(self.since, 3),
            "until": round(self.until, 3),
            **({"attempts": list(self.attempts)} if self.attempts else {}),
        }


@dataclass(frozen=True, slots=True)
class Exclusions:
    """The record of a job: one entry for each node, the last one excluded last."""

    entries: tuple[Exclusion, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.entries)

    def active(self, now: float) -> tuple[Exclusion, ...]:
        """The exclusions that hold at this time (seconds since 1970)."""
        return tuple(entry for entry in self.entries if now < entry.until)

    def at(self, now: float) -> frozenset[str]:
        """The nodes that are left out at this time."""
        return frozenset(entry.node for entry in self.active(now))

    def is_full(self, now: float) -> bool:
        """As many nodes are left out as a record holds."""
        return len(self.active(now)) >= MOST_EXCLUDED

    def knows(self, attempt: str) -> bool:
        """Whether a node was left out because of this attempt, even if it is not any more."""
        return any(attempt[:_LONGEST_ATTEMPT] in entry.attempts for entry in self.entries)

    def pending_tries(self, now: float) -> int:
        """How often the job did not start in a row, while nodes were left out for it because of that."""
        last = (
            next((a for a in reversed(entry.attempts) if a.startswith(f"{PENDING}/")), "")
            for entry in self._pending(now)
        )
        return max((untrusted.whole(attempt.partition("/")[2], digits=5) or 0 for attempt in last), default=0)

    def paused_until(self, now: float) -> float:
        """Until when a job that did not start gets nothing more, in seconds since 1970; 0 without such a time."""
        tries = self.pending_tries(now)
        if tries < 2:
            return 0.0
        return max(entry.since for entry in self._pending(now)) + backoff(_PAUSE_SECONDS, tries - 2)

    def _pending(self, now: float) -> list[Exclusion]:
        """The nodes that are left out now as pods did not start there; none of a time to come, which was edited."""
        return [entry for entry in self.active(now) if entry.source == PENDING and entry.since <= now]

    def without(
        self,
        node: str,
        *,
        reason: str,
        source: str,
        now: float,
        attempts: Iterable[str] = (),
        first_seconds: float = FIRST_SECONDS,
    ) -> Self:
        """The record with this node left out from now on, at first for `first_seconds`. The oldest entry is dropped if
        there are too many."""
        before = next((entry for entry in self.entries if entry.node == node), None)
        seconds = first_seconds
        seen = tuple(attempt[:_LONGEST_ATTEMPT] for attempt in attempts)
        if before is not None:
            seconds = min(2 * max(before.until - before.since, first_seconds), LONGEST_SECONDS)
            if now < before.until:  # the same fault, seen by another replica
                seconds = max(before.until - now, first_seconds)
            seen = (*before.attempts, *(attempt for attempt in seen if attempt not in before.attempts))
        entry = Exclusion(
            node=node[:_LONGEST_NAME],
            reason=reason[:_LONGEST_REASON],
            source=source[:_LONGEST_SOURCE],
            since=now,
            until=now + seconds,
            attempts=seen[-MOST_ATTEMPTS:],
        )
        others = tuple(one for one in self.entries if one.node != node)
        return replace(self, entries=(*others, entry)[-MOST_EXCLUDED:])

    def text(self, now: float) -> str:
        """The nodes that are left out now, for people; "" if there are none."""
        found = self.active(now)
        parts = [f"{entry.node} ({entry.reason})" for entry in found[-_NODES_NAMED:]]
        if not parts:
            return ""
        if more := len(found) - len(parts):
            parts.append(f"{more} more")
        minutes = max(1, round(max(entry.until - now for entry in found) / 60))
        return f"left out for this job for up to {counted(minutes, 'minute')}: {', '.join(parts)}"

    def to_json(self) -> str:
        return canonical_json([entry.to_data() for entry in self.entries])

    @classmethod
    def parse(cls, given: Any) -> Self:
        """Parse the annotation. A text that is too long or too deep, no JSON or no list has no entries. An entry with
        an invalid field is dropped, so are the oldest ones beyond the bound, and of one node all but the last."""
        found = {entry.node: entry for entry in parsed(_read, given, ())}
        return cls(tuple(map(_in_bounds, found.values()))[-MOST_EXCLUDED:])


_read: Final = lenient(tuple[Exclusion, ...], most_characters=_LONGEST_TEXT)


def _in_bounds(found: Exclusion) -> Exclusion:
    until = min(found.until, found.since + LONGEST_SECONDS)  # an edited record must not hold for ever either
    return replace(found, until=until, attempts=found.attempts[-MOST_ATTEMPTS:])

"""The names that Argo gives to the nodes of a diflow Workflow, taken apart.

<job>.round(0:1)(2).collector(3:3.1)(0).collector(5)
       round 1 ──┘   │            │   │           └ made anew 5 times, not counted
       restarted twice┘  member ──┘   └ counted attempt
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(
    r"(?P<round_index>\d+):(?P<round>[^()]*)\)(?:\((?P<restart>\d+)\))?"
    r"(?:\.(?P<task>[a-z0-9-]+)\(\d+:(?P<member>(?P<index>\d+)(?:\.(?P<life>\d+))?)\)(?:\((?P<counted>\d+)\))?"
    r"(?P<pod>\.(?P=task)(?:\((?P<uncounted>\d+)\))?)?)?"
)


@dataclass(frozen=True, slots=True)
class NodeName:
    """One node of the tree: a round, a member of a task's fan-out, an attempt of it, or one of its pods."""

    round: str
    round_index: int
    restart: int
    is_attempt_of_round: bool
    task: str
    member: str
    index: int
    life: int
    counted: int
    is_counted_attempt: bool
    is_pod: bool
    uncounted: int

    @property
    def is_member(self) -> bool:
        """The node of the member itself, above its attempts."""
        return bool(self.task) and not self.is_pod and not self.is_counted_attempt

    @property
    def order(self) -> tuple[int, int, int, int]:
        """Later pods of one index and round are greater."""
        return (self.restart, self.life, self.counted, self.uncounted)


def parse(job: str, name: str) -> NodeName | None:
    """The parts of a node's name, or None if it is none of a round."""
    prefix = f"{job}.round("
    if not name.startswith(prefix):
        return None
    found = _NAME.fullmatch(name, len(prefix))
    if found is None:
        return None
    part = found.groupdict()
    return NodeName(
        round=part["round"],
        round_index=int(part["round_index"]),
        restart=int(part["restart"] or 0),
        is_attempt_of_round=part["restart"] is not None,
        task=part["task"] or "",
        member=part["member"] or "",
        index=int(part["index"] or 0),
        life=int(part["life"] or 0),
        counted=int(part["counted"] or 0),
        is_counted_attempt=part["counted"] is not None,
        is_pod=part["pod"] is not None,
        uncounted=int(part["uncounted"] or 0),
    )

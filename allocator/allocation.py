"""The allocation of a job's current round, as it stands in the Workflow's annotation `diflow/allocation`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from diflow.job import canonical_json


@dataclass(frozen=True, slots=True)
class Allocation:
    """A node for each replica, by task and in the order of the index; "" where one has none yet.

    No nodes at all: the job waits. `since`: when it became so; `first`: when the job got its first nodes (0: never);
    seconds since 1970. `moves`: how often the job was given another allocation after its first.
    """

    round: str
    nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    since: float = 0.0
    first: float = 0.0
    moves: int = 0

    @property
    def is_placed(self) -> bool:
        return any(self.nodes.values())

    def node(self, task: str, index: int) -> str:
        """The node of one replica, or "" if it has none."""
        nodes = self.nodes.get(task, ())
        return nodes[index] if index < len(nodes) else ""

    def to_json(self) -> str:
        return canonical_json(
            {
                "round": self.round,
                "nodes": {task: list(nodes) for task, nodes in self.nodes.items()},
                "since": round(self.since, 3),
                "first": round(self.first, 3),
                "moves": self.moves,
            }
        )

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """What the annotation says; None if there is none, or somebody made it unreadable: then the job is placed
        anew, which is safe, as its pods count for what they hold all the same."""
        if not text:
            return None
        try:
            data: dict[str, Any] = json.loads(text)
            return cls(
                round=str(data["round"]),
                nodes={str(task): tuple(str(node) for node in nodes) for task, nodes in data["nodes"].items()},
                since=_finite(data.get("since")),
                first=_finite(data.get("first")),
                moves=max(0, int(data.get("moves") or 0)),
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return None


def _finite(value: Any) -> float:
    """Seconds as somebody wrote them. Raises ValueError for what is no time."""
    number = float(value or 0.0)
    if not math.isfinite(number):
        raise ValueError(value)
    return number

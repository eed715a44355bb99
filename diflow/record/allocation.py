"""The allocation of a job's current round: the Workflow's annotation `diflow/allocation`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from msgspec import Meta

from diflow.common.jsontext import canonical_json, parsed, reader
from diflow.common.limits import MOST_REPLICAS
from diflow.record.types import Moment, Moves, Node, Round

_LONGEST_ASKED: Final = 8192


@dataclass(frozen=True, slots=True)
class Allocation:
    """The node of each replica, by task and in the order of the index; "" where a replica has none yet.

    A job without any node waits. `since`: when the allocation was made; `first`: when the job got its first nodes (0:
    never); both in seconds since 1970. `moves`: how often the allocation was replaced after the first. `asked`: the
    user's limits at that time (`JobRecord.limits`) of a preemptible job that got places or a new round; "" after its
    places were taken back, and of all other jobs.
    """

    round: Round
    nodes: Mapping[str, tuple[Node, ...]]
    since: Moment = 0.0
    first: Moment = 0.0
    moves: Moves = 0
    asked: Annotated[str, Meta(max_length=_LONGEST_ASKED)] = ""

    @property
    def is_placed(self) -> bool:
        """Whether the job was placed in this round. Any of its places may have been taken back since (`has_node`)."""
        return any(self.nodes.values())

    @property
    def has_node(self) -> bool:
        """Whether any replica has a node."""
        return any(any(names) for names in self.nodes.values())

    def node(self, task: str, index: int) -> str:
        """The node of one replica, or "" if it has none."""
        nodes = self.nodes.get(task, ())
        return nodes[index] if index < len(nodes) else ""

    def places(self, *, uid: str, until: float) -> str:
        """The parameter `places` of the Workflow with this uid: the node of each replica's first pod, which is created
        without a gate until `until` (seconds since 1970). See `diflow.workflows.expressions.node`."""
        nodes = {
            f"{self.round}/{task}/{index}/0/0": node
            for task, names in self.nodes.items()
            for index, node in enumerate(names)
            if node
        }
        return canonical_json({"until": int(until), "uid": uid, **nodes})

    def to_json(self) -> str:
        return canonical_json(
            {
                "round": self.round,
                "nodes": {task: list(nodes) for task, nodes in self.nodes.items()},
                "since": round(self.since, 3),
                "first": round(self.first, 3),
                "moves": self.moves,
                **({"asked": self.asked} if self.asked else {}),
            }
        )

    @classmethod
    def parse(cls, given: Any) -> Allocation | None:
        """Parse the annotation; None if it is missing or invalid. Such a job is placed again, which is safe, as its
        running pods count as usage in any case."""
        found = parsed(_read, given, None)
        return found if found is not None and sum(map(len, found.nodes.values())) <= MOST_REPLICAS else None


_read: Final = reader(Allocation)

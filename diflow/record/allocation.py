"""The allocation of a job's current round: the Workflow's annotation `diflow/allocation`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from msgspec import Meta

from diflow.common import keys
from diflow.common.jsontext import canonical_json, parsed, reader
from diflow.common.limits import MOST_REPLICAS
from diflow.record import untrusted
from diflow.record.types import Amount, Moment, Moves, Node, Resource, Round

_LONGEST_ASKED: Final = 8192


@dataclass(frozen=True, slots=True)
class Allocation:
    """The node of each replica, by task and in the order of the index; "" where a replica has none yet.

    A job without any node waits. `since`: when the allocation was made; `first`: when the job got its first nodes (0:
    never); both in seconds since 1970. `moves`: how often the allocation was replaced after the first. `asked`: the
    user's limits at that time (`JobRecord.limits`) of a preemptible job that got places or a new round; "" after its
    places were taken back, and of all other jobs. `requests`: by task, what was promised to each replica. Tasks without
    one are promised what they ask for, as all were by earlier releases.

    `unpinned`: kube-scheduler chooses the nodes, and those here are an estimate until the pods are bound. `refusals`:
    how often it has not bound all of the gang since they last ran together; `paused_until`: until when the job gets
    nothing because of that, or because of `losses`, in seconds since 1970. `losses`: how many rounds in a row ended
    soon after their beginning, of a preemptible job. `short_since`: since when a gang that is not preemptible lacks
    places for some of its replicas, in seconds since 1970; 0 if it lacks none. `forgiven`: the failures of its replicas
    that do not count, as another one had not begun.
    """

    round: Round
    nodes: Mapping[str, tuple[Node, ...]]
    since: Moment = 0.0
    first: Moment = 0.0
    moves: Moves = 0
    asked: Annotated[str, Meta(max_length=_LONGEST_ASKED)] = ""
    requests: Mapping[str, Mapping[Resource, Amount]] = field(default_factory=dict)
    unpinned: bool = False
    refusals: Moves = 0
    paused_until: Moment = 0.0
    losses: Moves = 0
    short_since: Moment = 0.0
    forgiven: Moves = 0

    @property
    def is_placed(self) -> bool:
        """Whether the job was placed in this round. Any of its places may have been taken back since (`has_node`)."""
        return any(self.nodes.values())

    @property
    def has_node(self) -> bool:
        """Whether any replica has a node."""
        return any(any(names) for names in self.nodes.values())

    def node(self, task: str, index: int) -> str:
        """The node of one replica, or "" if it has none. A pod that is no replica has an index of -1."""
        nodes = self.nodes.get(task, ())
        return nodes[index] if 0 <= index < len(nodes) else ""

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
                **({"requests": {task: dict(one) for task, one in self.requests.items()}} if self.requests else {}),
                **({"unpinned": True} if self.unpinned else {}),
                **({"refusals": self.refusals} if self.refusals else {}),
                **({"paused_until": round(self.paused_until, 3)} if self.paused_until else {}),
                **({"losses": self.losses} if self.losses else {}),
                **({"short_since": round(self.short_since, 3)} if self.short_since else {}),
                **({"forgiven": self.forgiven} if self.forgiven else {}),
            }
        )

    @classmethod
    def parse(cls, given: Any) -> Allocation | None:
        """Parse the annotation; None if it is missing or invalid. Such a job is placed again, which is safe, as its
        running pods count as usage in any case."""
        found = parsed(_read, given, None)
        return found if found is not None and sum(map(len, found.nodes.values())) <= MOST_REPLICAS else None


_read: Final = reader(Allocation)


def signed(workflow: Mapping[str, Any]) -> tuple[str, str]:
    """(the text of a Workflow's allocation, the proof that the allocator wrote it); "" for each that is missing."""
    annotations = untrusted.sub(workflow, "metadata", "annotations")
    return str(annotations.get(keys.ALLOCATION) or ""), str(annotations.get(keys.PROOF) or "")

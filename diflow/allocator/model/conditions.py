"""What the arrays of a snapshot were made of: the labels and taints of nodes, and what roles ask of them, for texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from diflow.common.predicates import NODE_NAME, Requirement, Taint, Where

_VALUES_NAMED: Final = 3
_LONGEST: Final = 120


@dataclass(frozen=True, slots=True)
class Conditions:
    """`nodes`: (name, labels, taints) in the order of the snapshot; `where` and `asks`: of each role, in its order."""

    nodes: Sequence[tuple[str, Mapping[str, str], tuple[Taint, ...]]]
    where: Sequence[Where]
    asks: Sequence[Mapping[str, int]]

    def unsuitable(self, role: int, nodes: Iterable[int]) -> list[tuple[int, Obstacle]]:
        """(number of nodes, what of them excludes the role), of these nodes: the first that kube-scheduler would name
        of each. Those that most nodes have come first."""
        found = Counter(self._obstacle(self.where[role], node) for node in nodes)
        return [(count, what) for what, count in sorted(found.items(), key=lambda one: (-one[1], one[0].has(1)))]

    def _obstacle(self, where: Where, node: int) -> Obstacle:
        _, labels, taints = self.nodes[node]
        for taint in taints:
            if taint.effect != "PreferNoSchedule" and not any(t.covers(taint) for t in where.tolerations):
                return Obstacle(
                    "taint", f"{taint.key}{f'={taint.value}' if taint.value else ''}:{taint.effect}"[:_LONGEST]
                )
        for key, value in where.selector:
            if labels.get(key) != value:
                return Obstacle("label", f"{key}={value}"[:_LONGEST])
        if where.affinity:
            text = " or ".join(filter(None, (", ".join(_lines(term)) for term in where.affinity[:2])))
            return Obstacle("affinity", text[:_LONGEST])
        return Obstacle("other", "")


@dataclass(frozen=True, slots=True, order=True)
class Obstacle:
    """What excludes a role from nodes. `kind`: taint, label, affinity or other; `name`: which."""

    kind: str
    name: str

    def has(self, count: int) -> str:
        """What so many nodes have, as the end of a sentence about them."""
        have, lack = ("has", "lacks") if count == 1 else ("have", "lack")
        return {
            "taint": f"{have} the taint {self.name}, which it does not tolerate",
            "label": f"{lack} the label {self.name}",
            "affinity": f"{'does' if count == 1 else 'do'} not match its node affinity"
            + f" ({self.name})" * bool(self.name),
        }.get(self.kind, f"{'is' if count == 1 else 'are'} not what it may run on")

    @property
    def remedy(self) -> str:
        """What would open such nodes to it."""
        return {
            "taint": f"a toleration of {self.name} in the template",
            "label": f"the label {self.name} on nodes, or another nodeSelector",
            "affinity": "another node affinity",
        }.get(self.kind, "")


def _lines(term: Sequence[Requirement]) -> Iterator[str]:
    for line in term:
        if line.key != NODE_NAME:  # the nodes that are left out for the job are among them
            values = ", ".join(line.values[:_VALUES_NAMED])
            yield f"{line.key} {line.operator}" + (f" {values}" if values else "")

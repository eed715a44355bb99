"""Which nodes meet the conditions of each task, as masks over nodes.

Users choose the conditions, and thousands of tasks may each have their own. So they are compared with the values of all
nodes' labels at once, not with each node, and what was found is kept until labels or taints of nodes change.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from diflow.allocator.model.arrays import BoolArray, IntArray, frozen, ints
from diflow.common.predicates import NODE_NAME, Requirement, Taint, Where

Labelled = tuple[str, Mapping[str, str], tuple[Taint, ...]]
"""(name, labels, taints) of a node."""
_Row = tuple[BoolArray, IntArray | None]
"""(the nodes on which a task may run, its preference for each; None without one)."""
_SPARE: Final = 1024


class Eligible:
    """The nodes for each set of conditions. For one thread at a time."""

    def __init__(self, nodes: Sequence[Labelled]) -> None:
        self._nodes = list(nodes)
        self._with: dict[str, dict[str, list[int]]] = {}
        tainted: dict[Taint, list[int]] = {}
        for n, (name, labels, taints) in enumerate(self._nodes):
            for key, value in labels.items():
                self._with.setdefault(key, {}).setdefault(value, []).append(n)
            self._with.setdefault(NODE_NAME, {}).setdefault(name, []).append(n)
            for taint in taints:
                if taint.effect != "PreferNoSchedule":
                    tainted.setdefault(taint, []).append(n)
        self._tainted = tainted
        self._numbers: dict[str, tuple[list[int], list[int]]] = {}
        self._rows: dict[Where, _Row] = {}
        self._known: dict[int, tuple[Where, _Row]] = {}
        """By identity, as hashing conditions takes as long as reading them."""

    def is_of(self, nodes: Sequence[Labelled]) -> bool:
        """Whether these are the same nodes, with the same labels and taints."""
        return self._nodes == nodes

    def classes(self, wheres: Sequence[Where]) -> tuple[BoolArray, IntArray, IntArray]:
        """A node mask and node preferences (K×N) for each distinct set of nodes and preferences, and the class of each
        of these conditions."""
        found = [self._row(where) for where in wheres]
        number: dict[int, int] = {}
        alike: dict[tuple[bytes, bytes], int] = {}
        distinct: list[_Row] = []
        class_of: list[int] = []
        for row in found:
            at = number.get(id(row))
            if at is None:
                content = row[0].tobytes(), b"" if row[1] is None else row[1].tobytes()
                at = number[id(row)] = alike.setdefault(content, len(distinct))
                if at == len(distinct):
                    distinct.append(row)
            class_of.append(at)
        if len(self._known) > 2 * len(wheres) + _SPARE:
            self._known = {id(where): (where, row) for where, row in zip(wheres, found, strict=True)}
            self._rows = dict(self._known.values())
        mask = np.ones((max(1, len(distinct)), len(self._nodes)), dtype=np.bool_)
        preference = np.zeros(mask.shape, dtype=np.int64)
        for k, (nodes, likes) in enumerate(distinct):
            mask[k] = nodes
            if likes is not None:
                preference[k] = likes
        return frozen(mask), frozen(preference), frozen(ints(class_of, (len(class_of),)))

    def _row(self, where: Where) -> _Row:
        known = self._known.get(id(where))
        if known is not None:
            return known[1]
        row = self._rows.get(where)
        if row is None:
            row = self._rows[where] = self._made(where)
        self._known[id(where)] = where, row
        return row

    def _made(self, where: Where) -> _Row:
        mask = np.ones(len(self._nodes), dtype=np.bool_)
        for key, value in where.selector:
            mask &= self._on(self._with.get(key, {}).get(value, []))
        for terms in (*([where.affinity] if where.affinity else ()), *where.volumes):
            some = np.zeros(len(self._nodes), dtype=np.bool_)
            for term in terms:
                some |= self._term(term)
            mask &= some
        for taint, nodes in self._tainted.items():
            if not any(toleration.covers(taint) for toleration in where.tolerations):
                mask[nodes] = False
        likes: IntArray | None = None
        for weight, term in where.preferred:
            likes = np.zeros(len(self._nodes), dtype=np.int64) if likes is None else likes
            likes += weight * self._term(term)
        return mask, likes

    def _on(self, nodes: list[int]) -> BoolArray:
        out = np.zeros(len(self._nodes), dtype=np.bool_)
        out[nodes] = True
        return out

    def _term(self, term: tuple[Requirement, ...]) -> BoolArray:
        """The nodes for which a term holds. An empty one holds for none, as in Kubernetes."""
        out = self._holds(term[0]) if term else self._on([])
        for line in term[1:]:
            out &= self._holds(line)
        return out

    def _holds(self, line: Requirement) -> BoolArray:
        having = self._with.get(line.key, {})
        match line.operator:
            case "In" | "NotIn":
                found = self._on([n for value in line.values for n in having.get(value, ())])
                return found if line.operator == "In" else ~found
            case "Exists" | "DoesNotExist":
                found = self._on([n for nodes in having.values() for n in nodes])
                return found if line.operator == "Exists" else ~found
            case "Gt" | "Lt":
                try:
                    limit = int(line.values[0])
                except (ValueError, IndexError):
                    return self._on([])
                numbers, nodes = self._numbers_of(line.key)
                if line.operator == "Gt":
                    return self._on(nodes[bisect_right(numbers, limit) :])
                return self._on(nodes[: bisect_left(numbers, limit)])
        return self._on([])  # no operator of Kubernetes

    def _numbers_of(self, key: str) -> tuple[list[int], list[int]]:
        """The values of a label that are numbers, rising, and the node of each."""
        if key not in self._numbers:
            pairs: list[tuple[int, int]] = []
            for value, nodes in self._with.get(key, {}).items():
                try:
                    number = int(value)
                except ValueError:
                    continue
                pairs += [(number, n) for n in nodes]
            pairs.sort()
            self._numbers[key] = [number for number, _ in pairs], [n for _, n in pairs]
        return self._numbers[key]

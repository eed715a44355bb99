"""In which pool each node is, and the allocations on them, by the label that names the pool of a node."""

from __future__ import annotations

from collections.abc import Mapping

from diflow.common import keys
from diflow.kube.reflector import Reflector
from diflow.record import untrusted
from diflow.record.allocation import Allocation
from diflow.record.node import NodeRecord


class NodePools:
    """`nodes`: the cache of nodes; `label`: that of the pools. A node without it is in the pool ""."""

    def __init__(self, nodes: Reflector, label: str) -> None:
        self._nodes, self._label = nodes, label
        self._known: tuple[object, Mapping[str, str], bool] = (None, {}, False)

    def by_node(self) -> Mapping[str, str]:
        """The pool of each node."""
        items = self._nodes.items()
        if items is not self._known[0]:
            reads: list[NodeRecord] = [item["read"] for item in items.values()]
            pools = {node.name: untrusted.string(node.labels.get(self._label), most=63) for node in reads}
            self._known = items, pools, len(set(pools.values())) > 1
        return self._known[1]

    def are_several(self) -> bool:
        """Whether the nodes are of several pools."""
        self.by_node()
        return self._known[2]

    def of(self, allocation: Allocation | None) -> str:
        """The pool of the nodes of this allocation; "" if it has none."""
        places = allocation.nodes if allocation is not None else {}
        first = next((name for names in places.values() for name in names if name), "")
        return self.by_node().get(first, "")

    def mark(self, text: str) -> Mapping[str, str | None]:
        """The annotation with the pool of the nodes of this allocation, without a value if they are of several. The
        server writes it into the reports of the round. Nothing on a cluster with one pool."""
        of_node = self.by_node()
        if not self.are_several():
            return {}
        allocation = Allocation.parse(text)
        if allocation is None or not allocation.is_placed:
            return {}
        there = {of_node.get(name, "") for names in allocation.nodes.values() for name in names if name}
        return {keys.POOL: there.pop() if len(there) == 1 else None}

"""An autoscaler, as pods see it: nodes come for pods that a scheduler has found no node for, and empty nodes go.

Written from the documentation of cluster-autoscaler and Karpenter, and not from what diflow makes of pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from diflow.common import quantities
from tests.reports import scheduler
from tests.reports.scheduler import World

Json = dict[str, Any]


@dataclass(frozen=True)
class Pool:
    """Nodes that can be had: at most `most`, each `seconds` after it was asked for."""

    name: str
    allocatable: Mapping[str, Any]
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Json, ...] = ()
    most: int = 100
    seconds: float = 20.0


class Autoscaler:
    """`idle_seconds`: how long a node of a pool stays without a pod. `seen`: the pods for which it has looked for
    nodes, and when first."""

    def __init__(self, *pools: Pool, idle_seconds: float = 30.0) -> None:
        self.pools, self.idle_seconds = pools, idle_seconds
        self.seen: dict[str, float] = {}
        self.asked: list[float] = []
        """When each node was asked for."""
        self._coming: dict[str, tuple[float, Pool]] = {}
        self._there: dict[str, Pool] = {}
        self._idle: dict[str, float] = {}
        self._used: set[str] = set()
        self._made = 0

    def look(self, pods: Iterable[Json], world: World, now: float) -> None:
        """Ask for nodes for the pods for which neither the nodes that are there nor those that come are enough."""
        for name, (_, pool) in self._coming.items():
            _add(world, name, pool)
        self._used.clear()
        for pod in pods:
            if not _is_unschedulable(pod):
                continue
            self.seen.setdefault(pod["metadata"]["name"], now)
            where = next((name for name, node in world.nodes.items() if not _refuses(pod, node, world)), "")
            if not where:
                where = self._ask(pod, world, now)
            if where:
                self._used.add(where)
                quantities.add(world.free[where], {n: -v for n, v in quantities.of_pod(pod["spec"]).items()})
                world.bound.append({**pod, "spec": {**pod["spec"], "nodeName": where}})

    def _ask(self, pod: Json, world: World, now: float) -> str:
        for pool in self.pools:
            if sum(p is pool for p in (*self._there.values(), *(p for _, p in self._coming.values()))) >= pool.most:
                continue
            name = f"{pool.name}-{self._made}"
            _add(world, name, pool)
            if not _refuses(pod, world.nodes[name], world):
                self._made += 1
                self._coming[name] = now + pool.seconds, pool
                self.asked.append(now)
                return name
            del world.nodes[name], world.free[name]
        return ""

    def arrived(self, now: float) -> Sequence[tuple[str, Pool]]:
        """The nodes that have come."""
        out = [(name, pool) for name, (at, pool) in self._coming.items() if now >= at]
        for name, pool in out:
            del self._coming[name]
            self._there[name] = pool
        return out

    def idle(self, world: World, now: float) -> list[str]:
        """The nodes that have had no pod for so long, and get none."""
        for name in [*self._there]:
            if name not in world.nodes:
                del self._there[name]
            elif world.on(name) or name in self._used:
                self._idle.pop(name, None)
            else:
                self._idle.setdefault(name, now)
        out = [name for name in self._there if now - self._idle.get(name, now) >= self.idle_seconds]
        for name in out:
            del self._there[name], self._idle[name]
        return out


def _is_unschedulable(pod: Json) -> bool:
    said = [(c["type"], c["status"], c.get("reason")) for c in pod["status"].get("conditions") or []]
    is_held = (
        pod["spec"].get("nodeName") or pod["spec"].get("schedulingGates") or "deletionTimestamp" in pod["metadata"]
    )
    return not is_held and ("PodScheduled", "False", "Unschedulable") in said


def _add(world: World, name: str, pool: Pool) -> None:
    labels = {"kubernetes.io/hostname": name, **pool.labels}
    world.nodes[name] = {
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": [*pool.taints]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    world.free[name] = quantities.read({"pods": "110", **pool.allocatable})


def _refuses(pod: Json, node: Json, world: World) -> str:
    return scheduler.refuses(pod, node, world)

"""Held, deserved and reclaimable amounts of queues, computed independently of the policies to check their reasons.

Shares are found by bisection, queue by queue. A parent's own jobs are a child of it, numbered after the queues.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from diflow.allocator.model.snapshot import Snapshot

NEAR = 1e-6
TOP = -1


class Tree:
    """The queues of a snapshot if roles hold `replicas` and jobs want `wanted` of each role.

    `used`, `stoppable`, `deserved`, `guarantee`: by queue and resource, descendants included.
    """

    def __init__(self, s: Snapshot, replicas: Any, wanted: Any, is_feasible: Callable[[int], bool]) -> None:
        self.s = s
        parents = set(s.queue_parent.tolist())
        self._own = {q: s.queues + i for i, q in enumerate(sorted(set(s.job_queue.tolist()) & parents - {TOP}))}
        rows, resources = s.queues + len(self._own), len(s.resources)
        self._above = [*s.queue_parent.tolist(), *self._own]
        self._used, self.stoppable = np.zeros((rows, resources)), np.zeros((rows, resources))
        self._wants, self._is_feasible, self._replicas, self._wanted = None, is_feasible, replicas, wanted
        self.guarantee = np.vstack([s.queue_guarantee, np.zeros((len(self._own), resources))])
        self._deserved: Any = None
        for role in range(s.roles):
            job = int(s.role_job[role])
            if s.job_queue[job] < 0 or not replicas[role]:
                continue
            amount = s.role_request[role] * replicas[role]
            for q in self.chain(self.leaf(int(s.job_queue[job]))):
                self._used[q] += amount
                if s.job_preemptible[job]:
                    self.stoppable[q] += amount
        self.used = self._used.astype(np.int64)

    def has_own(self, queue: int) -> bool:
        """Whether the queue has jobs of its own and children."""
        return queue in self._own

    def own(self, queue: int) -> int:
        return self._own[queue]

    def leaf(self, queue: int) -> int:
        """The index for the queue's own jobs."""
        return self._own.get(queue, queue)

    def chain(self, queue: int) -> list[int]:
        """The queue and its ancestors."""
        out = [queue]
        while self._above[out[-1]] >= 0 and self._above[out[-1]] not in out:
            out.append(self._above[out[-1]])
        return out

    def _children(self, queue: int) -> list[int]:
        return [q for q in range(len(self._above)) if (self.chain(q)[1:2] or [TOP])[0] == queue]

    def beside(self, queue: int) -> list[int]:
        """The other queues with the same parent."""
        above = self.chain(queue)[1:2]
        return [q for q in self._children(above[0] if above else TOP) if q != queue]

    def above(self, floor: Any) -> Any:
        """By queue and resource: what preemptible jobs hold above what their queues keep."""
        out = np.zeros_like(self.stoppable)

        def gather(queue: int) -> None:
            for child in self._children(queue):
                gather(child)
                below = self._children(child)
                has = sum((out[c] for c in below), np.zeros(out.shape[1])) if below else self.stoppable[child]
                out[child] = np.minimum(has, np.maximum(self.used[child] - floor[child], 0))

        gather(TOP)
        out[out < NEAR] = 0
        return out

    @property
    def deserved(self) -> Any:
        if self._deserved is None:
            self._divide_all()
        return self._deserved

    def contended(self, queue: int, r: int) -> bool:
        """Whether the queue and its siblings want more than their parent's share."""
        if self._deserved is None:
            self._divide_all()
        above = (self.chain(queue)[1:2] or [TOP])[0]
        return bool(self._short[above][r])

    def _divide_all(self) -> None:
        s, rows = self.s, len(self._above)
        demand = np.zeros((rows, len(s.resources)))
        known: dict[int, bool] = {}
        for role in range(s.roles):
            job = int(s.role_job[role])
            if s.job_queue[job] < 0:
                continue
            mine = s.role_job == job
            if job not in known:
                known[job] = bool(self._replicas[mine].any()) or self._is_feasible(job)
            if known[job]:
                demand[self.leaf(int(s.job_queue[job]))] += s.role_request[role] * float(min(self._wanted[role], 2**40))
        high, low = np.zeros_like(demand), np.zeros_like(demand)

        def gather(queue: int) -> None:
            for child in self._children(queue):
                gather(child)
                below = self._children(child)
                cap = s.queue_cap[child] if child < s.queues else np.inf
                high[child] = np.minimum(demand[child] + sum(high[c] for c in below), cap)
                least = sum((low[c] for c in below), np.zeros(len(s.resources)))
                low[child] = np.minimum(np.maximum(least, self.guarantee[child]), high[child])

        gather(TOP)
        self._deserved = np.zeros_like(demand)
        self._short: dict[int, Any] = {}

        def divide(queue: int, amount: Any) -> None:
            members = self._children(queue)
            if not members:
                return
            weight = np.array([s.queue_weight[q] if q < s.queues else 1.0 for q in members])
            self._short[queue] = high[members].sum(axis=0) > amount + NEAR
            for r in range(len(s.resources)):
                self._deserved[members, r] = part(float(amount[r]), weight, low[members, r], high[members, r])
            for q in members:
                divide(q, self._deserved[q])

        divide(TOP, self._usable())

    def _usable(self) -> Any:
        s = self.s
        usable = np.maximum(s.node_allocatable - s.node_foreign, 0)
        held = np.zeros_like(usable)
        np.add.at(held, s.held_node, s.role_request[s.held_role] * s.held_count[:, None])
        return np.where(s.node_open[:, None], usable, np.minimum(held, usable)).sum(axis=0).astype(np.float64)


def part(total: float, weight: Any, low: Any, high: Any) -> Any:
    """Weighted max-min shares between low and high; members without weight share what is left evenly."""
    low = np.minimum(low, high)
    if low.sum() > total:
        return low * (total / low.sum())
    heavy = weight > 0
    out = low.astype(np.float64)
    out[heavy] = _level(total - low[~heavy].sum(), weight[heavy], low[heavy], high[heavy])
    light = np.ones(int((~heavy).sum()))
    out[~heavy] = _level(total - out[heavy].sum(), light, low[~heavy], high[~heavy])
    return out


def _level(total: float, weight: Any, low: Any, high: Any) -> Any:
    if high.sum() <= total:
        return high
    bottom, top = 0.0, float((high / weight).max(initial=0.0)) + 1.0
    for _ in range(200):
        middle = (bottom + top) / 2
        if np.clip(middle * weight, low, high).sum() > total:
            top = middle
        else:
            bottom = middle
    return np.clip(bottom * weight, low, high)

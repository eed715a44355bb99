"""Deserved shares of queues: weighted max-min fairness for each resource, nested, with guarantees and caps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray, frozen
from diflow.allocator.model.snapshot import Snapshot

ROUNDING = 1e-6
"""Amounts that differ by less are equal: shares are sums of floating-point numbers."""


def water_fill(total: float, weight: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    """Shares x with low ≤ x ≤ high and x = weight·λ in between, whose sum is `total`, or less if `high` limits them.

    If the lows exceed the total, they are scaled down. What is left goes evenly to members of weight 0.
    """
    low = np.minimum(low, high)
    if low.sum() > total:
        return low * (total / low.sum()) if low.sum() > 0 else np.zeros_like(low)
    heavy = weight > 0
    out = low.copy()
    if heavy.any():
        out[heavy] = _level(total - low[~heavy].sum(), weight[heavy], low[heavy], high[heavy])
    if (~heavy).any():
        rest = total - out[heavy].sum()
        out[~heavy] = _level(rest, np.ones(int((~heavy).sum())), low[~heavy], high[~heavy])
    return out


def _level(total: float, weight: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    if high.sum() <= total:
        return high.copy()
    # The levels at which each member starts to rise above its low and reaches its high.
    points = np.unique(np.concatenate([low / weight, high / weight]))
    used = np.clip(points[:, None] * weight, low, high).sum(axis=1)
    at = int(np.searchsorted(used, total))
    if at == 0:
        return low.copy()
    below, above = points[at - 1], points[min(at, len(points) - 1)]
    gap = used[min(at, len(points) - 1)] - used[at - 1]
    level = below + (above - below) * ((total - used[at - 1]) / gap if gap > 0 else 0.0)
    out: FloatArray = np.clip(level * weight, low, high)
    return out


def usable_capacity(snapshot: Snapshot) -> IntArray:
    """R: capacity for all jobs: open nodes less foreign pods, plus what jobs hold on closed nodes. Read-only."""
    s = snapshot
    held = (s.held_role, s.held_node, s.held_count, s.role_request)
    sources = (s.node_allocatable, s.node_foreign, s.node_open, *held)
    return s.memo.get("usable capacity", sources, lambda: frozen(_usable_capacity(s)))


def _usable_capacity(snapshot: Snapshot) -> IntArray:
    usable = np.maximum(snapshot.capacity(), 0)
    if not snapshot.node_open.all():
        held = snapshot.capacity() - snapshot.free_after_termination()
        usable = np.where(snapshot.node_open[:, None], usable, np.minimum(held, usable))
    out: IntArray = usable.sum(axis=0)
    return out


Part = TypeVar("Part", float, FloatArray)


def value_of(part: Part) -> Part:
    """The value of holding so much of a share (0..1), in the same unit: the less a queue holds, the more each further
    part is worth. So what two queues hold is compared by the poorer one first (leximin), unless the other one loses
    many times as much."""
    return part * _EVEN + (1 - (1 - part) ** _POWER) * (1 - _EVEN)


_EVEN = 1 / 1024
_POWER = 8


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """Deserved shares of the queues, and where queues compete.

    | field | shape | meaning |
    |---|---|---|
    | deserved | Q×R | deserved share of each queue, its children's part included |
    | contended | (Q+1)×R | whether a queue's children want more than its share; last row: the queues at the top |
    """

    deserved: FloatArray
    contended: BoolArray


def shares_by(snapshot: Snapshot, within: BoolArray | None = None, *, wanted: IntArray | None = None) -> Shares:
    """The shares for the demand of `wanted` replicas of each role (default: desired) by the jobs in `within` (J;
    default: all). Cached, as they are mostly equal for all snapshots of a cycle. Read-only.
    """
    total = usable_capacity(snapshot)
    wanted = snapshot.role_desired if wanted is None else wanted
    sources = (snapshot.facts, snapshot.queue_weight, snapshot.queue_guarantee)
    known: dict[tuple[bytes, ...], Shares] = snapshot.memo.get("shares", sources, dict)
    everybody = within is None or bool(within.all())
    key = (total.tobytes(), wanted.tobytes(), b"" if everybody or within is None else within.tobytes())
    if key not in known:
        demand = queue_demand(snapshot, wanted, within=None if everybody else within)
        known[key] = shares(snapshot, demand, total)
    return known[key]


def deserved_by(snapshot: Snapshot, within: BoolArray | None = None, *, wanted: IntArray | None = None) -> FloatArray:
    """Q×R: the deserved share of each queue. As `shares_by`."""
    return shares_by(snapshot, within, wanted=wanted).deserved


def deserved(snapshot: Snapshot, demand: IntArray) -> FloatArray:
    """Q×R: the deserved share of each queue. As `shares`."""
    return shares(snapshot, demand).deserved


def shares(snapshot: Snapshot, demand: IntArray, total: IntArray | None = None) -> Shares:
    """The shares of all queues. `demand` (Q×R): requests of each queue's own jobs.

    A parent divides its share among its children and its own jobs, which count as one more child of weight 1.
    """
    queues, resources = demand.shape
    children: list[list[int]] = [[] for _ in range(queues)]
    roots: list[int] = []
    for q in range(queues):
        chain, above = {q}, int(snapshot.queue_parent[q])
        while above >= 0 and above not in chain:
            chain.add(above)
            above = int(snapshot.queue_parent[above])
        if above >= 0 or snapshot.queue_parent[q] < 0:
            # Queues in a cycle of parents count as queues at the top.
            roots.append(q)
        else:
            children[int(snapshot.queue_parent[q])].append(q)
    wants = np.zeros((queues, resources))
    floors = np.zeros((queues, resources))

    def gather(q: int) -> None:
        for child in children[q]:
            gather(child)
        below = sum((wants[c] for c in children[q]), np.zeros(resources))
        low = sum((floors[c] for c in children[q]), np.zeros(resources))
        wants[q] = np.minimum(demand[q] + below, snapshot.queue_cap[q])
        floors[q] = np.minimum(np.maximum(low, snapshot.queue_guarantee[q]), wants[q])

    out = np.zeros((queues, resources))
    contended = np.zeros((queues + 1, resources), dtype=np.bool_)

    def divide(parent: int, members: list[int], amount: FloatArray, own: FloatArray | None) -> None:
        if not members:
            return
        weight = snapshot.queue_weight[members]
        low, high = floors[members], wants[members]
        if own is not None and own.any():
            weight = np.append(weight, 1.0)
            low, high = np.vstack([low, np.zeros(resources)]), np.vstack([high, own])
        contended[parent] = high.sum(axis=0) > amount + ROUNDING
        if not contended[parent].any():
            share = high
        else:
            parts = (water_fill(float(amount[r]), weight, low[:, r], high[:, r]) for r in range(resources))
            share = np.column_stack(list(parts))
        out[members] = share[: len(members)]
        for q in members:
            divide(q, children[q], out[q], np.minimum(demand[q], snapshot.queue_cap[q]).astype(np.float64))

    for q in roots:
        gather(q)
    divide(-1, roots, (usable_capacity(snapshot) if total is None else total).astype(np.float64), None)
    return Shares(frozen(out), frozen(contended))


def queue_demand(snapshot: Snapshot, wanted: IntArray, *, within: BoolArray | None = None) -> IntArray:
    """Q×R: requests of the jobs of each queue with `wanted` replicas of each role; `within` (J): only these jobs."""
    by_job = snapshot.demand_by_job(wanted)
    if within is not None:
        by_job = by_job * within[:, None]
    out = np.zeros((snapshot.queues, len(snapshot.resources)), dtype=np.int64)
    known = snapshot.job_queue >= 0
    for r in range(out.shape[1]):
        np.add.at(out[:, r], snapshot.job_queue[known], by_job[known, r])
    return out


def dominant(amount: Sequence[float], total: Sequence[int]) -> float:
    """Dominant share (DRF) of one amount: its largest fraction of any resource. `total` is at least 1."""
    return max(a / t for a, t in zip(amount, total, strict=True))


def dominant_share(amount: IntArray, total: IntArray) -> FloatArray:
    """Dominant share (DRF) of each row of amounts, as `dominant`."""
    out: FloatArray = (amount / total).max(axis=-1)
    return out

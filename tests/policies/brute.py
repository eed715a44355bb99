"""Brute force over small instances: every configuration of every job, on every set of nodes.

It uses the policy's values for a count on one node and on several, and no part of its search.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np

from diflow.allocator.model.plan import Plan, make_plan
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.goodput.policy import GoodputPolicy
from diflow.allocator.policies.waiting import first_reasons


def packings(free: tuple[int, ...], count: int) -> Iterator[tuple[int, ...]]:
    """Every placement of `count` replicas of size 1 on nodes with this free capacity."""
    if len(free) == 1:
        if free[0] >= count:
            yield (count,)
        return
    for here in range(min(free[0], count) + 1):
        for rest in packings(free[1:], count - here):
            yield (here, *rest)


def best_value(policy: GoodputPolicy, snapshot: Snapshot) -> float:
    """The best value by the policy's measure over all placements of all jobs, if no job runs."""
    nodes = snapshot.nodes
    values: list[dict[tuple[int, bool], float]] = []
    for j in range(snapshot.jobs):
        options: dict[tuple[int, bool], float] = {}
        for count in range(int(snapshot.role_min[j]), int(snapshot.role_max[j]) + 1):
            if not _known_configuration(policy, snapshot, j, count):
                continue
            for spread in (False, True):
                if (not spread and count > 4) or (spread and count == 1):
                    continue
                if spread and count <= 4 and count != snapshot.role_min[j]:
                    continue
                options[count, spread] = policy.measure(snapshot, _alone(snapshot, j, count, spread=spread))
        values.append(options)

    @cache
    def best(j: int, free: tuple[int, ...]) -> float:
        if j == snapshot.jobs:
            return 0.0
        top = best(j + 1, free)
        for (count, spread), value in values[j].items():
            for places in packings(free, count):
                if (sum(p > 0 for p in places) > 1) != spread:
                    continue
                left = tuple(sorted((f - p for f, p in zip(free, places, strict=True)), reverse=True))
                top = max(top, value + best(j + 1, left))
        return top

    return best(0, (4,) * nodes)


def _known_configuration(policy: GoodputPolicy, snapshot: Snapshot, job: int, count: int) -> bool:
    """Whether the table has this count: growth is bounded, and beyond one node there are only whole nodes."""
    from diflow.allocator.policies.goodput.case import Case

    case = Case(snapshot, policy._settings, policy._tables)
    row = case.table.replicas[job]
    return bool((row == count).any())


def _alone(snapshot: Snapshot, job: int, count: int, *, spread: bool) -> Plan:
    if not spread:
        places = [(0, count)]
    elif count <= 4:
        places = [(0, 1), (1, count - 1)]
    else:
        places = [(n, min(4, count - 4 * n)) for n in range((count + 3) // 4)]
    node, amount = (np.array(part, dtype=np.int64) for part in zip(*places, strict=True))
    role = np.full(len(node), job, dtype=np.int64)
    return make_plan(snapshot, "alone", role, node, amount, reasons=first_reasons(snapshot))

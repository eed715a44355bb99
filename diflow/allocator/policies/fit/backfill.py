"""Backfill: preemptible jobs grow into what is left, up to their maximum, on as few nodes as possible.

A resize restarts all pods of a preemptible job. Jobs that start or restart in this plan share what is left evenly; any
other running job takes part only if it gains enough to justify its restart.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from diflow.allocator.model.arrays import IntArray
from diflow.allocator.model.domains import spread
from diflow.allocator.model.ledger import Ledger, Placement

MOST_ATTEMPTS = 8
"""Attempts that leave out one job that gains too little; then all such jobs are left out at once."""

_Given = list[tuple[int, int, IntArray, IntArray]]


@dataclass(frozen=True, slots=True)
class Member:
    """A job that takes part. `worth`: replicas it must gain, unless it reaches its maximum; 0 if it restarts anyway."""

    job: int
    worth: float = 0.0


def roles_that_scale(ledger: Ledger, job: int) -> list[int]:
    s = ledger.snapshot
    return [r for r in ledger.roles_of(job) if s.role_max[r] > s.role_min[r]]


def size(ledger: Ledger, job: int) -> int:
    """Replicas of the roles that scale."""
    return sum(int(ledger.replicas[r]) for r in roles_that_scale(ledger, job))


def at_most(ledger: Ledger, job: int) -> bool:
    return all(ledger.replicas[r] >= ledger.snapshot.role_max[r] for r in roles_that_scale(ledger, job))


def drop_to_minimum(ledger: Ledger, job: int) -> None:
    """Release what is above the minimum, first on the nodes where the job has the fewest replicas."""
    for role in ledger.roles_of(job):
        spare = int(ledger.replicas[role] - ledger.snapshot.role_min[role])
        if spare <= 0:
            continue
        nodes, counts = ledger.placement(role)
        order = np.lexsort((-nodes, counts))
        before = np.cumsum(counts[order]) - counts[order]
        drop = np.clip(spare - before, 0, counts[order])
        ledger.give(job, role, nodes[order][drop > 0], drop[drop > 0])


def fill(ledger: Ledger, members: Sequence[Member]) -> set[int]:
    """Grow members replica by replica, the smallest first. Returns the jobs that would gain too little; they get
    nothing. `members` are of one priority, in the order of their age."""
    left_out: set[int] = set()
    gained: dict[int, _Given] = {m.job: [] for m in members}
    sizes = {m.job: size(ledger, m.job) for m in members}
    attempt = 0
    while True:
        _pour(ledger, {m.job: gained[m.job] for m in members if m.job not in left_out})
        poor = [
            m.job
            for m in members
            if m.worth > 0 and m.job not in left_out and not _is_worth(ledger, m, size(ledger, m.job) - sizes[m.job])
        ]
        if not poor:
            return left_out
        attempt += 1
        # Without the youngest of them, the others may gain enough.
        worst = poor[-1:] if attempt < MOST_ATTEMPTS else poor
        for job in worst:
            _undo(ledger, gained[job])
        left_out |= set(worst)


def _is_worth(ledger: Ledger, member: Member, gain: int) -> bool:
    return gain >= member.worth or (gain > 0 and at_most(ledger, member.job))


def put(ledger: Ledger, job: int, want: dict[int, int]) -> bool:
    """Place a whole gang, all or nothing: on its nodes in the snapshot as far as it fits there, then on few others; in
    the smallest domain of the topology that holds it."""
    for nodes in ledger.choices(job, want):
        with ledger.confined(nodes):
            if _put(ledger, job, want):
                return True
    return False


def _put(ledger: Ledger, job: int, want: dict[int, int]) -> bool:
    taken: _Given = []
    for role in sorted((r for r, count in want.items() if count > 0), key=lambda r: (-ledger.weight(r), r)):
        if not _add(ledger, job, role, want[role], taken):
            _undo(ledger, taken)
            return False
    return True


def tidy(ledger: Ledger, jobs: Iterable[int]) -> bool:
    """Place these jobs again, the largest first, if they then need fewer nodes or domains of the topology. Returns
    whether any of them moved."""
    chosen = list(jobs)
    if not ledger.facts.has_topology:
        return _tidy(ledger, chosen)
    moved = _tidy(ledger, chosen)
    order = sorted(chosen, key=lambda j: (-size(ledger, j), j))
    # A job that moves may make room for another one. Each move needs fewer domains or nodes, so this ends.
    while any(_tidy(ledger, [j]) for j in order):
        moved = True
    return moved


def _tidy(ledger: Ledger, chosen: list[int]) -> bool:
    before = _extent(ledger, chosen)
    if before[-1] <= len(chosen):
        return False
    want = {j: {r: int(ledger.replicas[r]) for r in ledger.roles_of(j)} for j in chosen}
    old: dict[int, Placement] = {j: ledger.release(j) for j in chosen}
    if all(put(ledger, j, want[j]) for j in sorted(chosen, key=lambda j: -sum(want[j].values()))) and (
        _extent(ledger, chosen) < before
    ):
        return True
    for j in chosen:
        ledger.release(j)
    for j in chosen:
        ledger.restore(j, old[j])
    return False


def _extent(ledger: Ledger, jobs: Iterable[int]) -> tuple[int, ...]:
    """How many domains of each level, the widest first, and at last how many nodes the jobs need, each by itself."""
    nodes = [sorted(set(ledger.nodes_of(job).tolist())) for job in jobs]
    levels = [spread(ledger.facts.domains, mine) for mine in nodes] if ledger.facts.has_topology else []
    return (*(sum(counts) for counts in zip(*levels, strict=True)), sum(map(len, nodes)))


def _pour(ledger: Ledger, gained: dict[int, _Given]) -> None:
    """Grow the smallest job by a replica until none can grow. What each job gains is added to its list."""
    s = ledger.snapshot
    lacking = {j: [r for r in roles_that_scale(ledger, j) if ledger.replicas[r] < s.role_max[r]] for j in gained}
    if _all_at_once(ledger, lacking, gained):
        return
    heap = [(size(ledger, j), place, j) for place, j in enumerate(gained) if lacking[j]]
    heapq.heapify(heap)
    while heap:
        count, place, j = heapq.heappop(heap)
        # Of several elastic roles, the one furthest below its maximum.
        if len(lacking[j]) > 1:
            lacking[j].sort(key=lambda r: (ledger.replicas[r] - s.role_max[r], r))
        for role in list(lacking[j]):
            if _add(ledger, j, role, 1, gained[j]):
                if ledger.replicas[role] >= s.role_max[role]:
                    lacking[j].remove(role)
                break
            lacking[j].remove(role)
        else:
            continue
        heapq.heappush(heap, (count + 1, place, j))


def _all_at_once(ledger: Ledger, lacking: dict[int, list[int]], gained: dict[int, _Given]) -> bool:
    """Grow all jobs to their maximum if everything fits, which is common; else change nothing."""
    most = ledger.snapshot.role_max
    begun: dict[int, _Given] = {}
    for j, roles in lacking.items():
        for r in roles:
            if not _add(ledger, j, r, int(most[r] - ledger.replicas[r]), begun.setdefault(j, [])):
                for given in begun.values():
                    _undo(ledger, given)
                return False
    for j, given in begun.items():
        gained[j] += given
    return True


def _add(ledger: Ledger, job: int, role: int, count: int, given: _Given) -> bool:
    """Place `count` more replicas of a role, all or none: on its nodes in the snapshot, its current ones, others."""
    low, high = ledger.held_range(role)
    if high > low or ledger.replicas[role]:
        # A single replica cannot be placed in part, so its caps are enough to check here.
        if count > (ledger.queue_headroom(job, role) if count == 1 else ledger.most(job, role)):
            return False
        count -= _add_near(ledger, job, role, count, given)
    if count:
        found = ledger.try_gang(job, {role: count})
        if found is None:
            return False
        given.append((job, role, *found[role]))
    return True


def _add_near(ledger: Ledger, job: int, role: int, count: int, given: _Given) -> int:
    """Place up to `count` replicas on the role's nodes in the snapshot, up to what it had there, then on its current
    nodes. Returns how many were placed."""
    low, high = ledger.held_range(role)
    s = ledger.snapshot
    left = count
    if high > low:
        was, had = s.held_node[low:high], s.held_count[low:high]
        for i in np.lexsort((was, -had)).tolist() if len(was) > 1 else (0,):
            node = int(was[i])
            free = int(had[i]) - _at(ledger, role, node)
            left -= _add_at(ledger, job, role, given, node=node, count=min(left, free))
    nodes, counts = ledger.placement(role)
    if left and len(nodes):
        for node in nodes[np.lexsort((nodes, -counts))].tolist() if len(nodes) > 1 else nodes.tolist():
            left -= _add_at(ledger, job, role, given, node=node, count=left)
    return count - left


def _add_at(ledger: Ledger, job: int, role: int, given: _Given, *, node: int, count: int) -> int:
    if count <= 0:
        return 0
    here = min(count, int(ledger.slots_for(job, role)[node]))
    if here > 0:
        given.append((job, role, np.array([node]), np.array([here])))
        ledger.take(*given[-1])
    return max(here, 0)


def _at(ledger: Ledger, role: int, node: int) -> int:
    nodes, counts = ledger.placement(role)
    at = int(nodes.searchsorted(node))
    return int(counts[at]) if at < len(nodes) and nodes[at] == node else 0


def _undo(ledger: Ledger, given: _Given) -> None:
    while given:
        ledger.give(*given.pop())

"""What the goodput policy knows beside reports: the pools of nodes, and each job's gang, allocation, and whether it may
change."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diflow.allocator.model.arrays import BoolArray, IntArray
from diflow.allocator.model.domains import most_in_one
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.settings import PolicySettings
from diflow.allocator.policies.waiting import empty_slots
from diflow.common.names import UNKNOWN_POOL, pool_number

MOST_DISTINCT_POOLS = 16
"""Pools among which a job's is chosen: more than there are types of GPU in a cluster. The table of a job has a row for
each, so if every node were a pool (another label than that of GPUs), it would outgrow the memory. Above this number
pools are not distinguished."""


@dataclass(frozen=True, slots=True, eq=False)
class Pools:
    """The P pools among which a job's is chosen: their `numbers` and `speeds`, and the pool `of_node` of each node (N).

    If pools are not distinguished, P is 1: every node is of that pool, whose number is UNKNOWN_POOL, and observations
    count there whatever their pool.
    """

    numbers: tuple[int, ...]
    speeds: tuple[float, ...]
    of_node: IntArray

    @property
    def count(self) -> int:
        return len(self.numbers)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for pools of the same numbers and speeds."""
        return self.numbers, self.speeds

    def sums(self, amount: IntArray) -> IntArray:
        """The sum of these amounts (N×R) over the nodes of each pool (P×R)."""
        out: IntArray = (self.of_node == np.arange(self.count)[:, None]).astype(np.int64) @ amount
        return out


def pools_of(snapshot: Snapshot) -> Pools:
    """The pools of a snapshot, cached in its memo."""
    s = snapshot

    def find() -> Pools:
        if not has_pools(s):
            return Pools((UNKNOWN_POOL,), (1.0,), np.zeros(s.nodes, dtype=np.int64))
        return Pools(tuple(map(pool_number, s.pool_names)), tuple(s.pool_speed.tolist()), s.node_pool)

    return s.memo.get("goodput pools", (s.pool_names, s.pool_speed, s.node_pool), find)


@dataclass(frozen=True, slots=True, eq=False)
class Gangs:
    """What does not depend on the allocation, for each job (J): its elastic role, the bounds of its replicas, the total
    of its other roles (`others`, J×R), the request of an elastic replica (`request`, J×R), and how many of them fit on
    one empty node. The lists equal the arrays.
    """

    elastic: IntArray
    low: IntArray
    high: IntArray
    desired: IntArray
    others: IntArray
    request: IntArray
    per_node: IntArray
    elastic_list: list[int]
    low_list: list[int]
    per_node_list: list[int]
    wants: list[dict[int, int]]
    """Desired replicas of each role of each job; placement replaces the elastic role's."""


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """For each job (J): elastic replicas held, on how many nodes, whether it runs, whether it may change, and its pool:
    where it runs (`present_pool`), and the one that the plan is for (`pool`); -1: none, as for all jobs if pools are
    not distinguished."""

    held: IntArray
    held_nodes: IntArray
    running: BoolArray
    free_to_move: BoolArray
    pool: IntArray
    present_pool: IntArray

    @property
    def changes_pool(self) -> BoolArray:
        """The running jobs for which another pool was chosen (J)."""
        out: BoolArray = (self.present_pool >= 0) & (self.pool >= 0) & (self.pool != self.present_pool)
        return out


def gangs_of(snapshot: Snapshot, settings: PolicySettings) -> Gangs:
    """The gangs of a snapshot, cached in its memo for all snapshots that differ only in the allocation."""
    sources = (snapshot.facts, settings, snapshot.node_allocatable, snapshot.node_foreign)
    return snapshot.memo.get("goodput gangs", sources, lambda: _find_gangs(snapshot, settings))


def _find_gangs(snapshot: Snapshot, settings: PolicySettings) -> Gangs:
    facts = snapshot.facts
    elastic = facts.starts[:-1].copy()
    # The first role with minimum below maximum; else the job's first role.
    candidates = (snapshot.role_max > snapshot.role_min).nonzero()[0][::-1]
    elastic[snapshot.role_job[candidates]] = candidates
    low = snapshot.role_min[elastic]
    high = np.minimum(snapshot.role_max[elastic], np.maximum(settings.most_replicas, low))
    high = _within_domains(snapshot, elastic, low, high)
    count = np.clip(snapshot.role_desired, snapshot.role_min, snapshot.role_max)
    counts = count.tolist()
    count[elastic] = 0
    per_node = _per_node(snapshot, elastic)
    return Gangs(
        elastic=elastic,
        low=low,
        high=high,
        desired=np.clip(snapshot.role_desired[elastic], low, high),
        others=snapshot.demand_by_job(count),
        request=snapshot.role_request[elastic].reshape(snapshot.jobs, len(snapshot.resources)),
        per_node=per_node,
        elastic_list=elastic.tolist(),
        low_list=low.tolist(),
        per_node_list=per_node.tolist(),
        wants=[{role: counts[role] for role in roles} for roles in facts.roles_of],
    )


def _within_domains(snapshot: Snapshot, elastic: IntArray, low: IntArray, high: IntArray) -> IntArray:
    """`high` (J), for jobs that require a domain at most what the largest one of them holds if it is empty."""
    facts = snapshot.facts
    if not (snapshot.job_required >= 0).any():
        return high
    most = [
        high[j] if level < 0 else most_in_one(snapshot, level, empty_slots(snapshot, int(elastic[j])))
        for j, level in enumerate(facts.required)
    ]
    return np.maximum(np.minimum(high, np.array(most, dtype=np.int64)), low)


def _per_node(snapshot: Snapshot, elastic: IntArray) -> IntArray:
    """Replicas of each job's elastic role that fit on the largest empty node, at least 1 (J)."""
    shapes, most = snapshot.facts.shape, {}
    out = []
    for role in elastic.tolist():
        shape = shapes[role]
        if shape not in most:
            most[shape] = max(1, min(int(empty_slots(snapshot, role).max(initial=0)), 2**31))
        out.append(most[shape])
    return np.array(out, dtype=np.int64)


def view_of(snapshot: Snapshot, gangs: Gangs, considered: BoolArray | None) -> View:
    """The view of a snapshot. `considered` (J): the only jobs that may change."""
    held = snapshot.held_by_role()
    running = snapshot.jobs_of(snapshot.held_role)
    # Running gangs below their minimum (pods lost, minimum raised) are completed, and those that could not give up what
    # is above their maximum stay; jobs without a queue do not change.
    stays = ~snapshot.job_preemptible | snapshot.job_pinned
    stays |= snapshot.jobs_of((held < snapshot.role_min) | (held > snapshot.role_max))
    free = (snapshot.job_queue >= 0) & ~(running & stays)
    free &= running | ~_takes_nothing(snapshot, running)
    if considered is not None:
        free &= considered
    present = _pools(snapshot, running, gangs.elastic)
    return View(
        held=held[gangs.elastic],
        held_nodes=np.bincount(snapshot.held_role, minlength=snapshot.roles)[gangs.elastic],
        running=running,
        free_to_move=free,
        pool=present,
        present_pool=present,
    )


def _takes_nothing(snapshot: Snapshot, running: BoolArray) -> BoolArray:
    """Jobs that start only in free capacity: those that take nothing from others, and those of a namespace that takes
    nothing more from some job that runs. Here no job takes from a certain other one (J)."""
    s = snapshot
    if not len(s.spared):
        return s.modest
    out: BoolArray = s.modest | np.isin(s.owners, s.spared[running[s.spared[:, 1]], 0])
    return out


def has_pools(snapshot: Snapshot) -> bool:
    """Whether the nodes are of several pools, and not of more than a policy chooses among."""
    return 1 < len(snapshot.pool_names) <= MOST_DISTINCT_POOLS and bool(
        (snapshot.node_pool[1:] != snapshot.node_pool[:-1]).any()
    )


def _pools(snapshot: Snapshot, running: BoolArray, elastic: IntArray) -> IntArray:
    """The pool where the elastic role of each job runs (J); -1 if it does not run, or if there is only one pool."""
    out = np.full(snapshot.jobs, -1, dtype=np.int64)
    if not has_pools(snapshot):
        return out
    at = np.searchsorted(snapshot.held_role, elastic)
    there = np.minimum(at, max(len(snapshot.held_role) - 1, 0))
    holds = running & (at < len(snapshot.held_role))
    holds[holds] = snapshot.held_role[there[holds]] == elastic[holds]
    out[holds] = snapshot.node_pool[snapshot.held_node[there[holds]]]
    return out

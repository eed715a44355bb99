"""What the goodput policy sees of each job beside its reports: its gang, what it holds, and whether that may change."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diflow.allocator.model.arrays import BoolArray, IntArray
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.settings import PolicySettings
from diflow.allocator.policies.waiting import empty_slots


@dataclass(frozen=True, slots=True, eq=False)
class Gangs:
    """Per job, whoever holds what: its elastic role, bounds, what its other roles cost, what one node takes of it.

    `amounts` (J×R) is what one replica of the elastic role asks for; the lists are the arrays beside them.
    """

    elastic: IntArray
    low: IntArray
    high: IntArray
    wanted: IntArray
    others: IntArray
    request: IntArray
    per_node: IntArray
    elastic_list: list[int]
    low_list: list[int]
    per_node_list: list[int]
    wants: list[dict[int, int]]
    """Replicas that each role of the job gets, where its elastic one does not decide."""


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """Per job: what it holds, and whether that may change."""

    held: IntArray
    held_nodes: IntArray
    running: BoolArray
    free_to_move: BoolArray
    pool: IntArray


def gangs_of(snapshot: Snapshot, settings: PolicySettings) -> Gangs:
    """The gangs of a snapshot; the same for all snapshots that differ in what is held alone."""
    sources = (snapshot.facts, settings, snapshot.node_allocatable, snapshot.node_foreign)
    return snapshot.memo.get("goodput gangs", sources, lambda: _find_gangs(snapshot, settings))


def _find_gangs(snapshot: Snapshot, settings: PolicySettings) -> Gangs:
    facts = snapshot.facts
    elastic = facts.starts[:-1].copy()
    # The first role that may vary; the first of all when none may.
    candidates = (snapshot.role_max > snapshot.role_min).nonzero()[0][::-1]
    elastic[snapshot.role_job[candidates]] = candidates
    low = snapshot.role_min[elastic]
    high = np.minimum(snapshot.role_max[elastic], np.maximum(settings.most_replicas, low))
    count = np.clip(snapshot.role_desired, snapshot.role_min, snapshot.role_max)
    counts = count.tolist()
    count[elastic] = 0
    per_node = _per_node(snapshot, elastic)
    return Gangs(
        elastic=elastic,
        low=low,
        high=high,
        wanted=np.clip(snapshot.role_desired[elastic], low, high),
        others=snapshot.demand_by_job(count),
        request=snapshot.role_request[elastic].reshape(snapshot.jobs, len(snapshot.resources)),
        per_node=per_node,
        elastic_list=elastic.tolist(),
        low_list=low.tolist(),
        per_node_list=per_node.tolist(),
        wants=[{role: counts[role] for role in roles} for roles in facts.roles_of],
    )


def _per_node(snapshot: Snapshot, elastic: IntArray) -> IntArray:
    """The most replicas of each job's elastic role that one node could take."""
    shapes, most = snapshot.facts.shape, {}
    out = []
    for role in elastic.tolist():
        shape = shapes[role]
        if shape not in most:
            most[shape] = max(1, min(int(empty_slots(snapshot, role).max(initial=0)), 2**31))
        out.append(most[shape])
    return np.array(out, dtype=np.int64)


def view_of(snapshot: Snapshot, gangs: Gangs, considered: BoolArray | None) -> View:
    """What its jobs hold. `considered` (J): the only jobs that anything is decided on."""
    held = snapshot.held_by_role()
    running = snapshot.jobs_of(snapshot.held_role)
    # Held gangs that are not whole (pods lost, minimum raised) and jobs without a queue are left as they are.
    stays = ~snapshot.job_preemptible | snapshot.job_pinned
    stays |= snapshot.jobs_of((held < snapshot.role_min) | (held > snapshot.role_max))
    free = (snapshot.job_queue >= 0) & ~(running & stays)
    if considered is not None:
        free &= considered
    return View(
        held=held[gangs.elastic],
        held_nodes=np.bincount(snapshot.held_role, minlength=snapshot.roles)[gangs.elastic],
        running=running,
        free_to_move=free,
        pool=_pools(snapshot, running, gangs.elastic),
    )


def _pools(snapshot: Snapshot, running: BoolArray, elastic: IntArray) -> IntArray:
    """The pool that each job is confined to: where it runs, or the fastest that still has room; -1 with one pool."""
    out = np.full(snapshot.jobs, -1, dtype=np.int64)
    pools = len(snapshot.pool_names)
    if pools <= 1 or (snapshot.node_pool[1:] == snapshot.node_pool[:-1]).all():
        return out
    first = np.searchsorted(snapshot.role_job[snapshot.held_role], np.arange(snapshot.jobs))
    out[running] = snapshot.node_pool[snapshot.held_node[first[running]]]
    room = np.zeros((pools, len(snapshot.resources)))
    np.add.at(
        room,
        snapshot.node_pool,
        np.where(snapshot.node_open[:, None], np.maximum(snapshot.free_after_termination(), 0), 0),
    )
    total = np.maximum(room.sum(axis=0), 1.0)
    ok: dict[tuple[int, bytes], BoolArray] = {}
    for j in np.flatnonzero(~running).tolist():
        role = int(elastic[j])
        request = snapshot.role_request[role]
        key = (int(snapshot.role_class[role]), request.tobytes())
        if key not in ok:
            nodes = empty_slots(snapshot, role) > 0
            ok[key] = np.bincount(snapshot.node_pool[nodes], minlength=pools) > 0
        need = request * snapshot.role_min[role]
        spare = ((room - need) / total).min(axis=1)
        score = np.where(ok[key], snapshot.pool_speed * np.where(spare >= 0, 1.0 + spare, 0.1), -1.0)
        best = int(score.argmax())
        out[j] = best
        room[best] -= need
    return out

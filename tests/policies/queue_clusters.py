"""Random clusters with queues: cpu, GPUs, memory and pods, teams with users, and unfair allocations.

Every pod requests cpu, memory and one of a node's pods, of which most clusters have plenty. In half of the clusters one
queue holds nearly everything. Jobs are few and nodes small, so that thousands of clusters are checked a minute.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from diflow.allocator.model.arrays import IntArray
from diflow.allocator.model.ledger import Ledger
from diflow.allocator.model.snapshot import UNLIMITED, Snapshot
from tests.policies.generators import limits_changed

RESOURCES = ("cpu", "gpu", "memory", "pods")
PLENTY = 110
"""Pods of a node: the kubelet's default."""
NOW = 10_000.0


def queue_clusters(seed: int, count: int, *, jobs: int = 9, nodes: int = 4) -> Iterator[Snapshot]:
    """`count` random clusters; the same for the same seed."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield queue_cluster(rng, jobs=jobs, nodes=nodes)


def queue_cluster(rng: np.random.Generator, *, jobs: int = 9, nodes: int = 4) -> Snapshot:
    j, n = int(rng.integers(2, jobs + 1)), int(rng.integers(1, nodes + 1))
    parent = _tree(rng)
    q = len(parent)
    allocatable = _nodes(rng, n)
    total = allocatable.sum(axis=0)
    low = _any_of(rng, (1, 1, 1, 1, 2, 2, 3, 5), j)
    high = low + _any_of(rng, (0, 0, 1, 3, 7, 12), j)
    created = NOW - rng.integers(1, 2_500 if rng.random() < 0.35 else 280, j).astype(np.float64)
    queue = _queues_of_jobs(rng, parent, j)
    empty = np.zeros(0, dtype=np.int64)
    snapshot = Snapshot(
        now_seconds=NOW,
        resources=RESOURCES,
        node_names=tuple(f"n{i}" for i in range(n)),
        node_allocatable=allocatable,
        node_foreign=_others(rng, allocatable),
        node_releasing=np.zeros_like(allocatable),
        node_open=rng.random(n) < (0.95 if rng.random() < 0.2 else 1.0),
        node_pool=np.zeros(n, dtype=np.int64),
        pool_names=("a",),
        pool_speed=np.ones(1),
        queue_names=tuple(f"q{i}" for i in range(q)),
        queue_parent=parent,
        queue_weight=_any_of(rng, (0, 1, 1, 1, 2, 5), q).astype(np.float64),
        queue_guarantee=_guarantees(rng, q, total),
        queue_cap=_caps(rng, q, total),
        job_names=tuple(f"j{i}" for i in range(j)),
        job_queue=queue,
        job_queue_name=tuple(f"q{i}" for i in queue),
        job_priority=_any_of(rng, (0, 0, 1, 2) if rng.random() < 0.5 else (0,), j),
        job_preemptible=rng.random(j) < 0.85,
        job_pinned=rng.random(j) < (0.2 if rng.random() < 0.1 else 0.0),
        job_created_seconds=created,
        job_started_seconds=np.full(j, -1.0),
        job_changed_seconds=np.full(j, -1.0),
        job_restarts=_any_of(rng, (0, 0, 0, 1, 2, 3), j),
        job_service_seconds=np.zeros(j),
        job_profile=(None,) * j,
        role_names=("worker",) * j,
        role_job=np.arange(j),
        role_request=_requests(rng, j),
        role_min=low,
        role_max=high,
        role_desired=np.where(rng.random(j) < 0.7, high, np.minimum(high, low + 1)),
        role_class=(rng.random(j) < 0.1).astype(np.int64),
        class_nodes=np.vstack([np.ones(n, dtype=np.bool_), rng.random(n) < 0.7]),
        class_preference=np.zeros((2, n), dtype=np.int64),
        held_role=empty,
        held_node=empty,
        held_count=empty,
        job_refusal=("",) * j,
        level_names=(),
        domain_names=(),
        node_domain=np.zeros((0, n), dtype=np.int64),
        job_required=np.full(j, -1, dtype=np.int64),
        role_unit=np.ones(j, dtype=np.int64),
        job_modest=np.zeros(j, dtype=np.bool_),
        spared=np.zeros((0, 3), dtype=np.int64),
    )
    held = _with_holders(rng, snapshot)
    # A separate generator, so that the other draws stay as they were.
    own = rng.spawn(1)[0]
    return limits_changed(own, held) if own.random() < 0.15 else held


def _any_of(rng: np.random.Generator, values: tuple[int, ...], size: int) -> IntArray:
    return np.array(values, dtype=np.int64)[rng.integers(0, len(values), size)]


def _tree(rng: np.random.Generator) -> IntArray:
    """Parents of teams and users; teams come first. A third of the trees has one level."""
    teams = int(rng.integers(2, 4))
    users = 0 if rng.random() < 0.33 else int(rng.integers(1, 5))
    return np.concatenate([np.full(teams, -1), rng.integers(0, teams, users)]).astype(np.int64)


def _queues_of_jobs(rng: np.random.Generator, parent: IntArray, jobs: int) -> IntArray:
    """Mostly the leaves; in a quarter of the clusters teams with users have jobs of their own as well."""
    queues = np.arange(len(parent))
    leaves = queues if rng.random() < 0.25 else queues[~np.isin(queues, parent)]
    out: IntArray = leaves[rng.integers(0, len(leaves), jobs)].astype(np.int64)
    if rng.random() < 0.03:
        out[int(rng.integers(jobs))] = -1
    return out


def _nodes(rng: np.random.Generator, nodes: int) -> IntArray:
    """In most clusters GPUs or cpu are scarce; in some memory as well, or pods."""
    cpu = _any_of(rng, (4, 8, 8, 16), nodes)
    gpu = _any_of(rng, (0, 2, 4), nodes) if rng.random() < 0.5 else np.full(nodes, 4)
    memory = _any_of(rng, (8, 16), nodes) if rng.random() < 0.4 else np.full(nodes, 512)
    pods = _any_of(rng, (3, 5, 8), nodes) if rng.random() < 0.2 else np.full(nodes, PLENTY)
    return np.column_stack([cpu, gpu, memory, pods]).astype(np.int64)


def _requests(rng: np.random.Generator, jobs: int) -> IntArray:
    """Requests of several sizes in half of the clusters, else one cpu per pod, with a GPU for some."""
    one = np.ones(jobs, dtype=np.int64)
    several = rng.random() < 0.5
    cpu = _any_of(rng, (1, 1, 2, 3), jobs) if several else one
    gpu = _any_of(rng, (0, 0, 1, 1, 2) if several else (0, 1), jobs) if rng.random() < 0.7 else 0 * one
    memory = _any_of(rng, (1, 2, 4), jobs) if several else one
    return np.column_stack([cpu, gpu, memory, one])


def _others(rng: np.random.Generator, allocatable: IntArray) -> IntArray:
    if rng.random() >= 0.15:
        return np.zeros_like(allocatable)
    used: IntArray = np.minimum(rng.integers(0, 3, allocatable.shape), allocatable)
    return used


def _guarantees(rng: np.random.Generator, queues: int, total: IntArray) -> IntArray:
    """Guarantees in a third of the clusters: for some queues of either level, at most half of the cluster each."""
    some = (rng.random((queues, 1)) < 0.4) & (rng.random((queues, len(total))) < 0.6) & (rng.random() < 0.35)
    out: IntArray = some * rng.integers(0, total // 2 + 1, (queues, len(total)))
    return out


def _caps(rng: np.random.Generator, queues: int, total: IntArray) -> IntArray:
    some = (rng.random((queues, 1)) < 0.4) & (rng.random((queues, len(total))) < 0.5) & (rng.random() < 0.35)
    out: IntArray = np.where(some, rng.integers(1, total + 2, (queues, len(total))), UNLIMITED)
    return out


def _with_holders(rng: np.random.Generator, snapshot: Snapshot) -> Snapshot:
    """Give one queue nearly all that it asks for, or some jobs of all queues a part of it."""
    ledger = Ledger(snapshot)
    started, changed = snapshot.job_started_seconds.copy(), snapshot.job_changed_seconds.copy()
    unfair = rng.random() < 0.5
    first = int(snapshot.job_queue[int(rng.integers(snapshot.jobs))])
    order = rng.permutation(snapshot.jobs)
    if unfair:
        order = order[np.argsort(snapshot.job_queue[order] != first, kind="stable")]
    part = (0.0, 0.3, 0.6)[int(rng.integers(0, 3))]
    for j in order.tolist():
        if snapshot.job_queue[j] < 0 or not ((unfair and snapshot.job_queue[j] == first) or rng.random() < part):
            continue
        low, wanted = int(snapshot.role_min[j]), int(snapshot.role_desired[j])
        counts = [*range(wanted, low, -1), low] if unfair else [int(rng.integers(low, wanted + 1)), low]
        if any(ledger.try_gang(j, {j: count}) is not None for count in counts):
            started[j] = snapshot.job_created_seconds[j] + 1.0
            changed[j] = NOW - rng.integers(0, int(NOW - started[j]) + 1)
    role, node, count = ledger.triples()
    at = np.lexsort((node, role))
    return replace(
        snapshot,
        job_started_seconds=started,
        job_changed_seconds=changed,
        held_role=role[at],
        held_node=node[at],
        held_count=count[at],
    )

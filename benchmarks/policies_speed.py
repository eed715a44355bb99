"""The speed of the policies on random clusters of three sizes.

The clusters are busy, the jobs have profiles, and a tenth of them is new: one call has to place new jobs, move some,
and leave the rest alone. They are made directly as arrays, from a seed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from diflow.allocator.model.arrays import FloatArray, frozen
from diflow.allocator.model.ledger import Ledger
from diflow.allocator.model.profile import POOL, Prior, Profile
from diflow.allocator.model.snapshot import UNLIMITED, Snapshot
from diflow.allocator.policies.base import Policy, load_policy
from diflow.common.names import pool_number

_POOLS = {"a": 4.0, "b": 2.0, "c": 1.0}
"""Names and speeds."""
_SHAPES = ((1.0, 1.0), (1.0, 2.0), (1.0, 4.0), (2.0, 8.0), (4.0, 16.0))
SIZES = ((40, 16, 25.0), (500, 512, 100.0), (10_000, 2_000, 1_000.0))
"""Jobs, nodes of 4 GPUs, and the limit of the 95th percentile in ms."""


@dataclass(frozen=True, slots=True)
class Speed:
    """One policy at one size; milliseconds."""

    policy: str
    jobs: int
    nodes: int
    first_ms: float
    p50_ms: float
    p95_ms: float
    limit_ms: float
    reference_ms: float
    """Median time of `reference` between the calls."""
    references: float
    """95th percentile of the ratio of a call to the `reference` runs before and after it: comparable between machines,
    also if their speed varies."""


def cluster(jobs: int, nodes: int, seed: int = 0) -> Snapshot:
    """A busy cluster of this size."""
    rng = np.random.default_rng(seed)
    profiles = _profiles(rng, min(jobs, 400))
    queues = 8
    low = rng.choice([1, 1, 1, 1, 2, 4], jobs)
    high = np.minimum(64, low * rng.choice([1, 4, 8, 16, 64], jobs))
    request = np.column_stack([rng.choice([2, 4], jobs), np.ones(jobs)]).astype(np.int64)
    now = 100_000.0
    created = np.sort(now - rng.exponential(4_000.0, jobs))
    none = np.zeros(0, dtype=np.int64)
    snapshot = Snapshot(
        now_seconds=now,
        resources=("cpu", "nvidia.com/gpu"),
        node_names=tuple(f"node-{i:05d}" for i in range(nodes)),
        node_allocatable=np.tile(np.array([32, 4], dtype=np.int64), (nodes, 1)),
        node_foreign=np.tile(np.array([2, 0], dtype=np.int64), (nodes, 1)),
        node_releasing=np.zeros((nodes, 2), dtype=np.int64),
        node_open=np.ones(nodes, dtype=np.bool_),
        node_pool=np.zeros(nodes, dtype=np.int64),
        pool_names=("",),
        pool_speed=np.ones(1),
        queue_names=tuple(f"queue-{i}" for i in range(queues)),
        queue_parent=np.full(queues, -1, dtype=np.int64),
        queue_weight=np.arange(1, queues + 1, dtype=np.float64),
        queue_guarantee=np.zeros((queues, 2), dtype=np.int64),
        queue_cap=np.full((queues, 2), UNLIMITED, dtype=np.int64),
        job_names=tuple(f"job-{i:06d}" for i in range(jobs)),
        job_queue=rng.integers(0, queues, jobs),
        job_queue_name=("",) * jobs,
        job_priority=(rng.random(jobs) < 0.1).astype(np.int64),
        job_preemptible=rng.random(jobs) < 0.9,
        job_pinned=np.zeros(jobs, dtype=np.bool_),
        job_created_seconds=created,
        job_started_seconds=np.full(jobs, -1.0),
        job_changed_seconds=np.full(jobs, -1.0),
        job_restarts=np.zeros(jobs, dtype=np.int64),
        job_service_seconds=np.zeros(jobs),
        job_profile=tuple(profiles[int(i)] for i in rng.integers(0, len(profiles), jobs)),
        role_names=("worker",) * jobs,
        role_job=np.arange(jobs),
        role_request=request,
        role_min=low.astype(np.int64),
        role_max=high.astype(np.int64),
        role_desired=np.minimum(high, low * 4).astype(np.int64),
        role_class=np.zeros(jobs, dtype=np.int64),
        class_nodes=np.ones((1, nodes), dtype=np.bool_),
        class_preference=np.zeros((1, nodes), dtype=np.int64),
        held_role=none,
        held_node=none,
        held_count=none,
        job_refusal=("",) * jobs,
        level_names=(),
        domain_names=(),
        node_domain=np.zeros((0, nodes), dtype=np.int64),
        job_required=np.full(jobs, -1, dtype=np.int64),
        role_unit=np.ones(jobs, dtype=np.int64),
    )
    ledger = Ledger(snapshot)
    for j in range(int(jobs * 0.9)):
        ledger.try_gang(j, {j: int(rng.integers(low[j], min(high[j], 8) + 1))})
    role, node, count = ledger.triples()
    order = np.lexsort((node, role))
    started = np.where(ledger.replicas > 0, created + 60.0, -1.0)
    return replace(
        snapshot,
        held_role=role[order],
        held_node=node[order],
        held_count=count[order],
        job_started_seconds=started,
        job_changed_seconds=started,
        job_service_seconds=np.where(started > 0, (now - started) * ledger.replicas, 0.0),
    )


def _profiles(rng: np.random.Generator, count: int) -> list[Profile]:
    """Profiles with fitted models, as jobs send them."""
    out = []
    for i in range(count):
        params = np.array(
            [
                rng.uniform(0.01, 0.2),
                rng.uniform(1e-4, 1e-2),
                rng.uniform(0.02, 0.5),
                rng.uniform(1e-4, 5e-3),
                rng.uniform(0.005, 0.05),
                rng.uniform(1e-4, 5e-3),
                rng.uniform(1.0, 3.0),
            ]
        )
        rows = [(1.0, r, 32.0, 0.1, 0.12, 0.0) for r in (1.0, 2.0, 4.0)] + [(2.0, 8.0, 32.0, 0.1, 0.2, 0.0)]
        out.append(
            Profile(
                version=i,
                observations_version=i,
                observations=np.array(rows),
                parameters=params,
                grad_sqr=1.0,
                grad_var=float(rng.uniform(1, 100)),
                initial_batch=128,
                max_batch=8192,
                min_local_batch=16,
                max_local_batch=512,
                fraction_done=float(rng.uniform(0.05, 0.95)),
                work_done=float(rng.uniform(1e3, 1e6)),
            )
        )
    return out


def moved_on(snapshot: Snapshot, version: int) -> Snapshot:
    """The cluster a period later: every tenth job has a new profile, which invalidates its table."""
    profiles = tuple(
        replace(p, version=1_000_000 * (version + 1) + j) if p is not None and (j + version) % 10 == 0 else p
        for j, p in enumerate(snapshot.job_profile)
    )
    return replace(snapshot, now_seconds=snapshot.now_seconds + 60.0, job_profile=profiles)


def inheriting(snapshot: Snapshot, applications: int = 40) -> Snapshot:
    """The cluster with a memory of this many applications, of which each job runs one; half of the jobs tell no
    progress."""
    rows = [(n, r, b, 0.01 + 0.003 * b, 0.02 + 0.004 * b, 0.0) for n, r in _SHAPES for b in (16.0, 64.0, 256.0)]
    priors = [
        Prior(version=i, observations=frozen(np.array(rows)), works=np.linspace(1e4, 1e6, 16), restart_seconds=45.0)
        for i in range(applications)
    ]
    known = [replace(p or Profile(), prior=priors[j % applications]) for j, p in enumerate(snapshot.job_profile)]
    profiles = tuple(replace(p, fraction_done=None) if j % 2 else p for j, p in enumerate(known))
    return replace(snapshot, job_profile=profiles)


def pooled(snapshot: Snapshot) -> Snapshot:
    """The cluster with three pools of nodes. Each job has reported from one of them, and no job has fitted a model."""
    numbers = [pool_number(name) for name in _POOLS]
    profiles: list[Profile | None] = []
    for j, profile in enumerate(snapshot.job_profile):
        if profile is None:
            profiles.append(None)
            continue
        rows = profile.observations.copy()
        rows[:, POOL] = numbers[j % len(numbers)]
        profiles.append(replace(profile, observations=rows, parameters=None))
    return replace(
        snapshot,
        node_pool=np.arange(snapshot.nodes) % len(_POOLS),
        pool_names=tuple(_POOLS),
        pool_speed=np.array(list(_POOLS.values())),
        job_profile=tuple(profiles),
    )


def measure(name: str, jobs: int, nodes: int, limit_ms: float, calls: int, *, more: str = "") -> Speed:
    """Time of a call on this machine: the first one with empty caches, then `calls` as in a running allocator. `more`:
    what the cluster has, "memory" or "pools"."""
    policy: Policy = load_policy(name)
    snapshot = _WITH[more](cluster(jobs, nodes))
    # Warm up the interpreter and numpy.
    policy.optimize(cluster(8, 4, seed=1))
    first = _time(partial(policy.optimize, snapshot))
    times, references = [], [_time(reference)]
    for version in range(calls):
        snapshot = moved_on(snapshot, version)
        times.append(_time(partial(policy.optimize, snapshot)))
        references.append(_time(reference))
    table: FloatArray = np.array(times)
    beside: FloatArray = np.array(references)
    return Speed(
        policy=f"{name}, {more}" if more else name,
        jobs=jobs,
        nodes=nodes,
        first_ms=first,
        p50_ms=float(np.median(table)),
        p95_ms=float(np.percentile(table, 95)),
        limit_ms=limit_ms,
        reference_ms=float(np.median(beside)),
        references=float(np.percentile(2.0 * table / (beside[1:] + beside[:-1]), 95)),
    )


_WITH: Mapping[str, Callable[[Snapshot], Snapshot]] = {
    "": lambda snapshot: snapshot,
    "memory": inheriting,
    "pools": pooled,
}


def reference() -> int:
    """A fixed task like a policy's work: plain Python and operations on small arrays."""
    table = np.arange(64).reshape(16, 4)
    seen: dict[int, int] = {}
    for turn in range(1000):
        fits = np.flatnonzero((table >= turn % 7).all(axis=1))
        seen[turn % 50] = seen.get(turn % 50, 0) + int(table[fits].sum())
        for node in fits.tolist():
            seen[node] = max(seen.get(node, 0), turn)
    return sum(seen.values())


def _time(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return 1000.0 * (time.process_time() - began)

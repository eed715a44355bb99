"""Random snapshots of possible clusters, made directly as arrays: thousands a second.

The current allocation is valid (whole gangs, no node overcommitted), except that some nodes shrank, some queues were
deleted, users changed the limits of running jobs, and pods are terminating, as in a real cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from diflow.allocator.model.arrays import IntArray
from diflow.allocator.model.ledger import Ledger
from diflow.allocator.model.profile import Profile, clean
from diflow.allocator.model.snapshot import UNLIMITED, Snapshot
from diflow.allocator.policies.goodput.fitting import fit_all

RESOURCES = ("cpu", "gpu")


def snapshots(seed: int, count: int, *, jobs: int = 6, nodes: int = 4, profiled: bool = True) -> Iterator[Snapshot]:
    """`count` random snapshots; the same for the same seed."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield random_snapshot(rng, jobs=jobs, nodes=nodes, profiled=profiled)


def _any_of(rng: np.random.Generator, values: tuple[int, ...], size: int) -> IntArray:
    """As `rng.choice(values, size)`, several times faster, as integers."""
    return np.array(values, dtype=np.int64)[rng.integers(0, len(values), size)]


def random_snapshot(
    rng: np.random.Generator, *, jobs: int = 6, nodes: int = 4, profiled: bool = True, holding: float = 0.5
) -> Snapshot:
    j, n = int(rng.integers(1, jobs + 1)), int(rng.integers(1, nodes + 1))
    multi = rng.random() < 0.2
    per_job = rng.integers(1, 3, j) if multi else np.ones(j, dtype=np.int64)
    role_job = np.repeat(np.arange(j), per_job)
    g = len(role_job)
    gpus = _any_of(rng, (0, 4, 4, 4, 8), n) if rng.random() < 0.3 else np.full(n, 4)
    allocatable = np.column_stack([_any_of(rng, (8, 16), n), gpus])
    request = np.column_stack([rng.integers(1, 3, g), _any_of(rng, (0, 1, 1, 1, 2), g)])
    low = _any_of(rng, (1, 1, 1, 2, 3, 5), g)
    high = low + _any_of(rng, (0, 0, 1, 3, 7, 12), g)
    desired = np.minimum(high, low + rng.integers(0, 4, g))
    classes = np.ones((2, n), dtype=np.bool_)
    if n > 1 and rng.random() < 0.3:
        classes[1] = rng.random(n) < 0.6
    q = (1, 1, 2, 3)[int(rng.integers(0, 4))]
    parent = np.full(q, -1, dtype=np.int64)
    if q == 3 and rng.random() < 0.3:
        parent[2] = 0
    cap = np.full((q, 2), UNLIMITED, dtype=np.int64)
    if rng.random() < 0.2:
        cap[int(rng.integers(q))] = rng.integers(0, 12, 2)
    guarantee = np.zeros((q, 2), dtype=np.int64)
    if rng.random() < 0.2:
        guarantee[int(rng.integers(q))] = rng.integers(0, 4, 2)
    queue = rng.integers(0, q, j)
    if rng.random() < 0.1:
        queue[int(rng.integers(j))] = -1
    foreign = np.zeros((n, 2), dtype=np.int64)
    releasing = np.zeros((n, 2), dtype=np.int64)
    if rng.random() < 0.3:
        foreign = rng.integers(0, 3, (n, 2)).clip(max=allocatable)
    if rng.random() < 0.3:
        releasing = rng.integers(0, 3, (n, 2)).clip(max=allocatable - foreign)
    now = 10_000.0
    created = np.round(now - rng.integers(0, 2_000, j).astype(np.float64))
    empty = np.zeros(0, dtype=np.int64)
    snapshot = Snapshot(
        now_seconds=now,
        resources=RESOURCES,
        node_names=tuple(f"n{i}" for i in range(n)),
        node_allocatable=allocatable,
        node_foreign=foreign,
        node_releasing=releasing,
        node_open=rng.random(n) < 0.95,
        node_pool=(rng.integers(0, 2, n) if rng.random() < 0.2 else np.zeros(n)).astype(np.int64),
        pool_names=("a", "b"),
        pool_speed=np.array([1.0, 0.5]),
        queue_names=tuple(f"q{i}" for i in range(q)),
        queue_parent=parent,
        queue_weight=_any_of(rng, (0, 1, 1, 2, 5), q).astype(np.float64),
        queue_guarantee=guarantee,
        queue_cap=cap,
        job_names=tuple(f"j{i}" for i in range(j)),
        job_queue=queue.astype(np.int64),
        job_queue_name=tuple(f"q{i}" for i in queue),
        job_priority=_any_of(rng, (0, 0, 0, 1), j),
        job_preemptible=rng.random(j) < 0.8,
        job_pinned=rng.random(j) < 0.1,
        job_created_seconds=created,
        job_started_seconds=np.full(j, -1.0),
        job_changed_seconds=np.full(j, -1.0),
        job_restarts=rng.integers(0, 3, j).astype(np.int64),
        job_service_seconds=rng.integers(0, 10_000, j).astype(np.float64),
        job_profile=tuple(some_profile(rng) if profiled and rng.random() < 0.6 else None for _ in range(j)),
        role_names=tuple(f"r{i}" for i in range(g)),
        role_job=role_job.astype(np.int64),
        role_request=request,
        role_min=low,
        role_max=high.astype(np.int64),
        role_desired=desired.astype(np.int64),
        role_class=(rng.random(g) < 0.3).astype(np.int64),
        class_nodes=classes,
        class_preference=np.zeros((2, n), dtype=np.int64),
        held_role=empty,
        held_node=empty,
        held_count=empty,
        job_refusal=("",) * j,
        level_names=(),
        domain_names=(),
        node_domain=np.zeros((0, n), dtype=np.int64),
        job_required=np.full(j, -1, dtype=np.int64),
        role_unit=np.ones(g, dtype=np.int64),
        job_modest=np.zeros(j, dtype=np.bool_),
        spared=np.zeros((0, 3), dtype=np.int64),
    )
    # A separate generator for what was added later, so that nothing else changes.
    own = rng.spawn(1)[0]
    held = replace(with_holders(rng, snapshot, holding), class_preference=_preference(own, n))
    return limits_changed(own, held) if own.random() < 0.25 else held


def _preference(rng: np.random.Generator, nodes: int) -> IntArray:
    """Preferences for some nodes, in some snapshots."""
    return rng.integers(0, 4, (2, nodes)) * (rng.random() < 0.3)


def limits_changed(rng: np.random.Generator, snapshot: Snapshot) -> Snapshot:
    """The users of some running preemptible jobs have lowered a maximum below what runs, or raised a minimum above."""
    s = snapshot
    low, high, held = s.role_min.copy(), s.role_max.copy(), s.held_by_role()
    for role in np.flatnonzero(s.job_preemptible[s.role_job] & (held > 0)).tolist():
        change, by = rng.random(), int(rng.integers(1, 4))
        if change < 0.4:
            high[role] = max(1, held[role] - by)
            low[role] = min(low[role], high[role])
        elif change < 0.6:
            low[role] = held[role] + by
            high[role] = max(low[role], high[role])
    return replace(s, role_min=low, role_max=high, role_desired=np.clip(s.role_desired, low, high))


def with_holders(rng: np.random.Generator, snapshot: Snapshot, holding: float) -> Snapshot:
    """Let some jobs hold a gang each, at random sizes on random nodes."""
    anywhere = rng.random(snapshot.nodes).argsort().argsort()
    ledger = Ledger(replace(snapshot, class_preference=np.tile(anywhere, (2, 1))))
    ledger.free -= snapshot.node_releasing
    started = snapshot.job_started_seconds.copy()
    low, high = ledger.facts.role_min, ledger.facts.role_max
    for j in range(snapshot.jobs):
        if rng.random() >= holding or (snapshot.job_queue[j] < 0 and rng.random() < 0.5):
            continue
        want = {r: int(rng.integers(low[r], high[r] + 1)) for r in ledger.roles_of(j)}
        if ledger.try_gang(j, want) or ledger.try_gang(j, {r: low[r] for r in want}):
            started[j] = snapshot.job_created_seconds[j] + 1.0
    role, node, count = ledger.triples()
    order = np.argsort(role * snapshot.nodes + node)
    allocatable = snapshot.node_allocatable
    if rng.random() < 0.05:
        allocatable = allocatable.copy()
        allocatable[int(rng.integers(snapshot.nodes))] //= 2
    return replace(
        snapshot,
        node_allocatable=allocatable,
        job_started_seconds=started,
        job_changed_seconds=started,
        held_role=role[order],
        held_node=node[order],
        held_count=count[order],
    )


_BANK: list[Profile] = []


def some_profile(rng: np.random.Generator) -> Profile:
    """One of 300 random profiles, most of them with a fitted model."""
    if not _BANK:
        own = np.random.default_rng(7)
        made = [random_profile(own) for _ in range(300)]
        fits = fit_all([clean(profile.observations) for profile in made])
        _BANK.extend(
            replace(profile, parameters=fit) if own.random() < 0.98 and np.isfinite(fit).all() else profile
            for profile, fit in zip(made, fits, strict=True)
        )
    return _BANK[int(rng.integers(len(_BANK)))]


def random_profile(rng: np.random.Generator) -> Profile:
    """What a job might report: mostly plausible, sometimes nonsense."""
    kind = rng.random()
    if kind < 0.1:
        return Profile(version=int(rng.integers(1 << 30)))
    rows = int(rng.integers(1, 4))
    replicas = rng.integers(1, 5, rows)
    batch = rng.integers(1, 64, rows)
    accumulation = 0.01 + 0.002 * batch
    step = accumulation + np.where(replicas > 1, 0.01 + 0.005 * replicas, 0.0)
    table = np.column_stack([np.ones(rows), replicas, batch, accumulation, step, np.zeros(rows)]).astype(np.float64)
    if kind < 0.2:
        table[0, int(rng.integers(0, 6))] = rng.choice([np.nan, np.inf, -1.0, 0.0, 1e300])
    noise = rng.random() < 0.7
    done = float(rng.random()) if rng.random() < 0.6 else None
    return Profile(
        version=int(rng.integers(1 << 30)),
        observations_version=int(rng.integers(1 << 30)),
        observations=table,
        grad_sqr=float(rng.choice([1.0, 0.0, np.nan, -1.0], p=[0.85, 0.05, 0.05, 0.05])) if noise else None,
        grad_var=float(rng.random() * 10) if noise else None,
        initial_batch=32,
        max_batch=int(rng.choice([32, 512, 4096])),
        min_local_batch=4,
        max_local_batch=64,
        fraction_done=done,
        work_done=None if done is None else done * float(rng.integers(100, 100_000)),
    )

"""Random histories of clusters: each plan is carried out, wholly or halfway, events happen, and the policy is called.

Each step is a snapshot for the laws. Random snapshots alone rarely show what a history does: a job that was just
resized, a gang that lost pods, a node that was cordoned under its jobs, limits that a user changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from diflow.allocator.model.plan import Plan, carry_out
from diflow.allocator.model.snapshot import Snapshot
from tests.policies.generators import random_snapshot
from tests.policies.halfway import carry_out_first_step

MOMENTS = 6
"""Snapshots of one history: the first is random, the others follow from it."""


def lives(
    seed: int, count: int, ask: Callable[[Snapshot], Plan], *, profiled: bool = True
) -> Iterator[tuple[Snapshot, Plan]]:
    """`count` snapshots, each with the policy's plan (`ask`); the same for the same seed and policy."""
    rng = np.random.default_rng(seed)
    left = count
    while left > 0:
        small = rng.random() < 0.7
        snapshot = random_snapshot(rng, jobs=4 if small else 8, nodes=3 if small else 5, profiled=profiled)
        for _ in range(min(left, MOMENTS)):
            plan = ask(snapshot)
            yield snapshot, plan
            snapshot = later(rng, snapshot, plan)
        left -= MOMENTS


def later(rng: np.random.Generator, before: Snapshot, plan: Plan) -> Snapshot:
    s = (carry_out if rng.random() < 0.8 else carry_out_first_step)(before, plan)
    s = replace(s, now_seconds=s.now_seconds + (1.0, 60.0, 130.0, 600.0)[int(rng.integers(0, 4))])
    for event in rng.choice(len(_EVENTS), int(rng.integers(0, 3)), replace=False).tolist():
        s = _EVENTS[event](rng, s)
    return s


def _another_comes(rng: np.random.Generator, s: Snapshot) -> Snapshot:
    """A job ends, and another of its shape is created."""
    j = int(rng.integers(s.jobs))
    stay = s.role_job[s.held_role] != j
    preemptible, priority = s.job_preemptible.copy(), s.job_priority.copy()
    preemptible[j], priority[j] = rng.random() < 0.7, rng.integers(0, 3)
    return replace(
        _with_times(s, j, created=s.now_seconds, started=-1.0),
        held_role=s.held_role[stay],
        held_node=s.held_node[stay],
        held_count=s.held_count[stay],
        job_preemptible=preemptible,
        job_priority=priority,
    )


def _node_opens_or_closes(rng: np.random.Generator, s: Snapshot) -> Snapshot:
    is_open = s.node_open.copy()
    is_open[int(rng.integers(s.nodes))] ^= True
    return replace(s, node_open=is_open)


def _pods_are_lost(rng: np.random.Generator, s: Snapshot) -> Snapshot:
    """A role loses its pods on one node. If its job is not preemptible, the rest becomes its minimum."""
    if not len(s.held_role):
        return s
    lost = int(rng.integers(len(s.held_role)))
    stay = np.arange(len(s.held_role)) != lost
    left = replace(s, held_role=s.held_role[stay], held_node=s.held_node[stay], held_count=s.held_count[stay])
    role = int(s.held_role[lost])
    low = s.role_min.copy()
    if not s.job_preemptible[s.role_job[role]]:
        low[role] = max(1, int(left.held_by_role()[role]))
    return replace(left, role_min=np.minimum(low, s.role_min))


def _limits_change(rng: np.random.Generator, s: Snapshot) -> Snapshot:
    """A user changes the replicas."""
    role = int(rng.integers(s.roles))
    low, high, wanted = s.role_min.copy(), s.role_max.copy(), s.role_desired.copy()
    held = int(s.held_by_role()[role])
    fixed = held if not s.job_preemptible[s.role_job[role]] else 0
    low[role] = fixed or max(1, low[role] + rng.integers(-2, 2))
    high[role] = max(low[role], high[role] + rng.integers(-4, 4))
    wanted[role] = min(max(low[role], wanted[role]), high[role])
    return replace(s, role_min=low, role_max=high, role_desired=wanted)


def _others_come(rng: np.random.Generator, s: Snapshot) -> Snapshot:
    """Foreign pods start where they fit, as kube-scheduler would place them."""
    free = np.maximum(s.idle(), 0)
    return replace(s, node_foreign=s.node_foreign + rng.integers(0, 2, free.shape) * np.minimum(free, 2))


def _others_go(rng: np.random.Generator, s: Snapshot) -> Snapshot:
    del rng
    return replace(s, node_foreign=np.zeros_like(s.node_foreign), node_releasing=np.zeros_like(s.node_releasing))


_EVENTS = (
    _another_comes,
    _another_comes,
    _node_opens_or_closes,
    _pods_are_lost,
    _limits_change,
    _others_come,
    _others_go,
)


def _with_times(s: Snapshot, job: int, *, created: float, started: float) -> Snapshot:
    times = (s.job_created_seconds.copy(), s.job_started_seconds.copy(), s.job_changed_seconds.copy())
    times[0][job], times[1][job], times[2][job] = created, started, started
    return replace(s, job_created_seconds=times[0], job_started_seconds=times[1], job_changed_seconds=times[2])

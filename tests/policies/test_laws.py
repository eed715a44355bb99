"""The laws over random snapshots and the lives of random clusters.

`make test` judges a thousand snapshots for each policy, and for `fair` a thousand more of clusters that queues share
(queue_clusters.py), each of those by law 6 and by the laws of queues (13 to 15, queue_laws.py). A thousand more for
each policy are of clusters with racks and blocks (topology_clusters.py), judged by the laws of topology too (16 and 17,
topology_laws.py). `make laws` (DIFLOW_LAW_SNAPSHOTS=100000) judges a hundred times as many.

The cheap laws (1-4, 7, 18, and that reasons.py refutes no reason) are judged on every snapshot, the dear ones (5, 6:
two to four more calls) on each fortieth; law 8 in test_queues.py, 9 in test_reservation.py, 11 in test_guard.py, 12 by
brute force below.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import replace

import numpy as np
import pytest

from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.base import load_policy
from diflow.allocator.policies.goodput.policy import GoodputPolicy
from tests.policies import brute, laws
from tests.policies.generators import random_snapshot, snapshots, some_profile
from tests.policies.judging import judge, parts, pool_parts, queue_parts, topology_parts

SNAPSHOTS = int(os.environ.get("DIFLOW_LAW_SNAPSHOTS") or 1000)
POLICIES = ("fit", "fair", "goodput", "fair+goodput")
BRUTE_FORCED = max(20, SNAPSHOTS // 1000)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", POLICIES)
def test_no_random_snapshot_breaks_a_law(name: str) -> None:
    work = [*parts(name, SNAPSHOTS, dear_each=40), *queue_parts(name, SNAPSHOTS, dear_each=40)]
    work += topology_parts(name, SNAPSHOTS, dear_each=40)
    work += pool_parts(name, SNAPSHOTS, dear_each=40)
    judged = judge(work)
    assert [line for _, lines in judged for line in lines] == []
    assert sum(count for count, _ in judged) >= 0.99 * sum(part.count for part in work)


def test_the_parts_hold_as_many_snapshots_as_were_asked_for() -> None:
    for asked in (1, 1000, 100_000):
        work = parts("fit", asked, dear_each=40)
        assert asked <= sum(part.count for part in work) < asked + 32
        assert len({str(part) for part in work}) == len(work)
    assert {part.kind for part in parts("fit", 1000, dear_each=40)} == {"random", "lives"}


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
def test_a_newcomer_is_placed_and_nobody_else_is_touched(name: str) -> None:
    policy = load_policy(name)
    for snapshot in snapshots(77, 300):
        held = snapshot.jobs_of(snapshot.held_role)
        for job in np.flatnonzero(~held)[:1].tolist():
            plan = policy.allocate(job, snapshot)
            others = np.arange(snapshot.jobs) != job
            assert not laws.sound(snapshot, plan)
            assert np.isin(plan.action[others], (0, 4)).all()


@pytest.mark.parametrize("block", range(2))
def test_small_instances_come_within_a_percent_of_brute_force(block: int) -> None:
    """Law 12: 6 jobs, 4 nodes of 4; every way to give every job any of its configurations, on any nodes."""
    policy = GoodputPolicy()
    rng = np.random.default_rng(block)
    worst = 1.0
    for _ in range(BRUTE_FORCED):
        snapshot = _small(rng)
        best = brute.best_value(policy, snapshot)
        got = policy.measure(snapshot, policy.optimize(snapshot))
        worst = min(worst, got / best if best > 0 else 1.0)
        assert got >= 0.99 * best - 1e-12, f"{got} of {best}"
    assert worst <= 1.0 + 1e-9, "brute force missed what the policy found: the test is wrong"


def _small(rng: np.random.Generator) -> Snapshot:
    snapshot = random_snapshot(rng, jobs=6, nodes=4)
    jobs = snapshot.jobs
    first = snapshot.role_starts()[:-1]
    # One role a job, one queue, GPUs alone scarce; what is left is the choice of counts and nodes.
    return replace(
        random_snapshot(rng, jobs=1, nodes=1),
        now_seconds=snapshot.now_seconds,
        resources=("gpu",),
        node_names=tuple(f"n{i}" for i in range(4)),
        node_allocatable=np.full((4, 1), 4, dtype=np.int64),
        node_foreign=np.zeros((4, 1), dtype=np.int64),
        node_releasing=np.zeros((4, 1), dtype=np.int64),
        node_open=np.ones(4, dtype=np.bool_),
        node_pool=np.zeros(4, dtype=np.int64),
        queue_names=("default",),
        queue_parent=np.full(1, -1, dtype=np.int64),
        queue_weight=np.ones(1),
        queue_guarantee=np.zeros((1, 1), dtype=np.int64),
        queue_cap=np.full((1, 1), 2**62, dtype=np.int64),
        job_names=snapshot.job_names,
        job_refusal=snapshot.job_refusal,
        job_required=snapshot.job_required,
        node_domain=np.zeros((0, 4), dtype=np.int64),
        role_unit=np.ones(jobs, dtype=np.int64),
        job_modest=np.zeros(jobs, dtype=np.bool_),
        spared=np.zeros((0, 3), dtype=np.int64),
        job_queue=np.zeros(jobs, dtype=np.int64),
        job_queue_name=("default",) * jobs,
        job_priority=snapshot.job_priority,
        job_preemptible=np.ones(jobs, dtype=np.bool_),
        job_pinned=np.zeros(jobs, dtype=np.bool_),
        job_created_seconds=snapshot.job_created_seconds,
        job_started_seconds=np.full(jobs, -1.0),
        job_changed_seconds=np.full(jobs, -1.0),
        job_restarts=snapshot.job_restarts,
        job_service_seconds=snapshot.job_service_seconds,
        job_profile=tuple(some_profile(rng) for _ in range(jobs)),
        role_names=("worker",) * jobs,
        role_job=np.arange(jobs),
        role_request=np.ones((jobs, 1), dtype=np.int64),
        role_min=np.minimum(snapshot.role_min[first], 4),
        role_max=np.full(jobs, 16, dtype=np.int64),
        role_desired=np.full(jobs, 4, dtype=np.int64),
        role_class=np.zeros(jobs, dtype=np.int64),
        class_nodes=np.ones((1, 4), dtype=np.bool_),
        class_preference=np.zeros((1, 4), dtype=np.int64),
        held_role=np.zeros(0, dtype=np.int64),
        held_node=np.zeros(0, dtype=np.int64),
        held_count=np.zeros(0, dtype=np.int64),
    )


def test_brute_force_knows_every_packing() -> None:
    assert set(brute.packings((2, 2), 3)) == {(1, 2), (2, 1)}
    assert sum(1 for _ in itertools.islice(brute.packings((4, 4, 4, 4), 4), 100)) == 35

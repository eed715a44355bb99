"""The twelve laws over random snapshots and the lives of random clusters.

There are 100,000 snapshots for each policy, in 32 parts; `make laws` judges 100,000 more for `fair`, of clusters that
queues share (queue_clusters.py), each by law 6 and by the laws of queues (13 to 15, queue_laws.py). A run judges two
parts of each policy, one of random snapshots and one of lives. Which two depends on the code, and parts that held under
the same code give way to parts that were not judged yet (verdicts.py), so that the sample rotates. `make laws`
(DIFLOW_LAWS=all) judges every part, and DIFLOW_LAW_SNAPSHOTS that many snapshots, whatever was judged before.

The cheap laws (1-4, 7, and that reasons.py refutes no reason) are judged on every snapshot, the dear ones (5, 6: two to
four more calls) on each fortieth; law 8 in test_queues.py, 9 in test_reservation.py, 11 in test_guard.py, 12 by brute
force below.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.base import load_policy
from diflow.allocator.policies.goodput.policy import GoodputPolicy
from tests.policies import brute, laws, verdicts
from tests.policies.generators import random_snapshot, snapshots, some_profile
from tests.policies.judging import judge, parts, queue_parts

ASKED = os.environ.get("DIFLOW_LAW_SNAPSHOTS", "")
SNAPSHOTS = int(ASKED or 100_000)
EVERY_PART = bool(ASKED) or os.environ.get("DIFLOW_LAWS") == "all"
POLICIES = ("fit", "fair", "goodput", "fair+goodput")
BRUTE_FORCED = max(20, int(ASKED or 0) // 200)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", POLICIES)
def test_no_random_snapshot_breaks_a_law(name: str, record_property: Callable[[str, object], None]) -> None:
    work = parts(name, SNAPSHOTS, dear_each=40)
    if EVERY_PART:
        work += queue_parts(name, SNAPSHOTS, dear_each=40)
    known = {} if ASKED else verdicts.known(name)
    fresh = verdicts.due(work, known, every=EVERY_PART, code=verdicts.code_of(name))
    judged = dict(zip(map(str, fresh), judge(fresh), strict=True))
    broken = [line for _, lines in judged.values() for line in lines]
    held = {part: count for part, (count, lines) in judged.items() if not lines}
    before = {str(part): known[str(part)] for part in work if str(part) in known and str(part) not in judged}
    verdicts.keep(name, held)
    record_property("laws", f"{name}: {sum(held.values()):,} snapshots judged, {sum(before.values()):,} before")
    assert broken == []
    assert sum(held.values()) >= 0.99 * sum(part.count for part in fresh)
    if EVERY_PART:
        assert sum({**before, **held}.values()) >= 0.99 * SNAPSHOTS


def test_a_sample_is_of_both_kinds_and_all_samples_together_are_every_part() -> None:
    work = parts("fit", SNAPSHOTS, dear_each=40)
    known: dict[str, int] = {}
    while len(known) < len(work):
        sample = verdicts.due(work, known, every=False, code="c0de")
        assert [part.kind for part in sample] == ["lives", "random"]
        new = {str(part): part.count for part in sample} | known
        assert len(new) > len(known)
        known = new
    assert verdicts.due(work, known, every=False, code="c0de"), "a part is judged in every run, known or not"


def test_each_state_of_the_code_begins_with_another_part() -> None:
    work = parts("fit", SNAPSHOTS, dear_each=40)
    begun = {str(verdicts.due(work, {}, every=False, code=f"{state:x}")) for state in range(len(work))}
    assert len(begun) > len(work) // 2


def test_every_part_is_judged_where_that_is_asked_for() -> None:
    work = parts("fit", SNAPSHOTS, dear_each=40)
    assert verdicts.due(work, {}, every=True, code="c0de") == work
    known = {str(part): part.count for part in work}
    assert len(verdicts.due(work, known, every=True, code="c0de")) == len(work) // verdicts.FRESH_EACH
    assert sum(part.count for part in parts("fit", 200, dear_each=40)) >= 200


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

"""The laws of queues are not vacuous: keeping the allocation often breaks them, and so does taking from the poor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from diflow.allocator.model.plan import carry_out, keep_plan
from diflow.allocator.model.reasons import Grown, Reclaimed, Reserved
from diflow.allocator.model.views import QueueView, build
from diflow.allocator.policies.fair.policy import FairPolicy
from tests.policies import queue_laws
from tests.policies.queue_clusters import RESOURCES, queue_clusters
from tests.policies.test_queues import held
from tests.policies.test_shares_hold import job, node

CLUSTERS = 3_000


@pytest.mark.slow
def test_keeping_what_is_held_breaks_the_laws_on_hundreds_of_clusters() -> None:
    unfair = idle = 0
    for snapshot in queue_clusters(5, CLUSTERS):
        kept = keep_plan(snapshot, "keep")
        unfair += bool(queue_laws.shares_are_reached(snapshot, kept))
        idle += bool(queue_laws.idle_capacity_is_used(snapshot, kept))
    assert unfair > CLUSTERS / 5
    assert idle > CLUSTERS / 2


@pytest.mark.slow
def test_hundreds_of_jobs_lose_something_to_other_queues() -> None:
    policy, lost = FairPolicy(), 0
    for snapshot in queue_clusters(6, CLUSTERS // 3):
        plan = policy.optimize(snapshot)
        lost += sum(isinstance(reason, Reclaimed) for reason in plan.reasons)
    assert lost > 200


def test_taking_from_a_queue_with_less_breaks_the_law() -> None:
    jobs = [job("a", 8, queue="q1", placed={"n1": 2}, cpu=1), job("b", 8, queue="q2", placed={"n1": 6}, cpu=1)]
    snapshot = build([node(cpu=8)], jobs, [QueueView("q1"), QueueView("q2")])
    a = snapshot.job_names.index("a")
    more = np.array([1 if j == a else 7 for j in snapshot.role_job[snapshot.held_role]])
    reasons = tuple(Reclaimed(1, 2, "b") if j == a else Grown(7) for j in range(2))
    kept = keep_plan(snapshot, "worse")
    worse = replace(kept, count=more, reasons=reasons, action=np.full(2, 2))
    assert len(queue_laws.who_takes_has_less(snapshot, worse)) == 2
    assert queue_laws.who_takes_has_less(snapshot, FairPolicy().optimize(snapshot)) == []


@pytest.mark.parametrize(
    ("seed", "number"),
    [(5007, 163), (5009, 464), pytest.param(0, 1392, id="a job of higher priority replaced the claimant")],
)
def test_what_a_third_job_had_a_right_to_may_be_taken_from_it(seed: int, number: int) -> None:
    *_, snapshot = queue_clusters(seed, number + 1)
    assert queue_laws.queues_hold(snapshot, FairPolicy().optimize(snapshot)) == []


@pytest.mark.parametrize(("seed", "number"), [(5017, 122), (5024, 6), (5012, 770)])
def test_what_inner_exchanges_cost_a_queue_is_not_held_against_others(seed: int, number: int) -> None:
    *_, snapshot = queue_clusters(seed, number + 1)
    assert queue_laws.queues_hold(snapshot, FairPolicy().optimize(snapshot)) == []


def test_a_user_below_its_share_beside_a_sibling_above_its_own_breaks_the_law() -> None:
    jobs = [job("a", 8, queue="ann", placed={"n1": 8}, cpu=1), job("b", 8, queue="bob", created=1.0, cpu=1)]
    queues = [QueueView("team"), QueueView("ann", parent="team"), QueueView("bob", parent="team")]
    snapshot = build([node(cpu=8)], jobs, queues)
    kept = keep_plan(snapshot, "keep")
    assert queue_laws.shares_are_reached(snapshot, kept) == ["law 13: b has 1 within its share if a gives 1"]
    after = carry_out(snapshot, FairPolicy().optimize(snapshot))
    assert queue_laws.shares_are_reached(after, keep_plan(after, "keep")) == []


@pytest.mark.parametrize(("older_started", "ends"), [(1900.0, True), (150.0, False)])
def test_a_reservation_begins_again_when_an_older_job_starts(older_started: float, ends: bool) -> None:
    """The gang has its turn 300 s after it was created, or after the older job has started, for 1,800 s."""
    jobs = [
        job("older", 3, placed={"n1": 3}, since=older_started, preemptible=False, cpu=1),
        job("gang", 8, low=8, created=100.0, cpu=1),
        job("small", 1, created=2100.0, preemptible=False, cpu=1),
    ]
    snapshot = build([node(cpu=8)], jobs, now_seconds=2300.0)
    kept = keep_plan(snapshot, "keep")
    reasons = list(kept.reasons)
    reasons[snapshot.job_names.index("small")] = Reserved(1, 5, 0.0, "gang")
    told = [] if ends else ["law 14: small waits for gang, and there is no end to it"]
    assert queue_laws.idle_capacity_is_used(snapshot, replace(kept, reasons=tuple(reasons))) == told
    assert held(snapshot, FairPolicy().optimize(snapshot)) == {"older": 3, "gang": 0, "small": int(not ends)}


def test_the_random_clusters_lack_what_real_ones_lack() -> None:
    scarce = np.zeros(len(RESOURCES), dtype=np.int64)
    levels = priorities = several = 0
    for snapshot in queue_clusters(7, 500):
        lacking = queue_laws.Cluster(snapshot).lacking()
        scarce += lacking
        several += int(lacking.sum() > 1)
        levels += int((snapshot.queue_parent >= 0).any())
        priorities += len(set(snapshot.job_priority.tolist())) > 1
    cpu, gpu, memory, pods = scarce.tolist()
    assert cpu > 250
    assert min(gpu, memory, pods) > 30
    assert pods < 150
    assert several > 100
    assert levels > 250
    assert priorities > 150

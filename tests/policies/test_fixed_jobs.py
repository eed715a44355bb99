"""Jobs that are not preemptible never hold what other queues could claim by their guarantees, unless those lend it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from diflow.allocator.model.plan import Plan, carry_out, keep_plan
from diflow.allocator.model.reasons import GuaranteeHeld, LentToPreemptible
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.views import JobView, QueueView, build
from diflow.allocator.policies.base import load_policy
from diflow.allocator.policies.fair.prepared import prepared
from tests.policies.queue_clusters import queue_clusters
from tests.policies.reasons import fixed_room
from tests.policies.test_queues import held
from tests.policies.test_shares_hold import job, node

FAIR = pytest.mark.parametrize("name", ["fair", "fair+goodput"])
QUEUES = (QueueView("default"), QueueView("victims", guarantee={"cpu": 6}))


def intruders(count: int = 8, *, preemptible: bool = False, on: str = "") -> list[JobView]:
    placed = {on: 1} if on else {}
    return [job(f"e{i}", 1, queue="default", preemptible=preemptible, placed=placed, cpu=1) for i in range(count)]


def used(snapshot: Snapshot, name: str) -> int:
    return sum(held(snapshot, load_policy(name).optimize(snapshot)).values())


@FAIR
def test_what_cannot_be_taken_back_leaves_the_guarantee_of_an_idle_queue_free(name: str) -> None:
    snapshot = build([node(cpu=8)], intruders(), QUEUES)
    plan = load_policy(name).optimize(snapshot)
    assert sum(held(snapshot, plan).values()) == 2
    waits = [reason for reason in plan.reasons if isinstance(reason, LentToPreemptible)]
    assert len(waits) == 6
    assert "is not preemptible, and the guarantees of other queues leave queue 'default'" in waits[0].text()
    later = carry_out(snapshot, plan)
    assert sum(held(later, load_policy(name).optimize(later)).values()) == 2


@FAIR
def test_preemptible_jobs_borrow_it_and_give_it_back(name: str) -> None:
    snapshot = build([node(cpu=8)], intruders(preemptible=True), QUEUES)
    assert used(snapshot, name) == 8
    claimant = job("v", 6, low=6, queue="victims", preemptible=False, created=1.0, cpu=1)
    both = build([node(cpu=8)], [*intruders(preemptible=True, on="n1"), claimant], QUEUES)
    assert held(both, load_policy(name).optimize(both))["v"] == 6


@FAIR
def test_a_queue_may_lend_its_guarantee_to_all_jobs(name: str) -> None:
    queues = (QUEUES[0], replace(QUEUES[1], lends=True))
    assert used(build([node(cpu=8)], intruders(), queues), name) == 8


@FAIR
def test_its_own_guarantee_is_open_to_a_job_that_is_not_preemptible(name: str) -> None:
    mine = [job(f"v{i}", 1, queue="victims", preemptible=False, cpu=1) for i in range(8)]
    assert used(build([node(cpu=8)], mine, QUEUES), name) == 8
    others = [QueueView("default", guarantee={"cpu": 4}), QueueView("victims", guarantee={"cpu": 4})]
    assert used(build([node(cpu=8)], mine, others), name) == 4


@FAIR
def test_a_gang_that_has_lost_replicas_is_completed(name: str) -> None:
    """It holds what it may not have any more, and keeps it."""
    broken = job("e", 8, low=8, queue="default", preemptible=False, placed={"n1": 7}, cpu=1)
    assert used(build([node(cpu=8)], [broken], QUEUES), name) == 8


@FAIR
def test_a_guaranteed_job_is_told_which_queues_hold_its_part(name: str) -> None:
    claimant = job("v", 4, low=4, queue="victims", preemptible=False, priority=1, created=1.0, cpu=1)
    snapshot = build([node(cpu=8)], [*intruders(on="n1"), claimant], QUEUES)
    reason = load_policy(name).optimize(snapshot).reasons[snapshot.job_names.index("v")]
    assert isinstance(reason, GuaranteeHeld)
    assert (reason.queue, reason.lacks, reason.held, reason.where) == ("victims", 4, 8, ("default",))


@pytest.mark.parametrize("name", ["fit", "goodput"])
def test_policies_without_guarantees_keep_none(name: str) -> None:
    assert used(build([node(cpu=8)], intruders(), QUEUES), name) == 8


@pytest.mark.slow
@FAIR
def test_on_random_clusters_fixed_jobs_take_nothing_that_others_could_claim(name: str) -> None:
    policy, seen = load_policy(name), 0
    for first in queue_clusters(11, 400):
        if not first.queue_guarantee.any():
            continue
        snapshot = prepared(first)
        plan, kept = policy.optimize(first), keep_plan(first, "keep")
        before, after = (np.bincount(p.role, p.count, first.roles) for p in (kept, plan))
        for j in np.flatnonzero(~first.job_preemptible & (snapshot.job_queue >= 0)).tolist():
            # Each job of these clusters has one role, of its own index.
            if after[j] > max(before[j], first.role_min[j] if before[j] else 0):
                seen += 1
                assert _over(snapshot, plan, j) == [], first.job_names[j]
    assert seen > 15


def _over(snapshot: Snapshot, plan: Plan, job_index: int) -> list[str]:
    """Resources of which the job gets more than the guarantees of the queues beside its own leave it."""
    s = snapshot
    mine = s.role_job[plan.role] == job_index
    asks = s.role_request[s.role_job == job_index].sum(axis=0) > 0
    gets = (s.role_request[plan.role] * plan.count[:, None])[mine].sum(axis=0)
    room = fixed_room(s, replace(plan, count=np.where(mine, 0, plan.count)), job_index)
    return [name for r, name in enumerate(s.resources) if asks[r] and gets[r] > room[r]]

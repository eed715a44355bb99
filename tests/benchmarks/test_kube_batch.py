"""The baseline behaves as kube-batch does, including its weaknesses; otherwise the comparison would be unfair."""

from __future__ import annotations

import pytest

from benchmarks.queue_streams.kube_batch import KubeBatchPolicy
from diflow.allocator.model.plan import Plan
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.validate import faults
from diflow.allocator.model.views import JobView, NodeView, QueueView, RoleView, build
from tests.policies.generators import snapshots

QUEUES = [QueueView("a"), QueueView("b")]


def gang(
    name: str, most: int, *, least: int = 0, queue: str = "a", has: int = 0, priority: int = 0, **request: int
) -> JobView:
    return JobView(
        name,
        (RoleView("task", request or {"cpu": 1}, minimum=least or most, maximum=most, desired=most),),
        queue=queue,
        priority=priority,
        started_seconds=0.0 if has else None,
        placed={"task": {"n": has}} if has else {},
    )


def held(snapshot: Snapshot) -> dict[str, int]:
    plan: Plan = KubeBatchPolicy().optimize(snapshot)
    assert faults(snapshot, plan) == []
    out = dict.fromkeys(snapshot.job_names, 0)
    for role, count in zip(plan.role.tolist(), plan.count.tolist(), strict=True):
        out[snapshot.job_names[int(snapshot.role_job[role])]] += count
    return out


def node(cpu: int, **more: int) -> list[NodeView]:
    return [NodeView("n", {"cpu": cpu, **more})]


def test_two_queues_get_a_pod_each() -> None:
    jobs = [gang("x", 2, least=1), gang("y", 2, least=1, queue="b")]
    assert held(build(node(2), jobs, QUEUES)) == {"x": 1, "y": 1}


def test_a_gang_that_does_not_fit_holds_nobody_back_and_nothing_is_kept_for_it() -> None:
    assert held(build(node(4), [gang("x", 5), gang("y", 3)])) == {"x": 0, "y": 3}


def test_a_queue_that_holds_what_it_deserves_in_every_resource_is_passed_over() -> None:
    # Each of them deserves 2, and 2 are left idle: b cannot use them whole.
    jobs = [gang("x", 2, has=2), gang("y", 1), gang("z", 3, queue="b")]
    assert held(build(node(4), jobs, QUEUES)) == {"x": 2, "y": 0, "z": 0}


def test_with_a_plentiful_resource_it_is_not() -> None:
    jobs = [gang("x", 2, has=2), gang("y", 1), gang("z", 3, queue="b")]
    assert held(build(node(4, pods=110), jobs, QUEUES)) == {"x": 2, "y": 1, "z": 0}


def test_a_higher_priority_takes_single_replicas_of_its_queue() -> None:
    jobs = [gang("x", 3, least=1, has=3), gang("y", 2, priority=1)]
    assert held(build(node(3), jobs)) == {"x": 1, "y": 2}


def test_no_whole_gang_of_two_is_stopped_and_nothing_is_taken_in_vain() -> None:
    jobs = [gang("x", 2, has=2), gang("z", 1, has=1), gang("y", 2, priority=1)]
    assert held(build(node(3), jobs)) == {"x": 2, "z": 1, "y": 0}


def test_a_queue_takes_from_another_that_keeps_what_it_deserves() -> None:
    jobs = [gang("x", 4, least=1, has=4), gang("y", 2, queue="b")]
    assert held(build(node(4), jobs, QUEUES)) == {"x": 2, "y": 2}


def test_it_takes_nothing_when_the_other_is_below_what_it_deserves_of_a_plentiful_resource() -> None:
    jobs = [gang("x", 8, least=1, has=8), gang("y", 4, queue="b")]
    assert held(build(node(8, pods=110), jobs, QUEUES)) == {"x": 8, "y": 0}


def test_who_started_in_this_cycle_is_no_victim_in_it() -> None:
    jobs = [gang("x", 1), gang("y", 1, priority=1), gang("z", 1, has=1)]
    assert held(build(node(2), jobs)) == {"x": 0, "y": 1, "z": 1}


def test_what_asks_for_nothing_starts_on_a_full_cluster() -> None:
    jobs = [gang("x", 2, has=2), gang("y", 3, pods=0)]
    assert held(build(node(2), jobs)) == {"x": 2, "y": 3}


@pytest.mark.parametrize("seed", range(3))
def test_its_plans_are_sound(seed: int) -> None:
    policy = KubeBatchPolicy()
    for snapshot in snapshots(seed, 100):
        assert faults(snapshot, policy.optimize(snapshot)) == []

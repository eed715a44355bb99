"""Queues hold their shares on realistic nodes: every pod requests cpu, memory and one of 110 pods.

Each case is tested with every policy that it applies to. `fit` and `goodput` ignore queues except for caps, so shares
and guarantees do not apply to them. Inside a queue `fair+goodput` goes by the value of work: equal parts, ageing, and
small jobs that borrow capacity reserved for a gang of their queue do not apply to it. Reservations of `fit` and
`goodput` are not lent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from diflow.allocator.model.arrays import frozen
from diflow.allocator.model.plan import Plan, carry_out, changes, evictions
from diflow.allocator.model.reasons import GaveBackReservation, PolicyFailed, ReclaimedByGuarantee
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.validate import faults
from diflow.allocator.model.views import PODS, JobView, NodeView, QueueView, RoleView, build
from diflow.allocator.policies.base import load_policy
from diflow.allocator.policies.fair.cycle import Cycle
from diflow.allocator.policies.fair.policy import FairPolicy
from diflow.allocator.policies.fair.prepared import prepared
from diflow.allocator.policies.fair.shares import deserved, queue_demand
from diflow.allocator.policies.fair.state import State
from diflow.allocator.policies.settings import PolicySettings
from tests.policies import judging, laws
from tests.policies.field.rows import linear
from tests.policies.generators import snapshots
from tests.policies.queue_clusters import queue_clusters
from tests.policies.queue_laws import queues_hold
from tests.policies.test_queues import held

REAL = {"memory": 1, PODS: 1}


def node(name: str = "n1", **amounts: int) -> NodeView:
    return NodeView(name, {"memory": 1000, PODS: 110, **amounts})


def job(
    name: str,
    replicas: int,
    *,
    low: int = 1,
    queue: str = "default",
    priority: int = 0,
    created: float = 0.0,
    placed: dict[str, int] | None = None,
    since: float | None = None,
    preemptible: bool = True,
    **request: int,
) -> JobView:
    return JobView(
        name,
        (RoleView("task", {**REAL, **request}, minimum=low, maximum=replicas, desired=replicas),),
        queue=queue,
        priority=priority,
        created_seconds=created,
        preemptible=preemptible,
        profile=linear(replicas),
        placed={"task": placed or {}},
        started_seconds=(created if since is None else since) if placed else None,
        changed_seconds=(created if since is None else since) if placed else None,
    )


def fair(snapshot: Snapshot, **settings: object) -> Plan:
    return FairPolicy(PolicySettings(**settings)).optimize(snapshot)  # type: ignore[arg-type]


def result(snapshot: Snapshot, name: str = "fair") -> dict[str, int]:
    """What all jobs hold after a cycle of this policy, which the next one does not change."""
    policy = load_policy(name)
    plan = policy.optimize(snapshot)
    assert faults(snapshot, plan) == []
    assert changes(policy.optimize(carry_out(snapshot, plan))) == 0
    return held(snapshot, plan)


def of(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", names)


@of("fit", "fair", "fair+goodput")
def test_a_plentiful_resource_does_not_keep_a_queue_from_reclaiming(name: str) -> None:
    jobs = [
        job("a", 8, queue="q1", placed={"n1": 8}, cpu=1),
        job("b", 4, queue="q2", created=1.0, cpu=1),
    ]
    queues = [QueueView("q1"), QueueView("q2")]
    offers: tuple[dict[str, Any], ...] = ({"cpu": 8}, {"cpu": 8, PODS: 8}, {"cpu": 8, PODS: 8, "memory": 8})
    for resources in offers:
        assert result(build([node(**resources)], jobs, queues), name) == {"a": 4, "b": 4}


@pytest.mark.slow
@of("fair", "fair+goodput")
def test_no_queue_that_deserves_a_replica_is_left_with_nothing_on_random_clusters(name: str) -> None:
    policy = load_policy(name)
    rng = np.random.default_rng(1)
    seen = 0
    for _ in range(300):
        queues = [QueueView(f"q{i}", weight=float(rng.integers(1, 4))) for i in range(int(rng.integers(2, 5)))]
        nodes = [node(f"n{i}", cpu=int(rng.integers(4, 17))) for i in range(int(rng.integers(1, 4)))]
        first = {n.name: n.allocatable["cpu"] for n in nodes}
        jobs = [job("holder", 64, queue="q0", placed=first, cpu=1)]
        jobs += [
            job(f"j{i}", int(rng.integers(1, 9)), queue=q.name, created=1.0, cpu=1) for i, q in enumerate(queues[1:])
        ]
        snapshot = build(nodes, jobs, queues)
        share = deserved(snapshot, queue_demand(snapshot, snapshot.role_desired))
        got = held(snapshot, policy.optimize(snapshot))
        cpu = snapshot.resources.index("cpu")
        for i, queue in enumerate(queues[1:]):
            if share[snapshot.queue_names.index(queue.name), cpu] >= 1:
                seen += 1
                assert got[f"j{i}"] >= 1
    assert seen > 300


@of("fair", "fair+goodput")
def test_siblings_reclaim_from_each_other(name: str) -> None:
    jobs = [
        job("a", 8, queue="ann", placed={"n1": 8}, cpu=1),
        job("b", 8, queue="bob", created=1.0, cpu=1),
    ]
    queues = [QueueView("team"), QueueView("ann", parent="team"), QueueView("bob", parent="team")]
    assert result(build([node(cpu=8)], jobs, queues), name) == {"a": 4, "b": 4}
    more = [*queues, QueueView("other")]
    assert result(build([node(cpu=8)], [*jobs, job("o", 8, queue="other", cpu=1)], more), name) == {
        "a": 2,
        "b": 2,
        "o": 4,
    }


@of("fit", "fair", "fair+goodput")
def test_a_cap_counts_what_victims_release(name: str) -> None:
    jobs = [
        job("low", 3, low=3, queue="q", placed={"n1": 3}, cpu=1),
        job("high", 3, low=3, queue="q", priority=1, created=1.0, cpu=1),
    ]
    snapshot = build([node(cpu=16)], jobs, [QueueView("q", cap={"cpu": 4})])
    assert result(snapshot, name) == {"low": 0, "high": 3}
    # On another node as well.
    jobs[1] = job("high", 3, low=3, queue="q", priority=1, created=1.0, cpu=1, gpu=1)
    snapshot = build([node(cpu=16), node("n2", cpu=8, gpu=8)], jobs, [QueueView("q", cap={"cpu": 4})])
    assert result(snapshot, name) == {"low": 0, "high": 3}


@of("fair", "fair+goodput")
def test_users_share_their_teams_cap(name: str) -> None:
    jobs = [
        job("a", 4, queue="ann", placed={"n1": 4}, cpu=1),
        job("b", 4, low=2, queue="bob", created=1.0, cpu=1),
    ]
    queues = [QueueView("team", cap={"cpu": 4}), QueueView("ann", parent="team"), QueueView("bob", parent="team")]
    assert result(build([node(cpu=16)], jobs, queues), name) == {"a": 2, "b": 2}


@of("fit", "fair", "fair+goodput")
def test_shares_that_are_not_whole_replicas_are_reached(name: str) -> None:
    jobs = [
        job("a", 2, queue="q1", placed={"n1": 2}, cpu=1),
        job("b", 2, queue="q2", placed={"n1": 2}, cpu=1),
        job("c", 2, queue="q3", created=1.0, cpu=1),
    ]
    got = result(build([node(cpu=4)], jobs, [QueueView(f"q{i}") for i in (1, 2, 3)]), name)
    assert sorted(got.values()) == [1, 1, 2]
    assert got["c"] >= 1


@of("fair", "fair+goodput")
def test_a_guarantee_ranks_above_the_surplus_of_others(name: str) -> None:
    jobs = [
        job("a", 4, low=4, queue="none", placed={"n1": 4}, cpu=1),
        job("b", 4, low=4, queue="none", placed={"n1": 4}, cpu=1),
        job("c", 1, queue="sure", created=1.0, cpu=1),
    ]
    queues = [QueueView("none", weight=0), QueueView("sure", guarantee={"cpu": 1})]
    got = result(build([node(cpu=8)], jobs, queues), name)
    assert got["c"] == 1
    assert sorted((got["a"], got["b"])) == [0, 4]


@of("fit", "fair", "goodput", "fair+goodput")
def test_a_gang_that_lost_replicas_is_completed(name: str) -> None:
    broken = job("gang", 3, low=3, placed={"n1": 2}, cpu=1)
    assert result(build([node(cpu=10)], [broken], [QueueView("default")]), name) == {"gang": 3}


@of("fit", "fair", "fair+goodput")
def test_a_parents_own_jobs_have_a_part_of_their_own(name: str) -> None:
    jobs = [
        job("own", 8, queue="team", placed={"n1": 8}, cpu=1),
        job("b", 8, queue="bob", created=1.0, cpu=1),
    ]
    queues = [QueueView("team"), QueueView("bob", parent="team")]
    assert result(build([node(cpu=8)], jobs, queues), name) == {"own": 4, "b": 4}


@pytest.mark.parametrize("ages", [(0.0, 0.0, 0.0), (0.0, 10.0, 5.0), (5.0, 10.0, 0.0)])
@of("fair", "fair+goodput")
def test_age_does_not_override_guarantees_or_shares(name: str, ages: tuple[float, float, float]) -> None:
    jobs = [job(f"j{i}", 1, queue=f"q{i}", created=age, cpu=1) for i, age in enumerate(ages)]
    queues = [
        QueueView("q0", weight=1.0),
        QueueView("q1", weight=0.0, guarantee={"cpu": 1}),
        QueueView("q2", weight=5.0),
    ]
    jobs[0] = job("j0", 6, low=1, queue="q0", created=ages[0], cpu=1)
    jobs[2] = job("j2", 6, low=1, queue="q2", created=ages[2], cpu=1)
    snapshot = build([node(cpu=2)], jobs, queues, now_seconds=1000.0)
    assert result(snapshot, name) == {"j0": 0, "j1": 1, "j2": 1}


def borrowed_cluster(now: float, *, preemptible: bool) -> Snapshot:
    """A gang of 16 that waits for one of 8, which `goodput` would stop at once if it could, and 12 small jobs."""
    nodes = [node(f"n{i}", gpu=8, cpu=64) for i in range(3)]
    jobs = [
        job("eight", 8, low=8, placed={"n0": 8}, gpu=1, preemptible=preemptible),
        job("two", 2, low=2, placed={"n1": 2}, gpu=1, preemptible=False),
        job("sixteen", 16, low=16, created=1.0, gpu=1),
    ]
    jobs += [job(f"one{i:02}", 1, created=2.0 + i, gpu=1, preemptible=preemptible) for i in range(12)]
    return build(nodes, jobs, [QueueView("default")], now_seconds=now)


def test_preemptible_jobs_borrow_the_capacity_that_is_reserved_for_a_gang() -> None:
    snapshot = borrowed_cluster(1000.0, preemptible=True)
    got = held(snapshot, fair(snapshot))
    assert got["eight"] == 8
    assert sum(got[f"one{i:02}"] for i in range(12)) == 12


@of("fit", "fair", "goodput", "fair+goodput")
def test_a_reservation_ends_and_returns_for_twice_as_long(name: str) -> None:
    """After three times its length, and not for jobs that ran through all of it: they may never end."""

    def small_jobs(now: float, *, began: float = 0.0) -> int:
        snapshot = borrowed_cluster(now, preemptible=False)
        runs = snapshot.jobs_of(snapshot.held_role)
        started = frozen(np.where(runs, began, snapshot.job_started_seconds))
        created = frozen(np.where(runs, began, snapshot.job_created_seconds))
        got = result(replace(snapshot, job_started_seconds=started, job_created_seconds=created), name)
        return sum(got[f"one{i:02}"] for i in range(12))

    begins, length, pause = 301.0, 1800.0, 3 * 1800.0
    assert small_jobs(begins + 1.0) == 0
    assert small_jobs(begins + length - 1.0) == 0
    assert small_jobs(begins + length) == 12
    again = begins + length + pause
    assert small_jobs(again - 1.0, began=1000.0) == 12
    assert small_jobs(again + 1.0, began=1000.0) == 0
    assert small_jobs(again + 1.0) == 12
    assert small_jobs(again + 2 * length - 1.0, began=1000.0) == 0
    assert small_jobs(again + 2 * length, began=1000.0) == 12


def test_borrowers_give_back_the_capacity_as_soon_as_the_gang_can_start() -> None:
    nodes = [node(f"n{i}", gpu=8, cpu=64) for i in range(3)]
    jobs = [
        job("two", 2, low=2, placed={"n1": 2}, gpu=1, preemptible=False),
        job("sixteen", 16, low=16, created=1.0, gpu=1),
    ]
    places = ["n0"] * 8 + ["n1"] * 4
    jobs += [
        job(f"one{i:02}", 1, created=2.0 + i, gpu=1, placed={where: 1}, since=400.0) for i, where in enumerate(places)
    ]
    snapshot = build(nodes, jobs, [QueueView("default")], now_seconds=1000.0)
    plan = fair(snapshot)
    got = held(snapshot, plan)
    assert got["sixteen"] == 16
    assert evictions(snapshot, plan) == sum(1 for i in range(12) if not got[f"one{i:02}"]) == 6
    stopped = next(i for i in range(12) if not got[f"one{i:02}"])
    assert isinstance(plan.reasons[snapshot.job_names.index(f"one{stopped:02}")], GaveBackReservation)


@pytest.mark.parametrize("name", ["fit", "fair"])
def test_an_elastic_job_shares_its_surplus_with_a_newcomer_of_its_queue(name: str) -> None:
    jobs = [job("old", 8, placed={"n1": 8}, cpu=1), job("new", 8, created=1.0, cpu=1)]
    snapshot = build([node(cpu=8)], jobs, [QueueView("default")])
    assert held(snapshot, load_policy(name).optimize(snapshot)) == {"old": 4, "new": 4}


def test_a_gang_ages_above_a_flow_of_urgent_jobs_where_that_is_set() -> None:
    jobs = [job("urgent", 4, low=4, priority=2, created=5000.0, cpu=1), job("patient", 4, low=4, created=0.0, cpu=1)]
    snapshot = build([node(cpu=4)], jobs, [QueueView("default")], now_seconds=5000.0)
    assert held(snapshot, fair(snapshot)) == {"urgent": 4, "patient": 0}
    assert held(snapshot, fair(snapshot, ageing_seconds=2000.0)) == {"urgent": 0, "patient": 4}
    # It keeps its aged priority when the next one comes.
    after = carry_out(snapshot, fair(snapshot, ageing_seconds=2000.0))
    assert changes(fair(after, ageing_seconds=2000.0)) == 0


@of("fair", "fair+goodput")
def test_a_gang_that_runs_grows_to_its_queues_share_in_the_place_of_anothers_surplus(name: str) -> None:
    jobs = [job("a", 8, queue="q1", placed={"n1": 6}, cpu=1), job("b", 8, queue="q2", placed={"n1": 2}, cpu=1)]
    # After an hour: for a job that has just started a restart does not pay yet.
    snapshot = build([node(cpu=8)], jobs, [QueueView("q1"), QueueView("q2")], now_seconds=4000.0)
    assert result(snapshot, name) == {"a": 4, "b": 4}


@of("fair", "fair+goodput")
def test_a_gang_above_its_queues_share_starts_while_no_other_job_asks_and_is_kept_or_stopped_whole_then(
    name: str,
) -> None:
    queues = [QueueView("q1"), QueueView("q2")]
    small, gang = job("b", 1, queue="q2", placed={"n1": 1}, cpu=1), job("a", 6, low=6, queue="q1", created=1.0, cpu=1)
    other = job("c", 3, low=3, queue="q2", created=2.0, cpu=1)
    assert result(build([node(cpu=7)], [small, gang], queues), name) == {"b": 1, "a": 6}
    runs = job("a", 6, low=6, queue="q1", created=1.0, placed={"n1": 6}, cpu=1)
    got = result(build([node(cpu=7)], [small, runs, other, job("d", 3, queue="q1", created=3.0, cpu=1)], queues), name)
    assert got == ({"b": 1, "a": 6, "c": 0, "d": 0} if got["a"] else {"b": 1, "a": 0, "c": 3, "d": 3})


@pytest.mark.slow
def test_with_one_queue_fair_with_goodput_decides_as_goodput_does() -> None:
    one, other = load_policy("goodput"), load_policy("fair+goodput")
    seen = 0
    for snapshot in snapshots(4242, 400):
        if snapshot.queues == 1 and not snapshot.facts.capped:
            seen += 1
            mine, theirs = one.optimize(snapshot), other.optimize(snapshot)
            assert mine.to_bytes(snapshot).replace(b'"goodput"', b'"fair+goodput"') == theirs.to_bytes(snapshot)
    assert seen > 150


@pytest.mark.parametrize("priorities", [(0, 1), (100, 1000), (-1_000_000, 1_000_000_000)])
def test_goodput_distinguishes_priorities_however_far_apart_they_are(priorities: tuple[int, int]) -> None:
    low, high = priorities
    jobs = [
        job("old", 1, priority=low, placed={"n1": 1}, cpu=1),
        job("new", 1, priority=high, created=1.0, cpu=1),
    ]
    assert result(build([node(cpu=1)], jobs, [QueueView("default")]), "goodput") == {"old": 0, "new": 1}


def test_a_queue_without_gpus_gives_no_cores_below_its_share_to_one_with_gpus() -> None:
    jobs = [
        job("a", 5, low=5, queue="q1", placed={"n1": 5}, cpu=1),
        job("b", 8, queue="q2", placed={"n1": 3}, cpu=1, gpu=1),
    ]
    snapshot = build([node(cpu=8, gpu=4)], jobs, [QueueView("q1", weight=5), QueueView("q2", weight=3)])
    assert result(snapshot) == {"a": 5, "b": 3}


def test_cores_are_shared_where_gpus_are_lacked_by_others() -> None:
    jobs = [
        job("cores", 8, queue="q1", created=1.0, cpu=1),
        job("gpus", 8, queue="q2", created=0.0, cpu=1, gpu=1),
    ]
    snapshot = build([node(cpu=8, gpu=4)], jobs, [QueueView("q1"), QueueView("q2")])
    assert result(snapshot) == {"cores": 4, "gpus": 4}


def test_the_priority_of_surplus_keeps_no_other_queue_below_its_share() -> None:
    jobs = [
        job("fixed", 3, low=3, queue="q1", placed={"n1": 3}, preemptible=False, cpu=1),
        job("urgent", 5, queue="q1", priority=2, placed={"n1": 5}, cpu=1),
        job("b", 8, queue="q2", created=1.0, cpu=1),
    ]
    snapshot = build([node(cpu=8)], jobs, [QueueView("q1"), QueueView("q2")])
    assert result(snapshot) == {"fixed": 3, "urgent": 1, "b": 4}


def test_a_queue_reaches_its_share_although_an_urgent_job_must_stop_for_it_first() -> None:
    jobs = [
        job("urgent", 1, queue="q1", priority=2, placed={"n1": 1}, gpu=1),
        job("gang", 2, low=2, queue="q1", priority=1, placed={"n1": 2}, gpu=1),
        job("b", 2, queue="q2", created=1.0, gpu=1),
    ]
    snapshot = build([node(gpu=3)], jobs, [QueueView("q1"), QueueView("q2")])
    # "b" takes what q1 holds above its share, which is "urgent"; inside q1 "urgent" then takes the place of "gang".
    assert result(snapshot) == {"urgent": 1, "gang": 0, "b": 2}


def test_a_guarantee_of_plenty_keeps_no_surplus_of_what_is_scarce() -> None:
    jobs = [job("a", 8, queue="q1", placed={"n1": 8}, cpu=1), job("b", 8, queue="q2", created=1.0, cpu=1)]
    queues = [QueueView("q1", guarantee={"memory": 500}), QueueView("q2")]
    assert result(build([node(cpu=8)], jobs, queues)) == {"a": 4, "b": 4}


def test_a_users_guarantee_holds_where_only_teams_compete() -> None:
    jobs = [
        job("a", 4, low=4, queue="ann", placed={"n1": 4}, cpu=1),
        job("b", 8, low=4, queue="other", created=1.0, placed={"n1": 4}, cpu=1),
        job("c", 4, low=4, queue="third", created=2.0, cpu=1),
    ]
    queues = [QueueView("team"), QueueView("ann", parent="team", guarantee={"cpu": 4}), QueueView("other", weight=2)]
    snapshot = build([node(cpu=8)], jobs, [*queues, QueueView("third")])
    assert result(snapshot)["a"] == 4


def test_replicas_are_taken_where_they_free_enough() -> None:
    jobs = [
        job("a", 4, queue="q1", placed={"n1": 3, "n2": 1}, cpu=2),
        job("b", 2, low=1, queue="q2", created=1.0, cpu=4),
    ]
    snapshot = build([node(cpu=6), node("n2", cpu=2)], jobs, [QueueView("q1"), QueueView("q2")])
    assert result(snapshot) == {"a": 2, "b": 1}


def test_replicas_are_taken_from_the_node_where_few_are_enough() -> None:
    jobs = [
        job("a", 5, low=3, queue="q1", placed={"n1": 4, "n2": 1}, cpu=1),
        job("b", 4, queue="q2", placed={"n1": 1}, cpu=2),
        job("fixed", 3, low=3, queue="q3", placed={"n2": 3}, preemptible=False, cpu=1),
    ]
    queues = [QueueView("q1", weight=3), QueueView("q2", weight=4), QueueView("q3", weight=3)]
    assert result(build([node(cpu=6), node("n2", cpu=4)], jobs, queues)) == {"a": 3, "b": 2, "fixed": 3}


def test_jobs_of_a_queue_share_no_replicas_that_its_guarantee_needs() -> None:
    jobs = [
        job("old", 2, queue="q1", placed={"n1": 2}, cpu=1, memory=4),
        job("new", 1, queue="q1", created=1.0, cpu=1, memory=1),
        job("other", 3, queue="q2", placed={"n1": 1}, cpu=1, memory=4),
    ]
    nodes = [node(cpu=3, memory=12)]
    assert result(build(nodes, jobs, [QueueView("q1"), QueueView("q2")])) == {"old": 1, "new": 1, "other": 1}
    queues = [QueueView("q1", guarantee={"memory": 8}), QueueView("q2")]
    assert result(build(nodes, jobs, queues)) == {"old": 2, "new": 0, "other": 1}


def test_a_guarantee_counts_between_users_only_of_what_they_lack() -> None:
    jobs = [
        job("a", 8, queue="ann", placed={"n1": 8}, gpu=1),
        job("b", 8, queue="bob", created=1.0, gpu=1),
        job("other", 40, queue="other", created=2.0, preemptible=False),
    ]
    queues = [
        QueueView("team"),
        QueueView("ann", parent="team", guarantee={"memory": 11}),
        QueueView("bob", parent="team"),
        QueueView("other", weight=0),
    ]
    found = result(build([node(gpu=8, memory=24)], jobs, queues))
    assert (found["a"], found["b"]) == (4, 4)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "number"), [(2, 2470), (4, 125)])
def test_exchanges_between_queues_come_to_an_end(seed: int, number: int) -> None:
    *_, snapshot = queue_clusters(seed, number + 1)
    settings = PolicySettings()
    cycle = Cycle(State(prepared(snapshot), settings))
    cycle.decided_by(settings.steps, "fair")
    assert cycle.transactions.searches < 32


def test_jobs_of_a_queue_share_nothing_that_another_queue_would_take() -> None:
    jobs = [
        job("cores", 4, queue="q1", placed={"n1": 2}, cpu=1),
        job("new", 1, queue="q1", created=1.0, cpu=1, gpu=1),
        job("gpus", 4, queue="q2", placed={"n1": 3}, cpu=1, gpu=1),
    ]
    # q1 deserves two cores and no GPU.
    queues = [QueueView("q1", weight=0, guarantee={"cpu": 2}), QueueView("q2")]
    assert result(build([node(cpu=5, gpu=4)], jobs, queues)) == {"cores": 2, "new": 0, "gpus": 3}


def test_sharing_inside_a_queue_starts_no_exchanges_that_repeat_forever() -> None:
    *_, snapshot = queue_clusters(5030, 60)
    assert queues_hold(snapshot, fair(snapshot)) == []


def test_a_preemption_inside_a_queue_that_costs_its_guarantee_is_not_compensated_by_another_queue() -> None:
    *_, snapshot = queue_clusters(6, 547)
    assert queues_hold(snapshot, fair(snapshot)) == []


@pytest.mark.slow
def test_where_no_exchange_is_worth_it_idle_capacity_is_still_given() -> None:
    *_, snapshot = queue_clusters(4, 1709)
    plan = fair(snapshot)
    assert not any(isinstance(reason, PolicyFailed) for reason in plan.reasons)


def test_a_queue_that_deserves_nothing_of_a_resource_has_taken_it_by_its_guarantee() -> None:
    *_, snapshot = queue_clusters(5006, 842)
    plan = fair(snapshot)
    # "j1" took from "j2", by the guarantee of its queue, what "j2" took from "j0".
    reason = plan.reasons[snapshot.job_names.index("j0")]
    assert isinstance(reason, ReclaimedByGuarantee)
    assert reason.job == "j1"


def lawful(snapshot: Snapshot) -> dict[str, int]:
    """What all jobs hold after a cycle of `fair` that breaks no law."""
    policy = FairPolicy()
    plan = policy.optimize(snapshot)
    found = [*judging.cheap(policy, snapshot, plan), *queues_hold(snapshot, plan)]
    assert found + laws.settles(policy, snapshot, plan) == []
    return held(snapshot, plan)


def test_a_pinned_job_that_gets_nothing_does_not_speak_for_jobs_that_can_use_other_nodes() -> None:
    home = replace(job("home", 2, queue="q1", placed={"n1": 1}, cpu=1), pinned=True)
    jobs = [
        home,
        job("roams", 2, queue="q1", placed={"n1": 1}, cpu=1),
        job("large", 6, queue="q2", placed={"n2": 6}, cpu=1),
    ]
    snapshot = build([node(cpu=2), node("n2", cpu=6)], jobs, [QueueView("q1"), QueueView("q2")])
    assert lawful(snapshot) == {"home": 1, "roams": 2, "large": 5}


def test_a_lost_guarantee_of_one_resource_does_not_count_as_another_one() -> None:
    """Inside queue a, `first` stops `gpus`, which alone used the guaranteed GPU, and is stopped for the share of b. So
    a loses the guarantee of a GPU, but none of cores, whatever the priorities of the jobs that hold them."""
    jobs = [
        job("first", 4, low=3, queue="a", priority=2, placed={"n2": 4}, cpu=1),
        job("gpus", 8, low=5, queue="a", placed={"n1": 4, "n3": 4}, cpu=1, gpu=1),
        job("cores", 13, queue="a", placed={"n1": 12}, preemptible=False, cpu=1),
        job("wants", 12, low=5, queue="b", created=1.0, cpu=1, gpu=1),
        job("sure", 5, low=2, queue="c", created=1.0, preemptible=False, cpu=1),
    ]
    queues = [
        QueueView("a", weight=0, guarantee={"cpu": 12, "gpu": 1}),
        QueueView("b", weight=2),
        QueueView("c", weight=0, guarantee={"cpu": 5}),
    ]
    nodes = [node(cpu=16, gpu=4), node("n2", cpu=4, gpu=4), node("n3", cpu=4, gpu=4)]
    assert lawful(build(nodes, jobs, queues)) == {"first": 0, "gpus": 0, "cores": 13, "wants": 6, "sure": 5}


@pytest.mark.parametrize("sure", [0, 5])
def test_what_a_stopped_job_does_to_its_queue_is_part_of_the_exchange(sure: int) -> None:
    """q1 holds eight and deserves five. Without `first`, which takes the place of `often` by its priority, only three
    are left to it: no less than another queue has, but less than a guarantee of five."""
    often = replace(job("often", 5, low=5, queue="q1", placed={"n1": 5}, cpu=1), restarts=3)
    first = job("first", 3, low=3, queue="q1", priority=1, created=1.0, placed={"n1": 3}, cpu=1)
    claims = job("claims", 8, low=2, queue="q2", created=2.0, cpu=1)
    queues = [QueueView("q1", weight=5, guarantee={"cpu": sure}), QueueView("q2", weight=3)]
    found = lawful(build([node(cpu=8)], [often, first, claims], queues))
    assert found == ({"often": 5, "first": 3, "claims": 0} if sure else {"often": 0, "first": 3, "claims": 5})


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "number"), [(15, 1223), (18, 1078), (1005, 2003), (1008, 1775)])
def test_what_takes_the_place_of_a_stopped_job_is_judged_too(seed: int, number: int) -> None:
    *_, snapshot = queue_clusters(seed, number + 1)
    lawful(snapshot)

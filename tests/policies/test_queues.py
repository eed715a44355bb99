"""The queue semantics with numbers: every known fault of kube-batch, and its own tests, each as one case."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from diflow.allocator.model.plan import Action, Plan, carry_out, changes, evictions
from diflow.allocator.model.reasons import Crowded
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.validate import faults
from diflow.allocator.model.views import PODS, JobView, NodeView, QueueView, RoleView, build
from diflow.allocator.policies.base import load_policy
from diflow.allocator.policies.fair.policy import FairPolicy
from diflow.allocator.policies.fair.shares import deserved, queue_demand, water_fill
from diflow.allocator.policies.settings import NodeOrder, PolicySettings
from diflow.allocator.reasons import reason_texts
from diflow.common.predicates import Requirement, Taint, Toleration, Where
from tests.policies.halfway import carry_out_first_step


def node(name: str = "n1", *, foreign: dict[str, int] | None = None, **amounts: int) -> NodeView:
    return NodeView(name, amounts, foreign=foreign or {})


def gang(
    name: str,
    replicas: int,
    *,
    low: int = 1,
    queue: str = "default",
    priority: int = 0,
    created: float = 0.0,
    placed: dict[str, int] | None = None,
    preemptible: bool = True,
    **request: int,
) -> JobView:
    return JobView(
        name,
        (RoleView("task", request, minimum=low, maximum=replicas, desired=replicas),),
        queue=queue,
        priority=priority,
        created_seconds=created,
        preemptible=preemptible,
        placed={"task": placed or {}},
        started_seconds=created if placed else None,
    )


def held(snapshot: Snapshot, plan: Plan) -> dict[str, int]:
    assert faults(snapshot, plan) == []
    out = dict.fromkeys(snapshot.job_names, 0)
    for role, count in zip(plan.role, plan.count, strict=True):
        out[snapshot.job_names[int(snapshot.role_job[role])]] += int(count)
    return out


def fair(snapshot: Snapshot) -> Plan:
    return FairPolicy().optimize(snapshot)


def test_a_queues_of_weight_one_on_12_cpu_asking_2_20_20_deserve_2_5_5() -> None:
    queues = [QueueView(name) for name in "abc"]
    jobs = [gang(q, n, queue=q, cpu=1) for q, n in zip("abc", (2, 20, 20), strict=True)]
    snapshot = build([node(cpu=12)], jobs, queues)
    shares = deserved(snapshot, queue_demand(snapshot, snapshot.role_desired))
    assert shares[:, 0].tolist() == [2, 5, 5]
    assert held(snapshot, fair(snapshot)) == {"a": 2, "b": 5, "c": 5}


def test_b_one_queue_of_cpu_and_one_of_gpu_both_run() -> None:
    snapshot = build(
        [node(cpu=10, gpu=10)],
        [
            gang("A", 8, low=8, queue="a", cpu=1),
            JobView(
                "B",
                (RoleView("cpu", {"cpu": 1}, 2, 2), RoleView("gpu", {"gpu": 1}, 10, 10)),
                queue="b",
            ),
        ],
        [QueueView("a"), QueueView("b")],
    )
    assert deserved(snapshot, queue_demand(snapshot, snapshot.role_desired)).tolist() == [[8, 0], [2, 10]]
    assert held(snapshot, fair(snapshot)) == {"A": 8, "B": 12}


def test_c_a_gang_that_does_not_fit_holds_nothing_back() -> None:
    nodes = [*(node(f"small{i}", cpu=32) for i in range(3)), *(node(f"large{i}", cpu=40) for i in range(3))]
    snapshot = build(nodes, [gang("big", 6, low=4, cpu=35), gang("small", 1, created=1.0, cpu=1)])
    assert held(snapshot, fair(snapshot)) == {"big": 0, "small": 1}
    snapshot = build([node(cpu=10)], [gang("first", 3, low=3, cpu=4), gang("second", 1, created=1.0, cpu=3)])
    assert held(snapshot, fair(snapshot)) == {"first": 0, "second": 1}


def test_d_a_gang_loses_all_or_what_is_above_its_minimum() -> None:
    running = gang("low", 4, low=3, placed={"n1": 4}, cpu=1)
    for high in (gang("high", 2, low=2, priority=1, cpu=1), gang("high", 1, priority=1, cpu=2)):
        snapshot = build([node(cpu=4)], [running, high])
        plan = fair(snapshot)
        assert evictions(snapshot, plan) == 4
        assert held(snapshot, plan) == {"low": 0, "high": high.roles[0].maximum}
        # All or nothing.
        snapshot = build([node(cpu=4)], [dataclasses.replace(running, preemptible=False), high])
        assert evictions(snapshot, fair(snapshot)) == 0
    # One replica above the minimum is enough for one: the gang goes on with 3.
    snapshot = build([node(cpu=4)], [running, gang("high", 1, priority=1, cpu=1)])
    assert held(snapshot, fair(snapshot)) == {"low": 3, "high": 1}


def test_e_two_cycles_of_reclaim_reach_a_fixed_point() -> None:
    snapshot = build(
        [node("n1", cpu=4), node("n2", cpu=4)],
        [
            gang("greedy", 8, queue="a", placed={"n1": 4, "n2": 4}, cpu=1),
            gang("b1", 3, queue="b", cpu=1),
            gang("b2", 3, queue="b", created=1.0, cpu=1),
        ],
        [QueueView("a"), QueueView("b")],
    )
    plan = fair(snapshot)
    result = held(snapshot, plan)
    assert result["greedy"] == 4
    after = carry_out(snapshot, plan)
    assert changes(fair(after)) == 0
    # While the evicted pods are still terminating, no others are evicted for the same request.
    middle = carry_out_first_step(snapshot, plan)
    assert faults(middle, fair(middle)) == []
    assert evictions(middle, fair(middle)) == 0


def test_f_pods_that_are_not_ours_count() -> None:
    snapshot = build([node(cpu=4, foreign={"cpu": 3})], [gang("a", 2, low=2, cpu=1)])
    plan = fair(snapshot)
    assert held(snapshot, plan) == {"a": 0}
    assert plan.reasons[0] == Crowded(2, 1)


def test_a_group_of_two_fits_on_one_node() -> None:
    snapshot = build([node(cpu=2, memory=4)], [gang("a", 2, low=2, cpu=1, memory=1)])
    assert held(snapshot, fair(snapshot)) == {"a": 2}


def test_two_queues_of_one_weight_share_a_node_of_two() -> None:
    jobs = [gang("a", 2, queue="q1", cpu=1), gang("b", 2, queue="q2", cpu=1)]
    snapshot = build([node(cpu=2)], jobs, [QueueView("q1"), QueueView("q2")])
    assert held(snapshot, fair(snapshot)) == {"a": 1, "b": 1}


def test_no_job_is_evicted_while_capacity_is_idle() -> None:
    snapshot = build([node(cpu=3)], [gang("a", 4, placed={"n1": 2}, cpu=1)])
    plan = fair(snapshot)
    assert evictions(snapshot, plan) == 0
    assert held(snapshot, plan) == {"a": 3}


def test_a_higher_priority_of_the_same_queue_takes_two() -> None:
    snapshot = build(
        [node(cpu=2)], [gang("low", 2, placed={"n1": 2}, cpu=1), gang("high", 2, low=2, priority=1, created=1.0, cpu=1)]
    )
    plan = fair(snapshot)
    assert evictions(snapshot, plan) == 2
    assert held(snapshot, plan) == {"low": 0, "high": 2}


def test_a_queue_below_its_share_reclaims_one() -> None:
    snapshot = build(
        [node(cpu=3)],
        [gang("a", 3, queue="q1", placed={"n1": 3}, cpu=1), gang("b", 1, queue="q2", created=1.0, cpu=1)],
        [QueueView("q1"), QueueView("q2")],
    )
    plan = fair(snapshot)
    assert evictions(snapshot, plan) == 1
    assert held(snapshot, plan) == {"a": 2, "b": 1}
    assert "gives way to 'b', whose queue held less of what it deserves" in reason_texts.text(snapshot, plan, 0)


def test_a_gang_is_promised_what_is_being_released_and_bound_only_when_all_of_it_is_ready() -> None:
    nodes = [NodeView("n1", {"cpu": 4}, releasing={"cpu": 3})]
    snapshot = build(nodes, [gang("gang", 3, low=3, cpu=1), gang("small", 1, created=1.0, cpu=1)])
    plan = fair(snapshot)
    assert held(snapshot, plan) == {"gang": 3, "small": 1}
    assert dict(zip(snapshot.job_names, plan.bind_now.tolist(), strict=True)) == {"gang": False, "small": True}


def test_a_preemptor_counts_what_is_idle_first() -> None:
    jobs = [gang("low", 2, placed={"n1": 2}, cpu=1), gang("high", 2, low=2, priority=1, created=1.0, cpu=1)]
    snapshot = build([node(cpu=3)], jobs)
    plan = fair(snapshot)
    assert evictions(snapshot, plan) == 1
    assert held(snapshot, plan) == {"low": 1, "high": 2}


def test_preemption_is_whole_or_not_at_all() -> None:
    """Two of the three replicas that it needs could be taken: none is."""
    jobs = [
        gang("low", 2, placed={"n1": 2}, cpu=1),
        gang("fixed", 2, placed={"n1": 2}, preemptible=False, cpu=1),
        gang("high", 3, low=3, priority=1, created=1.0, cpu=1),
    ]
    snapshot = build([node(cpu=4)], jobs)
    plan = fair(snapshot)
    assert evictions(snapshot, plan) == 0
    assert held(snapshot, plan) == {"low": 2, "fixed": 2, "high": 0}


def test_a_victim_is_of_strictly_lower_priority() -> None:
    old = gang("old", 2, low=2, placed={"n1": 2}, cpu=1)
    for priority, expected in ((0, {"old": 2, "new": 0}), (1, {"old": 0, "new": 1})):
        snapshot = build([node(cpu=2)], [old, gang("new", 1, priority=priority, created=1.0, cpu=1)])
        assert held(snapshot, fair(snapshot)) == expected


def test_a_high_priority_takes_nothing_from_another_queue_that_holds_its_share() -> None:
    jobs = [
        gang("a", 2, queue="a", placed={"n1": 2}, cpu=1),
        gang("b", 2, queue="b", placed={"n1": 2}, preemptible=False, cpu=1),
        gang("b-high", 1, queue="b", priority=9, created=1.0, cpu=1),
    ]
    snapshot = build([node(cpu=4)], jobs, [QueueView("a"), QueueView("b")])
    assert held(snapshot, fair(snapshot)) == {"a": 2, "b": 2, "b-high": 0}


def test_a_queue_gives_back_only_the_resource_that_it_holds_too_much_of() -> None:
    queues = [QueueView("a"), QueueView("b")]
    # All of the CPU, and nothing of the requested GPU: no job is stopped.
    jobs = [gang("a", 8, queue="a", placed={"n1": 8}, cpu=1), gang("b", 1, queue="b", created=1.0, gpu=1)]
    snapshot = build([node(cpu=8, gpu=4)], jobs, queues)
    plan = fair(snapshot)
    assert evictions(snapshot, plan) == 0
    assert held(snapshot, plan) == {"a": 8, "b": 1}
    # All of the GPU as well: one is reclaimed for it.
    jobs = [gang("a", 4, queue="a", placed={"n1": 4}, cpu=1, gpu=1), gang("b", 1, queue="b", created=1.0, gpu=1)]
    snapshot = build([node(cpu=8, gpu=4)], jobs, queues)
    plan = fair(snapshot)
    assert evictions(snapshot, plan) == 1
    assert held(snapshot, plan) == {"a": 3, "b": 1}


def test_the_job_with_the_lower_share_is_served_first() -> None:
    """DRF inside a queue: one holds 2 of 4 GPUs, the other 2 of 12 CPU. The latter gets the last CPU."""
    jobs = [
        gang("gpu", 3, low=1, placed={"n1": 2}, cpu=1, gpu=1),
        gang("cpu", 3, low=1, created=1.0, placed={"n1": 2}, cpu=1),
    ]
    snapshot = build([node(cpu=12, gpu=4, foreign={"cpu": 7})], jobs)
    assert held(snapshot, fair(snapshot)) == {"gpu": 2, "cpu": 3}


SSD = Where(selector=(("disk", "ssd"),))
NEAR = Where(affinity=((Requirement("zone", "In", ("near",)),),))
TOLERANT = Where(tolerations=(Toleration("only", "Exists"),))
PREDICATES = [
    (NodeView("n1", {"cpu": 4, PODS: 1}), Where(), (), 1),
    (NodeView("n1", {"cpu": 4}, is_open=False), Where(), (), 0),
    (NodeView("n1", {"cpu": 4}), SSD, (), 0),
    (NodeView("n1", {"cpu": 4}, labels={"disk": "ssd"}), SSD, (), 2),
    (NodeView("n1", {"cpu": 4}, labels={"zone": "far"}), NEAR, (), 0),
    (NodeView("n1", {"cpu": 4}, labels={"zone": "near"}), NEAR, (), 2),
    (NodeView("n1", {"cpu": 4}), Where(affinity=((),)), (), 0),
    (NodeView("n1", {"cpu": 4}, labels={"zone": "near"}), Where(affinity=((), *NEAR.affinity)), (), 2),
    (NodeView("n1", {"cpu": 4}, taints=(Taint("only"),)), Where(), (), 0),
    (NodeView("n1", {"cpu": 4}, taints=(Taint("only"),)), TOLERANT, (), 2),
    (NodeView("n1", {"cpu": 4}), Where(), (8080,), 1),
]


@pytest.mark.parametrize(("where", "pod", "ports", "expected"), PREDICATES)
def test_a_node_takes_the_pods_that_its_predicates_allow(
    where: NodeView, pod: Where, ports: tuple[int, ...], expected: int
) -> None:
    """Pod count, openness, selector, affinity, taints, host ports; 2 replicas of 1 CPU on a node of 4."""
    snapshot = build([where], [JobView("a", (RoleView("w", {"cpu": 1}, 1, 2, 2, where=pod, host_ports=ports),))])
    assert held(snapshot, fair(snapshot)) == {"a": expected}


def test_what_may_not_be_preempted_is_never_a_victim() -> None:
    snapshot = build(
        [node(cpu=2)],
        [gang("low", 2, placed={"n1": 2}, preemptible=False, cpu=1), gang("high", 1, priority=5, created=1.0, cpu=1)],
    )
    plan = fair(snapshot)
    assert held(snapshot, plan) == {"low": 2, "high": 0}


def test_weights_divide_and_guarantees_and_caps_hold() -> None:
    queues = [
        QueueView("heavy", weight=3),
        QueueView("light", weight=1),
        QueueView("sure", weight=0, guarantee={"cpu": 2}),
        QueueView("capped", weight=5, cap={"cpu": 1}),
    ]
    jobs = [gang(q.name, 20, queue=q.name, cpu=1) for q in queues]
    snapshot = build([node(cpu=15)], jobs, queues)
    assert held(snapshot, fair(snapshot)) == {"heavy": 9, "light": 3, "sure": 2, "capped": 1}


def test_a_team_divides_among_its_users() -> None:
    queues = [
        QueueView("team", weight=2),
        QueueView("team-ann", weight=3, parent="team"),
        QueueView("team-bob", weight=1, parent="team"),
        QueueView("other", weight=1),
    ]
    jobs = [gang(name, 20, queue=name, cpu=1) for name in ("team-ann", "team-bob", "other")]
    snapshot = build([node(cpu=12)], jobs, queues)
    assert held(snapshot, fair(snapshot)) == {"team-ann": 6, "team-bob": 2, "other": 4}


def test_a_queue_of_weight_zero_gets_what_the_others_leave_and_no_error() -> None:
    queues = [QueueView("none", weight=0), QueueView("some", weight=1)]
    jobs = [gang("a", 9, queue="none", cpu=1), gang("b", 4, queue="some", cpu=1)]
    snapshot = build([node(cpu=6)], jobs, queues)
    assert held(snapshot, fair(snapshot)) == {"a": 2, "b": 4}


@pytest.mark.parametrize(("queues", "runs"), [((), True), ((QueueView("default"),), False)])
def test_only_without_defined_queues_a_job_of_any_queue_is_in_the_default_one(
    queues: tuple[QueueView, ...], runs: bool
) -> None:
    snapshot = build([node(cpu=2)], [gang("a", 1, queue="team", cpu=1)], queues)
    assert held(snapshot, fair(snapshot)) == {"a": int(runs)}


@pytest.mark.parametrize("name", ["fit", "fair", "goodput", "fair+goodput"])
def test_a_queue_deleted_while_in_use_keeps_its_running_job_and_tells_the_waiting_one(name: str) -> None:
    jobs = [
        gang("running", 2, queue="gone", placed={"n1": 2}, cpu=1),
        gang("waiting", 1, queue="gone", created=1.0, cpu=1),
        gang("other", 2, queue="here", created=2.0, cpu=1),
    ]
    snapshot = build([node(cpu=4)], jobs, [QueueView("here")])
    plan = load_policy(name).optimize(snapshot)
    assert held(snapshot, plan) == {"running": 2, "waiting": 0, "other": 2}
    assert "'gone' does not exist" in reason_texts.text(snapshot, plan, snapshot.job_names.index("waiting"))


def test_pods_that_ask_for_nothing_run_on_a_full_node() -> None:
    snapshot = build([node(cpu=1)], [gang("full", 1, placed={"n1": 1}, cpu=1), gang("free", 3, low=3)])
    assert held(snapshot, fair(snapshot)) == {"full": 1, "free": 3}


def test_a_queue_reclaims_a_gang_above_its_share_where_the_other_queue_keeps_more_than_it_had_itself() -> None:
    queues = [QueueView("q1"), QueueView("q2")]
    elastic = gang("a", 6, queue="q1", placed={"n1": 6}, cpu=1)
    # Both deserve 3. The gang of 4 leaves the other queue 2: more than the nothing that its own one has.
    snapshot = build([node(cpu=6)], [elastic, gang("b", 6, low=4, queue="q2", created=1.0, cpu=1)], queues)
    assert held(snapshot, fair(snapshot)) == {"a": 2, "b": 4}
    # A gang of 6 would leave it nothing: that is no improvement.
    snapshot = build([node(cpu=6)], [elastic, gang("b", 6, low=6, queue="q2", created=1.0, cpu=1)], queues)
    assert evictions(snapshot, fair(snapshot)) == 0


@pytest.mark.parametrize("order", [("drf", "created"), ("created",), ("priority", "gang", "drf", "created")])
def test_orders_of_jobs_are_composed_from_settings(order: tuple[str, ...]) -> None:
    jobs = [gang("old", 1, cpu=1), gang("urgent", 1, priority=1, created=5.0, cpu=1)]
    snapshot = build([node(cpu=1)], jobs)
    plan = FairPolicy(PolicySettings(job_order=order, steps=("allocate",))).optimize(snapshot)
    assert held(snapshot, plan)["urgent" if order[0] == "priority" else "old"] == 1


def with_drf(snapshot: Snapshot) -> Plan:
    return FairPolicy(PolicySettings(victims=("drf",))).optimize(snapshot)


@pytest.mark.parametrize(
    ("high", "expected"),
    [
        (gang("high", 4, low=4, priority=1, cpu=1), {"low": 4, "high": 4}),
        (gang("high", 5, low=5, priority=1, cpu=1), {"low": 8, "high": 0}),
        (gang("high", 1, priority=1, cpu=4), {"low": 4, "high": 1}),
        (gang("high", 1, priority=1, cpu=5), {"low": 8, "high": 0}),
        # One at first, then two of the five more that it desires, then one of the three.
        (gang("high", 6, priority=1, cpu=1), {"low": 4, "high": 4}),
    ],
)
def test_with_drf_a_victim_ends_with_no_smaller_share_than_the_preemptor(
    high: JobView, expected: dict[str, int]
) -> None:
    snapshot = build([node(cpu=8)], [gang("low", 8, placed={"n1": 8}, cpu=1), high])
    plan = with_drf(snapshot)
    assert held(snapshot, plan) == expected
    assert changes(with_drf(carry_out(snapshot, plan))) == 0
    # Without the filter the higher priority takes its full request.
    assert held(snapshot, fair(snapshot))["high"] == high.roles[0].maximum


def test_with_drf_no_job_is_stopped_whole() -> None:
    """The case of two evictions above: the reason why the filter is off by default."""
    snapshot = build(
        [node(cpu=2)], [gang("low", 2, placed={"n1": 2}, cpu=1), gang("high", 2, low=2, priority=1, created=1.0, cpu=1)]
    )
    assert held(snapshot, with_drf(snapshot)) == {"low": 2, "high": 0}
    snapshot = build(
        [node(cpu=8)], [gang("low", 8, low=7, placed={"n1": 8}, cpu=1), gang("high", 2, low=2, priority=1, cpu=1)]
    )
    assert held(snapshot, with_drf(snapshot)) == {"low": 8, "high": 0}


@pytest.mark.parametrize(("cpu", "expected"), [(12, {"low": 3, "high": 1}), (13, {"low": 4, "high": 0})])
def test_with_drf_the_dominant_share_of_each_job_counts(cpu: int, expected: dict[str, int]) -> None:
    """The victim keeps 3 of 4 GPUs: as much as 12 of 16 cores, and less than 13."""
    low = gang("low", 4, placed={"n1": 4}, cpu=1, gpu=1)
    snapshot = build([node(cpu=16, gpu=4)], [low, gang("high", 1, priority=1, cpu=cpu, gpu=1)])
    assert held(snapshot, with_drf(snapshot)) == expected


@pytest.mark.parametrize(
    ("size", "expected"),
    [(2, {"old": 4, "young": 2, "high": 2}), (3, {"old": 4, "young": 4, "high": 0})],
)
def test_with_drf_each_victim_is_asked_by_itself(size: int, expected: dict[str, int]) -> None:
    """Each of the two victims could lose one of three: together less than the request, so nothing is taken."""
    jobs = [
        gang("old", 4, placed={"n1": 4}, cpu=1),
        gang("young", 4, created=1.0, placed={"n1": 4}, cpu=1),
        gang("high", size, low=size, priority=1, created=2.0, cpu=1),
    ]
    snapshot = build([node(cpu=8)], jobs)
    assert held(snapshot, with_drf(snapshot)) == expected


def test_with_drf_queues_reclaim_what_they_deserve_as_without_it() -> None:
    jobs = [gang("a", 4, queue="q1", placed={"n1": 4}, cpu=1), gang("b", 3, low=3, queue="q2", created=1.0, cpu=1)]
    snapshot = build([node(cpu=4)], jobs, [QueueView("q1"), QueueView("q2", weight=3.0)])
    assert held(snapshot, with_drf(snapshot)) == {"a": 1, "b": 3}


def test_steps_that_the_settings_omit_are_not_done() -> None:
    snapshot = build(
        [node(cpu=2)], [gang("low", 2, placed={"n1": 2}, cpu=1), gang("high", 2, low=2, priority=1, created=1.0, cpu=1)]
    )
    plan = FairPolicy(PolicySettings(steps=("allocate", "backfill"))).optimize(snapshot)
    assert evictions(snapshot, plan) == 0


def test_node_order_spreads_or_packs() -> None:
    nodes = [node(f"n{i}", cpu=4) for i in range(2)]
    jobs = [gang(f"j{i}", 1, cpu=1) for i in range(2)]
    snapshot = build(nodes, jobs)
    packed = fair(snapshot)
    assert len(set(packed.node.tolist())) == 1
    spread = FairPolicy(PolicySettings(node_order=(("least_requested", 1.0),))).optimize(snapshot)
    assert len(set(spread.node.tolist())) == 2


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ((("least_requested", 1.0),), "empty"),
        ((("balanced", 1.0),), "even"),
        ((("balanced", 1.0), ("least_requested", 0.1)), "even"),
        ((("balanced", 0.01), ("least_requested", 1.0)), "empty"),
    ],
)
def test_node_orders_are_weighted(order: tuple[tuple[NodeOrder, float], ...], expected: str) -> None:
    """One node has more free capacity, the other uses CPU and memory evenly."""
    nodes = [
        node("empty", cpu=10, memory=10, foreign={"cpu": 5, "memory": 1}),
        node("even", cpu=10, memory=10, foreign={"cpu": 4, "memory": 4}),
    ]
    snapshot = build(nodes, [gang("a", 1, cpu=1, memory=1)])
    plan = FairPolicy(PolicySettings(node_order=order)).optimize(snapshot)
    assert [snapshot.node_names[n] for n in plan.node.tolist()] == [expected]


@pytest.mark.slow
def test_water_filling_is_max_min_fair() -> None:
    """Law 8 for shares: no queue could get more except from one that has less for its weight."""
    rng = np.random.default_rng(3)
    for _ in range(20_000):
        n = int(rng.integers(1, 6))
        weight = rng.choice([0.0, 0.5, 1.0, 3.0], n)
        high = rng.integers(0, 30, n).astype(float)
        low = np.minimum(rng.integers(0, 6, n), high).astype(float) * (rng.random(n) < 0.3)
        total = float(rng.integers(0, 60))
        share = water_fill(total, weight, low, high)
        assert share.sum() <= total + 1e-9
        if low.sum() > total:
            continue
        assert (share >= low - 1e-9).all()
        assert (share <= high + 1e-9).all()
        short = share < high - 1e-9
        assert share.sum() >= min(total, high.sum()) - 1e-6
        level = np.where(weight > 0, share / np.maximum(weight, 1e-9), np.inf)
        for i in np.flatnonzero(short & (weight > 0)):
            richer = (level > level[i] + 1e-6) & (share > low + 1e-6)
            assert not (richer & (weight > 0)).any()
            assert not ((weight == 0) & (share > low + 1e-6)).any()


@pytest.mark.parametrize("seed", range(20))
def test_divisible_demands_end_within_a_replica_of_what_they_deserve(seed: int) -> None:
    """Law 8 for allocations: jobs of single replicas on nodes that hold any of them."""
    rng = np.random.default_rng(seed)
    queues = [QueueView(f"q{i}", weight=float(rng.integers(1, 4))) for i in range(int(rng.integers(2, 5)))]
    jobs = [
        gang(f"{q.name}-{i}", int(rng.integers(1, 9)), queue=q.name, created=float(i), cpu=1)
        for q in queues
        for i in range(int(rng.integers(1, 4)))
    ]
    snapshot = build([node(f"n{i}", cpu=int(rng.integers(2, 8))) for i in range(4)], jobs, queues)
    plan = fair(snapshot)
    shares = deserved(snapshot, queue_demand(snapshot, snapshot.role_desired))
    got = np.zeros(snapshot.queues)
    np.add.at(got, snapshot.job_queue[snapshot.role_job[plan.role]], plan.count)
    assert (np.abs(got - shares[:, 0]) <= 1 + 1e-9).all(), (got, shares[:, 0])
    assert (plan.action != Action.PREEMPT).all()

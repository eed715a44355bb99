"""`fit`, case by case with numbers: gangs, preemptible jobs between minimum and maximum, and preemption."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from diflow.allocator.model.ledger import Ledger
from diflow.allocator.model.plan import Action, Plan, carry_out, changes, make_plan
from diflow.allocator.model.reasons import (
    DoesNotFit,
    GainTooSmall,
    Grown,
    PlacedAgain,
    PreemptedForPriority,
    Reason,
    ShrunkForOthers,
)
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.validate import faults
from diflow.allocator.model.views import JobView, NodeView, QueueView, RoleView, build
from diflow.allocator.policies.fit.policy import FitPolicy
from diflow.allocator.policies.fit.preemption import preempt
from diflow.allocator.policies.fixed_point import joined, no_worse_than_keeping, of_whole
from diflow.allocator.policies.settings import PolicySettings
from diflow.allocator.reasons import reason_texts

NOW = 1000.0
Placed = dict[str, int]


def nodes(*gpus: int, closed: tuple[int, ...] = ()) -> list[NodeView]:
    """Nodes n1, n2, ... with these GPUs."""
    return [NodeView(f"n{i}", {"gpu": g}, is_open=i not in closed) for i, g in enumerate(gpus, 1)]


def elastic(name: str, least: int, most: int, placed: Placed | None = None, **given: object) -> JobView:
    """A preemptible job of `least`..`most` workers of one GPU."""
    return _job(name, RoleView("w", {"gpu": 1}, least, most), placed, preemptible=True, **given)


def firm(name: str, desired: int, placed: Placed | None = None, **given: object) -> JobView:
    """A job that is not preemptible: what it holds is its minimum, `desired` what it wants."""
    held = sum((placed or {}).values())
    return _job(name, RoleView("w", {"gpu": 1}, held or desired, desired), placed, preemptible=False, **given)


def _job(name: str, role: RoleView, placed: Placed | None, **given: object) -> JobView:
    started = {"started_seconds": 0.0, "changed_seconds": 0.0} if placed else {}
    return JobView(name, (role,), **{"placed": {role.name: placed or {}}, **started, **given})  # type: ignore[arg-type]


def planned(
    cluster: list[NodeView], jobs: list[JobView], queues: tuple[QueueView, ...] = (), **settings: Any
) -> tuple[Snapshot, Plan]:
    """The plan of `fit`, valid and a fixed point: a second cycle changes nothing."""
    snapshot = build(cluster, jobs, queues, now_seconds=NOW)
    policy = FitPolicy(PolicySettings(**settings))
    plan = policy.optimize(snapshot)
    assert faults(snapshot, plan) == []
    assert changes(policy.optimize(carry_out(snapshot, plan))) == 0
    return snapshot, plan


def held(snapshot: Snapshot, plan: Plan) -> dict[str, Placed]:
    """job → node → pods, for jobs that hold something."""
    out: dict[str, Placed] = {}
    for g, n, c in zip(plan.role.tolist(), plan.node.tolist(), plan.count.tolist(), strict=True):
        here = out.setdefault(snapshot.job_names[int(snapshot.role_job[g])], {})
        here[snapshot.node_names[n]] = here.get(snapshot.node_names[n], 0) + c
    return out


def sizes(snapshot: Snapshot, plan: Plan) -> Placed:
    return {name: sum(placed.values()) for name, placed in held(snapshot, plan).items()}


def told(snapshot: Snapshot, plan: Plan, name: str) -> str:
    return reason_texts.text(snapshot, plan, snapshot.job_names.index(name))


def why(snapshot: Snapshot, plan: Plan, name: str) -> Reason:
    return plan.reasons[snapshot.job_names.index(name)]


def test_a_preemptible_job_starts_with_all_that_it_may_have_on_as_few_nodes_as_possible() -> None:
    found = held(*planned(nodes(2, 4, 2), [elastic("a", 1, 4)]))
    assert found == {"a": {"n2": 4}}


def test_jobs_of_equal_priority_share_what_is_left_evenly() -> None:
    jobs = [elastic("a", 1, 8, created_seconds=1.0), elastic("b", 1, 8, created_seconds=2.0), elastic("c", 1, 2)]
    assert sizes(*planned(nodes(4, 4), jobs)) == {"a": 3, "b": 3, "c": 2}


def test_of_two_priorities_the_higher_grows_first() -> None:
    jobs = [elastic("a", 1, 8), elastic("b", 1, 5, priority=1)]
    assert sizes(*planned(nodes(4, 4), jobs)) == {"a": 3, "b": 5}


def test_a_job_grows_when_a_node_is_free_and_keeps_its_replicas_where_they_are() -> None:
    snapshot, plan = planned(nodes(4, 4), [elastic("a", 1, 6, {"n1": 4})])
    assert held(snapshot, plan) == {"a": {"n1": 4, "n2": 2}}
    assert told(snapshot, plan, "a").startswith("a: resize (once what it replaces has terminated): grows to 6 replicas")


@pytest.mark.parametrize(("since", "size"), [(119.0, 4), (120.0, 8)])
def test_a_job_that_was_resized_recently_does_not_grow_yet(since: float, size: int) -> None:
    snapshot, plan = planned(nodes(8), [elastic("a", 1, 8, {"n1": 4}, changed_seconds=NOW - since)])
    assert sizes(snapshot, plan) == {"a": size}
    if size == 4:
        assert told(snapshot, plan, "a") == "a: keep: keeps 4 replicas: 4 more would fit, but it was changed 119 s ago"


@pytest.mark.parametrize(("slots", "most", "size"), [(9, 20, 8), (10, 20, 10), (9, 9, 9)])
def test_growth_that_is_not_worth_a_restart_waits(slots: int, most: int, size: int) -> None:
    """A quarter of 8 is 2 more; one more is enough only if it brings the job to its maximum."""
    snapshot, plan = planned(nodes(slots), [elastic("a", 1, most, {"n1": 8})])
    assert sizes(snapshot, plan) == {"a": size}
    if size == 8:
        assert isinstance(why(snapshot, plan, "a"), GainTooSmall)


def test_capacity_that_is_too_little_for_two_jobs_goes_to_the_older_one() -> None:
    jobs = [
        elastic("a", 1, 16, {"n1": 8}, created_seconds=1.0),
        elastic("b", 1, 16, {"n2": 8}, created_seconds=2.0),
    ]
    assert sizes(*planned(nodes(8, 8, 2), jobs)) == {"a": 10, "b": 8}


def test_a_job_shrinks_for_a_newcomer_and_both_share_what_is_there() -> None:
    jobs = [elastic("old", 2, 8, {"n1": 4, "n2": 4}), elastic("new", 1, 8, created_seconds=NOW)]
    snapshot, plan = planned(nodes(4, 4), jobs)
    assert held(snapshot, plan) == {"old": {"n1": 4}, "new": {"n2": 4}}
    assert told(snapshot, plan, "old") == (
        "old: resize (once what it replaces has terminated): has 4 replicas instead of 8: "
        "'new' needs capacity that it held above its minimum"
    )
    assert why(snapshot, plan, "old") == ShrunkForOthers(4, 8, "new")


def test_no_more_is_taken_than_what_may_not_be_moved_needs() -> None:
    jobs = [elastic("old", 2, 8, {"n1": 4, "n2": 4}), firm("new", 1, created_seconds=NOW)]
    assert sizes(*planned(nodes(4, 4), jobs)) == {"old": 7, "new": 1}


def test_only_as_many_jobs_shrink_as_have_to() -> None:
    jobs = [
        elastic("a", 1, 4, {"n1": 4}),
        elastic("b", 1, 4, {"n2": 4}),
        elastic("c", 1, 4, {"n3": 4}),
        firm("new", 2, created_seconds=NOW),
    ]
    snapshot, plan = planned(nodes(4, 4, 4), jobs)
    assert (plan.action == Action.RESIZE).sum() == 1
    assert sorted(sizes(snapshot, plan).values()) == [2, 2, 4, 4]


def test_no_job_shrinks_for_a_lower_priority_and_none_is_stopped_for_an_equal_one() -> None:
    jobs = [
        elastic("high", 1, 4, {"n1": 4}, priority=1),
        elastic("equal", 4, 4, {"n2": 4}),
        firm("new", 2, created_seconds=NOW),
    ]
    snapshot, plan = planned(nodes(4, 4), jobs)
    assert sizes(snapshot, plan) == {"high": 4, "equal": 4}
    assert isinstance(why(snapshot, plan, "new"), DoesNotFit)


def test_a_gang_is_stopped_whole_or_not_at_all() -> None:
    """Fault (d): min 3, 4 running of 1 GPU, a new job of higher priority asks for 2: never 2 are left."""
    old = elastic("old", 3, 4, {"n1": 4})
    snapshot, plan = planned(nodes(4), [old, firm("new", 2, priority=1, created_seconds=NOW)])
    assert sizes(snapshot, plan) == {"new": 2}
    assert told(snapshot, plan, "old") == (
        "old: preempt: gives way to 'new', which has a higher priority; 0 replicas are left to it"
    )
    assert sizes(*planned(nodes(4), [old, firm("new", 5, priority=1)])) == {"old": 4}


def test_idle_capacity_is_counted_first() -> None:
    """3 GPUs, 2 running and one idle; the new job needs one: no job is stopped."""
    jobs = [elastic("old", 2, 2, {"n1": 2}), firm("new", 1, priority=1, created_seconds=NOW)]
    assert sizes(*planned(nodes(3), jobs)) == {"old": 2, "new": 1}


def test_one_large_victim_is_better_than_two_small_ones_and_of_equals_the_smaller() -> None:
    jobs = [
        elastic("pair-a", 2, 2, {"n1": 2}, created_seconds=5.0),
        elastic("pair-b", 2, 2, {"n1": 2}, created_seconds=6.0),
        elastic("four", 4, 4, {"n2": 4}, created_seconds=1.0),
        elastic("five", 5, 5, {"n3": 5}, created_seconds=7.0),
        firm("new", 4, priority=1, created_seconds=NOW),
    ]
    snapshot, plan = planned(nodes(4, 4, 5), jobs)
    assert set(held(snapshot, plan)) == {"pair-a", "pair-b", "five", "new"}


def test_a_victim_comes_back_when_there_is_capacity_before_jobs_that_came_later() -> None:
    first, plan = planned(nodes(4), [elastic("old", 4, 4, {"n1": 4}), firm("high", 4, priority=1, created_seconds=NOW)])
    assert sizes(first, plan) == {"high": 4}
    jobs = [elastic("old", 4, 4, created_seconds=1.0), elastic("later", 4, 4, created_seconds=2.0)]
    assert sizes(*planned(nodes(4), jobs)) == {"old": 4}


def test_a_victim_that_fits_elsewhere_moves_there_in_the_same_plan() -> None:
    """The new job must be on n1 (labels): the job there moves to n2."""
    from diflow.common.predicates import Where

    cluster = [NodeView("n1", {"gpu": 4}, labels={"kind": "big"}), NodeView("n2", {"gpu": 4})]
    here = RoleView("w", {"gpu": 1}, 4, 4, where=Where(selector=(("kind", "big"),)))
    jobs = [
        elastic("old", 2, 2, {"n1": 2}),
        JobView("new", (here,), preemptible=False, priority=1, created_seconds=NOW),
    ]
    snapshot, plan = planned(cluster, jobs)
    assert held(snapshot, plan) == {"old": {"n2": 2}, "new": {"n1": 4}}
    assert isinstance(why(snapshot, plan, "old"), PreemptedForPriority)


def test_what_cannot_leave_its_nodes_shrinks_but_is_not_stopped() -> None:
    jobs = [elastic("old", 2, 4, {"n1": 4}, pinned=True), firm("new", 3, priority=1, created_seconds=NOW)]
    assert sizes(*planned(nodes(4), jobs)) == {"old": 4}
    jobs[1] = firm("new", 2, priority=1, created_seconds=NOW)
    assert sizes(*planned(nodes(4), jobs)) == {"old": 2, "new": 2}


def test_a_job_that_may_not_be_moved_is_completed_before_new_jobs_start() -> None:
    """It lost a pod with a node: its minimum is what it holds, desired what it should have."""
    jobs = [firm("old", 3, {"n1": 2}, created_seconds=5.0), firm("new", 1, created_seconds=1.0)]
    snapshot, plan = planned(nodes(3), jobs)
    assert held(snapshot, plan) == {"old": {"n1": 3}}
    assert plan.bind_now[snapshot.job_names.index("old")]
    # A new job of higher priority still comes first.
    jobs[1] = firm("new", 1, priority=1)
    assert sizes(*planned(nodes(3), jobs)) == {"old": 2, "new": 1}


def test_a_job_that_may_not_be_moved_grows_into_capacity_of_preemptible_jobs() -> None:
    jobs = [firm("old", 4, {"n1": 2}), elastic("other", 1, 2, {"n1": 2})]
    assert sizes(*planned(nodes(4), jobs)) == {"old": 3, "other": 1}


def test_only_the_roles_that_scale_are_resized() -> None:
    learner = RoleView("learner", {"cpu": 4}, 1, 1)
    collector = RoleView("collector", {"cpu": 1}, 1, 8)
    job = JobView("a", (learner, collector))
    snapshot, plan = planned([NodeView("n1", {"cpu": 10})], [job])
    assert dict(zip(snapshot.role_names, np.bincount(plan.role, weights=plan.count).tolist(), strict=True)) == {
        "learner": 1,
        "collector": 6,
    }


def test_jobs_of_a_cordoned_node_stay_there() -> None:
    """The engine decides whether pods on a closed node have to leave: then the snapshot does not contain them."""
    assert held(*planned(nodes(4, 4, closed=(1,)), [elastic("a", 1, 4, {"n1": 3})])) == {"a": {"n1": 3}}
    assert held(*planned(nodes(4, 4, closed=(1,)), [firm("a", 3, {"n1": 3})])) == {"a": {"n1": 3}}


def test_a_job_on_a_cordoned_node_is_not_resized_in_place() -> None:
    """Its pods could not return there: it neither shrinks nor grows."""
    jobs = [elastic("a", 3, 8, {"n1": 4}), firm("new", 3, created_seconds=NOW)]
    snapshot, plan = planned(nodes(4, 2, closed=(1,)), jobs)
    assert held(snapshot, plan) == {"a": {"n1": 4}}


def test_the_rest_of_a_gang_that_lost_pods_starts_again_or_frees_its_capacity() -> None:
    whole = planned(nodes(2, 4), [elastic("a", 3, 4, {"n1": 2})])
    assert sizes(*whole) == {"a": 4}
    assert told(*whole, "a").endswith("with 4 replicas, 2 before: w had 2 and needs at least 3")
    snapshot, plan = planned(nodes(2), [elastic("a", 3, 4, {"n1": 2}), elastic("b", 2, 2, created_seconds=NOW)])
    assert sizes(snapshot, plan) == {"b": 2}
    assert plan.action[0] == Action.PREEMPT


def test_a_maximum_that_was_lowered_is_followed_at_once() -> None:
    snapshot, plan = planned(nodes(4, 4), [elastic("a", 1, 3, {"n1": 2, "n2": 4}, changed_seconds=NOW)])
    assert held(snapshot, plan) == {"a": {"n2": 3}}
    assert isinstance(why(snapshot, plan, "a"), PlacedAgain)
    assert told(snapshot, plan, "a").endswith(
        ": is placed again with 3 replicas, 6 before: w had 6 and may have at most 3"
    )
    # On a node that takes no new pods it could not start again with fewer.
    job = elastic("a", 2, 3, {"n1": 4})
    snapshot, plan = planned(nodes(4, 1, closed=(1,)), [job])
    assert held(snapshot, plan) == {"a": {"n1": 4}}
    assert told(snapshot, plan, "a") == (
        "a: keep: keeps what it holds: placed again it needs 2 replicas on open nodes, and 1 fits"
    )


@pytest.mark.parametrize(("foreign", "size"), [(1, 3), (2, 4)])
def test_a_maximum_that_was_lowered_costs_no_more_than_it_asks_for(foreign: int, size: int) -> None:
    """Foreign pods took capacity meanwhile: the job does not restart for less than its new maximum."""
    cluster = [NodeView("n1", {"gpu": 4}, foreign={"gpu": foreign}), NodeView("n2", {"gpu": 4})]
    jobs = [elastic("a", 2, 3, {"n1": 4}), elastic("b", 4, 8, {"n2": 4})]
    snapshot, plan = planned(cluster, jobs)
    assert sizes(snapshot, plan) == {"a": size, "b": 4}
    if size == 4:
        assert told(snapshot, plan, "a").endswith("placed again it needs 3 replicas on open nodes, and 0 fit")


def test_a_plan_that_is_worse_than_keeping_is_not_taken() -> None:
    """The first plan that is no worse than the current allocation, or the plan that keeps it."""
    snapshot = build(nodes(4, 4), [elastic("a", 1, 3, {"n1": 3}), elastic("b", 1, 3, {"n2": 2})], now_seconds=NOW)

    def with_replicas(*counts: int) -> Plan:
        role = np.arange(2)
        return make_plan(snapshot, "test", role, role, np.array(counts), reasons=[DoesNotFit(0, 0)] * 2)

    def chosen(*plans: Plan) -> list[int]:
        ways = [lambda plan=plan: plan for plan in plans]
        best = no_worse_than_keeping(snapshot, ways, lambda _, plan: float(plan.count.sum()), "test")
        return [int(count) for count in best.count]

    assert chosen(with_replicas(1, 3), with_replicas(2, 3), with_replicas(3, 3)) == [2, 3]
    assert chosen(with_replicas(1, 1)) == [3, 2]


def test_a_gang_that_does_not_fit_does_not_hold_back_small_ones() -> None:
    """Fault (c): 1 node of 10: 3×4, of which it needs all three, then 1×3: the second runs."""
    large = _job("large", RoleView("w", {"gpu": 4}, 3, 3), None, preemptible=False)
    small = _job("small", RoleView("w", {"gpu": 3}, 1, 1), None, preemptible=False, created_seconds=5.0)
    cluster = [NodeView("n1", {"gpu": 10}), NodeView("n2", {"gpu": 4}, foreign={"gpu": 4})]
    snapshot, plan = planned(cluster, [large, small])
    assert sizes(snapshot, plan) == {"small": 1}


def test_caps_of_queues_bound_growth_too() -> None:
    queues = (QueueView("q", cap={"gpu": 3}),)
    assert sizes(*planned(nodes(8), [elastic("a", 1, 8, queue="q")], queues)) == {"a": 3}


def test_a_newcomer_alone_takes_nothing_from_others() -> None:
    jobs = [elastic("old", 1, 4, {"n1": 4}), elastic("new", 1, 4, priority=5, created_seconds=NOW)]
    snapshot = build(nodes(4), jobs, now_seconds=NOW)
    plan = FitPolicy().allocate(snapshot.job_names.index("new"), snapshot)
    assert plan.action.tolist() == [Action.WAIT, Action.KEEP]


@pytest.mark.parametrize("seed", range(60))
def test_no_smaller_set_of_victims_frees_enough(seed: int) -> None:
    """Brute force: every set of victims of a random cluster, by number of jobs, then of replicas."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(3, 7, 3).tolist()
    jobs = []
    free = dict(zip(("n1", "n2", "n3"), sizes, strict=True))
    for i in range(6):
        size = int(rng.integers(1, 4))
        where: Placed = {}
        for node in rng.permutation(list(free)).tolist():
            count = min(free[node], size - sum(where.values()))
            if count:
                where[node] = count
                free[node] -= count
        if sum(where.values()) == size:
            jobs.append(elastic(f"old{i}", size, size, where, created_seconds=float(i)))
        else:
            for node, count in where.items():
                free[node] += count
    request, need = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    jobs.append(JobView("new", (RoleView("w", {"gpu": request}, need),), priority=1, created_seconds=NOW))
    snapshot = build(nodes(*sizes), jobs, now_seconds=NOW)
    new = snapshot.job_names.index("new")
    ledger = Ledger(snapshot)
    victims = snapshot.job_preemptible & (np.arange(snapshot.jobs) != new)
    way = preempt(ledger, new, {new: need}, may_shrink=np.zeros_like(victims), may_stop=victims)
    best = _fewest(snapshot, new, need)
    if best is None:
        assert way is None
        assert ledger.replicas.tolist() == Ledger(snapshot).replicas.tolist()
        return
    assert way is not None
    lost = sum(int(Ledger(snapshot).replicas[j]) for j in way.stopped)
    assert (len(way.stopped), lost) == best
    assert ledger.replicas[new] == need


def _fewest(snapshot: Snapshot, new: int, need: int) -> tuple[int, int] | None:
    holders = np.unique(snapshot.held_role).tolist()
    request = int(snapshot.role_request[new, 0])
    found = []
    for count in range(len(holders) + 1):
        for victims in itertools.combinations(holders, count):
            stay = ~np.isin(snapshot.held_role, victims)
            after = replace(
                snapshot,
                held_role=snapshot.held_role[stay],
                held_node=snapshot.held_node[stay],
                held_count=snapshot.held_count[stay],
            )
            if int((after.free_after_termination()[:, 0] // request).sum()) >= need:
                found.append((count, int(snapshot.held_count[~stay].sum())))
        if found:
            return min(found)
    return None


def test_a_job_that_starts_in_one_step_of_the_plan_and_loses_in_the_next_is_told_that_it_waits() -> None:
    """The gang of two stands in the way of the gang of five in the first step only: both start in the end, and the
    one of low priority, which started between them, never held anything."""
    shapes = {
        "low": ({"cpu": 2, "gpu": 1}, 1, 8, 0),
        "five": ({"cpu": 2, "gpu": 2}, 5, 5, 1),
        "two": ({"cpu": 2}, 2, 2, 1),
    }
    created = {"low": 500.0, "five": NOW, "two": 600.0}
    jobs = [
        JobView(
            name, (RoleView("w", asked, low, high),), preemptible=True, priority=rank, created_seconds=created[name]
        )
        for name, (asked, low, high, rank) in shapes.items()
    ]
    free = [{"cpu": 7, "gpu": 4}, {"cpu": 7, "gpu": 2}, {"cpu": 16, "gpu": 2}, {"cpu": 6, "gpu": 2}]
    snapshot, plan = planned([NodeView(f"n{i}", have) for i, have in enumerate(free)], jobs)
    assert sizes(snapshot, plan) == {"five": 5, "two": 2}
    assert told(snapshot, plan, "low").startswith("low: wait: waits for capacity: its gang needs 1 replica at once")


def test_a_job_that_grows_in_one_step_and_is_stopped_in_the_next_loses_what_it_held_before() -> None:
    """The reason of a job that several steps of one plan changed counts its replicas before and after the plan."""
    snapshot = build(nodes(4), [elastic("old", 1, 4, {"n1": 1}), firm("urgent", 4, priority=1)], now_seconds=NOW)
    grown = make_plan(snapshot, "fit", *_triples((0, 0, 4)), reasons=[Grown(4), DoesNotFit(4, 0)])
    after = carry_out(snapshot, grown)
    plan = joined(snapshot, grown, FitPolicy(PolicySettings()).optimize(after))
    assert plan.reasons[0] == PreemptedForPriority(0, 4, "urgent")
    assert of_whole(snapshot, plan).reasons[0] == PreemptedForPriority(0, 1, "urgent")


def _triples(*rows: tuple[int, int, int]) -> list[Any]:
    """Role, node and count as arrays."""
    return [np.array(column) for column in zip(*rows, strict=True)]

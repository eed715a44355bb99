"""What follows under each policy when a user changes the limits of a job that runs."""

from __future__ import annotations

import numpy as np
import pytest

from diflow.allocator.model.plan import Action, Plan, carry_out, changes
from diflow.allocator.model.reasons import DoesNotFitElsewhere
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.validate import faults
from diflow.allocator.model.views import JobView, NodeView, QueueView, RoleView, build
from diflow.allocator.policies.base import load_policy
from diflow.allocator.policies.units import in_units
from diflow.allocator.reasons import reason_texts
from tests.policies import laws

NOW = 1_000.0
EVERY = pytest.mark.parametrize("policy", ["fit", "fair", "goodput", "fair+goodput"])
Roles = dict[str, tuple[int, int, dict[str, int]]]


def job(
    name: str,
    *,
    preemptible: bool = True,
    queue: str = "default",
    unit: int = 1,
    created: float = 0.0,
    **roles: tuple[int, int, dict[str, int]],
) -> JobView:
    """`roles`: (minimum, maximum, replicas by node), each of one GPU."""
    runs = any(places for _, _, places in roles.values())
    return JobView(
        name,
        tuple(RoleView(role, {"gpu": 1}, low, high, high, unit=unit) for role, (low, high, _) in roles.items()),
        queue=queue,
        preemptible=preemptible,
        created_seconds=created,
        started_seconds=created if runs else None,
        changed_seconds=created if runs else None,
        placed={role: places for role, (_, _, places) in roles.items()},
    )


def nodes(*gpus: int, closed: tuple[int, ...] = ()) -> list[NodeView]:
    return [NodeView(f"n{at}", {"gpu": each}, is_open=at not in closed) for at, each in enumerate(gpus)]


def planned(
    policy: str, cluster: list[NodeView], *jobs: JobView, queues: tuple[QueueView, ...] = ()
) -> tuple[Snapshot, Plan]:
    snapshot = build(cluster, jobs, queues, now_seconds=NOW)
    optimize = load_policy(policy).optimize
    plan = in_units(optimize, snapshot)
    assert faults(snapshot, plan) == []
    assert laws.within_maximums(snapshot, plan) == []
    assert not changes(in_units(optimize, carry_out(snapshot, plan)))
    return snapshot, plan


def sizes(snapshot: Snapshot, plan: Plan) -> dict[str, int]:
    count = np.bincount(plan.role, weights=plan.count, minlength=snapshot.roles).astype(int)
    return {
        f"{snapshot.job_names[j]}/{name}" if len(set(snapshot.role_names)) > 1 else snapshot.job_names[j]: int(count[r])
        for r, (j, name) in enumerate(zip(snapshot.role_job.tolist(), snapshot.role_names, strict=True))
    }


def told(snapshot: Snapshot, plan: Plan, name: str) -> str:
    return reason_texts.Explainer(snapshot, plan).text(snapshot.job_names.index(name))


@EVERY
def test_a_maximum_below_what_runs_is_followed_by_the_next_plan(policy: str) -> None:
    found = planned(policy, nodes(4), job("a", w=(1, 2, {"n0": 4})))
    assert sizes(*found) == {"a": 2}
    assert told(*found, "a").endswith("is placed again with 2 replicas, 4 before: w had 4 and may have at most 2")


@EVERY
def test_one_fixed_number_below_what_runs_is_followed(policy: str) -> None:
    assert sizes(*planned(policy, nodes(4), job("a", w=(1, 1, {"n0": 4})))) == {"a": 1}


@EVERY
def test_what_a_job_gives_up_goes_to_the_one_that_waits_for_it(policy: str) -> None:
    waits = job("b", w=(2, 2, {}), created=900.0)
    snapshot, plan = planned(policy, nodes(4), job("a", w=(1, 2, {"n0": 4})), waits)
    assert sizes(snapshot, plan) == {"a": 2, "b": 2}
    assert plan.action.tolist() == [Action.RESIZE, Action.ADMIT]
    assert plan.bind_now.tolist() == [False, False]


@EVERY
def test_a_minimum_and_a_maximum_that_were_both_changed_are_followed(policy: str) -> None:
    assert sizes(*planned(policy, nodes(8), job("a", w=(3, 3, {"n0": 5})))) == {"a": 3}
    assert sizes(*planned(policy, nodes(8), job("a", w=(6, 6, {"n0": 5})))) == {"a": 6}


@EVERY
def test_of_several_tasks_each_is_brought_within_its_limits(policy: str) -> None:
    found = planned(policy, nodes(8), job("a", v=(1, 2, {"n0": 4}), w=(1, 3, {"n0": 3})))
    assert sizes(*found)["a/v"] == 2
    assert sizes(*found)["a/w"] == 3
    both = planned(policy, nodes(8), job("a", v=(1, 2, {"n0": 4}), w=(3, 3, {"n0": 1})))
    assert sizes(*both) == {"a/v": 2, "a/w": 3}
    assert told(*both, "a").endswith("v had 4 and may have at most 2, w had 1 and needs at least 3")


@EVERY
def test_a_task_in_units_gives_up_whole_units(policy: str) -> None:
    assert sizes(*planned(policy, nodes(8), job("a", w=(2, 4, {"n0": 8}), unit=2))) == {"a": 4}


@EVERY
def test_a_queue_above_its_cap_does_not_keep_its_job_from_giving_up(policy: str) -> None:
    queues = (QueueView("default", cap={"gpu": 0}), QueueView("other", guarantee={"gpu": 2}))
    jobs = job("a", w=(1, 2, {"n0": 4})), job("b", w=(1, 1, {"n0": 1}), queue="other")
    assert sizes(*planned(policy, nodes(8), *jobs, queues=queues)) == {"a": 2, "b": 1}


@EVERY
def test_a_job_of_a_queue_with_a_guarantee_gives_up_what_is_guaranteed(policy: str) -> None:
    queues = (QueueView("default", guarantee={"gpu": 4}), QueueView("other"))
    jobs = job("a", w=(1, 2, {"n0": 4})), job("b", w=(2, 2, {}), queue="other")
    assert sizes(*planned(policy, nodes(4), *jobs, queues=queues)) == {"a": 2, "b": 2}


@EVERY
def test_a_job_whose_queue_does_not_exist_gives_up_what_is_above_its_maximum(policy: str) -> None:
    queues = (QueueView("default"),)
    jobs = job("a", w=(1, 2, {"n0": 4}), queue="gone"), job("b", w=(1, 1, {"n0": 1}))
    assert sizes(*planned(policy, nodes(8), *jobs, queues=queues)) == {"a": 2, "b": 1}


@EVERY
def test_replicas_on_a_closed_node_are_given_up_first(policy: str) -> None:
    _, plan = planned(policy, nodes(4, 4, closed=(1,)), job("a", w=(1, 2, {"n0": 2, "n1": 3})))
    assert plan.node.tolist() == [0]
    assert plan.count.tolist() == [2]


@EVERY
def test_a_job_on_a_closed_node_moves_or_says_why_it_keeps_what_it_holds(policy: str) -> None:
    a = job("a", w=(2, 3, {"n1": 4}))
    _, plan = planned(policy, nodes(4, 4, closed=(1,)), a)
    assert plan.node.tolist() == [0]
    assert plan.count.tolist() == [3]
    found = planned(policy, nodes(1, 4, closed=(1,)), a)
    assert sizes(*found) == {"a": 4}
    assert told(*found, "a") == (
        "a: keep: keeps what it holds: placed again it needs 2 replicas on open nodes, and 1 fits"
    )


@EVERY
def test_a_gang_that_lacks_another_task_and_does_not_get_it_is_not_started_again_without_it(policy: str) -> None:
    """`fit` takes the rest of it back, as it does no work."""
    a = job("a", v=(1, 2, {"n0": 4}), w=(9, 9, {"n0": 1}))
    snapshot, plan = planned(policy, nodes(5), a)
    if policy == "fit":
        assert sizes(snapshot, plan) == {"a/v": 0, "a/w": 0}
    else:
        assert sizes(snapshot, plan) == {"a/v": 4, "a/w": 1}
        assert isinstance(plan.reasons[0], DoesNotFitElsewhere)


@EVERY
def test_a_policy_moves_no_job_that_is_not_preemptible(policy: str) -> None:
    """Its highest ranks are released without a plan."""
    assert sizes(*planned(policy, nodes(4), job("a", w=(1, 2, {"n0": 4}), preemptible=False))) == {"a": 4}

"""A plan has a bound of work, and a namespace its part of it: its jobs make the plan of nobody else late."""

from __future__ import annotations

import math

import pytest

from diflow.allocator.model import work
from diflow.allocator.model.ledger import Ledger
from diflow.allocator.model.plan import Action, Plan
from diflow.allocator.model.reasons import TakesTooLong
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.validate import faults
from diflow.allocator.model.views import JobView, NodeView, QueueView, RoleView, build
from diflow.allocator.model.work import LateError, SpentError, Work
from diflow.allocator.plan import effort
from diflow.allocator.policies.base import load_policy
from diflow.allocator.policies.fair.prepared import prepared
from diflow.allocator.policies.units import in_units
from diflow.common.clock import Clock

POLICIES = ["fit", "fair", "goodput", "fair+goodput"]


def _busy(*, nodes: int, gangs: int, tasks: int, each: int, unit: int = 1) -> Snapshot:
    """Nodes full of elastic jobs of one namespace; large gangs of another one that wait, and one small job."""
    hosts = [NodeView(f"n{i:03d}", {"cpu": 64_000}) for i in range(nodes)]
    elastic = RoleView("w", {"cpu": 1000}, 1, 64, 64)
    names = [f"n{i:03d}" for i in range(nodes)]
    jobs = [JobView(f"honest/{n}", (elastic,), placed={"w": {n: 64}}, started_seconds=0.0) for n in names]
    for k in range(gangs):
        roles = tuple(RoleView(f"t{t:02d}", {"cpu": 100 + t + k}, each, each, each, unit=unit) for t in range(tasks))
        jobs.append(JobView(f"evil/g{k:03d}", roles, priority=1, preemptible=False, created_seconds=900.0 + k))
    one = RoleView("w", {"cpu": 100}, 1, 1, 1)
    jobs.append(JobView("honest/small", (one,), preemptible=False, created_seconds=990.0))
    return build(hosts, jobs, now_seconds=1000.0)


@pytest.mark.slow
@pytest.mark.parametrize("policy_name", POLICIES)
@pytest.mark.parametrize(
    "shape",
    [
        {"nodes": 40, "gangs": 20, "tasks": 40, "each": 50},
        {"nodes": 40, "gangs": 8, "tasks": 10, "each": 200, "unit": 5},
        {"nodes": 100, "gangs": 60, "tasks": 40, "each": 20},
    ],
)
def test_gangs_of_many_tasks_make_no_plan_late(policy_name: str, shape: dict[str, int]) -> None:
    snapshot = _busy(**shape)
    plan = in_units(load_policy(policy_name).optimize, snapshot)
    assert sum(snapshot.work.of_owner) < 1.5 * work.MOST_OPERATIONS
    assert faults(snapshot, plan) == []
    assert plan.action[snapshot.job_names.index("honest/small")] == Action.ADMIT


def test_a_job_that_is_not_looked_at_to_the_end_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "MOST_OPERATIONS", 20_000)
    snapshot = _busy(nodes=8, gangs=4, tasks=40, each=20)
    plan = load_policy("fit").optimize(snapshot)
    assert faults(snapshot, plan) == []
    assert load_policy("fit").optimize(snapshot).to_bytes(snapshot) == plan.to_bytes(snapshot)
    assert any(isinstance(reason, TakesTooLong) for reason in plan.reasons)
    honest = [j for j, name in enumerate(snapshot.job_names) if name.startswith("honest/")]
    assert not any(isinstance(plan.reasons[j], TakesTooLong) for j in honest)
    assert plan.action[snapshot.job_names.index("honest/small")] == Action.ADMIT


def test_a_namespace_has_its_part_when_others_have_taken_all_that_is_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "MOST_OPERATIONS", 400)
    done = Work([0, 1])
    with pytest.raises(SpentError), done.of(0, may_fail=True):
        done.charge(301)
    assert done.is_spent(0)
    with done.of(1, may_fail=True):
        done.charge(100)
        assert not done.is_spent(1)
        with pytest.raises(SpentError):
            done.charge(1)
    done.begin()
    assert not done.is_spent(0)


@pytest.mark.parametrize("policy_name", POLICIES)
def test_what_nobody_waits_for_any_more_ends(policy_name: str) -> None:
    snapshot = _busy(nodes=4, gangs=1, tasks=2, each=2)
    snapshot.work.stop()
    with pytest.raises(LateError):
        load_policy(policy_name).optimize(snapshot)


@pytest.mark.parametrize("policy_name", POLICIES)
def test_what_a_plan_does_is_counted_whatever_queues_the_policy_adds(policy_name: str) -> None:
    snapshot = _busy(nodes=8, gangs=4, tasks=10, each=20)
    load_policy(policy_name).optimize(snapshot)
    assert min(snapshot.work.of_owner) > 0
    assert prepared(snapshot, by_namespace=True).work is snapshot.work


def test_a_search_that_is_given_up_leaves_others_what_they_may_have() -> None:
    queues = [QueueView("lower"), QueueView("sure", guarantee={"cpu": 5_000})]
    fixed = JobView("b/fixed", (RoleView("w", {"cpu": 1000}, 1, 1, 1),), queue="lower", preemptible=False)
    snapshot = prepared(build([NodeView("n", {"cpu": 16_000})], [fixed], queues, now_seconds=1000.0))
    ledger, job = Ledger(snapshot), snapshot.job_names.index("b/fixed")
    before = ledger.fixed_room(job)

    def find() -> None:
        assert ledger.try_gang(job, {snapshot.facts.roles_of[job][0]: 1}) is not None
        assert ledger.fixed_room(job) != before
        raise SpentError("no more")

    assert before is not None
    assert ledger.searched(job, find) is None
    assert ledger.fixed_room(job) == before


@pytest.mark.parametrize("policy_name", POLICIES)
def test_a_namespace_for_which_much_is_searched_is_left_aside_in_the_next_plans(
    policy_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effort, "_BURST_SECONDS", 0.1)
    now = [0.0]
    spent, policy = effort.Effort(Clock(monotonic=lambda: now[0])), load_policy(policy_name)

    def planned(snapshot: Snapshot) -> tuple[Snapshot, Plan]:
        spent.begin(snapshot)
        plan = in_units(policy.optimize, snapshot)
        spent.note(snapshot, 1.0)
        assert faults(snapshot, plan) == []
        return snapshot, plan

    shape = {"nodes": 8, "gangs": 4, "tasks": 40, "each": 20}
    first, _ = planned(_busy(**shape))
    evil = int(first.owners[first.job_names.index("evil/g000")])
    assert first.work.of_owner[evil] > 5000
    assert spent.due() == math.inf
    second, plan = planned(_busy(**shape))
    assert now[0] < spent.due() < math.inf
    assert second.work.of_owner[evil] < first.work.of_owner[evil] / 5
    assert plan.action[second.job_names.index("honest/small")] == Action.ADMIT
    if policy_name not in ("fit", "fair"):  # the others place the first gang with few operations
        return
    assert isinstance(plan.reasons[second.job_names.index("evil/g000")], TakesTooLong)
    now[0] = spent.due() + 0.001
    third, plan = planned(_busy(**shape))
    assert third.work.of_owner[evil] > 5000
    assert not isinstance(plan.reasons[third.job_names.index("evil/g000")], TakesTooLong)


def test_a_namespace_that_is_alone_is_never_left_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort, "_BURST_SECONDS", 0.0)
    spent = effort.Effort(Clock(monotonic=lambda: 0.0))
    roles = (RoleView("w", {"cpu": 100}, 1, 1, 1),)
    snapshot = build([NodeView("n", {"cpu": 1000})], [JobView("a/one", roles)])
    spent.begin(snapshot)
    with snapshot.work.of(0):
        snapshot.work.charge(10_000)
    spent.note(snapshot, 1.0)
    spent.begin(snapshot)
    assert not snapshot.work.is_spent(0)
    assert spent.due() == math.inf


@pytest.mark.parametrize("policy_name", POLICIES)
def test_what_is_done_after_the_jobs_of_a_namespace_is_not_charged_to_it(policy_name: str) -> None:
    """The last job that a policy looks at is not the one that all later work is for."""
    role = RoleView("w", {"cpu": 100}, 1, 1, 1)
    views = [JobView("a/one", (role,), preemptible=False), JobView("b/two", (role,), preemptible=False)]
    snapshot = build([NodeView("n", {"cpu": 1000})], views)
    load_policy(policy_name).optimize(snapshot)
    done = list(snapshot.work.of_owner)
    assert min(done) > 0
    Ledger(snapshot).work.charge(1000)
    assert snapshot.work.of_owner == done


def test_a_search_inside_another_ones_is_charged_to_its_own_job() -> None:
    done = Work([0, 1])
    with done.of(0, may_fail=True):
        with done.of(1):
            done.charge(7)
        done.charge(5)
    assert done.of_owner == [5, 7]
    done.charge(3)
    assert done.of_owner == [5, 7]

"""Calls of policies are guarded: laws 10 and 11, bad input, and policies of other packages."""

from __future__ import annotations

import threading
from dataclasses import replace
from importlib.metadata import EntryPoint

import numpy as np
import pytest

import diflow.labs.baselines  # noqa: F401 (adds its policies)
from diflow.allocator.model.plan import (
    Action,
    Plan,
    carry_out,
    changes,
    keep_plan,
    make_plan,
)
from diflow.allocator.model.profile import Profile
from diflow.allocator.model.reasons import KEPT, NoNodes, TooBig
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.validate import faults
from diflow.allocator.model.views import JobView, NodeView, QueueView, RoleView, build
from diflow.allocator.plan.guard import Guard, guarded
from diflow.allocator.policies import base
from diflow.allocator.policies.base import load_policy
from diflow.allocator.policies.fit.policy import FitPolicy
from diflow.allocator.policies.settings import PolicySettings, policy_settings
from diflow.allocator.reasons import reason_texts
from diflow.common.clock import Clock
from diflow.common.errors import InvalidError
from tests.policies.halfway import carry_out_first_step

NAMES = ("fit", "fair", "goodput", "fair+goodput", "tiresias", "optimus")


def cluster(**given: object) -> Snapshot:
    jobs = [
        JobView("a", (RoleView("w", {"gpu": 1}, 1, 4, 2),), placed={"w": {"n1": 2}}, started_seconds=0.0),
        JobView("b", (RoleView("w", {"gpu": 1}, 1, 4, 2),), created_seconds=1.0),
    ]
    snapshot = build([NodeView("n1", {"gpu": 4}), NodeView("n2", {"gpu": 4})], jobs, now_seconds=100.0)
    return replace(snapshot, **given) if given else snapshot  # type: ignore[arg-type]


def test_a_policy_that_fails_changes_nothing() -> None:
    def broken(_: Snapshot) -> Plan:
        raise ZeroDivisionError("oh")

    plan, trouble = guarded(broken, cluster(), name="broken", limit_seconds=5)
    assert changes(plan) == 0
    assert "policy broken failed (ZeroDivisionError: oh); nothing is changed" in trouble


def test_a_policy_that_is_late_changes_nothing() -> None:
    stop = threading.Event()

    def slow(snapshot: Snapshot) -> Plan:
        stop.wait(10)
        return FitPolicy().optimize(snapshot)

    plan, trouble = guarded(slow, cluster(), name="slow", limit_seconds=0.05)
    stop.set()
    assert changes(plan) == 0
    assert "longer than 0.05 s" in trouble


def test_of_calls_that_do_not_come_back_there_is_one_at_most() -> None:
    stop = threading.Event()
    now = [0.0]

    def slow(snapshot: Snapshot) -> Plan:
        stop.wait(60)
        return keep_plan(snapshot, "slow")

    guard = Guard("stuck", limit_seconds=0.01, clock=Clock(monotonic=lambda: now[0]))
    for _ in range(20):
        now[0] += 5.0
        plan, trouble = guard.ask(slow, cluster())
        assert changes(plan) == 0
    (left,) = [thread for thread in threading.enumerate() if thread.name == "policy-stuck"]
    assert "has not returned from an earlier call" in trouble
    assert guard.stuck_seconds == 95.0
    stop.set()
    left.join(30)
    assert guard.stuck_seconds == 0.0
    assert guard.ask(FitPolicy().optimize, cluster())[1] in (
        "",
        "policy stuck took longer than 0.01 s; nothing is changed",
    )


def test_a_bad_plan_changes_nothing() -> None:
    def greedy(s: Snapshot) -> Plan:
        role, node, count = (np.array(v, dtype=np.int64) for v in ([0, 1], [0, 0], [4, 4]))
        return make_plan(s, "greedy", role, node, count, reasons=[KEPT] * s.jobs)

    plan, trouble = guarded(greedy, cluster(), name="greedy", limit_seconds=5)
    assert changes(plan) == 0
    assert "bad plan (node n1 would be given more than it has)" in trouble
    plan, trouble = guarded(lambda _: None, cluster(), name="none", limit_seconds=5)  # type: ignore[arg-type,return-value]
    assert changes(plan) == 0
    assert "bad plan" in trouble


def test_a_good_plan_passes() -> None:
    plan, trouble = guarded(FitPolicy().optimize, cluster(), name="fit", limit_seconds=5)
    assert trouble == ""
    assert plan.action.tolist() == [Action.RESIZE, Action.ADMIT]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"count": np.array([-1])}, "not positive"),
        ({"role": np.array([7])}, "not in the snapshot"),
        ({"reasons": (KEPT,)}, "entries for 2 jobs"),
        ({"reasons": (KEPT, "it fits")}, "a reason that is none: str"),
        ({"action": np.array([0])}, "entries for 2 jobs"),
        ({"action": np.array([int(Action.PREEMPT), int(Action.WAIT)])}, "its action does not say"),
        ({"bind_now": np.array([True, False])}, "bound now although none of its pods may start"),
    ],
)
def test_the_validator_names_what_is_wrong(change: dict[str, np.ndarray], words: str) -> None:
    snapshot = cluster()
    plan = replace(keep_plan(snapshot, "x"), **change)  # type: ignore[arg-type]
    assert any(words in line for line in faults(snapshot, plan)), faults(snapshot, plan)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "profile",
    [
        Profile(),
        Profile(observations=np.full((3, 6), np.nan)),
        Profile(observations=np.zeros((0, 2))),
        Profile(observations=np.array([[1, 1, 8, 0.1, 0.1, 0]]), grad_sqr=0.0, grad_var=0.0),
        Profile(observations=np.array([[1, 1, 8, 0.1, 0.1, 0]]), initial_batch=-5, max_batch=-7, max_local_batch=0),
        Profile(observations=np.array([[1, 1, 8, 0.1, 0.1, 0]]), fraction_done=2.0, work_done=-1.0),
        Profile(observations=np.array([[1, 1, 8, 1e300, 1e300, 0]]), grad_sqr=float("inf"), grad_var=1.0),
        Profile(parameters=np.full(7, np.nan), observations=np.array([[1, 2, 8, 0.1, 0.2, 0]])),
        Profile(parameters=np.zeros(3)),
        Profile(observations=np.array([[1, 2, 8, 0.1, 0.2, 0]]), min_local_batch=1000, max_batch=10),
    ],
)
def test_bad_profilings_raise_nothing_and_starve_nobody(name: str, profile: Profile) -> None:
    jobs = [
        JobView("bad", (RoleView("w", {"gpu": 1}, 1, 8, 4),), profile=profile),
        JobView("good", (RoleView("w", {"gpu": 1}, 1, 2, 2),), created_seconds=5.0),
    ]
    snapshot = build([NodeView("n1", {"gpu": 4}), NodeView("n2", {"gpu": 4})], jobs, now_seconds=100.0)
    plan = load_policy(name).optimize(snapshot)
    assert faults(snapshot, plan) == []
    assert set(snapshot.role_job[plan.role].tolist()) == {0, 1}


@pytest.mark.parametrize("name", NAMES)
def test_no_nodes_zero_capacity_and_no_jobs_give_reasons_and_no_exception(name: str) -> None:
    chosen = load_policy(name)
    job = JobView("a", (RoleView("w", {"gpu": 1}, 1, 4, 2),))
    for nodes in ([], [NodeView("n1", {"gpu": 0})], [NodeView("n1", {})], [NodeView("n1", {"gpu": 4}, is_open=False)]):
        snapshot = build(nodes, [job])
        plan = chosen.optimize(snapshot)
        assert faults(snapshot, plan) == []
        assert plan.action.tolist() == [Action.WAIT]
        assert isinstance(plan.reasons[0], NoNodes | TooBig)
        assert reason_texts.text(snapshot, plan, 0).startswith("a: wait: ")
    empty = build([NodeView("n1", {"gpu": 4})], [])
    assert chosen.optimize(empty).to_bytes(empty)


@pytest.mark.parametrize("name", ["fit", "fair", "goodput", "fair+goodput"])
def test_ten_thousand_jobs_at_once_are_answered(name: str) -> None:
    role = RoleView("w", {"gpu": 1, "cpu": 2}, 1, 8, 2)
    jobs = [JobView(f"job{i:05d}", (role,), created_seconds=float(i % 97)) for i in range(10_000)]
    nodes = [NodeView(f"n{i:03d}", {"gpu": 8, "cpu": 64}) for i in range(64)]
    snapshot = build(nodes, jobs, now_seconds=1000.0)
    plan = load_policy(name).optimize(snapshot)
    assert faults(snapshot, plan) == []
    assert plan.count.sum() == 512
    assert (plan.action == Action.WAIT).sum() > 9000


def test_weights_of_zero_everywhere_still_share() -> None:
    queues = [QueueView("a", weight=0), QueueView("b", weight=0)]
    jobs = [JobView(q.name, (RoleView("w", {"gpu": 1}, 1, 9, 9),), queue=q.name) for q in queues]
    snapshot = build([NodeView("n1", {"gpu": 8})], jobs, queues)
    for name in ("fair", "fair+goodput"):
        plan = load_policy(name).optimize(snapshot)
        assert set(snapshot.role_job[plan.role].tolist()) == {0, 1}, name


def test_the_message_for_an_unknown_policy_names_the_known_ones() -> None:
    with pytest.raises(InvalidError, match="there is no policy 'magic': take one of fair, fair"):
        load_policy("magic")


def test_other_packages_add_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        EntryPoint("theirs", "tests.allocator.plan.test_guard:make_theirs", base.GROUP),
        EntryPoint("broken", "tests.allocator.plan.test_guard:nothing_here", base.GROUP),
        EntryPoint("no-policy", "builtins:dict", base.GROUP),
    ]
    monkeypatch.setattr(base, "entry_points", lambda group: entries if group == base.GROUP else [])
    assert "theirs" in base.policy_names()
    assert load_policy("theirs").optimize(cluster()).policy == "fit"
    with pytest.raises(InvalidError, match="policy 'broken' .* cannot be loaded"):
        load_policy("broken")
    with pytest.raises(InvalidError, match="policy 'no-policy'"):
        load_policy("no-policy")


def make_theirs(settings: PolicySettings) -> FitPolicy:
    return FitPolicy(settings)


def test_a_bad_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIFLOW_POLICY_RESTART_SECONDS", "-3")
    with pytest.raises(InvalidError, match="DIFLOW_POLICY_RESTART_SECONDS: "):
        policy_settings()
    with pytest.raises(InvalidError, match="DIFLOW_POLICY_RESTART_SECONDS: "):
        load_policy("fair")


def test_functions_are_chosen_by_name_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert policy_settings().victims == ()
    monkeypatch.setenv("DIFLOW_POLICY_VICTIMS", '["drf"]')
    monkeypatch.setenv("DIFLOW_POLICY_JOB_ORDER", '["drf", "created"]')
    assert (policy_settings().victims, policy_settings().job_order) == (("drf",), ("drf", "created"))


@pytest.mark.parametrize(
    ("text", "told"), [("allocate", r"STEPS: must be JSON: "), ('["allocate", "steal"]', r"STEPS\[1\]: .*'preempt'")]
)
def test_an_invalid_list_is_named(monkeypatch: pytest.MonkeyPatch, text: str, told: str) -> None:
    monkeypatch.setenv("DIFLOW_POLICY_STEPS", text)
    with pytest.raises(InvalidError, match=f"DIFLOW_POLICY_{told}"):
        policy_settings()


def test_what_holds_something_or_did_has_been_started() -> None:
    """Else a stopped job would count as waiting for its first start since its creation."""
    before = cluster(job_started_seconds=np.full(2, -1.0))
    nothing = np.zeros(0, dtype=np.int64)
    reasons = [KEPT, KEPT]
    stopped = make_plan(before, "stop", nothing, nothing, nothing, reasons=reasons)
    assert carry_out(before, stopped).job_started_seconds.tolist() == [100.0, -1.0]
    role, node, count = (np.array(part, dtype=np.int64) for part in ([0, 1], [0, 1], [2, 1]))
    begun = carry_out_first_step(before, make_plan(before, "start", role, node, count, reasons=reasons))
    assert begun.job_started_seconds.tolist() == [-1.0, 100.0]

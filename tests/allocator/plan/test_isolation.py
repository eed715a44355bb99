"""A fault of one job holds that job, with a message that names it, and stops no other job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from diflow.allocator.model import views
from diflow.allocator.model.plan import Plan
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.views import JobView
from diflow.allocator.plan import holding, inputs
from diflow.allocator.plan.isolation import MOST_CULPRITS, LeftOut, culprit
from diflow.allocator.policies.base import Policy, load_policy
from diflow.allocator.watch import reports
from diflow.allocator.watch.cluster_state import ClusterState
from diflow.allocator.write import patches
from diflow.dijob import stored
from tests.allocator import values
from tests.allocator.lab import Lab, job, lab, task

Break = Callable[[pytest.MonkeyPatch], None]
POLICIES = ["fit", "fair", "goodput", "fair+goodput"]


def _is_evil(what: Any) -> bool:
    return "evil" in str(what)


def _in_stand(patch: pytest.MonkeyPatch) -> None:
    real = holding.stand

    def stand(job: Any, *given: Any, **options: Any) -> Any:
        if _is_evil(job.key):
            raise KeyError("stand")
        return real(job, *given, **options)

    for module in (holding, inputs):
        patch.setattr(module, "stand", stand)


def _in_view(patch: pytest.MonkeyPatch) -> None:
    real = holding._view

    def view(holding: Any) -> JobView:
        if _is_evil(holding.job.key):
            raise OverflowError("int too large to convert to float")
        return real(holding)

    patch.setattr(holding, "_view", view)


def _in_arrays(patch: pytest.MonkeyPatch) -> None:
    """A number that is too large for an array has passed all parsers."""
    real = holding._view

    def view(holding: Any) -> JobView:
        made = real(holding)
        return replace(made, priority=10**30) if _is_evil(holding.job.key) else made

    patch.setattr(holding, "_view", view)


def _beside_others(patch: pytest.MonkeyPatch) -> None:
    """It fails only together with other jobs."""
    real = views.build

    def build(nodes: Any, jobs: Sequence[JobView], *given: Any, **options: Any) -> Snapshot:
        if len(jobs) > 1 and any(_is_evil(view.name) for view in jobs):
            raise ZeroDivisionError("build")
        return real(nodes, jobs, *given, **options)

    patch.setattr(inputs, "build", build)


def _in_writes(patch: pytest.MonkeyPatch) -> None:
    real = patches.change_job

    def change_job(read: Any, **options: Any) -> Any:
        if _is_evil(read.key):
            raise ValueError("Exceeds the limit (4300 digits) for integer string conversion")
        return real(read, **options)

    patch.setattr(patches, "change_job", change_job)


def _in_reports(patch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RecursionError("report")

    patch.setattr(reports, "complaint", broken)
    patch.setattr(reports, "is_news", broken)


def _while_read(patch: pytest.MonkeyPatch) -> None:
    real = stored.read_job

    def dijob(text: Any) -> Any:
        if _is_evil(text):
            raise TypeError("a reader")
        return real(text)

    patch.setattr(stored, "read_job", dijob)


class Touchy:
    """A policy that fails as soon as it sees a certain job."""

    def __init__(self, policy: Policy) -> None:
        self._policy, self.name = policy, policy.name

    def allocate(self, job: int, snapshot: Snapshot) -> Plan:
        return self._policy.allocate(job, snapshot)

    def optimize(self, snapshot: Snapshot) -> Plan:
        if any(_is_evil(name) for name in snapshot.job_names):
            raise IndexError("policy")
        return self._policy.optimize(snapshot)

    def measure(self, snapshot: Snapshot, plan: Plan) -> float:
        return self._policy.measure(snapshot, plan)


def _outcome(at: Lab) -> list[str]:
    """The places of the honest jobs, and the Event of the other one."""
    at.cluster.submit(job("evil", task("w", replicas=2)))
    at.cluster.submit(job("honest", task("w", replicas=2)))
    at.cluster.submit(job("other", task("w", replicas=2)))
    at.until(lambda: len(at.cluster.running("honest")) == len(at.cluster.running("other")) == 2, "the others run")
    at.step()
    return [message for reason, message in at.events("evil") if reason == "Refused"]


@pytest.fixture(params=POLICIES)
def policy(request: pytest.FixtureRequest) -> Policy:
    return load_policy(request.param)


@pytest.mark.parametrize("broken", [_in_stand, _in_view, _in_arrays, _beside_others, _in_writes, _while_read])
def test_a_job_that_makes_a_step_fail_is_held_and_named_and_others_are_placed(
    broken: Break, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lab(policy=policy) as at:
        at.cluster.node("n1", cpu="8")
        broken(monkeypatch)
        told = _outcome(at)
        assert len(told) == 1, told
        assert "undo what was edited" in told[0]


def test_a_job_with_which_the_policy_fails_is_held_and_others_are_placed(policy: Policy) -> None:
    with lab(policy=Touchy(policy)) as at:
        at.cluster.node("n1", cpu="8")
        told = _outcome(at)
        assert len(told) == 1, told
        assert "nothing can be planned for it" in told[0]


@pytest.mark.parametrize("count", [2, MOST_CULPRITS, 3 * MOST_CULPRITS])
def test_several_jobs_with_which_the_policy_fails_are_each_held_and_others_are_placed(
    policy: Policy, count: int
) -> None:
    """The search must not treat jobs outside a sample as deleted, which would admit them to the next plan. It also
    works if there are more faulty jobs than one plan searches for."""
    names = [f"evil-{number}" for number in range(count)]
    with lab(policy=Touchy(policy)) as at:
        at.cluster.node("n1", cpu="8")
        for name in names:
            at.cluster.submit(job(name, task("w")))
        _outcome(at)
        assert [name for name in names if "Refused" in [reason for reason, _ in at.events(name)]] == names


def test_the_search_for_a_faulty_job_grants_no_withdrawn_place() -> None:
    with lab(policy=Touchy(load_policy("fit"))) as at:
        at.cluster.node("n1", cpu="8")
        at.cluster.quota = {"one": 1}
        at.cluster.submit(job("one", task("w", replicas=4)))
        at.until(lambda: at.allocation("one") != {}, "it is given its place before its pods are there")
        at.until(lambda: at.allocation("one") == {}, "its place is given back", seconds=370)
        at.cluster.submit(job("evil", task("w")))
        at.until(lambda: at.events("evil") != [], "the job at fault is found")
        for _ in range(40):
            at.step()
        assert at.allocation("one") == {}, "its pods are not there yet"


def test_unreadable_reports_stop_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    with lab() as at:
        at.cluster.node("n1", cpu="8")
        _in_reports(monkeypatch)
        _outcome(at)


def test_a_policy_that_fails_with_every_job_holds_none_of_them() -> None:
    class Broken(Touchy):
        def optimize(self, _: Snapshot) -> Plan:
            raise IndexError("policy")

    with lab(policy=Broken(load_policy("fit"))) as at:
        at.cluster.node("n1", cpu="8")
        at.cluster.submit(job("one", task("w")))
        at.rest(seconds=5)
        assert at.daemon is not None
        assert "IndexError" in at.daemon.allocator.last_trouble
        assert at.events("one") == []


def test_a_job_that_was_mended_is_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with lab() as at:
        at.cluster.node("n1", cpu="8")
        with monkeypatch.context() as patch:
            _in_view(patch)
            _outcome(at)
        at.cluster.annotate("evil", mended="yes")
        at.until(lambda: len(at.cluster.running("evil")) == 2, "it is planned again", seconds=90)


def test_a_faulty_job_that_changes_all_the_time_is_backed_off() -> None:
    out = LeftOut()
    tried = 0
    for second in range(3600):
        one = values.job(values.read())  # another object each time
        if out.without([one], now=float(second)):
            tried += 1
            out.add(one, KeyError("again"), now=float(second))
    assert tried < 20


@pytest.mark.parametrize("at_fault", [0, 1, 511, 999])
def test_the_item_at_fault_is_found_in_few_tries(at_fault: int) -> None:
    tries = 0

    def fails(some: Sequence[int]) -> bool:
        nonlocal tries
        tries += 1
        return at_fault in some

    numbers = [*range(1000)]
    assert culprit(numbers, fails) == at_fault
    assert tries <= 14
    assert culprit(numbers, lambda some: at_fault in some and len(some) > 1) == at_fault, "with whomever it is"
    assert culprit(numbers, lambda _: True) is None
    assert culprit(numbers, lambda _: False) is None


def test_jobs_that_fail_by_themselves_are_found_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of jobs that fail by themselves need no search each."""
    _in_view(monkeypatch)
    jobs = []
    for i in range(300):
        made = values.read()
        identity = replace(made.identity, name=f"{'evil' if i % 2 else 'good'}-{i}", uid=f"u{i}")
        jobs.append(values.job(replace(made, identity=identity)))
    at = values.capacity()
    shown = inputs.picture(ClusterState({j.key: j for j in jobs}, at.nodes, ()), at, now=values.NOW)
    assert shown.snapshot.jobs == 150
    assert len(shown.left_out) == 150

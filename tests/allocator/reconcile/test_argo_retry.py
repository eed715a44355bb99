"""A job that somebody retried with `argo retry` goes on, although Argo creates no pods for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from diflow.allocator.settings import AllocatorSettings
from diflow.kube.kinds import WORKFLOW
from tests.allocator.crashing import Crash
from tests.allocator.lab import Lab, job, lab, task
from tests.allocator.run.test_crashes import rest_through_crashes

pytestmark = pytest.mark.usefixtures("from_memory_as_afresh")

KINDS = pytest.mark.parametrize("preemptible", [False, True], ids=["alone", "together"])


@pytest.fixture
def at() -> Iterator[Lab]:
    with lab(settings=AllocatorSettings(writers=1, debounce_seconds=0.0)) as made:
        made.cluster.node("a", cpu=4)
        made.cluster.node("b", cpu=4)
        yield made


def fail(at: Lab, *, preemptible: bool) -> None:
    """A job whose `worker-0` fails twice, which is once too often; `worker-1` succeeds, if it is let."""
    at.cluster.submit(job("job", task(replicas=2, cpu="2"), preemptible=preemptible, backoff_limit=1))
    if at.daemon is None:
        at.begin()
    for _ in range(2):
        at.until(lambda: len(at.cluster.running("job")) == 2 or at.cluster.phase("job") == "Failed", "it runs")
        at.cluster.finish(at.cluster.of("job")["worker-0"]["metadata"]["name"], code=1)
        at.step()
        at.step()
    at.until(lambda: at.cluster.phase("job") == "Failed", "it failed", seconds=120)
    at.rest()


@KINDS
def test_argo_alone_creates_no_pods(at: Lab, *, preemptible: bool) -> None:
    fail(at, preemptible=preemptible)
    at.end()
    at.cluster.retry_as_argo_does("job")
    for _ in range(60):
        at.step()
    assert "worker-0" not in at.cluster.of("job")


@KINDS
def test_the_job_runs_again_with_its_full_limit(at: Lab, *, preemptible: bool) -> None:
    fail(at, preemptible=preemptible)
    at.cluster.retry_as_argo_does("job")
    at.until(lambda: len(at.cluster.running("job")) == 2, "it runs again", seconds=120)
    assert at.cluster.restarts("job") == 0
    assert [reason for reason, _ in at.events("job")].count("Repaired") == 1
    at.rest()
    at.cluster.finish(at.cluster.of("job")["worker-0"]["metadata"]["name"], code=1)
    at.until(lambda: at.cluster.restarts("job") == 1, "its first failure is retried", seconds=120)
    at.rest()
    assert len(at.cluster.running("job")) == 2
    assert at.cluster.problems == []


@KINDS
@pytest.mark.parametrize("ahead", [0.0, 3600.0], ids=["", "clock-ahead"])
def test_a_job_is_repaired_when_argo_has_left_it_alone_for_a_moment(
    at: Lab, *, preemptible: bool, ahead: float
) -> None:
    """Argo would merge what it does at the time into the repaired job, and may fail the job then."""
    fail(at, preemptible=preemptible)
    at.cluster.retry_as_argo_does("job", ahead=ahead)
    at.step(1.0)
    assert not _is_repaired(at)
    assert len(at.cluster.running("job")) < 2
    at.until(lambda: _is_repaired(at), "it is repaired", seconds=4)


@KINDS
@pytest.mark.parametrize("is_sent", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("write", [1, 2])
def test_the_allocator_may_be_killed_at_each_write(at: Lab, *, preemptible: bool, write: int, is_sent: bool) -> None:
    fail(at, preemptible=preemptible)
    crash = Crash(at=write, is_sent=is_sent)
    assert at.daemon is not None
    at.daemon.line.before, at.daemon.line.after = crash.before, crash.after
    at.cluster.retry_as_argo_does("job")
    rest_through_crashes(at)
    assert crash.seen >= write
    assert len(at.cluster.running("job")) == 2
    assert at.cluster.restarts("job") == 0
    assert at.cluster.problems == []


@KINDS
@pytest.mark.parametrize("is_recorded", [True, False], ids=["torn", "unrecorded"])
def test_pods_that_argo_has_forgotten_are_ended_and_take_no_place(
    at: Lab, *, preemptible: bool, is_recorded: bool
) -> None:
    fail(at, preemptible=preemptible)
    at.cluster.retry_as_argo_does("job")
    at.until(lambda: _is_repaired(at), "it is repaired")
    forgotten = at.cluster.make_pods_while_repaired("job", is_recorded=is_recorded)
    at.until(lambda: len(at.cluster.running("job")) == 2, "it runs again", seconds=120)
    assert not set(forgotten) & {pod["metadata"]["name"] for pod in at.cluster.of("job").values()}
    assert not [name for name in forgotten if at.cluster.pod(name)["spec"].get("nodeName")], "none of them has run"
    assert set(_nodes_of_pods(at)) <= at.cluster.workflow("job")["status"]["nodes"].keys()
    assert at.cluster.restarts("job") == 0
    at.rest()
    at.cluster.finish(at.cluster.of("job")["worker-0"]["metadata"]["name"], code=1)
    at.until(lambda: at.cluster.restarts("job") == 1, "its first failure is retried", seconds=120)
    at.rest()
    assert len(at.cluster.running("job")) == 2, "though Argo takes the pods that have ended for the next attempt"
    assert at.cluster.phase("job") == "Running"
    assert at.cluster.problems == []


@KINDS
@pytest.mark.parametrize("is_sent", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("write", [1, 2, 3, 4])
def test_the_allocator_may_be_killed_while_it_ends_forgotten_pods(
    at: Lab, *, preemptible: bool, write: int, is_sent: bool
) -> None:
    fail(at, preemptible=preemptible)
    at.cluster.retry_as_argo_does("job")
    at.until(lambda: _is_repaired(at), "it is repaired")
    crash = Crash(at=write, is_sent=is_sent)
    assert at.daemon is not None
    at.daemon.line.before, at.daemon.line.after = crash.before, crash.after
    forgotten = at.cluster.make_pods_while_repaired("job", is_recorded=True)
    rest_through_crashes(at)
    assert crash.seen >= write
    assert len(at.cluster.running("job")) == 2
    assert not set(forgotten) & {pod["metadata"]["name"] for pod in at.cluster.of("job").values()}
    assert at.cluster.problems == []


@KINDS
@pytest.mark.parametrize("is_recorded", [True, False], ids=["torn", "unrecorded"])
def test_pods_that_argo_takes_for_its_own_again_run(at: Lab, *, preemptible: bool, is_recorded: bool) -> None:
    """Those of the first attempt, with which Argo begins after the repair: it finds them by their names."""
    fail(at, preemptible=preemptible)
    at.cluster.retry_as_argo_does("job")
    at.until(lambda: _is_repaired(at), "it is repaired")
    made = at.cluster.make_pods_while_repaired("job", is_recorded=is_recorded, attempt=0)
    at.until(lambda: len(at.cluster.running("job")) == 2, "it runs again", seconds=120)
    assert set(made) == {pod["metadata"]["name"] for pod in at.cluster.of("job").values()}
    assert at.cluster.problems == []


def _is_repaired(at: Lab) -> bool:
    return "Repaired" in [reason for reason, _ in at.events("job")]


def _nodes_of_pods(at: Lab) -> list[str]:
    return [pod["metadata"]["annotations"]["workflows.argoproj.io/node-id"] for pod in at.cluster.of("job").values()]


def test_a_stopped_job_is_not_started_by_the_repair(at: Lab) -> None:
    fail(at, preemptible=False)
    at.end()
    at.cluster.retry_as_argo_does("job")
    at.cluster.stop("job")
    at.begin()
    at.rest()
    assert at.cluster.of("job") == {}
    assert "Repaired" not in [reason for reason, _ in at.events("job")]


def test_what_an_owner_forges_costs_one_write_of_its_own_workflow(at: Lab) -> None:
    """Attempts that an owner writes into the status are removed once, and Argo writes its own nodes."""
    at.cluster.submit(job("job", task(replicas=2, cpu="2"), backoff_limit=1))
    at.begin()
    at.until(lambda: len(at.cluster.running("job")) == 2, "it runs")
    workflow = at.cluster.workflow("job")
    name = "job.round(0:1).worker(0:0)"
    forged = {
        f"{name}({number})": {"id": f"{name}({number})", "name": f"{name}({number})", "type": "DAG", "phase": "Running"}
        for number in range(2, 6)
    }
    status = {**workflow["status"], "nodes": {**workflow["status"]["nodes"], **forged}}
    at.api.add(WORKFLOW, {**workflow, "status": status})
    at.rest()
    assert len(at.cluster.running("job")) == 2
    assert [reason for reason, _ in at.events("job")].count("Repaired") <= 1


def test_a_job_of_which_no_replica_was_started_again_is_repaired_too(at: Lab) -> None:
    at.cluster.submit(job("job", task(cpu="2"), backoff_limit=0))
    at.begin()
    at.until(lambda: len(at.cluster.running("job")) == 1, "it runs")
    at.cluster.finish(at.cluster.of("job")["worker-0"]["metadata"]["name"], code=1)
    at.until(lambda: at.cluster.phase("job") == "Failed", "it failed", seconds=120)
    at.cluster.retry_as_argo_does("job")
    at.until(lambda: len(at.cluster.running("job")) == 1, "it runs again", seconds=120)
    assert at.cluster.problems == []


def test_a_repair_is_paid_by_the_namespace_of_the_job_and_waits_until_it_can_pay(
    at: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a status with 14,000 nodes each try would take a second, with all other decisions behind it."""
    fail(at, preemptible=True)
    assert at.daemon is not None
    caches, poor, paid = at.daemon.allocator.caches, [True], list[str]()
    monkeypatch.setattr(caches, "may_read", lambda _: not poor)
    monkeypatch.setattr(caches.shares, "charge", lambda namespace, _: paid.append(namespace))
    reads = len(at.api.requests)
    at.cluster.retry_as_argo_does("job")
    for _ in range(60):
        at.step()
    path = WORKFLOW.path("default", "job")
    assert not [r for r in at.api.requests[reads:] if r.method == "GET" and r.path == path]
    assert "Repaired" not in [reason for reason, _ in at.events("job")]
    poor.clear()
    at.until(lambda: len(at.cluster.running("job")) == 2, "it runs again", seconds=120)
    assert "default" in paid

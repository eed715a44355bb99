"""A gang before its first admission: it has no pods, and is admitted by one patch of its Workflow."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from diflow.allocator.settings import AllocatorSettings
from diflow.allocator.watch.job import Job
from diflow.allocator.write import executor as writing
from diflow.allocator.write.patches import Write
from diflow.common import keys
from diflow.kube.kinds import LEASE, WORKFLOW
from diflow.record.parameters import ADMITTED
from diflow.record.patches import NOT_ADMITTED
from tests.allocator.fakeargo import is_gated
from tests.allocator.lab import Lab, job, lab, task

PROMISE = 30.0


@pytest.fixture
def at() -> Iterator[Lab]:
    with lab(settings=AllocatorSettings(writers=1, debounce_seconds=0.0, promise_seconds=PROMISE)) as found:
        found.cluster.node("a", cpu=4)
        found.cluster.node("b", cpu=4)
        found.step()  # a new leader changes each job that is there
        yield found


def runs(at: Lab, name: str, count: int, *, seconds: int = 60) -> None:
    at.until(lambda: len(at.cluster.running(name)) == count, f"{count} replicas of {name} run", seconds=seconds)


def spec(at: Lab, name: str) -> dict[str, Any]:
    return dict(at.cluster.workflow(name)["spec"])


def patches(at: Lab, name: str) -> int:
    """The writes of the allocator to a job and its pods."""
    assert at.daemon is not None
    return sum(f"/{name}" in path for _, path, _ in at.daemon.line.writes())


def annotations_of(at: Lab, name: str) -> dict[str, str]:
    return dict(at.cluster.workflow(name)["metadata"]["annotations"])


@pytest.mark.parametrize("preemptible", [False, True])
def test_a_job_that_fits_is_admitted_by_one_patch(at: Lab, preemptible: bool) -> None:
    at.cluster.submit(job("one", task(replicas=6), preemptible=preemptible))
    runs(at, "one", 6)
    assert patches(at, "one") == 1, "its pods are created on their nodes"
    assert not spec(at, "one").get("suspend")
    assert at.cluster.workflow("one")["metadata"]["labels"][keys.ADMITTED] == "true"
    assert at.cluster.parameters("one")["rounds"] == '["1"]'


def test_a_preemptible_job_begins_its_first_round_with_the_replicas_that_fit(at: Lab) -> None:
    at.cluster.submit(job("one", task(replicas=12, min_replicas=2, max_replicas=12), preemptible=True))
    runs(at, "one", 8)
    assert at.cluster.parameters("one")["rounds"] == '["1"]'
    assert json.loads(at.cluster.parameters("one")["granted"]) == {"1": {"worker": 8}}


def test_a_job_that_waits_has_no_pods_and_says_why(at: Lab) -> None:
    at.cluster.submit(job("one", task(replicas=8)))
    runs(at, "one", 8)
    at.cluster.submit(job("two", task(replicas=2)))
    for _ in range(20):
        at.step()
    assert at.cluster.of("two") == {}
    assert spec(at, "two")["suspend"] is True
    assert at.cluster.parameters("two")["places"] == NOT_ADMITTED
    title = annotations_of(at, "two")[keys.DESCRIPTION]
    assert title.startswith("2 × worker; normal priority")
    assert "; waits: " in title
    at.cluster.delete("one")
    runs(at, "two", 2)
    assert "waits" not in annotations_of(at, "two")[keys.DESCRIPTION]


def test_pods_are_created_when_those_that_give_way_have_ended() -> None:
    with lab(grace_seconds=8.0) as at:
        at.cluster.node("a", cpu=4)
        at.cluster.submit(job("low", task(replicas=4, min_replicas=4, max_replicas=4), preemptible=True))
        runs(at, "low", 4)
        at.cluster.submit(job("high", task(replicas=4), priority="high"))
        at.until(lambda: at.allocation("high") != {}, "it has its places")
        while at.cluster.running("low"):
            assert at.cluster.of("high") == {}, "the node is not free yet"
            at.step()
        runs(at, "high", 4)
        assert at.cluster.problems == []


def test_two_jobs_do_not_get_the_same_free_capacity_while_argo_creates_the_pods_of_one(at: Lab) -> None:
    at.cluster.frozen = True
    at.cluster.submit(job("one", task(replicas=8)))
    at.until(lambda: at.cluster.parameters("one")["places"] != NOT_ADMITTED, "it is admitted")
    at.cluster.submit(job("two", task(replicas=1)))
    for _ in range(5):
        at.step()
    assert spec(at, "two")["suspend"] is True
    at.cluster.frozen = False
    runs(at, "one", 8)
    assert at.cluster.problems == []


def test_argo_resume_of_a_waiting_job_does_not_pass_the_queue(at: Lab) -> None:
    at.cluster.submit(job("one", task(replicas=8)))
    runs(at, "one", 8)
    at.cluster.submit(job("two", task(replicas=2)))
    at.step()
    at.cluster.resume("two")
    at.until(lambda: len(at.cluster.of("two")) == 2, "its pods are created")
    at.rest(seconds=5)
    assert all(is_gated(pod) for pod in at.cluster.of("two").values())
    at.cluster.delete("one")
    runs(at, "two", 2)


def test_a_job_that_its_user_suspended_is_not_admitted(at: Lab) -> None:
    at.cluster.frozen = True
    at.cluster.submit(job("one", task(replicas=2)))
    at.cluster.annotate("one", held="true")
    at.cluster.frozen = False
    for _ in range(10):
        at.step()
    assert spec(at, "one")["suspend"] is True or at.cluster.of("one") == {}
    with at.api.changed:
        obj = at.cluster.workflow("one")
        kept = {k: v for k, v in obj["metadata"]["annotations"].items() if k != keys.HELD}
        at.api.add(WORKFLOW, {**obj, "metadata": {**obj["metadata"], "annotations": kept}})
    runs(at, "one", 2)


def test_a_waiting_job_that_is_stopped_ends(at: Lab) -> None:
    at.cluster.submit(job("one", task(replicas=8)))
    runs(at, "one", 8)
    at.cluster.submit(job("two", task(replicas=2)))
    at.step()
    at.cluster.stop("two")
    at.until(lambda: at.cluster.phase("two") == "Failed", "it ends, though Argo ends no Workflow that is suspended")


def test_a_job_that_has_not_started_by_its_deadline_fails_with_the_reason() -> None:
    rarely = AllocatorSettings(writers=1, debounce_seconds=0.0, period_seconds=600.0)
    with lab(settings=rarely) as at:
        at.cluster.node("a", cpu=8)
        at.cluster.submit(job("one", task(replicas=8)))
        runs(at, "one", 8)
        submitted = at.time.now()
        at.cluster.submit(job("two", task(replicas=2), start_deadline_seconds=60))
        at.until(lambda: at.cluster.phase("two") == "Failed", "it ends, though no plan is due then", seconds=90)
        assert at.time.now() - submitted >= 60
        assert at.cluster.of("two") == {}
        assert "startDeadlineSeconds" in annotations_of(at, "two")[keys.DECISION]
        assert len(at.cluster.running("one")) == 8


def test_a_job_whose_deadline_came_while_no_allocator_ran_is_started_if_it_fits(at: Lab) -> None:
    at.end()
    at.cluster.submit(job("one", task(replicas=8), start_deadline_seconds=10))
    at.cluster.submit(job("two", task(replicas=8), start_deadline_seconds=10))
    for _ in range(20):
        at.pass_time()
    at.begin()
    runs(at, "one", 8)
    at.until(lambda: at.cluster.phase("two") == "Failed", "the other does not fit and is too late")


def test_no_job_is_too_late_while_the_allocator_is_paused(at: Lab) -> None:
    def pause(who: str | None) -> None:
        assert at.daemon is not None
        elector = at.daemon.elector
        lease = {"metadata": {"annotations": {keys.PAUSED: who}}}
        at.api.cluster().patch(LEASE, elector.name, lease, namespace=elector.namespace)

    at.step()
    pause("somebody")
    for _ in range(5):
        at.step()
    at.cluster.submit(job("one", task(replicas=8), start_deadline_seconds=10))
    for _ in range(20):
        at.step()
    assert not spec(at, "one").get("shutdown")
    pause(None)
    runs(at, "one", 8)


def test_a_job_that_has_its_places_is_not_too_late_while_others_leave_them() -> None:
    with lab(grace_seconds=40.0) as at:
        at.cluster.node("a", cpu=4)
        at.cluster.submit(job("low", task(replicas=4, min_replicas=4, max_replicas=4), preemptible=True))
        runs(at, "low", 4)
        at.cluster.submit(job("high", task(replicas=4), priority="high", start_deadline_seconds=20))
        runs(at, "high", 4)


def test_a_job_that_its_user_suspended_is_not_too_late(at: Lab) -> None:
    at.cluster.frozen = True
    at.cluster.submit(job("one", task(replicas=2), start_deadline_seconds=10))
    at.cluster.annotate("one", held="true")
    at.cluster.frozen = False
    for _ in range(20):
        at.step()
    assert not spec(at, "one").get("shutdown")


@pytest.mark.parametrize("preemptible", [False, True])
def test_a_gang_of_which_argo_creates_only_a_part_gives_its_place_back(at: Lab, preemptible: bool) -> None:
    at.cluster.quota = {"one": 3}
    at.cluster.submit(job("one", task(replicas=6, min_replicas=6, max_replicas=6), preemptible=preemptible))
    runs(at, "one", 3)
    at.until(lambda: at.cluster.running("one") == {}, "those wait for nothing", seconds=int(PROMISE) + 130)
    at.cluster.submit(job("two", task(replicas=8)))
    runs(at, "two", 8)
    at.cluster.quota = {}
    at.cluster.delete("two")
    runs(at, "one", 6, seconds=200)
    assert at.cluster.restarts("one") == 0


def test_a_pod_that_is_created_again_has_a_gate(at: Lab) -> None:
    at.cluster.submit(job("one", task(replicas=2)))
    runs(at, "one", 2)
    at.cluster.frozen = True
    at.cluster.evict(at.cluster.of("one")["worker-0"]["metadata"]["name"])
    at.daemon, daemon = None, at.daemon  # the allocator is away
    at.cluster.frozen = False
    at.until(lambda: "worker-0" in at.cluster.of("one") and is_gated(at.cluster.of("one")["worker-0"]), "it has a gate")
    at.daemon = daemon
    runs(at, "one", 2)
    assert at.cluster.restarts("one") == 0


def test_places_end_with_the_next_allocation(at: Lab) -> None:
    at.cluster.submit(job("one", task(replicas=2)))
    runs(at, "one", 2)
    at.cluster.scale("one", worker=3)
    runs(at, "one", 3)
    assert at.cluster.parameters("one")["places"] == ADMITTED


@pytest.mark.parametrize(
    "places",
    ["", "[]", "7", '{"until":1e400}', '{"until":"x"}', '{"until":-1}', '{"until":' + "9" * 400 + "}", "{" * 3000],
)
def test_nonsense_in_places_is_that_jobs_trouble_alone(at: Lab, places: str) -> None:
    at.cluster.frozen = True
    at.cluster.submit(job("bad", task(replicas=1)))
    at.cluster.edit("bad", places=places)
    at.cluster.submit(job("good", task(replicas=4)))
    at.step()
    at.cluster.delete("bad")  # what Argo makes of it is its owner's trouble
    at.cluster.frozen = False
    runs(at, "good", 4)


def test_a_node_that_goes_before_the_pods_are_created(at: Lab) -> None:
    at.cluster.frozen = True
    at.cluster.submit(job("one", task(replicas=4)))
    at.until(lambda: at.cluster.parameters("one")["places"] != NOT_ADMITTED, "it is admitted")
    (node,) = {node for nodes in at.allocation("one").values() for node in nodes}
    at.cluster.remove_node(node)
    at.cluster.frozen = False
    runs(at, "one", 4, seconds=200)
    assert at.cluster.restarts("one") == 0
    assert {pod["spec"]["nodeName"] for pod in at.cluster.of("one").values()} == {"a", "b"} - {node}


def test_the_texts_of_many_jobs_do_not_delay_the_next_decisions(at: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_MOST_TEXTS", 3)
    for i in range(10):
        at.cluster.submit(job(f"big-{i}", task(replicas=1, cpu="100")))
    at.cluster.submit(job("small", task(replicas=1)))
    sizes: list[int] = []
    assert at.daemon is not None
    executor = at.daemon.allocator.executor
    apply = executor.apply

    def counted(writes: Sequence[Write], jobs: Mapping[str, Job]) -> list[Write]:
        sizes.append(len(writes))
        return apply(writes, jobs)

    monkeypatch.setattr(executor, "apply", counted)
    for _ in range(10):
        at.step()
    assert at.daemon.line.writes()[0][1].endswith("/small"), "the admission comes first"
    assert all(at.decision(f"big-{i}") for i in range(10))
    assert max(sizes) == 3
    assert len(at.cluster.running("small")) == 1

"""An unused place is withdrawn after a time, and a pod without a claim to a place uses only its own requests."""

from __future__ import annotations

import json
from typing import Any

import pytest

from diflow import DIJob
from diflow.common import keys
from diflow.kube.kinds import POD, WORKFLOW
from tests.allocator.lab import Lab, job, task

DAY = 86_400.0
PROMISE = 300
"""AllocatorSettings.promise_seconds, by default."""


def elastic(name: str = "one", *, low: int = 2, replicas: int = 8, **fields: Any) -> DIJob:
    scales = task("worker", replicas=replicas, min_replicas=low, max_replicas=replicas)
    return job(name, scales, preemptible=True, backoff_limit=0, **fields)


def urgent(replicas: int = 1) -> DIJob:
    return job("urgent", task(replicas=replicas, cpu="4"), priority="high")


def runs(at: Lab, of: str, count: int, *, seconds: int = 45) -> None:
    at.until(lambda: len(at.cluster.running(of)) == count, f"{count} replicas of {of} run", seconds=seconds)


def suspend(at: Lab, name: str, *, on: bool = True) -> None:
    with at.api.changed:
        obj = at.api.objects[WORKFLOW.path("default")][name]
        at.api.add(WORKFLOW, {**obj, "spec": {**obj["spec"], "suspend": on or None}})


def pass_for(at: Lab, name: str, node: str, *, index: int = 0, owner: str = "", **metadata: Any) -> None:
    """A user creates a pod with a job's labels and the name of one of its replicas."""
    owners = [{"kind": "Workflow", "name": name, "uid": owner}] if owner else []
    at.api.add(
        POD,
        {
            "metadata": {
                "name": f"false-{node}-{index}",
                "uid": f"uid-false-{node}-{index}",
                "ownerReferences": owners,
                "labels": {keys.OPERATOR: "diflow", "workflows.argoproj.io/workflow": name, keys.TASK_NAME: "worker"},
                "annotations": {
                    keys.TASK_RANK: str(index),
                    "workflows.argoproj.io/node-name": f"{name}.round(0:1).worker({index}:{index})(0).worker(0)",
                },
                **metadata,
            },
            "spec": {"nodeName": node, "containers": [{"resources": {"requests": {"cpu": "4"}}}]},
            "status": {"phase": "Running"},
        },
    )


def told(at: Lab, name: str) -> str:
    return " | ".join(text for _, text in at.events(name))


# --- what does not leave ----------------------------------------------------------------------------------------------


def test_a_victim_that_does_not_leave_keeps_nobody_from_a_node_that_is_empty(at: Lab) -> None:
    at.cluster.submit(elastic())
    runs(at, "one", 8)
    at.cluster.grace_seconds = DAY
    at.cluster.submit(urgent(2))
    at.until(lambda: at.allocation("urgent") != {}, "it is given capacity that is to become free")
    at.cluster.node("c", cpu=4)
    at.cluster.node("d", cpu=4)
    runs(at, "urgent", 2, seconds=PROMISE + 70)
    assert set(at.cluster.running("urgent").values()) == {"c", "d"}
    assert "given back" in told(at, "urgent")
    assert "one-worker" in told(at, "urgent"), "which pods do not leave"
    assert len(at.cluster.running("one")) > 0, "no program is killed before its own grace period is over"


@pytest.mark.slow
def test_capacity_that_a_victim_keeps_is_not_allocated_again(at: Lab) -> None:
    at.cluster.submit(elastic())
    runs(at, "one", 8)
    at.cluster.grace_seconds = DAY
    at.cluster.submit(urgent(2))
    for _ in range(PROMISE + 70):
        at.step()
    assert at.allocation("urgent") == {}
    before = len(at.events("urgent"))
    for _ in range(1800):
        at.step()
    assert at.allocation("urgent") == {}
    assert len(at.events("urgent")) <= before + 2, "it waits, and does not flap"


def test_a_long_grace_period_within_the_time_is_waited_for(at: Lab) -> None:
    at.cluster.submit(elastic())
    runs(at, "one", 8)
    at.cluster.grace_seconds = PROMISE - 30.0
    at.cluster.submit(urgent(2))
    runs(at, "urgent", 2, seconds=PROMISE)
    assert "given back" not in told(at, "urgent")


def test_a_pod_with_only_the_labels_of_a_job_is_foreign(at: Lab) -> None:
    at.cluster.submit(job("one"))
    runs(at, "one", 1)
    (node,) = at.cluster.running("one").values()
    other = "b" if node == "a" else "a"
    pass_for(at, "one", other, index=0)
    at.cluster.submit(job("two", task(replicas=3)))
    runs(at, "two", 3)
    assert set(at.cluster.running("two").values()) == {node}, "the capacity of the false pod is taken"
    at.cluster.submit(job("three", task(cpu="4")))
    at.rest()
    assert at.allocation("three") == {}, "the false pod will never leave"
    at.cluster.node("c", cpu=4)
    runs(at, "three", 1)


@pytest.mark.parametrize("index", [0, 7])
def test_a_pod_beyond_what_is_granted_is_foreign_whatever_its_owner(at: Lab, index: int) -> None:
    at.cluster.submit(job("one"))
    runs(at, "one", 1)
    (node,) = at.cluster.running("one").values()
    other = "b" if node == "a" else "a"
    pass_for(at, "one", other, index=index, owner=at.cluster.workflow("one")["metadata"]["uid"])
    at.cluster.submit(job("two", task(cpu="4")))
    at.rest()
    assert at.allocation("two") == {}
    at.cluster.node("c", cpu=4)
    runs(at, "two", 1)
    assert at.cluster.running("two") == {"worker-0": "c"}


# --- what is never made -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_gang_whose_pods_are_not_made_gives_its_place_back(at: Lab) -> None:
    at.cluster.quota = {"one": 3}
    at.cluster.submit(job("one", task(replicas=8)))
    at.until(lambda: at.allocation("one") != {}, "it is given its place before its pods are there")
    at.cluster.submit(job("two", task(replicas=8)))
    runs(at, "two", 8, seconds=PROMISE + 70)
    assert at.allocation("one") == {}
    assert "5 pods were not created" in at.decision("one")["why"]
    assert "worker-3" in at.decision("one")["why"]
    before = len(at.events("one"))
    for _ in range(1800):
        at.step()
    assert len(at.events("one")) == before, "it waits for its pods, and does not flap"
    for pod in at.cluster.of("two").values():
        at.cluster.finish(pod["metadata"]["name"])
    at.cluster.quota = {}
    runs(at, "one", 8)


def test_other_bounds_and_more_replicas_bring_no_new_place(at: Lab) -> None:
    """Else a job that changes its request repeatedly would hold unused places for ever."""
    at.cluster.quota = {"one": 3}
    at.cluster.submit(job("one", task(replicas=6)))
    at.until(lambda: at.allocation("one") != {}, "it is given its place before its pods are there")
    at.until(lambda: at.allocation("one") == {}, "its place is given back", seconds=PROMISE + 70)
    for step in range(40):
        at.cluster.annotate("one", bounds=json.dumps({"worker": {"min": 6, "max": 7 + step}}))
        if step % 4 == 0:
            at.cluster.scale("one", worker=6 + step // 4)
        at.step()
        assert at.allocation("one") == {}, f"at change {step}"
    for step in range(40):
        at.cluster.annotate("one", bounds=json.dumps({"worker": {"min": 6, "max": 80 - step}}))
        at.step()
        assert at.allocation("one") == {}, f"less than just now, and not less than what it did not take: change {step}"


def test_a_job_that_asks_for_less_gets_a_place_again(at: Lab) -> None:
    at.cluster.quota = {"one": 3}
    at.cluster.submit(elastic(low=4, replicas=6))
    at.until(lambda: at.allocation("one") != {}, "it is given its place before its pods are there")
    at.until(lambda: at.allocation("one") == {}, "its place is given back", seconds=PROMISE + 70)
    at.cluster.annotate("one", bounds=json.dumps({"worker": {"min": 2, "max": 3}}))
    runs(at, "one", 3, seconds=60)


def test_replicas_that_are_not_created_beside_running_ones_lose_their_places(at: Lab) -> None:
    at.cluster.quota = {"one": 3}
    at.cluster.submit(job("one", task(replicas=3)))
    runs(at, "one", 3)
    at.cluster.scale("one", worker=8)
    at.until(lambda: len(at.allocation("one").get("worker", [])) == 8, "it is given more")
    at.cluster.submit(job("two", task(replicas=4)))
    runs(at, "two", 4, seconds=PROMISE + 70)
    assert len(at.cluster.running("one")) == 3
    for pod in at.cluster.of("two").values():
        at.cluster.finish(pod["metadata"]["name"])
    at.cluster.quota = {}
    runs(at, "one", 8, seconds=100)


def test_a_preemptible_job_of_which_only_some_pods_are_created_runs_with_these(at: Lab) -> None:
    at.cluster.quota = {"one": 3}
    at.cluster.submit(elastic())
    runs(at, "one", 3, seconds=PROMISE + 70)
    for _ in range(1200):
        at.step()
    assert len(at.cluster.running("one")) == 3, "another try would stop all of it"
    assert len(json.loads(at.cluster.parameters("one")["rounds"])) <= 3


def test_a_suspended_job_loses_places_that_it_cannot_use(at: Lab) -> None:
    at.cluster.frozen = True
    at.cluster.submit(job("one", task(replicas=8)))
    at.until(lambda: at.allocation("one") != {}, "it is given its place")
    suspend(at, "one")
    at.cluster.frozen = False
    at.cluster.submit(urgent(2))
    runs(at, "urgent", 2, seconds=PROMISE + 70)
    for pod in at.cluster.of("urgent").values():
        at.cluster.finish(pod["metadata"]["name"])
    suspend(at, "one", on=False)
    runs(at, "one", 8, seconds=100)


def test_a_job_whose_former_replicas_do_not_end_loses_its_new_place(at: Lab) -> None:
    at.cluster.submit(elastic(low=4, replicas=4))
    runs(at, "one", 4)
    (home,) = set(at.cluster.running("one").values())
    (other,) = {"a", "b"} - {home}
    before = {pod["metadata"]["uid"] for pod in at.cluster.of("one").values()}
    at.cluster.grace_seconds = DAY
    at.cluster.cordon(home)
    at.until(lambda: at.allocation("one") == {"worker": [other] * 4}, "it is to move to the other node")
    at.cluster.submit(job("two", task(replicas=4)))
    runs(at, "two", 4, seconds=PROMISE + 70)
    assert "its replicas of the round before do not end" in told(at, "one")
    assert before <= {pod["metadata"]["uid"] for pod in at.cluster.pods()}, "they are left to their grace period"
    at.cluster.grace_seconds = 3.0


def test_a_place_in_use_is_never_withdrawn(at: Lab) -> None:
    at.cluster.submit(elastic())
    at.cluster.submit(job("two", task(replicas=2)))
    runs(at, "two", 2)
    for _ in range(3 * PROMISE):
        at.step()
    assert "given back" not in told(at, "one") + told(at, "two")
    assert len(at.cluster.running("one")) == 6

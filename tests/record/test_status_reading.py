"""Reading a Workflow and its pods: numbers, places, and the forms in which Argo may write them."""

from __future__ import annotations

import base64
import cProfile
import gzip
import tracemalloc
from typing import Any

import pytest

from diflow.record.argo.nodes import nodes
from diflow.record.argo.tree import read_tree
from diflow.record.status.observe import observe
from diflow.record.status.status import derive
from tests.record.seen import SeenJob, at, phases


def busy() -> SeenJob:
    job = SeenJob(learner=1, collector=2, evaluator=1)
    job.pod("learner-0").ready(5, on="node-a")
    job.pod("collector-0").ready(5, on="node-b").ends(9, code=1)
    job.pod("collector-0", created=11, counted=1).ready(13, on="node-c")
    job.pod("collector-1").ready(5, on="node-b").gone(15)
    job.pod("collector-1", created=16, uncounted=1).placed(17, on="node-d")
    job.pod("evaluator-0").ready(5).ends(8)
    job.profilings = '{"speed": 12.5}'
    return job


def test_the_status_has_all_fields_of_a_dijob() -> None:
    status = busy().derive().to_dict()
    assert status["phase"] == "Rescheduling"
    assert status["replicas"] == 4
    assert status["readyReplicas"] == 2
    assert status["taskStatus"] == {
        "learner": {"Running": 1},
        "collector": {"Running": 1, "Pending": 1},
        "evaluator": {"Succeeded": 1},
    }
    assert status["allocation"] == {
        "learner": ["node-a"],
        "collector": ["node-c", "node-d"],
        "evaluator": ["node-a"],
    }
    assert status["profilings"] == {"speed": 12.5}
    assert (status["restarts"], status["reschedules"]) == (1, 1)
    assert status["startTime"] == at(0)
    assert "completionTimestamp" not in status


def test_the_end_is_told_with_its_time_and_nothing_is_ready_any_more() -> None:
    job = SeenJob(learner=1).all_ready()
    status = job.ended(50).derive()
    assert status.completion_timestamp == at(50)
    assert status.ready_replicas == 0
    assert status.to_dict()["completionTimestamp"] == at(50)
    assert status.ended


def test_an_empty_task_still_appears_in_the_task_status() -> None:
    job = SeenJob(learner=1, collector=2)
    job.pod("learner-0").placed(1)
    assert job.derive().task_status == {"learner": {"Pending": 1}, "collector": {}}
    assert job.derive().allocation == {"learner": ["node-a"]}


def test_compressed_nodes_are_read_as_if_they_were_not() -> None:
    job = busy()
    assert derive(job.compressed(), job.all_pods()) == job.derive()


def test_broken_compressed_nodes_count_as_none() -> None:
    workflow = busy().compressed()
    workflow["status"]["compressedNodes"] = "bm90IGd6aXA="
    assert derive(workflow).phase == "Pending"


@pytest.mark.slow
def test_nodes_that_unpack_to_more_than_argo_packs_count_as_none() -> None:
    """A user may write that field: 200 KiB of it must not take the reader's memory."""
    workflow = busy().compressed()
    bomb = gzip.compress(b'{"a":"' + b"a" * (200 << 20) + b'"}')
    workflow["status"]["compressedNodes"] = base64.b64encode(bomb).decode()
    tracemalloc.start()
    try:
        assert derive(workflow).phase == "Pending"
        assert tracemalloc.get_traced_memory()[1] < 160 << 20
    finally:
        tracemalloc.stop()


def test_a_number_that_nobody_could_run_is_not_counted_up_to() -> None:
    job = busy()
    workflow = job.workflow()
    for parameter in workflow["spec"]["arguments"]["parameters"]:
        if parameter["name"] == "granted":
            parameter["value"] = '{"1":{"learner":1000000000000,"collector":2,"evaluator":1}}'
    assert sum(observe(workflow, ()).live.counts.values()) <= 200_000


def test_offloaded_nodes_are_named_and_the_pods_are_read_instead() -> None:
    job = SeenJob(learner=1, collector=1).all_ready(5)
    workflow = job.workflow()
    workflow["status"].pop("nodes")
    workflow["status"]["offloadNodeStatusVersion"] = "fnv:123"
    alone = derive(workflow)
    assert alone.phase == "Pending"
    assert "in its database" in alone.message
    with_pods = derive(workflow, job.all_pods())
    assert with_pods.phase == "Running"
    assert with_pods.ready_replicas == 2


def test_a_pod_that_is_ahead_of_its_node_is_believed() -> None:
    job = SeenJob(learner=1).all_ready(5)
    pod = job.pods[0].ends(20, code=4)
    pod.node.update(phase="Running", finishedAt=None)
    pod.node.pop("message")
    pod.node.pop("outputs")
    status = job.derive()
    assert status.phase == "Restarting"
    assert status.message.startswith("learner-0 failed: Error (exit code 4)")


def test_an_evicted_pod_is_not_a_failure_even_before_argo_has_noticed() -> None:
    job = SeenJob(learner=1, backoff_limit=1).all_ready(5)
    pod = job.pods[0].ends(20, code=143)
    assert pod.pod is not None
    pod.pod["status"] |= {"reason": "Evicted", "message": "The node was low on resource: memory."}
    pod.node.update(phase="Running", finishedAt=None)
    pod.node.pop("message")
    assert job.derive().phase == "Rescheduling"


@pytest.mark.parametrize(
    "message",
    [
        "pod deleted",
        "Pod was rejected: OutOfcpu",
        "Pod was rejected: Allocate failed due to no devices, which is unexpected",
        "The node was low on resource: memory. Evicted",
        "Preempted in order to admit critical pod",
    ],
)
def test_pods_that_were_taken_away_are_known_by_argos_words(message: str) -> None:
    job = SeenJob(learner=1, backoff_limit=3).all_ready(5)
    job.pods[0].gone(20, message=message)
    assert job.derive().phase == "Rescheduling"


def test_the_pods_of_steps_are_not_replicas() -> None:
    job = SeenJob(learner=1).all_ready()
    job.node(".service(0)", kind="Pod").node(".onExit(0)", kind="Pod")
    job.node(".round(0:1).superseded", kind="Skipped", phase="Skipped")
    assert job.derive().task_status == {"learner": {"Running": 1}}


def test_the_last_recorded_pod_of_each_member_is_known_unless_it_is_the_first() -> None:
    newest = read_tree(nodes(busy().workflow())[0]).newest
    assert newest == {"1/collector/0": (0, 0, 1, 0), "1/collector/1": (0, 0, 0, 1)}


def test_a_workflow_whose_name_begins_with_anothers_is_not_mixed_up() -> None:
    job = SeenJob("job.round", learner=1).all_ready()
    assert job.derive().ready_replicas == 1


def broken(job: SeenJob, parameter: str, value: Any) -> dict[str, Any]:
    workflow = job.workflow()
    for item in workflow["spec"]["arguments"]["parameters"]:
        if item["name"] == parameter:
            item["value"] = value
    return workflow


@pytest.mark.parametrize(
    ("parameter", "value"), [("granted", "not json"), ("granted", "[]"), ("rounds", "7"), ("released", "{")]
)
def test_a_parameter_of_diflows_own_that_somebody_broke_makes_the_job_unreadable(parameter: str, value: str) -> None:
    job = SeenJob(learner=1).all_ready()
    status = derive(broken(job, parameter, value), job.all_pods())
    assert status.phase == "Unknown"
    assert f"the parameter {parameter} is not what diflow wrote" in status.message


def test_a_job_that_is_unreadable_and_has_ended_shows_its_end() -> None:
    job = SeenJob(learner=1).all_ready()
    job.ended(50)
    status = derive(broken(job, "granted", "["))
    assert (status.phase, status.completion_timestamp) == ("Succeeded", at(50))


def test_a_report_that_somebody_broke_counts_as_absent() -> None:
    job = SeenJob(learner=1).all_ready()
    assert derive(broken(job, "profilings", "[1]"), job.all_pods()).phase == "Running"


@pytest.mark.parametrize(
    "workflow",
    [
        {},
        {"metadata": {"name": "x"}, "spec": {}, "status": {}},
        {"metadata": {"name": "x", "annotations": {"diflow/dijob": "{"}}, "spec": {"arguments": {}}, "status": None},
        {"metadata": {"name": "x", "annotations": {"diflow/dijob": '{"spec":{"tasks":[1,{"type":"x"}]}}'}}},
        {"metadata": {"name": "x"}, "status": {"nodes": {"x": {"id": "x", "name": "x", "type": "DAG"}}}},
    ],
)
def test_a_workflow_of_any_shape_has_a_status(workflow: dict[str, Any]) -> None:
    status = derive(workflow)
    assert status.phase == "Unknown"
    assert status.message.startswith("cannot be read: ")


def test_a_ready_time_before_the_pods_own_creation_does_not_turn_the_order_around() -> None:
    job = SeenJob(learner=1, collector=1)
    job.pod("learner-0", created=10).ready(4)
    job.pod("collector-0", created=10).ready(15)
    assert phases(job.derive()) == ["Pending", "Starting", "Running"]


def test_four_times_as_many_replicas_are_four_times_the_work() -> None:
    few, many = (_calls_to_read(replicas) for replicas in (250, 1000))
    assert many < 4.2 * few


def _calls_to_read(replicas: int) -> int:
    """Calls of functions, those of C among them, while the status of so many replicas is derived."""
    job = SeenJob(worker=replicas)
    for i in range(replicas):
        job.pod(f"worker-{i}").ready(i % 7)
    workflow, pods = job.workflow(), job.all_pods()
    profile = cProfile.Profile()
    assert profile.runcall(derive, workflow, pods).ready_replicas == replicas
    return sum(entry.callcount for entry in profile.getstats())


def test_what_a_user_wants_granted_and_sees_are_told_apart() -> None:
    job = SeenJob(worker=4).all_ready()
    job.granted["1"]["worker"] = 3
    seen = observe(job.workflow(), job.all_pods())
    assert len(seen.wanted) == 3
    assert len(seen.latest()) == 4


def test_restarts_are_those_of_all_replicas_and_rounds_and_of_the_workflows_before() -> None:
    job = SeenJob(learner=1, collector=2).all_ready(5)
    for replica in ("learner-0", "collector-1"):
        for counted in (1, 2):
            job.pod(replica, created=10 * counted, counted=counted).ready(10 * counted + 5)
    assert job.derive().restarts == 4
    job.annotations |= {"diflow/restarts-before": "7", "diflow/rounds-before": "40"}
    assert (job.derive().restarts, job.derive().reschedules) == (11, 40)


def test_restarts_of_a_preemptible_job_are_those_of_all_its_rounds() -> None:
    job = SeenJob(worker=2, preemptible=True).all_ready(5)
    for index in range(2):
        job.pod(f"worker-{index}", created=20, restart=1).ready(25)
    job.moves_to("2", worker=2)
    for index in range(2):
        for restart in range(3):
            job.pod(f"worker-{index}", created=40 + restart, restart=restart, round="2").ready(45 + restart)
    assert (job.derive().restarts, job.derive().reschedules) == (3, 1)


@pytest.mark.parametrize("value", ["", "-3", "many", "1.5", "[]"])
def test_counts_before_that_somebody_broke_are_left_out(value: str) -> None:
    job = SeenJob(learner=1).all_ready()
    job.annotations |= {"diflow/restarts-before": value, "diflow/rounds-before": value}
    assert (job.derive().restarts, job.derive().reschedules) == (0, 0)

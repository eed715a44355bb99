"""One Workflow is read by the CLI, the allocator, the server and its page: none of them raises, and all agree."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import pytest
from hypothesis import given, settings

from diflow.allocator.watch.records import planning_record_of as allocators
from diflow.common import keys
from diflow.common.errors import DiflowError, InvalidError
from diflow.common.words import shortened
from diflow.record import chain
from diflow.record.job import JobRecord, record_of
from diflow.record.parameters import LONGEST_PROFILINGS
from diflow.record.requests.changes import check_scalable
from diflow.record.status.status import derive, derive_ended
from diflow.server.api.reading import served_record_of as servers
from diflow.workflows.successor import successor
from tests.record.hostile import workflow, workflows
from tests.server.page_scene import trim_workflow as pages

EXAMPLES = int(os.environ.get("DIFLOW_FUZZ_EXAMPLES", "300"))


@pytest.mark.slow
@settings(max_examples=EXAMPLES)
@given(workflows())
def test_no_reader_raises_and_all_agree_whether_a_job_can_be_read(body: dict[str, Any]) -> None:
    state = record_of(body)
    shown = derive(body)
    server = servers(body)
    page = pages(body)
    allocator = allocators(body)
    derive_ended(body)
    chain.newest([body, workflow()])
    assert shown.to_dict()
    assert server.problem == state.problem
    if page is not None and state.problem:
        assert page.message == shortened(" ".join(shown.message.split()), 400)
    if state.problem and not (state.has_ended or state.chain.continued_in):
        assert allocator.problem == state.problem
        assert state.problem in shown.message
        assert len(state.problem) < 500
        with pytest.raises(DiflowError):
            check_scalable(state)
    elif not state.problem:
        check_that_all_see_the_same(body, state, allocator)


def check_that_all_see_the_same(body: dict[str, Any], state: JobRecord, allocator: JobRecord) -> None:
    server, page, shown = servers(body), pages(body), derive(body)
    assert state.live.running("worker") == server.running["worker"]
    assert 1 <= state.live.granted[state.live.current]["worker"] <= 2000
    if page is not None and page.tasks:
        assert (page.restarts, page.reschedules) == (shown.restarts, shown.reschedules)
        assert page.tasks[0].granted in (0, state.live.running("worker"))
    if not (state.has_ended or state.chain.continued_in or allocator.problem):
        assert allocator.live.running("worker") == state.live.running("worker")
        assert (allocator.restarts, allocator.reschedules) == (shown.restarts, shown.reschedules)
        assert allocator.terms.priority == state.terms.priority
    with contextlib.suppress(InvalidError):
        successor(body, name="one-s2", parameters={}, annotations={})


def edited(**parameters: Any) -> dict[str, Any]:
    body = workflow()
    for item in body["spec"]["arguments"]["parameters"]:
        item["value"] = parameters.get(item["name"], item["value"])
    return body


@pytest.mark.parametrize(
    "rounds", ['["²","1","2"]', f'["1","{"9" * 4400}"]', '["1","01"]', '["1", 2]', '["1"," 2"]', '["0"]']
)
def test_a_round_is_a_number_of_at_most_nine_ascii_digits(rounds: str) -> None:
    state = record_of(edited(rounds=rounds))
    assert "the parameter rounds is not what diflow wrote" in state.problem


def test_more_rounds_than_a_workflow_can_have_are_unreadable() -> None:
    rounds = "[" + ",".join(f'"{i}"' for i in range(1, 20_000)) + "]"
    assert "rounds" in record_of(edited(rounds=rounds)).problem


@pytest.mark.parametrize(
    "granted", ['{"1":{"worker":2001}}', '{"1":{"worker":2,"other":1}}', '{"1":{"worker":2},"x":{}}', '{"1":' * 5000]
)
def test_what_is_granted_is_bounded_and_of_tasks_that_there_are(granted: str) -> None:
    assert "granted" in record_of(edited(granted=granted)).problem


@pytest.mark.parametrize("moves", ["1" + "0" * 30, "-1", "1.5", "true", "1e30"])
def test_an_allocation_with_moves_that_nobody_made_counts_as_none(moves: str) -> None:
    body = workflow()
    body["metadata"]["annotations"]["diflow/allocation"] = f'{{"round":"1","nodes":{{"worker":["a"]}},"moves":{moves}}}'
    state = record_of(body)
    assert (state.problem, state.notes.allocation) == ("", None)


@pytest.mark.parametrize(
    "time", ["yesterday", "1970", "2026-01-02", "2026-13-02T03:04:05Z", "²026-01-02T03:04:05Z", "~"]
)
def test_a_time_of_submission_that_does_not_parse_is_that_of_the_creation(time: str) -> None:
    body = workflow()
    body["metadata"]["annotations"]["diflow/submitted"] = time
    assert chain.submitted(body) == "2026-01-02T03:04:05Z"
    assert derive(body).phase


def test_a_replica_that_is_granted_and_released_does_not_run_for_any_reader() -> None:
    body = edited(granted='{"1":{"worker":3}}', released='["1/worker/2","1/worker/1"]')
    body["metadata"]["annotations"]["diflow/allocation"] = '{"round":"1","nodes":{"worker":["a","b","c"]}}'
    page = pages(body)
    assert page is not None
    assert record_of(body).live.running("worker") == 1
    assert (servers(body).running, allocators(body).live.running("worker")) == ({"worker": 1}, 1)
    assert (page.tasks[0].granted, derive(body).replicas) == (1, 1)


def test_a_replica_that_is_released_before_the_tail_runs_for_every_reader() -> None:
    body = edited(granted='{"1":{"worker":3}}', released='["1/worker/0"]')
    assert record_of(body).live.running("worker") == 3
    assert (servers(body).running, allocators(body).live.running("worker")) == ({"worker": 3}, 3)
    assert derive(body).replicas == 3


@pytest.mark.parametrize(
    ("message", "counts"),
    [
        ("main: Error (exit code 1): evicted by my own words", True),
        ("main: preempted", True),
        ("my terminated by DisruptionTarget taint", True),
        ("main: OOMKilled (exit code 137)", True),
        ("The node was low on resource: memory", False),
        ("main: Error (exit code 137)", False),
        ("init: Error (exit code 143)", False),
        ("init: Error (exit code 2)", False),
        ("init: Error (exit code 2): the token could not be read", True),
        ("init: Error (exit code 1)", True),
        ("wait: Error (exit code 2)", False),
        ("main: Error (exit code 2)", True),
        ("pod failed: wait container did not complete successfully", False),
        ('pods "job-w-1" is forbidden: error looking up service account ns/diflow-worker: not found', False),
        ('pods "job-w-1" is forbidden: violates PodSecurity "restricted:latest": seccompProfile', False),
        ('admission webhook "x.example.com" denied the request: no', False),
        ("main: Error (exit code 255)", True),
        ("main: Unknown (exit code 255)", False),
        ("wait: Unknown (exit code 255)", False),
        ("init: ContainerStatusUnknown (exit code 137): The container could not be located", False),
    ],
)
def test_what_a_program_writes_into_its_message_does_not_change_what_counts(message: str, *, counts: bool) -> None:
    body = workflow()
    for node in body["status"]["nodes"].values():
        if node["phase"] == "Running" and node["type"] == "Pod":
            node |= {"phase": "Failed", "message": message, "finishedAt": "2026-01-02T03:05:05Z"}
    assert derive(body).phase == ("Restarting" if counts else "Rescheduling")


def test_the_annotation_of_a_job_larger_than_any_is_unreadable_and_quick() -> None:
    body = workflow()
    tasks = ",".join(f'{{"name":"t{i}","template":{{}}}}' for i in range(4000))
    body["metadata"]["annotations"]["diflow/dijob"] = (
        f'{{"kind":"DIJob","metadata":{{"name":"t"}},"spec":{{"tasks":[{tasks}]}}}}'
    )
    assert "it says 4,000 tasks, and a job may have 40" in record_of(body).problem
    body["metadata"]["annotations"]["diflow/dijob"] = f'{{"spec":{{"tasks":[{{"name":"t"}}]}},"x":"{"x" * 200_000}"}}'
    assert "larger than that of any job" in record_of(body).problem


def test_texts_are_written_as_texts_and_other_parameters_go_along() -> None:
    from diflow.record.patches import merged, texts

    assert texts({"a": [1], "b": "x"}) == {"a": "[1]", "b": "x"}
    assert merged((("a", "1"), ("b", "2")), {"b": "3", "c": "4"}) == [
        {"name": "a", "value": "1"},
        {"name": "b", "value": "3"},
        {"name": "c", "value": "4"},
    ]


def test_a_report_that_is_too_long_is_ignored() -> None:
    longest = '{"speed":1}'.ljust(LONGEST_PROFILINGS)
    said = [record_of(edited(profilings=text)) for text in (longest, f"{longest} ")]
    assert [state.problem for state in said] == ["", ""]
    assert [state.texts.profilings for state in said] == [longest, ""]
    assert [bool(state.complaints) for state in said] == [False, True]


def test_parameters_larger_than_those_of_any_workflow_are_not_kept() -> None:
    body = workflow()
    body["spec"]["arguments"]["parameters"].append({"name": "mine", "value": "x" * 600_000})
    read = allocators(body)
    assert "its parameters have 600," in read.problem
    assert read.texts.parameters == ()


def test_what_diflow_writes_into_pods_is_not_kept_of_the_pods_of_others() -> None:

    text = {"diflow/nodes": "x" * 250_000, "diengine/rank": "y" * 250_000}
    pod = {"metadata": {"name": "p", "namespace": "ns", "annotations": text}, "spec": {}, "status": {}}
    from diflow.record.pod import pod_record_of

    assert (pod_record_of(pod).hosts, pod_record_of(pod).rank) == ("", "")


def test_of_the_hosts_that_a_pod_was_told_a_digest_is_kept() -> None:
    """Each pod of a job of two thousand has 90 kB of them."""
    from diflow.record.pod import pod_record_of, roster_digest

    text = {keys.ARGO_NODE_NAME: "j.round(0:1).w(0:0)(0).w(0)", keys.NODES: "x" * 90_000, keys.RANK: "y" * 250_000}
    labels = {"workflows.argoproj.io/workflow": "j", keys.OPERATOR: "diflow"}
    read = pod_record_of({"metadata": {"name": "p", "namespace": "ns", "annotations": text, "labels": labels}})
    assert read.hosts == roster_digest("x" * 90_000)
    assert len(read.hosts) == 32
    assert len(read.rank) < 10


@pytest.mark.parametrize("of_job", [True, False])
def test_the_containers_of_a_pod_are_kept_in_bounds(of_job: bool) -> None:
    from diflow.record.pod import pod_record_of

    node = {"workflows.argoproj.io/node-name": "j.round(0:1).w(0:0)(0).w(0)"}
    labels = {"workflows.argoproj.io/workflow": "j", keys.OPERATOR: "diflow"} if of_job else {}
    statuses = [{"name": f"c{index}", "image": "x" * 500_000} for index in range(1000)]
    status = {"containerStatuses": statuses}
    pod = {"metadata": {"name": "p", "namespace": "ns", "annotations": node, "labels": labels}, "status": status}
    read = pod_record_of(pod).containers
    assert len(read) == (256 if of_job else 0)
    assert all(len(name) + len(image) < 600 for name, image in read)

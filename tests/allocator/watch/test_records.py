"""No edit of a Workflow stops the allocator: the job is held with a reason, or the edit is ignored."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diflow.allocator.watch.records import planning_record_of
from diflow.record.allocation import Allocation
from diflow.record.job import JobRecord
from diflow.record.node import node_record_of
from diflow.record.status.status import derive
from diflow.workflows import render
from tests.allocator.lab import job, task

Json = dict[str, Any]


def workflow(*, parameters: dict[str, Any] | None = None, annotations: dict[str, str] | None = None) -> Json:
    body = render(job("one", task(replicas=2), preemptible=True))
    given = parameters or {}
    arguments = [{**p, "value": given.get(p["name"], p["value"])} for p in body["spec"]["arguments"]["parameters"]]
    metadata = {**body["metadata"], "namespace": "ns", "uid": "u", "resourceVersion": "5"}
    metadata["annotations"] = {**metadata["annotations"], **(annotations or {})}
    return {**body, "metadata": metadata, "spec": {**body["spec"], "arguments": {"parameters": arguments}}}


def edited(**parameters: Any) -> JobRecord:
    return planning_record_of(workflow(parameters=parameters))


def test_what_diflow_renders_is_understood() -> None:
    read = edited()
    assert (read.problem, read.complaint) == ("", "")
    assert read.key == "ns/one"
    assert [(r.name, r.low, r.high) for r in read.needs.roles] == [("worker", 1, 2)]
    assert read.live.running("worker") == 2


DEEP = "[" * 100_000
NONSENSE = {
    "rounds": ["", "1", "{}", "[]", '[""]', '["1","1"]', "[1]", "no JSON", DEEP, "null", '["2"]'],
    "current": ["", "7", "1 ", '"1"'],
    "granted": [
        "", "[]", "{}", "null", '{"2":{"worker":2}}', '{"1":{"worker":0}}', '{"1":{"worker":-3}}', '{"1":[]}',
        '{"1":{"worker":true}}', '{"1":{"worker":"2"}}', '{"1":{"worker":1e400}}', '{"1":{"worker":10000000000}}',
        '{"1":{}}', '{"1":{"other":2}}', '{"1":{"worker":2},"0":7}', DEEP,
    ],
    "released": ["", "{}", "[1]", "null", DEEP],
    "incarnations": ["", "[]", '{"1/worker/0":1}', '{"1/worker/0":"zzz"}', '{"1/worker/0":".0"}', '{"a":null}', DEEP],
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in NONSENSE.items() for value in values])
def test_an_invalid_parameter_of_the_allocator_holds_the_job(name: str, value: str) -> None:
    read = edited(**{name: value})
    assert name in read.problem or "rounds" in read.problem or "current" in read.problem
    assert "put it back" in read.problem
    assert read.key == "ns/one"
    assert not read.has_ended


WISHES = ["[]", "no", '{"other":1}', '{"worker":0}', '{"worker":-1}', '{"worker":1.5}', '{"worker":1e12}', DEEP]


@pytest.mark.parametrize("value", WISHES)
def test_an_invalid_scale_request_is_ignored_with_a_complaint(value: str) -> None:
    read = edited(replicas=value)
    assert read.problem == ""
    assert "replicas" in read.complaint
    assert read.needs.roles[0].desired == 2


@pytest.mark.parametrize(
    "value", ["[]", "no", '{"worker":{}}', '{"worker":{"min":2,"max":1}}', '{"x":{"min":1,"max":1}}', "7", DEEP]
)
def test_invalid_bounds_are_ignored_with_a_complaint(value: str) -> None:
    read = planning_record_of(workflow(annotations={"diflow/bounds": value}))
    assert read.problem == ""
    assert "diflow/bounds" in read.complaint
    assert (read.needs.roles[0].low, read.needs.roles[0].high) == (1, 2)


@pytest.mark.parametrize("value", ["", "no", "[]", "{}", '{"kind":"DIJob"}', "null", "7", DEEP])
def test_a_job_that_cannot_be_read_any_more_is_held(value: str) -> None:
    assert "diflow/dijob" in planning_record_of(workflow(annotations={"diflow/dijob": value})).problem


@pytest.mark.parametrize(
    "value",
    [
        "no", "[]", "{}", "null", '{"round":"1"}', '{"round":"1","nodes":[]}', '{"round":"1","nodes":{"worker":7}}',
        '{"round":"1","nodes":{},"since":NaN}', '{"round":"1","nodes":{},"first":1e999}',
        '{"round":"1","nodes":{},"moves":1e999}', DEEP,
    ],
)  # fmt: skip
def test_an_allocation_that_cannot_be_read_counts_as_none(value: str) -> None:
    assert Allocation.parse(value) is None
    assert planning_record_of(workflow(annotations={"diflow/allocation": value})).problem == ""


def test_what_an_allocation_says_is_read_back_as_it_was_written() -> None:
    at = Allocation("2", {"worker": ("a", "")}, since=5.5, first=2.25, moves=3)
    assert Allocation.parse(at.to_json()) == at


def test_a_node_is_read_with_the_taints_that_nothing_else_says() -> None:
    taints = [
        {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"},
        {"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"},
        {"key": "team", "value": "x", "effect": "NoSchedule"},
    ]
    read = node_record_of({"metadata": {"name": "n"}, "spec": {"taints": taints, "unschedulable": True}, "status": {}})
    assert [taint.key for taint in read.taints] == ["node.kubernetes.io/disk-pressure", "team"]
    assert not read.is_open


TEXT = st.text('ab1/."{}[],:', max_size=10)
ANYTHING: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["1", "worker", "x"]), inner),
    max_leaves=5,
)
PARAMETERS = ["rounds", "current", "granted", "released", "incarnations", "replicas", "profilings"]
ANNOTATIONS = [f"diflow/{name}" for name in ("dijob", "allocation", "decision", "bounds", "restarts-before")]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(st.sampled_from(PARAMETERS), ANYTHING.map(json.dumps) | TEXT | ANYTHING, max_size=3),
    st.dictionaries(st.sampled_from(ANNOTATIONS), ANYTHING.map(json.dumps) | TEXT, max_size=2),
)
def test_nothing_that_is_edited_in_raises(parameters: dict[str, Any], annotations: dict[str, str]) -> None:
    read = planning_record_of(workflow(parameters=parameters, annotations=annotations))
    if not read.problem:
        assert [role.name for role in read.needs.roles] == ["worker"]
        assert 1 <= read.live.granted[read.live.current]["worker"] <= 100_000
        assert read.live.current in read.live.rounds


def test_a_round_whose_pods_never_got_a_node_is_no_reschedule() -> None:
    body = workflow(
        parameters={
            "rounds": '["1","2","3"]',
            "current": "3",
            "granted": '{"1":{"worker":2},"2":{"worker":4},"3":{"worker":1}}',
        }
    )
    nodes = {
        "one.round(0:1)(0).worker(0:0).worker(0)": {"phase": "Failed", "message": "Pod was rejected"},
        "one.round(1:2)(0).worker(0:0).worker(0)": {"phase": "Failed", "hostNodeName": "node-a"},
        "one.round(2:3)(0).worker(0:0).worker(0)": {"phase": "Pending"},
    }
    made = {"type": "Pod", "startedAt": "2026-01-02T03:04:05Z"}
    body["status"] = {"nodes": {f"id-{name}": {"name": name, **made, **node} for name, node in nodes.items()}}
    read = planning_record_of(body)
    assert read.problem == ""
    assert read.argo.tree.idle == {"1", "3"}
    assert read.reschedules == 1 == derive(body).reschedules

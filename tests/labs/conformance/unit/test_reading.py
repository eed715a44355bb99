"""Reading the Workflows and pods of a probe."""

from __future__ import annotations

from typing import Any

import pytest

from diflow.labs.conformance import reading


def _workflow(**nodes: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "w"},
        "spec": {"arguments": {"parameters": [{"name": "a", "value": ""}, {"name": "b", "value": ""}]}},
        "status": {
            "nodes": {str(i): {"name": f"w.{name}", "phase": phase} for i, (name, phase) in enumerate(nodes.items())}
        },
    }


def test_members_are_those_of_the_group_alone() -> None:
    workflow = _workflow(
        **{
            "group": "Running",
            "group(1:b)": "Running",
            "group(0:a)": "Failed",
            "group(0:a).x(0)": "Failed",
            "group2(0:a)": "Running",
        }
    )
    assert reading.members(workflow, "group") == ["group(0:a)", "group(1:b)"]


def test_attempts_come_in_their_order() -> None:
    workflow = _workflow(**{"a(1)": "Running", "a(0)": "Failed", "a": "Running"})
    assert [item["phase"] for item in reading.attempts(workflow, "a")] == ["Failed", "Running"]


@pytest.mark.parametrize(
    ("phase", "done"), [("Succeeded", True), ("Skipped", True), ("Error", True), ("Running", False)]
)
def test_a_node_is_fulfilled_when_it_has_ended(phase: str, done: bool) -> None:
    assert reading.is_fulfilled(reading.node(_workflow(a=phase), "a")) is done


def test_a_node_that_is_not_there_is_not_fulfilled() -> None:
    assert not reading.is_fulfilled(reading.node({"metadata": {"name": "w"}}, "a"))
    assert reading.phase({"metadata": {"name": "w"}}) == ""


def test_a_parameter_has_its_place() -> None:
    assert reading.parameter_index(_workflow(), "b") == 1


def test_the_newest_pod_of_a_replica_counts_and_steps_do_not() -> None:
    def pod(name: str, time: str, **labels: str) -> dict[str, Any]:
        return {"metadata": {"name": name, "creationTimestamp": time, "labels": labels}}

    host = {"diengine/pod": "w-worker-0"}
    pods = [
        pod("new", "2026-01-01T00:00:09Z", **{"diflow/round": "1"}, **host),
        pod("old", "2026-01-01T00:00:01Z", **{"diflow/round": "1"}, **host),
        pod("other", "2026-01-01T00:00:10Z", **{"diflow/round": "2"}, **host),
        pod("step", "2026-01-01T00:00:10Z"),
    ]
    assert {key: value["metadata"]["name"] for key, value in reading.workers(pods).items()} == {"w-worker-0": "new"}


def test_a_variable_that_is_read_from_an_annotation_has_its_value() -> None:
    def field(path: str) -> dict[str, Any]:
        return {"valueFrom": {"fieldRef": {"fieldPath": path}}}

    env = [
        {"name": "RANK", **field("metadata.annotations['diengine/rank']")},
        {"name": "GONE", **field("metadata.annotations['no']")},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "PLAIN", "value": "x"},
    ]
    pod = {
        "metadata": {"annotations": {"diengine/rank": "7"}},
        "spec": {"containers": [{"name": "wait"}, {"name": "main", "env": env}]},
    }
    assert reading.env(pod) == {"RANK": "7", "GONE": "", "SECRET": "", "PLAIN": "x"}
    assert reading.env({"metadata": {}, "spec": {"containers": []}}) == {}


def test_a_pod_that_no_node_fits_is_explained() -> None:
    condition = {"type": "PodScheduled", "reason": "Unschedulable", "message": "0/1 nodes are available"}
    pod = {"metadata": {"name": "p"}, "spec": {}, "status": {"conditions": [condition]}}
    assert reading.waiting([pod]) == "pod p is unschedulable: 0/1 nodes are available"
    assert reading.trouble([pod]) is None

"""Requests of pods, as kube-scheduler computes them."""

from __future__ import annotations

from typing import Any

import pytest

from diflow.common import quantities


def container(cpu: str, name: str = "c", **more: Any) -> dict[str, Any]:
    return {"name": name, "resources": {"requests": {"cpu": cpu}}, **more}


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        ({"containers": [container("1"), container("2")]}, 3000),
        ({"containers": [container("1")], "resources": {"requests": {"cpu": "8"}}}, 8000),
        ({"containers": [{"name": "c"}], "resources": {"requests": {"cpu": "8"}}}, 8000),
        ({"containers": [container("4")], "resources": {"requests": {"cpu": "2"}}, "overhead": {"cpu": "1"}}, 3000),
        ({"containers": [container("4")], "resources": {"requests": {"memory": "2Gi"}}}, 4000),
        ({"containers": [container("1")], "initContainers": [container("5")]}, 5000),
        ({"containers": [container("1")], "initContainers": [container("5", restartPolicy="Always")]}, 6000),
    ],
)
def test_the_request_of_a_pod(spec: dict[str, Any], cpu: int) -> None:
    assert quantities.of_pod(spec)["cpu"] == cpu


def test_a_whole_pod_requests_no_devices() -> None:
    spec = {"containers": [container("1")], "resources": {"requests": {"example.com/gpu": "8", "hugepages-2Mi": "4"}}}
    assert quantities.of_pod(spec) == {"cpu": 1000, "hugepages-2Mi": 4, "pods": 1}


def resized(asked: str, has: str, reason: str = "") -> int:
    status: dict[str, Any] = {"containerStatuses": [{"name": "c", "resources": {"requests": {"cpu": has}}}]}
    if reason:
        status["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": reason}]
    return quantities.of_pod({"containers": [container(asked)]}, status)["cpu"]


def test_a_container_that_is_resized_counts_with_the_more_of_what_it_asks_for_and_has() -> None:
    assert resized("1", "1") == 1000
    assert resized("4", "1") == resized("4", "1", "Deferred") == 4000
    assert resized("1", "4") == 4000
    assert resized("1000", "1", "Infeasible") == 1000


def test_what_was_allocated_counts_too() -> None:
    status = {"containerStatuses": [{"name": "c", "allocatedResources": {"cpu": "3"}}]}
    assert quantities.of_pod({"containers": [container("1")]}, status)["cpu"] == 3000

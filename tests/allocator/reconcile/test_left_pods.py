"""Pods that Argo has ended and that go on are stopped when their grace period is over."""

from __future__ import annotations

import math
from typing import Any

import pytest

from diflow.allocator.reconcile.left_pods import LeftPods
from diflow.allocator.watch.cluster_state import ClusterState, assemble
from diflow.record.pod import PodRecord
from tests.allocator.values import NOW, pod, read, role

RUNS: dict[str, Any] = {"began": NOW, "grace_seconds": 60.0}


def ended(*pods: PodRecord, **argo: Any) -> ClusterState:
    return assemble([read(role(replicas=2), **{"phase": "Failed", **argo})], [], pods)


def stopped(left: LeftPods, state: ClusterState, now: float) -> list[str]:
    return [write.target.name for write in left.stops(state, now=now, wall=NOW)]


def test_a_pod_of_a_job_that_has_ended_has_its_grace_period_and_is_stopped_then() -> None:
    left, state = LeftPods(""), ended(pod("w-0", on="a", **RUNS))
    assert left.due() == math.inf
    assert stopped(left, state, 100.0) == []
    assert left.due() == 100.0 + 65.0
    assert stopped(left, state, 164.9) == []
    (write,) = left.stops(state, now=165.0, wall=NOW)
    assert write.body == {"spec": {"activeDeadlineSeconds": 1}}
    assert write.note is not None
    assert write.note.message == ("Argo has ended w-0, and after the grace period it still runs: stopped by its node")


def test_a_pod_that_no_node_has_ends_by_its_status() -> None:
    left, state = LeftPods(""), ended(pod("w-0", has_run=False, grace_seconds=60.0))
    left.stops(state, now=0.0, wall=NOW)
    (write,) = left.stops(state, now=65.0, wall=NOW)
    assert (write.subresource, write.body["status"]["phase"]) == ("status", "Failed")


def test_many_pods_of_a_namespace_are_stopped_some_at_a_time() -> None:
    left, state = LeftPods(""), ended(*(pod(f"w-{i}", on="a", **RUNS) for i in range(80)))
    stopped(left, state, 0.0)
    counts = []
    for seconds in range(3):
        counts.append(len(stopped(left, state, 65.0 + seconds)))
        assert left.due() == (65.0 + seconds + 1.0 if seconds < 2 else 130.0)
    assert counts == [32, 32, 16]


def test_a_stop_that_was_not_carried_out_is_repeated_and_not_at_once() -> None:
    left, state = LeftPods(""), ended(pod("w-0", on="a", **RUNS))
    stopped(left, state, 0.0)
    assert len(stopped(left, state, 65.0)) == 1
    assert stopped(left, state, 66.0) == []
    assert left.due() == 130.0
    assert len(stopped(left, state, 130.0)) == 1


def test_a_job_has_one_event_for_all_of_its_pods() -> None:
    left, state = LeftPods(""), ended(*(pod(f"w-{i}", on="a", **RUNS) for i in range(6)))
    stopped(left, state, 0.0)
    writes = left.stops(state, now=65.0, wall=NOW)
    (note,) = [write.note for write in writes if write.note is not None]
    assert len(writes) == 6
    assert "Argo has ended w-0, w-1, w-2, w-3 and 2 more, and after" in note.message


@pytest.mark.parametrize(
    "fields",
    [
        {"phase": "Succeeded"},
        {"is_terminating": True},
        {"is_stopping": True},
        {"began": 0.0},  # its work has ended, and Argo's executor uploads its outputs
    ],
)
def test_a_pod_that_ends_by_itself_is_left_alone(fields: dict[str, Any]) -> None:
    left, state = LeftPods(""), ended(pod("w-0", on="a", **{**RUNS, **fields}))
    stopped(left, state, 0.0)
    assert left.due() == math.inf
    assert stopped(left, state, 1000.0) == []


def test_a_pod_that_has_not_begun_would_still_begin_and_ends_by_its_status() -> None:
    left, state = LeftPods(""), ended(pod("w-0", on="a", phase="Pending", has_run=False))
    stopped(left, state, 0.0)
    (write,) = left.stops(state, now=35.0, wall=NOW)
    assert write.subresource == "status"
    assert write.body["status"]["phase"] == "Failed"


def test_a_pod_of_a_job_that_goes_on_is_stopped_only_if_argo_has_let_it_go() -> None:
    left = LeftPods("")
    state = ended(pod("w-0", on="a", is_let_go=True, **RUNS), pod("w-1", on="a", **RUNS), phase="Running")
    stopped(left, state, 0.0)
    assert len(stopped(left, state, 65.0)) == 1


def test_pods_of_jobs_that_the_allocator_does_not_place_are_stopped_too() -> None:
    """It does not watch their Workflows: Argo's label shows that it has let the pod go."""
    left, state = (
        LeftPods(""),
        assemble([], [], [pod("w-0", on="a", is_let_go=True, **RUNS), pod("w-1", on="a", **RUNS)]),
    )
    stopped(left, state, 0.0)
    assert len(stopped(left, state, 65.0)) == 1


def test_an_allocator_of_one_namespace_ends_no_pods_of_others() -> None:
    state = ended(pod("w-0", on="a", **RUNS))
    for namespace, count in (("ns", 1), ("other", 0)):
        left = LeftPods(namespace)
        stopped(left, state, 0.0)
        assert len(stopped(left, state, 65.0)) == count

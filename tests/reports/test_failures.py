"""Failures that say nothing of the program: of its node, or of its peers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from diflow import DIJob
from tests.reports.lab import Course, UsersLab, job, lab, task
from tests.reports.test_scheduler import nodes

Json = dict[str, Any]
KINDS = pytest.mark.parametrize("preemptible", [False, True], ids=["fixed", "preemptible"])


def gang(replicas: int, *, preemptible: bool = False, cpu: str = "8", **fields: Any) -> DIJob:
    elastic = {"min_replicas": replicas, "max_replicas": replicas} if preemptible else {}
    return job("a", task(replicas=replicas, ask={"cpu": cpu}, **elastic), preemptible=preemptible, **fields)


def left_out(at: UsersLab) -> list[str]:
    return [entry["node"] for entry in json.loads(at.annotation("a", "excluded-nodes") or "[]")]


# --- a container that cannot be started -------------------------------------------------------------------------------


@KINDS
def test_a_replica_that_cannot_be_started_on_a_node_is_elsewhere_next_time(*, preemptible: bool) -> None:
    with lab() as at:
        nodes(at, 3)
        at.cluster.faulty = {"n0"}
        at.cluster.submit(gang(1, preemptible=preemptible))
        course = at.watch("a", seconds=60)["a"]
        assert left_out(at) == ["n0"]
    assert course.where == {"worker-0": "n1"}
    assert failures(at, course) == 1
    assert course.says("worker-0 failed (StartError (exit code 128)) before its program began on n0", "elsewhere")
    assert at.cluster.problems == []


@KINDS
def test_a_kubelet_that_cannot_give_a_device_is_left_and_not_counted(*, preemptible: bool) -> None:
    with lab() as at:
        nodes(at, 3)
        at.cluster.full = {"n0": "Allocate failed due to no healthy devices present, which is unexpected"}
        at.cluster.submit(gang(2, preemptible=preemptible))
        course = at.watch("a", seconds=60)["a"]
    assert sorted(course.where.values()) == ["n1", "n2"]
    assert failures(at, course) == 0
    assert at.cluster.problems == []


@KINDS
def test_a_program_that_cannot_be_started_anywhere_ends_as_its_backoff_limit_says(*, preemptible: bool) -> None:
    with lab() as at:
        nodes(at, 8)
        at.cluster.faulty = {f"n{n}" for n in range(8)}
        at.cluster.submit(gang(1, preemptible=preemptible, backoff_limit=3))
        course = at.watch("a", seconds=120)["a"]
        assert at.cluster.phase(at.parts("a")[-1]) == "Failed"
        assert len(left_out(at)) in (3, 4)
        assert failures(at, course) in (3, 4)


def test_the_only_node_is_not_left_out() -> None:
    with lab() as at:
        nodes(at, 1)
        at.cluster.faulty = {"n0"}
        at.cluster.submit(gang(1, backoff_limit=2))
        at.watch("a", seconds=60)
        assert at.cluster.phase("a") == "Failed"
        assert left_out(at) == []


def test_it_is_tried_there_again_after_some_minutes() -> None:
    with lab() as at:
        nodes(at, 2)
        at.cluster.foreign("other", "n1", cpu="8")
        at.cluster.faulty = {"n0"}
        at.cluster.submit(gang(1))
        course = at.watch("a", seconds=60)["a"]
        assert course.says("left out for this job", "n0 (worker-0 did not begin")
        at.cluster.faulty = set()
        course = at.watch("a", seconds=360)["a"]
    assert course.where == {"worker-0": "n0"}


def failures(at: UsersLab, course: Course) -> int:
    """Those that count, by Argo and by what is noted of former rounds."""
    return course.restarts + int(at.annotation(at.parts("a")[-1], "restarts-before") or 0)

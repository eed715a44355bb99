"""Failures that say nothing of the program: of its node, or of its peers."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from diflow import DIJob
from diflow.allocator.settings import AllocatorSettings
from diflow.common import keys
from diflow.common.durations import span
from diflow.record.job import JobRecord
from tests.allocator.fakeargo import FOR_EVER
from tests.reports.lab import Course, UsersLab, job, lab, task
from tests.reports.test_scheduler import nodes

Json = dict[str, Any]
KINDS = pytest.mark.parametrize("preemptible", [False, True], ids=["fixed", "preemptible"])


def gang(replicas: int, *, preemptible: bool = False, cpu: str = "8", **fields: Any) -> DIJob:
    made = task(replicas=replicas, ask={"cpu": cpu})
    if preemptible:
        made = made.model_copy(update={"min_replicas": replicas, "max_replicas": replicas})
    return job("a", made, preemptible=preemptible, **fields)


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


# --- a member that has not begun --------------------------------------------------------------------------------------


def gives_up(at: UsersLab, seconds: float) -> Callable[[Json], tuple[float, int]]:
    """Programs that wait for rank 0 and exit with 1 after so many seconds without it."""

    def runs(pod: Json) -> tuple[float, int]:
        is_first = pod["metadata"]["annotations"][keys.TASK_RANK] == "0"
        return (FOR_EVER, 0) if is_first or "worker-0" in at.cluster.running("a") else (seconds, 1)

    return runs


@KINDS
def test_what_fails_while_a_member_has_not_begun_does_not_count(*, preemptible: bool) -> None:
    with lab() as at:
        nodes(at, 3)
        at.cluster.runs = gives_up(at, 60.0)
        at.cluster.pulls = {"worker-0": at.time.now() + 600.0}
        at.cluster.submit(gang(3, preemptible=preemptible, backoff_limit=1))
        course = at.watch("a", seconds=300)["a"]
        assert course.says("worker-0 on n0", "has not begun: replicas that fail meanwhile start again after it")
        course = at.watch("a", seconds=500)["a"]
        assert sorted(course.where) == ["worker-0", "worker-1", "worker-2"]
        part = at.parts("a")[-1]
        assert at.cluster.phase(part) == "Running"
        assert read_of(at, part).restarts == 0
        assert at.cluster.problems == []


@KINDS
def test_what_fails_after_all_have_begun_counts(*, preemptible: bool) -> None:
    with lab() as at:
        nodes(at, 3)
        at.cluster.runs = lambda _: (60.0, 1)
        at.cluster.pulls = {"worker-0": at.time.now() + 30.0}
        at.cluster.submit(gang(3, preemptible=preemptible, backoff_limit=2))
        at.watch("a", seconds=600)
        assert at.cluster.phase(at.parts("a")[-1]) == "Failed"


def test_a_killed_allocator_does_not_count_them_later() -> None:
    with lab() as at:
        nodes(at, 3)
        at.cluster.runs = gives_up(at, 60.0)
        at.cluster.pulls = {"worker-0": at.time.now() + 300.0}
        at.cluster.submit(gang(3, backoff_limit=1))
        at.watch("a", seconds=120)
        at.end()
        at.watch("a", seconds=240)
        at.begin()
        course = at.watch("a", seconds=60)["a"]
        assert sorted(course.where) == ["worker-0", "worker-1", "worker-2"]
        assert read_of(at, "a").restarts == 0


def read_of(at: UsersLab, part: str) -> JobRecord:
    assert at.daemon is not None
    return at.daemon.allocator._view.state().jobs[f"default/{part}"].read


# --- killed each time -------------------------------------------------------------------------------------------------


def test_a_preemptible_job_that_is_killed_each_time_pauses_longer_each_time() -> None:
    with lab(runs=lambda _: (6.0, 137)) as at:
        nodes(at, 4)
        at.cluster.submit(gang(2, preemptible=True))
        course = at.watch("a", seconds=3600)["a"]
        pauses = at.decision("a" if len(at.parts("a")) == 1 else at.parts("a")[-1])
        assert course.rounds <= 24  # two for each try: one that waits for its place
        assert failures(at, course) == 0
        assert pauses["action"] == "wait"
        assert "rounds in a row ended within 5m: it waits for" in pauses["why"]
        begins = [seconds for (seconds, count) in course.running if count == 2]
        gaps = [later - earlier for earlier, later in pairwise(begins)]
        assert max(gaps[:3]) <= 25.0
        assert gaps[3:] == sorted(gaps[3:])
        assert gaps[-1] >= 480.0
        assert at.cluster.problems == []


def test_others_have_its_nodes_in_the_pause() -> None:
    with lab(runs=lambda pod: (6.0, 137) if pod["metadata"]["name"].startswith("a-") else (FOR_EVER, 0)) as at:
        nodes(at, 2)
        at.cluster.submit(gang(2, preemptible=True))
        at.watch("a", seconds=150)
        at.cluster.submit(of("b", 2))
        assert len(at.watch("b", seconds=120)["b"].where) == 2


def test_a_job_that_is_killed_after_progress_goes_on_at_once() -> None:
    with lab(runs=lambda _: (400.0, 137)) as at:
        nodes(at, 4)
        at.cluster.submit(gang(2, preemptible=True))
        course = at.watch("a", seconds=4000)["a"]
        begins = [seconds for (seconds, count) in course.running if count == 2]
    assert max(later - earlier for earlier, later in pairwise(begins)) <= 420.0
    assert not course.says("rounds in a row")


def test_a_killed_allocator_does_not_forget_the_pause() -> None:
    with lab(runs=lambda _: (6.0, 137)) as at:
        nodes(at, 4)
        at.cluster.submit(gang(2, preemptible=True))
        at.watch("a", seconds=600)
        before = at.decision(at.parts("a")[-1])["why"]
        at.end()
        at.begin()
        course = at.watch("a", seconds=60)["a"]
        assert at.decision(at.parts("a")[-1])["why"] == before
    assert course.running[-1][1] == 0


# --- gangs that are not whole -----------------------------------------------------------------------------------------


def of(name: str, replicas: int, **fields: Any) -> DIJob:
    return gang(replicas, **fields).model_copy(update={"name": name})


@pytest.mark.parametrize("seconds", [600, 120, 0])
def test_a_gang_that_loses_a_node_for_good_goes_back_to_its_queue_whole(seconds: int) -> None:
    """Of 4 nodes one is gone: the three replicas that wait there make room for a job of two."""
    settings = AllocatorSettings(writers=1, debounce_seconds=0.0, reading_share=100.0, incomplete_seconds=seconds)
    with lab(settings=settings) as at:
        nodes(at, 4)
        at.cluster.submit(of("a", 4))
        at.watch("a", seconds=10)
        at.cluster.submit(of("b", 2))
        at.cluster.remove_node("n3")
        courses = at.watch("a", "b", seconds=(seconds or 700) + 120)
        assert failures(at, courses["a"]) == 0
        whole = list(courses["b"].where.values())
        assert len(whole) == (2 if seconds else 0)
        assert len(courses["a"].where) == (0 if seconds else 3)
        if not seconds:
            return
        assert seconds < courses["b"].since(2) <= seconds + 70
        assert courses["a"].says(f"worker-3 of its 4 replicas had no place for {span(seconds)}", "waits as a whole")
        at.cluster.finish(at.cluster.of("b")["worker-0"]["metadata"]["name"])
        at.cluster.finish(at.cluster.of("b")["worker-1"]["metadata"]["name"])
        at.cluster.machine("n4")
        course = at.watch("a", seconds=90)["a"]
    assert course.begins_whole(4)
    assert course.running[-1][1] == 4
    assert course.restarts == 0
    assert at.cluster.problems == []


def test_a_node_that_comes_back_in_time_completes_the_gang() -> None:
    with lab() as at:
        nodes(at, 4)
        at.cluster.submit(of("a", 4))
        at.watch("a", seconds=10)
        began = at.cluster.known_to_kubelets()
        at.cluster.remove_node("n3")
        at.watch("a", seconds=400)
        at.cluster.machine("n3")
        at.watch("a", seconds=120)
        at.cluster.remove_node("n3")  # the time begins again
        at.watch("a", seconds=400)
        at.cluster.machine("n3")
        course = at.watch("a", seconds=300)["a"]
        assert course.running[-1][1] == 4
        assert len(at.cluster.known_to_kubelets() - began) == 2  # the others were never ended
    assert not course.says("waits as a whole")


def test_a_killed_allocator_goes_on_with_the_time() -> None:
    with lab() as at:
        nodes(at, 4)
        at.cluster.submit(of("a", 4))
        at.watch("a", seconds=10)
        at.cluster.remove_node("n3")
        at.watch("a", seconds=500)
        at.end()
        at.begin()
        course = at.watch("a", seconds=170)["a"]
    assert course.running[-1][1] == 0
    assert course.says("waits as a whole")


def failures(at: UsersLab, course: Course) -> int:
    """Those that count, by Argo and by what is noted of former rounds."""
    return course.restarts + int(at.annotation(at.parts("a")[-1], "restarts-before") or 0)

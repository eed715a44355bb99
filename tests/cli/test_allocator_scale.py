"""`diflow scale`: what it writes, what it refuses, and what it waits for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from diflow.allocator.watch.records import planning_record_of
from diflow.common import keys
from diflow.common.clock import Clock
from diflow.jobs.scale import scale
from diflow.kube.kinds import POD, WORKFLOW
from tests.cli.placed import dijob, lease, node, put
from tests.cli.runner import Cli, play
from tests.kube.fakeapi import Answer, Request, status


def workflow(diflow: Cli, name: str) -> dict[str, Any]:
    return diflow.api.objects[WORKFLOW.path("default")][name]


def asked(diflow: Cli, name: str = "job") -> dict[str, tuple[int, int]]:
    """What the allocator takes of it: minimum and maximum of each task."""
    read = planning_record_of(workflow(diflow, name))
    assert (read.problem, read.complaint) == ("", "")
    return {role.name: (role.low, role.high) for role in read.needs.roles}


@pytest.fixture
def running(diflow: Cli) -> Cli:
    """A cluster with an allocator."""
    node(diflow, "a")
    lease(diflow, holder="somebody")
    return diflow


def test_a_number_of_replicas_is_a_parameter_of_the_workflow_and_nothing_else_changes(running: Cli) -> None:
    put(running, dijob("job", {"learner": 1, "worker": 2}), at={"learner": ["a"], "worker": ["a", "a"]})
    before = workflow(running, "job")
    result = running("scale", "job", "--task", "worker", "--replicas", "4")
    assert (result.code, result.out, result.err) == (0, "job/worker: 2 → 4 replicas\n", "")
    after = workflow(running, "job")
    old = {p["name"]: p["value"] for p in before["spec"]["arguments"]["parameters"]}
    new = {p["name"]: p["value"] for p in after["spec"]["arguments"]["parameters"]}
    assert json.loads(new.pop("replicas")) == {"learner": 1, "worker": 4}
    assert old.pop("replicas")
    assert new == old
    assert after["metadata"]["annotations"] == before["metadata"]["annotations"]
    assert asked(running) == {"learner": (1, 1), "worker": (4, 4)}


def test_ranks_that_running_replicas_keep_are_told(running: Cli) -> None:
    at = {"learner": ["a"], "worker": ["a"], "evaluator": ["a"]}
    put(running, dijob("job", {"learner": 1, "worker": 1, "evaluator": 1}), at=at)
    grown = running("scale", "job", "--task", "worker", "--replicas", "3")
    assert grown.err == (
        "running replicas of evaluator keep the DI_RANK that they started with, which another replica may get now: "
        "their rank of now is in /etc/diflow/rank, and DI_TASK_RANK never changes\n"
    )
    assert (
        "replicas of worker and evaluator keep" in running("scale", "job", "--task", "learner", "--replicas", "2").err
    )
    assert running("scale", "job", "--task", "evaluator", "--replicas", "2").err == ""
    assert running("scale", "job", "--task", "worker", "--replicas", "3").err == ""  # it was so already
    put(running, dijob("moves", {"learner": 1, "worker": 4}, preemptible=True))
    assert "DI_RANK" not in running("scale", "moves", "--task", "learner", "--max", "2").err


def test_the_only_task_and_the_only_one_that_scales_need_no_name(running: Cli) -> None:
    put(running, dijob("one", {"worker": 2}))
    put(running, dijob("two", {"learner": 1, "worker": 4}, preemptible=True))
    assert running("scale", "one", "--replicas", "3").out == "one/worker: 2 → 3 replicas\n"
    assert running("scale", "two", "--replicas", "3").out == "two/worker: 1 to 4 → 1 to 3 replicas\n"


def test_bounds_hold_even_after_a_number_was_asked_for_and_the_other_way_round(running: Cli) -> None:
    put(running, dijob("job", {"learner": 1, "worker": (2, 4, 8)}, preemptible=True))
    steps: list[tuple[tuple[str, ...], tuple[int, int]]] = [
        (("--replicas", "6"), (2, 6)),
        (("--min", "3", "--max", "12"), (3, 12)),
        (("--replicas", "4"), (3, 4)),  # the number that was submitted
        (("--max", "5"), (3, 5)),
        (("--replicas", "1"), (1, 1)),
        (("--min", "1", "--max", "8"), (1, 8)),
    ]
    for options, worker in steps:
        result = running("scale", "job", *options)
        assert result.code == 0, result.err
        assert asked(running) == {"learner": (1, 1), "worker": worker}, options


def test_bounds_of_one_task_leave_another_that_scales_by_itself_as_it_was(running: Cli) -> None:
    put(running, dijob("job", {"learner": 2, "worker": 4}, preemptible=True))
    assert running("scale", "job", "--task", "learner", "--min", "1").code == 0
    assert asked(running) == {"learner": (1, 2), "worker": (1, 4)}


def test_asking_for_what_is_asked_for_already_writes_nothing(running: Cli) -> None:
    put(running, dijob("job", {"worker": 2}))
    result = running("scale", "job", "--replicas", "2")
    assert result.out == "job/worker: 2 replicas are requested already\n"
    assert running.api.seen("PATCH") == []


def test_the_bounds_of_a_job_that_is_not_preemptible_hold(running: Cli) -> None:
    put(running, dijob("rigid", {"worker": (2, 2, 3)}))
    for number in ("1", "4"):
        result = running("scale", "rigid", "--replicas", number)
        assert result.code == 2
        assert "task worker may have 2 to 3 replicas, by its minReplicas and maxReplicas" in result.err
    assert running("scale", "rigid", "--replicas", "3").out == "rigid/worker: 2 → 3 replicas\n"


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (("--task", "worker", "--replicas", "0"), 2, "--replicas: must be from 1 to 2000, not 0"),
        (("--replicas", "3"), 2, "say which task of job rigid: learner, worker"),
        (("--task", "nope", "--replicas", "3"), 2, "job rigid has no task 'nope'; it has learner, worker"),
        (("--task", "worker", "--min", "1"), 2, "is not preemptible"),
        (("--task", "worker"), 2, "give either --replicas, or --min, --max or both"),
        (("--task", "worker", "--replicas", "2", "--max", "3"), 2, "give either --replicas"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_a_reason(
    running: Cli, options: tuple[str, ...], code: int, text: str
) -> None:
    put(running, dijob("rigid", {"learner": 1, "worker": 2}))
    result = running("scale", "rigid", *options)
    assert (result.code, result.out) == (code, "")
    assert text in " ".join(result.err.split())
    assert running.api.seen("PATCH") == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--min", "9"), "the minimum 9 is above the maximum 4; give --max, too"),
        (("--max", "1"), "the minimum 2 is above the maximum 1; give --min, too"),
        (("--min", "5", "--max", "3"), "the minimum 5 is above the maximum 3"),
        (("--min", "0", "--max", "3"), "--min: must be from 1 to 2000, not 0"),
    ],
)
def test_a_minimum_above_the_maximum_is_refused(running: Cli, options: tuple[str, ...], text: str) -> None:
    put(running, dijob("job", {"worker": (2, 4, 4)}, preemptible=True))
    result = running("scale", "job", *options)
    assert result.code == 2
    assert text in result.err


def test_a_job_that_argo_alone_runs_cannot_be_scaled(running: Cli) -> None:
    put(running, dijob("job", {"worker": 2}, scheduling="none"))
    result = running("scale", "job", "--replicas", "3")
    assert result.code == 2
    assert "job job has scheduling: none, so Argo alone runs it and nothing acts on other numbers" in result.err


def test_a_job_that_has_ended_and_one_that_is_not_there(running: Cli) -> None:
    made = put(running, dijob("job", {"worker": 2}))
    running.api.add(WORKFLOW, {**made, "status": {"phase": "Succeeded"}})
    assert running("scale", "job", "--replicas", "3").code == 4
    assert running("scale", "other", "--replicas", "3").code == 3


def test_a_name_of_a_host_that_would_become_too_long_is_refused(running: Cli) -> None:
    task = "w" * 20
    put(running, dijob("j" * 37, {task: 2}))
    result = running("scale", "j" * 37, "--replicas", "2000")
    assert result.code == 2, result.out
    assert running.api.seen("PATCH") == []


def test_a_change_by_others_meanwhile_is_read_before_another_try(running: Cli) -> None:
    put(running, dijob("job", {"worker": 2}))
    left = [2]

    def rule(request: Request) -> Answer | None:
        if request.method == "PATCH" and left[0]:
            left[0] -= 1
            running.api.add(WORKFLOW, workflow(running, "job"))  # Argo has written its status
            return status(409, "the object has been modified", reason="Conflict")
        return None

    running.api.rule(rule)
    scaled = scale("job", replicas=5, cluster=running.api.cluster(), clock=Clock(sleep=lambda _: None))
    assert scaled.after.high == 5
    assert asked(running) == {"worker": (5, 5)}
    versions = [r.body["metadata"]["resourceVersion"] for r in running.api.seen("PATCH")]
    assert len(set(versions)) == 3


def test_when_others_change_it_all_the_time_it_says_so(running: Cli) -> None:
    put(running, dijob("job", {"worker": 2}))
    running.api.fail(status(409, "modified", reason="Conflict"), method="PATCH", times=100)
    with pytest.raises(Exception, match="was changed by somebody else meanwhile"):
        scale("job", replicas=5, cluster=running.api.cluster(), clock=Clock(sleep=lambda _: None))
    assert 1 < len(running.api.seen("PATCH")) < 10


def test_it_says_when_nobody_acts_on_it_now(diflow: Cli) -> None:
    put(diflow, dijob("job", {"worker": 2}))
    assert "no allocator runs now: this is acted on when one does" in diflow("scale", "job", "--replicas", "3").err
    lease(diflow, holder="somebody", paused="jane at noon")
    assert "the allocator is paused by jane at noon" in diflow("scale", "job", "--replicas", "4").err


def test_nonsense_in_the_parameter_is_put_right(running: Cli) -> None:
    made = put(running, dijob("job", {"worker": 2}))
    for parameter in made["spec"]["arguments"]["parameters"]:
        if parameter["name"] == "replicas":
            parameter["value"] = "[1,"
    made["metadata"]["annotations"][keys.BOUNDS] = '{"worker": 3}'
    running.api.add(WORKFLOW, made)
    assert running("scale", "job", "--replicas", "3").out == "job/worker: 2 → 3 replicas\n"


def test_wait_returns_when_the_pods_are_as_asked_for_and_tells_what_it_waits_for(running: Cli) -> None:
    job = dijob("job", {"worker": 1})
    put(running, job, at={"worker": ["a"]})

    def grows() -> None:
        bigger = put(running, job, at={"worker": ["a", "a"]})
        pod = running.api.objects[POD.path("default")]["job-worker-1"]
        running.api.add(POD, {**pod, "status": {"phase": "Pending"}})
        running.api.add(WORKFLOW, bigger)

    def is_ready() -> None:
        put(running, job, at={"worker": ["a", "a"]})

    thread = play(running, grows, is_ready)
    result = running("scale", "job", "--replicas", "2", "--wait", "--timeout", "60s")
    thread.join(20)
    assert result.code == 0, result.err
    assert "waiting: 1 worker replica is granted, and 2 requested; " in result.err
    assert result.err.endswith("job/worker: 2 replicas are ready, as requested\n")


def test_wait_gives_up_in_the_end_and_says_what_was_missing(running: Cli) -> None:
    put(running, dijob("job", {"worker": 1}), at={"worker": ["a"]})
    result = running("scale", "job", "--replicas", "2", "--wait", "--timeout", "1s")
    assert result.code == 124
    assert (
        "job/worker does not have the requested replicas after 1 s: 1 worker replica is granted, and 2 requested"
        in result.err
    )


def test_wait_says_how_many_of_a_range_there_are(running: Cli) -> None:
    put(running, dijob("job", {"worker": (1, 2, 4)}, preemptible=True), at={"worker": ["a", "a"]})
    result = running("scale", "job", "--max", "3", "--wait", "--timeout", "60s")
    assert (result.code, result.err) == (0, "job/worker: 2 replicas are ready, as requested (1 to 3)\n")

"""Names are checked before anything is sent, and the message says which rule was broken."""

from __future__ import annotations

from typing import Any

import pytest

from diflow import InvalidError
from tests.builders import job, task

A60 = "a" * 60


def why(**fields: Any) -> str:
    tasks = fields.pop("tasks", (task(),))
    with pytest.raises(InvalidError) as caught:
        job(*tasks, **fields)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Train", "capital letters"),
        ("my_job", "underscore"),
        ("my.job", "a dot"),
        ("-job", "begins or ends with a dash"),
        ("job-", "begins or ends with a dash"),
        ("", "is empty"),
        ("jöb", "a character that host names do not allow"),
        ("my job", "a character that host names do not allow"),
        ("{{x}}", "a character that host names do not allow"),
        ("a" * 64, "has 64 characters, at most 63"),
    ],
)
def test_a_bad_job_name(name: str, words: str) -> None:
    message = why(name=name)
    assert message.startswith("metadata.name: ")
    assert words in message


def test_a_better_name_is_offered() -> None:
    assert "'my-job' would do" in why(name="My_Job")


@pytest.mark.parametrize("name", ["a", "0", "1st-job", "a-1"])
def test_a_good_job_name(name: str) -> None:
    assert job(name=name).name == name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Worker", "capital letters"),
        ("my_worker", "underscore"),
        ("1st", "begins with a digit"),
        ("round", "used by diflow itself"),
        ("superseded", "used by diflow itself"),
        ("give-up", "used by diflow itself"),
    ],
)
def test_a_bad_task_name(name: str, words: str) -> None:
    message = why(tasks=[task("none", name=name)])
    assert message.startswith("spec.tasks[0].name: ")
    assert words in message


def test_a_host_name_of_63_characters_fits_and_of_64_does_not() -> None:
    fits = "t" * (63 - len("job--9"))
    assert job(task("none", name=fits, replicas=10)).tasks[0].name == fits
    assert "has 64 characters" in why(tasks=[task("none", name=fits, replicas=11)])
    assert "shorten the job's or the task's name by 1" in why(tasks=[task("none", name=fits + "t", replicas=10)])


def test_the_largest_size_counts_for_the_host_name() -> None:
    from diflow import Task
    from tests.builders import template

    name = "t" * (63 - len("job--9"))
    with pytest.raises(InvalidError, match="has 64 characters"):
        job(Task(name=name, replicas=1, max_replicas=11, template=template()))


def test_the_names_that_are_made_from_a_job_and_a_task() -> None:
    from diflow.common import names

    assert names.nodes_variable("my-task") == "DI_MY_TASK_NODES"
    assert names.hostname("job", "learner", 0) == "job-learner-0"
    assert names.host("job", "ml", "learner", 0) == "job-learner-0.di.ml.svc.cluster.local"


@pytest.mark.parametrize("name", ["make-service", "clean-up", "pods-first"])
def test_the_names_of_former_steps_are_free_for_tasks(name: str) -> None:
    assert job(task("none", name=name)).tasks[0].name == name


def test_a_namespace_is_a_label() -> None:
    assert why(namespace="My Team").startswith("metadata.namespace: ")


def test_a_name_of_60_characters_leaves_room_for_a_short_task() -> None:
    assert job(task("none", name="t"), name="a" * 59).name == "a" * 59
    assert "host name" in why(name=A60, tasks=[task("none", name="t")])

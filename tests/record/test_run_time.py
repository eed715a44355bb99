"""How long a job and its tasks have run, as it is noted in the annotation `diflow/run-time`."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from diflow.record.run_time import RunTime
from tests.builders import job, stored, task

LIMITED = {"": 100, "learner": 50}


def test_times_are_added_while_a_task_runs_and_not_in_between() -> None:
    began = RunTime().after({"learner": 10.0, "collector": 8.0}, LIMITED, ended=0.0, now=12.0)
    assert (began.past, began.since) == ({}, {"": 8.0, "learner": 10.0})
    rests = began.after({}, LIMITED, ended=30.0, now=35.0)
    assert (rests.past, rests.since) == ({"": 22.0, "learner": 20.0}, {})
    assert rests.after({}, LIMITED, ended=30.0, now=99.0) == rests
    again = rests.after({"collector": 100.0}, LIMITED, ended=30.0, now=101.0)
    assert again.seconds("", now=110.0) == 32.0
    assert again.seconds("learner", now=110.0) == 20.0


def test_what_ends_unseen_has_ended_when_argo_says_so() -> None:
    began = RunTime(since={"": 10.0})
    assert began.after({}, LIMITED, ended=20.0, now=5000.0).past == {"": 10.0}
    assert began.after({}, LIMITED, ended=0.0, now=50.0).past == {"": 40.0}, "it is not known"
    assert began.after({}, LIMITED, ended=9e9, now=50.0).past == {"": 40.0}, "a clock that is ahead"


def test_the_first_limit_that_is_reached_is_named() -> None:
    spec = stored(job(task("learner"), active_deadline_seconds=100)).spec
    found = RunTime(since={"": 10.0})
    assert found.left(spec, now=20.0) == 90.0
    assert found.excess(spec, now=109.0) == ""
    assert found.excess(spec, now=110.0) == "DeadlineExceeded: it has run for 100 s, its activeDeadlineSeconds"
    assert RunTime(past={"": 99.0}).left(spec, now=20.0) == math.inf, "nothing runs"


def test_it_is_read_as_it_was_written() -> None:
    made = RunTime({"": 12.3}, {"learner": 1_700_000_000.5})
    assert RunTime.parse(made.text(of=17.9), of=17.0) == made
    assert RunTime.parse(made.text(of=17.0), of=18.0) == RunTime(), "of another job"


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{", "null", 3, None, "x" * 20_000, json.dumps({"of": 1, "past": [], "since": 3}),
        json.dumps({"of": 1, "past": {"a": -1, "b": True, "c": "1", "d": 1e300}, "since": {"a": None, "b": -5}}),
        '{"of": 1, "past": {"a": NaN, "b": Infinity}}',
    ],
)  # fmt: skip
def test_what_a_user_has_edited_counts_as_nothing(text: Any) -> None:
    assert RunTime.parse(text, of=1.0) == RunTime()

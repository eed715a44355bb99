"""The record of ended jobs: what is kept of a job, its bounds, and what a user may write into it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diflow.common.limits import MOST_ENDED_BYTES, MOST_ENDED_JOBS
from diflow.record import untrusted
from diflow.record.namespace import ended
from diflow.record.namespace.ended import EndedJob
from tests.record.seen import SeenJob, at

JOB = EndedJob(
    namespace="default",
    name="cartpole",
    uid="uid-1",
    version="77",
    phase="Failed",
    submitted=at(0),
    started=at(5),
    ended=at(65),
    queue="research",
    replicas=3,
    restarts=2,
    reschedules=1,
    message="learner-0 failed",
)
NOW = untrusted.seconds(at(0)) + 86_400.0


def test_a_job_is_recorded_as_its_status_says() -> None:
    seen = SeenJob("cartpole", learner=1, backoff_limit=0)
    seen.labels["diflow/queue"] = "research"
    seen.pod("learner-0").ready(5).ends(60, code=7)
    job = ended.of_workflow(seen.ended(65, "Failed").workflow())
    assert job is not None
    assert (job.namespace, job.name, job.uid, job.phase) == ("default", "cartpole", "uid-cartpole", "Failed")
    assert (job.submitted, job.ended, job.queue, job.replicas) == (at(0), at(65), "research", 1)
    assert "learner-0 failed" in job.message
    assert (job.restarts, job.reschedules) == (0, 0)
    assert job.seconds == 65 - (5 if job.started == at(5) else 0)


def test_a_job_that_runs_is_not_recorded() -> None:
    assert ended.of_workflow(SeenJob("cartpole", learner=1).all_ready().workflow()) is None


def test_a_part_that_its_job_has_left_is_not_recorded() -> None:
    seen = SeenJob("cartpole", learner=1).all_ready().ended(50)
    seen.annotations["diflow/continued-in"] = "cartpole-s2"
    assert ended.of_workflow(seen.workflow()) is None


def test_the_record_is_read_as_it_was_written() -> None:
    jobs = [replace(JOB, name=f"job-{i}", ended=at(i)) for i in range(20)]
    assert ended.parse(ended.text(jobs), namespace="default", now_seconds=NOW) == jobs
    assert ended.parse(ended.text(jobs), namespace="default", now_seconds=NOW, most=5) == jobs[-5:]
    assert ended.parse("", namespace="default", now_seconds=NOW) == []


@given(st.lists(st.text(max_size=300), max_size=5))
def test_any_message_of_a_user_is_one_line_of_the_record(messages: list[str]) -> None:
    jobs = [replace(JOB, name=f"job-{i}", message=text[:240]) for i, text in enumerate(messages)]
    text = ended.text(jobs)
    assert text.isascii()
    assert text.count("\n") == len(jobs)
    assert ended.parse(text, namespace="default", now_seconds=NOW) == jobs


def test_of_too_many_jobs_the_last_ones_are_kept() -> None:
    jobs = [replace(JOB, name=f"job-{i}", ended=at(i)) for i in range(MOST_ENDED_JOBS + 500)]
    kept = ended.parse(ended.text(jobs), namespace="default", now_seconds=NOW)
    assert kept == jobs[-MOST_ENDED_JOBS:]


def test_of_too_long_texts_the_last_ones_are_kept() -> None:
    jobs = [replace(JOB, name=f"job-{i}", ended=at(i), message="\N{PILE OF POO}" * 240) for i in range(MOST_ENDED_JOBS)]
    text = ended.text(jobs)
    assert MOST_ENDED_BYTES * 0.9 < len(text) <= MOST_ENDED_BYTES
    kept = ended.parse(text, namespace="default", now_seconds=NOW)
    assert kept == jobs[-len(kept) :]
    assert len(kept) > 100


def test_a_workflow_with_a_huge_message_has_a_short_record() -> None:
    seen = SeenJob("cartpole", learner=1).ended(50, "Error", message="no\n" * 100_000)
    job = ended.of_workflow(seen.workflow())
    assert job is not None
    assert len(ended.text([job])) < 1000


def test_a_job_is_in_the_record_once_and_as_it_ended_last() -> None:
    again = replace(JOB, ended=at(100), phase="Succeeded")
    assert ended.merged([JOB], [again]) == ended.merged([again], [JOB]) == [again]
    submitted_again = replace(JOB, submitted=at(50), ended=at(70))
    assert ended.merged([submitted_again], [JOB]) == [JOB, submitted_again]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "[]",
        "null",
        '"text"',
        "{}",
        "[" * 100_000,
        json.dumps({"name": "a", "phase": "Running", "ended": at(0)}),
        json.dumps({"name": "a", "phase": [], "ended": at(0)}),
        json.dumps({"name": "a", "phase": "Failed", "ended": "yesterday"}),
        json.dumps({"name": 5, "phase": "Failed", "ended": at(0)}),
        json.dumps({"name": "a", "phase": "Failed", "ended": at(0), "message": "x" * 5000}),
    ],
)
def test_a_line_that_is_no_record_is_ignored(line: str) -> None:
    text = f"{line}\n{ended.text([JOB])}{line}\n"
    assert ended.parse(text, namespace="default", now_seconds=NOW) == [JOB]


def test_wrong_values_in_a_line_are_ignored_or_shortened() -> None:
    wrong: dict[str, Any] = {
        "name": "n" * 900, "phase": "Failed", "ended": at(9), "started": 7, "submitted": "9999", "uid": {},
        "restarts": -1, "reschedules": 1e300, "replicas": True, "queue": ["a"], "message": "m" * 2000,
    }  # fmt: skip
    (job,) = ended.parse(json.dumps(wrong), namespace="default", now_seconds=NOW)
    assert job == EndedJob(namespace="default", name="n" * 253, uid="", phase="Failed", ended=at(9), message="m" * 240)


def test_a_line_of_a_job_that_ends_in_the_future_is_ignored() -> None:
    later = replace(JOB, name="later", ended="2999-01-01T00:00:00Z")
    assert ended.parse(ended.text([JOB, later]), namespace="default", now_seconds=NOW) == [JOB]


def test_a_record_of_a_mebibyte_is_read_in_part() -> None:
    line = ended.text([JOB])
    assert len(ended.parse("x" * 500_000 + "\n" + line * 5000, namespace="default", now_seconds=NOW)) == 1
    assert ended.parse("x" * 1_000_000, namespace="default", now_seconds=NOW) == []
    assert ended.text_of({"data": {"jobs": 5}}) == ended.text_of({"data": []}) == ended.text_of(None) == ""

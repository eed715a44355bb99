"""`diflow list --ended`: the jobs that have ended, with and without their Workflows."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from diflow.common import keys
from diflow.common.limits import MOST_ENDED_JOBS
from diflow.kube.kinds import CONFIG_MAP, WORKFLOW
from diflow.record.namespace import ended
from diflow.record.namespace.ended import EndedJob
from tests.cli.runner import Cli
from tests.kube.fakeapi import status
from tests.record.seen import SeenJob, at

COMPLETED = {"workflows.argoproj.io/completed": "true"}


def ago(**given: float) -> str:
    return (datetime.now(UTC) - timedelta(**given)).strftime("%Y-%m-%dT%H:%M:%SZ")


def gone(name: str = "gone", **changed: Any) -> EndedJob:
    """A job whose Workflow was deleted."""
    made = EndedJob(
        namespace="default",
        name=name,
        uid=f"uid-{name}",
        phase="Failed",
        submitted=ago(hours=5),
        started=ago(hours=4, minutes=30, seconds=5),
        ended=ago(hours=3, seconds=5),
        queue="research",
        replicas=2,
        restarts=3,
        reschedules=1,
        message="learner-0 failed: Error (exit code 1), after 3 restarts",
    )
    return replace(made, **changed)


def record(diflow: Cli, *jobs: EndedJob, namespace: str = "default") -> None:
    data = {"jobs": ended.text(ended.merged(jobs, ()))}
    diflow.api.add(CONFIG_MAP, {"metadata": {"name": keys.ENDED_JOBS}, "data": data}, namespace=namespace)


def present(diflow: Cli, name: str = "present", **changed: Any) -> dict[str, Any]:
    """A Workflow of a job that has ended."""
    made = SeenJob(name, learner=1).all_ready().ended(50).workflow()
    made["metadata"]["labels"] |= COMPLETED
    made["metadata"] |= changed
    return diflow.api.add(WORKFLOW, made)


def columns(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines()]


def test_a_job_is_listed_after_its_workflow_was_deleted(diflow: Cli) -> None:
    record(diflow, gone())
    assert "there are no jobs" in diflow("list").err
    head, row = columns(diflow("list", "--ended").out)
    assert head == ["NAME", "PHASE", "QUEUE", "STARTED", "ENDED", "DURATION", "RESTARTS", "RESCHEDULES", "REASON"]
    assert row[:8] == ["gone", "Failed", "research", "4h30m", "3h", "1h30m", "3", "1"]
    assert " ".join(row[8:]).startswith("learner-0 failed: Error (exit code 1)")


def test_a_job_whose_workflow_still_exists_is_listed_once(diflow: Cli) -> None:
    workflow = present(diflow)
    assert [row[0] for row in columns(diflow("list", "--ended").out)] == ["NAME", "present"], "without a record"
    job = ended.of_workflow(workflow)
    assert job is not None
    record(diflow, job, gone())
    assert [row[0] for row in columns(diflow("list", "--ended").out)] == ["NAME", "gone", "present"]


def test_a_recorded_job_is_not_read_again(diflow: Cli) -> None:
    job = ended.of_workflow(present(diflow))
    assert job is not None
    record(diflow, job)
    diflow("list", "--ended")
    assert all("as=PartialObjectMetadata" in r.headers["Accept"] for r in diflow.api.seen("GET", "/workflows"))


def test_a_job_that_runs_again_is_not_listed(diflow: Cli) -> None:
    job = ended.of_workflow(present(diflow, "again"))
    assert job is not None
    record(diflow, job, gone())
    diflow.api.add(WORKFLOW, SeenJob("again", learner=1).all_ready().workflow())
    assert [row[0] for row in columns(diflow("list", "--ended").out)] == ["NAME", "gone"]


def test_a_job_of_the_same_name_does_not_hide_an_earlier_one(diflow: Cli) -> None:
    record(diflow, gone("twice"), gone("twice", submitted=ago(hours=9), ended=ago(hours=8)))
    diflow.has(SeenJob("twice", learner=1).all_ready())
    assert [row[0] for row in columns(diflow("list", "--ended").out)] == ["NAME", "twice", "twice"]


def test_the_parts_of_a_job_are_one_job(diflow: Cli) -> None:
    left: dict[str, Any] = {keys.CONTINUED_IN: "long-s2"}
    first = SeenJob("long", learner=1).all_ready().ended(50).workflow()
    first["metadata"]["annotations"] |= left
    first["metadata"]["labels"] |= {**COMPLETED, keys.CHAIN: "long", keys.PART: "1"}
    diflow.api.add(WORKFLOW, first)
    second = SeenJob("long-s2", learner=1).all_ready().ended(90).workflow()
    second["metadata"]["labels"] |= {**COMPLETED, keys.CHAIN: "long", keys.PART: "2"}
    second["metadata"]["annotations"] |= {
        keys.CONTINUES: "long", keys.CONTINUES_UID: "uid-long", keys.SUBMITTED: at(0)
    }  # fmt: skip
    diflow.api.add(WORKFLOW, second)
    listed = json.loads(diflow("list", "--ended", "-o", "json").out)["items"]
    assert [(i["metadata"]["name"], i["status"]["completionTimestamp"]) for i in listed] == [("long", at(90))]


def test_since_leaves_out_what_ended_earlier(diflow: Cli) -> None:
    record(diflow, gone("old"), gone("new", ended=ago(minutes=10)))
    assert diflow("list", "--ended", "--since", "2h", "-o", "name").out == "new\n"
    assert diflow("list", "--ended", "--since", "1d", "-o", "name").out == "new\nold\n"
    assert diflow("list", "--since", "2h").code == 2
    assert diflow("list", "--ended", "--since", "soon").code == 2
    assert diflow("list", "--ended", "-l", "a=b").code == 2


def test_all_namespaces_and_the_wide_form(diflow: Cli) -> None:
    record(diflow, gone(message="m" * 200))
    record(diflow, gone("other", ended=ago(hours=2)), namespace="team")
    diflow.api.add(CONFIG_MAP, {"metadata": {"name": "more"}, "data": {"jobs": "not read"}})
    assert [row[0] for row in columns(diflow("list", "--ended").out)] == ["NAME", "gone"]
    head, first, second = columns(diflow("list", "--ended", "-A").out)
    assert (head[:2], first[:2], second[:2]) == (["NAMESPACE", "NAME"], ["team", "other"], ["default", "gone"])
    assert second[-1] == "m" * 59 + "…"
    assert columns(diflow("list", "--ended", "-o", "wide").out)[1][-1] == "m" * 200


def test_json_and_yaml_have_the_same_values(diflow: Cli) -> None:
    job = gone()
    record(diflow, job)
    data = json.loads(diflow("list", "--ended", "-o", "json").out)
    assert yaml.safe_load(diflow("list", "--ended", "-o", "yaml").out) == data
    (item,) = data["items"]
    assert item == {
        "apiVersion": "diengine.opendilab.org/v2alpha1",
        "kind": "DIJob",
        "metadata": {"name": "gone", "namespace": "default", "uid": "uid-gone", "creationTimestamp": job.submitted},
        "spec": {"queue": "research"},
        "status": {
            "phase": "Failed", "reason": "JobFailed", "message": job.message, "replicas": 2, "restarts": 3,
            "reschedules": 1, "startTime": job.started, "completionTimestamp": job.ended,
        },
    }  # fmt: skip
    assert json.loads(diflow("list", "--ended", "-n", "none", "-o", "json").out)["items"] == []


def test_who_may_not_read_the_record_is_told_what_is_missing(diflow: Cli) -> None:
    present(diflow)
    record(diflow, gone())
    diflow.api.fail(status(403, "forbidden", reason="Forbidden"), path="/configmaps", times=9)
    result = diflow("list", "--ended")
    assert (result.code, [row[0] for row in columns(result.out)]) == (0, ["NAME", "present"])
    assert "only jobs whose Workflows still exist" in result.err


def test_none_is_said(diflow: Cli) -> None:
    result = diflow("list", "--ended")
    assert (result.code, result.out) == (0, "")
    assert "there are no jobs that have ended in the namespace 'default' (-A shows all)" in result.err


@pytest.mark.parametrize("form", [(), ("-o", "wide"), ("-o", "name"), ("-o", "json"), ("-o", "yaml")])
def test_hostile_text_in_a_record_reaches_no_terminal(diflow: Cli, form: tuple[str, ...]) -> None:
    bad = "\x1b[2J\x1b]0;owned\x07\r\n\u202eevil\ud800"
    line = {"name": bad, "uid": bad, "phase": "Failed", "ended": ago(minutes=5), "queue": bad, "message": bad}
    data = {"jobs": f"{json.dumps(line)}\n{{broken\n"}
    diflow.api.add(CONFIG_MAP, {"metadata": {"name": keys.ENDED_JOBS}, "data": data})
    result = diflow("list", "--ended", *form)
    assert result.code == 0, result.err
    assert not set(result.out) & {"\x1b", "\x07", "\r"}
    if form in ((), ("-o", "wide"), ("-o", "name")):
        assert result.out.count("\n") == (1 if "name" in form else 2)
        assert "\u202e" not in result.out
        assert "evil" in result.out
    if "json" in form:
        assert len(json.loads(result.out)["items"]) == 1


def test_thousands_of_recorded_jobs_are_listed(diflow: Cli) -> None:
    jobs = [gone(f"job-{i:04}", ended=at(i)) for i in range(MOST_ENDED_JOBS + 300)]
    record(diflow, *jobs)
    assert diflow("list", "--ended", "-o", "name").out.split() == [job.name for job in jobs[:-1001:-1]]

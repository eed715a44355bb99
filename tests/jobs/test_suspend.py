"""suspend, resume and stop of a gang that waits for its admission, and of jobs that were admitted."""

from __future__ import annotations

from typing import Any

import pytest

from diflow.common import keys
from diflow.jobs import suspend
from diflow.kube.kinds import WORKFLOW
from diflow.record.job import JobRecord, record_of
from diflow.record.parameters import ADMITTED
from tests.builders import job
from tests.cli.runner import Cli
from tests.kube.fakeapi import Answer, Request

PLACED = '{"until":1767323100,"1/learner/0/0/0":"node-a"}'
NODES = {"job": {"id": "job", "name": "job", "type": "DAG", "phase": "Running"}}


def waiting(diflow: Cli, *, places: str = "{}", suspended: bool = True, **status: Any) -> None:
    """Add a gang's Workflow as it was submitted, and taken up by Argo."""
    body = job(name="job", scheduling="gang").model_copy(update={"namespace": "default"})
    from diflow.workflows import render

    made = render(body)
    for item in made["spec"]["arguments"]["parameters"]:
        if item["name"] == keys.PARAM_PLACES:
            item["value"] = places
    if not suspended:
        del made["spec"]["suspend"]
    diflow.api.add(WORKFLOW, {**made, "status": {"phase": "Running", "startedAt": "2026-01-02T03:04:05Z", **status}})


def stored(diflow: Cli) -> dict[str, Any]:
    return dict(diflow.api.objects[WORKFLOW.path("default")]["job"])


def state(diflow: Cli) -> JobRecord:
    return record_of(stored(diflow))


def test_a_gang_that_waits_is_held_and_then_waits_again(diflow: Cli) -> None:
    waiting(diflow)
    cluster = diflow.api.cluster()
    assert state(diflow).argo.awaits_admission
    suspend.suspend("job", cluster=cluster)
    assert (state(diflow).argo.awaits_admission, state(diflow).wishes.is_suspended) == (False, True)
    assert suspend.resume("job", cluster=cluster) is True
    assert (state(diflow).argo.awaits_admission, state(diflow).wishes.is_suspended) == (True, False)
    assert stored(diflow)["spec"]["suspend"] is True, "it has no place yet, and Argo would make its pods"
    assert keys.HELD not in stored(diflow)["metadata"]["annotations"]


def test_a_resume_of_a_gang_that_nobody_suspended_does_not_admit_it(diflow: Cli) -> None:
    waiting(diflow)
    assert suspend.resume("job", cluster=diflow.api.cluster()) is False
    assert state(diflow).argo.awaits_admission


@pytest.mark.parametrize(
    ("places", "status"),
    [
        (PLACED, {"nodes": NODES}),
        (ADMITTED, {"compressedNodes": "H4sI"}),
        ("{}", {"nodes": NODES}),  # `argo resume` started it, and gates hold its pods
        ("{}", {"compressedNodes": "H4sI"}),
        ("{}", {"offloadNodeStatusVersion": "fnv:1"}),
    ],
)
def test_a_job_that_was_started_runs_on_after_a_resume(diflow: Cli, places: str, status: dict[str, Any]) -> None:
    waiting(diflow, places=places, suspended=False, **status)
    cluster = diflow.api.cluster()
    suspend.suspend("job", cluster=cluster)
    assert (state(diflow).argo.awaits_admission, state(diflow).wishes.is_suspended) == (False, True)
    assert suspend.resume("job", cluster=cluster) is True
    assert "suspend" not in stored(diflow)["spec"]


def test_argo_suspend_of_a_started_job_is_a_users_suspension(diflow: Cli) -> None:
    waiting(diflow, nodes=NODES)
    assert (state(diflow).argo.awaits_admission, state(diflow).wishes.is_suspended) == (False, True)


@pytest.mark.parametrize(("at_once", "how"), [(False, "Stop"), (True, "Terminate")])
@pytest.mark.parametrize("held", [False, True])
def test_a_stop_resumes_a_job_as_argo_ends_no_suspended_workflow(
    diflow: Cli, at_once: bool, how: str, held: bool
) -> None:
    waiting(diflow)
    cluster = diflow.api.cluster()
    if held:
        suspend.suspend("job", cluster=cluster)
    suspend.stop("job", cluster=cluster, at_once=at_once)
    assert stored(diflow)["spec"]["shutdown"] == how
    assert "suspend" not in stored(diflow)["spec"]


@pytest.mark.parametrize("verb", [suspend.suspend, suspend.resume, suspend.stop])
def test_a_gang_that_argo_does_not_see_yet_is_shown_to_it(diflow: Cli, verb: Any) -> None:
    waiting(diflow)
    hidden = stored(diflow)
    hidden["metadata"]["labels"][keys.INSTANCE] = keys.INSTANCE_VALUE
    diflow.api.add(WORKFLOW, {**hidden, "status": {}})
    assert state(diflow).argo.is_hidden
    verb("job", cluster=diflow.api.cluster())
    assert not state(diflow).argo.is_hidden
    assert keys.INSTANCE not in stored(diflow)["metadata"]["labels"]


@pytest.mark.parametrize("verb", [suspend.suspend, suspend.resume])
def test_an_admission_in_between_is_not_undone(diflow: Cli, verb: Any) -> None:
    """`resume` had read that the job waits: its patch must not suspend the job that has places now."""
    waiting(diflow)
    gone: list[str] = []

    def in_between(request: Request) -> Answer | None:
        if request.method == "PATCH" and not gone:
            gone.append(request.path)
            waiting(diflow, places=PLACED, suspended=False, nodes=NODES)
        return None

    diflow.api.rule(in_between)
    verb("job", cluster=diflow.api.cluster())
    places = dict(state(diflow).texts.parameters)[keys.PARAM_PLACES]
    assert places == PLACED
    assert state(diflow).wishes.is_suspended is (verb is suspend.suspend)
    assert not state(diflow).argo.awaits_admission


def test_the_commands_say_what_they_did(diflow: Cli) -> None:
    waiting(diflow)
    assert "job was not suspended" in diflow("resume", "job").err
    assert "job is suspended" in diflow("suspend", "job").err
    assert "suspended (`diflow resume job` resumes it)" in diflow("describe", "job").out
    assert "job is resumed" in diflow("resume", "job").err
    shown = diflow("describe", "job").out
    assert "waits for the allocator" in shown
    assert "suspended" not in shown

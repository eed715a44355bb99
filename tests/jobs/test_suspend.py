"""suspend, resume and stop of a gang that waits for its admission, and of jobs that were admitted."""

from __future__ import annotations

from typing import Any

import pytest

from diflow.common import keys
from diflow.common.clock import Clock
from diflow.common.errors import ConflictError
from diflow.jobs import suspend
from diflow.jobs.suspend import Stopped
from diflow.kube.kinds import POD, WORKFLOW
from diflow.record.job import JobRecord, record_of
from diflow.record.parameters import ADMITTED
from diflow.record.untrusted import seconds
from diflow.workflows import render
from tests.builders import job
from tests.cli.runner import Cli
from tests.kube.fakeapi import Answer, Request, status

PLACED = '{"until":1767323100,"1/learner/0/0/0":"node-a"}'
NODES = {"job": {"id": "job", "name": "job", "type": "DAG", "phase": "Running"}}


def waiting(diflow: Cli, *, places: str = "{}", suspended: bool = True, **status: Any) -> None:
    """Add a gang's Workflow as it was submitted, and taken up by Argo."""
    body = job(name="job", scheduling="gang").model_copy(update={"namespace": "default"})
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


# --- pods that go on --------------------------------------------------------------------------------------------------


def running(diflow: Cli, name: str = "job-w-0", *, of: str = "job", phase: str = "Running", **spec: Any) -> str:
    """Add a pod of the job as its kubelet reports it; it was started at 03:04:05. Returns its path."""
    uid = stored(diflow)["metadata"]["uid"]
    main = {"name": "main", "state": {"running": {"startedAt": "2026-01-02T03:04:06Z"}}}
    body = {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "labels": {keys.OPERATOR: keys.OPERATOR_VALUE, keys.ARGO_WORKFLOW: of},
            "annotations": {keys.ARGO_NODE_NAME: f"{of}.round(0:1).learner(0:0).learner(0)"},
            "ownerReferences": [{"kind": "Workflow", "name": of, "uid": uid}],
        },
        "spec": {"nodeName": "node-a", "terminationGracePeriodSeconds": 60, **spec},
        "status": {"phase": phase, "startTime": "2026-01-02T03:04:05Z", "containerStatuses": [main]},
    }
    diflow.api.add(POD, body)
    return f"{POD.path('default')}/{name}"


def alone(diflow: Cli, **status: Any) -> None:
    """Add the Workflow of a job that Argo alone runs."""
    made = render(job(name="job").model_copy(update={"namespace": "default"}))
    diflow.api.add(WORKFLOW, {**made, "status": {"phase": "Running", **status}})


def deadline(diflow: Cli, name: str = "job-w-0") -> Any:
    return diflow.api.objects[POD.path("default")][name]["spec"].get("activeDeadlineSeconds")


HALF_AN_HOUR = Clock(wall=lambda: seconds("2026-01-02T03:34:05Z"))


def test_the_pods_of_a_job_that_argo_alone_runs_get_a_deadline_after_their_grace_period(diflow: Cli) -> None:
    alone(diflow)
    running(diflow)
    cluster = diflow.api.cluster()
    assert suspend.stop("job", cluster=cluster, clock=HALF_AN_HOUR) == Stopped(late=1)
    skew = cluster.clock_skew_seconds() or 0.0
    assert deadline(diflow) == pytest.approx(1800 + 60 + 5 + skew, abs=1)


@pytest.mark.parametrize(
    "others",
    [
        {"activeDeadlineSeconds": 2},  # ends earlier, by its template
        {"phase": "Succeeded"},
        {"of": "other"},
    ],
)
def test_no_other_pod_gets_a_deadline(diflow: Cli, others: dict[str, Any]) -> None:
    alone(diflow)
    running(diflow, **others)
    suspend.stop("job", cluster=diflow.api.cluster(), clock=HALF_AN_HOUR)
    assert diflow.api.seen("PATCH", "/pods/") == []


def test_the_allocator_ends_the_pods_of_a_job_that_it_places(diflow: Cli) -> None:
    waiting(diflow, places=PLACED, suspended=False, nodes=NODES)
    running(diflow)
    assert suspend.stop("job", cluster=diflow.api.cluster()) == Stopped()
    assert diflow.api.seen("GET", "/pods") == []


@pytest.mark.parametrize("is_gang", [False, True])
def test_a_stop_of_a_job_that_has_ended_ends_the_pods_that_still_run(diflow: Cli, is_gang: bool) -> None:
    if is_gang:
        waiting(diflow, places=PLACED, suspended=False, nodes=NODES, phase="Failed")
    else:
        alone(diflow, phase="Failed")
    running(diflow)
    done = diflow("stop", "job")
    assert done.code == 0
    assert "job has ended already; 1 pod of it still runs and is stopped by the kubelet" in done.err
    assert deadline(diflow) is not None
    assert "shutdown" not in stored(diflow)["spec"]


def test_a_job_that_has_ended_without_such_pods_cannot_be_stopped(diflow: Cli) -> None:
    alone(diflow, phase="Failed")
    running(diflow, phase="Failed")
    with pytest.raises(ConflictError, match="job job has ended already"):
        suspend.stop("job", cluster=diflow.api.cluster())


def test_a_user_who_may_not_change_pods_is_told_so_after_the_stop(diflow: Cli) -> None:
    alone(diflow)
    running(diflow)

    diflow.api.fail(status(403, "pods is forbidden", reason="Forbidden"), method="PATCH", path="/pods/")
    said = diflow("stop", "job")
    assert said.code == 0
    assert "job is being stopped" in said.err
    assert "its pods get no deadline, and one that ignores SIGTERM runs until the job is deleted: " in said.err
    assert stored(diflow)["spec"]["shutdown"] == "Stop"

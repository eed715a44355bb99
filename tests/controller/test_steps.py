"""Jobs that a step of another Workflow waits for: the controller stops them when the pod of the step has ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from diflow.common import keys
from diflow.jobs.dijobs import DIJOB
from diflow.kube.kinds import POD
from diflow.record.dijob import dijob_record_of
from tests.controller.lab import Lab, lab

Json = dict[str, Any]
STEP = "outer-train-1"


@pytest.fixture(name="at")
def _at() -> Iterator[Lab]:
    with lab(runs=lambda _: (500.0, 0)) as found:
        yield found


def pod(at: Lab, phase: str = "Running", *, name: str = STEP, labelled: bool = True, **metadata: Any) -> None:
    """The pod of a step."""
    labels = {keys.STEP: "true"} if labelled else {}
    known = {"creationTimestamp": at.cluster._time(), **metadata}
    body = {"metadata": {"name": name, "labels": labels, **known}, "spec": {"nodeName": "a", "containers": []}}
    at.api.add(POD, {**body, "status": {"phase": phase}})


def apply(at: Lab, name: str = "job", *, waited_by: Any = STEP, **spec: Any) -> None:
    """A DIJob as a step creates it."""
    obj = at.apply(name, **spec)
    annotations = {keys.WAITED_BY: waited_by}
    at.api.add(DIJOB, {**obj, "metadata": {**obj["metadata"], "annotations": annotations}})


def stopped(at: Lab, name: str = "job") -> bool:
    return bool(at.workflows()[name]["spec"].get("shutdown") == "Stop")


def running(at: Lab, **spec: Any) -> None:
    apply(at, **spec)
    at.until(lambda: at.phase() == "Running", "it runs")


@pytest.mark.parametrize("end", ["Failed", "Succeeded", "being deleted", "gone"])
def test_a_job_is_stopped_when_the_pod_of_its_step_has_ended_in_any_way(at: Lab, end: str) -> None:
    pod(at)
    running(at)
    assert not stopped(at)
    created = "2026-11-21T00:00:00Z"
    if end == "gone":
        at.api.remove(POD, STEP)
    elif end == "being deleted":
        pod(at, deletionTimestamp=at.cluster._time(), creationTimestamp=created)
    else:
        pod(at, end, creationTimestamp=created)
    at.until(lambda: stopped(at), "it is stopped", seconds=40)
    (event,) = [text for reason, text in at.events() if reason == "Stopped"]
    assert STEP in event
    at.until(lambda: at.message().startswith("is being stopped") or at.phase() == "Failed", "it says so")
    assert f"stopped: the step that waited for it has ended (pod {STEP})" in at.message()


def test_a_pod_that_is_not_labelled_as_a_step_is_none_and_starts_no_job(at: Lab) -> None:
    pod(at, labelled=False)
    apply(at)
    at.until(lambda: at.phase() == "Failed", "it has failed")
    assert at.workflows() == {}


def test_a_job_whose_step_still_waits_is_left_alone_and_costs_no_request(at: Lab) -> None:
    pod(at)
    running(at)
    before, asked = at.dijob()["metadata"]["resourceVersion"], len(at.api.seen("GET", f"pods/{STEP}"))
    for _ in range(20):
        at.step(5.0)
    assert not stopped(at)
    assert at.dijob()["metadata"]["resourceVersion"] == before
    assert len(at.api.seen("GET", f"pods/{STEP}")) == asked


def test_a_job_without_a_step_is_never_stopped(at: Lab) -> None:
    at.apply()
    at.until(lambda: at.phase() == "Running", "it runs")
    at.rest()
    assert not stopped(at)


def test_a_gang_that_waits_is_stopped_too(at: Lab) -> None:
    pod(at)
    apply(at, scheduling="gang")
    at.until(at.workflows, "it has a Workflow")
    pod(at, "Failed", creationTimestamp="2026-11-21T00:00:00Z")
    at.until(lambda: stopped(at), "it is stopped")
    spec, labels = at.workflows()["job"]["spec"], at.workflows()["job"]["metadata"]["labels"]
    assert not spec.get("suspend")
    assert keys.INSTANCE not in labels, "Argo looks at it"


def test_a_job_whose_step_has_ended_before_it_began_fails_and_makes_no_pod(at: Lab) -> None:
    pod(at, "Failed")
    apply(at)
    at.until(lambda: at.phase() == "Failed", "it has failed")
    assert STEP in at.message()
    assert at.workflows() == {}


def test_a_younger_pod_of_that_name_is_not_the_one_that_waited(at: Lab) -> None:
    pod(at)
    running(at)
    for _ in range(10):
        at.step()
    pod(at)  # as `argo retry` makes it
    at.until(lambda: stopped(at), "it is stopped")


def test_the_jobs_of_two_tries_of_a_step_are_told_apart(at: Lab) -> None:
    pod(at)
    pod(at, name="outer-train-2")
    running(at)
    apply(at, "second", waited_by="outer-train-2")
    at.until(lambda: at.phase("second") == "Running", "it runs")
    pod(at, "Failed", creationTimestamp="2026-11-21T00:00:00Z")
    at.until(lambda: stopped(at), "the first is stopped")
    at.rest()
    assert not stopped(at, "second")


@pytest.mark.parametrize("value", ["", "..", "a/b", "x" * 300, "a%2fb", "A", 7, None, ["x"]])
def test_what_cannot_be_the_name_of_a_pod_is_no_step(value: Any) -> None:
    assert dijob_record_of({"metadata": {"annotations": {keys.WAITED_BY: value}}}).waited_by == ""


def test_the_result_of_a_job_is_what_its_first_replica_has_written_and_stays_when_the_pod_is_gone() -> None:
    with lab(runs=lambda _: (3.0, 0)) as at:
        at.apply(tasks=[{"type": "learner"}, {"type": "collector"}])
        at.until(lambda: at.phase() == "Running", "it runs")
        (learner,) = [p for p in at.cluster.pods() if p["metadata"]["labels"][keys.TASK_NAME] == "learner"]
        at.until(lambda: at.phase() == "Succeeded", "it has succeeded")
        name = learner["metadata"]["name"]
        ended = at.api.objects[POD.path("default")][name]
        told = {"name": "main", "state": {"terminated": {"exitCode": 0, "message": "x" * 5000}}}
        at.api.add(POD, {**ended, "status": {**ended["status"], "containerStatuses": [told]}})
        at.until(lambda: "result" in at.status(), "the result is there")
        assert at.status()["result"] == "x" * 4096
        at.api.remove(POD, name)
        at.step(5.0)
        at.step(5.0)
        assert at.status()["result"] == "x" * 4096

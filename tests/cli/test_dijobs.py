"""Commands on jobs that are DIJob objects: with a Workflow, and without one."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from diflow import DIJob
from diflow.common import keys
from diflow.common.errors import InvalidError, JobFailedError, NotFoundError
from diflow.jobs import dijobs
from diflow.jobs.dijobs import DIJOB
from diflow.jobs.scale import scale
from diflow.jobs.wait import wait
from diflow.kube.kinds import CRD, DEPLOYMENT, SERVICE_ACCOUNT, WORKFLOW
from diflow.record.dijob import dijob_record_of, owner_reference
from diflow.record.identity import Identity
from diflow.workflows import render
from tests.builders import job, manifest, task
from tests.cli.runner import Cli
from tests.kube.fakeapi import status
from tests.record.seen import SeenJob

Json = dict[str, Any]
FAILED = {
    "phase": "Failed", "reason": "JobFailed", "message": "the number of collector task is more than one",
    "replicas": 0, "completionTimestamp": "2026-11-21T09:40:44Z",
    "conditions": [{"type": "Failed", "status": "True", "reason": "JobFailed", "message": "the number of"}],
}  # fmt: skip


def objects(diflow: Cli, name: str = "job", *, state: Json | None = None, **spec: Any) -> Json:
    """A DIJob object without a Workflow."""
    body = manifest(**spec)
    body["metadata"] |= {"name": name, "uid": f"dijob-{name}", "creationTimestamp": "2026-11-21T09:40:00Z"}
    return diflow.api.add(DIJOB, {**body, **({"status": state} if state is not None else {})})


def gang(diflow: Cli, *tasks: Any, **fields: Any) -> Json:
    """A DIJob object with its Workflow, which waits for the allocator."""
    made = job(*tasks, scheduling="gang", **fields)
    obj = objects(diflow, **made.to_manifest()["spec"])
    body = render(made)
    body["metadata"]["ownerReferences"] = [owner_reference(Identity.of(obj))]
    diflow.api.add(WORKFLOW, body)
    return obj


def test_a_job_without_a_workflow_is_listed_and_shown(diflow: Cli) -> None:
    diflow.has(SeenJob("other", learner=1).all_ready())
    objects(diflow, "broken", state=FAILED)
    objects(diflow, "new")
    rows = {line.split()[0]: line.split()[1] for line in diflow("list").out.splitlines()[1:]}
    assert rows == {"broken": "Failed", "new": "Pending", "other": "Running"}
    assert diflow("get", "broken").out.split()[8] == "Failed"
    found = json.loads(diflow("get", "broken", "-o", "json").out)
    assert (found["kind"], found["status"]["phase"]) == ("DIJob", "Failed")
    assert found["spec"]["tasks"][0]["type"] == "learner"
    shown = diflow("describe", "broken").out
    assert "the number of collector task is more than one" in shown
    assert "the controller has not made its Workflow yet" in diflow("describe", "new").out


def test_a_job_with_a_workflow_is_listed_once(diflow: Cli) -> None:
    gang(diflow, task("learner"))
    assert len(diflow("list").out.splitlines()) == 2


def test_without_the_kind_and_without_the_right_jobs_are_listed_as_before(diflow: Cli) -> None:
    diflow.has(SeenJob("other", learner=1).all_ready())
    for answer in (
        status(404, "the server could not find the requested resource"),
        status(403, 'User "me" cannot list resource "dijobs"', reason="Forbidden"),
    ):
        diflow.api.fail(answer, path="/dijobs")
        assert [line.split()[0] for line in diflow("list").out.splitlines()] == ["NAME", "other"]
    diflow.api.fail(status(404, "the server could not find the requested resource"), path="/dijobs")
    assert diflow("get", "none").code == 3


@pytest.mark.parametrize(
    "strange", [{"phase": 7}, {"phase": "Failed", "conditions": 3, "replicas": "x"}, [], {"conditions": [{"type": []}]}]
)
def test_a_strange_status_is_shown_as_far_as_it_goes(diflow: Cli, strange: Any) -> None:
    objects(diflow, state=strange)
    assert diflow("list").code == 0
    assert diflow("describe", "job").code == 0


def test_logs_of_a_job_without_pods_say_so(diflow: Cli) -> None:
    objects(diflow, state=FAILED)
    result = diflow("logs", "job")
    assert (result.code, result.out) == (0, "")
    assert "job has no replicas yet, or has none any more: the number of collector task" in result.err


def test_waiting_for_a_job_without_a_workflow_ends_with_it(diflow: Cli) -> None:
    objects(diflow, state=FAILED)
    with pytest.raises(JobFailedError, match="the number of collector task"):
        wait("job", cluster=diflow.api.cluster())
    objects(diflow, "new")
    with pytest.raises(TimeoutError, match="has no Workflow yet"):
        wait("new", cluster=diflow.api.cluster(), timeout_seconds=0.1)


def test_delete_removes_the_object_and_leaves_the_rest_to_kubernetes(diflow: Cli) -> None:
    gang(diflow, task("learner"))
    assert diflow("delete", "job").code == 0
    (sent,) = diflow.api.seen("DELETE")
    assert sent.path.endswith("/dijobs/job")
    assert sent.body["propagationPolicy"] == "Background"
    assert sent.body["preconditions"] == {"uid": "dijob-job"}
    assert diflow.api.objects[DIJOB.path("default")] == {}


def test_a_dijob_and_a_workflow_of_its_name_that_is_not_its_are_two_jobs(diflow: Cli) -> None:
    diflow.has(SeenJob("job", learner=1).all_ready())
    objects(diflow, state={**FAILED, "message": "there is a Workflow job"})
    rows = sorted(line.split()[:2] for line in diflow("list").out.splitlines()[1:])
    assert rows == [["job", "Failed"], ["job", "Running"]]
    for command in ("get", "describe"):
        said = diflow(command, "job")
        assert "Running" in said.out
        assert "there is a DIJob job, too (Failed): there is a Workflow job" in said.err
    said = diflow("delete", "job", "--wait")
    assert "the DIJob job is deleted; the Workflow job stays" in said.err
    assert "`diflow delete job`" in said.err
    assert diflow.api.objects[DIJOB.path("default")] == {}
    assert "job is deleted" in diflow("delete", "job").err
    assert diflow.api.objects[WORKFLOW.path("default")] == {}


def test_a_workflow_of_others_stays_when_a_dijob_of_its_name_is_deleted(diflow: Cli) -> None:
    diflow.api.add(WORKFLOW, {"metadata": {"name": "job"}, "spec": {}})
    objects(diflow, state=FAILED)
    assert diflow("get", "job").err == ""
    assert "`argo delete job` deletes it" in diflow("delete", "job").err
    assert list(diflow.api.objects[WORKFLOW.path("default")]) == ["job"]


def test_scale_changes_the_spec_of_the_object_and_not_the_workflow(diflow: Cli) -> None:
    gang(diflow, task("learner"), task("collector", replicas=2))
    result = diflow("scale", "job", "--task", "collector", "--replicas", "5")
    assert "job/collector: 2 → 5 replicas" in result.out
    (sent,) = diflow.api.seen("PATCH")
    assert sent.path.endswith("/dijobs/job")
    spec = diflow.api.objects[DIJOB.path("default")]["job"]["spec"]
    assert [one["replicas"] for one in spec["tasks"] if "replicas" in one] == [5]
    assert sent.body["metadata"]["resourceVersion"]


def copied(diflow: Cli) -> None:
    """A copy by `argo resubmit` of the Workflow of the job, which the object owns as well."""
    original = diflow.api.objects[WORKFLOW.path("default")]["job"]
    metadata = original["metadata"]
    labels = {**metadata["labels"], keys.RESUBMITTED: "job"}
    made = {**metadata, "name": "job-x7k2p", "uid": "uid-copy", "labels": labels}
    diflow.api.add(WORKFLOW, {**original, "metadata": made})


def test_scale_of_a_copy_changes_the_copy_and_not_the_object(diflow: Cli) -> None:
    before = gang(diflow, task("learner"))
    copied(diflow)
    result = diflow("scale", "job-x7k2p", "--replicas", "3")
    assert (result.code, diflow.api.objects[DIJOB.path("default")]["job"]) == (0, before)
    (sent,) = diflow.api.seen("PATCH")
    assert sent.path.endswith("/workflows/job-x7k2p")


def test_a_job_is_listed_beside_a_copy_of_its_workflow_which_is_gone(diflow: Cli) -> None:
    gang(diflow, task("learner"))
    copied(diflow)
    rows = [line.split()[0] for line in diflow("list").out.splitlines()[1:]]
    assert sorted(rows) == ["job", "job-x7k2p"]
    diflow.api.remove(WORKFLOW, "job")
    rows = [line.split()[0] for line in diflow("list").out.splitlines()[1:]]
    assert sorted(rows) == ["job", "job-x7k2p"]


def test_scale_of_a_preemptible_job_sets_the_bounds_in_the_spec(diflow: Cli) -> None:
    workers = task("none", name="worker", replicas=2).model_copy(update={"min_replicas": 1, "max_replicas": 4})
    gang(diflow, workers, preemptible=True)
    assert diflow("scale", "job", "--min", "3", "--max", "8").code == 0
    (one,) = diflow.api.objects[DIJOB.path("default")]["job"]["spec"]["tasks"]
    assert (one["replicas"], one["minReplicas"], one["maxReplicas"]) == (3, 3, 8)


def test_if_the_spec_says_so_already_the_workflow_is_changed(diflow: Cli) -> None:
    obj = gang(diflow, task("learner"), task("collector", replicas=2))
    spec = {**obj["spec"], "tasks": [obj["spec"]["tasks"][0], {**obj["spec"]["tasks"][1], "replicas": 5}]}
    diflow.api.add(DIJOB, {**obj, "spec": spec})  # carried out, and then changed in the Workflow by the REST API
    scale("job", task="collector", replicas=5, cluster=diflow.api.cluster())
    (sent,) = diflow.api.seen("PATCH")
    assert sent.path.endswith("/workflows/job")


def test_submit_as_dijob_creates_the_object_alone(diflow: Cli) -> None:
    diflow.prepare()
    path = diflow.file("job.yaml", manifest())
    assert diflow("submit", path, "--as", "dijob").code == 0
    (obj,) = diflow.api.objects[DIJOB.path("default")].values()
    assert obj["spec"]["tasks"][0]["type"] == "learner"
    assert diflow.api.objects.get(WORKFLOW.path("default"), {}) == {}
    assert diflow("submit", path, "--as", "dijob").code == 4
    shown = diflow("submit", path, "--as", "dijob", "--dry-run=client").out
    assert yaml.safe_load(shown)["kind"] == "DIJob"


def test_submit_as_dijob_needs_the_kind(diflow: Cli) -> None:
    diflow.api.fail(status(404, "the server could not find the requested resource"), method="POST", path="/dijobs")
    result = diflow("submit", diflow.file("job.yaml", manifest()), "--as", "dijob")
    assert (result.code, "kubectl apply -k manifests/crds" in result.err) == (3, True)


def test_a_job_is_read_from_a_cluster(diflow: Cli) -> None:
    obj = objects(diflow, backoffLimit=7)
    obj["metadata"]["labels"] = {"team": "vision", keys.MANAGED_BY: "Helm"}
    diflow.api.add(DIJOB, obj)
    found = DIJob.from_cluster("job", cluster=diflow.api.cluster())
    assert (found.name, found.namespace, found.backoff_limit) == ("job", "default", 7)
    assert found.labels == {"team": "vision"}
    made = job(task("learner"), name="plain", backoff_limit=5)
    diflow.api.add(WORKFLOW, render(made))
    assert DIJob.from_cluster("plain", cluster=diflow.api.cluster()).backoff_limit == 5
    with pytest.raises(NotFoundError):
        DIJob.from_cluster("none", cluster=diflow.api.cluster())
    objects(diflow, "bad", cleanPodPolicy="Some")
    with pytest.raises(InvalidError):
        DIJob.from_cluster("bad", cluster=diflow.api.cluster())


# --- doctor -----------------------------------------------------------------------------------------------------------


def crd(diflow: Cli, **labels: str) -> None:
    versions = [{"name": "v2alpha1", "served": True, "schema": {}}]
    diflow.api.add(
        CRD, {"metadata": {"name": "dijobs.diengine.opendilab.org", "labels": labels}, "spec": {"versions": versions}}
    )


def deployment(diflow: Cli, name: str, image: str, *args: str, ready: int = 1) -> None:
    containers = [{"image": image, "args": list(args)}]
    body = {"metadata": {"name": name}, "spec": {"template": {"spec": {"containers": containers}}}}
    diflow.api.add(DEPLOYMENT, {**body, "status": {"replicas": 2, "readyReplicas": ready}})


def test_doctor_says_whether_dijobs_are_run(diflow: Cli) -> None:
    diflow.prepare()
    assert "the kind DIJob: not installed: jobs are submitted as Workflows" in diflow("doctor").out
    crd(diflow, **{"app.kubernetes.io/part-of": "diflow"})
    out = diflow("doctor").out
    assert "✓ the kind DIJob: installed" in out
    assert "✗ the controller of DIJob objects: not installed" in out
    deployment(diflow, "diflow-controller", "docker.io/diflow/diflow:0.2.0", ready=0)
    assert "✗ the controller of DIJob objects: 0 of 2 pods are ready" in diflow("doctor").out
    deployment(diflow, "diflow-controller", "docker.io/diflow/diflow:0.2.0", ready=2)
    result = diflow("doctor")
    assert "✓ the controller of DIJob objects: 2 of 2 pods are ready" in result.out
    assert result.code == 0


def test_doctor_says_whether_dijobs_can_be_steps_of_other_workflows(diflow: Cli) -> None:
    diflow.prepare()
    what = "DIJobs as steps of other Workflows: "
    assert f"– {what}not prepared: kubectl apply -n default -k manifests/pipelines" in diflow("doctor").out
    diflow.api.add(SERVICE_ACCOUNT, {"metadata": {"name": "diflow-submit"}})
    result = diflow("doctor")
    assert f"✗ {what}prepared, but the kind DIJob is not installed" in result.out
    assert result.code == 5
    crd(diflow, **{"app.kubernetes.io/part-of": "diflow"})
    assert f"✗ {what}prepared, but the controller is not installed" in diflow("doctor").out
    deployment(diflow, "diflow-controller", "docker.io/diflow/diflow:0.2.0", ready=2)
    assert f"✓ {what}prepared" in diflow("doctor").out


@pytest.mark.parametrize(
    ("image", "args", "is_told"),
    [
        ("opendilab/di-orchestrator:v1.1.3", ["operator"], True),
        ("registry/x/di-operator:v0.2.0", [], True),
        ("opendilab/di-orchestrator:v1.1.3", ["server"], False),
        ("somebody/audi-operator:1", [], False),
    ],
)
def test_doctor_tells_of_an_operator_of_di_orchestrator(
    diflow: Cli, image: str, args: list[str], is_told: bool
) -> None:
    diflow.prepare()
    deployment(diflow, "di-something", image, *args)
    out = diflow("doctor").out
    assert ("default/di-something is an operator of DI-orchestrator" in out) is is_told


def test_doctor_sees_a_kind_that_another_program_has_installed(diflow: Cli) -> None:
    diflow.prepare()
    crd(diflow)
    assert "✗ the kind DIJob: installed by another program" in diflow("doctor").out


@pytest.mark.parametrize(
    ("spec", "is_preemptible", "change"),
    [
        ({"minReplicas": 2}, False, {"minReplicas": 3}),
        ({"maxReplicas": 2}, False, {"minReplicas": 3, "maxReplicas": 3}),
        ({"minReplicas": 3, "maxReplicas": 9}, False, None),
        ({"minReplicas": 1, "maxReplicas": 2}, True, {"minReplicas": 1, "maxReplicas": 3}),
        ({"minReplicas": 1, "maxReplicas": 3}, True, None),
    ],
)
def test_scale_changes_the_numbers_of_an_object_with_one_template(
    spec: dict[str, Any], is_preemptible: bool, change: dict[str, Any] | None
) -> None:
    obj = {"metadata": {"uid": "u", "resourceVersion": "7"}, "spec": {"template": {}, **spec}}
    patch = dijobs.scaled(
        dijob_record_of(obj), "worker", low=1 if is_preemptible else 3, high=3, is_preemptible=is_preemptible
    )
    assert (patch or {}).get("spec") == change
    assert patch is None or patch["metadata"] == obj["metadata"]


def test_scale_does_not_give_tasks_to_an_object_with_a_coordinator() -> None:
    obj = {"metadata": {"uid": "u"}, "spec": {"coordinator": {"template": {}}}}
    assert dijobs.scaled(dijob_record_of(obj), "coordinator", low=2, high=2, is_preemptible=False) is None

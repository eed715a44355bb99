"""Jobs from Python: submit, wait, delete, as a program uses them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from diflow import ConflictError, JobFailedError, NotFoundError
from diflow.common import keys
from diflow.common.clock import Clock
from diflow.common.errors import InvalidError
from diflow.dijob.model import Topology
from diflow.jobs import earlier_pods, lookup
from diflow.jobs.checks.prerequisites import image_version
from diflow.kube.kinds import CONFIG_MAP, NAMESPACE, POD, WORKFLOW
from tests.builders import job
from tests.cli.runner import Cli, play
from tests.kube.fakeapi import status
from tests.record.seen import SeenJob


def test_a_job_is_submitted_waited_for_and_deleted(diflow: Cli) -> None:
    diflow.prepare()
    cluster = diflow.api.cluster()
    placed = job(name="job").submit(cluster=cluster)
    assert placed.namespace == "default"
    seen = SeenJob("job", learner=1).all_ready()

    def end() -> None:
        seen.pods[0].ends(8)
        diflow.has(seen.ended(9))

    play(diflow, end)
    status = placed.wait(timeout_seconds=20, cluster=cluster)
    assert (status.phase, status.message) == ("Succeeded", "the job succeeded")
    placed.delete(cluster=cluster)
    placed.delete(cluster=cluster)
    with pytest.raises(NotFoundError):
        lookup.get("job", cluster=cluster)


def test_the_library_waits_for_the_pods_of_an_earlier_job_for_a_bounded_time(diflow: Cli) -> None:
    diflow.prepare()
    labels = {"workflows.argoproj.io/workflow": "job"}
    diflow.api.add(POD, {"metadata": {"name": "job-1", "labels": labels}})
    now: list[float] = [0.0]
    said: list[str] = []

    def pause(seconds: float) -> None:
        now[0] += seconds

    with pytest.raises(ConflictError, match="an earlier Workflow job .*: job-1. Wait until they are gone"):
        earlier_pods.wait(
            diflow.api.cluster(),
            "job",
            namespace="default",
            clock=Clock(monotonic=lambda: now[0], sleep=pause),
            on_wait=said.append,
        )
    assert (now, len(said)) == ([earlier_pods.WAIT_SECONDS], 1)
    diflow.api.remove(POD, "job-1")
    assert job(name="job").submit(cluster=diflow.api.cluster()).namespace == "default"


def test_a_job_goes_to_the_namespace_that_it_names(diflow: Cli) -> None:
    diflow.prepare()
    diflow.api.add(NAMESPACE, {"metadata": {"name": "lab"}})
    with pytest.raises(Exception, match="service account diflow-worker is missing in the namespace 'lab'"):
        job(name="job", namespace="lab").submit(cluster=diflow.api.cluster())


def scheduled(diflow: Cli, **fields: Any) -> tuple[str, bool, int]:
    """The `scheduling` of a submitted job's Workflow, whether its pods are gated, and the number of ConfigMaps read."""
    diflow.prepare()
    placed = job(name="job", **fields).submit(cluster=diflow.api.cluster())
    workflow = diflow.api.objects[WORKFLOW.path("default")]["job"]
    label = workflow["metadata"]["labels"]["diflow/scheduling"]
    assert label == (placed.scheduling or "none")
    gated = "diflow/gang" in next(t for t in workflow["spec"]["templates"] if t["name"] == "learner")["podSpecPatch"]
    return label, gated, len(diflow.api.seen("GET", "/configmaps/"))


def test_where_there_is_no_allocator_argo_alone_runs_a_job(diflow: Cli) -> None:
    assert scheduled(diflow) == ("none", False, 1)


def test_where_the_allocator_is_installed_it_schedules_a_job_that_does_not_say_otherwise(diflow: Cli) -> None:
    allocator(diflow)
    assert scheduled(diflow) == ("gang", True, 1)
    kept = diflow.api.objects[WORKFLOW.path("default")]["job"]["metadata"]["annotations"]["diflow/dijob"]
    assert json.loads(kept)["spec"]["scheduling"] == "gang"


def instance(diflow: Cli, **fields: Any) -> str | None:
    """The controller of Argo that a submitted job's Workflow belongs to."""
    diflow.prepare()
    job(name="job", **fields).submit(cluster=diflow.api.cluster())
    labels = diflow.api.objects[WORKFLOW.path("default")]["job"]["metadata"]["labels"]
    return str(labels[keys.INSTANCE]) if keys.INSTANCE in labels else None


def test_a_gang_is_hidden_from_argo_where_an_allocator_will_show_it(diflow: Cli) -> None:
    allocator(diflow)
    assert instance(diflow) == keys.INSTANCE_VALUE


def test_a_job_that_no_allocator_would_show_is_not_hidden(diflow: Cli) -> None:
    assert instance(diflow, scheduling="gang") is None


def test_a_job_without_the_allocator_is_not_hidden(diflow: Cli) -> None:
    allocator(diflow)
    assert instance(diflow, scheduling="none") is None


@pytest.mark.parametrize("asked", ["none", "gang"])
def test_what_a_job_says_of_its_scheduling_holds(diflow: Cli, asked: str) -> None:
    allocator(diflow, scheduling="gang" if asked == "none" else "none")
    assert scheduled(diflow, scheduling=asked) == (asked, asked == "gang", 1)


@pytest.mark.parametrize("data", [None, {}, {"scheduling": "none"}, {"scheduling": "later"}])
def test_an_allocator_that_does_not_ask_for_it_gets_no_jobs(diflow: Cli, data: dict[str, str] | None) -> None:
    diflow.api.add(CONFIG_MAP, {"metadata": {"name": "diflow-allocator"}, "data": data}, namespace="kube-public")
    assert scheduled(diflow) == ("none", False, 1)


def test_a_user_who_may_not_read_about_the_allocator_runs_jobs_without_it(diflow: Cli) -> None:
    allocator(diflow)
    diflow.api.fail(status(403, "Forbidden"), path="/configmaps/")
    assert scheduled(diflow) == ("none", False, 1)


def test_a_job_that_requires_a_domain_is_refused_where_no_allocator_would_place_it(diflow: Cli) -> None:
    why = r"spec\.topology: requires the allocator, which is not installed in this cluster"
    with pytest.raises(InvalidError, match=why):
        scheduled(diflow, topology=Topology(required="rack"))
    allocator(diflow)
    assert scheduled(diflow, topology=Topology(required="rack"))[:2] == ("gang", True)


def allocator(diflow: Cli, *, scheduling: str = "gang") -> None:
    data = {"scheduling": scheduling}
    diflow.api.add(CONFIG_MAP, {"metadata": {"name": "diflow-allocator"}, "data": data}, namespace="kube-public")


def test_a_failed_job_raises_with_its_reason(diflow: Cli) -> None:
    seen = SeenJob("job", learner=1, backoff_limit=0).all_ready()
    seen.pods[0].ends(8, code=3)
    diflow.has(seen.ended(9, "Failed"))
    with pytest.raises(JobFailedError, match=r"job job failed: learner-0 failed: Error \(exit code 3\)"):
        job(name="job").wait(cluster=diflow.api.cluster())


def test_waiting_has_a_limit(diflow: Cli) -> None:
    diflow.has(SeenJob("job", learner=1).all_ready())
    with pytest.raises(TimeoutError, match=r"job job is still Running after 5 s: the replica is ready"):
        job(name="job").wait(timeout_seconds=5.0, cluster=diflow.api.cluster())


def test_a_second_job_of_the_same_name_is_a_conflict(diflow: Cli) -> None:
    diflow.prepare()
    job(name="job").submit(cluster=diflow.api.cluster())
    with pytest.raises(ConflictError):
        job(name="job").submit(cluster=diflow.api.cluster())
    assert len(diflow.api.objects[WORKFLOW.path("default")]) == 1


def test_without_a_cluster_given_that_of_the_kubeconfig_is_used(diflow: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    diflow.prepare()
    monkeypatch.setenv("KUBECONFIG", str(diflow.kubeconfig))
    placed = job(name="job").submit()
    assert [found.name for found in lookup.list_jobs()] == ["job"]
    assert lookup.latest() == "job"
    placed.delete()
    assert lookup.names() == []


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("quay.io/argoproj/workflow-controller:v4.0.7", (4, 0, 7)),
        ("registry:5000/argo/controller:3.7.3-fips", (3, 7, 3)),
        ("argo/controller:latest", None),
        ("argo/controller", None),
        ("argo/controller@sha256:00", None),
    ],
)
def test_argos_version_is_read_from_its_image(image: str, version: tuple[int, int, int] | None) -> None:
    assert image_version(image) == version


def test_a_manifest_that_somebody_broke_counts_as_empty() -> None:
    workflow = SeenJob("job", learner=1).workflow()
    workflow["metadata"]["annotations"]["diflow/dijob"] = "{"
    found = lookup.Job(workflow, (), SeenJob("job", learner=1).derive())
    assert found.dijob == {}
    assert found.round == ""

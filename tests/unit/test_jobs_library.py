"""Jobs from Python: submit, wait, delete, as a program uses them."""

from __future__ import annotations

import pytest

from diflow import ConflictError, JobFailedError, NotFoundError
from diflow.client import jobs
from diflow.client.argo import image_version
from diflow.client.kinds import WORKFLOW
from tests.builders import job
from tests.unit.cli import Cli, play
from tests.unit.seen import SeenJob


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
        jobs.get("job", cluster=cluster)


def test_a_job_goes_to_the_namespace_that_it_names(diflow: Cli) -> None:
    diflow.prepare()
    with pytest.raises(Exception, match="service account diflow-worker is missing in the namespace 'lab'"):
        job(name="job", namespace="lab").submit(cluster=diflow.api.cluster())


def test_a_failed_job_raises_with_its_reason(diflow: Cli) -> None:
    seen = SeenJob("job", learner=1, backoff_limit=0).all_ready()
    seen.pods[0].ends(8, code=3)
    diflow.has(seen.ended(9, "Failed"))
    with pytest.raises(JobFailedError, match=r"job job failed: learner-0 failed: Error \(exit code 3\)"):
        job(name="job").wait(cluster=diflow.api.cluster())


def test_waiting_has_a_limit(diflow: Cli) -> None:
    diflow.has(SeenJob("job", learner=1).all_ready())
    with pytest.raises(TimeoutError, match=r"job job is still Running after 0.2 s: the replica is ready"):
        job(name="job").wait(timeout_seconds=0.2, cluster=diflow.api.cluster())


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
    assert [found.name for found in jobs.list_jobs()] == ["job"]
    assert jobs.latest() == "job"
    placed.delete()
    assert jobs.names() == []


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("quay.io/argoproj/workflow-controller:v4.0.2", (4, 0, 2)),
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
    found = jobs.Job(workflow, (), SeenJob("job", learner=1).derive())
    assert found.dijob == {}
    assert found.parameter("current") == "1"
    assert found.parameter("nothing") == ""

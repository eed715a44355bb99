"""The field `monitor` of a job."""

from __future__ import annotations

import pytest

from diflow import DIJob
from diflow.dijob.model import Monitor
from tests.builders import manifest, template
from tests.dijob.test_job import invalid

VOLUMES = [{"name": "data", "emptyDir": {}}]


@pytest.mark.parametrize("given", [True, {}])
def test_a_monitor_with_its_defaults(given: object) -> None:
    job = DIJob.from_manifest(manifest(monitor=given))
    assert job.monitor == Monitor(checkpoint_volume=None, checkpoint_path=None)
    assert DIJob.from_manifest(job.to_manifest()) == job


@pytest.mark.parametrize("given", [False, None])
def test_a_job_without_a_monitor(given: object) -> None:
    job = DIJob.from_manifest(manifest(monitor=given))
    assert job.monitor is None
    assert "monitor" not in job.to_manifest()["spec"]


def test_a_monitor_needs_no_allocator() -> None:
    assert DIJob.from_manifest(manifest(monitor=True, scheduling="none")).monitor is not None


@pytest.mark.parametrize("where", ["job", "task"])
def test_checkpoints_go_to_a_volume_of_the_job_or_of_each_task(where: str) -> None:
    given = {"checkpointVolume": "data", "checkpointPath": "a/b"}
    if where == "job":
        job = DIJob.from_manifest(manifest(monitor=given, volumes=VOLUMES))
    else:
        own = template(volumes=VOLUMES)
        job = DIJob.from_manifest(manifest(monitor=given, tasks=[{"type": "learner", "template": own}]))
    assert job.to_manifest()["spec"]["monitor"] == given


@pytest.mark.parametrize(
    ("given", "path"),
    [
        (5, "spec.monitor"),
        ("true", "spec.monitor"),
        ({"checkpointVolume": "none"}, "spec.monitor.checkpointVolume"),
        ({"checkpointVolume": "A b"}, "spec.monitor.checkpointVolume"),
        ({"checkpointVolume": 5}, "spec.monitor.checkpointVolume"),
        ({"checkpointPath": "/etc"}, "spec.monitor.checkpointPath"),
        ({"checkpointPath": "a/../../b"}, "spec.monitor.checkpointPath"),
        ({"checkpointPath": ""}, "spec.monitor.checkpointPath"),
        ({"checkpointPath": "a//b"}, "spec.monitor.checkpointPath"),
        ({"checkpointPath": "{{workflow.name}}"}, "spec.monitor.checkpointPath"),
        ({"checkpointPath": "x" * 257}, "spec.monitor.checkpointPath"),
    ],
)
def test_a_monitor_that_is_out_of_bounds_is_refused(given: object, path: str) -> None:
    assert invalid(monitor=given).path == path


def test_the_container_of_the_monitor_has_its_name_alone() -> None:
    mine = {**template()["spec"]["containers"][0], "name": "diflow-monitor"}
    tasks = [{"type": "learner", "template": {"spec": {"containers": [mine]}}}]
    assert invalid(monitor=True, tasks=tasks).path == "spec.tasks[0].template.spec"

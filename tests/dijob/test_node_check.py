"""The field `nodeCheck` of a job."""

from __future__ import annotations

import pytest

from diflow import DIJob, UnknownFieldWarning
from diflow.dijob.model import NodeCheck
from tests.builders import manifest, template
from tests.dijob.test_job import invalid


@pytest.mark.parametrize("given", [True, {}, NodeCheck(), {"maxMoves": None}])
def test_a_node_check_with_its_defaults(given: object) -> None:
    job = DIJob.from_manifest(manifest(nodeCheck=given))
    assert job.node_check == NodeCheck(image=None, command=None, timeout_seconds=120, max_moves=3)
    assert DIJob.from_manifest(job.to_manifest()) == job
    assert DIJob.from_yaml(job.to_yaml()) == job


@pytest.mark.parametrize("given", [False, None])
def test_a_job_without_a_node_check(given: object) -> None:
    job = DIJob.from_manifest(manifest(nodeCheck=given))
    assert job.node_check is None
    assert "nodeCheck" not in job.to_manifest()["spec"]


def test_a_node_check_of_the_users_own() -> None:
    given = {"image": "my/check:1", "command": ["check", "--all"], "timeoutSeconds": 60, "maxMoves": 0}
    job = DIJob.from_manifest(manifest(nodeCheck=given))
    assert job.to_manifest()["spec"]["nodeCheck"] == given


@pytest.mark.parametrize(
    ("given", "path"),
    [
        (5, "spec.nodeCheck"),
        ("true", "spec.nodeCheck"),
        ([], "spec.nodeCheck"),
        ({"timeoutSeconds": 9}, "spec.nodeCheck.timeoutSeconds"),
        ({"timeoutSeconds": 3601}, "spec.nodeCheck.timeoutSeconds"),
        ({"timeoutSeconds": True}, "spec.nodeCheck.timeoutSeconds"),
        ({"maxMoves": -1}, "spec.nodeCheck.maxMoves"),
        ({"maxMoves": 17}, "spec.nodeCheck.maxMoves"),
        ({"image": ""}, "spec.nodeCheck.image"),
        ({"image": "x" * 513}, "spec.nodeCheck.image"),
        ({"image": 5}, "spec.nodeCheck.image"),
        ({"image": "a \n"}, "spec.nodeCheck.image"),
        ({"image": "{{workflow.name}}"}, "spec.nodeCheck.image"),
        ({"image": "a", "command": []}, "spec.nodeCheck.command"),
        ({"image": "a", "command": "sh"}, "spec.nodeCheck.command"),
        ({"image": "a", "command": ["x"] * 65}, "spec.nodeCheck.command"),
        ({"image": "a", "command": [5]}, "spec.nodeCheck.command[0]"),
        ({"command": ["sh"]}, "spec.nodeCheck.image"),
    ],
)
def test_a_node_check_that_is_out_of_bounds_is_refused(given: object, path: str) -> None:
    assert invalid(nodeCheck=given).path == path


def test_unknown_fields_of_a_node_check_warn() -> None:
    with pytest.warns(UnknownFieldWarning, match="spec.nodeCheck.speed is not known"):
        DIJob.from_manifest(manifest(nodeCheck={"speed": 1}))


def test_a_node_check_needs_the_allocator() -> None:
    assert invalid(nodeCheck=True, scheduling="none").path == "spec.nodeCheck"


def test_the_container_of_the_node_check_has_its_name_alone() -> None:
    mine = {**template()["spec"]["containers"][0], "name": "diflow-check"}
    tasks = [{"type": "learner", "template": {"spec": {"containers": [mine]}}}]
    assert invalid(nodeCheck=True, tasks=tasks).path == "spec.tasks[0].template.spec"
    DIJob.from_manifest(manifest(tasks=tasks))

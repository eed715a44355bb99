"""The containers of diflow's own in the pods of a job."""

from __future__ import annotations

import pytest

from diflow import amounts
from diflow.job import NodeCheck
from diflow.version import __version__
from diflow.workflows.pods import CONFINED
from tests.builders import task
from tests.workflows.test_render import env, made, made_containers, named, workflow


def test_a_node_check_is_the_first_init_container_with_the_resources_of_the_work() -> None:
    first = {"name": "fetch", "image": "busybox", "command": ["true"]}
    wf = workflow(task(initContainers=[first]), node_check=NodeCheck(timeout_seconds=60), scheduling="gang")
    given = named(wf, "learner")["initContainers"]
    assert [one["name"] for one in given] == ["diflow-check", "fetch"]
    check = given[0]
    assert check["image"] == f"docker.io/diflow/diflow:{__version__}"
    assert check["command"] == ["python3", "-m", "diflow.inpod.check"]
    assert check["resources"] == named(wf, "learner")["container"]["resources"]
    assert check["securityContext"] == CONFINED
    seen = env(check)
    assert seen["DI_CHECK_SECONDS"] == "60"
    assert {"DI_JOB_ID", "DI_SERVER_URL", "DI_RANK", "DI_NODES", "DI_TOKEN_FILE"} <= seen.keys()
    assert "/var/run/secrets/diflow" in {mount["mountPath"] for mount in check["volumeMounts"]}


def test_a_node_check_of_the_users_own_keeps_its_braces() -> None:
    given = NodeCheck(image="my/check", command=("sh", "-c", "echo {{workflow.name}}"))
    wf = workflow(node_check=given, scheduling="gang")
    made = made_containers(wf)["diflow-check"]
    assert (made["image"], made["command"]) == ("my/check", ["sh", "-c", "echo {{workflow.name}}"])
    assert "{{workflow.name}}" not in named(wf, "learner")["podSpecPatch"].replace('"hostname":"{{workflow.name}}', "")


def test_a_node_check_requests_nothing_beyond_the_work() -> None:
    spec = made(workflow(node_check=NodeCheck(), scheduling="gang"))["spec"]
    without = {**spec, "initContainers": [c for c in spec["initContainers"] if c["name"] != "diflow-check"]}
    assert amounts.of_pod(spec) == amounts.of_pod(without)


def test_the_image_of_the_node_check_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIFLOW_IMAGE", "registry.example.com/diflow:1")
    wf = workflow(node_check=NodeCheck(), scheduling="gang")
    assert named(wf, "learner")["initContainers"][0]["image"] == "registry.example.com/diflow:1"

"""The pod of a stored Workflow, as Argo would make it."""

from __future__ import annotations

from typing import Any

import pytest

from diflow import DIJob, Task
from diflow.workflows import render
from diflow.workflows.argo_pod import merged, pod_of, without_argo

Json = dict[str, Any]


def stored(spec: Json | None = None, container: Json | None = None, **fields: Any) -> Json:
    """The Workflow of a gang as Argo stores it, which gives the main container an empty name."""
    main = {"name": "di-container", "image": "x", "command": ["x"], "resources": {"limits": {"cpu": "1"}}}
    template = {
        "metadata": {"labels": {"team": "vision"}, "annotations": {"mesh": "yes"}},
        "spec": {**(spec or {}), "containers": [{**main, **(container or {})}]},
    }
    task = Task(name="worker", replicas=2, template=template, **fields)
    made = render(DIJob(name="a", tasks=(task,), scheduling="gang", failure_policy={"rules": []}))
    for one in made["spec"]["templates"]:
        if "container" in one:
            one["container"]["name"] = ""
    made["metadata"]["namespace"] = "here"
    return made


def named(pod: Json, kind: str = "containers") -> dict[str, Json]:
    return {one["name"]: one for one in pod["spec"][kind]}


def pod(workflow: Json, **options: Any) -> Json:
    found = pod_of(workflow, "worker", **options)
    assert found is not None
    return found


def test_it_has_what_argo_adds_and_the_patches_say() -> None:
    made = pod(stored({"runtimeClassName": "kata", "initContainers": [{"name": "data", "image": "y"}]}))
    assert named(made).keys() == {"main", "wait"}
    assert named(made, "initContainers").keys() == {"init", "data"}
    for container in (*made["spec"]["containers"], *made["spec"]["initContainers"]):
        assert container["image"]
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert made["spec"]["runtimeClassName"] == "kata"
    assert made["spec"]["serviceAccountName"] == "diflow-worker"
    assert made["spec"]["priorityClassName"] == "diflow-normal"
    assert made["spec"]["securityContext"]["runAsNonRoot"] is True
    assert made["metadata"]["namespace"] == "here"
    assert made["metadata"]["labels"].items() >= {"team": "vision", "workflows.argoproj.io/workflow": "a"}.items()
    assert made["metadata"]["annotations"]["mesh"] == "yes"
    assert "schedulingGates" not in made["spec"]
    assert made["spec"].get("nodeSelector") is None


def test_nothing_of_argos_templates_is_left_and_a_users_braces_stay() -> None:
    made = pod(stored(container={"args": ["{{workflow.name}}"], "env": [{"name": "A", "value": "{{=1}}"}]}))
    main = named(made)["main"]
    assert main["args"] == ["{{workflow.name}}"]
    env = {one["name"]: one.get("value") for one in main["env"]}
    assert env["A"] == "{{=1}}"
    assert env["DI_JOB_ID"] == "here/a"
    main["args"], main["env"] = [], []
    assert "{{" not in str(made)


def test_the_memory_of_a_task_that_may_get_more_is_a_number() -> None:
    limits = {"cpu": "1", "memory": "1Gi"}
    made = pod(stored(container={"resources": {"limits": limits}}, max_memory="4Gi"), memory=2048)
    assert named(made)["main"]["resources"]["limits"] == {"cpu": "1", "memory": "2048Mi"}


def test_argos_containers_have_its_resources_and_can_be_left_out() -> None:
    made = pod(stored(), executor={"limits": {"cpu": "100m"}})
    assert named(made)["wait"]["resources"] == {"limits": {"cpu": "100m"}}
    assert named(made, "initContainers")["init"]["resources"] == {"limits": {"cpu": "100m"}}
    assert named(without_argo(made)).keys() == {"main"}
    assert without_argo(made)["spec"]["initContainers"] == []
    assert named(made).keys() == {"main", "wait"}


@pytest.mark.parametrize("edit", [{"podSpecPatch": "{"}, {"podSpecPatch": "[" * 100_000}])
def test_a_patch_that_nobody_can_read_is_an_error(edit: Json) -> None:
    workflow = stored()
    next(one for one in workflow["spec"]["templates"] if one["name"] == "worker").update(edit)
    with pytest.raises(ValueError, match=r"."):
        pod_of(workflow, "worker")


@pytest.mark.parametrize("workflow", [{}, {"spec": None}, {"spec": {"templates": [1, {"name": "worker"}]}}])
def test_a_workflow_without_the_template_has_no_pod(workflow: Json) -> None:
    assert pod_of(workflow, "worker") is None


def test_a_patch_is_merged_as_kubernetes_does_it() -> None:
    one, two = {"name": "A", "value": "1"}, {"name": "B"}
    base = {"a": 1, "b": {"c": 1}, "containers": [{"name": "x", "env": [one], "args": ["1"]}]}
    patch = {
        "a": None,
        "b": {"d": 2},
        "containers": [{"name": "x", "env": [two], "args": ["2"]}, {"name": "y"}],
        "tolerations": [{"key": "k"}],
    }
    assert merged(base, patch) == {
        "b": {"c": 1, "d": 2},
        "containers": [{"name": "x", "env": [one, two], "args": ["2"]}, {"name": "y"}],
        "tolerations": [{"key": "k"}],
    }

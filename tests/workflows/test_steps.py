"""A DIJob as a step of a larger Workflow: the templates that Argo gets."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hera.workflows import DAG, Workflow

from diflow import DIJob, InvalidError
from diflow.common import keys
from diflow.workflows import step
from diflow.workflows.steps import template_yaml
from tests.builders import job, task

Json = dict[str, Any]
_TAG = re.compile(r"\{\{(.*?)\}\}")
PIPELINES = Path(__file__).parents[2] / "manifests" / "pipelines"


def built(*args: Any, **options: Any) -> Json:
    """The template of a step, as the API server gets it."""
    model = step(*args, **options)._build_template()
    found: Json = model.model_dump(exclude_none=True, by_alias=True)
    return found


def manifest(made: Json, values: dict[str, str] | None = None) -> Json:
    """The manifest of a step after Argo has replaced its templates: the inputs are `values`."""

    def replaced(found: re.Match[str]) -> str:
        expression = json.loads(f'"{found.group(1)}"')  # as Argo reads it from the JSON of the template
        if expression == "pod.name":
            return "outer-train-123"
        if expression == "=sprig.lower(sprig.randAlphaNum(6))":
            return "x7k2qa"
        name = re.fullmatch(r"=replace\(toJson\(inputs\.parameters\.(\w+)\)\[1:-1\],'\{','\\\\u007b'\)", found.group(1))
        assert name is not None, found.group(0)
        return json.dumps((values or {})[name.group(1)])[1:-1].replace("{", "\\u007b")

    out: Json = json.loads(_TAG.sub(replaced, made["resource"]["manifest"]))
    return out


def variables(obj: Json) -> list[dict[str, str]]:
    return [
        {item["name"]: item["value"] for item in container.get("env", [])}
        for one in obj["spec"]["tasks"]
        for field in ("initContainers", "containers")
        for container in one["template"]["spec"].get(field, [])
    ]


def test_a_step_creates_a_dijob_waits_for_its_end_and_returns_its_name_and_result() -> None:
    made = built(job(task(), name="train"))
    resource = made["resource"]
    assert (made["name"], made["serviceAccountName"]) == ("train", keys.SUBMIT_ACCOUNT)
    assert (resource["successCondition"], resource["failureCondition"]) == (
        "status.phase == Succeeded", "status.phase == Failed",
    )  # fmt: skip
    assert resource["setOwnerReference"] is True
    assert made["metadata"]["labels"] == {keys.STEP: "true"}
    assert {p["name"]: p["valueFrom"]["jsonPath"] for p in made["outputs"]["parameters"]} == {
        "job": "{.metadata.name}", "result": "{.status.result}",
    }  # fmt: skip
    obj = manifest(made)
    assert obj["metadata"] == {"name": "train-x7k2qa", "annotations": {keys.WAITED_BY: "outer-train-123"}}
    del obj["metadata"]["annotations"]
    assert DIJob.from_manifest(obj).tasks == job(task(), name="train").tasks


def test_all_containers_get_the_parameters_which_replace_variables_of_the_job() -> None:
    one = task(container={"env": [{"name": "RATE", "value": "1"}, {"name": "KEPT", "value": "2"}]},
               initContainers=[{"name": "first", "image": "busybox"}])  # fmt: skip
    made = built(job(one, task("collector")), parameters={"RATE": "0.1", "DATA": None})
    assert made["inputs"]["parameters"] == [{"name": "RATE", "default": "0.1"}, {"name": "DATA"}]
    found = variables(manifest(made, {"RATE": "0.5", "DATA": "d"}))
    assert found == [
        {"RATE": "0.5", "DATA": "d"}, {"RATE": "0.5", "DATA": "d", "KEPT": "2"}, {"RATE": "0.5", "DATA": "d"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    "value", ['"}],"hostNetwork":true,"x":["', "{{workflow.name}}", "\\", "a\nb", "{{=1+1}}", "\u2028 é \x7f", "'"]
)
def test_the_value_of_a_parameter_is_text_whatever_it_contains(value: str) -> None:
    made = built(job(), parameters=["X"])
    assert variables(manifest(made, {"X": value})) == [{"X": value}]


@pytest.mark.parametrize("text", ["{{workflow.name}}", "{{=1+1}}", "{{{{x}}}}", '{"a":{"b":{}}}', "\\u007b{{", "}}"])
def test_the_text_of_the_job_reaches_its_containers_unchanged(text: str) -> None:
    given = job(task(command=text))
    made = built(given)
    assert "{{" not in _TAG.sub("", made["resource"]["manifest"])
    assert manifest(made)["spec"] == given.to_manifest()["spec"]


@pytest.mark.parametrize(
    ("given", "parameters", "path"),
    [
        ({"namespace": "other"}, (), "namespace"),
        ({}, ["a-b"], "parameters"),
        ({}, ["A}}{{B"], "parameters"),
        ({}, ["DI_RANK"], "parameters"),
        ({"name": "x" * 50}, (), "spec.tasks[0].name"),
    ],
)
def test_what_could_not_run_is_refused_when_the_step_is_made(given: Json, parameters: Any, path: str) -> None:
    with pytest.raises(InvalidError) as caught:
        step(job(**given), parameters=parameters)
    assert caught.value.path.startswith(path)


def test_a_step_is_called_in_a_dag_and_takes_the_options_of_hera() -> None:
    with Workflow(name="outer", entrypoint="main") as outer:
        train = step(job(name="train"), parameters=["X"], name="fit", active_deadline_seconds=60)
        with DAG(name="main"):
            train(name="again", arguments={"X": "1"})
    spec = outer.to_dict()["spec"]
    fit, main = spec["templates"]
    assert (fit["name"], fit["activeDeadlineSeconds"]) == ("fit", 60)
    assert main["dag"]["tasks"][0]["arguments"]["parameters"] == [{"name": "X", "value": "1"}]


def test_the_template_in_yaml_differs_from_a_step_only_in_its_inputs_and_its_manifest() -> None:
    (theirs,) = yaml.safe_load(template_yaml())["spec"]["templates"]
    ours = built(job(), name="dijob")
    for made in (theirs, ours):
        made.pop("inputs", None)
        assert keys.WAITED_BY in made["resource"].pop("manifest")
    assert theirs == ours


def test_the_account_of_steps_can_create_jobs_and_read_them_and_nothing_else() -> None:
    objects = list(yaml.safe_load_all((PIPELINES / "account.yaml").read_text()))
    (role,) = [obj for obj in objects if obj["kind"] == "Role"]
    granted = {(g, r, v) for x in role["rules"] for g in x["apiGroups"] for r in x["resources"] for v in x["verbs"]}
    assert granted == {
        ("argoproj.io", "workflowtaskresults", "create"),
        ("argoproj.io", "workflowtaskresults", "patch"),
        (keys.API_GROUP, "dijobs", "get"),
        (keys.API_GROUP, "dijobs", "create"),
    }
    named = yaml.safe_load((PIPELINES / "kustomization.yaml").read_text())["resources"]
    assert sorted(named) == sorted({path.name for path in PIPELINES.glob("*.yaml")} - {"kustomization.yaml"})

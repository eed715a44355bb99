"""The CRD is generated from the models. What a real API server does with it is in tests/e2e/test_crd.py."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml

from diflow import DIJob
from diflow.common import limits
from diflow.common.errors import InvalidError
from diflow.contrib.di_orchestrator import crd as of_v1alpha1
from diflow.contrib.di_orchestrator import manifest as old
from diflow.controller import crd as generator
from diflow.controller import schemas
from diflow.record.status.timeline import PHASES
from tests.builders import template
from tests.contrib.di_orchestrator import oldjobs
from tests.controller.refusals import NEW, dijob
from tests.workflows import golden
from tests.workflows.golden import jobs

Json = dict[str, Any]

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_ANNOTATIONS: Final = 262_144
"""Bytes that the annotations of an object may have. `kubectl apply` keeps the object in one of them."""
# What the schema does not say: CEL does, or the model alone.
IN_CEL = {what for what, _, _ in NEW} - {
    "no task", "too many tasks", "no replicas", "another type", "another priority", "another action", "a large code",
    "another condition",
}  # fmt: skip


@cache
def crd() -> Json:
    """What is generated, once for all tests, which do not change it."""
    return generator.crd()


def version(name: str = "v2alpha1") -> Json:
    found: Json = next(one for one in crd()["spec"]["versions"] if one["name"] == name)
    return found


def schema(name: str = "v2alpha1") -> Json:
    found: Json = version(name)["schema"]["openAPIV3Schema"]
    return found


def fields(at: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    """All schemas inside a schema, with their paths."""
    yield path, at
    for name, inner in at.get("properties", {}).items():
        yield from fields(inner, f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        if name in at:
            yield from fields(at[name], f"{path}[]")


def test_the_file_is_what_is_generated() -> None:
    for path, text in golden.crds().items():
        assert path.read_text(encoding="utf-8") == text, "run `make golden`"


def test_it_is_stored_and_served_with_a_status_and_the_columns_of_di_orchestrator() -> None:
    made = version()
    assert (made["name"], made["served"], made["storage"]) == ("v2alpha1", True, True)
    assert made["subresources"] == {"status": {}}
    assert [column["name"] for column in made["additionalPrinterColumns"]] == [
        "Phase", "ReadyReplicas", "Replicas", "Restarts", "Reschedules", "Age", "Healthy", "Message",
    ]  # fmt: skip
    assert crd()["spec"]["names"]["shortNames"] == ["dijob"]
    assert crd()["metadata"]["name"] == "dijobs.diengine.opendilab.org"


@pytest.mark.parametrize("path", golden.crds(), ids=lambda path: path.stem)
def test_plain_kubectl_apply_takes_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    made = yaml.safe_load(text)
    assert made in (crd(), of_v1alpha1.aggregator())
    # As Go writes it, with escapes for the comparisons in the rules.
    kept = re.sub("[<>&]", r"\\u0000", json.dumps(made, separators=(",", ":"), ensure_ascii=False))
    assert len(kept.encode()) < 0.9 * _ANNOTATIONS
    assert len(text.encode()) < 250_000


def test_no_list_of_objects_is_without_a_bound() -> None:
    """40,000 empty tolerations, of 117 kB, would be megabytes of Python's objects."""

    def lists(schema: Any) -> Iterator[Json]:
        for value in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
            yield from lists(value)
        if isinstance(schema, dict) and schema.get("type") == "array":
            yield schema

    found = [one for one in lists(crd()) if one["items"].get("type") == "object"]
    assert len(found) > 100
    assert all(0 < one["maxItems"] <= 4096 for one in found)


def test_v1alpha1_is_served_and_each_version_keeps_the_fields_of_the_other() -> None:
    old = version("v1alpha1")
    assert (old["served"], old["storage"], old["subresources"]) == (True, False, {"status": {}})
    fields_of = {name: set(schema(name)["properties"]["spec"]["properties"]) for name in ("v1alpha1", "v2alpha1")}
    assert fields_of["v1alpha1"] == fields_of["v2alpha1"]
    assert schema("v1alpha1")["properties"]["status"] == schema()["properties"]["status"]


def test_fields_of_v2alpha1_have_their_types_in_both_versions() -> None:
    """Its rules read them when the status is written, and fail on another type: the job would have no status."""
    old, new = (schema(name)["properties"]["spec"]["properties"] for name in ("v1alpha1", "v2alpha1"))
    for field in set(new) - {*of_v1alpha1.MODULES, "cleanPodPolicy", "volumes", "group", "priorityClassName"}:
        assert old[field] == {name: value for name, value in new[field].items() if name != "default"}, field


def test_jobs_with_a_coordinator_are_valid_in_both_versions() -> None:
    made = oldjobs.manifest()
    for name in ("v1alpha1", "v2alpha1"):
        jsonschema.Draft7Validator(closed(schema(name)["properties"]["spec"])).validate(made["spec"])
    spec = schema("v1alpha1")["properties"]["spec"]["properties"]
    assert {path for path, _ in fields(spec["coordinator"])} >= {".template.spec.containers[].resources.limits[]"}
    assert spec["cleanPodPolicy"]["default"] == "Running"


@pytest.mark.parametrize("module", of_v1alpha1.MODULES)
def test_what_has_no_types_in_a_job_with_a_coordinator_is_checked_by_the_controller(module: str) -> None:
    """Its three pod templates would make the schema too large for `kubectl apply`."""
    found = schema("v1alpha1")["properties"]["spec"]["properties"][module]
    untyped = {path.rpartition(".")[2] for path, field in fields(found) if field == schemas.KEPT}
    assert untyped == {"nodeAffinity", "podAffinity", "podAntiAffinity", "postStart", "preStop"}
    for name in untyped:
        is_affinity = name.endswith("Affinity")
        path = f"affinity.{name}" if is_affinity else f"containers[0].lifecycle.{name}"
        wrong: Json = {"affinity": {name: {_REQUIRED: 1}}} if is_affinity else {"container": {"lifecycle": {name: 1}}}
        given: Json = {module: {"template": template(**wrong)}}
        with pytest.raises(InvalidError) as caught:
            old.job_of(oldjobs.manifest(**given))
        assert caught.value.path.startswith(f"spec.{module}.template.spec.{path}")


def test_an_aggregator_config_has_a_pod_template() -> None:
    made = of_v1alpha1.aggregator()
    assert made["metadata"]["name"] == "aggregatorconfigs.diengine.opendilab.org"
    assert made["spec"]["names"]["shortNames"] == ["agconfig"]
    inside = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    jsonschema.Draft7Validator(closed(inside)).validate({"aggregator": {"template": template()}})


def test_each_field_has_a_type_and_no_reference_is_left() -> None:
    for path, field in (*fields(schema()), *fields(schema("v1alpha1"))):
        is_anything = path in (".spec.nodeCheck", ".spec.monitor") and field.get("x-kubernetes-preserve-unknown-fields")
        assert "type" in field or field.get("x-kubernetes-int-or-string") or is_anything, path
        assert not {"$ref", "title", "anyOf"} & field.keys() or field.get("x-kubernetes-int-or-string"), path
        assert "default" not in field or path.startswith(".spec"), path


@pytest.mark.parametrize("name", ["v2alpha1", "v1alpha1"])
def test_kubectl_explains_each_field_of_a_job_that_is_not_of_kubernetes(name: str) -> None:
    def unexplained(at: Json, path: str) -> Iterator[str]:
        for field, inner in at.get("properties", {}).items():
            here = f"{path}.{field}"
            if not inner.get("description") and inner.get("x-kubernetes-preserve-unknown-fields") is None:
                yield here
            if field not in ("template", "volumes"):
                yield from unexplained(inner.get("items", inner), here)

    found = set(unexplained(schema(name)["properties"]["spec"], "spec"))
    assert found == set()
    assert all(schema(name)["properties"][part].get("description") for part in ("spec", "status"))


def test_a_template_has_the_fields_of_a_pod_without_their_descriptions() -> None:
    found = schema()["properties"]["spec"]["properties"]["tasks"]["items"]["properties"]["template"]
    paths = {path for path, _ in fields(found)}
    assert ".spec.containers[].resources.limits[]" in paths
    assert ".spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[]" in paths
    assert ".metadata.annotations[]" in paths
    assert [path for path, field in fields(found) if "description" in field] == [""]
    port = next(field for path, field in fields(found) if path.endswith(".livenessProbe.httpGet.port"))
    assert port["x-kubernetes-int-or-string"] is True


def test_the_defaults_are_those_of_the_model() -> None:
    spec = schema()["properties"]["spec"]["properties"]
    found = {name: field["default"] for name, field in spec.items() if "default" in field}
    job = DIJob(name="job", tasks=({"type": "learner", "template": _template()},))
    assert found == {
        "priority": job.priority,
        "preemptible": job.preemptible,
        "backoffLimit": job.backoff_limit,
        "cleanPodPolicy": job.clean_pod_policy,
        "suspend": job.suspend,
    }
    task = spec["tasks"]["items"]["properties"]
    assert (task["type"]["default"], task["replicas"]["default"]) == ("none", 1)
    assert spec["tasks"]["maxItems"] == limits.MOST_TASKS


def test_the_phases_are_those_of_the_status() -> None:
    assert schema()["properties"]["status"]["properties"]["phase"]["enum"] == [*PHASES, "Created"]


@pytest.mark.parametrize("path", jobs(), ids=lambda path: path.parent.name)
def test_the_examples_are_valid_and_nothing_of_them_is_dropped(path: Any) -> None:
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    jsonschema.Draft7Validator(closed(schema()["properties"]["spec"])).validate(found["spec"])


@pytest.mark.parametrize(("what", "given", "_text"), NEW, ids=[what for what, _, _ in NEW])
def test_what_the_crd_refuses_the_model_refuses_too(what: str, given: Json, _text: str) -> None:
    made = dijob("job", given)
    with pytest.raises(InvalidError):
        DIJob.from_manifest(made)
    is_valid = jsonschema.Draft7Validator(schema()).is_valid(made)
    assert is_valid is (what in IN_CEL)


def closed(at: Any) -> Any:
    """The schema without unknown fields, as in the API server's strict validation."""
    if isinstance(at, list):
        return [closed(item) for item in at]
    if not isinstance(at, dict):
        return at
    if at.get("x-kubernetes-preserve-unknown-fields"):
        return at
    out = {key: closed(value) for key, value in at.items()}
    if at.get("type") == "object" and isinstance(at.get("properties"), dict):
        out["additionalProperties"] = False
    return out


def _template() -> Json:
    found: Json = dijob("job", {"tasks": [{"type": "learner"}]})["spec"]["tasks"][0]["template"]
    return found


def test_it_has_every_field_of_the_models() -> None:
    spec = schema()["properties"]["spec"]["properties"]
    own = DIJob.model_json_schema(by_alias=True)
    # The name and the namespace of a job are the object's.
    assert set(spec) >= set(own["properties"]) - {"name", "namespace", "annotations", "labels"}
    assert set(spec["tasks"]["items"]["properties"]) >= set(own["$defs"]["Task"]["properties"])

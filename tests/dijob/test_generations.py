"""Manifests of DI-orchestrator v1.0, with one template, are jobs of one task."""

from __future__ import annotations

from typing import Any

import pytest

from diflow import DIJob
from diflow.common import keys
from diflow.common.errors import InvalidError
from tests.builders import template

Json = dict[str, Any]


def manifest(**spec: Any) -> Json:
    body = {"group": "team", "priority": "high", "template": template(), **spec}
    return {"apiVersion": keys.API_VERSION, "kind": keys.KIND, "metadata": {"name": "old"}, "spec": body}


@pytest.mark.parametrize(
    ("spec", "replicas"),
    [
        ({}, (1, 1, None)),
        ({"minReplicas": 0, "maxReplicas": 4}, (1, 1, 4)),
        ({"minReplicas": 2, "maxReplicas": 4, "preemptible": True}, (2, 2, 4)),
        ({"engineFields": {"topology": "mesh", "parallelWorkers": 2}}, (1, 1, None)),
        ({"engineFields": None}, (1, 1, None)),
    ],
)
def test_one_template_is_one_task(spec: Json, replicas: tuple[int, int, int | None]) -> None:
    made = DIJob.from_manifest(manifest(**spec))
    (task,) = made.tasks
    assert (task.name, task.type, made.priority) == ("worker", "none", "high")
    assert (task.replicas, task.min_replicas, task.max_replicas) == replicas
    assert DIJob.from_manifest(made.to_manifest()) == made


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"minReplicas": 5, "maxReplicas": 4}, "spec.tasks[0]"),
        ({"minReplicas": "2"}, "spec.tasks[0]"),
        ({"engineFields": 7}, "spec.engineFields"),
        ({"engineFields": {"topology": "ring"}}, "spec.engineFields.topology"),
        ({"engineFields": {"topology": []}}, "spec.engineFields.topology"),
        ({"engineFields": {"parallelWorkers": 0}}, "spec.engineFields.parallelWorkers"),
        ({"engineFields": {"parallelWorkers": 10**9}}, "spec.engineFields.parallelWorkers"),
        ({"engineFields": {"parallelWorkers": True}}, "spec.engineFields.parallelWorkers"),
        ({"engineFields": {"topology": "mesh", "parallelWorkers": 128}, "maxReplicas": 1000}, "spec.tasks"),
        ({"template": {"spec": {}}}, "spec.tasks[0].template.spec.containers"),
    ],
)
def test_what_cannot_run_is_refused_with_its_path(spec: Json, path: str) -> None:
    with pytest.raises(InvalidError) as caught:
        DIJob.from_manifest(manifest(**spec))
    assert caught.value.path.startswith(path)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (None, "star/1"),
        ({}, "star/1"),
        ({"parallelWorkers": 2}, "star/2"),
        ({"topology": "mesh"}, "mesh/1"),
        ({"topology": "alone", "parallelWorkers": 128}, "alone/128"),
    ],
)
def test_the_fields_of_its_engine_are_an_annotation(fields: Json | None, text: str) -> None:
    body = manifest(**({} if fields is None else {"engineFields": fields}))
    assert DIJob.from_manifest(body).annotations == {keys.DITASK: text}
    body["metadata"]["annotations"] = {"team": "a", keys.DITASK: "alone/1"}
    assert DIJob.from_manifest(body).annotations == {"team": "a", keys.DITASK: text}


@pytest.mark.parametrize("text", ["", "star", "star/", "ring/1", "star/0", "star/129", "star/-1", "star/1/1", "mesh/²"])
def test_another_annotation_is_refused(text: str) -> None:
    body = manifest()
    body["spec"] = {"tasks": [{"name": "worker", "template": template()}]}
    body["metadata"]["annotations"] = {keys.DITASK: text}
    with pytest.raises(InvalidError, match="a topology"):
        DIJob.from_manifest(body)


def test_the_annotation_is_for_jobs_of_one_task() -> None:
    body = manifest()
    body["spec"] = {"tasks": [{"name": name, "template": template()} for name in ("a", "b")]}
    body["metadata"]["annotations"] = {keys.DITASK: "star/1"}
    with pytest.raises(InvalidError, match="one task"):
        DIJob.from_manifest(body)


@pytest.mark.parametrize("metadata", [None, [], "x", {"name": "a", "annotations": 7}])
def test_metadata_that_is_none_is_refused_as_always(metadata: Any) -> None:
    with pytest.raises(InvalidError):
        DIJob.from_manifest({**manifest(), "metadata": metadata})

"""Manifests of DI-orchestrator v1.0, with one template, are jobs of one task."""

from __future__ import annotations

from typing import Any

import pytest

from diflow import DIJob, keys
from diflow.errors import InvalidError
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
        ({"template": {"spec": {}}}, "spec.tasks[0].template.spec.containers"),
    ],
)
def test_what_cannot_run_is_refused_with_its_path(spec: Json, path: str) -> None:
    with pytest.raises(InvalidError) as caught:
        DIJob.from_manifest(manifest(**spec))
    assert caught.value.path.startswith(path)

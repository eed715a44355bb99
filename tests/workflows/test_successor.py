"""The next Workflow of a job, as a copy of the one before. tests/allocator/engine/test_successor.py has its life."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import yaml

from diflow import DIJob, Task, keys
from diflow.errors import InvalidError
from diflow.state.roster import service_of
from diflow.workflows import render
from diflow.workflows.successor import successor
from diflow.yamltext import dump_yaml


def rendered() -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "di-container", "image": "x", "command": ["x"]}]}}
    body = render(DIJob(name="long", namespace="default", tasks=(Task(name="worker", template=template),)))
    return {**body, "metadata": {**body["metadata"], "uid": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}}


def test_the_next_part_finds_its_hosts_by_the_service_of_the_namespace() -> None:
    made = successor(rendered(), name="long-s2", parameters={}, annotations={})
    assert service_of(made) == "di"
    assert '"DI_JOB_ID","value":"{{workflow.namespace}}/long"' in made["spec"]["podSpecPatch"]


def test_the_next_part_of_a_workflow_from_before_selects_its_own_pods_by_its_own_service() -> None:
    workflow, own = rendered(), {keys.JOB: "{{workflow.name}}"}
    old = {"metadata": {"labels": own}, "spec": {"selector": own}}
    workflow["spec"]["templates"].append({"name": "make-service", "resource": {"manifest": dump_yaml(old)}})
    made = successor(workflow, name="long-s2", parameters={}, annotations={})
    service = yaml.safe_load(made["spec"]["templates"][-1]["resource"]["manifest"])
    assert service["metadata"]["labels"] == {keys.JOB: "long"}
    assert service["spec"]["selector"] == {keys.JOB: "long", "workflows.argoproj.io/workflow": "{{workflow.name}}"}
    assert service_of(made) == "di-long-s2"


def bomb() -> str:
    """YAML of ten lines, whose aliases stand for a hundred million values."""
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"{after}: &{after} [{', '.join([f'*{before}'] * 10)}]" for before, after in pairwise("abcdefgh")]
    return "\n".join([*lines, "metadata: {labels: {}}", "spec: {}"])


@pytest.mark.parametrize("manifest", [bomb(), "[" * 3000, "a: b: c", "", "---\na: 1\n---\nb: 2\n"])
def test_a_service_that_a_user_has_edited_stops_the_continuation_and_nothing_else(manifest: str) -> None:
    workflow = rendered()
    workflow["spec"]["templates"].append({"name": "make-service", "resource": {"manifest": manifest}})
    with pytest.raises(InvalidError, match="cannot be continued"):
        successor(workflow, name="long-s2", parameters={}, annotations={})

"""Every golden Workflow is one that Argo accepts: its own linter, and the schema of its full CRD."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.clusters import TestCluster
from tests.workflows.golden import golden_of, jobs

GOLDEN = [golden_of(path) for path in jobs()]


def closed(schema: Any) -> Any:
    """The schema without unknown fields, as in the API server's strict validation."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: closed(value) for key, value in schema.items()}
    open_ended = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if schema.get("type") == "object" and "properties" in schema and not open_ended:
        out["additionalProperties"] = False
    if schema.get("x-kubernetes-int-or-string"):
        out.pop("type", None)
    return out


@pytest.fixture(scope="module")
def validator(argo40: TestCluster) -> jsonschema.Draft7Validator:
    version = argo40.get("CustomResourceDefinition", "workflows.argoproj.io")["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    assert "properties" in schema["properties"]["spec"], "the full CRD is installed, not the minimal one"
    spec = closed(schema["properties"]["spec"])
    return jsonschema.Draft7Validator(spec)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.parent.name)
def test_the_full_crd_accepts_it(validator: jsonschema.Draft7Validator, path: Path) -> None:
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    problems = [f"{'.'.join(map(str, e.path))}: {e.message}" for e in validator.iter_errors(workflow["spec"])]
    assert problems == []


def test_the_check_can_fail(validator: jsonschema.Draft7Validator) -> None:
    workflow = yaml.safe_load(GOLDEN[0].read_text(encoding="utf-8"))
    workflow["spec"]["templates"][0]["daag"] = {}
    workflow["spec"]["entrypoint"] = 3
    assert len(list(validator.iter_errors(workflow["spec"]))) == 2


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.parent.name)
def test_argo_lint_accepts_it_strictly(argo40: TestCluster, path: Path) -> None:
    assert "no linting errors" in argo40.run("argo", "lint", "--offline", "--strict", str(path))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.parent.name)
def test_the_older_argo_accepts_it_too(argo37: TestCluster, path: Path) -> None:
    assert "no linting errors" in argo37.run("argo", "lint", "--offline", "--strict", str(path))

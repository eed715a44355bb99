"""Every job under examples/ has its Workflow beside it, byte for byte: a change of the rendering is a change on review.

`python -m tests.workflows.golden` (or `make golden`) regenerates them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from diflow import DIJob
from diflow.dijob.model import Health, Monitor, NodeCheck, Task, Topology
from diflow.workflows import to_yaml
from tests.workflows import tables
from tests.workflows.golden import PIPELINE, REOPTIMISE, STEP, golden_of, jobs, pipeline, reoptimise, template

JOBS = jobs()


def test_there_are_examples() -> None:
    assert len(JOBS) >= 4


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.parent.name)
def test_the_workflow_of_an_example_is_its_golden_file(path: Path) -> None:
    assert to_yaml(DIJob.from_yaml(path)) == golden_of(path).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.parent.name)
def test_an_example_comes_back_from_its_own_manifest(path: Path) -> None:
    job = DIJob.from_yaml(path)
    assert DIJob.from_yaml(job.to_yaml()) == job


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.parent.name)
def test_every_parameter_of_a_workflow_is_text(path: Path) -> None:
    workflow = yaml.safe_load(golden_of(path).read_text(encoding="utf-8"))
    assert all(isinstance(item["value"], str) for item in workflow["spec"]["arguments"]["parameters"])


def test_the_manifest_of_the_re_optimisation_is_what_the_command_prints() -> None:
    assert REOPTIMISE.read_text(encoding="utf-8") == reoptimise()


def test_the_template_of_steps_is_what_the_code_makes() -> None:
    assert STEP.read_text(encoding="utf-8") == template()


def test_the_pipeline_in_yaml_is_that_in_python() -> None:
    assert PIPELINE.read_text(encoding="utf-8") == pipeline()


@pytest.mark.parametrize("path", tables.pages(), ids=lambda path: path.name)
def test_the_tables_of_fields_are_what_the_models_say(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == tables.pages()[path], "run `make golden`"
    assert "<!-- end of fields -->" in tables.pages()[path]


@pytest.mark.parametrize("model", [DIJob, Task, Topology, NodeCheck, Monitor, Health], ids=lambda model: model.__name__)
def test_each_field_describes_itself(model: type[BaseModel]) -> None:
    assert [name for name, field in model.model_fields.items() if not field.description] == []
    text = "".join(tables.pages().values())
    assert all(f".{field.alias}`" in text or f"`{field.alias}`" in text for field in model.model_fields.values())

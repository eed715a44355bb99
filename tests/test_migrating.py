"""docs/migrating.md: its DIJobs are valid and become Workflows, and do what the manifests beside them do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from diflow import DIJob
from diflow.common import keys
from diflow.workflows import render
from tests.cli.runner import run

Json = dict[str, Any]
TEXT = (Path(__file__).parents[1] / "docs" / "migrating.md").read_text(encoding="utf-8")
SECTIONS = {
    text.partition("\n")[0]: [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    for text in TEXT.split("\n## ")[1:]
}
PAIRS = {name: (found[0], found[-1]) for name, found in SECTIONS.items() if found}


def containers(manifest: Json) -> list[Json]:
    """All containers of a manifest, in order."""
    if isinstance(manifest, list):
        return [container for item in manifest for container in containers(item)]
    if not isinstance(manifest, dict):
        return []
    own = manifest.get("containers", [])
    return [*own, *(c for key, value in manifest.items() if key != "containers" for c in containers(value))]


def test_each_origin_has_a_section() -> None:
    assert list(PAIRS) == [
        "From DI-orchestrator v1.1", "From DI-orchestrator v1.0", "From DI-orchestrator v0.x", "From AdaptDL",
        "From a PyTorchJob of Kubeflow", "From a TrainJob of Kubeflow",
    ]  # fmt: skip


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", PAIRS)
def test_the_dijob_becomes_a_workflow_without_a_warning(name: str) -> None:
    job = DIJob.from_manifest(PAIRS[name][1])
    workflow = render(job)
    assert {task.name for task in job.tasks} <= {template["name"] for template in workflow["spec"]["templates"]}


@pytest.mark.parametrize("name", [name for name in PAIRS if "TrainJob" not in name])  # it has no pod template
def test_the_dijob_runs_the_same_programs_under_the_same_name(name: str) -> None:
    before, after = PAIRS[name]
    assert before["metadata"]["name"] == after["metadata"]["name"]
    assert after["apiVersion"] == keys.API_VERSION
    parts = ("image", "command", "env", "resources", "volumeMounts")
    ours, theirs = ([{part: c.get(part) for part in parts} for c in containers(m)] for m in (after, before))
    assert ours == theirs


@pytest.mark.parametrize("name", [name for name in PAIRS if "Kubeflow" in name])
def test_convert_makes_the_dijob_that_the_page_has(name: str, tmp_path: Path) -> None:
    before, after = PAIRS[name]
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(before))
    made = yaml.safe_load(run("convert", str(file)).out)
    ours, theirs = (DIJob.from_manifest(one).to_manifest() for one in (made, after))
    for manifest in (ours, theirs):  # the page names the container of the work
        manifest["spec"]["tasks"][0]["template"]["spec"]["containers"][0].pop("name")
    assert ours == theirs

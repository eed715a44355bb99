"""GitHub's workflows: every target of make that they name exists, and they have no more permissions than they need."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
each_workflow = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def load(path: Path) -> dict[str, Any]:
    # BaseLoader: YAML 1.1 reads the key `on` as true.
    found: dict[str, Any] = yaml.load(path.read_text(), Loader=yaml.BaseLoader)
    return found


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def made(workflow: dict[str, Any]) -> set[str]:
    return {target for step in steps(workflow) for target in re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))}


def test_a_pull_request_runs_the_checks_the_unit_tests_and_the_audit() -> None:
    workflow = load(ROOT / ".github" / "workflows" / "pull-request.yml")
    assert "pull_request" in workflow["on"]
    assert made(workflow) == {"lint", "unit", "slow", "audit"}


def test_a_tag_makes_a_release_and_publishes_what_was_made() -> None:
    workflow = load(ROOT / ".github" / "workflows" / "release.yml")
    assert workflow["on"] == {"push": {"tags": ["v*"]}}
    assert {"release", "unit", "slow", "audit"} <= made(workflow)
    assert "gh release create" in workflow["jobs"]["publish"]["steps"][-1]["run"]


@each_workflow
def test_every_target_that_a_workflow_names_is_in_the_makefile(path: Path) -> None:
    assert made(load(path))
    assert made(load(path)) <= TARGETS


@each_workflow
def test_every_action_is_pinned_to_a_version(path: Path) -> None:
    used = [step["uses"] for step in steps(load(path)) if "uses" in step]
    assert used
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+\.\d+\.\d+", action) for action in used)


@each_workflow
def test_a_workflow_may_read_alone_and_one_job_that_runs_nothing_of_the_checkout_may_write(path: Path) -> None:
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        if "permissions" in job:
            assert job["permissions"] == {"contents": "write"}
            assert not any("checkout" in step.get("uses", "") or "make" in step.get("run", "") for step in job["steps"])


@each_workflow
def test_every_job_ends_in_time_and_two_runs_of_one_branch_do_not_race(path: Path) -> None:
    workflow = load(path)
    assert "github.ref" in workflow["concurrency"]["group"]
    assert all(0 < int(job["timeout-minutes"]) <= 60 for job in workflow["jobs"].values())


@each_workflow
def test_nothing_from_outside_is_put_into_a_command(path: Path) -> None:
    assert not [step["run"] for step in steps(load(path)) if "${{" in step.get("run", "")]

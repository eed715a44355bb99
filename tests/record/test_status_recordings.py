"""The status of jobs that ran on a real cluster, from what was recorded there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diflow.record.status.status import derive
from tests.record.seen import phases

_FOLDER = Path(__file__).parents[1] / "data" / "recordings"


def recording(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize(
    ("name", "ending", "counts", "expected"),
    [
        ("succeeded", ("Succeeded", "the job succeeded"), (0, 0), ["Pending", "Starting", "Running", "Succeeded"]),
        (
            "failed-at-once",
            ("Failed", "collector-1 failed: Error (exit code 7); backoffLimit 0 allows no restart"),
            (0, 0),
            ["Pending", "Starting", "Running", "Failed"],
        ),
        (
            "preemptible-used-up",
            ("Failed", "collector-1 failed: Error (exit code 7), after the whole job was restarted 2 times"),
            (2, 0),
            ["Pending", "Starting", "Restarting", "Running", "Failed"],
        ),
        (
            "retried-and-failed",
            ("Failed", "collector-0 failed: Error (exit code 3), after 1 restart"),
            (1, 0),
            ["Pending", "Starting", "Restarting", "Running", "Failed"],
        ),
        (
            "pods-deleted-and-killed",
            ("Succeeded", "the job succeeded"),
            (0, 3),
            ["Pending", "Starting", "Rescheduling", "Running", "Succeeded"],
        ),
    ],
)
def test_a_recorded_job_has_the_status_that_it_had(
    name: str, ending: tuple[str, str], counts: tuple[int, int], expected: list[str]
) -> None:
    found = recording(name)
    status = derive(found["workflow"], found["pods"])
    assert (status.phase, status.message) == ending
    assert (status.restarts, status.reschedules) == counts
    assert phases(status) == expected


@pytest.mark.parametrize("path", sorted(_FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_the_workflow_alone_gives_the_same_end(path: Path) -> None:
    found = json.loads(path.read_text(encoding="utf-8"))
    alone, whole = derive(found["workflow"]), derive(found["workflow"], found["pods"])
    assert (alone.phase, alone.message, alone.restarts, alone.reschedules) == (
        whole.phase, whole.message, whole.restarts, whole.reschedules,
    )  # fmt: skip

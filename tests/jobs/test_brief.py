"""A long list reads only the metadata of jobs that have ended, and shows the same values where metadata has them."""

from __future__ import annotations

from typing import Any

import pytest

from diflow.jobs import lookup
from diflow.kube.kinds import WORKFLOW, Kind
from diflow.record.status import status
from diflow.workflows import render
from tests.builders import job, task


class Recorder:
    """A cluster of finished and running Workflows that records the requests."""

    namespace = "default"

    def __init__(self, ended: int, running: int) -> None:
        self.asked: list[tuple[str, bool]] = []
        self.items = [workflow(i, "Succeeded") for i in range(ended)]
        self.items += [workflow(i, "Running") for i in range(ended, ended + running)]

    def list_all(self, kind: Kind, *, labels: str, metadata_only: bool = False, **_: Any) -> list[dict[str, Any]]:
        if kind is not WORKFLOW:
            return []
        self.asked.append((labels, metadata_only))
        chosen = self.items
        if "completed!=true" in labels:
            chosen = [
                item for item in chosen if item["metadata"]["labels"].get("workflows.argoproj.io/completed") != "true"
            ]
        return [{"metadata": item["metadata"]} for item in chosen] if metadata_only else chosen


def workflow(index: int, phase: str) -> dict[str, Any]:
    made = render(job(task("learner"), task("collector", replicas=2), name=f"job-{index}"))
    labels = {"workflows.argoproj.io/phase": phase}
    if phase != "Running":
        labels["workflows.argoproj.io/completed"] = "true"
    made["metadata"]["labels"] |= labels
    made["metadata"] |= {"uid": f"u{index}", "creationTimestamp": f"2026-01-01T00:{index // 60:02}:{index % 60:02}Z"}
    made["status"] = {
        "phase": phase,
        "nodes": {},
        "startedAt": "2026-01-01T00:00:00Z",
        "finishedAt": "2026-01-01T00:00:09Z",
    }
    return made


def test_a_long_list_reads_whole_only_what_may_still_run() -> None:
    cluster: Any = Recorder(ended=300, running=3)
    found = lookup.list_jobs(brief=True, cluster=cluster)
    assert len(found) == 303
    assert [job.name for job in found[:4]] == ["job-302", "job-301", "job-300", "job-299"]
    whole = [job for job in found if "spec" in job.workflow]
    assert {job.name for job in whole} == {"job-300", "job-301", "job-302"}
    assert cluster.asked[0][1] is True
    assert "completed!=true" in cluster.asked[1][0]


def test_a_short_list_reads_everything() -> None:
    cluster: Any = Recorder(ended=5, running=1)
    found = lookup.list_jobs(brief=True, cluster=cluster)
    assert all("spec" in job.workflow for job in found)


def test_what_the_metadata_says_is_what_the_whole_says() -> None:
    item = workflow(1, "Succeeded")
    brief, whole = status.derive_ended({"metadata": item["metadata"]}), status.derive(item)
    assert brief is not None
    assert (brief.phase, brief.replicas, brief.ready_replicas) == (whole.phase, whole.replicas, whole.ready_replicas)
    assert (brief.restarts, brief.reschedules) == (None, None)


@pytest.mark.parametrize("phase", ["Failed", "Error"])
def test_argos_failures_are_failures(phase: str) -> None:
    found = status.derive_ended(workflow(1, phase))
    assert found is not None
    assert found.phase == "Failed"


def test_a_job_that_may_still_run_is_not_judged_by_its_labels() -> None:
    assert status.derive_ended(workflow(1, "Running")) is None


def test_a_manifest_that_cannot_be_read_counts_no_replicas() -> None:
    item = workflow(1, "Succeeded")
    item["metadata"]["annotations"]["diflow/dijob"] = "{"
    found = status.derive_ended(item)
    assert found is not None
    assert found.replicas == 0

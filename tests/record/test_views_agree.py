"""`diflow top`, the status page and `diflow explain` show the same of a job: granted, speed, restarts, waiting.

Each has a reader of its own, which keeps what it needs. They are held together on 10,000 random Workflows, as jobs of
all kinds leave them: rounds, grants, releases, allocations, reports, lost and failed pods, suspension, and now and then
a text that nobody should have written.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from diflow.allocator.inspect import explain, observer
from diflow.allocator.inspect.rows import JobRow, job_rows
from diflow.allocator.run.control_channel import AllocatorStatus
from diflow.allocator.settings import AllocatorSettings
from diflow.allocator.watch.cluster_state import assemble
from diflow.allocator.watch.records import planning_record_of
from diflow.record.node import node_record_of
from diflow.record.status.status import JobStatus, derive
from diflow.server.page.facts import JobFacts, trim_workflow
from diflow.workflows import render
from tests.allocator.lab import job, task

WORKFLOWS = 10_000
# The number of jobs in one cluster.
TOGETHER = 250
NOW = 1_800_000_000.0
NODES = ("a", "b", "c")
MESSAGES = (
    "main: Error (exit code 1)",
    "main: OOMKilled (exit code 137)",
    "Pod was evicted",
    "The node was low on resource: memory",
    "pod deleted",
    "",
)
REPORTS = ('{"speed": 2.5}', '{"0": {"speed": 1.0}, "1": {"speed": 3.0}}', '{"speed": "fast"}', "{}", "", "[1]", "{")


@pytest.mark.slow
def test_top_the_page_and_explain_show_the_same_of_ten_thousand_workflows() -> None:
    rng = random.Random(15)
    wrong = [
        f"{body['metadata']['name']}: {what}"
        for bodies in _together(_workflows(rng, WORKFLOWS))
        for body, what in _disagreements(bodies)
    ]
    assert wrong == []


def _together(bodies: Iterator[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], ...]]:
    while batch := tuple(itertools.islice(bodies, TOGETHER)):
        yield batch


def _disagreements(bodies: tuple[dict[str, Any], ...]) -> Iterator[tuple[dict[str, Any], str]]:
    reads = {read.identity.name: read for read in map(planning_record_of, bodies)}
    nodes = [node_record_of(_node(name)) for name in NODES]
    state = assemble([read for read in reads.values() if not read.has_ended], nodes, [])
    seen = observer.see(state, AllocatorStatus("diflow-system"), AllocatorSettings(namespace="diflow-system"), now=NOW)
    rows = {row.name: row for row in job_rows(seen)}
    for body in bodies:
        name = body["metadata"]["name"]
        page, status = trim_workflow(body), derive(body)
        assert page is not None
        if (page.restarts, page.reschedules) != (status.restarts or 0, status.reschedules or 0) and not page.problem:
            yield body, f"the page counts {page.restarts} restarts, describe {status.restarts}"
        if name in rows:
            for what in _differ(rows[name], page, status):
                yield body, what


def _differ(row: JobRow, page: JobFacts, status: JobStatus) -> Iterator[str]:
    if row.state == "held":
        if page.problem and row.why != page.problem:
            yield f"top says {row.why!r}, the page {page.problem!r}"
        return
    granted = sum(task.granted for task in page.tasks)
    if row.granted != granted:
        yield f"top shows {row.granted} granted, the page {granted}"
    if row.granted and row.granted != status.replicas:
        yield f"top shows {row.granted} granted, describe {status.replicas}"
    if row.speed != page.speed:
        yield f"top shows speed {row.speed}, the page {page.speed}"
    if (row.low, row.high, row.desired) != tuple(
        sum(getattr(task, what) for task in page.tasks) for what in ("low", "high", "desired")
    ):
        yield f"top shows {row.low}..{row.high} and {row.desired} desired, the page {page.tasks}"
    if row.is_waiting != page.waits:
        yield f"top shows {row.state}, the page {'waits' if page.waits else page.phase}"
    headline = explain.headline(row)
    said = f"has {row.granted} of" if row.granted else "waits for"
    if said not in headline:
        yield f"explain says {headline!r}"


def _workflows(rng: random.Random, count: int) -> Iterator[dict[str, Any]]:
    """So many Workflows of jobs under the allocator, each of another job."""
    kinds = [
        json.dumps(render(job("x", *tasks, preemptible=preemptible)))
        for preemptible in (True, False)
        for tasks in (
            [task("worker", replicas=1)],
            [task("worker", replicas=4, minReplicas=2, maxReplicas=6)],
            [task("learner"), task("collector", replicas=3)],
        )
    ]
    for number in range(count):
        yield _one(rng, json.loads(rng.choice(kinds)), f"j{number}")


def _one(rng: random.Random, body: dict[str, Any], name: str) -> dict[str, Any]:
    metadata = body["metadata"]
    metadata |= {
        "name": name,
        "namespace": "ns",
        "uid": f"uid-{name}",
        "resourceVersion": "5",
        "creationTimestamp": "2026-01-02T03:04:05Z",
    }
    values = {item["name"]: item for item in body["spec"]["arguments"]["parameters"]}
    replicas: dict[str, int] = json.loads(values["replicas"]["value"])
    rounds = [str(i + 1) for i in range(rng.choice((1, 1, 1, 2, 3)))]
    current = rounds[-1]
    granted = {r: {name: max(1, count + rng.choice((-1, 0, 0, 1))) for name, count in replicas.items()} for r in rounds}
    released = [f"{current}/{name}/{i}" for name, count in granted[current].items() for i in range(count)]
    edits: dict[str, Any] = {
        "rounds": rounds,
        "current": current,
        "granted": granted,
        "released": rng.sample(released, k=rng.choice((0, 0, 0, 1, len(released) - 1))),
        "replicas": {name: count + rng.choice((0, 0, 1)) for name, count in replicas.items()},
    }
    for key, value in edits.items():
        values[key]["value"] = value if isinstance(value, str) else json.dumps(value)
    values["profilings"]["value"] = rng.choice(REPORTS)
    if rng.random() < 0.03:
        values[rng.choice(("rounds", "granted", "released"))]["value"] = rng.choice(("[", "{}", "7", "null"))
    if rng.random() < 0.7:
        at = rng.choice((current, current, current, "9"))
        places = {name: [rng.choice(NODES) for _ in range(count)] for name, count in granted[current].items()}
        metadata["annotations"]["diflow/allocation"] = json.dumps(
            {"round": at, "nodes": places if rng.random() < 0.9 else {}, "since": NOW - 60, "first": NOW - 90}
        )
    if rng.random() < 0.5:
        metadata["annotations"]["diflow/decision"] = json.dumps(
            {
                "action": rng.choice(("admit", "keep", "wait")),
                "why": "it waits for capacity",
                "time": "2026-01-02T03:04:05Z",
            }
        )
    if rng.random() < 0.1:
        metadata["annotations"]["diflow/restarts-before"] = str(rng.randrange(4))
    if rng.random() < 0.1:
        body["spec"]["suspend"] = True
    if rng.random() < 0.05:
        body["spec"]["shutdown"] = rng.choice(("Stop", "Terminate"))
    body["status"] = {"phase": rng.choice(("Running", "Running", "Running", "Pending", "Succeeded", "Failed"))}
    body["status"]["startedAt"] = "2026-01-02T03:04:05Z"
    body["status"]["nodes"] = {node["id"]: node for node in _nodes(rng, name, rounds, granted)}
    return body


def _nodes(
    rng: random.Random, job_name: str, rounds: list[str], granted: dict[str, dict[str, int]]
) -> Iterator[dict[str, Any]]:
    """Attempts of some of the replicas, as Argo writes them."""
    for at, round_ in enumerate(rounds):
        yield _argos(f"{job_name}.round({at}:{round_})", "Retry", "Running", "")
        for name, count in granted[round_].items():
            for index in range(count):
                for attempt in range(rng.choice((0, 1, 1, 2))):
                    place = f"{job_name}.round({at}:{round_})({attempt}).{name}({index}:{index}).{name}(0)"
                    phase = rng.choice(("Running", "Pending", "Failed", "Error", "Succeeded"))
                    yield _argos(place, "Pod", phase, rng.choice(MESSAGES) if phase in ("Failed", "Error") else "")


def _argos(name: str, type_: str, phase: str, message: str) -> dict[str, Any]:
    ended = "2026-01-02T03:05:06Z" if phase in ("Failed", "Error", "Succeeded") else None
    return {
        "id": f"id-{name}", "name": name, "type": type_, "phase": phase, "message": message,
        "startedAt": "2026-01-02T03:04:06Z", "finishedAt": ended, "hostNodeName": "a",
    }  # fmt: skip


def _node(name: str) -> dict[str, Any]:
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {},
        "status": {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]},
    }

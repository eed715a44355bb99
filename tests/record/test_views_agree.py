"""All that shows a job shows the same of it: its stage, its sentence, granted replicas, speed, restarts, waiting.

Each has a reader of its own, which keeps what it needs. They are held together on 10,000 random Workflows, as jobs of
all kinds leave them: rounds, grants, releases, allocations, reports, lost and failed pods, suspension, stops and
deletions, and now and then a text that nobody should have written. `test_divergence.py` has the sentences themselves.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from diflow.allocator.inspect import explain, observer
from diflow.allocator.inspect.rows import PlanRow, job_rows
from diflow.allocator.run.control_channel import AllocatorStatus
from diflow.allocator.settings import AllocatorSettings
from diflow.allocator.watch.cluster_state import assemble
from diflow.allocator.watch.records import planning_record_of
from diflow.cli.views.description import description
from diflow.cli.views.jobs_table import jobs_table
from diflow.common import keys
from diflow.controller import statuses
from diflow.jobs.lookup import Job
from diflow.record.node import node_record_of
from diflow.record.pod import pod_record_of
from diflow.record.stage import Stage
from diflow.record.status.status import JobStatus, derive
from diflow.server.page import CacheSnapshot, Permissions
from diflow.server.page.board import Query, board
from diflow.server.page.facts import JobFacts
from diflow.workflows import render
from tests.allocator.lab import job, task
from tests.server.page_scene import trim_workflow

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
DECISIONS = {
    "admit": "starts: it gets 4 of the 4 replicas it asks for",
    "check": "its node check left out node a: product 0.9 s",
    "keep": "keeps what it holds: no change is worth its cost",
    "preempt": "gives way to ns/other, which has a higher priority",
    "stop": "it was not admitted within 60 s of its submission",
    "wait": "waits for capacity: its gang needs 4 replicas at once and 1 fits now",
}
IN_LIST = ("suspended", "held", "stopping", "deleting")


@pytest.mark.slow
def test_all_views_show_the_same_of_ten_thousand_workflows() -> None:
    rng = random.Random(15)
    stages: Counter[Stage] = Counter()
    wrong = [
        f"{body['metadata']['name']}: {what}"
        for bodies in _together(_workflows(rng, WORKFLOWS))
        for body, what in _disagreements(bodies, stages)
    ]
    assert wrong == []
    assert min(stages[stage] for stage in Stage) > WORKFLOWS / 200


def test_of_a_job_that_cannot_be_read_all_views_count_the_pods_that_are_bound() -> None:
    body = _one(random.Random(1), render(job("x", task("worker", replicas=2))), "broken")
    body["metadata"]["annotations"] = {keys.DIJOB: "["}
    body["spec"].pop("shutdown", None)
    places = [f"broken.round(0:1)(0).worker({i}:{i}).worker(0)" for i in (0, 1)]
    nodes = [_argos(places[0], "Pod", "Running", ""), _argos(places[1], "Pod", "Pending", "")]
    nodes[1]["hostNodeName"] = ""
    body["status"] = {"phase": "Running", "nodes": {node["id"]: node for node in nodes}}
    pods = list(_pods(body))
    pods[1]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "b"}  # admitted, and kube-scheduler has not looked yet
    state = assemble([planning_record_of(body)], [node_record_of(_node(n)) for n in NODES], map(pod_record_of, pods))
    seen = observer.see(state, AllocatorStatus("diflow-system"), AllocatorSettings(namespace="diflow-system"), now=NOW)
    (row,) = job_rows(seen)
    assert (row.granted, row.ready) == (derive(body, pods).replicas, derive(body, pods).ready_replicas) == (1, 1)


def _together(bodies: Iterator[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], ...]]:
    while batch := tuple(itertools.islice(bodies, TOGETHER)):
        yield batch


def _disagreements(bodies: tuple[dict[str, Any], ...], stages: Counter[Stage]) -> Iterator[tuple[dict[str, Any], str]]:
    reads = {read.identity.name: read for read in map(planning_record_of, bodies)}
    nodes = [node_record_of(_node(name)) for name in NODES]
    pods = [pod_record_of(pod) for body in bodies for pod in _pods(body)]
    state = assemble([read for read in reads.values() if not read.has_ended], nodes, pods)
    seen = observer.see(state, AllocatorStatus("diflow-system"), AllocatorSettings(namespace="diflow-system"), now=NOW)
    rows = {row.name: row for row in job_rows(seen)}
    for body in bodies:
        row, page, status = rows.get(body["metadata"]["name"]), trim_workflow(body), derive(body)
        assert page is not None
        assert status.stage is not None
        stages[status.stage] += 1
        if (row is None) != (status.stage in (Stage.ENDED, Stage.SUPERSEDED)):
            yield body, f"describe says that it is {status.stage.value}, and top {'knows' if row else 'knows no'} job"
        for what in (*_say(body, row, page, status), *(_differ(row, page, status) if row else ())):
            yield body, what


def _say(body: dict[str, Any], row: PlanRow | None, page: JobFacts, status: JobStatus) -> Iterator[str]:
    """Whether all say the same."""
    one = Job(body, (), status)
    (line,) = board(CacheSnapshot(jobs=[page]), Permissions(None), Query()).jobs
    listed = re.split(r" {2,}", jobs_table([one], now=_now(), wide=True).splitlines()[1])
    described = re.search("^Message: +(.*)$", description(one, [], [], now=_now()), re.MULTILINE)
    assert described is not None
    sentences = {
        "describe": described[1],
        "list": listed[-1],
        "the page": line.said,
        "DIJob": statuses.observed(status, requests=0, ttl_seconds=None)["message"],
    }
    words = {"describe": status.stage, "the page": page.stage}
    if (word := listed[2].partition(",")[2].lower()) or (status.stage and status.stage.value in IN_LIST):
        words["list"] = Stage(word) if word else None
    if row is not None:
        words["top"] = row.stage
    if row is not None and row.stage is not Stage.ADMITTED:
        # How far the pods of a suspended job are is in other columns.
        begun = status.message.startswith(f"{row.message}; ") and row.granted > 0 and row.stage is Stage.SUSPENDED
        sentences["top"] = status.message if begun else row.message
    for found in (words, sentences):
        if len(set(found.values())) != 1:
            yield str(found)


def _now() -> datetime:
    return datetime.fromtimestamp(NOW, UTC)


def _differ(row: PlanRow, page: JobFacts, status: JobStatus) -> Iterator[str]:
    """Whether all show the same numbers."""
    if row.granted != page.granted:
        yield f"top shows {row.granted} granted, the page {page.granted}"
    if (row.ready, page.ready) != (status.ready_replicas, status.ready_replicas):
        yield f"top shows {row.ready} ready, the page {page.ready}, describe {status.ready_replicas}"
    if row.granted and row.granted != status.replicas:
        yield f"top shows {row.granted} granted, describe {status.replicas}"
    if row.speed != page.speed:
        yield f"top shows speed {row.speed}, the page {page.speed}"
    if (page.restarts, page.reschedules) != (status.restarts, status.reschedules):
        yield f"the page counts {page.restarts} restarts, describe {status.restarts}"
    if (row.low, row.high, row.desired) != tuple(
        sum(getattr(task, what) for task in page.tasks) for what in ("low", "high", "desired")
    ):
        yield f"top shows {row.low}..{row.high} and {row.desired} desired, the page {page.tasks}"
    if row.is_queued != page.is_queued:
        yield f"top shows {row.state}, the page {page.stage}"
    headline = explain.headline(row)
    waits = {"waiting": "waits for", "held": "is held", "stopping": "is being stopped", "deleting": "is being deleted"}
    said = f"has {row.granted} of" if row.granted and row.high else waits.get(row.state, f"is {row.state}")
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
        action = rng.choice(tuple(DECISIONS))
        said = {"action": action, "why": DECISIONS[action], "time": "2026-01-02T03:04:05Z"}
        metadata["annotations"]["diflow/decision"] = json.dumps(said)
    if rng.random() < 0.1:
        metadata["annotations"]["diflow/restarts-before"] = str(rng.randrange(4))
    _of_its_user(rng, body)
    body["status"] = {"phase": rng.choice(("Running", "Running", "Running", "Pending", "Succeeded", "Failed"))}
    body["status"]["startedAt"] = "2026-01-02T03:04:05Z"
    body["status"]["nodes"] = {node["id"]: node for node in _nodes(rng, name, rounds, granted)}
    if rng.random() < 0.2:  # Argo has made nothing of it, or has not even looked
        body["status"] = rng.choice(({}, {"phase": "Running", "startedAt": "2026-01-02T03:04:05Z"}))
    return body


def _of_its_user(rng: random.Random, body: dict[str, Any]) -> None:
    """What a user has done to a job: a gang is suspended from the beginning, until the allocator admits it."""
    metadata, spec = body["metadata"], body["spec"]
    if rng.random() < 0.7:
        spec.pop("suspend", None)
        next(item for item in spec["arguments"]["parameters"] if item["name"] == "places")["value"] = '{"until":0}'
    if rng.random() < 0.2:
        spec["suspend"] = True
        metadata["annotations"]["diflow/held"] = "true"
    if rng.random() < 0.1:
        spec["shutdown"] = rng.choice(("Stop", "Terminate"))
    if rng.random() < 0.05:
        metadata["deletionTimestamp"] = "2026-01-02T03:06:05Z"
        more = rng.choice(([], ["example.org/archive"], ["example.org/a", "example.org/b", 7]))
        metadata["finalizers"] = [*more, *rng.choice((["foregroundDeletion"], []))]
    if rng.random() < 0.03:
        metadata["annotations"]["diflow/continued-in"] = f"{metadata['name']}-2"
    if rng.random() < 0.02:
        metadata["annotations"]["diflow/dijob"] = rng.choice(("[", "{}", "null"))


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


def _pods(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The pods of those that have not ended."""
    metadata = body["metadata"]
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:04:06Z"}
    for node in body.get("status", {}).get("nodes", {}).values():
        if node["type"] == "Pod" and node["phase"] in ("Pending", "Running"):
            yield {
                "metadata": {
                    "name": f"pod-{node['id']}",
                    "namespace": "ns",
                    "uid": f"pod-{node['id']}",
                    "labels": {keys.OPERATOR: keys.OPERATOR_VALUE, keys.ARGO_WORKFLOW: metadata["name"]},
                    "annotations": {keys.ARGO_NODE_NAME: node["name"], keys.ARGO_NODE_ID: node["id"]},
                    "ownerReferences": [{"kind": "Workflow", "name": metadata["name"], "uid": metadata["uid"]}],
                },
                "spec": {"nodeName": node["hostNodeName"], "containers": []},
                "status": {"phase": node["phase"], "conditions": [ready] if node["phase"] == "Running" else []},
            }


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

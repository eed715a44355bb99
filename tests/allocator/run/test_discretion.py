"""What the allocator writes into the objects of one namespace names no job, pod or node of another one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from diflow import DIJob
from diflow.allocator.policies.base import load_policy
from tests.allocator.lab import Lab, job, lab, task

NODES = ("node-alpha", "node-beta")
SECRETS = ("merger", "secret-team")


@pytest.fixture(params=["fit", "fair", "goodput", "fair+goodput"], name="at")
def _at(request: pytest.FixtureRequest) -> Iterator[Lab]:
    with lab(direct=False, policy=load_policy(request.param)) as made:
        for name in NODES:
            made.cluster.node(name, cpu=8)
        yield made


def elastic(name: str, low: int, high: int, **fields: Any) -> DIJob:
    worker = task(replicas=low).model_copy(update={"min_replicas": low, "max_replicas": high})
    return job(name, worker, preemptible=True, **fields)


def written(at: Lab, namespace: str, name: str = "") -> str:
    """All that is in the objects of a namespace, or of one job there."""
    with at.api.changed:
        paths = {path: dict(found) for path, found in at.api.objects.items() if f"/namespaces/{namespace}/" in path}
    return json.dumps(
        [
            {"of": path, "object": found}
            for path, objects in paths.items()
            for found in objects.values()
            if not name or name in json.dumps(found.get("involvedObject", found["metadata"]))
        ]
    )


def test_who_gives_way_to_a_job_of_another_namespace_is_told_its_priority_and_queue(at: Lab) -> None:
    at.cluster.submit(elastic("mine", 2, 16))
    at.until(lambda: len(at.cluster.running("mine")) >= 2, "mine runs")
    at.cluster.submit(job("merger-model-v7", task(replicas=13), priority="high"), namespace="secret-team")
    at.until(lambda: at.decision("mine").get("action") != "admit", "it is decided about mine", seconds=400)
    at.cluster.submit(job("waits", task(replicas=12)))
    at.until(lambda: at.decision("waits"), "it waits")
    for _ in range(70):
        at.step()
    found = written(at, "default")
    assert not [secret for secret in SECRETS if secret in found]
    assert not [node for node in NODES if node in written(at, "default", "waits")], at.decision("waits")


@pytest.mark.parametrize("at", ["fit", "fair"], indirect=True)
def test_who_is_stopped_is_told_by_whom_in_general(at: Lab) -> None:
    """With goodput the namespaces of a queue have equal shares, and none is stopped for another one's priority."""
    at.cluster.submit(elastic("mine", 16, 16))
    at.until(lambda: len(at.cluster.running("mine")) == 16, "mine has all")
    at.cluster.submit(job("merger-model-v7", task(replicas=12), priority="high"), namespace="secret-team")
    at.until(lambda: at.decision("mine").get("action") not in ("admit", "keep"), "decided", seconds=400)
    why = at.decision("mine")["why"]
    assert not [secret for secret in SECRETS if secret in written(at, "default")]
    if "gives way" in why:
        assert "a job of another namespace (priority high, queue default)" in why

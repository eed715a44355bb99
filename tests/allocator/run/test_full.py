"""Workflows and pods at their size limit are ended and preempted like any other."""

from __future__ import annotations

import json
from typing import Any

from diflow import DIJob
from diflow.kube.kinds import POD, WORKFLOW, Kind
from tests.allocator.fakeargo import is_gated
from tests.allocator.lab import Lab, job, task
from tests.kube.fakeapi import MOST_ANNOTATIONS

Json = dict[str, Any]


def fill(at: Lab, kind: Kind, name: str) -> None:
    """Fill the annotations of an object up to one byte below the API server's limit."""
    with at.api.changed:
        obj = at.api.objects[kind.path("default")][name]
        given: Json = {k: v for k, v in obj["metadata"].get("annotations", {}).items() if k != "fill"}
        used = sum(len(key) + len(value) for key, value in given.items())
        text = "x" * (MOST_ANNOTATIONS - 1 - used - len("fill"))
        at.api.add(kind, {**obj, "metadata": {**obj["metadata"], "annotations": {**given, "fill": text}}})


def elastic(name: str = "one", *, low: int = 2, replicas: int = 8) -> DIJob:
    scales = task("worker", replicas=replicas, min_replicas=low, max_replicas=replicas)
    return job(name, scales, preemptible=True, backoff_limit=0)


def urgent(replicas: int = 2) -> DIJob:
    return job("urgent", task(replicas=replicas, cpu="4"), priority="high")


def runs(at: Lab, of: str, count: int) -> None:
    at.until(lambda: len(at.cluster.running(of)) == count, f"{count} replicas of {of} run")


def test_a_job_whose_annotations_are_full_is_preempted(at: Lab) -> None:
    at.cluster.submit(elastic())
    runs(at, "one", 8)
    fill(at, WORKFLOW, "one")
    at.cluster.submit(urgent())
    runs(at, "urgent", 2)
    assert at.cluster.running("one") == {}
    assert any(reason == "Refused" and "annotation" in text for reason, text in at.events("one"))


def test_a_job_whose_annotations_are_full_gives_a_part(at: Lab) -> None:
    at.cluster.submit(elastic())
    runs(at, "one", 8)
    fill(at, WORKFLOW, "one")
    at.cluster.submit(urgent(1))
    at.until(lambda: len(at.cluster.running("urgent")) == 1, "it runs", seconds=130)


def test_a_job_whose_allocation_was_taken_away_and_whose_annotations_are_full_is_preempted(at: Lab) -> None:
    at.cluster.submit(elastic())
    runs(at, "one", 8)
    with at.api.changed:
        obj = at.api.objects[WORKFLOW.path("default")]["one"]
        given = {
            k: v for k, v in obj["metadata"]["annotations"].items() if "allocation" not in k and "decision" not in k
        }
        at.api.add(WORKFLOW, {**obj, "metadata": {**obj["metadata"], "annotations": given}})
    fill(at, WORKFLOW, "one")
    for _ in range(70):
        at.step()
    at.cluster.submit(urgent())
    runs(at, "urgent", 2)


def test_a_job_whose_annotations_are_full_fails_by_its_backoff_limit(at: Lab) -> None:
    at.cluster.submit(job("one", task(replicas=3), backoff_limit=1))
    runs(at, "one", 3)
    fill(at, WORKFLOW, "one")
    for name in ("worker-0", "worker-1"):
        at.cluster.finish(at.cluster.of("one")[name]["metadata"]["name"], code=1)
        at.step()
    at.until(lambda: at.cluster.phase("one") == "Failed", "it fails")
    assert at.cluster.of("one") == {}


def test_pods_whose_annotations_are_full_are_admitted_and_ended(at: Lab) -> None:
    at.cluster.foreign("theirs", "a", cpu=4)
    at.cluster.foreign("theirs-too", "b", cpu=4)
    at.cluster.submit(elastic(low=8))
    at.step()
    at.cluster.resume("one")
    at.until(lambda: len(at.cluster.of("one")) == 8, "its pods are made")
    assert all(is_gated(pod) for pod in at.cluster.of("one").values())
    for pod in at.cluster.of("one").values():
        fill(at, POD, pod["metadata"]["name"])
    at.api.remove(POD, "theirs")
    at.api.remove(POD, "theirs-too")
    runs(at, "one", 8)
    at.cluster.submit(urgent())
    runs(at, "urgent", 2)
    assert at.cluster.running("one") == {}


def test_the_pods_of_a_job_whose_workflow_is_too_large_to_be_changed_are_ended(at: Lab) -> None:
    at.cluster.submit(elastic())
    runs(at, "one", 8)
    size = len(json.dumps(at.cluster.workflow("one")))
    at.cluster.submit(urgent())
    at.api.most_bytes = size - 1000
    at.cluster.frozen = True  # Argo cannot write its status either
    at.until(lambda: at.cluster.running("one") == {}, "its pods are ended")
    at.cluster.frozen = False
    runs(at, "urgent", 2)
    at.rest()
    assert at.cluster.running("one") == {}
    assert any("too large to be changed" in text for _, text in at.events("one"))
    at.api.most_bytes = 0
    at.cluster.annotate("one", note="smaller")
    for pod in at.cluster.of("urgent").values():
        at.cluster.finish(pod["metadata"]["name"])
    at.until(lambda: len(at.cluster.running("one")) >= 2, "it runs again", seconds=130)


def test_a_full_object_is_not_tried_again_until_it_changes(at: Lab) -> None:
    at.cluster.submit(elastic(replicas=4))
    runs(at, "one", 4)
    for pod in at.cluster.of("one").values():
        fill(at, POD, pod["metadata"]["name"])
    fill(at, WORKFLOW, "one")
    at.cluster.submit(job("two", task(replicas=9)))
    for _ in range(200):
        at.step()
    refused = [path for method, path, code in at.daemon.line.sent if method == "PATCH" and code == 422]  # type: ignore[union-attr]
    assert len(refused) < 20


def test_the_owner_of_a_full_workflow_is_told_what_to_do(at: Lab) -> None:
    at.cluster.submit(elastic(replicas=4))
    runs(at, "one", 4)
    fill(at, WORKFLOW, "one")
    at.cluster.submit(urgent())
    at.until(lambda: any(reason == "Refused" for reason, _ in at.events("one")), "the write is refused")
    (text,) = {text for reason, text in at.events("one") if reason == "Refused"}
    assert "`kubectl annotate workflow one -n default KEY-`" in text
    assert text.endswith("submit it with fewer replicas or a smaller manifest")

"""The allocator keeps nothing of deleted jobs: its memory is bounded by the existing ones."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from diflow.allocator.signature import Seal
from diflow.common import keys
from diflow.kube.api import Cluster
from diflow.kube.kinds import POD
from tests.allocator.lab import Lab, job, task

PROMISE = 300
"""AllocatorSettings.promise_seconds, by default."""


def where_kept(at: Lab, word: str) -> list[str]:
    """Where this word is in the allocator's objects, as paths of attributes and keys."""
    assert at.daemon is not None
    found: list[str] = []
    seen: set[int] = set()

    def look(value: Any, path: str) -> None:
        if isinstance(value, str):
            if word in value:
                found.append(f"{path} = {value[:80]!r}")
            return
        if id(value) in seen or isinstance(value, Cluster | Seal | threading.Thread | type) or callable(value):
            return  # the Seal drops entries when it has many more than there are Workflows
        seen.add(id(value))
        if isinstance(value, Mapping):
            for key, inner in list(value.items()):
                look(key, f"{path}.keys")
                look(inner, f"{path}[{str(key)[:40]}]")
        elif isinstance(value, list | tuple | set | frozenset):
            for inner in list(value):
                look(inner, f"{path}[]")
        elif type(value).__module__.startswith("diflow."):
            names = [*getattr(value, "__dict__", {}), *(n for k in type(value).__mro__ for n in _slots(k))]
            for name in names:
                look(getattr(value, name, None), f"{path}.{name}")

    look(at.daemon.allocator, "allocator")
    return found


def _slots(of: type) -> tuple[str, ...]:
    slots = getattr(of, "__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def gone(at: Lab, name: str) -> None:
    """Delete the job, plan another one, and let a minute pass."""
    at.cluster.delete(name)
    at.cluster.submit(job("other"))
    at.until(lambda: len(at.cluster.running("other")) == 1, "another job runs", seconds=90)
    for _ in range(60):
        at.step()


def test_the_search_of_these_tests_finds_what_is_kept(at: Lab) -> None:
    at.cluster.submit(job("fleeting"))
    at.until(lambda: len(at.cluster.running("fleeting")) == 1, "it runs")
    assert any("_known" in path for path in where_kept(at, "fleeting"))


def test_nothing_is_kept_of_a_job_that_did_not_use_its_place(at: Lab) -> None:
    at.cluster.quota = {"fleeting": 1}
    at.cluster.submit(job("fleeting", task(replicas=4)))
    at.until(lambda: at.allocation("fleeting") != {}, "it is given its place")
    at.until(lambda: at.allocation("fleeting") == {}, "its place is given back", seconds=PROMISE + 70)
    assert where_kept(at, "fleeting")
    gone(at, "fleeting")
    assert where_kept(at, "fleeting") == []


def test_nothing_is_kept_of_a_job_whose_writes_were_refused(at: Lab) -> None:
    changes = 0

    def changed_first(method: str, path: str) -> None:
        nonlocal changes
        if method == "PATCH" and path.endswith("/workflows/fleeting"):
            changes += 1
            at.cluster.annotate("fleeting", bounds=json.dumps({"worker": {"min": 1, "max": 1 + changes}}))

    assert at.daemon is not None
    at.daemon.line.before = changed_first
    at.cluster.submit(job("fleeting"))
    at.until(lambda: "Refused" in [reason for reason, _ in at.events("fleeting")], "it is left alone", seconds=90)
    assert any("_tries" in path for path in where_kept(at, "fleeting"))
    assert any("_conflicts" in path for path in where_kept(at, "fleeting"))
    gone(at, "fleeting")
    assert where_kept(at, "fleeting") == []


@pytest.mark.slow
def test_nothing_is_kept_of_invented_nodes(at: Lab) -> None:
    at.cluster.submit(job("one"))
    at.until(lambda: len(at.cluster.running("one")) == 1, "it runs")
    for index in range(3):
        wait_for_a_node(at, f"invented-{index}", index=1 + index)
    for _ in range(1300):
        at.step()
    assert [path for path in where_kept(at, "invented") if "_avoided" in path] == []


def test_a_pod_created_by_a_user_closes_no_node_to_others(at: Lab) -> None:
    """Kube-scheduler never binds it, as it requests too much; the allocator did not send it there."""
    at.cluster.submit(job("one"))
    at.until(lambda: len(at.cluster.running("one")) == 1, "it runs")
    for index, node in enumerate("ab"):
        wait_for_a_node(at, node, index=1 + index)
    for _ in range(700):
        at.step()
    for name in ("two", "three"):
        at.cluster.submit(job(name))
        at.until(lambda name=name: len(at.cluster.running(name)) == 1, "it is placed at once", seconds=10)  # type: ignore[misc]


def wait_for_a_node(at: Lab, node: str, *, index: int) -> None:
    """A user creates a pod for a job's Workflow that waits for a node and requests more than any node has."""
    owner = {"kind": "Workflow", "name": "one", "uid": at.cluster.workflow("one")["metadata"]["uid"]}
    at.api.add(
        POD,
        {
            "metadata": {
                "name": f"false-{index}",
                "uid": f"uid-false-{index}",
                "ownerReferences": [owner],
                "labels": {keys.OPERATOR: "diflow", "workflows.argoproj.io/workflow": "one", keys.TASK_NAME: "worker"},
                "annotations": {
                    keys.TASK_RANK: str(index),
                    "workflows.argoproj.io/node-name": f"one.round(0:1).worker({index}:{index})(0).worker(0)",
                },
            },
            "spec": {
                "nodeSelector": {"kubernetes.io/hostname": node},
                "containers": [{"name": "main", "resources": {"requests": {"example.com/none": "1"}}}],
            },
            "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "reason": "Unschedulable"}]},
        },
    )

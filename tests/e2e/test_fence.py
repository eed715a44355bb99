"""Writes of a leader that is stopped (SIGSTOP) between its check of the Lease and the write, on a real API server.

Each of the thousand writes was checked and is on its way when its process is stopped, and is sent when it continues,
after another process has taken over.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from diflow.allocator.write.takeover import Takeover
from diflow.common import keys
from diflow.common.clock import SYSTEM
from diflow.kube.api import Cluster
from diflow.kube.kinds import LEASE, POD, WORKFLOW, Kind
from tests.clusters import ROOT, TestCluster
from tests.e2e import installing
from tests.e2e.frozen import writer
from tests.e2e.live import Live

Json = dict[str, Any]
OBJECTS = 20
"""Workflows, and as many pods."""
# How often each write is sent to each object; of "part" that many in all.
WRITES = {"change": 10, "minimal": 10, "proof": 5, "gate": 10, "status": 10, "part": 100}
OF_PODS = ("gate", "status")


@pytest.fixture(name="live")
def _live(argo40: TestCluster) -> Iterator[Live]:
    """A namespace for each test, with a Lease of its own."""
    with argo40.namespace("fence") as namespace:
        yield Live(argo40, namespace)


@pytest.fixture
def fenced(live: Live) -> None:
    """The policy of the manifests, for a Lease in the test's namespace."""
    lease = {"metadata": {"name": keys.ALLOCATOR}, "spec": {"leaseTransitions": 1, "holderIdentity": ""}}
    live.api.create(LEASE, lease, namespace=live.namespace)
    installing.install_fence(live.cluster, home=live.namespace)


@pytest.mark.usefixtures("fenced")
def test_of_a_thousand_writes_of_a_leader_that_stood_still_none_takes_effect(live: Live) -> None:
    workflows, pods = objects(live, OBJECTS)
    plan = writes(workflows, pods, WRITES)
    assert len(plan) == 1000
    statuses, before, after = stand_still(live, plan)
    assert {what: set(found) for what, found in statuses.items()} == {what: {"422"} for what in WRITES}
    assert sum(sum(found.values()) for found in statuses.values()) == 1000
    assert after == before


def test_without_the_policy_writes_that_name_no_version_arrive_and_those_to_changed_jobs_conflict(live: Live) -> None:
    workflows, pods = objects(live, 3)
    plan = writes(workflows, pods, {**dict.fromkeys(WRITES, 1), "part": 3})
    statuses, before, after = stand_still(live, plan, touch=workflows)
    assert set(statuses["change"]) == set(statuses["minimal"]) == {"409"}, "the next leader has changed the jobs"
    assert set(statuses["part"]) == {"201"}
    assert set(statuses["proof"]) == {"200"}
    assert "200" in statuses["gate"].keys() | statuses["status"].keys(), "pods are not changed by the next leader"
    assert after != before


def stand_still(
    live: Live, plan: list[Json], *, touch: list[Json] | None = None
) -> tuple[dict[str, dict[str, int]], Json, Json]:
    """Stop a leader with these writes on their way until another one leads, which changes the Workflows `touch` if its
    predecessor is not fenced. Returns the responses, and all objects before the process continues and in the end."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.e2e.frozen", live.namespace]
    process = subprocess.Popen(
        command, cwd=ROOT, env=live.cluster.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(plan) + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == "held\n"
        process.send_signal(signal.SIGSTOP)
        elector, executor = writer(live.api, namespace=live.namespace, identity="next")
        assert elector.acquire(threading.Event())
        is_fenced = Takeover(live.api, elector, executor, clock=SYSTEM)._is_fenced()
        executor.close()
        assert is_fenced is (touch is None)
        for obj in touch or ():
            change = {"metadata": {"annotations": {keys.EPOCH: str(elector.epoch)}}}
            live.api.patch(WORKFLOW, obj["metadata"]["name"], change, namespace=live.namespace)
        before = everything(live)
        process.send_signal(signal.SIGCONT)
        process.stdin.write("go\n")
        process.stdin.flush()
        statuses = json.loads(process.stdout.readline())
        after = everything(live)
        elector.release()
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.stdin.close()
        process.stdout.close()
        process.wait()
    return statuses, before, after


def objects(live: Live, count: int) -> tuple[list[Json], list[Json]]:
    """Workflows and pods that nothing but the writes changes: Argo leaves the former to another controller."""
    api, space = live.api, live.namespace
    return (
        [api.create(WORKFLOW, workflow(f"late-{i}"), namespace=space) for i in range(count)],
        [api.create(POD, pod(f"late-{i}"), namespace=space) for i in range(count)],
    )


def workflow(name: str) -> Json:
    labels = {keys.MANAGED_BY: keys.MANAGED_BY_VALUE, "workflows.argoproj.io/controller-instanceid": "nobody"}
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"name": name, "labels": labels},
        "spec": {"entrypoint": "a", "templates": [{"name": "a", "suspend": {}}]},
    }


def pod(name: str) -> Json:
    containers = [{"name": "main", "image": "none"}]
    gates = [{"name": keys.GATE}]
    metadata = {"name": name, "labels": {keys.OPERATOR: keys.OPERATOR_VALUE}}
    return {"metadata": metadata, "spec": {"containers": containers, "schedulingGates": gates}}


def writes(workflows: list[Json], pods: list[Json], counts: dict[str, int]) -> list[Json]:
    out = []
    for what, count in counts.items():
        if what == "part":
            named = workflows[0]["metadata"]
            out += [{**_target(named), "what": what, "body": workflow(f"part-{i}")} for i in range(count)]
            continue
        of = pods if what in OF_PODS else workflows
        out += [{**_target(obj["metadata"]), "what": what} for obj in of for _ in range(count)]
    return out


def _target(metadata: Json) -> Json:
    return {"version": metadata["resourceVersion"], **{key: metadata[key] for key in ("name", "namespace", "uid")}}


def everything(live: Live) -> dict[str, str]:
    """The version of each Workflow and each pod."""

    def versions(api: Cluster, kind: Kind) -> dict[str, str]:
        found = api.list_all(kind, namespace=live.namespace)
        return {f"{kind.name} {obj['metadata']['name']}": obj["metadata"]["resourceVersion"] for obj in found}

    return {**versions(live.api, WORKFLOW), **versions(live.api, POD)}

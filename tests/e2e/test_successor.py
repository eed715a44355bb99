"""A job that outgrows its Workflow, on a real cluster: it goes on in another one, and is one job to its user.

Pods are fake: what is tried here is between the allocator, Argo and the commands. A Workflow of few of Argo's nodes
counts as full.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diflow.common import keys
from diflow.jobs import lookup
from diflow.kube.kinds import NODE, POD, WORKFLOW
from diflow.record import chain
from tests.clusters import ROOT, TestCluster, wait_until
from tests.e2e.allocators import Daemon, Zone, daemon, kept_alive, submit, until_running, zone
from tests.e2e.live import ENDED, Live

pytestmark = [pytest.mark.extended, pytest.mark.xdist_group("successor")]

# Two replicas add about twelve nodes in each round: the second round begins in another Workflow.
_MOST = "10"


@pytest.fixture
def live(argo40: TestCluster) -> Iterator[Live]:
    with argo40.namespace("chain") as namespace:
        yield Live(argo40, namespace)


@pytest.fixture
def nodes(live: Live, request: pytest.FixtureRequest) -> Iterator[Zone]:
    with zone(live, f"c{getattr(request.node, 'execution_count', 1)}") as made:
        made.add("one", "two", cpu=3)
        yield made


@pytest.fixture
def running(live: Live, tmp_path: Path) -> Iterator[Daemon]:
    with daemon(live, tmp_path / "log", DIFLOW_ALLOCATOR_MOST_NODES=_MOST) as made, kept_alive(made):
        yield made


def test_a_job_goes_on_over_two_hand_overs_and_is_one_job(
    live: Live, nodes: Zone, running: Daemon, tmp_path: Path
) -> None:
    name = submit(live, nodes.job("long", 2, bounds=(2, 2), seconds=900, backoff_limit=2))
    until_running(live, name, 2)
    with (tmp_path / "waiting").open("w") as out:
        waiting = subprocess.Popen(
            [sys.executable, "-m", "diflow", "wait", name, "-n", live.namespace, "--timeout", "15m"],
            env=live.cluster.environment, cwd=ROOT, stderr=out,
        )  # fmt: skip
    try:
        second = move(live, nodes, name)
        running.kill()
        third = move(live, nodes, name)
        assert (second, third) == ("long-s2", "long-s3")

        # `list` shows what Argo has written, later than the pods.
        wait_until("it is listed so", lambda: lines(live, "list") == [["long", "Running", "2", "2", "0", "2"]])
        assert diflow(live, "list", "-o", "name").split() == [name]
        got = json.loads(diflow(live, "get", name, "-o", "json"))
        assert (got["metadata"]["name"], got["status"]["reschedules"]) == (name, 2)
        assert {c["type"] for c in got["status"]["conditions"]} >= {"Pending", "Running", "Rescheduling"}
        first = live.workflow(name)
        assert got["metadata"]["creationTimestamp"] == first["metadata"]["creationTimestamp"]
        described = diflow(live, "describe", "@latest")
        assert "continues in long-s2" in described
        assert "continues in long-s3" in described
        pods = live.pods(name)
        assert {pod["metadata"]["labels"][keys.JOB] for pod in pods} == {name}
        titles = [w["metadata"]["annotations"][keys.TITLE] for w in parts(live, name)]
        assert titles == ["DIJob long", "DIJob long (part 2)", "DIJob long (part 3)"]

        assert "2 → 1" in diflow(live, "scale", name, "--max", "1", "--min", "1")
        until_running(live, name, 1)
        assert waiting.poll() is None, "a Workflow that ended because the job went on is not its end"
        finish(live, name)
        assert waiting.wait(300) == 0
        assert "long Succeeded" in (tmp_path / "waiting").read_text()
    finally:
        waiting.kill()
        waiting.wait()
    wait_until("all parts have ended", lambda: all(phase(w) in ENDED for w in parts(live, name)))
    assert {phase(w) for w in parts(live, name)} == {"Succeeded"}
    assert lookup.get(name, namespace=live.namespace, cluster=live.api).status.restarts == 0

    assert "long is deleted" in diflow(live, "delete", name, "--wait", errors=True)
    wait_until("no part is left", lambda: not parts(live, name))
    assert diflow(live, "list", "-o", "name") == ""


def test_a_round_that_starts_again_in_a_full_workflow_goes_on_in_the_next_and_counts(
    live: Live, nodes: Zone, running: Daemon
) -> None:
    assert running.process is not None
    name = submit(live, nodes.job("failing", 2, bounds=(2, 2), seconds=900, backoff_limit=1))
    for tries in (1, 2):
        pods = until_running(live, name, 2)
        fail(live, pods[0])
        if tries == 1:
            wait_until("it goes on in another one", lambda: newest(live, name)["metadata"]["name"] != name)
    wait_until("it has failed", lambda: phase(newest(live, name)) in ENDED)
    found = lookup.get(name, namespace=live.namespace, cluster=live.api).status
    assert found.phase == "Failed"
    assert "backoffLimit is 1" in found.message
    assert lines(live, "list") == [["failing", "Failed", "0", "2", "2", "1"]]
    diflow(live, "delete", name, "--wait")


def diflow(live: Live, *arguments: str, errors: bool = False) -> str:
    """The output of a command, or its messages."""
    done = live.diflow(*arguments)
    assert done.code == 0, done.err
    return done.err if errors else done.out


def lines(live: Live, *arguments: str) -> list[list[str]]:
    """The lines of a table, without its head and its last column, which is an age."""
    return [line.split()[:-1] for line in diflow(live, *arguments).splitlines()[1:]]


def parts(live: Live, name: str) -> list[dict[str, Any]]:
    """The Workflows of a job, oldest first."""
    found = [w for w in live.api.list_all(WORKFLOW, namespace=live.namespace) if chain.job_name(w) == name]
    return sorted(found, key=chain.part)


def newest(live: Live, name: str) -> dict[str, Any]:
    """The current Workflow of the job."""
    (found,) = chain.newest(parts(live, name))
    return dict(found)


def phase(workflow: dict[str, Any]) -> str:
    return str((workflow.get("status") or {}).get("phase", ""))


def move(live: Live, nodes: Zone, name: str) -> str:
    """Cordon the job's node, and wait until it runs on the other one. Returns that node."""
    (here,) = {pod["spec"]["nodeName"] for pod in until_running(live, name, 2)}
    for node in (nodes.full("one"), nodes.full("two")):
        live.api.patch(NODE, node, {"spec": {"unschedulable": True if node == here else None}})

    def moved() -> bool:
        running = [p for p in live.pods(name) if p["status"].get("phase") == "Running"]
        return len(running) == 2 and all(p["spec"]["nodeName"] != here for p in running)

    wait_until("it runs on the other node", moved)
    until_running(live, name, 2)
    return str(newest(live, name)["metadata"]["name"])


def finish(live: Live, name: str) -> None:
    """Let the fake pods succeed."""
    for pod in live.pods(name):
        if pod["status"].get("phase") == "Running":
            annotate(live, pod, {"kwok.x-k8s.io/duration": "1s"})


def fail(live: Live, pod: dict[str, Any]) -> None:
    annotate(live, pod, {"kwok.x-k8s.io/duration": "1s", "kwok.x-k8s.io/exit-code": "1"})


def annotate(live: Live, pod: dict[str, Any], annotations: dict[str, str]) -> None:
    live.api.patch(POD, pod["metadata"]["name"], {"metadata": {"annotations": annotations}}, namespace=live.namespace)

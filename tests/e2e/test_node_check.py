"""The node check on a real cluster: in the pods of a gang, and what follows from its results.

The pods of the first test are real, on the one node that runs pods, which is compared with no other. Those of the
second one are on fake nodes and run nothing: the test reports in their place, with tokens that are bound to them.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from diflow import DIJob, Task
from diflow.common import keys, names
from diflow.dijob.model import NodeCheck
from diflow.record.exclusions import Exclusions
from diflow.record.nodecheck import Record
from tests.clusters import TestCluster, wait_until
from tests.e2e import installing
from tests.e2e.allocators import Daemon, daemon, events, kept_alive, run_on, status, submit, until_running, zone
from tests.e2e.live import Live, pod_name

pytestmark = [pytest.mark.extended, pytest.mark.xdist_group("node_check"), pytest.mark.usefixtures("running")]

_IMAGE = "docker.io/diflow/diflow:0.2.0"


@pytest.fixture(scope="module")
def live(argo40: TestCluster) -> Iterator[Live]:
    """A namespace for jobs, with a server for it."""
    with installing.served_namespace(argo40, "check") as found:
        yield found


@pytest.fixture(scope="module")
def running(live: Live, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with daemon(live, tmp_path_factory.mktemp("check") / "allocator.log") as made, kept_alive(made):
        yield made


def record(live: Live, name: str) -> Record:
    return Record.parse(live.workflow(name)["metadata"]["annotations"].get(keys.NODE_CHECK))


def test_a_gang_measures_its_node_and_its_network_before_the_work(live: Live) -> None:
    container = {
        "name": "di-container",
        "image": _IMAGE,
        "command": ["sh", "-c", "echo at work"],
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
    }
    task = Task(name="worker", replicas=3, template={"spec": {"containers": [container]}})
    name = submit(live, DIJob(name="real", tasks=(task,), scheduling="gang", node_check=NodeCheck()))
    live.ends(name, "Succeeded")
    found = record(live, name)
    assert set(found.entries) == {0, 1, 2}
    for entry in found.entries.values():
        assert {"product", "memory", "latency", "transfer"} <= set(entry.figures)
        assert (entry.failed, entry.unmet) == ("", ())
    for pod in live.pods(name):
        log = live.kubectl("logs", pod_name(pod), "-c", "diflow-check")
        assert log.splitlines()[-1] == "the work begins"
        assert live.printed(pod_name(pod)) == ["at work"]
    seen = status(live, name)
    assert (seen.restarts, seen.reschedules) == (0, 0)


def test_a_slow_node_is_left_out_and_the_gang_is_placed_again_without_a_restart(live: Live) -> None:
    with zone(live, "slow") as fake:
        fake.add("a", "b", "c", "d", cpu=2)
        job = fake.job("moved", 3, cpu="2", node_check=NodeCheck())
        name = submit(live, job)
        pods = until_running(live, name, 3)
        slow = pods[1]["spec"]["nodeName"]
        answers = report(live, pods, slow)
        wait_until("all results are stored", lambda: len(record(live, name).entries) == 3)
        text = "product 0.9 s, 9 times the others' median 0.1 s"

        def is_left_out() -> bool:
            given = live.workflow(name)["metadata"]["annotations"].get(keys.EXCLUDED)
            return [(e.node, e.reason) for e in Exclusions.parse(given).entries] == [(slow, text)]

        wait_until("the node is left out", is_left_out)
        assert {answer["verdict"] for answer in answers} == {"wait"}
        moved = wait_until("it runs elsewhere", lambda: _elsewhere(live, name, slow))
        assert sum(moved.values()) == 3
        # Of a job that is not preemptible, the other replicas have stayed.
        kept = {pod["metadata"]["uid"] for pod in pods if pod["spec"]["nodeName"] != slow}
        assert kept <= {pod["metadata"]["uid"] for pod in live.pods(name)}
        # A pod that was made again counts as soon as Argo has seen that it has a node.
        wait_until("the new pod counts", lambda: status(live, name).reschedules == 1)
        assert status(live, name).restarts == 0
        assert any(reason == "NodeLeftOut" and f"node {slow}: {text}" in said for reason, said in events(live, name))
        live.delete(name)


def report(live: Live, pods: list[dict[str, Any]], slow: str) -> list[dict[str, Any]]:
    """Report for each pod in its place. Returns the answers."""
    service = Live(live.cluster, f"{live.namespace}-system").get("service", "diflow-server")["spec"]["clusterIP"]
    out = []
    for pod in pods:
        name, job = pod_name(pod), pod["metadata"]["labels"][keys.JOB]
        bound = ("--bound-object-kind=Pod", f"--bound-object-name={name}")
        audience = f"--audience={names.audience(live.namespace, job)}"
        token = live.kubectl("create", "token", keys.WORKER_ACCOUNT, *bound, audience).strip()
        body = {"figures": {"product": 0.9 if pod["spec"]["nodeName"] == slow else 0.1}}
        request = urllib.request.Request(
            f"http://{service}:8081/v2alpha1/job/{live.namespace}.{job}/checks",
            data=json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            out.append(json.load(answer)["data"])
    return out


def _elsewhere(live: Live, name: str, slow: str) -> dict[str, int] | None:
    found = run_on(live, name)
    return found if sum(found.values()) == 3 and slow not in found else None

"""How many waiting gangs the allocator admits a second, beside a client that sends the same patches and nothing else.

An admission is one patch of a suspended Workflow. Argo's controller is stopped, so that its own writes do not count.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import allocating, live
from benchmarks.figures import Figure
from benchmarks.scale.common import fake_nodes
from benchmarks.watching import Watch
from diflow import DIJob, Task
from diflow.kube.api import Cluster
from diflow.kube.kinds import WORKFLOW
from diflow.workflows import render
from tests.builders import template
from tests.clusters import TestCluster
from tests.e2e.allocators import Daemon
from tests.e2e.live import FAKE

REPLICAS = 8
JOBS = 400
PART = "admitting"


def measure(*, jobs: int = JOBS) -> list[Figure]:
    """The figures of this part: `jobs` gangs of eight replicas that all fit."""
    with live.namespace("bench-admit") as (found, cluster, namespace), allocating.quiet_argo(found, namespace) as stop:
        stop()
        fake_nodes(found, jobs * REPLICAS // 30 + 2)
        ours, body = _by_the_allocator(found, cluster, namespace, jobs)
        allocating.empty(found, namespace, WORKFLOW)
        bare = _by_a_bare_client(found, cluster, namespace, jobs, body)
    note = f"{jobs} gangs of {REPLICAS}; load average {os.getloadavg()[0]:.1f}"
    return [
        Figure(PART, "gangs admitted, allocator", ours, "/s", None, note),
        Figure(PART, "gangs admitted, bare client", bare, "/s", None, "16 threads, nothing else to do"),
        Figure(PART, "bare client : allocator", bare / ours, "×", 1.11, "gangs admitted a second"),
    ]


def _submit(cluster: Cluster, namespace: str, jobs: int) -> None:
    made = template(
        "sleep 1",
        container={"resources": {"requests": {"cpu": "1", "memory": "64Mi"}}},
        nodeSelector={FAKE: "fake"},
        tolerations=[{"key": FAKE, "operator": "Exists"}],
    )
    worker = Task(name="worker", replicas=REPLICAS, template=made)
    model = json.dumps(render(DIJob(name="gang-0000", tasks=(worker,), scheduling="gang")))
    names = (f"gang-{i:04}" for i in range(jobs))
    with ThreadPoolExecutor(8) as pool:
        bodies = (json.loads(model.replace("gang-0000", name)) for name in names)
        list(pool.map(lambda body: cluster.create(WORKFLOW, body, namespace=namespace), bodies))


def _by_the_allocator(found: TestCluster, cluster: Cluster, namespace: str, jobs: int) -> tuple[float, dict[str, Any]]:
    """(gangs admitted a second, the patch of one of them)."""
    _submit(cluster, namespace, jobs)
    settings = {**allocating.SETTINGS, "DIFLOW_ALLOCATOR_METRICS_PORT": str(allocating.free_port())}
    daemon = Daemon(found, namespace, Path(tempfile.mkdtemp(prefix="diflow-bench-")) / "log", settings)
    with Watch(cluster, namespace, WORKFLOW, _is_admitted) as admitted:
        daemon.start()
        try:
            admitted.until("all are admitted", lambda seen: list(seen.values()).count("yes") >= jobs)
        finally:
            daemon.stop()
        times = sorted(admitted.when(bool).values())
    after = cluster.get(WORKFLOW, "gang-0000", namespace=namespace)
    metadata = {key: after["metadata"][key] for key in ("labels", "annotations")}
    body = {"metadata": metadata, "spec": {"suspend": None, "arguments": after["spec"]["arguments"]}}
    return (len(times) - 1) / (times[-1] - times[0]), body


def _is_admitted(workflow: dict[str, Any]) -> str:
    return "" if workflow["spec"].get("suspend") else "yes"


def _by_a_bare_client(found: TestCluster, cluster: Cluster, namespace: str, jobs: int, body: dict[str, Any]) -> float:
    _submit(cluster, namespace, jobs)
    with Watch(cluster, namespace, WORKFLOW, _is_admitted) as admitted:  # as the allocator has one, and this program
        found.run(sys.executable, "-c", _BARE, namespace, str(jobs), stdin=json.dumps(body))
        admitted.until("all are admitted", lambda seen: list(seen.values()).count("yes") >= jobs)
        times = sorted(admitted.when(bool).values())
    return (len(times) - 1) / (times[-1] - times[0])


_BARE = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from diflow.kube.kinds import WORKFLOW
from diflow.kube.api import Cluster

cluster, text = Cluster.connect(), sys.stdin.read()

def admit(number):
    name = f"gang-{number:04}"
    cluster.patch(WORKFLOW, name, json.loads(text.replace("gang-0000", name)), namespace=sys.argv[1])

with ThreadPoolExecutor(16) as pool:
    list(pool.map(admit, range(int(sys.argv[2]))))
"""

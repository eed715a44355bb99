"""How long a user waits for a command.

The 1,000 jobs are Workflows in a real API server: copies of one that ran, with its status and nodes, marked as
completed so that Argo ignores them.
"""

from __future__ import annotations

import copy
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks import live, starting
from benchmarks.figures import Figure
from diflow.kube import kinds
from diflow.kube.api import Cluster
from tests.clusters import TestCluster, wait_until

JOBS = 1000


def measure() -> list[Figure]:
    """The figures of this part."""
    start = _median([sys.executable, "-c", "pass"], repeat=9)
    with live.namespace("bench-list") as (found, cluster, namespace):
        _fill(cluster, namespace)
        help_ = _median([sys.executable, "-m", "diflow", "--help"], repeat=9, cluster=found)
        listed = _median(
            [sys.executable, "-m", "diflow", "list", "-n", namespace], repeat=5, cluster=found, lines=JOBS + 1
        )
        kubectl = _median(
            ["kubectl", "get", "workflows", "-n", namespace, "-o", "json"], repeat=5, cluster=found
        )  # the same objects, by the reference client
    return [
        Figure("commands", "python -c pass", start, "s", None, "the interpreter alone"),
        Figure("commands", "diflow --help", help_, "s", 0.3),
        Figure("commands", f"kubectl get workflows -o json, {JOBS}", kubectl, "s", None, "beside it, the same objects"),
        Figure("commands", f"diflow list, {JOBS} jobs", listed, "s", 1.5),
    ]


def _fill(cluster: Cluster, namespace: str) -> None:
    cluster.create(kinds.WORKFLOW, _quick("seed"), namespace=namespace)

    def ended() -> dict[str, Any] | None:
        workflow = cluster.get(kinds.WORKFLOW, "seed", namespace=namespace)
        return workflow if workflow.get("status", {}).get("phase") == "Succeeded" else None

    seed = wait_until("the first job has ended", ended, timeout=180)

    def one(i: int) -> None:
        job = copy.deepcopy(seed)
        name = f"job-{i:04}"
        job["metadata"] = {
            "name": name,
            "labels": {**seed["metadata"]["labels"], "workflows.argoproj.io/completed": "true"},
            "annotations": seed["metadata"]["annotations"],
        }
        cluster.create(kinds.WORKFLOW, job, namespace=namespace)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(JOBS - 1)))


def _quick(name: str) -> dict[str, Any]:
    workflow = starting.ours(name)
    for template in workflow["spec"]["templates"]:
        if "container" in template:
            template["container"]["command"] = ["true"]
    return workflow


def _median(command: list[str], *, repeat: int, cluster: TestCluster | None = None, lines: int = 0) -> float:
    seconds = []
    for _ in range(repeat):
        start = time.monotonic()
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env=cluster.environment if cluster else None
        )
        seconds.append(time.monotonic() - start)
        if lines and len(done.stdout.splitlines()) != lines:
            raise AssertionError(f"{' '.join(command)} printed {len(done.stdout.splitlines())} lines, not {lines}")
    return statistics.median(seconds)

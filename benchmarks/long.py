"""`python -m benchmarks.long`: a job of many rounds on fake nodes, and the cost of each round.

    --rounds 500 --replicas 8            the job
    --most-nodes 4000                    the allocator's setting under test; 0: never hand over
    --minutes 20                         stop after this time

Each round is a real move: the job's node is cordoned, and another one opened. It prints from time to time the number of
nodes and bytes of the Workflow, and the time of Argo's controller and of a round; the last line is a summary. Needs a
cluster with fake nodes: that of DIFLOW_TEST_KUBECONFIG, or a new one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from diflow.kube.api import Cluster
from diflow.kube.kinds import NODE, POD, WORKFLOW
from diflow.record.argo.nodes import raw as read_nodes
from tests.clusters import TestCluster, cluster, wait_until
from tests.e2e.allocators import Zone, daemon, kept_alive, submit, zone
from tests.e2e.live import Live

JOB = "long"
ENDED = ("Succeeded", "Failed", "Error")
OUT = Path(__file__).resolve().parents[1] / "out" / "long.json"


@dataclass(frozen=True)
class Sample:
    """A Workflow and its controller at one time. Bytes are those of the object as the API server sends it."""

    round: int
    workflow: str
    nodes: int
    object_bytes: int
    nodes_bytes: int
    is_compressed: bool
    controller_seconds: float
    round_seconds: float


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long", description="Measure a job of many rounds.")
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--most-nodes", type=int, default=None)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--every", type=int, default=10, help="rounds between two samples (default: 10)")
    options = parser.parse_args()
    with cluster("4.0.7") as found, found.namespace("long") as name:
        return run(found, Live(found, name), options)


def run(found: TestCluster, live: Live, options: argparse.Namespace) -> int:
    limit = {} if options.most_nodes is None else {"DIFLOW_ALLOCATOR_MOST_NODES": str(options.most_nodes)}
    folder = Path(tempfile.mkdtemp(prefix="diflow-long-"))
    with zone(live, "z") as nodes, daemon(live, folder / "log", **limit) as allocator, kept_alive(allocator):
        controller = metrics(found)
        cpu = options.replicas + 1
        nodes.add("a", "b", cpu=cpu)
        _cordon(live.api, nodes.full("b"), on=True)
        job = nodes.job(JOB, options.replicas, bounds=(options.replicas, options.replicas), seconds=86_400)
        submit(live, job)
        return _play(live, nodes, controller, options)


def _play(live: Live, nodes: Zone, controller: Any, options: argparse.Namespace) -> int:
    began = time.monotonic()
    samples: list[Sample] = []
    took: list[float] = []
    handed: list[float] = []
    begun = 1
    here, there = "a", "b"
    done = 0
    before = controller()
    for number in range(1, options.rounds + 1):
        start = time.monotonic()
        if number > 1:
            _cordon(live.api, nodes.full(there), on=False)
            _cordon(live.api, nodes.full(here), on=True)
            here, there = there, here
        runs = partial(_runs_on, live, nodes.full(here), options.replicas)
        wait_until(f"round {number} runs", runs, timeout=600, every=0.2)
        took.append(time.monotonic() - start)
        if (count := _count(live)) > begun:
            begun = count
            handed.append(took[-1])
        done = number
        if number % options.every == 0 or number in (1, options.rounds):
            after = controller()
            samples.append(_sample(live, number, before, after, took[-options.every :]))
            before = after
            print(samples[-1], flush=True)
        if time.monotonic() - began > options.minutes * 60:
            break
    _finish(live)
    parts = wait_until("the job has ended", lambda: _ended(live), timeout=600, every=1.0)
    phases = [part["status"]["phase"] for part in parts]
    listed = live.cluster.run(sys.executable, "-m", "diflow", "list", "-n", live.namespace)
    described = live.cluster.run(sys.executable, "-m", "diflow", "get", JOB, "-o", "json", "-n", live.namespace)
    status = json.loads(described)["status"]
    summary = {
        "rounds": done,
        "replicas": options.replicas,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "workflows": len(parts),
        "phases": sorted(set(phases)),
        "round_seconds": _quartiles(took),
        "seconds_of_rounds_in_a_new_workflow": _quartiles(handed),
        "status": {key: status[key] for key in ("phase", "restarts", "reschedules")},
    }
    print(listed)
    print(json.dumps(summary))
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps({"summary": summary, "samples": [vars(s) for s in samples]}, indent=2) + "\n")
    return 0 if status["phase"] == "Succeeded" and done == options.rounds else 1


def _cordon(api: Cluster, node: str, *, on: bool) -> None:
    api.patch(NODE, node, {"spec": {"unschedulable": on or None}})


def _runs_on(live: Live, node: str, count: int) -> bool:
    pods = live.api.list_all(POD, namespace=live.namespace, fields=f"spec.nodeName={node},status.phase=Running")
    return len([pod for pod in pods if "activeDeadlineSeconds" not in pod["spec"]]) == count


def _quartiles(seconds: list[float]) -> list[float]:
    return [round(q, 2) for q in (statistics.quantiles(seconds, n=4) if len(seconds) > 1 else seconds)]


def _count(live: Live) -> int:
    return len(live.api.list_all(WORKFLOW, namespace=live.namespace, metadata_only=True))


def _parts(live: Live) -> list[dict[str, Any]]:
    found = live.api.list_all(WORKFLOW, namespace=live.namespace)
    return sorted(found, key=lambda w: (w["metadata"]["creationTimestamp"], len(w["metadata"]["name"])))


def _ended(live: Live) -> list[dict[str, Any]] | None:
    parts = _parts(live)
    return parts if all((part.get("status") or {}).get("phase") in ENDED for part in parts) else None


def _finish(live: Live) -> None:
    """Let the running pods end."""
    for pod in live.api.list_all(POD, namespace=live.namespace, fields="status.phase=Running"):
        change = {"metadata": {"annotations": {"kwok.x-k8s.io/duration": "1s"}}}
        live.api.patch(POD, pod["metadata"]["name"], change, namespace=live.namespace)


def _sample(
    live: Live, number: int, before: tuple[float, float], after: tuple[float, float], took: list[float]
) -> Sample:
    workflow = _parts(live)[-1]
    nodes, _ = read_nodes(workflow)
    status = workflow.get("status") or {}
    packed = status.get("compressedNodes") or ""
    count = after[1] - before[1]
    return Sample(
        round=number,
        workflow=workflow["metadata"]["name"],
        nodes=len(nodes),
        object_bytes=len(json.dumps(workflow, separators=(",", ":"))),
        nodes_bytes=len(packed) or len(json.dumps(status.get("nodes") or {}, separators=(",", ":"))),
        is_compressed=bool(packed),
        controller_seconds=round((after[0] - before[0]) / count, 4) if count else 0.0,
        round_seconds=round(statistics.median(took), 2),
    )


def metrics(found: TestCluster) -> Callable[[], tuple[float, float]]:
    """The time that Argo's controller has worked on Workflows, from its metrics: (seconds, operations)."""
    pods = found.get("pods", namespace="argo", labels="app=workflow-controller")["items"]
    pod = next(pod for pod in pods if "deletionTimestamp" not in pod["metadata"])
    path = f"/api/v1/namespaces/argo/pods/https:{pod['metadata']['name']}:9090/proxy/metrics"

    def ask() -> tuple[float, float]:
        text = found.kubectl("get", "--raw", path)
        return _metric(text, "operation_duration_seconds_sum"), _metric(text, "operation_duration_seconds_count")

    return ask


def _metric(text: str, name: str) -> float:
    return sum(float(line.split()[-1]) for line in text.splitlines() if f"_{name}" in line and line[0] != "#")


if __name__ == "__main__":
    sys.exit(main())

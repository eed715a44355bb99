"""Submit → all pods Running: a DIJob against a hand-written Workflow with the same pods, alternating on one cluster.

The hand-written Workflow has no Service, no retries and no rounds: the least that Argo needs for these pods.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from benchmarks import live
from benchmarks.figures import Figure
from diflow import DIJob, Task
from diflow.common import keys
from diflow.kube import kinds
from diflow.kube.api import Cluster
from diflow.workflows import render

PODS = 4
CONTAINER = {
    "name": "di-container",
    "image": "docker.io/library/busybox:local",
    "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 600 & wait"],
    "resources": {"requests": {"cpu": "50m", "memory": "32Mi"}},
}


def ours(name: str) -> dict[str, Any]:
    """The Workflow that diflow renders."""
    template = {"spec": {"containers": [CONTAINER], "terminationGracePeriodSeconds": 1}}
    return render(
        DIJob(
            name=name,
            tasks=[
                Task(type="learner", template=template),
                Task(type="collector", replicas=PODS - 1, template=template),
            ],
        )
    )


def by_hand(name: str) -> dict[str, Any]:
    """What a user of Argo would write for the same pods."""

    def pods(task: str) -> dict[str, Any]:
        return {
            "name": task,
            "inputs": {"parameters": [{"name": "index"}]},
            "metadata": {"labels": {keys.TASK_NAME: task}},
            "podSpecPatch": f'{{"hostname":"{name}-{task}-{{{{inputs.parameters.index}}}}",'
            f'"subdomain":"{keys.SERVICE}","terminationGracePeriodSeconds":1}}',
            "container": {key: value for key, value in CONTAINER.items() if key != "name"},
        }

    def fanout(task: str, count: int) -> dict[str, Any]:
        arguments = {"parameters": [{"name": "index", "value": "{{item}}"}]}
        return {"name": task, "template": task, "arguments": arguments, "withSequence": {"count": str(count)}}

    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"name": name},
        "spec": {
            "entrypoint": "job",
            "serviceAccountName": keys.WORKER_ACCOUNT,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65532},
            "templates": [
                {"name": "job", "dag": {"tasks": [fanout("learner", 1), fanout("collector", PODS - 1)]}},
                pods("learner"),
                pods("collector"),
            ],
        },
    }


def measure(*, rounds: int) -> list[Figure]:
    """The figures of this part; `rounds` of each kind after a warm-up."""
    seconds: dict[str, list[float]] = {"diflow": [], "by hand": []}
    with live.namespace("bench") as (_, cluster, namespace):
        for i in range(rounds + 1):
            order = [("diflow", ours), ("by hand", by_hand)]
            for kind, make in order if i % 2 else reversed(order):
                took = _start(cluster, namespace, make(f"{kind.replace(' ', '-')}-{i}"))
                if i:
                    seconds[kind].append(took)
    diflow, hand = (statistics.median(seconds[kind]) for kind in ("diflow", "by hand"))
    paired = statistics.median(a / b for a, b in zip(seconds["diflow"], seconds["by hand"], strict=True))
    spread = ", ".join(f"{kind} {min(values):.1f}–{max(values):.1f} s" for kind, values in seconds.items())
    return [
        Figure("starting", f"by hand, {PODS} pods Running", hand, "s", None, f"median of {rounds}"),
        Figure("starting", f"diflow, {PODS} pods Running", diflow, "s", None, spread),
        Figure("starting", "diflow : by hand", paired, "×", 1.10, "median of the ratios of neighbours"),
    ]


def _start(cluster: Cluster, namespace: str, workflow: dict[str, Any]) -> float:
    """Seconds from creating the Workflow until all its pods run. Deletes everything afterwards."""
    name = workflow["metadata"]["name"]
    labels = f"workflows.argoproj.io/workflow={name},{keys.TASK_NAME}"
    start = time.monotonic()
    cluster.create(kinds.WORKFLOW, workflow, namespace=namespace)
    running: set[str] = set()
    while len(running) < PODS:
        if time.monotonic() - start > 180:
            raise TimeoutError(f"{name}: {len(running)} of {PODS} pods run after 180 s")
        pods = cluster.list_all(kinds.POD, namespace=namespace, labels=labels)
        running = {pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") == "Running"}
        time.sleep(0.02)
    took = time.monotonic() - start
    cluster.delete(kinds.WORKFLOW, name, namespace=namespace)
    while cluster.list_all(kinds.POD, namespace=namespace):
        if time.monotonic() - start > 300:
            raise TimeoutError(f"{name}: its pods are still there after 300 s")
        time.sleep(0.2)
    time.sleep(1)  # let the kubelet clean up, or it would slow down the next measurement
    return took

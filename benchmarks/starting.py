"""Submit → all pods Running: a DIJob against a hand-written Workflow with the same pods, in turns on one cluster.

The hand-written Workflow has no Service, no retries and no rounds: the least that Argo needs for these pods. It is also
run confined, with the security context that the standard `restricted` asks for and that diflow's pods have: the filter
of system calls, which runc compiles for each container, is the largest part of the difference.

The kubelet looks at its containers once a second, and a start waits for two of these looks. If all starts of a kind
fell on one moment of that second, one that takes 50 ms more could take a second more, or nothing. So the starts of each
kind are spread evenly over the second, and their means are compared, which such steps do not change.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

from benchmarks import live
from benchmarks.figures import Figure
from benchmarks.watching import Watch
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


def confined(name: str) -> dict[str, Any]:
    """`by_hand` with the security context of diflow's pods."""
    workflow = by_hand(name)
    workflow["spec"]["securityContext"] = ours(name)["spec"]["securityContext"]
    return workflow


KINDS = {"diflow": ours, "by hand": by_hand, "by hand, confined": confined}


def measure(*, rounds: int) -> list[Figure]:
    """The figures of this part; `rounds` of each kind after a warm-up."""
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with (
        live.namespace("bench") as (_, cluster, namespace),
        Watch(cluster, namespace, kinds.POD, _is_running) as pods,
    ):
        for i in range(rounds + 1):
            for kind in KINDS if i % 2 else reversed(KINDS):
                workflow = KINDS[kind](f"{kind.replace(', ', '-').replace(' ', '-')}-{i}")
                time.sleep(_CLEANED_SECONDS + i / rounds)  # after the kubelet saw that the last pods have ended
                took = _start(cluster, namespace, workflow, pods)
                if i:
                    seconds[kind].append(took)
    mean = {kind: statistics.mean(values) for kind, values in seconds.items()}
    return [
        *(
            Figure("starting", f"{kind}, {PODS} pods Running", mean[kind], "s", None, _spread(seconds[kind]))
            for kind in ("by hand", "by hand, confined", "diflow")
        ),
        Figure("starting", "diflow : by hand", mean["diflow"] / mean["by hand"], "×", 1.10, "of the means"),
        Figure(
            "starting",
            "diflow : by hand, confined",
            mean["diflow"] / mean["by hand, confined"],
            "×",
            1.10,
            "of the means",
        ),
    ]


_CLEANED_SECONDS = 1.0
"""In which the kubelet removes the last pods, or that would slow down the next measurement."""


def _spread(seconds: list[float]) -> str:
    return f"mean of {len(seconds)}; {min(seconds):.1f}–{max(seconds):.1f} s; load average {os.getloadavg()[0]:.1f}"


def _is_running(pod: dict[str, Any]) -> str:
    """A job's pod; there are others, for the steps of a Workflow."""
    if keys.TASK_NAME not in pod["metadata"].get("labels", {}):
        return ""
    return "Running" if pod.get("status", {}).get("phase") == "Running" else "made"


def _start(cluster: Cluster, namespace: str, workflow: dict[str, Any], pods: Watch) -> float:
    """Seconds from creating the Workflow until all its pods run. Deletes everything afterwards."""
    name = workflow["metadata"]["name"]
    began = time.monotonic()
    cluster.create(kinds.WORKFLOW, workflow, namespace=namespace)
    ran = pods.until(f"{name} runs", lambda seen: list(seen.values()).count("Running") == PODS, timeout=180)
    cluster.delete(kinds.WORKFLOW, name, namespace=namespace)
    pods.until(f"{name} is gone", lambda seen: not any(seen.values()))
    return ran - began

"""One job of 1,000 replicas on fake nodes, and the same pods in a Workflow written by hand.

Argo creates all pods, one after the other, and writes the status of all of them into one Workflow: that is most of the
time of both. Afterwards the job goes on in a new round with fewer replicas. Argo has the settings that docs/scale.md
recommends for such jobs.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from benchmarks import live
from benchmarks.figures import Figure
from benchmarks.scale.common import Json, allocator, controller_restarts, fake_nodes, fake_template, say
from benchmarks.watching import Watch
from diflow import DIJob, Task
from diflow.common import keys
from diflow.kube.api import Cluster
from diflow.kube.kinds import POD, WORKFLOW
from diflow.workflows import render
from tests.clusters import ROOT, TestCluster, wait_until

PER_NODE = 30
SECONDS = 24 * 3600.0
_SETTINGS = {
    ("deployment", "workflow-controller"): ("/spec/template/spec", "controller-large.yaml"),
    ("configmap", "workflow-controller-configmap"): ("/data", "workflow-controller-configmap-large.yaml"),
}
"""Object of Argo → the field that is changed, and the patch in manifests/argo."""


def measure(*, replicas: int = 1000, fewer: int = 900) -> list[Figure]:
    """The figures of this part."""
    with live.namespace("gang") as (found, cluster, namespace), _settings_of_large_jobs(found):
        fake_nodes(found, replicas // PER_NODE + 2)
        with Watch(cluster, namespace, POD, _state) as pods:
            bare = _bare(cluster, namespace, pods, replicas)
            daemon = allocator(found, namespace, DIFLOW_ALLOCATOR_BETWEEN_ROUNDS_SECONDS="0")
            daemon.start()
            try:
                daemon.until_leading()
                began = time.monotonic()
                cluster.create(WORKFLOW, _submitted(replicas), namespace=namespace)
                ours = _until_running(pods, "1", replicas) - began
                say(ours_seconds=round(ours, 1))
                time.sleep(15)  # until Argo has written the status
                began = time.monotonic()
                _ask(cluster, namespace, fewer)
                moved = _until_running(pods, "2", fewer) - began
                pods.until("no pod of the first round runs", lambda seen: "1 Running" not in seen.values())
                say(new_round_seconds=round(moved, 1))
            finally:
                daemon.stop()
                cluster.delete(WORKFLOW, "gang", namespace=namespace)
    note = f"{replicas} replicas; load {os.getloadavg()[0]:.1f}"
    return [
        Figure("gang", "by hand: submitted → all Running", bare, "s", None, note),
        Figure("gang", "diflow: submitted → all Running", ours, "s", None, note),
        Figure("gang", "diflow : by hand", ours / bare, "×", 2.0),
        Figure(
            "gang", f"asked for {fewer} → all of the new round Running", moved, "s", None, "their old pods stop first"
        ),
    ]


@contextmanager
def _settings_of_large_jobs(found: TestCluster) -> Iterator[None]:
    """Argo's controller with the settings of manifests/argo for jobs of hundreds of replicas; afterwards as before."""
    before = {}
    for (kind, name), (path, _) in _SETTINGS.items():
        item = json.loads(found.kubectl("get", kind, name, "-n", "argo", "-o", "json"))
        for field in path.strip("/").split("/"):
            item = item.get(field, {})
        before[kind, name] = [{"op": "replace", "path": path, "value": item}]
    with ExitStack() as restoring:
        restoring.callback(controller_restarts, found)
        for (kind, name), (_, file) in _SETTINGS.items():
            patch = json.dumps(before[kind, name])
            restoring.callback(found.kubectl, "patch", kind, name, "-n", "argo", "--type=json", "-p", patch)
            found.kubectl("patch", kind, name, "-n", "argo", "--patch-file", str(ROOT / "manifests" / "argo" / file))
        controller_restarts(found)
        yield


def _submitted(replicas: int) -> Json:
    """The Workflow, hidden from Argo until the allocator has decided, as `diflow submit` makes it."""
    worker = Task(name="worker", replicas=replicas, template=fake_template(SECONDS))
    body = render(DIJob(name="gang", tasks=(worker,), scheduling="gang", preemptible=True))
    body["metadata"]["labels"][keys.INSTANCE] = keys.INSTANCE_VALUE
    return body


def _bare(cluster: Cluster, namespace: str, pods: Watch, replicas: int) -> float:
    """Seconds from the submission of a Workflow by hand until all its pods run. Deletes it."""
    made = fake_template(SECONDS)
    container = {key: value for key, value in made["spec"]["containers"][0].items() if key != "name"}
    template = {
        "name": "worker", "metadata": {"labels": {keys.ROUND: "0"}, **made["metadata"]}, "container": container,
        "nodeSelector": made["spec"]["nodeSelector"], "tolerations": made["spec"]["tolerations"],
    }  # fmt: skip
    sequence = {"name": "worker", "template": "worker", "withSequence": {"count": str(replicas)}}
    body: Json = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"name": "by-hand"},
        "spec": {
            "entrypoint": "job",
            "serviceAccountName": keys.WORKER_ACCOUNT,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65532},
            "templates": [{"name": "job", "dag": {"tasks": [sequence]}}, template],
        },
    }
    began = time.monotonic()
    cluster.create(WORKFLOW, body, namespace=namespace)
    took = _until_running(pods, "0", replicas) - began
    say(by_hand_seconds=round(took, 1))
    cluster.delete(WORKFLOW, "by-hand", namespace=namespace)
    wait_until(
        "its pods are gone", lambda: not cluster.list_all(POD, namespace=namespace, metadata_only=True), timeout=600
    )
    return took


def _state(pod: Json) -> str:
    labels = pod["metadata"].get("labels") or {}
    if keys.ROUND not in labels:
        return ""
    return f"{labels[keys.ROUND]} {(pod.get('status') or {}).get('phase') or 'Pending'}"


def _until_running(pods: Watch, number: str, count: int) -> float:
    wanted = f"{number} Running"
    return pods.until(
        f"{count} pods of round {number} run", lambda seen: list(seen.values()).count(wanted) >= count, timeout=900
    )


def _ask(cluster: Cluster, namespace: str, replicas: int) -> None:
    parameters = cluster.get(WORKFLOW, "gang", namespace=namespace)["spec"]["arguments"]["parameters"]
    at = next(i for i, item in enumerate(parameters) if item["name"] == keys.PARAM_REPLICAS)
    patch = [
        {"op": "replace", "path": f"/spec/arguments/parameters/{at}/value", "value": json.dumps({"worker": replicas})}
    ]
    cluster.patch(WORKFLOW, "gang", patch, namespace=namespace)

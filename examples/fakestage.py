"""The stage of a demo of the allocator: the real Kubernetes, Argo and allocator, on fake nodes.

kwok answers for the nodes, and runs nothing. A fake pod runs as long as its annotation says, so the jobs' programs are
played from here.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from diflow import DiflowError, DIJob, Task
from diflow.jobs import lookup
from diflow.kube.api import Cluster
from diflow.kube.kinds import POD
from stage import DemoError, Target, apply, ask, cluster, made_here, our_own, present, present_kubeconfig, say

SYSTEM = "diflow-system"
ALLOCATOR = "deployment/diflow-allocator"
_CONFIG_MAP = "diflow-queues"
_LIFE = "kwok.x-k8s.io/duration"
_FOR_EVER = "1h"


def with_fake_nodes(*, question: str, otherwise: str) -> Target:
    """The cluster of the present kubeconfig if `python3 -m cluster` made it and somebody agrees, else one of our own.

    `otherwise`: why any other cluster is left alone.
    """
    given = present_kubeconfig()
    if given is None or not made_here(given):
        if given is not None:
            say(f"the cluster of {given} is left alone: {otherwise}")
        return our_own()
    target = present(given)
    ask(f"Use the cluster {target.name} of {given}: {question}?")
    cluster("load-image", "--name", target.name)
    return target


def prepare(target: Target, *namespaces: str) -> None:
    """Apply diflow's manifests and the allocator's, and make these namespaces anew. Programs use this cluster then."""
    os.environ["KUBECONFIG"] = str(target.kubeconfig)
    for folder in ("manifests", "manifests/allocator"):
        apply(target, folder)
    for namespace in namespaces:
        _make(target, namespace)


def _make(target: Target, namespace: str) -> None:
    run = target.run_kubectl
    run("delete", "namespace", namespace, "--ignore-not-found", "--timeout=120s")
    run("create", "namespace", namespace)
    apply(target, "manifests/jobs", "-n", namespace)


def install(target: Target, *folders: str) -> None:
    """Apply further parts of manifests/, and wait for new pods of theirs: the image may be another one."""
    for folder in folders:
        apply(target, f"manifests/{folder}", "--server-side")
    for name in set(folders) & {"server", "controller"}:
        target.run_kubectl("rollout", "restart", "-n", SYSTEM, f"deployment/diflow-{name}")
        target.run_kubectl("rollout", "status", "-n", SYSTEM, f"deployment/diflow-{name}", "--timeout=180s")


@contextmanager
def fresh(target: Target, namespace: str) -> Iterator[None]:
    """A namespace for the block. It is deleted afterwards, which is waited for up to three minutes: what comes next
    shall not pay for it."""
    _make(target, namespace)
    try:
        yield
    finally:
        with suppress(DemoError):
            target.run_kubectl("delete", "namespace", namespace, "--timeout=180s")


@contextmanager
def prepared(target: Target, *namespaces: str) -> Iterator[None]:
    """As `prepare`; the namespaces are deleted after the block."""
    prepare(target, *namespaces)
    try:
        yield
    finally:
        with suppress(DemoError):
            target.run_kubectl("delete", "namespace", *namespaces, "--wait=false")


def fake_job(name: str, namespace: str, task: dict[str, Any], **fields: Any) -> DIJob:
    """A job of one task, `worker`, whose template is a fake pod's unless the task has one."""
    worker = Task(name="worker", **{"template": fake_pod(), **task})
    return DIJob(name=name, namespace=namespace, tasks=(worker,), **fields)


def empty_nodes(target: Target, *, count: int, gpus: int) -> None:
    """So many fake nodes in the place of those that are there, and the allocator at work on them."""
    cluster("fake-nodes", "--name", target.name, "--count", "0")
    cluster("fake-nodes", "--name", target.name, "--count", str(count), "--gpus", str(gpus))
    target.run_kubectl("rollout", "status", "-n", SYSTEM, ALLOCATOR, "--timeout=180s")


@contextmanager
def set_in_allocator(target: Target, variables: Mapping[str, str]) -> Iterator[None]:
    """The allocator has these environment variables while the block runs."""
    run = target.run_kubectl
    run("set", "env", "-n", SYSTEM, ALLOCATOR, *(f"{name}={value}" for name, value in variables.items()))
    try:
        yield
    finally:
        with suppress(DemoError):
            run("set", "env", "-n", SYSTEM, ALLOCATOR, *(f"{name}-" for name in variables))


@contextmanager
def queues_in_allocator(target: Target, text: str) -> Iterator[None]:
    """These queues while the block runs; then those that were there."""
    run, where = target.run_kubectl, ("-n", SYSTEM)

    def put(data: Any) -> None:
        run("delete", "configmap", _CONFIG_MAP, *where, "--ignore-not-found")
        if data is not None:
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": _CONFIG_MAP}, "data": data}
            run("create", *where, "-f", "-", stdin=json.dumps(body))

    found = run("get", "configmap", _CONFIG_MAP, *where, "--ignore-not-found", "-o", "json")
    put({"queues.yaml": text})
    try:
        yield
    finally:
        with suppress(DemoError):
            put(json.loads(found).get("data") if found.strip() else None)


def fake_pod(seconds: str = _FOR_EVER) -> dict[str, Any]:
    """The template of a fake pod with a GPU, which runs so long."""
    gpu = {"nvidia.com/gpu": 1}
    container = {
        "name": "di-container",
        "image": "docker.io/library/busybox:local",
        "command": ["sleep", "infinity"],
        "resources": {"requests": {"cpu": "1", "memory": "1Gi", **gpu}, "limits": gpu},
    }
    return {
        "metadata": {"annotations": {_LIFE: seconds}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "nodeSelector": {"kwok.x-k8s.io/node": "fake"},
            "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
            "containers": [container],
        },
    }


def end_work(at: Cluster, name: str, *, namespace: str, patience_seconds: float) -> lookup.Job:
    """The work of a job of fake pods is done: all replicas end with exit code 0. Returns the job when it has ended."""
    ends = time.monotonic() + patience_seconds
    change = {"metadata": {"annotations": {_LIFE: "1s"}}}
    while True:
        found = lookup.get(name, namespace=namespace, cluster=at)
        if found.status.ended:
            return found
        if time.monotonic() > ends:
            raise DemoError(
                f"{name} has not ended within {patience_seconds:.0f} s: diflow describe {name} -n {namespace}"
            )
        for pod in found.pods:
            metadata = pod["metadata"]
            lives_on = (metadata.get("annotations") or {}).get(_LIFE) == _FOR_EVER
            if lives_on and pod["status"].get("phase") == "Running":
                with suppress(DiflowError):
                    at.patch(POD, metadata["name"], change, namespace=namespace)
        time.sleep(0.5)

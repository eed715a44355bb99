"""Fake nodes for scale tests: kwok simulates their kubelets, and runs no containers.

They have a taint and a label, kwok.x-k8s.io/node=fake, so that ordinary pods are not scheduled there; pods for fake
nodes tolerate the taint and select the label. kwok/*.yaml defines the life cycle of fake pods.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass

from cluster.components import log_file
from cluster.errors import ClusterError
from cluster.kube import Kubectl
from cluster.lifecycle import component_status
from cluster.plan import Plan
from cluster.progress import Progress

KEY = "kwok.x-k8s.io/node"
VALUE = "fake"
_OURS = re.compile(r"fake-\d{5}")
_READY_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Size:
    """The capacity of a fake node, in Kubernetes quantities."""

    cpu: str = "32"
    memory: str = "256Gi"
    gpus: int = 0


def node(index: int, size: Size) -> dict[str, object]:
    """One Node object."""
    name = f"fake-{index:05d}"
    resources = {"cpu": size.cpu, "memory": size.memory, "pods": "250"}
    if size.gpus:
        resources["nvidia.com/gpu"] = str(size.gpus)
    labels = {KEY: VALUE, "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": [{"key": KEY, "value": VALUE, "effect": "NoSchedule"}]},
        "status": {"capacity": resources, "allocatable": resources},
    }


def scale(plan: Plan, kubectl: Kubectl, count: int, size: Size, progress: Progress) -> None:
    """Adds or removes fake nodes until there are `count`, all ready. Existing nodes keep their size."""
    names = set(kubectl("get", "nodes", "-l", f"{KEY}={VALUE}", "-o", "name").replace("node/", "").split())
    wanted = {f"fake-{index:05d}": node(index, size) for index in range(count)}
    # Fake nodes with other names are not ours.
    surplus = sorted(name for name in names - set(wanted) if _OURS.fullmatch(name))
    if surplus:
        kubectl("delete", "node", *surplus, "--wait=false", timeout_seconds=300)
    if count:
        start_kwok(plan)
    missing = [wanted[name] for name in sorted(set(wanted) - names)]
    if missing:
        nodes = json.dumps({"apiVersion": "v1", "kind": "List", "items": missing})
        kubectl("create", "-f", "-", stdin=nodes, timeout_seconds=300)
    deadline = time.monotonic() + _READY_SECONDS
    while (ready := _ready(kubectl)) < count:
        if time.monotonic() > deadline:
            raise ClusterError(
                f"{ready} of {count} fake nodes ready in {_READY_SECONDS:.0f} s; see {log_file(plan, 'kwok')}"
            )
        time.sleep(0.2)
    progress(f"{plan.name}: {count} fake nodes ready (label and taint {KEY}={VALUE})")


def _ready(kubectl: Kubectl) -> int:
    path = 'jsonpath={range .items[*]}{.status.conditions[?(@.type=="Ready")].status} {end}'
    return kubectl("get", "nodes", "-l", f"{KEY}={VALUE}", "-o", path).split().count("True")


def start_kwok(plan: Plan) -> None:
    """Starts it unless it runs, and waits until it is healthy."""
    (plan.paths.wanted / "kwok").touch()
    deadline = time.monotonic() + _READY_SECONDS
    while not component_status(plan.name).get("kwok", {}).get("healthy"):
        if time.monotonic() > deadline:
            raise ClusterError(f"kwok not ready in {_READY_SECONDS:.0f} s; see {log_file(plan, 'kwok')}")
        time.sleep(0.1)

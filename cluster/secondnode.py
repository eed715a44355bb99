"""A second real node: a containerd and a kubelet beside those of the first one, in the same namespaces.

Both nodes have the address of the cluster, and all processors and all memory of the machine: what pods request is
counted for each node alone. It shows what needs two nodes and real pods.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from cluster import seed
from cluster.components import log_file
from cluster.errors import ClusterError, UsageError
from cluster.kube import Kubectl
from cluster.lifecycle import component_status
from cluster.load import SECOND, SECOND_NOTE
from cluster.plan import Plan
from cluster.progress import Progress
from cluster.supervisor import write_atomically

_KUBELET = "kubelet-2"
_READY_SECONDS = 120.0
_READY = 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'


def add(plan: Plan, kubectl: Kubectl, images: Path, progress: Progress) -> None:
    """Starts it unless it runs, and waits until it is ready. `images`: as for a new cluster."""
    if not (plan.paths.config / f"{_KUBELET}.json").exists():
        raise UsageError(f"cluster {plan.name!r} was made by an older version: take it down, and up again")
    if not (plan.paths.wanted / SECOND).exists():
        known = seed.plant(images, plan.paths.root / SECOND)
        write_atomically(plan.paths.root / SECOND_NOTE, json.dumps(known) + "\n")
        for name in (SECOND, _KUBELET):
            (plan.paths.wanted / name).touch()
    _await(lambda: all(component_status(plan.name).get(n, {}).get("healthy") for n in (SECOND, _KUBELET)), plan)
    find = ("get", "node", plan.second_node, "--ignore-not-found", "-o", _READY)
    _await(lambda: kubectl(*find) == "True", plan)
    kubectl("uncordon", plan.second_node)
    progress(f"{plan.name}: node {plan.second_node} is ready")


def _await(is_so: Callable[[], bool], plan: Plan) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise ClusterError(
                f"the second node is not ready in {_READY_SECONDS:.0f} s; see {log_file(plan, _KUBELET)}"
            )
        time.sleep(0.2)

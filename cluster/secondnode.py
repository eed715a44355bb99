"""A second real node: a containerd and a kubelet beside those of the first one, in the same namespaces.

Both nodes have the address of the cluster, and all processors and all memory of the machine: what pods request is
counted for each node alone. It shows what needs two nodes and real pods. With a disk of its own, which its pods can
fill, it also shows what a kubelet does under pressure, without a risk for the machine.
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
# Each pod of Argo has a copy of its executor, of 110 MiB, in a volume. The disk is in memory.
LEAST_DISK_MIB, MOST_DISK_MIB = 256, 4096
_PRESSURE = "10%"
_RELIEF = "5s"  # by default a node is under pressure for five minutes after the last one
_READY = 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'


def add(plan: Plan, kubectl: Kubectl, images: Path, progress: Progress, *, disk_mib: int = 0) -> None:
    """Starts it unless it runs, and waits until it is ready. `images`: as for a new cluster. `disk_mib`: the size of
    the disk of its pods' volumes; 0: that of the machine."""
    config = plan.paths.config / f"{_KUBELET}.json"
    if not config.exists():
        raise UsageError(f"cluster {plan.name!r} was made by an older version: take it down, and up again")
    disk = str(disk_mib or "")
    if not (plan.paths.wanted / SECOND).exists():
        known = seed.plant(images, plan.paths.root / SECOND)
        write_atomically(plan.paths.root / SECOND_NOTE, json.dumps(known) + "\n")
        if disk:
            given = json.loads(config.read_text())
            given["evictionHard"]["nodefs.available"] = _PRESSURE
            given["evictionPressureTransitionPeriod"] = _RELIEF
            write_atomically(config, json.dumps(given, indent=2) + "\n")
        write_atomically(plan.paths.wanted / _KUBELET, disk)
        (plan.paths.wanted / SECOND).touch()
    elif disk and (plan.paths.wanted / _KUBELET).read_text() != disk:
        raise UsageError(f"cluster {plan.name!r} has a second node with another disk: take it down, and up again")
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

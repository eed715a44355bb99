"""Karpenter with its kwok provider: a real autoscaler, whose nodes are fake.

It makes Node objects for pending pods, and kwok answers for them as for other fake nodes (fakenodes.py). The instance
types and the pool are in karpenter/. It is built when it is first asked for, and needs the version of Go that its
go.mod names.
"""

from __future__ import annotations

import shutil
import time

from cluster import build
from cluster.components import KARPENTER, log_file
from cluster.errors import ClusterError
from cluster.fakenodes import start_kwok
from cluster.kube import Kubectl
from cluster.lifecycle import component_status
from cluster.parts import Part, Program
from cluster.paths import PACKAGE
from cluster.plan import Plan
from cluster.progress import Progress
from cluster.supervisor import write_atomically

PART = Part(
    "karpenter", "sigs.k8s.io/karpenter", "1.14.0", (Program("kwok", "sigs.k8s.io/karpenter/kwok"),)
)  # fmt: skip
_CRDS = ("pkg/apis/crds", "kwok/apis/crds")
_READY_SECONDS = 120.0


def add(plan: Plan, kubectl: Kubectl, progress: Progress) -> None:
    """Starts it unless it runs, with one pool, and waits until it is healthy."""
    program = build.build_one(PART, "kwok", progress)
    start_kwok(plan)
    source = build.module_folder(PART)
    for folder in _CRDS:
        kubectl("apply", "--server-side", "-f", str(source / folder))
    kubectl("wait", "--for=condition=Established", "crd", "--all", f"--timeout={_READY_SECONDS:.0f}s")
    kubectl("apply", "-f", str(PACKAGE / "karpenter" / "pool.yaml"))
    shutil.copy(PACKAGE / "karpenter" / "instance-types.json", plan.paths.config / "instance-types.json")
    write_atomically(plan.paths.wanted / KARPENTER, str(program))
    deadline = time.monotonic() + _READY_SECONDS
    while not component_status(plan.name).get(KARPENTER, {}).get("healthy"):
        if time.monotonic() > deadline:
            raise ClusterError(f"Karpenter not ready in {_READY_SECONDS:.0f} s; see {log_file(plan, KARPENTER)}")
        time.sleep(0.2)
    progress(f"{plan.name}: Karpenter {PART.version} adds fake nodes of its pool `gpu`")

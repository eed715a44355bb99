"""What the parts share: daemons, fake nodes, pods of other users, and the processes of the cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import allocating
from diflow.kube.api import Cluster
from diflow.kube.kinds import NODE, POD
from tests.builders import template
from tests.clusters import ROOT, TestCluster, wait_until
from tests.e2e.allocators import Daemon
from tests.e2e.live import FAKE

Json = dict[str, Any]

PHASE = "workflows.argoproj.io/phase"


def say(**values: object) -> None:
    """Print an intermediate result as one line of JSON."""
    print(json.dumps(values), flush=True)


def allocator(found: TestCluster, namespace: str, name: str = "allocator", **settings: str) -> Daemon:
    """An allocator with the settings that an administrator would find, on a metrics port of its own."""
    folder = Path(tempfile.mkdtemp(prefix="diflow-scale-"))
    port = {"DIFLOW_ALLOCATOR_METRICS_PORT": str(allocating.free_port())}
    return Daemon(found, namespace, folder / name, {**allocating.SETTINGS, **port, **settings})


def fake_nodes(found: TestCluster, count: int) -> None:
    """Add or remove fake nodes until there are `count`."""
    command = [sys.executable, "-m", "cluster", "fake-nodes", "--name", str(found.name), "--count", str(count)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def controller_restarts(found: TestCluster) -> None:
    """Wait until Argo's controller works again after a change of its Deployment."""
    found.kubectl("rollout", "status", "deployment/workflow-controller", "-n", "argo", "--timeout=280s")

    def leads() -> bool:
        pods = found.kubectl("get", "pods", "-n", "argo", "-l", "app=workflow-controller", "-o", "name").split()
        lease = ("get", "lease", "workflow-controller", "-n", "argo", "-o", "jsonpath={.spec.holderIdentity}")
        return pods == [f"pod/{found.kubectl(*lease)}"]

    wait_until("Argo's new controller has the Lease of the one before", leads, timeout=120)
    time.sleep(5)  # until it has looked at all Workflows once


def fake_template(seconds: float, cpu: str = "1") -> Json:
    """A pod template for fake nodes; kwok ends the pod after `seconds`."""
    made = template(
        "sleep 1",
        container={"resources": {"requests": {"cpu": cpu, "memory": "64Mi"}}},
        nodeSelector={FAKE: "fake"},
        tolerations=[{"key": FAKE, "operator": "Exists"}],
    )
    made["metadata"] = {"annotations": {"kwok.x-k8s.io/duration": f"{seconds:g}s"}}
    return made


def fill(cluster: Cluster, namespace: str) -> None:
    """A pod of another user's on each node: it uses all processors of a fake node, and one of a real one."""
    for node in cluster.list_all(NODE):
        name = node["metadata"]["name"]
        is_fake = any(taint["key"] == FAKE for taint in node["spec"].get("taints", ()))
        cpu = node["status"]["allocatable"]["cpu"] if is_fake else "1"
        spec = {
            "nodeName": name, "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": "x", "resources": {"requests": {"cpu": cpu}}}],
        }  # fmt: skip
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"fill-{name}"}, "spec": spec}
        cluster.create(POD, body, namespace=namespace)


def command_seconds(found: TestCluster, namespace: str, *arguments: str) -> float:
    """How long a command of diflow takes, as a process."""
    began = time.monotonic()
    command = [sys.executable, "-m", "diflow", *arguments, "-n", namespace]
    subprocess.run(command, env=found.environment, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def processes(found: TestCluster, program: str) -> list[int]:
    """Ids of the cluster's processes that run `program`. The cluster must be one of this machine."""
    out = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has ended
            continue
        if Path(words[0]).name == program and any(str(found.name) in word for word in words[1:]):
            out.append(int(folder.name))
    return out


def kill_for(found: TestCluster, program: str, seconds: float) -> int:
    """Send SIGKILL to a program of the cluster each time that it is started, for some seconds. Returns how often."""
    count, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        for pid in processes(found, program):
            try:
                os.kill(pid, signal.SIGKILL)
                count += 1
            except ProcessLookupError:
                pass
        time.sleep(0.1)
    return count


def plans(daemon: Daemon) -> Sequence[Json]:
    """The allocator's log lines about plans."""
    return [line for line in daemon.lines() if line.get("event") == "plan"]


@contextmanager
def server(found: TestCluster, namespace: str) -> Iterator[tuple[int, int]]:
    """A server for one namespace; yields its port and its process id."""
    port = allocating.free_port()
    settings = {
        "DIFLOW_SERVER_PORT": str(port), "DIFLOW_SERVER_METRICS_PORT": "-1",
        "DIFLOW_SERVER_WATCHED_NAMESPACE": namespace,
    }  # fmt: skip
    command = [sys.executable, "-m", "diflow", "server", "run", "--log-format", "json"]
    log = Path(tempfile.mkdtemp(prefix="diflow-scale-")) / "server"
    with log.open("wb") as out:
        process = subprocess.Popen(command, env={**found.environment, **settings}, stdout=out, stderr=out, cwd=ROOT)
        try:
            yield port, process.pid
        finally:
            process.terminate()
            process.wait(60)

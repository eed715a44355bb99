"""How long the host name of a replica takes to resolve, with thousands of pods behind the Service of a namespace.

The pods are fake and of no job: they have the label that the Service selects, a host name and an address. The lookups
are made by one real pod, through CoreDNS. Host names resolve at once for a pod that has its EndpointSlice; how long the
cluster takes for that is measured too.
"""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks import allocating, live
from benchmarks.figures import Figure
from benchmarks.scale.common import Json, fake_nodes, processes, say
from cluster.diflowimage import reference
from diflow.common import keys
from diflow.kube.api import Cluster
from diflow.kube.kinds import POD, Kind
from tests.clusters import TestCluster, wait_until
from tests.e2e.live import FAKE

PER_NODE = 200
LOOKUPS = 500
SLICE = Kind("EndpointSlice", "discovery.k8s.io", "v1", "endpointslices")


def measure(*, sizes: tuple[int, ...] = (10, 1000, 5000)) -> list[Figure]:
    """The figures of this part, for each number of pods behind the Service."""
    out: list[Figure] = []
    with live.namespace("lookups") as (found, cluster, namespace):
        fake_nodes(found, max(sizes) // PER_NODE + 1)
        found.run("python3", "-m", "cluster", "load-image", "--name", str(found.name), timeout=600)
        made = 0
        for size in sorted(sizes):
            with ThreadPoolExecutor(16) as pool:
                list(pool.map(lambda i: cluster.create(POD, _pod(i), namespace=namespace), range(made, size - 1)))
            made = size - 1
            wait_until("they run", lambda: not allocating.pending(cluster, namespace), timeout=1200, every=2.0)
            wait_until(f"{made} are resolvable", lambda n=made: _addresses(cluster, namespace) >= n, timeout=900)  # type: ignore[misc]
            late = _after_creation(found, cluster, namespace, size)
            made = size
            took = _lookups(found, namespace, size)
            count = len(cluster.list_all(SLICE, namespace=namespace, metadata_only=True))
            note = f"{took['failed']} of {LOOKUPS} failed; {count} EndpointSlices; load {os.getloadavg()[0]:.1f}"
            memory = sum(allocating.memory(pid)[0] for pid in processes(found, "coredns"))
            server = f"CoreDNS {memory:.0f} MiB"
            say(pods=size, slices=count, coredns_mib=round(memory), resolvable_after=round(late, 2), **took)
            out += [
                Figure("lookups", f"{size} pods: a lookup, p50", took["p50_ms"], "ms", None, note),
                Figure("lookups", f"{size} pods: a lookup, p99", took["p99_ms"], "ms", None, server),
                Figure("lookups", f"{size} pods: created → resolvable", late, "s", None, "one more pod"),
                Figure("lookups", f"{size} pods: lookups that failed", took["failed"], "", 0),
            ]  # fmt: skip
        allocating.empty(found, namespace, POD)
    return out


def _name(number: int) -> str:
    return f"many-worker-{number}"


def _pod(number: int) -> Json:
    name = _name(number)
    labels = {keys.OPERATOR: keys.OPERATOR_VALUE, keys.TASK_NAME: "worker"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels, "annotations": {"kwok.x-k8s.io/duration": "24h"}},
        "spec": {
            "hostname": name, "subdomain": keys.SERVICE, "nodeName": f"fake-{number // PER_NODE:05}",
            "tolerations": [{"operator": "Exists"}], "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "x"}],
        },
    }  # fmt: skip


def _addresses(cluster: Cluster, namespace: str) -> int:
    slices = cluster.list_all(SLICE, namespace=namespace)
    return sum(bool(endpoint.get("hostname")) for one in slices for endpoint in one.get("endpoints") or ())


def _after_creation(found: TestCluster, cluster: Cluster, namespace: str, size: int) -> float:
    """Seconds from the creation of one more pod until its host name resolves."""
    script = _RESOLVES.format(host=_host(namespace, size - 1))
    _run_pod(found, namespace, f"waits-{size}", script, wait=False)
    wait_until(
        "it tries",
        lambda: (
            found.kubectl("get", "pod", f"waits-{size}", "-n", namespace, "-o", "jsonpath={.status.phase}") == "Running"
        ),
    )
    time.sleep(3)
    began = time.time()
    cluster.create(POD, _pod(size - 1), namespace=namespace)
    return float(_result(found, namespace, f"waits-{size}")) - began


def _lookups(found: TestCluster, namespace: str, size: int) -> dict[str, Any]:
    hosts = [_host(namespace, size * i // LOOKUPS % size) for i in range(LOOKUPS)]
    _run_pod(found, namespace, f"asks-{size}", _LOOKS_UP.format(hosts=json.dumps(hosts)), wait=True)
    out: dict[str, Any] = json.loads(_result(found, namespace, f"asks-{size}"))
    return out


def _host(namespace: str, number: int) -> str:
    return f"{_name(number)}.{keys.SERVICE}.{namespace}.svc.cluster.local"


_LOOKS_UP = """
import json, socket, time
hosts, took, failed = {hosts}, [], 0
for host in hosts:
    began = time.perf_counter()
    try:
        socket.getaddrinfo(host + ".", 1, socket.AF_INET)
    except OSError:
        failed += 1
    took.append(1000 * (time.perf_counter() - began))
took.sort()
at = lambda share: round(took[min(len(took) - 1, int(share * len(took)))], 2)
print(json.dumps({{"p50_ms": at(0.5), "p99_ms": at(0.99), "failed": failed}}))
"""
_RESOLVES = """
import socket, time
while True:
    try:
        socket.getaddrinfo("{host}.", 1, socket.AF_INET)
        break
    except OSError:
        time.sleep(0.05)
print(time.time())
"""


def _run_pod(found: TestCluster, namespace: str, name: str, script: str, *, wait: bool) -> None:
    """A real pod that runs a Python script."""
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": FAKE, "operator": "DoesNotExist"}]}]}}},
            "containers": [{"name": "main", "image": reference(), "command": ["python3", "-c", script]}],
        },
    }  # fmt: skip
    found.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(body))
    if wait:
        _result(found, namespace, name)


def _result(found: TestCluster, namespace: str, name: str) -> str:
    """The last line that a pod printed, after its end."""
    path = ("get", "pod", name, "-n", namespace, "-o", "jsonpath={.status.phase}")
    wait_until(f"pod {name} has ended", lambda: found.kubectl(*path) in ("Succeeded", "Failed"), timeout=300)
    return found.kubectl("logs", name, "-n", namespace).splitlines()[-1]

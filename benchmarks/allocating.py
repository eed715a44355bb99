"""How the allocator scales with the cluster: 100, 1,000 and 5,000 pods on fake nodes of a real API server.

Argo creates the pods of the first size. The larger ones are copies, because Argo takes hours on a small machine to
create thousands of pods, and the subject is the allocator: the workflow controller is stopped, and the Workflows (with
the status that Argo gave the originals) and their gated pods (with Argo's labels, annotations and owners) are created
directly. Everything else is real: the API server, kube-scheduler, and kwok, which simulates the nodes.

Measured from outside: from a request until a watch shows the result.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from benchmarks import live
from benchmarks.figures import Figure
from benchmarks.watching import Watch
from diflow import DIJob, Task
from diflow.common import keys
from diflow.common.tables import table
from diflow.kube.api import Cluster
from diflow.kube.kinds import POD, WORKFLOW, Kind
from diflow.workflows import render
from tests.builders import template
from tests.clusters import ROOT, TestCluster, wait_until
from tests.e2e.allocators import Daemon
from tests.e2e.live import FAKE

Json = dict[str, Any]

SIZES = (100, 1000, 5000)
PER_JOB = 5
PER_NODE = 25
# Up to this number Argo creates the pods.
BY_ARGO = 100
IDLE_SECONDS = 60.0
BARE_PODS = 1000
MODELS = ("model-a", "model-b")
# As an administrator would find them; the live tests' helper makes all of them shorter.
SETTINGS = {
    "DIFLOW_ALLOCATOR_PERIOD_SECONDS": "60",
    "DIFLOW_ALLOCATOR_LOST_AFTER_SECONDS": "60",
    "DIFLOW_ALLOCATOR_BETWEEN_ROUNDS_SECONDS": "10",
}


@dataclass(frozen=True)
class Row:
    """The figures of one size. Times in seconds, memory in MiB, `idle` in cores."""

    pods: int
    jobs: int
    nodes: int
    made_by: str
    started: float
    """From the allocator's start, with all pods waiting, until the last pod was admitted."""
    ungated_per_second: float
    cpu_ms_per_pod: float
    bare_per_second: float
    """The same for a client that does nothing else: the API server's part."""
    server_ms_per_pod: float
    bare_server_ms_per_pod: float
    """CPU of the API server for a pod until it runs: admitted by the allocator, and by that client."""
    cpu_ms_per_cycle: float
    cycles: tuple[float, ...]
    without_policy: tuple[float, ...]
    asking: tuple[float, ...]
    """The API server's time for the request, before the cycle; the plan is one more patch of the same object."""
    memory: float
    peak: float
    idle: float
    counted: int
    load: float

    def cells(self) -> tuple[str, ...]:
        middle, late = percentiles(self.cycles)
        middle_own, late_own = percentiles(self.without_policy)
        middle_asking, late_asking = percentiles(self.asking)
        return (
            f"{self.pods}", f"{self.jobs}", f"{self.nodes}", self.made_by,
            f"{middle:.2f} / {late:.2f}", f"{middle_own:.2f} / {late_own:.2f}",
            f"{middle_asking:.2f} / {late_asking:.2f}",
            f"{self.ungated_per_second:.0f}", f"{self.bare_per_second:.0f}", f"{self.cpu_ms_per_pod:.1f}",
            f"{self.server_ms_per_pod:.0f} / {self.bare_server_ms_per_pod:.0f}",
            f"{self.cpu_ms_per_cycle:.0f}",
            f"{self.started:.1f}", f"{self.memory:.0f} / {self.peak:.0f}", f"{100 * self.idle:.2f}",
            f"{self.counted}", f"{self.load:.1f}",
        )  # fmt: skip


HEAD = (
    "pods", "jobs", "nodes", "made by", "cycle s p50 / p95", "less policy", "request's patch",
    "ungated/s", "bare client/s", "CPU ms/pod", "API server's / bare", "CPU ms/cycle",
    "all in s", "MiB now / peak", "idle %", "cycles", "load",
)  # fmt: skip


def measure(*, sizes: Sequence[int] = SIZES, probes: int = 40) -> list[Figure]:
    """The figures of the largest size. Prints a table of all sizes."""
    print(_CONDITIONS, flush=True)
    with live.namespace("bench-alloc") as (found, cluster, namespace), quiet_argo(found, namespace) as silence:
        grown = Grown(found, cluster, namespace)
        rows = []
        for size in sorted(sizes):
            if size > BY_ARGO:
                grown.keep_models()
                silence()
            grown.to(size)
            rows.append(_one(grown, probes))
            print(table(HEAD, [row.cells() for row in rows]), flush=True)
            print(flush=True)
    return figures(rows[-1])


def figures(row: Row) -> list[Figure]:
    """The largest size beside its limits."""
    part, load = "allocating", f"{row.pods} pods, {row.jobs} jobs, {row.nodes} nodes; load average {row.load:.1f}"
    middle, late = percentiles(row.cycles)
    _, own = percentiles(row.without_policy)
    _, asking = percentiles(row.asking)
    per_pod = 1 / row.ungated_per_second
    return [
        Figure(part, "changed object → written plan, p50", middle, "s", None, load),
        Figure(part, "changed object → written plan, p95", late, "s", 1.0, f"{len(row.cycles)} changes, one by one"),
        Figure(part, "the same less the policy, p95", own, "s", 0.3, "the patch that writes the plan included"),
        Figure(
            part, "the request's own patch, p95", asking, "s", None, "the API server's; the plan is another such patch"
        ),
        Figure(
            part, "CPU of a change and its plan", row.cpu_ms_per_cycle, "ms", None, "all that the daemon does in it"
        ),
        Figure(part, "admitting one pod", 1000 * per_pod, "ms", 5.0, f"{row.ungated_per_second:.0f} pods a second"),
        Figure(
            part, "the same by a bare client", 1000 / row.bare_per_second, "ms", None, "16 threads, nothing else to do"
        ),
        Figure(
            part, "allocator : bare client", row.bare_per_second / row.ungated_per_second, "×", None, "pods admitted"
        ),
        Figure(part, "API server's CPU for one pod", row.server_ms_per_pod, "ms", None, "until it runs"),
        Figure(
            part,
            "API server's CPU, allocator : bare client",
            row.server_ms_per_pod / row.bare_server_ms_per_pod,
            "×",
            2.0,
            "a fifth of a job's patch and Event, and one watch more, come to the pod's own",
        ),
        Figure(part, "memory of the daemon", row.memory, "MiB", 300.0, f"resident; at most {row.peak:.0f}"),
        Figure(part, "idle daemon, of a core", 100 * row.idle, "%", 2.0, f"{IDLE_SECONDS:.0f} s, one plan in them"),
    ]


_CONDITIONS = f"""\
The allocator on fake nodes. Up to {BY_ARGO} pods Argo itself makes them (made by: Argo). More are copies: Argo's
controller is stopped, and Workflows with the status that Argo gave their model, and their gated pods with Argo's
labels, annotations and owners, are made directly on the API server. kube-scheduler binds them, and kwok runs them.
cycle: from the answer to a request for one replica more, which stands beside it, until a watch shows the plan in the
Workflow. CPU: of the daemon; for a pod from when it leads until all are admitted, with its lists and all Workflows.
API server's: its CPU for a pod in ms, from then until all run, with what kube-scheduler and kwok ask of it.
bare client: up to {BARE_PODS} such pods ungated by a program that does nothing else. load: load average of a minute;
this machine has {os.cpu_count()} processors.
"""


def percentiles(values: Sequence[float]) -> tuple[float, float]:
    """(median, 95th percentile)."""
    ordered = sorted(values)
    return statistics.median(ordered), ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]


# --- the cluster's load -----------------------------------------------------------------------------------------------


@contextmanager
def quiet_argo(found: TestCluster, namespace: str) -> Iterator[Callable[[], None]]:
    """Yields a function that stops Argo's controller. Starts it again at the end, after everything is deleted."""

    def scale(replicas: int) -> None:
        found.kubectl("scale", "deployment/workflow-controller", "-n", "argo", f"--replicas={replicas}")

    def stop() -> None:
        scale(0)
        ours = ("pods", "-n", "argo", "-l", "app=workflow-controller", "-o", "name")
        wait_until("Argo's controller has ended", lambda: not found.kubectl("get", *ours).strip())

    try:
        yield stop
    finally:
        for kind in (WORKFLOW, POD):
            empty(found, namespace, kind)
        scale(1)


@dataclass
class Grown:
    """A namespace with a growing number of jobs."""

    found: TestCluster
    cluster: Cluster
    namespace: str
    jobs: list[str] = field(default_factory=list)
    waiting: int = 0
    models: list[tuple[Json, list[Json]]] = field(default_factory=list)
    made_by: str = "Argo"

    @property
    def pods(self) -> int:
        return PER_JOB * len(self.jobs)

    @property
    def nodes(self) -> int:
        return max(8, self.pods // PER_NODE)  # capacity for the requests of the probes

    def to(self, size: int) -> None:
        """Add nodes, and jobs whose pods wait, until there are `size` pods."""
        first, count = len(self.jobs), size // PER_JOB
        names = [f"job-{i:05}" for i in range(first, count)]
        self.jobs += names
        self.waiting = PER_JOB * len(names)
        _cluster("fake-nodes", "--name", str(self.found.name), "--count", str(self.nodes))
        began = time.monotonic()
        with ThreadPoolExecutor(8) as pool:
            if self.models:
                self.made_by = "copies"
                list(pool.map(self.copy, names, range(len(names))))
            else:
                list(pool.map(self._submit, names, range(len(names))))
        wait_until(f"{self.waiting} pods wait at their gate", self._all_are_there, timeout=900, every=5.0)
        _say(f"{self.waiting} more gated pods by {self.made_by} in {time.monotonic() - began:.0f} s")

    def keep_models(self) -> None:
        """Let Argo run two jobs, one of each kind, and keep them as templates of the copies."""
        if self.models:
            return
        _cluster("fake-nodes", "--name", str(self.found.name), "--count", "2")
        for i, name in enumerate(MODELS):
            self._submit(name, i)
        for name in MODELS:
            self._until_gated(name)
            time.sleep(1)  # until Argo has written the status
            pods = self._gated(name)
            self.models.append((self.cluster.get(WORKFLOW, name, namespace=self.namespace), pods))
        for name in MODELS:
            self.cluster.delete(WORKFLOW, name, namespace=self.namespace)
        wait_until("the models are gone", lambda: not any(self._gated(name) for name in MODELS))

    def _until_gated(self, name: str) -> None:
        wait_until(f"the pods of {name} wait at their gate", lambda: len(self._gated(name)) == PER_JOB)

    def _all_are_there(self) -> bool:
        return len(pending(self.cluster, self.namespace)) == self.waiting

    def _gated(self, job: str) -> list[Json]:
        pods = self.cluster.list_all(POD, namespace=self.namespace, labels=f"{keys.JOB}={job},{keys.TASK_NAME}")
        return [pod for pod in pods if pod["spec"].get("schedulingGates")]

    def _submit(self, name: str, number: int) -> None:
        workflow = render(_job(name, number))
        del workflow["spec"]["suspend"]  # as after `argo resume`: its pods are there, and wait at their gates
        self.cluster.create(WORKFLOW, workflow, namespace=self.namespace)

    def copy(self, name: str, number: int) -> None:
        workflow, pods = self.models[number % len(self.models)]
        model = workflow["metadata"]["name"]
        made = self._create(WORKFLOW, workflow, model, name, {})
        for pod in pods:
            owner = {**pod["metadata"]["ownerReferences"][0], "name": name, "uid": made["metadata"]["uid"]}
            self._create(POD, pod, model, name, {"ownerReferences": [owner]})

    def _create(self, kind: Kind, model: Json, old: str, new: str, metadata: Json) -> Json:
        body = json.loads(json.dumps(model).replace(old, new))
        kept = {key: body["metadata"][key] for key in ("name", "labels", "annotations") if key in body["metadata"]}
        body["metadata"] = {**kept, **metadata}
        return self.cluster.create(kind, body, namespace=self.namespace)


def _job(name: str, number: int) -> DIJob:
    made = template(
        "sleep 1",
        container={"resources": {"requests": {"cpu": "1", "memory": "64Mi"}}},
        nodeSelector={FAKE: "fake"},
        tolerations=[{"key": FAKE, "operator": "Exists"}],
    )
    made["metadata"] = {"annotations": {"kwok.x-k8s.io/duration": "24h"}}
    tasks = (
        Task(name="learner", replicas=1, template=made),
        Task(name="collector", replicas=PER_JOB - 1, min_replicas=PER_JOB - 1, template=made),
    )
    return DIJob(name=name, tasks=tasks, scheduling="gang", preemptible=number % 2 == 1)


# --- one size ---------------------------------------------------------------------------------------------------------


def _one(grown: Grown, probes: int) -> Row:
    folder = Path(tempfile.mkdtemp(prefix="diflow-bench-"))
    port = free_port()
    settings = {**SETTINGS, "DIFLOW_ALLOCATOR_METRICS_PORT": str(port)}
    daemon = Daemon(grown.found, grown.namespace, folder / "log", settings)
    with Watch(grown.cluster, grown.namespace, POD, _is_admitted) as admitted:
        before = set(admitted.when(bool))
        began = time.monotonic()
        daemon.start()
        try:
            assert daemon.process is not None
            pid = daemon.process.pid
            daemon.until_leading()
            before_work, before_served = cpu_seconds(pid), server_seconds(grown.found)
            wait_until(
                f"{grown.waiting} pods are admitted",
                lambda: _runs(daemon) and len(admitted.when(bool)) - len(before) >= grown.waiting,
                timeout=900,
                every=1.0,
            )
            cpu = cpu_seconds(pid) - before_work
            times = sorted(at for name, at in admitted.when(bool).items() if name not in before)
            rate = (len(times) - 1) / max(1e-6, times[-1] - times[0])
            wait_until("all pods run", lambda: not pending(grown.cluster, grown.namespace), timeout=900, every=5.0)
            served = (server_seconds(grown.found) - before_served) / len(times)
            _until_still(port)
            before_cycles = cpu_seconds(pid)
            cycles, own, asking = replanned(grown, daemon, probes)
            cpu_of_cycles = cpu_seconds(pid) - before_cycles
            _until_still(port)
            idle = _idle(pid)
            load = os.getloadavg()[0]
            resident, peak = memory(pid)
            counted = _counted(port)
        finally:
            daemon.stop()
    bare_rate, bare_served = _bare(grown)
    return Row(
        pods=grown.pods,
        jobs=len(grown.jobs),
        nodes=grown.nodes,
        made_by=grown.made_by,
        started=times[-1] - began,
        ungated_per_second=rate,
        cpu_ms_per_pod=1000 * cpu / len(times),
        cpu_ms_per_cycle=1000 * cpu_of_cycles / probes,
        bare_per_second=bare_rate,
        server_ms_per_pod=1000 * served,
        bare_server_ms_per_pod=1000 * bare_served,
        cycles=tuple(cycles),
        without_policy=tuple(own),
        asking=tuple(asking),
        memory=resident,
        peak=peak,
        idle=idle,
        counted=counted,
        load=load,
    )


def _runs(daemon: Daemon) -> bool:
    """True; an error with the allocator's last output if it has ended."""
    if daemon.process is None or daemon.process.poll() is not None:
        raise RuntimeError(f"the allocator has ended: {daemon.lines()[-3:]}")
    return True


def replanned(grown: Grown, daemon: Daemon, probes: int) -> tuple[list[float], list[float], list[float]]:
    """Request one more replica for jobs, one after the other. Returns the seconds until the plan is written, with and
    without the policy, and those of the request itself.

    A cycle lasts from the response to the request until a watch shows the Workflow's new allocation.
    """
    whole: list[float] = []
    own: list[float] = []
    asking: list[float] = []
    steady = [name for i, name in enumerate(grown.jobs) if i % 2 == 0]
    with Watch(grown.cluster, grown.namespace, WORKFLOW, _allocation) as plans:
        for i in range(probes):
            name = steady[i * max(1, len(steady) // probes) % len(steady)]
            workflow = grown.cluster.get(WORKFLOW, name, namespace=grown.namespace)
            old = _allocation(workflow)
            patch = _ask_for_one_more(workflow)
            lines = len(_plans(daemon))
            asked = time.monotonic()
            grown.cluster.patch(WORKFLOW, name, patch, namespace=grown.namespace)
            began = time.monotonic()
            asking.append(began - asked)
            ended = plans.until(
                f"{name} is given another allocation",
                lambda seen, name=name, old=old: seen.get(name, old) != old,  # type: ignore[misc]
                timeout=60,
            )
            time.sleep(0.3)  # for the log, and for other effects of the change
            whole.append(ended - began)
            # The first plan after the change is the one that includes it.
            spent = [float(line["seconds"]) for line in _plans(daemon)[lines:]][:1]
            own.append(ended - began - sum(spent))
            time.sleep(0.7)
    return whole, own, asking


def _ask_for_one_more(workflow: Json) -> list[Json]:
    parameters = workflow["spec"]["arguments"]["parameters"]
    at = next(i for i, item in enumerate(parameters) if item["name"] == keys.PARAM_REPLICAS)
    asked = json.loads(parameters[at]["value"])
    value = json.dumps({**asked, "collector": asked["collector"] + 1})
    return [{"op": "replace", "path": f"/spec/arguments/parameters/{at}/value", "value": value}]


def _plans(daemon: Daemon) -> list[Json]:
    return [line for line in daemon.lines() if line.get("event") == "plan"]


def _until_still(port: int, seconds: float = 3.0) -> None:
    """Wait until the allocator has had nothing to carry out for some seconds."""
    since, last = time.monotonic(), -1
    deadline = time.monotonic() + 300
    while time.monotonic() - since < seconds and time.monotonic() < deadline:
        now = _counted(port)
        if now != last:
            since, last = time.monotonic(), now
        time.sleep(0.5)


def pending(cluster: Cluster, namespace: str, *, labels: str = keys.TASK_NAME) -> list[Json]:
    """Metadata of the replicas' pods that do not run yet; a metadata request costs the API server least."""
    fields = "status.phase=Pending"
    return cluster.list_all(POD, namespace=namespace, labels=labels, fields=fields, metadata_only=True)


def _bare(grown: Grown) -> tuple[float, float]:
    """(pods ungated per second by 16 threads of a process that does nothing else, the API server's CPU seconds per pod
    until it runs), for pods like those of the jobs.

    The writes of kube-scheduler and the kubelets are the same, so the difference is the allocator's.
    """
    (like,) = grown.cluster.list_all(POD, namespace=grown.namespace, labels=keys.TASK_NAME, limit=1)[:1]
    names = [f"bare-{grown.pods}-{i:05}" for i in range(min(BARE_PODS, grown.pods))]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: grown.cluster.create(POD, _like(like, name), namespace=grown.namespace), names))
    # On separate nodes: a pod that does not fit causes other writes.
    _cluster("fake-nodes", "--name", str(grown.found.name), "--count", str(2 * grown.nodes))
    nodes = [f"fake-{grown.nodes + i % grown.nodes:05}" for i in range(len(names))]
    before = server_seconds(grown.found)
    answer = grown.found.run(
        sys.executable, "-c", _BARE, grown.namespace, stdin=json.dumps(list(zip(names, nodes, strict=True)))
    )
    waiting = partial(pending, grown.cluster, grown.namespace, labels=_BARE_LABEL)
    wait_until("they all run", lambda: not waiting(), timeout=900, every=5.0)
    served = (server_seconds(grown.found) - before) / len(names)
    empty(grown.found, grown.namespace, POD, _BARE_LABEL)
    return float(answer), served


_BARE_LABEL = "diflow-bench=bare"
_BARE = """
import json, sys, time
from concurrent.futures import ThreadPoolExecutor
from diflow.kube.kinds import POD
from diflow.kube.api import Cluster

cluster, pods = Cluster.connect(), json.load(sys.stdin)

def admit(pod):
    spec = {"schedulingGates": None, "nodeSelector": {"kubernetes.io/hostname": pod[1]}}
    cluster.patch(POD, pod[0], {"spec": spec}, namespace=sys.argv[1])

with ThreadPoolExecutor(16) as pool:
    list(pool.map(admit, pods[:16]))
    began = time.monotonic()
    list(pool.map(admit, pods[16:]))
    print((len(pods) - 16) / (time.monotonic() - began))
"""


def _like(pod: Json, name: str) -> Json:
    """A gated pod without a job, otherwise the same."""
    spec = {key: value for key, value in pod["spec"].items() if key not in ("nodeName", "nodeSelector", "hostname")}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": dict([_BARE_LABEL.split("=")]),
            "annotations": pod["metadata"]["annotations"],
        },
        "spec": {**spec, "schedulingGates": [{"name": keys.GATE}]},
    }


def empty(found: TestCluster, namespace: str, kind: Kind, labels: str = "") -> None:
    """Delete all objects of a kind. The API server ends a request after a minute, so repeat until none is left."""
    query = urlencode({"labelSelector": labels, "gracePeriodSeconds": 0, "propagationPolicy": "Background"})

    def deleted() -> bool:
        found.kubectl("delete", "--raw", f"{kind.path(namespace)}?{query}")
        return True

    wait_until(f"no {kind.plural} are left", deleted, timeout=900)


# --- looking at the daemon and at the API server ----------------------------------------------------------------------


def _is_admitted(pod: Json) -> str:
    is_ours = keys.TASK_NAME in (pod["metadata"].get("labels") or {})
    return "yes" if is_ours and not pod["spec"].get("schedulingGates") else ""


def _allocation(workflow: Json) -> str:
    return str((workflow["metadata"].get("annotations") or {}).get(keys.ALLOCATION) or "")


def _idle(pid: int) -> float:
    before, began = cpu_seconds(pid), time.monotonic()
    time.sleep(IDLE_SECONDS)
    return (cpu_seconds(pid) - before) / (time.monotonic() - began)


def cpu_seconds(pid: int) -> float:
    """User and system seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def server_seconds(found: TestCluster) -> float:
    """CPU seconds of the API server, from its own metrics."""
    lines = found.kubectl("get", "--raw", "/metrics").splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("process_cpu_seconds_total ")))


def memory(pid: int) -> tuple[float, float]:
    """(resident, peak resident) memory in MiB."""
    found = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(found["VmRSS"].split()[0]) / 1024, int(found["VmHWM"].split()[0]) / 1024


def free_port() -> int:
    """A port for the allocator's metrics that nothing else on this machine uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _counted(port: int) -> int:
    """Cycles of the allocator since its start."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return int(sum(float(line.split()[-1]) for line in lines if line.startswith("diflow_allocator_cycles_total")))


def _cluster(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "cluster", *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def _say(line: str) -> None:
    print(line, flush=True)

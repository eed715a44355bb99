"""The allocator as a separate process on a real cluster, and fake nodes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from diflow import DIJob, Task
from diflow.common import keys
from diflow.kube.kinds import WORKFLOW
from diflow.record.status.status import JobStatus, derive
from diflow.workflows import render
from tests.builders import template
from tests.clusters import ROOT, TestCluster, alone, wait_until
from tests.e2e.live import FAKE, Live

ZONE = "diflow-test/zone"
# Shorter periods of the daemon, for which the tests wait.
_QUICK = {
    "DIFLOW_ALLOCATOR_LOST_AFTER_SECONDS": "5",
    "DIFLOW_ALLOCATOR_PERIOD_SECONDS": "5",
    "DIFLOW_ALLOCATOR_BETWEEN_ROUNDS_SECONDS": "1",
    "DIFLOW_POLICY_LEAST_SECONDS_BETWEEN_RESIZES": "0",
    "DIFLOW_POLICY_LEAST_GROWTH": "0",
}


@dataclass
class Daemon:
    """One `diflow allocator run` for the jobs of one namespace."""

    cluster: TestCluster
    namespace: str
    log: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "diflow", "allocator", "run", "--log-format", "json", "--debug"]
        command += ["--namespace", self.namespace, "--watch-namespace", self.namespace]
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                command, env={**self.cluster.environment, **_QUICK, **self.settings}, stdout=out, stderr=out, cwd=ROOT
            )

    def until_leading(self) -> None:
        pid = f"epoch {self._leads()}"
        wait_until(f"the allocator leads ({pid})", lambda: self._leads() or self._ended())

    def lines(self) -> list[dict[str, Any]]:
        out = []
        for line in self.log.read_text().splitlines():
            try:
                out.append(json.loads(line))
            except ValueError:
                out.append({"event": line})
        return out

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def freeze(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """Send SIGTERM, and return the exit code."""
        return self._signal(signal.SIGTERM)

    def wait(self, timeout: float = 120) -> int:
        assert self.process is not None
        return self.process.wait(timeout)

    def _leads(self) -> bool:
        return any(line.get("event") == "leading" for line in self.lines())

    def _ended(self) -> bool:
        if self.process is not None and self.process.poll() is not None:
            raise RuntimeError(f"the allocator ended with {self.process.returncode}:\n{self.log.read_text()[-3000:]}")
        return False

    def _signal(self, number: signal.Signals) -> int:
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(60)


@dataclass(frozen=True)
class Zone:
    """Fake nodes that only the jobs of one test may use."""

    live: Live
    name: str

    def add(self, *names: str, cpu: int = 4) -> None:
        """Add nodes, ready to be used."""
        self.live.cluster.create(*(self._node(name, cpu) for name in names))
        for name in names:
            wait_until(f"node {name} is ready", partial(self._is_ready, name, "True"))

    def _is_ready(self, name: str, status: str) -> bool:
        conditions = self.live.cluster.get("node", self.full(name))["status"].get("conditions", ())
        return [one["status"] for one in conditions if one["type"] == "Ready"] == [status]

    def remove(self, *names: str) -> None:
        self.live.cluster.kubectl("delete", "node", "--wait=false", "--ignore-not-found", *map(self.full, names))

    def silence(self, name: str) -> None:
        """The node's kubelet stops reporting: kwok no longer manages the node, and it becomes not ready."""
        node = self.full(name)
        self.live.cluster.kubectl("label", "node", node, f"{FAKE}-")
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        silent = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "lastTransitionTime": now}
        patch = json.dumps({"status": {"conditions": [silent]}})

        # kwok may still send a patch that it began before the label was removed.
        def is_silent() -> bool:
            self.live.cluster.kubectl("patch", "node", node, "--subresource=status", "--type=strategic", "-p", patch)
            return self._is_ready(name, "Unknown")

        wait_until(f"node {name} is silent", is_silent)

    def full(self, name: str) -> str:
        return f"{self.live.namespace}-{self.name}-{name}"

    def close(self) -> None:
        self.live.cluster.kubectl("delete", "nodes", "-l", f"{ZONE}={self.live.namespace}-{self.name}", "--wait=false")

    def job(
        self,
        name: str,
        replicas: int,
        *,
        bounds: tuple[int, int] | None = None,
        seconds: float = 600,
        cpu: str = "1",
        **fields: Any,
    ) -> DIJob:
        """A job of fake pods that run for so many seconds, with `replicas` workers (or a number within `bounds`)."""
        made = template(
            "sleep 1",
            container={"resources": {"requests": {"cpu": cpu, "memory": "16Mi"}}},
            terminationGracePeriodSeconds=1,
            nodeSelector={ZONE: f"{self.live.namespace}-{self.name}"},
            tolerations=[{"key": FAKE, "operator": "Exists"}],
        )
        made["metadata"] = {"annotations": {"kwok.x-k8s.io/duration": f"{seconds:g}s"}}
        low, high = bounds or (None, None)
        workers = Task(name="worker", replicas=replicas, min_replicas=low, max_replicas=high, template=made)
        return DIJob(name=name, tasks=(workers,), scheduling="gang", preemptible=bounds is not None, **fields)

    def _node(self, name: str, cpu: int) -> dict[str, Any]:
        resources = {"cpu": str(cpu), "memory": "8Gi", "pods": "50"}
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": self.full(name),
                "labels": {
                    FAKE: "fake",
                    ZONE: f"{self.live.namespace}-{self.name}",
                    "kubernetes.io/hostname": self.full(name),
                    "kubernetes.io/os": "linux",
                },
            },
            "spec": {"taints": [{"key": FAKE, "value": "fake", "effect": "NoSchedule"}]},
            "status": {"capacity": resources, "allocatable": resources},
        }


@contextmanager
def daemon(live: Live, log: Path, **settings: str) -> Iterator[Daemon]:
    """An allocator that leads."""
    made = Daemon(live.cluster, live.namespace, log, settings)
    made.start()
    try:
        made.until_leading()
        yield made
    finally:
        made.stop()


@contextmanager
def allocated(cluster: TestCluster, prefix: str, folder: Path) -> Iterator[Live]:
    """A namespace with an allocator, whose log is in the folder."""
    with cluster.namespace(prefix) as namespace:
        place = Live(cluster, namespace)
        with daemon(place, folder / "log"):
            yield place


@contextmanager
def kept_alive(made: Daemon) -> Iterator[Daemon]:
    """Restart the allocator whenever it has ended, as its Deployment does: on a machine that stands still for a
    while it loses its Lease, and ends."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(1.0):
            if made.process is not None and made.process.poll() is not None:
                made.start()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield made
    finally:
        over.set()
        watcher.join()


@contextmanager
def zone(live: Live, name: str) -> Iterator[Zone]:
    """Fake nodes, deleted at the end."""
    cluster = live.cluster.name or live.cluster.kubeconfig.parent.name
    # The first fake node starts kwok for all of them. Other processes of the run may start it, too.
    with alone(live.cluster):
        subprocess.run(
            [sys.executable, "-m", "cluster", "fake-nodes", "--name", cluster, "--count", "1"],
            cwd=ROOT, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    made = Zone(live, name)
    try:
        yield made
    finally:
        made.close()


def submit(live: Live, job: DIJob, *, suspended: bool = False) -> str:
    """Create the job's Workflow. It replaces one that the first try of a test left."""
    body = render(job)
    if suspended:
        body["spec"]["suspend"] = True
        body["metadata"]["annotations"][keys.HELD] = "true"
    live.api.delete(WORKFLOW, job.name, namespace=live.namespace)
    found = partial(live.api.find, WORKFLOW, job.name, namespace=live.namespace)
    wait_until("nothing is left of an earlier one", lambda: not found() and not live.pods(job.name))
    live.create(body)
    return job.name


def status(live: Live, name: str) -> JobStatus:
    return derive(live.workflow(name), live.pods(name))


def ask(live: Live, name: str, **replicas: int) -> None:
    """Request other numbers of replicas, as the server does, through the parameter."""
    workflow = live.workflow(name)
    parameters = workflow["spec"]["arguments"]["parameters"]
    at = next(i for i, item in enumerate(parameters) if item["name"] == keys.PARAM_REPLICAS)
    value = json.dumps({**json.loads(parameters[at]["value"]), **replicas})
    patch = [{"op": "replace", "path": f"/spec/arguments/parameters/{at}/value", "value": value}]
    live.kubectl("patch", "workflow", name, "--type=json", "-p", json.dumps(patch))


def run_on(live: Live, name: str, task: str = "worker") -> dict[str, int]:
    """The number of the job's live pods by node."""
    out: dict[str, int] = {}
    for pod in live.pods(name, task):
        if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]:
            node = pod["spec"].get("nodeName", "")
            out[node] = out.get(node, 0) + 1
    return out


def until_running(live: Live, name: str, count: int, *, timeout: float = 300) -> list[dict[str, Any]]:
    """Wait until exactly so many replicas run, and no pod is starting or ending."""

    def probe() -> list[dict[str, Any]] | None:
        pods = [p for p in live.pods(name) if p["status"].get("phase") in ("Pending", "Running")]
        ok = all(p["status"].get("phase") == "Running" and p["spec"].get("nodeName") for p in pods)
        return pods if ok and len(pods) == count else None

    return wait_until(f"{count} replicas of {name} run, and no others", probe, timeout=timeout)


def events(live: Live, name: str) -> list[tuple[str, str]]:
    """(reason, message) of the allocator's Events of the job."""
    items = live.get("events", fields=f"involvedObject.name={name},involvedObject.kind=Workflow")["items"]
    return [(e["reason"], e["message"]) for e in items if e.get("source", {}).get("component") == "diflow-allocator"]

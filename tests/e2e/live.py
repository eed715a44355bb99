"""A namespace on a real cluster, with the operations that tests of running jobs need."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import dataclass
from typing import Any

import pytest

from diflow import DIJob
from diflow.common import keys
from diflow.kube.api import Cluster
from diflow.kube.kinds import POD, WORKFLOW
from diflow.workflows import to_yaml
from tests.cli.runner import Result, run
from tests.clusters import TestCluster, wait_until

FAKE = "kwok.x-k8s.io/node"
SECOND = "diflow-test/second"
"""The taint of a real node that only one test uses."""
ENDED = ("Succeeded", "Failed", "Error")
_TOLD = 20
"""Pods of a job that a failed test shows."""


@dataclass(frozen=True)
class Live:
    """One namespace of a cluster."""

    cluster: TestCluster
    namespace: str

    def kubectl(self, *arguments: str, check: bool = True, stdin: str | None = None) -> str:
        return self.cluster.kubectl("-n", self.namespace, *arguments, check=check, stdin=stdin)

    def argo(self, *arguments: str, check: bool = True, stdin: str | None = None) -> str:
        return self.cluster.run("argo", "-n", self.namespace, *arguments, check=check, stdin=stdin)

    def get(self, kind: str, name: str = "", *, labels: str = "", fields: str = "") -> Any:
        return self.cluster.get(kind, name, namespace=self.namespace, labels=labels, fields=fields)

    def create(self, *objects: dict[str, Any]) -> None:
        self.cluster.create(*objects, namespace=self.namespace)

    def node(self) -> dict[str, Any]:
        """A node that runs pods. Other tests may have created fake nodes: all have the taint, a silent one no label."""
        nodes: list[dict[str, Any]] = self.cluster.get("nodes")["items"]
        return next(n for n in nodes if not {taint["key"] for taint in n["spec"].get("taints", [])} & {FAKE, SECOND})

    def diflow(self, *arguments: str, **settings: str) -> Result:
        """Run a command in this process, with these environment variables. test_cli.py starts processes, as users do:
        each needs a second of a processor for its imports."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {"KUBECONFIG": str(self.cluster.kubeconfig), **settings}.items():
                patch.setenv(name, value)
            return run(*arguments, "-n", self.namespace)

    def submit(self, job: DIJob) -> str:
        """Submit the rendered YAML with `argo submit`, as a user of Argo does. Returns the job's name.

        It replaces a Workflow that the first try of a test left.
        """
        if self.api.find(WORKFLOW, job.name, namespace=self.namespace) is not None:
            self.kubectl("delete", "workflow", job.name)
            wait_until("nothing is left of an earlier one", lambda: not self.pods(job.name))
        self.argo("submit", "-", stdin=to_yaml(job))
        return job.name

    @property
    def api(self) -> Cluster:
        """A client of the API."""
        return self.cluster.api

    def workflow(self, name: str) -> dict[str, Any]:
        return self.api.get(WORKFLOW, name, namespace=self.namespace)

    def nodes(self, name: str) -> list[dict[str, Any]]:
        status = self.workflow(name).get("status", {})
        if "compressedNodes" in status:
            return list(json.loads(gzip.decompress(base64.b64decode(status["compressedNodes"]))).values())
        return list(status.get("nodes", {}).values())

    def pods(self, name: str, task: str | None = None) -> list[dict[str, Any]]:
        """The replicas' pods of a job, by host name."""
        selector = f"{keys.JOB}={name},{keys.TASK_NAME}" + (f"={task}" if task else "")
        items = self.api.list_all(POD, namespace=self.namespace, labels=selector)
        return sorted(
            items, key=lambda pod: (pod["metadata"]["labels"][keys.POD], pod["metadata"]["creationTimestamp"])
        )

    def running(self, name: str, count: int, *, timeout: float = 300) -> list[dict[str, Any]]:
        """Wait until `count` replicas run, and return their pods."""

        def probe() -> list[dict[str, Any]] | None:
            pods = [p for p in self.pods(name) if p["status"]["phase"] == "Running" and _ready(p)]
            return pods if len(pods) == count else None

        return wait_until(f"{count} replicas of {name} run", probe, timeout=timeout)

    def ends(self, name: str, phase: str, *, timeout: float = 400) -> None:
        """Wait until the Workflow has ended, and fail with its nodes' messages unless it ended in this phase."""

        def probe() -> str | None:
            found = self.workflow(name).get("status", {}).get("phase", "")
            return found if found in ENDED else None

        found = wait_until(f"{name} has ended", probe, timeout=timeout)
        assert found == phase, f"{name} ended as {found}, not as {phase}:\n{self._history(name)}"

    def _history(self, name: str) -> str:
        """What Argo keeps of each pod of a job, in the order of their starts."""
        pods = sorted((n for n in self.nodes(name) if n["type"] == "Pod"), key=lambda node: str(node.get("startedAt")))
        lines = [
            f"{n.get('startedAt')} to {n.get('finishedAt')} {n['displayName'][:80]} {n['phase']}: "
            f"{n.get('message', '')[:300]}"
            for n in pods[-_TOLD:]
        ]
        return "\n".join([f"{self.workflow(name)['status'].get('message', '')[:300]}", *lines])

    def is_open(self, gate: str) -> str:
        """A shell condition for the pods of a test: whether the test has opened this gate."""
        return f"nslookup go-{gate}.{self.namespace}.svc.cluster.local 2>/dev/null | grep -q ^Name:"

    def fails_until_open(self, gate: str) -> str:
        """A shell script that fails while the gate is closed. A new name is in the DNS somewhat later."""
        return f"for _ in 1 2 3; do {self.is_open(gate)} && exit 0; sleep 1; done; exit 3"

    def until_open(self, gate: str) -> str:
        """A shell script that waits for the gate, and exits with 143 on SIGTERM."""
        return f"trap 'exit 143' TERM; until {self.is_open(gate)}; do sleep 0.5; done"

    def open(self, gate: str) -> None:
        """Open a gate for all pods, later ones included."""
        # A gate is a name in the DNS: a pod without rights can query it, and a test can change it on any cluster.
        self.kubectl("create", "service", "clusterip", f"go-{gate}", "--tcp=1")

    def exec(self, pod: str, *command: str, check: bool = True) -> str:
        return self.kubectl("exec", pod, "-c", "main", "--", *command, check=check)

    def logs(self, pod: str) -> str:
        return self.kubectl("logs", pod, "-c", "main")

    def printed(self, pod: str) -> list[str]:
        """The lines that the program printed, without those that Argo's executor adds to its log."""
        return [line for line in self.logs(pod).splitlines() if not line.startswith(("time=", "Error: exit status "))]

    def delete(self, name: str) -> None:
        self.kubectl("delete", "workflow", name, "--wait=false", check=False)


def pod_name(pod: dict[str, Any]) -> str:
    name: str = pod["metadata"]["name"]
    return name


def _ready(pod: dict[str, Any]) -> bool:
    return all(status.get("ready") for status in pod["status"].get("containerStatuses", [{"ready": False}]))

"""A namespace on a real cluster, with the verbs that tests of running jobs need."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import dataclass
from typing import Any

from diflow import DIJob, keys
from diflow.workflows import to_yaml
from tests.clusters import TestCluster, wait_until

ENDED = ("Succeeded", "Failed", "Error")


@dataclass(frozen=True)
class Live:
    """One namespace of a cluster."""

    cluster: TestCluster
    namespace: str

    def kubectl(self, *arguments: str, check: bool = True, stdin: str | None = None) -> str:
        return self.cluster.kubectl("-n", self.namespace, *arguments, check=check, stdin=stdin)

    def argo(self, *arguments: str, check: bool = True, stdin: str | None = None) -> str:
        return self.cluster.run("argo", "-n", self.namespace, *arguments, check=check, stdin=stdin)

    def get(self, *arguments: str) -> Any:
        return self.cluster.get("-n", self.namespace, *arguments)

    def submit(self, job: DIJob) -> str:
        """Hand the rendered YAML to `argo submit`, as a user of plain Argo would. Returns the job's name."""
        self.argo("submit", "-", stdin=to_yaml(job))
        return job.name

    def workflow(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get("workflow", name)
        return found

    def nodes(self, name: str) -> list[dict[str, Any]]:
        status = self.workflow(name).get("status", {})
        if "compressedNodes" in status:
            return list(json.loads(gzip.decompress(base64.b64decode(status["compressedNodes"]))).values())
        return list(status.get("nodes", {}).values())

    def pods(self, name: str, task: str | None = None) -> list[dict[str, Any]]:
        """The replicas' pods of a job, by host name."""
        selector = f"{keys.JOB}={name},{keys.TASK_NAME}" + (f"={task}" if task else "")
        items = self.get("pods", "-l", selector)["items"]
        return sorted(
            items, key=lambda pod: (pod["metadata"]["labels"][keys.POD], pod["metadata"]["creationTimestamp"])
        )

    def running(self, name: str, count: int, *, timeout: float = 180) -> list[dict[str, Any]]:
        """Wait until `count` replicas run, and return their pods."""

        def probe() -> list[dict[str, Any]] | None:
            pods = [p for p in self.pods(name) if p["status"]["phase"] == "Running" and _ready(p)]
            return pods if len(pods) == count else None

        return wait_until(f"{count} replicas of {name} run", probe, timeout=timeout)

    def ended(self, name: str, *, timeout: float = 240) -> str:
        """Wait until the Workflow has ended, and return its phase."""

        def probe() -> str | None:
            phase = self.workflow(name).get("status", {}).get("phase", "")
            return phase if phase in ENDED else None

        return wait_until(f"{name} has ended", probe, timeout=timeout)

    def exec(self, pod: str, *command: str, check: bool = True) -> str:
        return self.kubectl("exec", pod, "-c", "main", "--", *command, check=check)

    def logs(self, pod: str) -> str:
        return self.kubectl("logs", pod, "-c", "main")

    def delete(self, name: str) -> None:
        self.kubectl("delete", "workflow", name, "--wait=false", check=False)


def pod_name(pod: dict[str, Any]) -> str:
    name: str = pod["metadata"]["name"]
    return name


def _ready(pod: dict[str, Any]) -> bool:
    return all(status.get("ready") for status in pod["status"].get("containerStatuses", [{"ready": False}]))

"""Builds Workflows as Argo writes them, with their pods: the input of a job's status.

Times are seconds after the job was submitted.
"""

from __future__ import annotations

import base64
import gzip
import json
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from diflow.record.status.status import JobStatus, derive

_TEMPLATE = {"spec": {"containers": [{"name": "di-container", "image": "none"}]}}
_START = datetime(2026, 1, 2, 3, 4, 0, tzinfo=UTC)


def at(seconds: float) -> str:
    """A moment as Kubernetes writes it."""
    return (_START + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


class SeenPod:
    """One attempt of one replica: its node in the Workflow, and its pod."""

    def __init__(self, name: str, *, task: str, created: float) -> None:
        self.node: dict[str, Any] = {
            "id": f"id-{name}",
            "name": name,
            "displayName": name.rsplit(".", 1)[-1],
            "type": "Pod",
            "templateName": task,
            "phase": "Pending",
            "startedAt": at(created),
            "finishedAt": None,
        }
        self.pod: dict[str, Any] | None = {
            "metadata": {
                "name": f"pod-{name}",
                "uid": f"uid-{name}",
                "labels": {"diengine/task-name": task},
                "annotations": {
                    "workflows.argoproj.io/node-id": f"id-{name}",
                    "workflows.argoproj.io/node-name": name,
                },
                "creationTimestamp": at(created),
            },
            "spec": {},
            "status": {"phase": "Pending", "conditions": [], "containerStatuses": []},
        }
        self._created = created

    def placed(self, seconds: float, *, on: str = "node-a") -> Self:
        """It is bound to a node."""
        self.node["hostNodeName"] = on
        if self.pod:
            self.pod["spec"]["nodeName"] = on
            self._condition("PodScheduled", seconds)
        return self

    def ready(self, seconds: float, *, on: str = "node-a") -> Self:
        """All its containers run."""
        self.placed(self._created, on=on)
        self.node["phase"] = "Running"
        if self.pod:
            self.pod["status"]["phase"] = "Running"
            self._condition("Ready", seconds)
            self._main({"running": {"startedAt": at(seconds)}})
        return self

    def unready(self, seconds: float) -> Self:
        """It still runs, but does not answer its readiness probe."""
        if self.pod:
            self._condition("Ready", seconds, status="False")
        return self

    def ends(self, seconds: float, *, code: int = 0, message: str = "", phase: str = "") -> Self:
        """It ends, with an exit code."""
        self.node["phase"] = phase or ("Failed" if code else "Succeeded")
        self.node["finishedAt"] = at(seconds)
        self.node["outputs"] = {"exitCode": str(code)}
        text = message or (f"main: Error (exit code {code})" if code else "")
        if text:
            self.node["message"] = text
        if self.pod:
            self.pod["status"]["phase"] = "Failed" if code else "Succeeded"
            self._condition("Ready", seconds, status="False")
            started = (self._state().get("running") or {}).get("startedAt") or at(self._created)
            self._main({"terminated": {"exitCode": code, "startedAt": started, "finishedAt": at(seconds)}})
        return self

    def gone(self, seconds: float, *, message: str = "pod deleted", phase: str = "Error") -> Self:
        """Its pod is taken away: evicted, preempted, or lost with its node."""
        self.node.update(phase=phase, finishedAt=at(seconds), message=message)
        self.node.pop("outputs", None)
        self.pod = None
        return self

    def deleted(self, seconds: float) -> Self:
        """Its pod was deleted: its containers have received SIGTERM, and Argo has not noticed."""
        if self.pod:
            self.pod["metadata"]["deletionTimestamp"] = at(seconds)
        return self

    def vanished(self) -> Self:
        """Its pod is gone, and Argo has not noticed."""
        self.pod = None
        return self

    def waiting(self, reason: str, message: str = "") -> Self:
        """Its container cannot be started."""
        if self.pod:
            self._main({"waiting": {"reason": reason, "message": message}})
        self.node["message"] = f"{reason}: {message}" if message else reason
        return self

    def unschedulable(self, message: str, *, reason: str = "Unschedulable") -> Self:
        """No node has free capacity for it."""
        if self.pod:
            self.pod["status"]["conditions"] = [
                {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
            ]
        self.node["message"] = f"{reason}: {message}"
        return self

    def _condition(self, kind: str, seconds: float, *, status: str = "True") -> None:
        assert self.pod is not None
        others = [c for c in self.pod["status"]["conditions"] if c["type"] != kind]
        self.pod["status"]["conditions"] = [
            *others,
            {"type": kind, "status": status, "lastTransitionTime": at(seconds)},
        ]

    def _state(self) -> dict[str, Any]:
        assert self.pod is not None
        statuses = self.pod["status"]["containerStatuses"]
        state: dict[str, Any] = statuses[0]["state"] if statuses else {}
        return state

    def _main(self, state: dict[str, Any]) -> None:
        assert self.pod is not None
        self.pod["status"]["containerStatuses"] = [{"name": "main", "state": state}]


class SeenJob:
    """A job in the cluster. `tasks` are its roles with their numbers of replicas."""

    def __init__(self, name: str = "job", *, backoff_limit: int = 3, preemptible: bool = False, **tasks: int) -> None:
        self.name = name
        self.backoff_limit = backoff_limit
        self.preemptible = preemptible
        self.tasks = tasks
        self.granted: dict[str, dict[str, int]] = {"1": dict(tasks)}
        self.rounds = ["1"]
        self.released: list[str] = []
        self.incarnations: dict[str, str] = {}
        self.profilings = "{}"
        self.more: dict[str, str] = {}  # other parameters
        self.annotations: dict[str, str] = {}
        self.labels: dict[str, str] = {}
        self.pods: list[SeenPod] = []
        self.others: dict[str, dict[str, Any]] = {}
        self.spec: dict[str, Any] = {}
        self.status: dict[str, Any] = {"phase": "Running", "startedAt": at(0)}

    def pod(
        self,
        replica: str,
        *,
        created: float = 0,
        counted: int = 0,
        uncounted: int = 0,
        restart: int = 0,
        round: str = "1",  # noqa: A002 (it is what the thing is called)
        incarnation: int = 0,
    ) -> SeenPod:
        """An attempt of a replica such as "collector-1"; `incarnation` counts its returns after a drop."""
        task, _, index = replica.rpartition("-")
        place = f"{self.name}.round({self.rounds.index(round)}:{round})"
        if self.preemptible and self.backoff_limit:
            place += f"({restart})"
        place += f".{task}({index}:{index}{f'.{incarnation}' if incarnation else ''})"
        if not self.preemptible and self.backoff_limit:
            place += f"({counted})"
        made = SeenPod(f"{place}.{task}({uncounted})", task=task, created=created)
        self.pods.append(made)
        return made

    def all_ready(self, seconds: float = 5) -> Self:
        """All replicas of the first round are created and become ready."""
        for task, count in self.tasks.items():
            for index in range(count):
                self.pod(f"{task}-{index}").ready(seconds)
        return self

    def moves_to(self, round_: str, **tasks: int) -> Self:
        """The allocation has changed: a new round."""
        self.rounds.append(round_)
        self.granted[round_] = tasks
        return self

    def node(
        self, name: str, *, kind: str = "Retry", phase: str = "Succeeded", message: str = "", host: str = ""
    ) -> Self:
        """Another node of the Workflow, such as ".service"; `host` is the Kubernetes node of its pod."""
        full = f"{self.name}{name}"
        self.others[f"id-{full}"] = {
            "id": f"id-{full}", "name": full, "type": kind, "phase": phase, "message": message, "startedAt": at(0),
            **({"hostNodeName": host} if host else {}),
        }  # fmt: skip
        return self

    def shutdown(self, how: str = "Stop", *, by_itself: bool = False) -> Self:
        """The Workflow was stopped, by a user or by the job itself."""
        self.spec["shutdown"] = how
        if by_itself:
            self.node(".round(0:1).collector(0:0).superseded.hooks.give-up")
        return self

    def decided(self, action: str, why: str, *, seconds: float = 1) -> Self:
        """The allocator has written its decision."""
        self.annotations["diflow/decision"] = json.dumps({"action": action, "why": why, "time": at(seconds)})
        return self

    def ended(self, seconds: float, phase: str = "Succeeded", *, message: str = "") -> Self:
        """The Workflow has ended."""
        self.status |= {"phase": phase, "finishedAt": at(seconds), "message": message}
        return self

    def workflow(self) -> dict[str, Any]:
        """The Workflow as the API server gives it."""
        manifest = {
            "apiVersion": "diengine.opendilab.org/v2alpha1",
            "kind": "DIJob",
            "metadata": {"name": self.name.partition(".")[0]},
            "spec": {
                "backoffLimit": self.backoff_limit,
                "preemptible": self.preemptible,
                "tasks": [
                    {"type": "none", "name": t, "replicas": n, "template": _TEMPLATE} for t, n in self.tasks.items()
                ],
            },
        }
        parameters = {
            "rounds": json.dumps(self.rounds),
            "current": self.rounds[-1],
            "granted": json.dumps(self.granted),
            "incarnations": json.dumps(self.incarnations),
            "released": json.dumps(self.released),
            "replicas": json.dumps(self.tasks),
            "profilings": self.profilings,
            **self.more,
        }
        nodes = {pod.node["id"]: pod.node for pod in self.pods} | self.others
        return {
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "Workflow",
            "metadata": {
                "name": self.name,
                "namespace": "default",
                "uid": f"uid-{self.name}",
                "resourceVersion": "7",
                "creationTimestamp": at(0),
                "labels": {
                    "app.kubernetes.io/managed-by": "diflow",
                    "diflow/priority": "normal",
                    "diflow/preemptible": str(self.preemptible).lower(),
                    **self.labels,
                },
                "annotations": {"diflow/dijob": json.dumps(manifest), **self.annotations},
            },
            "spec": {
                **self.spec,
                "arguments": {"parameters": [{"name": k, "value": v} for k, v in parameters.items()]},
            },
            "status": {**self.status, "nodes": nodes} if self.status else {},
        }

    def compressed(self) -> dict[str, Any]:
        """As `workflow`, with the nodes packed as Argo does it when there are many."""
        workflow = self.workflow()
        nodes = workflow["status"].pop("nodes")
        workflow["status"]["compressedNodes"] = base64.b64encode(gzip.compress(json.dumps(nodes).encode())).decode()
        return workflow

    def all_pods(self) -> list[dict[str, Any]]:
        """The pods that still exist."""
        return [pod.pod for pod in self.pods if pod.pod]

    def derive(self) -> JobStatus:
        """Its status, from the Workflow and its pods."""
        return derive(self.workflow(), self.all_pods())

    def derive_from_nodes(self) -> JobStatus:
        """Its status from the Workflow alone, as `diflow list` sees it."""
        return derive(self.workflow())


def history(status: JobStatus) -> list[tuple[str, float]]:
    """The phases of a job with the seconds at which it last came into each."""
    return [
        (c.type, (datetime.fromisoformat(c.last_transition_time) - _START).total_seconds()) for c in status.conditions
    ]


def phases(status: JobStatus) -> list[str]:
    """The phases of a job in the order in which it last came into each."""
    return [c.type for c in status.conditions]

"""Workflows, pods and nodes as a cluster has them, and a scene of ten jobs on six nodes, for tests of the status page.

Times are minutes before `NOW`; everything goes through the page's own trims, as it comes from the API server.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Self

from diflow.common import keys
from diflow.record.job import record_of
from diflow.record.pod import serving_record_of
from diflow.server.page import CacheSnapshot, JobFacts, PodFacts, job_facts, pod_facts, trim_node

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC).timestamp()
GPU = "nvidia.com/gpu"
Json = dict[str, Any]


def trim_workflow(obj: Mapping[str, Any]) -> JobFacts | None:
    """What the page keeps of a Workflow."""
    return job_facts(obj, record_of(obj))


def when(minutes: float) -> str:
    """A Kubernetes timestamp `minutes` before NOW."""
    return datetime.fromtimestamp(NOW - minutes * 60, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class MadeJob:
    """A job, built up pod by pod. A task is its number of replicas, or (minimum, replicas, maximum)."""

    name: str
    tasks: Mapping[str, int | tuple[int, int, int]]
    namespace: str = "vision"
    submitted: float = 60
    cpu: str = "4"
    memory: str = "16Gi"
    gpus: int = 1
    priority: str = "normal"
    queue: str = ""
    preemptible: bool = False
    gang: bool = True
    backoff_limit: int = 3
    placed: bool = True
    decision: tuple[str, str, float] | None = None
    profilings: Mapping[str, Any] = field(default_factory=dict)
    rounds: Sequence[str] = ("1",)
    granted: Mapping[str, int] | None = None
    ended: tuple[str, float] | None = None
    spec: Mapping[str, Any] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    nodes: dict[str, Json] = field(default_factory=dict)
    pods: list[Json] = field(default_factory=list)

    def pod(
        self,
        task: str,
        index: int,
        *,
        made: float,
        ready: float | None = None,
        ended: float | None = None,
        node: str = "",
        round_: str = "1",
        tries: int = 0,
        moves: int = 0,
        message: str = "",
        phase: str = "",
        waiting: str = "",
    ) -> Self:
        """One attempt of a replica: created, ready and ended so many minutes ago."""
        place = f"{self.name}.round({self.rounds.index(round_)}:{round_})"
        place += f"({tries})" if self.preemptible and self.backoff_limit else ""
        place += f".{task}({index}:{index})"
        place += f"({tries})" if not self.preemptible and self.backoff_limit else ""
        name = f"{place}.{task}({moves})"
        state = phase or ("Succeeded" if ended is not None else "Running" if ready is not None else "Pending")
        self.nodes[f"id-{name}"] = {
            "id": f"id-{name}", "name": name, "type": "Pod", "phase": state, "startedAt": when(made),
            "finishedAt": when(ended) if ended is not None else None, "message": message,
            **({"hostNodeName": node} if ready is not None else {}),
        }  # fmt: skip
        if ended is None:
            self.pods.append(self._pod(task, name, node=node, ready=ready, made=made, waiting=waiting))
        return self

    def _pod(self, task: str, full: str, *, node: str, ready: float | None, made: float, waiting: str) -> Json:
        asked = {"cpu": self.cpu, "memory": self.memory, **({GPU: str(self.gpus)} if self.gpus else {})}
        container = {"name": "main", "resources": {"requests": asked, "limits": {GPU: str(self.gpus)}}}
        status: Json = {"phase": "Running" if ready is not None else "Pending", "conditions": []}
        if ready is not None:
            status["conditions"].append({"type": "Ready", "status": "True", "lastTransitionTime": when(ready)})
        if not node:
            gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "gated"}
            status["conditions"].append(gated)
        if waiting:
            reason, _, message = waiting.partition(": ")
            status["containerStatuses"] = [
                {"name": "main", "state": {"waiting": {"reason": reason, "message": message}}}
            ]
        return {
            "metadata": {
                "name": f"{self.name}-{task}-{zlib.crc32(full.encode())}",
                "namespace": self.namespace,
                "uid": f"uid-{full}",
                "creationTimestamp": when(made),
                "labels": {keys.OPERATOR: "diflow", "workflows.argoproj.io/workflow": self.name},
                "annotations": {"workflows.argoproj.io/node-name": full, "workflows.argoproj.io/node-id": f"id-{full}"},
                "ownerReferences": [{"kind": "Workflow", "name": self.name, "uid": self.uid}],
            },
            "spec": {
                "containers": [container],
                **({"nodeName": node} if node else {"schedulingGates": [{"name": keys.GATE}]}),
            },
            "status": status,
        }

    @property
    def uid(self) -> str:
        return f"uid-{self.namespace}-{self.name}"

    def workflow(self) -> Json:
        """The Workflow as the API server gives it."""
        tasks: list[Json] = []
        for name, number in self.tasks.items():
            low, count, high = number if isinstance(number, tuple) else (None, number, None)
            template = {"spec": {"containers": [{"name": "di-container", "image": "none"}]}}
            bounds = {"minReplicas": low, "maxReplicas": high} if low is not None else {}
            tasks.append({"name": name, "type": "none", "replicas": count, "template": template, **bounds})
        counts = {task["name"]: task["replicas"] for task in tasks}
        spec = {
            "backoffLimit": self.backoff_limit,
            "preemptible": self.preemptible,
            "priority": self.priority,
            "tasks": tasks,
        }
        manifest = {"apiVersion": keys.API_VERSION, "kind": "DIJob", "metadata": {"name": self.name}, "spec": spec}
        current = self.rounds[-1]
        annotations: dict[str, str] = {keys.DIJOB: json.dumps(manifest), **self.annotations}
        if self.gang and self.placed:
            nodes = {name: ["node"] * count for name, count in (self.granted or counts).items()}
            said = {"round": current, "nodes": nodes, "since": 0, "first": 0}
            annotations.setdefault(keys.ALLOCATION, json.dumps(said))
        if self.decision is not None:
            action, why, ago = self.decision
            annotations[keys.DECISION] = json.dumps({"action": action, "why": why, "time": when(ago)})
        parameters = {
            keys.PARAM_ROUNDS: json.dumps(list(self.rounds)),
            keys.PARAM_CURRENT: current,
            keys.PARAM_GRANTED: json.dumps({current: dict(self.granted or counts)}),
            keys.PARAM_INCARNATIONS: "{}",
            keys.PARAM_RELEASED: "[]",
            keys.PARAM_REPLICAS: json.dumps(counts),
            keys.PARAM_PROFILINGS: json.dumps(dict(self.profilings)),
        }
        status: Json = {"phase": "Running", "startedAt": when(self.submitted), "nodes": self.nodes}
        if self.ended is not None:
            status |= {"phase": self.ended[0], "finishedAt": when(self.ended[1])}
        return {
            "metadata": {
                "name": self.name,
                "namespace": self.namespace,
                "uid": self.uid,
                "creationTimestamp": when(self.submitted),
                "labels": {
                    keys.MANAGED_BY: "diflow",
                    keys.PRIORITY: self.priority,
                    keys.PREEMPTIBLE: str(self.preemptible).lower(),
                    keys.SCHEDULING: "gang" if self.gang else "none",
                    **({keys.QUEUE: self.queue} if self.queue else {}),
                },
                "annotations": annotations,
            },
            "spec": {
                **self.spec,
                "arguments": {"parameters": [{"name": name, "value": value} for name, value in parameters.items()]},
            },
            "status": status,
        }


def made_node(
    name: str, *, gpus: int = 8, cpu: str = "64", memory: str = "512Gi", down: float | None = None, closed: bool = False
) -> Json:
    """A node; `down`: not ready for so many minutes."""
    there = {"cpu": cpu, "memory": memory, "pods": "110", **({GPU: str(gpus)} if gpus else {})}
    ready = {"type": "Ready", "status": "True" if down is None else "False", "lastTransitionTime": when(down or 0)}
    return {
        "metadata": {"name": name},
        "spec": {"unschedulable": True} if closed else {},
        "status": {"allocatable": there, "conditions": [ready]},
    }


def cluster_state(jobs: Sequence[MadeJob], nodes: Sequence[Json] = (), *, pods: Sequence[Json] = ()) -> CacheSnapshot:
    """The state of caches with these objects."""
    found = [trim_workflow(job.workflow()) for job in jobs]
    kept = [pod_facts(pod, serving_record_of(pod)) for pod in [*(pod for job in jobs for pod in job.pods), *pods]]
    return CacheSnapshot(
        jobs=[job for job in found if job is not None],
        pods=[pod for pod in kept if pod is not None],
        nodes=[trim_node(node) for node in nodes],
        all_pods=bool(pods),
    )


def changed(
    pod: PodFacts, *, waiting: str, name: str = "", namespace: str = "", task: str = "", host: str = ""
) -> PodFacts:
    """The pod with other words in it. A pod of others gets no task."""
    read = pod.record
    identity = replace(read.identity, name=name or read.name, namespace=namespace or read.namespace)
    place = read.place and replace(read.place, task=task or read.task)
    read = replace(read, identity=identity, place=place, host=read.where and read.where + host)
    return replace(pod, record=read, waiting=waiting)


def said(job: JobFacts, *, message: str, why: str, name: str = "", task: str = "", **words: str) -> JobFacts:
    """The job with other words in it; `words`: `namespace`, `queue`, `priority` and `round`."""
    read = job.record
    identity = replace(read.identity, namespace=words.get("namespace", job.namespace))
    record = replace(
        read,
        identity=identity,
        chain=replace(read.chain, job=name or job.name),
        wishes=replace(read.wishes, queue=words.get("queue", job.queue)),
        terms=replace(read.terms, priority=words.get("priority", job.priority)),
        live=replace(read.live, current=words.get("round", read.live.current)),
    )
    count = replace(job.count, tasks=tuple(replace(one, name=task or one.name) for one in job.tasks))
    return replace(job, record=record, message=message, decision=replace(job.decision, why=why), count=count)


def foreign_pod(name: str, node: str, *, cpu: str = "2", memory: str = "4Gi") -> Json:
    """A pod of no job."""
    container = {"name": "x", "resources": {"requests": {"cpu": cpu, "memory": memory}}}
    return {
        "metadata": {"name": name, "namespace": "kube-system", "creationTimestamp": when(9999)},
        "spec": {"nodeName": node, "containers": [container]},
        "status": {"phase": "Running"},
    }


def scene() -> CacheSnapshot:
    """Ten jobs in all phases on six nodes."""
    jobs = [
        _vision(), _cartpole(), _language(), _restarting(), _starting(), _waiting("finetune-7b", 8, 41, high=True),
        _waiting("sweep-lr-3", 4, 12), _held(), _succeeded(), _failed(),
    ]  # fmt: skip
    nodes = [
        *(made_node(f"gpu-{i}") for i in range(1, 5)),
        made_node("gpu-5", down=6),
        made_node("cpu-1", gpus=0, cpu="128", closed=True),
    ]
    others = [foreign_pod(f"monitoring-{i}", f"gpu-{i}") for i in range(1, 5)]
    return cluster_state(jobs, nodes, pods=others)


def _vision() -> MadeJob:
    """Preemptible; it grew from 2 to 4 to 8, was shrunk to 3 for a more urgent one, and is at 6 again."""
    job = MadeJob(
        "vision-resnet", {"worker": (2, 8, 8)}, submitted=190, preemptible=True, queue="research",
        rounds=("1", "2", "3", "4", "5"), granted={"worker": 6},
        profilings={"speed": 2840.0, "replicas": 6, "progress": 0.62},
        decision=("resize", "6 of 2–8 replicas: gpu-4 has 2 GPUs left, 8 need 2 more", 22),
    )  # fmt: skip
    spans = [("1", 2, 188, 160), ("2", 4, 159, 120), ("3", 8, 119, 70), ("4", 3, 69, 23)]
    for round_, count, began, ended in spans:
        for i in range(count):
            job.pod("worker", i, round_=round_, made=began, ready=began, ended=ended, node=f"gpu-{1 + i // 4}")
    for i in range(6):
        job.pod("worker", i, round_="5", made=22, ready=22, node="gpu-1" if i < 4 else "gpu-2")
    return job


def _cartpole() -> MadeJob:
    job = MadeJob(
        "cartpole", {"learner": 1, "collector": 4, "evaluator": 1}, namespace="rl", submitted=47, cpu="2",
        memory="4Gi", gpus=0, gang=False, profilings={"speed": 12_600, "progress": 0.31},
    )  # fmt: skip
    job.pod("learner", 0, made=46.5, ready=46, node="cpu-1").pod("evaluator", 0, made=46.5, ready=46, node="cpu-1")
    for i in range(3):
        job.pod("collector", i, made=46.5, ready=46, node="gpu-3")
    job.pod("collector", 3, made=46.5, ready=46, ended=9, node="gpu-3", message="pod deleted", phase="Error")
    return job.pod("collector", 3, made=8.8, ready=8.5, node="gpu-4", moves=1)


def _language() -> MadeJob:
    job = MadeJob(
        "language-13b", {"worker": 8}, namespace="nlp", submitted=1500, priority="high", queue="production",
        cpu="6", memory="48Gi", profilings={"speed": 431.0, "progress": 0.87},
    )  # fmt: skip
    for i in range(8):
        job.pod("worker", i, made=1490, ready=1488, node="gpu-2" if i < 4 else "gpu-3")
    return job


def _restarting() -> MadeJob:
    job = MadeJob("diffusion", {"worker": 3}, submitted=95, queue="research", gpus=1, cpu="8")
    for i in range(2):
        job.pod("worker", i, made=94, ready=93, node="gpu-4")
    job.pod("worker", 2, made=94, ready=93, ended=40, node="gpu-4", phase="Failed", message="Error (exit code 137)")
    job.pod(
        "worker", 2, made=39, ready=38, ended=2, node="gpu-4", phase="Failed", message="Error (exit code 1)", tries=1
    )
    return job.pod("worker", 2, made=1, node="gpu-4", tries=2)


def _starting() -> MadeJob:
    job = MadeJob("speech-asr", {"worker": 2}, namespace="audio", submitted=3, decision=("admit", "2 replicas", 2))
    job.pod("worker", 0, made=2.5, ready=2, node="gpu-4")
    return job.pod("worker", 1, made=2.5, node="gpu-4", waiting="ImagePullBackOff: Back-off pulling image asr:12")


def _waiting(name: str, count: int, minutes: float, *, high: bool = False) -> MadeJob:
    why = f"its {count} replicas start together or not at all: {count - 1} of them fit, on 3 nodes"
    job = MadeJob(
        name, {"worker": count}, namespace="nlp" if high else "vision", submitted=minutes, placed=False,
        queue="production" if high else "research", priority="high" if high else "normal", decision=("wait", why, 1),
    )  # fmt: skip
    for i in range(count):
        job.pod("worker", i, made=minutes)
    return job


def _held() -> MadeJob:
    job = MadeJob("paused-run", {"worker": 2}, submitted=600, placed=False, spec={"suspend": True})
    return job.pod("worker", 0, made=599).pod("worker", 1, made=599)


def _succeeded() -> MadeJob:
    job = MadeJob("nightly-eval", {"worker": 4}, namespace="rl", submitted=400, ended=("Succeeded", 310))
    for i in range(4):
        job.pod("worker", i, made=398, ready=398, ended=311 + i)
    return job


def _failed() -> MadeJob:
    job = MadeJob("broken-import", {"worker": 2}, submitted=130, ended=("Failed", 128), backoff_limit=0)
    job.pod("worker", 0, made=129.5, ready=129.4, ended=129, phase="Failed", message="Error (exit code 1)")
    return job.pod("worker", 1, made=129.5, ready=129.4, ended=128.5, phase="Failed", message="Error (exit code 143)")

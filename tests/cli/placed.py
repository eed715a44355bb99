"""Nodes, and jobs as the allocator writes them, for tests of what users see of its work."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from diflow import DIJob, Task
from diflow.common import keys
from diflow.kube.kinds import CONFIG_MAP, LEASE, NODE, POD, WORKFLOW
from diflow.record.parameters import ADMITTED
from diflow.workflows import render
from tests.cli.runner import Cli
from tests.kube.fakeapi import now

SYSTEM = "diflow-system"


def node(diflow: Cli, name: str, *, cpu: str = "8", gpus: int = 0, ready: bool = True, closed: bool = False) -> None:
    """Add a node."""
    there = {"cpu": cpu, "memory": "32Gi", "pods": "110", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    status = {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": now()}
    diflow.api.add(
        NODE,
        {
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "spec": {"unschedulable": True} if closed else {},
            "status": {"allocatable": there, "conditions": [status]},
        },
    )


def dijob(
    name: str, tasks: Mapping[str, int | tuple[int, int, int]], *, cpu: str = "1", gpus: int = 0, **given: Any
) -> DIJob:
    """A job. A task is its number of replicas, or (minimum, replicas, maximum)."""
    asked = {"cpu": cpu, "memory": "1Gi", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    container = {"name": "di-container", "image": "none", "command": ["work"], "resources": {"requests": asked}}
    if gpus:
        container["resources"] = {"requests": asked, "limits": {"nvidia.com/gpu": str(gpus)}}
    made = []
    for task, number in tasks.items():
        low, count, high = number if isinstance(number, tuple) else (None, number, None)
        made.append(
            Task(
                name=task,
                replicas=count,
                min_replicas=low,
                max_replicas=high,
                template={"spec": {"containers": [container]}},
            )
        )
    return DIJob(name=name, tasks=tuple(made), **{"scheduling": "gang", **given})


def put(
    diflow: Cli,
    job: DIJob,
    *,
    at: Mapping[str, Sequence[str]] | None = None,
    namespace: str = "default",
    decided: tuple[str, str] | None = None,
    profilings: str = "{}",
    created: str = "",
    **spec: Any,
) -> dict[str, Any]:
    """Add a job's Workflow: with `at`, the nodes of its replicas by task, it runs there; a gang without them waits for
    its admission. `suspend=True`: its user has suspended it."""
    workflow = render(job.model_copy(update={"namespace": namespace}))
    metadata = workflow["metadata"]
    metadata["creationTimestamp"] = created or now()
    metadata["namespace"] = namespace
    metadata["uid"] = f"uid-{namespace}-{job.name}"
    counts = {task.name: task.replicas for task in job.tasks}
    if at is not None:
        counts = {task: len(nodes) for task, nodes in at.items()}
        metadata["annotations"][keys.ALLOCATION] = json.dumps(
            {"round": "1", "nodes": dict(at), "since": 1.0, "first": 1.0}
        )
    if decided is not None:
        said = {"action": decided[0], "why": decided[1], "time": now()}
        metadata["annotations"][keys.DECISION] = json.dumps(said)
    changed = {keys.PARAM_GRANTED: json.dumps({"1": counts}), keys.PARAM_PROFILINGS: profilings}
    waits = at is None and job.scheduling == "gang"
    if not waits:
        changed[keys.PARAM_PLACES] = ADMITTED
        workflow["spec"].pop("suspend", None)
        metadata["labels"][keys.ADMITTED] = "true"
    if spec.get("suspend"):
        metadata["annotations"][keys.HELD] = "true"
    for parameter in workflow["spec"]["arguments"]["parameters"]:
        parameter["value"] = changed.get(parameter["name"], parameter["value"])
    workflow["spec"].update(spec)
    names = [f"{task}({i}:{i})" for task, count in counts.items() for i in range(count)]
    nodes = {}
    for name in names if not waits else ():
        task = name.partition("(")[0]
        full = f"{job.name}.round(0:1).{name}.{task}(0)"
        nodes[full] = {
            "id": full, "name": full, "type": "Pod", "phase": "Running",
            "startedAt": now(),
        }  # fmt: skip
        index = int(name.partition("(")[2].partition(":")[0])
        where = at[task][index] if at is not None else ""
        diflow.api.add(POD, _pod(job, task, index, full, where, owner=metadata["uid"]), namespace=namespace)
    workflow["status"] = {"phase": "Running", "startedAt": now(), "nodes": nodes}
    return diflow.api.add(WORKFLOW, workflow, namespace=namespace)


def _pod(job: DIJob, task: str, index: int, full: str, where: str, *, owner: str) -> dict[str, Any]:
    template = next(t.template for t in job.tasks if t.name == task)
    spec = {**template["spec"], **({"nodeName": where} if where else {"schedulingGates": [{"name": keys.GATE}]})}
    ready = [{"type": "Ready", "status": "True", "lastTransitionTime": now()}] if where else []
    return {
        "metadata": {
            "name": f"{job.name}-{task}-{index}",
            "labels": {
                keys.OPERATOR: keys.OPERATOR_VALUE,
                keys.JOB: job.name,
                keys.TASK_NAME: task,
                "workflows.argoproj.io/workflow": job.name,
            },
            "annotations": {"workflows.argoproj.io/node-name": full, "workflows.argoproj.io/node-id": full},
            "creationTimestamp": now(),
            "ownerReferences": [{"kind": "Workflow", "name": job.name, "uid": owner}],
        },
        "spec": spec,
        "status": {"phase": "Running" if where else "Pending", "conditions": ready},
    }


def queues(diflow: Cli, text: str) -> None:
    """Set the queues."""
    diflow.api.add(CONFIG_MAP, {"metadata": {"name": "diflow-queues"}, "data": {"queues.yaml": text}}, namespace=SYSTEM)


def lease(diflow: Cli, *, holder: str = "", renewed: str = "", paused: str = "", transitions: int = 3) -> None:
    """The allocator's Lease; without a holder it is free."""
    diflow.api.add(
        LEASE,
        {
            "metadata": {"name": "diflow-allocator", "annotations": {"diflow/paused": paused} if paused else {}},
            "spec": {
                "holderIdentity": holder,
                "leaseTransitions": transitions,
                "leaseDurationSeconds": 15,
                "renewTime": renewed or now(),
            },
        },
        namespace=SYSTEM,
    )


def lease_annotations(diflow: Cli) -> dict[str, str]:
    """The annotations of the allocator's Lease."""
    found = diflow.api.objects[LEASE.path(SYSTEM)]["diflow-allocator"]
    return dict(found["metadata"].get("annotations") or {})

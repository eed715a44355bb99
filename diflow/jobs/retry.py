"""Retries a failed job: failed nodes are removed from its Workflow, succeeded ones are kept.

It does what `argo retry` does, for diflow's Workflows. In those from before 0.2.0 it also repeats the step that makes
the job's Service, in case the Service was deleted since. It needs neither an Argo server nor the `argo` command;
`retried` is a pure function of the Workflow. Nodes are identified by their names, which are paths in Argo's tree
(`job.round(0:1).learner(0:0)(1).learner(0)`).
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from diflow import keys
from diflow.errors import ConflictError, UnavailableError
from diflow.jobs import lookup
from diflow.jobs.follow import selector
from diflow.kube.api import Cluster
from diflow.kube.kinds import POD, WORKFLOW
from diflow.state import nodecheck
from diflow.state.exclusions import Exclusions
from diflow.state.nodes import raw

_KEPT = frozenset({"Succeeded"})
_GROUPS = frozenset({"DAG", "TaskGroup", "Steps", "StepGroup"})
_COMPLETED = "workflows.argoproj.io/completed"
_ARCHIVING = "workflows.argoproj.io/workflow-archiving-status"
_PHASE = "workflows.argoproj.io/phase"
_PODS_GONE_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.2


def retry(
    name: str,
    *,
    namespace: str | None = None,
    cluster: Cluster | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> None:
    """Run the failed replicas of a failed job again, with their full backoffLimit and maxRestarts. Succeeded ones are
    kept, and so are the nodes that are left out, until their time is over.

    Raises ConflictError if the job has not failed, or is changed meanwhile.
    """
    cluster = cluster or Cluster.connect()
    workflow = lookup.current_workflow(name, namespace=namespace, cluster=cluster)
    name = workflow["metadata"]["name"]
    new, forgotten = retried(workflow, now=now().strftime("%Y-%m-%dT%H:%M:%SZ"))
    pods = [
        pod for pod in cluster.list_all(POD, namespace=namespace, labels=selector(name)) if _node_id(pod) in forgotten
    ]
    for pod in pods:
        cluster.delete(POD, pod["metadata"]["name"], namespace=namespace)
    _wait_gone(cluster, name, forgotten, namespace=namespace)
    cluster.replace(WORKFLOW, name, new, namespace=namespace)


def _wait_gone(cluster: Cluster, name: str, forgotten: set[str], *, namespace: str | None) -> None:
    """Wait for the deletion of the old pods, as the new ones have the same names."""
    deadline = time.monotonic() + _PODS_GONE_SECONDS
    while any(_node_id(pod) in forgotten for pod in cluster.list_all(POD, namespace=namespace, labels=selector(name))):
        if time.monotonic() > deadline:
            raise ConflictError(f"old pods of job {name} are still being deleted: try again in a moment")
        time.sleep(_POLL_SECONDS)


def _node_id(pod: dict[str, Any]) -> str:
    return str((pod["metadata"].get("annotations") or {}).get("workflows.argoproj.io/node-id") or "")


def retried(workflow: dict[str, Any], *, now: str) -> tuple[dict[str, Any], set[str]]:
    """The Workflow that replaces `workflow`, and the ids of the nodes whose pods must be deleted first.

    `now` is the current time (RFC 3339). Raises ConflictError if the Workflow did not fail.
    """
    metadata, status = workflow["metadata"], workflow.get("status") or {}
    name = metadata["name"]
    phase = status.get("phase")
    if phase not in ("Failed", "Error"):
        raise ConflictError(
            f"job {name} is {phase or 'Pending'}: only a failed job can be retried"
            + (" (to run it again, delete it and submit it again)" if phase == "Succeeded" else "")
        )
    nodes, offloaded = raw(workflow)
    if offloaded:
        raise UnavailableError(f"Argo keeps the nodes of {name} in its database: use `argo retry {name}`")
    keep, reset = _sort(name, {node["name"]: node for node in nodes.values()})
    new = copy.deepcopy(workflow)
    new["status"] = _fresh(status, now=now)
    kept = {node_id for node_id, node in nodes.items() if node["name"] in keep}
    new["status"]["nodes"] = {
        node_id: _node(node, kept, reset=node["name"] in reset, now=now)
        for node_id, node in nodes.items()
        if node_id in kept
    }
    labels = new["metadata"].get("labels") or {}
    for label in (_COMPLETED, _ARCHIVING, _PHASE):
        labels.pop(label, None)
    annotations = new["metadata"].get("annotations") or {}
    # Why it was stopped, and what counted before: restarts, also by its health, and moves because of the node check.
    for annotation in (keys.DECISION, keys.RESTARTS_BEFORE, keys.HEALTH):
        annotations.pop(annotation, None)
    if keys.EXCLUDED in annotations:
        annotations[keys.EXCLUDED] = nodecheck.without_moves(Exclusions.parse(annotations[keys.EXCLUDED])).to_json()
    new["spec"].pop("shutdown", None)
    return new, {node_id for node_id, node in nodes.items() if node_id not in kept and node.get("type") == "Pod"}


def _sort(root: str, nodes: dict[str, Any]) -> tuple[set[str], set[str]]:
    """The names of the nodes to keep, and of those among them that must run again.

    From the root: a succeeded node is kept with its subtree; a group that did not succeed is kept and reset; a Retry
    or leaf that did not succeed is removed with its subtree.
    """
    keep: set[str] = set()
    reset: set[str] = set()
    gone: set[str] = set()
    for name in sorted(nodes, key=len):
        above = _above(name, keep | gone)
        if above in gone or name.startswith((f"{root}.onExit", f"{root}.service")):
            gone.add(name)
        elif (above is not None and above not in reset) or nodes[name].get("phase") in _KEPT:
            keep.add(name)
        elif nodes[name].get("type") in _GROUPS:
            keep.add(name)
            reset.add(name)
        else:
            gone.add(name)
    return keep, reset


def _above(name: str, names: set[str]) -> str | None:
    """The longest of `names` that is an ancestor of `name`."""
    for end in range(len(name) - 1, 0, -1):
        if name[end] in ".(" and name[:end] in names:
            return name[:end]
    return None


def _node(node: Any, kept: set[str], *, reset: bool, now: str) -> dict[str, Any]:
    out = copy.deepcopy(dict(node))
    for field in ("children", "outboundNodes"):
        if field in out:
            out[field] = [node_id for node_id in out[field] if node_id in kept]
    if reset:
        out.update(phase="Running", startedAt=now, finishedAt=None)
        out.pop("message", None)
    return out


def _fresh(status: dict[str, Any], *, now: str) -> dict[str, Any]:
    new = {
        key: value
        for key, value in copy.deepcopy(status).items()
        if key not in ("phase", "message", "finishedAt", "compressedNodes", "nodes", "persistentVolumeClaims")
    }
    new["startedAt"] = now
    new["finishedAt"] = None
    stored = new.get("storedWorkflowTemplateSpec")
    if isinstance(stored, dict):
        stored.pop("shutdown", None)
    for condition in new.get("conditions") or []:
        if condition.get("type") == "Completed":
            condition["status"] = "False"
    return new

"""Retries a failed job: failed nodes are removed from its Workflow, succeeded ones are kept.

It does what `argo retry` does, for diflow's Workflows, and repairs what `argo retry` leaves. It needs neither an
Argo server nor the `argo` command; `retried` and `repair` are pure functions of the Workflow. Nodes are identified by
their names, which are paths in Argo's tree (`job.round(0:1).learner(0:0)(1).learner(0)`).
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from typing import Any, Final

from diflow.common import keys
from diflow.common.durations import timestamp
from diflow.common.errors import ConflictError, UnavailableError
from diflow.jobs import lookup, suspend
from diflow.jobs.checks.connecting import connect
from diflow.jobs.follow import selector
from diflow.kube.api import Cluster
from diflow.kube.kinds import POD, WORKFLOW
from diflow.record import nodecheck, untrusted
from diflow.record.argo import node_names
from diflow.record.argo.nodes import node_id_of, packed_as_before, raw
from diflow.record.argo.nodes import nodes as typed
from diflow.record.argo.tree import left_by_argo_retry
from diflow.record.exclusions import Exclusions
from diflow.record.parameters import without_places

_KEPT = frozenset({"Succeeded"})
_FAILED = ("Failed", "Error")
_REFERENCES = ("children", "outboundNodes")
_GROUPS = frozenset({"DAG", "TaskGroup", "Steps", "StepGroup"})
_ARCHIVING = "workflows.argoproj.io/workflow-archiving-status"
_SEPARATORS_FIRST: Final = str.maketrans(".(\0\1", "\0\1\2\2")
_PODS_GONE_SECONDS: Final = 30.0
_POLL_SECONDS: Final = (0.2, 2.0)
_DELETES_AT_ONCE: Final = 16
_TRIES: Final = 3
"""How often the Workflow is read and written, if it changes in between."""
_REPAIRED_SECONDS: Final = 90.0
QUIET_SECONDS: Final = 2.0
"""How long nobody has written to a Workflow before its nodes are repaired."""


def retry(
    name: str,
    *,
    namespace: str | None = None,
    cluster: Cluster | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> None:
    """Run the failed replicas of a failed job again, with their full backoffLimit and maxRestarts. Succeeded ones are
    kept, and so are the nodes that are left out, until their time is over. A job that `argo retry` has left without
    pods is repaired.

    Raises ConflictError if the job has not failed, or is changed all the time. A repair takes some seconds, in which
    the job is suspended.
    """
    cluster = cluster or connect()
    for left in reversed(range(_TRIES)):
        workflow = lookup.current_workflow(name, namespace=namespace, cluster=cluster)
        if not _has_failed(workflow) and repair(workflow):
            _repair(name, namespace=namespace, cluster=cluster)
            return
        new, forgotten = retried(workflow, now=timestamp(now().timestamp()))
        current = workflow["metadata"]["name"]
        _delete(cluster, current, _pods_of(cluster, current, forgotten, namespace=namespace), namespace=namespace)
        try:
            cluster.replace(WORKFLOW, current, new, namespace=namespace)
        except ConflictError:  # the pods are deleted already: what is to be written is derived again
            if not left:
                raise
        else:
            return


def _repair(name: str, *, namespace: str | None, cluster: Cluster) -> None:
    """Remove the nodes of a running job that Argo must make again.

    Argo writes what it has changed in a Workflow into newer versions of it as well: parts of nodes that the repair has
    removed come back without names, and Argo may fail the whole Workflow because of them. So the job is suspended, and
    is written when Argo has done nothing with it for a moment. A suspended job also gets no pods in the place of those
    that are deleted here.
    """
    deadline = time.monotonic() + _REPAIRED_SECONDS
    version, since = "", 0.0
    with ExitStack() as hold:
        while time.monotonic() < deadline:
            workflow = lookup.current_workflow(name, namespace=namespace, cluster=cluster)
            found = repair(workflow)
            if found is None:  # the allocator has repaired it meanwhile, or it has ended
                return
            patch, forgotten = found
            metadata = workflow["metadata"]
            if workflow["spec"].get("suspend") is not True:
                suspend.suspend(name, namespace=namespace, cluster=cluster)
                hold.callback(_resume, name, namespace=namespace, cluster=cluster)
            elif old := _pods_of(cluster, metadata["name"], forgotten, namespace=namespace):
                _delete(cluster, metadata["name"], old, namespace=namespace)
            elif version != metadata["resourceVersion"]:
                version, since = metadata["resourceVersion"], time.monotonic()
            elif time.monotonic() - since < QUIET_SECONDS:
                time.sleep(_POLL_SECONDS[0])
            else:
                is_this = {"uid": metadata["uid"], "resourceVersion": version}
                patch = {**patch, "metadata": {**patch.get("metadata", {}), **is_this}}
                with suppress(ConflictError):  # Argo has written
                    cluster.patch(WORKFLOW, metadata["name"], patch, namespace=namespace)
                    return
        raise ConflictError(f"job {name} is changed all the time, and was not repaired: try again in a moment")


def _has_failed(workflow: Mapping[str, Any]) -> bool:
    return untrusted.sub(workflow, "status").get("phase") in _FAILED


def _resume(name: str, *, namespace: str | None, cluster: Cluster) -> None:
    with suppress(ConflictError):  # it has ended
        suspend.resume(name, namespace=namespace, cluster=cluster)


def _pods_of(cluster: Cluster, workflow: str, nodes: set[str], *, namespace: str | None) -> list[dict[str, Any]]:
    """The pods of these nodes, with their metadata alone."""
    if not nodes:
        return []
    pods = cluster.list_all(POD, namespace=namespace, labels=selector(workflow), metadata_only=True)
    return [pod for pod in pods if node_id_of(pod) in nodes]


def _delete(cluster: Cluster, workflow: str, pods: list[dict[str, Any]], *, namespace: str | None) -> None:
    """Delete these pods, and wait until they are gone, as the new ones have the same names."""

    def delete(pod: dict[str, Any]) -> None:
        metadata = pod["metadata"]
        cluster.delete(POD, metadata["name"], namespace=namespace, uid=metadata["uid"])

    if not pods:
        return
    with ThreadPoolExecutor(_DELETES_AT_ONCE) as pool:
        list(pool.map(delete, pods))
    nodes = {node_id_of(pod) for pod in pods}
    deadline = time.monotonic() + _PODS_GONE_SECONDS
    pause, longest = _POLL_SECONDS
    while _pods_of(cluster, workflow, nodes, namespace=namespace):
        if time.monotonic() > deadline:
            raise ConflictError(f"old pods of job {workflow} are still being deleted: try again in a moment")
        time.sleep(pause)
        pause = min(2 * pause, longest)


def retried(workflow: dict[str, Any], *, now: str) -> tuple[dict[str, Any], set[str]]:
    """The Workflow that replaces `workflow`, and the ids of the nodes whose pods must be deleted first.

    `now` is the current time (RFC 3339). Raises ConflictError if the Workflow did not fail.
    """
    metadata, status = workflow["metadata"], workflow.get("status") or {}
    name = metadata["name"]
    phase = status.get("phase")
    if not _has_failed(workflow):
        raise ConflictError(
            f"job {name} is {phase or 'Pending'}: only a failed job can be retried"
            + (" (to run it again, delete it and submit it again)" if phase == "Succeeded" else "")
        )
    found, offloaded = raw(workflow)
    if offloaded:
        raise UnavailableError(f"Argo keeps the nodes of {name} in its database: use `argo retry {name}`")
    nodes = {
        node_id: node
        for node_id, node in found.items()
        if isinstance(node, Mapping) and isinstance(node.get("name"), str)
    }
    keep, reset = _sort(name, {node["name"]: node for node in nodes.values()})
    new = copy.deepcopy(workflow)
    new["status"] = _fresh(status, now=now)
    kept = {node_id for node_id, node in nodes.items() if node["name"] in keep}
    left = {
        node_id: _node(node, kept, reset=node["name"] in reset, now=now)
        for node_id, node in nodes.items()
        if node_id in kept
    }
    new["status"] |= packed_as_before(workflow, left)
    labels = new["metadata"].get("labels") or {}
    for label in (keys.ARGO_COMPLETED, _ARCHIVING, keys.ARGO_PHASE):
        labels.pop(label, None)
    _forget_what_counted(new["metadata"].get("annotations") or {})
    new["spec"].pop("shutdown", None)
    if parameters := without_places(workflow):
        new["spec"]["arguments"]["parameters"] = parameters
    return new, {node_id for node_id, node in nodes.items() if node_id not in kept and node.get("type") == "Pod"}


def repair(workflow: Mapping[str, Any]) -> tuple[dict[str, Any], set[str]] | None:
    """The merge patch of a Workflow of which Argo creates no pods after `argo retry`, and the ids of the nodes whose
    pods must be deleted first (the allocator may not delete them: it ends those that Argo then knows no more). None if
    there is nothing to repair, or if Argo keeps the nodes in its database.

    The patch removes nodes that Argo makes again: those of `left_by_argo_retry`, and what is below them, but for
    replicas that have succeeded: their pods still have the names that new ones would get. A replica that had several
    attempts gets the full backoffLimit. The patch is valid only for this version of the Workflow.
    """
    tree = typed(workflow)[0]
    stuck = left_by_argo_retry(tree)
    found, offloaded = raw(workflow)
    if offloaded or not stuck:
        return None
    nodes = {node_id: node for node_id, node in found.items() if isinstance(node, Mapping)}
    names = {node_id: untrusted.string(node.get("name"), most=1024) for node_id, node in nodes.items()}
    done = frozenset(node.name for node in tree if node.place and node.place.is_member and node.phase in _KEPT)
    below, kept = _subtrees(stuck, names.values()), _subtrees(done, names.values())
    if kept.isdisjoint(stuck):  # else Argo would still create no pods
        below -= kept
    gone = {node_id for node_id, name in names.items() if not name or name in below}
    changed: dict[str, Any] = {}
    for node_id, node in nodes.items():
        lists = {field: node[field] for field in _REFERENCES if isinstance(node.get(field), list)}
        left = {
            name: [child for child in of if not isinstance(child, str) or child not in gone]
            for name, of in lists.items()
        }
        if node_id not in gone and left != lists:
            changed[node_id] = left
    status: dict[str, Any] = {"nodes": {**changed, **dict.fromkeys(gone)}}
    if not workflow["status"].get("nodes"):
        rest = {node_id: {**node, **changed.get(node_id, {})} for node_id, node in nodes.items() if node_id not in gone}
        status = packed_as_before(workflow, rest)
    before = dict(untrusted.sub(workflow, "metadata", "annotations"))
    after = dict(before)
    _forget_what_counted(after)
    annotations = {name: after.get(name) for name in before if after.get(name) != before[name]}
    patch = {"status": status, **({"metadata": {"annotations": annotations}} if annotations else {})}
    if parameters := without_places(workflow):
        patch["spec"] = {"arguments": {"parameters": parameters}}
    return patch, {node_id for node_id in gone if nodes[node_id].get("type") == "Pod"}


def _subtrees(tops: frozenset[str], names: Iterable[str]) -> set[str]:
    """Those of `names` that are `tops` or their descendants."""
    out: set[str] = set()
    top = ""
    # The descendants of a node come right after it, before a name that continues its name, such as `worker-2`.
    for name in sorted({*names, *tops}, key=lambda name: name.translate(_SEPARATORS_FIRST)):
        if not top or not name.startswith(top) or name[len(top) : len(top) + 1] not in ("", ".", "("):
            top = name if name in tops else ""
        if top:
            out.add(name)
    return out


def _forget_what_counted(annotations: dict[str, str]) -> None:
    """Remove why the job was stopped, and what counted before: restarts, also by its health, and moves because of the
    node check."""
    for annotation in (keys.DECISION, keys.RESTARTS_BEFORE, keys.HEALTH):
        annotations.pop(annotation, None)
    if keys.EXCLUDED in annotations:
        annotations[keys.EXCLUDED] = nodecheck.without_moves(Exclusions.parse(annotations[keys.EXCLUDED])).to_json()


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
        if above in gone or name.startswith(f"{root}.onExit"):
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
    return max((above for above in node_names.above(name) if above in names), key=len, default=None)


def _node(node: Any, kept: set[str], *, reset: bool, now: str) -> dict[str, Any]:
    out = copy.deepcopy(dict(node))
    for field in _REFERENCES:
        if isinstance(out.get(field), list):
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

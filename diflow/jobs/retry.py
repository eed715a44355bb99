"""Retries a failed job: failed nodes are removed from its Workflow, succeeded ones are kept.

It does what `argo retry` does, for diflow's Workflows, and repairs what `argo retry` leaves. It needs neither an
Argo server nor the `argo` command; `retried` and `repair` are pure functions of the Workflow, which return a merge
patch for this version of it, and the ids of the nodes whose pods must be deleted first. Nodes are identified by
their names, which are paths in Argo's tree (`job.round(0:1).learner(0:0)(1).learner(0)`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any, Final

from diflow.common import keys
from diflow.common.clock import SYSTEM, Clock
from diflow.common.durations import timestamp
from diflow.common.errors import ConflictError, UnavailableError
from diflow.jobs import changing, lookup, suspend
from diflow.jobs.checks.connecting import connect
from diflow.jobs.follow import selector
from diflow.kube.api import Cluster
from diflow.kube.kinds import POD, WORKFLOW
from diflow.record import untrusted
from diflow.record.argo import node_names
from diflow.record.argo.nodes import is_packed, node_id_of, packed, raw
from diflow.record.argo.nodes import nodes as typed
from diflow.record.argo.tree import left_by_argo_retry
from diflow.record.identity import Identity
from diflow.record.job import record_of
from diflow.record.requests.retrying import forgetting

_KEPT = frozenset({"Succeeded"})
_REFERENCES = ("children", "outboundNodes")
_STORED = "storedWorkflowTemplateSpec"
_OF_THE_END = ("phase", "message", "finishedAt", "persistentVolumeClaims")
_GROUPS = frozenset({"DAG", "TaskGroup", "Steps", "StepGroup"})
_ARCHIVING = "workflows.argoproj.io/workflow-archiving-status"
_SEPARATORS_FIRST: Final = str.maketrans(".(\0\1", "\0\1\2\2")
_PODS_GONE_SECONDS: Final = 30.0
_POLL_SECONDS: Final = (0.2, 2.0)
_DELETES_AT_ONCE: Final = 16
_REPAIRED_SECONDS: Final = 90.0
QUIET_SECONDS: Final = 2.0
"""How long nobody has written to a Workflow before its nodes are repaired."""


Found = tuple[dict[str, Any], set[str]]


def retry(name: str, *, namespace: str | None = None, cluster: Cluster | None = None, clock: Clock = SYSTEM) -> None:
    """Run the failed replicas of a failed job again, with their full backoffLimit and maxRestarts. Succeeded ones are
    kept, and so are the nodes that are left out, until their time is over. A job that `argo retry` has left without
    pods is repaired.

    Raises ConflictError if the job has not failed, or is changed all the time. A repair takes some seconds, in which
    the job is suspended.
    """
    cluster = cluster or connect()

    def decide(workflow: dict[str, Any]) -> tuple[bool, changing.Change]:
        try:
            patch, forgotten = retried(workflow, now=timestamp(clock.wall()))
        except ConflictError:  # it has not failed
            if repair(workflow) is None:
                raise
            return True, None
        current = workflow["metadata"]["name"]
        # If the Workflow changes meanwhile, what is to be written is derived again.
        _delete(cluster, current, _pods_of(cluster, current, forgotten, namespace=namespace), namespace=namespace)
        return False, Identity.of(workflow).bind(patch)

    if changing.change(name, decide, namespace=namespace, cluster=cluster, clock=clock):
        _repair(name, namespace=namespace, cluster=cluster)


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
            job = record_of(workflow)
            current = job.identity.name
            if not job.wishes.is_suspended:
                suspend.suspend(name, namespace=namespace, cluster=cluster)
                hold.callback(_resume, name, namespace=namespace, cluster=cluster)
            elif old := _pods_of(cluster, current, forgotten, namespace=namespace):
                _delete(cluster, current, old, namespace=namespace)
            elif version != job.identity.version:
                version, since = job.identity.version, time.monotonic()
            elif time.monotonic() - since < QUIET_SECONDS:
                time.sleep(_POLL_SECONDS[0])
            else:
                with suppress(ConflictError):  # Argo has written
                    cluster.patch(WORKFLOW, current, job.identity.bind(patch), namespace=namespace)
                    return
        raise ConflictError(f"job {name} is changed all the time, and was not repaired: try again in a moment")


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


def retried(workflow: Mapping[str, Any], *, now: str) -> Found:
    """What makes a failed Workflow run again. `now` is the current time (RFC 3339).

    Raises ConflictError if the Workflow did not fail.
    """
    job, status = record_of(workflow), untrusted.sub(workflow, "status")
    name = job.identity.name
    if job.argo.phase not in ("Failed", "Error"):
        raise ConflictError(
            f"job {name} is {job.argo.phase or 'Pending'}: only a failed job can be retried"
            + (" (to run it again, delete it and submit it again)" if job.argo.phase == "Succeeded" else "")
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
    gone = {node_id for node_id in found if node_id not in nodes or nodes[node_id]["name"] not in keep}
    again = {"phase": "Running", "startedAt": now, "finishedAt": None, "message": None}
    changed = {node_id: again for node_id, node in nodes.items() if node_id not in gone and node["name"] in reset}
    patch = _patch(workflow, nodes, gone, changed)
    conditions = [
        {**one, "status": "False"} if one.get("type") == "Completed" else one
        for one in untrusted.mappings(status.get("conditions"))
    ]
    patch["status"] |= {
        **dict.fromkeys(_OF_THE_END),
        "startedAt": now,
        **({"conditions": conditions} if conditions else {}),
        **({_STORED: {"shutdown": None}} if untrusted.sub(status, _STORED) else {}),
    }
    labels = dict.fromkeys((keys.ARGO_COMPLETED, _ARCHIVING, keys.ARGO_PHASE))
    patch["metadata"] = {**patch.get("metadata", {}), "labels": labels}
    patch["spec"] = {**patch.get("spec", {}), "shutdown": None}
    return patch, {node_id for node_id in gone & nodes.keys() if nodes[node_id].get("type") == "Pod"}


def repair(workflow: Mapping[str, Any]) -> Found | None:
    """What makes Argo create pods of a Workflow again, of which it creates none after `argo retry`. None if there is
    nothing to repair, or if Argo keeps the nodes in its database. The allocator may not delete the pods of the nodes
    that are removed: it ends those that Argo then knows no more.

    The patch removes nodes that Argo makes again: those of `left_by_argo_retry`, and what is below them, but for
    replicas that have succeeded: their pods still have the names that new ones would get. A replica that had several
    attempts gets the full backoffLimit.
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
    return _patch(workflow, nodes, gone, {}), {node_id for node_id in gone if nodes[node_id].get("type") == "Pod"}


def _patch(
    workflow: Mapping[str, Any], nodes: Mapping[str, Any], gone: set[str], changed: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    """The patch that removes nodes, changes others, and forgets what counted before."""
    changes: dict[str, dict[str, Any]] = {}
    left = {node_id: node for node_id, node in nodes.items() if node_id not in gone}
    for node_id, node in left.items():
        lists = {name: of for name in _REFERENCES if isinstance(of := node.get(name), list)}
        kept = {name: [one for one in of if not isinstance(one, str) or one not in gone] for name, of in lists.items()}
        if change := {**changed.get(node_id, {}), **(kept if kept != lists else {})}:
            changes[node_id] = change
    if is_packed(workflow):
        status = packed({node_id: {**node, **changes.get(node_id, {})} for node_id, node in left.items()})
    else:
        status = {"nodes": {**changes, **dict.fromkeys(gone)}}
        status |= {"compressedNodes": None} if untrusted.sub(workflow, "status").get("compressedNodes") else {}
    return {**forgetting(workflow), "status": status}


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

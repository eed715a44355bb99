"""What the controller does for a v1alpha1 job besides its Workflow and its status: it removes the pods that are not
wanted any more. Pure: `todo` says which writes are next.

The server writes which replicas a coordinator wants, and Argo makes their pods; neither takes pods away. When the
coordinator has ended, all others are released, and the job ends with the last of their pods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diflow.state import modules, nodenames, untrusted
from diflow.state.modules import Modules
from diflow.state.nodenames import NodeName

Json = dict[str, Any]

STOP: Json = {"spec": {"activeDeadlineSeconds": 1}}
"""The patch by which the kubelet stops a pod gracefully, and keeps its logs."""
_NODE_NAME = "workflows.argoproj.io/node-name"
_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Todo:
    """The next writes: a patch of the Workflow, pods to delete, and pods to stop."""

    patch: Json | None = None
    delete: tuple[Json, ...] = ()
    stop: tuple[Json, ...] = ()


def todo(workflow: Mapping[str, Any], known: Modules, pods: Sequence[Json], *, policy: str) -> Todo:
    """What is to be done for a job whose Workflow has not ended. `policy` is its cleanPodPolicy."""
    patch = None
    if known.has_ended and (left := known.of(*modules.ADDED)):
        patch, _ = modules.changed(workflow, release=left)
    kept = {(one.round, one.module, one.index) for one in known.of(*modules.ADDED)} if not known.has_ended else set()
    placed = [(pod, place) for pod in pods if (place := _place(known.job, pod)) and place.task in modules.ADDED]
    newest: dict[tuple[str, str, int], int] = {}
    for _, place in placed:
        newest[_key(place)] = max(newest.get(_key(place), 0), place.uncounted)
    delete: list[Json] = []
    stop: list[Json] = []
    for pod, place in placed:
        if pod["metadata"].get("deletionTimestamp"):
            continue
        has_ended = untrusted.sub(pod, "status").get("phase") in _ENDED
        if _key(place) in kept:
            # Of a replica that fails again and again, the pod before the present one is kept for its logs.
            if has_ended and place.uncounted < newest[_key(place)] - 1:
                delete.append(pod)
        elif not known.has_ended:
            delete.append(pod)  # a request has removed it
        elif not has_ended and policy == "None" and untrusted.sub(pod, "spec").get("nodeName"):
            if untrusted.sub(pod, "spec").get("activeDeadlineSeconds") != 1:
                stop.append(pod)
        elif not has_ended or policy == "All":
            delete.append(pod)
    return Todo(patch, tuple(delete), tuple(stop))


def _key(place: NodeName) -> tuple[str, str, int]:
    return place.round, place.task, place.index


def _place(job: str, pod: Json) -> NodeName | None:
    name = untrusted.string(untrusted.sub(pod, "metadata", "annotations").get(_NODE_NAME), most=1024)
    found = nodenames.parse(job, name)
    return found if found is not None and found.is_pod else None

"""What the controller does for a v1alpha1 job besides its Workflow and its status: it removes the pods that are not
wanted any more. Pure: `todo` says which writes are next.

The server writes which replicas a coordinator wants, and Argo makes their pods; neither takes pods away. When the
coordinator has ended, all others are released, and the job ends with the last of their pods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from diflow.contrib.di_orchestrator import modules
from diflow.contrib.di_orchestrator.modules import Modules
from diflow.record import untrusted
from diflow.record.argo import ended_pods, node_names, nodes
from diflow.record.argo.node_names import NodeName

Json = dict[str, Any]

_ENDED: Final = ("Succeeded", "Failed")
_WHY: Final = "it is not wanted any more"


@dataclass(frozen=True, slots=True)
class Todo:
    """The next writes: a patch of the Workflow, pods to delete, pods to stop (they keep their logs), and pods that have
    not started, which end by their status."""

    patch: Json | None = None
    delete: tuple[Json, ...] = ()
    stop: tuple[Json, ...] = ()
    fail: tuple[Json, ...] = ()


def todo(workflow: Mapping[str, Any], known: Modules, pods: Sequence[Json], *, policy: str) -> Todo:
    """What is to be done for a job whose Workflow has not ended. `policy` is its cleanPodPolicy."""
    patch = None
    if known.has_ended and (left := known.of(*modules.ADDED)):
        patch, _ = modules.changed(workflow, release=left)
    kept = {(one.round, one.module, one.index) for one in known.of(*modules.ADDED)} if not known.has_ended else set()
    phases = {node.name: node.phase for node in nodes.nodes(workflow)[0]}
    placed = [(pod, place) for pod in pods if (place := _place(known.job, pod)) and place.task in modules.ADDED]
    newest: dict[tuple[str, str, int], int] = {}
    for _, place in placed:
        newest[_key(place)] = max(newest.get(_key(place), 0), place.uncounted)
    chosen: dict[str, list[Json]] = {"delete": [], "stop": [], "fail": []}
    for pod, place in placed:
        if pod["metadata"].get("deletionTimestamp"):
            continue
        argos = phases.get(nodes.node_name_of(pod), "")
        if _key(place) in kept:
            # Of a replica that fails again and again, the pod before the present one is kept for its logs.
            if argos in nodes.FULFILLED and place.uncounted < newest[_key(place)] - 1:
                chosen["delete"].append(pod)
        elif what := _end(pod, argos, policy=policy if known.has_ended else ""):
            chosen[what].append(pod)
    return Todo(patch, **{what: tuple(some) for what, some in chosen.items()})


def _end(pod: Json, argos: str, *, policy: str) -> str:
    """What is to be done with a pod that is not wanted any more, "" for nothing now. `argos`: the phase of its node in
    Argo, `policy`: the cleanPodPolicy of a job that ends, "" of another one.

    Argo makes a pod again that is deleted before Argo has seen it run: such a pod ends by its status.
    """
    phase = untrusted.sub(pod, "status").get("phase")
    if phase in _ENDED:
        return "delete" if argos in nodes.FULFILLED and policy in ("", "All") else ""
    if phase != "Running":
        return "fail"
    if policy == "None":
        return "stop" if untrusted.sub(pod, "spec").get("activeDeadlineSeconds") != 1 else ""
    return "delete" if argos == "Running" else ""


def failed(pod: Json, *, now: str) -> Json:
    """The patch of the status by which a pod ends that has not started. Argo waits until the containers of a pod that
    is bound to a node have terminated; and the executor of any pod, if an earlier one of its name did not report."""
    statuses = untrusted.mappings(untrusted.sub(pod, "status").get("containerStatuses"))
    return ended_pods.failed(
        _WHY,
        is_bound=bool(untrusted.sub(pod, "spec").get("nodeName")),
        containers=[(one.get("name"), one.get("image", "")) for one in statuses],
        at=now,
    )


def _key(place: NodeName) -> tuple[str, str, int]:
    return place.round, place.task, place.index


def _place(job: str, pod: Json) -> NodeName | None:
    found = node_names.parse(job, nodes.node_name_of(pod))
    return found if found is not None and found.is_pod else None

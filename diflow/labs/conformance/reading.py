"""Reads Workflows and pods as the API server sends them. Pure; missing values are None or empty."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from diflow.common import keys
from diflow.record.argo.failures import MAIN

Json = dict[str, Any]

_FULFILLED = frozenset({"Succeeded", "Failed", "Error", "Skipped", "Omitted"})
_ENDED_PODS = frozenset({"Succeeded", "Failed"})
# Reasons of a waiting container that are permanent, or nearly so.
_STUCK = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "InvalidImageName",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    }
)
_UNSCHEDULABLE = "Unschedulable"


def phase(workflow: Json) -> str:
    """The Workflow's phase, "" before Argo has reconciled it."""
    return str((workflow.get("status") or {}).get("phase") or "")


def node(workflow: Json, path: str) -> Json | None:
    """The node with this path under the Workflow: `round(0:1).worker(1:1)`."""
    wanted = f"{workflow['metadata']['name']}.{path}"
    return next((item for item in _nodes(workflow) if item.get("name") == wanted), None)


def members(workflow: Json, group: str) -> list[str]:
    """The sorted names of a group's members without the Workflow's name: `group(0:a)`."""
    head = f"{workflow['metadata']['name']}.{group}("
    skip = len(workflow["metadata"]["name"]) + 1
    return sorted(
        item["name"][skip:]
        for item in _nodes(workflow)
        if str(item.get("name")).startswith(head)
        and item["name"].endswith(")")
        and "." not in item["name"][len(head) :]
    )


def phase_of(workflow: Json, path: str) -> str:
    """The phase of the node with this path, "" if there is none."""
    return str((node(workflow, path) or {}).get("phase") or "")


def pod_nodes(workflow: Json, path: str) -> list[Json]:
    """The nodes of all pods under the node with this path."""
    head = f"{workflow['metadata']['name']}.{path}"
    return [item for item in _nodes(workflow) if item.get("type") == "Pod" and str(item.get("name")).startswith(head)]


def attempts(workflow: Json, path: str) -> list[Json]:
    """The attempts of a node with retries, in order."""
    names = [f"{path}({i})" for i in range(100)]
    return [found for name in names if (found := node(workflow, name)) is not None]


def is_fulfilled(item: Json | None) -> bool:
    """Whether a node has ended."""
    return item is not None and item.get("phase") in _FULFILLED


def parameter_index(workflow: Json, name: str) -> int:
    """The index of a parameter in `spec.arguments.parameters`."""
    return [item["name"] for item in workflow["spec"]["arguments"]["parameters"]].index(name)


def workers(pods: Iterable[Json], *, round_: str = "1") -> dict[str, Json]:
    """The newest pods of one round by host name, without those of steps."""
    found: dict[str, Json] = {}
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp"))):
        labels = pod["metadata"].get("labels") or {}
        if labels.get(keys.ROUND) == round_ and keys.POD in labels:
            found[labels[keys.POD]] = pod
    return found


def pod_phase(pod: Json) -> str:
    """The pod's phase."""
    return str((pod.get("status") or {}).get("phase") or "")


def main_is_running(pod: Json) -> bool:
    """Whether the main container runs (a pod is Running as soon as Argo's own container runs)."""
    return "running" in (_main_status(pod).get("state") or {})


def has_ended(pod: Json) -> bool:
    """Whether all of the pod's containers have ended."""
    return pod_phase(pod) in _ENDED_PODS


def main_end(pod: Json) -> Json:
    """The main container's terminated state (exitCode, reason); empty while it runs."""
    return dict((_main_status(pod).get("state") or {}).get("terminated") or {})


def main_container(pod: Json) -> Json:
    """The main container of the pod's spec."""
    return next((item for item in pod["spec"]["containers"] if item.get("name") == MAIN), {})


def env(pod: Json) -> dict[str, str]:
    """The environment variables of the main container that have plain values, or those of the pod's annotations."""
    annotations = pod["metadata"].get("annotations") or {}
    named = {f"metadata.annotations['{name}']": value for name, value in annotations.items()}
    out = {}
    for item in main_container(pod).get("env") or []:
        field = (item.get("valueFrom") or {}).get("fieldRef") or {}
        out[item["name"]] = item.get("value") or named.get(field.get("fieldPath", ""), "")
    return out


def gates(pod: Json) -> list[str]:
    """The names of the pod's scheduling gates."""
    return [gate["name"] for gate in pod["spec"].get("schedulingGates") or []]


def scheduled_reason(pod: Json) -> str:
    """The scheduler's reason for a pod without a node: SchedulingGated, Unschedulable or ""."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    return next((str(item.get("reason") or "") for item in conditions if item.get("type") == "PodScheduled"), "")


def first_failure(workflow: Json) -> str:
    """The first failed node with a message, and the message; "" if there is none."""
    for item in _nodes(workflow):
        if item.get("phase") in ("Failed", "Error") and item.get("message"):
            return f"{item.get('name')} {item['phase']}: {item['message']}"
    return ""


def trouble(pods: Iterable[Json]) -> str | None:
    """Why a pod will not start, in a line, or None."""
    for pod in pods:
        name = pod["metadata"]["name"]
        status = pod.get("status") or {}
        for item in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
            waiting = (item.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") in _STUCK:
                return f"pod {name} cannot start: {waiting['reason']}: {waiting.get('message') or 'no message'}"
    return None


def waiting(pods: Iterable[Json]) -> str:
    """Why pods are not running yet, for the message of a timeout; "" if unknown."""
    for pod in pods:
        for condition in (pod.get("status") or {}).get("conditions") or []:
            if condition.get("reason") == _UNSCHEDULABLE:
                return f"pod {pod['metadata']['name']} is unschedulable: {condition.get('message') or 'no message'}"
    return ""


def _nodes(workflow: Json) -> Iterable[Json]:
    return ((workflow.get("status") or {}).get("nodes") or {}).values()


def _main_status(pod: Json) -> Json:
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return next((item for item in statuses if item.get("name") == MAIN), {})

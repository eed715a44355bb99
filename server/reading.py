"""What the server keeps of a Workflow and of a pod: read once from the object, and kept instead of it.

Nothing here raises on what somebody may have edited into an object. Thousands of pods stay within a few megabytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from diflow import chain, keys

Json = dict[str, Any]

_WORKFLOW: Final = "workflows.argoproj.io/workflow"
_ENDED: Final = frozenset({"Succeeded", "Failed", "Error"})
# Longer than what this server writes; whoever wrote more gets a new one.
_LONGEST_PROFILINGS: Final = 65_536


@dataclass(frozen=True, slots=True)
class TaskRead:
    """One task as it was submitted."""

    name: str
    replicas: int
    low: int | None = None
    high: int | None = None


@dataclass(frozen=True, slots=True)
class WorkflowRead:
    """One Workflow of a job. `counts`: how many replicas of each task run in the current round, in the tasks' order.

    `profilings` is None where it is none of this server's own texts, `profilings_at` the place of that parameter among
    all, None if there is none. `more` is what others want kept.
    """

    namespace: str
    name: str
    uid: str
    job: str
    version: str = field(compare=False)
    link: Mapping[str, Any]
    tasks: tuple[TaskRead, ...]
    bounds: Mapping[str, tuple[int, int]]
    is_gang: bool
    has_ended: bool
    current: str
    granted: Mapping[str, int]
    counts: Mapping[str, int]
    profilings: str | None
    profilings_at: int | None
    more: Any = None

    @property
    def elastic(self) -> str:
        """The task that is meant where none is named."""
        return elastic(self.tasks, bounds=self.bounds)


@dataclass(frozen=True, slots=True)
class PodRead:
    """A pod of a job that has not ended. `owner` is the uid of its Workflow, `address` "" while it has none.

    `more` is what others want kept.
    """

    namespace: str
    name: str
    uid: str
    job: str
    workflow: str
    owner: str
    round: str
    task: str
    index: int
    address: str
    port: int
    node: str
    created: str
    is_ending: bool
    on_host_network: bool
    more: Any = None


def read_workflow(obj: Mapping[str, Any], *, more: Any = None) -> WorkflowRead:
    """A Workflow of diflow's, as the server sees it."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    parameters = [p for p in (spec.get("arguments") or {}).get("parameters") or [] if isinstance(p, dict)]
    values = {str(p.get("name") or ""): str(p.get("value") or "") for p in parameters}
    at = next((i for i, p in enumerate(parameters) if p.get("name") == keys.PARAM_PROFILINGS), None)
    tasks = _tasks(annotations.get(keys.DIJOB) or "")
    current = values.get(keys.PARAM_CURRENT, "")
    granted = _counts(_mapping(values.get(keys.PARAM_GRANTED, "")).get(current))
    again = {k: v for k, v in _mapping(values.get(keys.PARAM_AGAIN, "")).items() if isinstance(v, str)}
    released = frozenset(str(item) for item in _list(values.get(keys.PARAM_RELEASED, "")))
    profilings = parameters[at].get("value") if at is not None else None
    is_ours = isinstance(profilings, str) and len(profilings) <= _LONGEST_PROFILINGS
    return WorkflowRead(
        namespace=str(metadata.get("namespace") or ""),
        name=str(metadata["name"]),
        uid=str(metadata.get("uid") or ""),
        job=chain.job_name(obj),
        version=str(metadata.get("resourceVersion") or ""),
        link=_link(metadata),
        tasks=tasks,
        bounds=read_bounds(annotations.get(keys.BOUNDS) or ""),
        is_gang=labels.get(keys.SCHEDULING) == "gang",
        has_ended=status.get("phase") in _ENDED,
        current=current,
        granted=granted,
        counts={t.name: _running(t.name, granted.get(t.name, 0), current, again, released) for t in tasks},
        profilings=profilings if is_ours else None,
        profilings_at=at,
        more=more,
    )


def read_pod(obj: Mapping[str, Any], *, more: Any = None) -> PodRead:
    """A pod of a job, as the server sees it."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    index = annotations.get(keys.TASK_RANK) or ""
    return PodRead(
        namespace=str(metadata.get("namespace") or ""),
        name=str(metadata["name"]),
        uid=str(metadata.get("uid") or ""),
        job=labels.get(keys.JOB) or "",
        workflow=labels.get(_WORKFLOW) or "",
        owner=next(
            (str(o.get("uid") or "") for o in metadata.get("ownerReferences") or [] if o.get("kind") == "Workflow"), ""
        ),
        round=labels.get(keys.ROUND) or "",
        task=labels.get(keys.TASK_NAME) or "",
        index=int(index) if index.isdecimal() and len(index) < 7 else -1,
        address=str(status.get("podIP") or ""),
        port=_port(spec),
        node=str(spec.get("nodeName") or ""),
        created=str(metadata.get("creationTimestamp") or ""),
        is_ending=bool(metadata.get("deletionTimestamp")),
        on_host_network=bool(spec.get("hostNetwork")),
        more=more,
    )


def elastic(tasks: Sequence[TaskRead], *, bounds: Mapping[str, tuple[int, int]]) -> str:
    """The task whose replicas come and go: the first one with room between its bounds, else the last one.

    It is the one that the policies resize, too; of a preemptible job that names no bounds that is the last one.
    """
    roomy = (task.name for task in tasks if _has_room(task, bounds))
    return next(roomy, tasks[-1].name if tasks else "")


def read_bounds(text: str) -> dict[str, tuple[int, int]]:
    """The annotation `diflow/bounds`; nothing of it if it cannot be understood."""
    try:
        return {name: (int(item["min"]), int(item["max"])) for name, item in _mapping(text).items()}
    except (KeyError, TypeError, ValueError, OverflowError):
        return {}


def address(host: str, port: int) -> str:
    """`host:port`, of an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _has_room(task: TaskRead, bounds: Mapping[str, tuple[int, int]]) -> bool:
    low, high = bounds.get(task.name) or (task.low or task.replicas, task.high or task.replicas)
    return low < high


def _link(metadata: Mapping[str, Any]) -> Json:
    """As much of the metadata as `diflow.chain` reads to find the Workflow in which a job is now."""
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    return {
        "metadata": {
            **{name: metadata.get(name) for name in ("namespace", "name", "uid")},
            "labels": {k: labels[k] for k in (keys.CHAIN, keys.PART) if k in labels},
            "annotations": {
                k: annotations[k] for k in (keys.CONTINUES, keys.CONTINUES_UID, keys.CONTINUED_IN) if k in annotations
            },
        }
    }


def _tasks(dijob: str) -> tuple[TaskRead, ...]:
    spec = _mapping(dijob).get("spec")
    given = spec.get("tasks") if isinstance(spec, dict) else None
    out = []
    for task in given if isinstance(given, list) else []:
        if isinstance(task, dict):
            name = task.get("name") or task.get("type") or ""
            replicas = _count(task.get("replicas")) or 1
            out.append(TaskRead(str(name), replicas, _count(task.get("minReplicas")), _count(task.get("maxReplicas"))))
    return tuple(out)


def _running(task: str, count: int, current: str, again: Mapping[str, str], released: frozenset[str]) -> int:
    """How many are meant to run: what is granted, less the released tail."""
    while released and count > 0:
        index = count - 1
        if f"{current}/{task}/{index}{again.get(f'{current}/{task}/{index}', '')}" not in released:
            break
        count = index
    return count


def _counts(value: Any) -> dict[str, int]:
    given = value if isinstance(value, dict) else {}
    return {str(name): count for name, number in given.items() if (count := _count(number)) is not None}


def _count(value: Any) -> int | None:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return value if is_whole and 1 <= value <= keys.MOST_REPLICAS else None


def _port(spec: Mapping[str, Any]) -> int:
    for container in spec.get("containers") or []:
        for port in container.get("ports") or []:
            if port.get("name") == keys.PORT_NAME and _count(port.get("containerPort")):
                return int(port["containerPort"])
    return keys.PORT


def _mapping(text: str) -> Mapping[str, Any]:
    value = _json(text)
    return value if isinstance(value, dict) else {}


def _list(text: str) -> list[Any]:
    value = _json(text)
    return value if isinstance(value, list) else []


def _json(text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None

"""What the caches have to keep of a Workflow, a pod and a node for the status page: little, and read once.

A Workflow may have a thousand of Argo's nodes, so all that is shown of them is worked out when it comes in. Whatever
somebody has edited into an object, nothing here raises: a job that cannot be read says so in `problem`.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from diflow import chain, keys, nodenames, status
from diflow.errors import InvalidError
from diflow.job import DIJob
from diflow.observe import STOPS, Observation, observe, waiting_reason
from diflow.scaling import asked
from diflow.server.page import amounts
from diflow.server.page.history import History, history, seconds
from diflow.status import JobStatus

Object = Mapping[str, Any]

_WORKFLOW: Final = "workflows.argoproj.io/workflow"
_NODE_NAME: Final = "workflows.argoproj.io/node-name"
# As the allocator bounds them: a number that somebody wrote must not become a loop of that length.
# Packed, the nodes of a Workflow are under 1 MiB: some 14,700 of them, of 530 bytes and 25 values each (decision 6).
_MOST_BYTES: Final = 16 * 1024 * 1024
_MOST_VALUES: Final = 800_000
_LONGEST_TEXT: Final = 400
# The queue of jobs that name none.
DEFAULT_QUEUE: Final = "default"
_ENDED_ARGO: Final = frozenset({"Succeeded", "Failed", "Error"})


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """One task: `low`..`high` replicas may run, `wanted` are asked for, `granted` have a place; `observed` run."""

    name: str
    low: int
    high: int
    wanted: int
    granted: int
    observed: int

    @property
    def range_text(self) -> str:
        """Such as `3` or `1–4`."""
        return str(self.high) if self.low == self.high else f"{self.low}–{self.high}"


@dataclass(frozen=True, slots=True)
class JobFacts:
    """A job's Workflow. Times are seconds since 1970, 0 where there is none.

    `name` is the job's, `workflow` that of the Workflow in which it is. `waits`: it is the allocator's, and has no
    place. `why` is the allocator's last word on it. `link` is what tells which Workflow goes on in which.
    """

    namespace: str
    name: str
    workflow: str
    uid: str
    queue: str
    priority: str
    is_preemptible: bool
    is_gang: bool
    submitted: float
    phase: str
    message: str = ""
    tasks: tuple[TaskFacts, ...] = ()
    waits: bool = False
    is_suspended: bool = False
    is_stopping: bool = False
    why: str = ""
    decided: float = 0.0
    restarts: int = 0
    reschedules: int = 0
    backoff_limit: int = 0
    round: str = ""
    started: float = 0.0
    finished: float = 0.0
    speed: float | None = None
    progress: float | None = None
    history: History = field(default_factory=History)
    phases: tuple[tuple[str, float], ...] = ()
    problem: str = ""
    link: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def has_ended(self) -> bool:
        return self.phase in status.ENDED


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod that has not ended. `workflow` is "" for one that is no replica of a job's.

    `node` is where it takes room, "" if it has none yet.
    """

    namespace: str
    name: str
    workflow: str
    owner: str
    task: str
    index: int
    round: str
    node: str
    phase: str
    is_ready: bool
    is_leaving: bool
    waiting: str
    created: float
    request: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node. `since`: from when on it is not ready (seconds since 1970), 0 if it is ready."""

    name: str
    is_ready: bool
    is_closed: bool
    since: float
    room: tuple[tuple[str, float], ...]

    @property
    def state(self) -> str:
        if not self.is_ready:
            return "not ready"
        return "cordoned" if self.is_closed else "ready"


def trim_workflow(obj: Object) -> JobFacts | None:
    """What to keep of a Workflow; None for one that is not diflow's."""
    if not status.is_job(obj):
        return None
    try:
        return _job(obj)
    except Exception as error:
        # Users may write whatever they like into their own Workflows; one of them must not take the page away.
        return _unreadable(obj, f"it cannot be read: {type(error).__name__}")


def trim_pod(obj: Object) -> PodFacts | None:
    """What to keep of a pod; None for one that has ended and holds nothing any more."""
    metadata, spec, state = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    phase = state.get("phase") or "Pending"
    if phase in ("Succeeded", "Failed"):
        return None
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    workflow = str(labels.get(_WORKFLOW) or "") if labels.get(keys.OPERATOR) else ""
    place = nodenames.parse(workflow, annotations.get(_NODE_NAME) or "") if workflow else None
    gates = [str(gate.get("name") or "") for gate in spec.get("schedulingGates") or []]
    pinned = (spec.get("nodeSelector") or {}).get("kubernetes.io/hostname") or ""
    conditions = {c.get("type"): c.get("status") for c in state.get("conditions") or []}
    owners = metadata.get("ownerReferences") or []
    return PodFacts(
        namespace=str(metadata.get("namespace") or ""),
        name=str(metadata.get("name") or ""),
        workflow=workflow if place is not None and place.task else "",
        owner=next((str(o.get("uid") or "") for o in owners if o.get("kind") == "Workflow"), ""),
        task=place.task if place is not None else "",
        index=place.index if place is not None else 0,
        round=place.round if place is not None else "",
        node=str(spec.get("nodeName") or ("" if gates else pinned)),
        phase=str(phase),
        is_ready=phase == "Running" and conditions.get("Ready") == "True",
        is_leaving=bool(metadata.get("deletionTimestamp")) or (spec.get("activeDeadlineSeconds") or 2) <= 1,
        waiting=_cut(waiting_reason(obj)),
        created=seconds(str(metadata.get("creationTimestamp") or "")),
        request=tuple(sorted(amounts.of_pod(spec).items())),
    )


def trim_node(obj: Object) -> NodeFacts:
    """What to keep of a node."""
    spec, state = obj.get("spec") or {}, obj.get("status") or {}
    ready: Object = next((c for c in state.get("conditions") or [] if c.get("type") == "Ready"), {})
    is_ready = ready.get("status") == "True"
    return NodeFacts(
        name=str(obj["metadata"].get("name") or ""),
        is_ready=is_ready,
        is_closed=bool(spec.get("unschedulable")),
        since=0.0 if is_ready else seconds(str(ready.get("lastTransitionTime") or "")),
        room=tuple(sorted(amounts.read(state.get("allocatable")).items())),
    )


def _job(obj: Object) -> JobFacts:
    metadata, spec = obj["metadata"], obj.get("spec") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    parameters = {
        str(p.get("name") or ""): str(p.get("value") or "")
        for p in (spec.get("arguments") or {}).get("parameters") or []
        if isinstance(p, Mapping)
    }
    dijob = _mapping(annotations.get(keys.DIJOB))
    if too_many := _too_many(_mapping(parameters.get(keys.PARAM_GRANTED)), dijob):
        return _unreadable(obj, too_many)
    if _is_overfull((obj.get("status") or {}).get("compressedNodes")):
        return _unreadable(obj, "its nodes are too many to be shown")
    seen = observe(obj)
    state = status.derive_seen(obj, seen)
    is_gang = labels.get(keys.SCHEDULING) == "gang"
    is_preemptible = labels.get(keys.PREEMPTIBLE) == "true"
    allocation = _mapping(annotations.get(keys.ALLOCATION))
    at = allocation.get("nodes")
    is_placed = not is_gang or (allocation.get("round") == seen.round and isinstance(at, dict) and any(at.values()))
    decision = seen.decision if seen.decision and seen.decision.action != "keep" else None
    submitted = seconds(chain.submitted(obj))
    past = history(
        seen.attempts,
        seen.tasks,
        begin=seconds(str(metadata.get("creationTimestamp") or "")),
        first=_time(allocation.get("first")),
        since=(seen.round, _time(allocation.get("since")) if is_preemptible and is_placed else 0.0),
    )
    return JobFacts(
        namespace=str(metadata.get("namespace") or ""),
        name=chain.job_name(obj),
        workflow=str(metadata.get("name") or ""),
        uid=str(metadata.get("uid") or ""),
        queue=str(labels.get(keys.QUEUE) or _spec(dijob).get("queue") or DEFAULT_QUEUE),
        priority=str(labels.get(keys.PRIORITY) or "normal"),
        is_preemptible=is_preemptible,
        is_gang=is_gang,
        submitted=submitted,
        phase=state.phase,
        message=_cut(state.message),
        tasks=_tasks(dijob, parameters, annotations, seen, state, is_placed=is_placed),
        waits=is_gang and not is_placed and not state.ended,
        is_suspended=bool(spec.get("suspend")),
        is_stopping=spec.get("shutdown") in STOPS,
        why=_cut(decision.why) if decision else "",
        decided=seconds(decision.time) if decision else 0.0,
        restarts=state.restarts or 0,
        reschedules=state.reschedules or 0,
        backoff_limit=seen.backoff_limit,
        round=seen.round,
        started=seconds(state.start_time),
        finished=seconds(state.completion_timestamp),
        speed=speed(seen.profilings),
        progress=_progress(seen.profilings),
        history=past,
        phases=tuple((c.type, seconds(c.last_transition_time)) for c in state.conditions),
        link=_link(obj),
    )


def _tasks(
    dijob: Mapping[str, Any],
    parameters: Mapping[str, str],
    annotations: Mapping[str, Any],
    seen: Observation,
    state: JobStatus,
    *,
    is_placed: bool,
) -> tuple[TaskFacts, ...]:
    wanted = _counts(_mapping(parameters.get(keys.PARAM_REPLICAS)))
    bounds = dict(_bounds(_mapping(annotations.get(keys.BOUNDS))))
    job = _valid(dijob)
    wanted_now = seen.wanted
    ready = Counter(key[0] for key, attempt in seen.latest().items() if attempt.is_ready and key in wanted_now)
    out = []
    for name in seen.tasks:
        index = next((i for i, task in enumerate(job.tasks) if task.name == name), None) if job else None
        number = wanted.get(name, seen.initial.get(name, 0))
        low, high = bounds.get(name, (number, number))
        if job is not None and index is not None:
            found = asked(job, index, wanted=wanted, bounds=bounds)
            low, high, number = found.low, found.high, found.wanted
        out.append(
            TaskFacts(
                name,
                low=low,
                high=high,
                wanted=number,
                granted=seen.granted.get(name, 0) if is_placed else 0,
                observed=0 if state.ended else ready[name],
            )
        )
    return tuple(out)


def speed(profilings: Mapping[str, Any]) -> float | None:
    """Samples a second that the job says it does, None if it says nothing usable.

    Ranks that report for themselves (`{"ranks": {"0": {"speed": 3.5}}}`) are added up.
    """
    said = _number(profilings.get("speed"))
    if said is not None and said > 0:
        return said
    ranks = profilings.get("ranks")
    each = [_number(r.get("speed")) for r in ranks.values() if isinstance(r, dict)] if isinstance(ranks, dict) else []
    total = sum(value for value in each if value is not None and value > 0)
    return total if total > 0 and math.isfinite(total) else None


def _progress(profilings: Mapping[str, Any]) -> float | None:
    said = _number(profilings.get("progress"))
    return said if said is not None and 0 <= said <= 1 else None


def _valid(dijob: Mapping[str, Any]) -> DIJob | None:
    import warnings  # noqa: PLC0415

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return DIJob.from_manifest(dict(dijob))
    except InvalidError:
        return None


def _unreadable(obj: Object, problem: str) -> JobFacts:
    metadata = obj["metadata"]
    labels = metadata.get("labels") or {}
    argo = (obj.get("status") or {}).get("phase")
    ends = {"Succeeded": "Succeeded", "Failed": "Failed", "Error": "Failed"}
    return JobFacts(
        namespace=str(metadata.get("namespace") or ""),
        name=chain.job_name(obj),
        workflow=str(metadata.get("name") or ""),
        uid=str(metadata.get("uid") or ""),
        queue=str(labels.get(keys.QUEUE) or DEFAULT_QUEUE),
        priority=str(labels.get(keys.PRIORITY) or "normal"),
        is_preemptible=labels.get(keys.PREEMPTIBLE) == "true",
        is_gang=labels.get(keys.SCHEDULING) == "gang",
        submitted=seconds(chain.submitted(obj)),
        phase=ends.get(argo, "Unknown") if isinstance(argo, str) else "Unknown",
        message=problem,
        problem=problem,
        link=_link(obj),
    )


def _link(obj: Object) -> Mapping[str, Any]:
    """What `diflow.chain` reads of a Workflow."""
    metadata = obj["metadata"]
    annotations = metadata.get("annotations") or {}
    kept = (keys.CONTINUES, keys.CONTINUES_UID, keys.CONTINUED_IN)
    return {
        "metadata": {
            **{name: metadata.get(name) for name in ("name", "namespace", "uid")},
            "annotations": {key: annotations[key] for key in kept if key in annotations},
        }
    }


def _is_overfull(packed: Any) -> bool:
    """These packed nodes would take more memory than those of any job: a few KiB can be gigabytes when unpacked."""
    if not isinstance(packed, str) or not packed:
        return False
    data, size, values = base64.b64decode(packed), 0, 0
    while data:
        unpacking = zlib.decompressobj(wbits=31)
        while data and not unpacking.eof:
            part = unpacking.decompress(data, 1 << 20)
            data = unpacking.unconsumed_tail
            size += len(part)
            values += part.count(b",") + part.count(b"{") + part.count(b"[")
            if size > _MOST_BYTES or values > _MOST_VALUES:
                return True
        data = unpacking.unused_data
    return False


def _too_many(granted: Mapping[str, Any], dijob: Mapping[str, Any]) -> str:
    counts: list[Any] = [n for tasks in granted.values() if isinstance(tasks, dict) for n in tasks.values()]
    tasks = _spec(dijob).get("tasks")
    counts += [task.get("replicas") for task in tasks if isinstance(task, dict)] if isinstance(tasks, list) else []
    if any(isinstance(n, int) and n > keys.MOST_REPLICAS for n in counts):
        return f"it says more than {keys.MOST_REPLICAS:,} replicas of one task"
    return ""


def _spec(dijob: Mapping[str, Any]) -> Mapping[str, Any]:
    spec = dijob.get("spec")
    return spec if isinstance(spec, dict) else {}


def _mapping(text: Any) -> dict[str, Any]:
    try:
        value = json.loads(text) if isinstance(text, str) and text else {}
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _counts(value: Mapping[str, Any]) -> dict[str, int]:
    return {task: n for task, n in value.items() if type(n) is int and 0 <= n <= keys.MOST_REPLICAS}


def _bounds(value: Mapping[str, Any]) -> Iterable[tuple[str, tuple[int, int]]]:
    for task, item in value.items():
        low, high = (item.get("min"), item.get("max")) if isinstance(item, dict) else (None, None)
        if type(low) is int and type(high) is int and 0 <= low <= high <= keys.MOST_REPLICAS:
            yield task, (low, high)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _time(value: Any) -> float:
    """A time that somebody wrote as seconds since 1970, 0 for what is none."""
    number = _number(value)
    return number if number is not None and 0 < number < datetime.max.replace(tzinfo=UTC).timestamp() else 0.0


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}…"

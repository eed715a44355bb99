"""Reads what Argo's nodes and the pods show of a job: every attempt of every replica.

It is pure, and it imports neither Hera nor pydantic, because `diflow list` runs it over a thousand Workflows. Times
stay the text that Kubernetes writes (`2026-11-21T09:40:44Z`), whose alphabetical order is the order in time.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from diflow import chain, keys, nodenames
from diflow.nodenames import NodeName
from diflow.reasons import tell

Object = Mapping[str, Any]

_NODE_ID = "workflows.argoproj.io/node-id"
_NODE_NAME = "workflows.argoproj.io/node-name"
_ARGO_MAIN = "main"  # the name that Argo gives to the container of the work
STOPS = ("Stop", "Terminate")
_STOP = "stop"  # the action of the allocator's decision to end a job
_GATED = "SchedulingGated"
_GIVE_UP = f".hooks.{keys.TEMPLATE_GIVE_UP}"
_FULFILLED = frozenset({"Succeeded", "Failed", "Error", "Skipped", "Omitted"})
# Argo packs up to 1 MiB, which is seven to ten times as long unpacked. A user may write that field, too.
_MOST_NODES_BYTES = 64 * 1024 * 1024
# What Argo writes into a node whose pod was taken away rather than failed on its own.
_TAKEN_AWAY = re.compile(
    r"pod deleted|evict|preempt|node (was )?(lost|shutdown|is shutting)|nodelost|OutOf|UnexpectedAdmissionError"
    r"|terminat(ed|ion) by|DisruptionTarget|taint",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One pod of one replica. `restart` and `counted` use the backoffLimit up, `uncounted` does not."""

    round: str
    round_index: int
    restart: int
    task: str
    index: int
    member: str  # its index, or "2.1" for one that was dropped from its round and came back
    life: int  # how often it came back
    counted: int
    uncounted: int
    node_id: str
    phase: str  # as of a pod: Pending, Running, Succeeded, Failed or Unknown
    message: str
    waiting: str  # why it does not start, or ""
    exit_code: int | None
    host: str
    created: str
    placed: str  # when it got a machine, or ""
    ready: str  # when it was ready, or "" if it never was
    is_ready: bool
    is_ending: bool  # the work has ended, and Argo is still collecting what it left
    finished: str

    @property
    def replica(self) -> str:
        """The replica's name within its job."""
        return f"{self.task}-{self.index}"

    @property
    def order(self) -> tuple[int, int, int, int, int]:
        """Later attempts of one replica are greater."""
        return (self.round_index, self.restart, self.life, self.counted, self.uncounted)

    @property
    def key(self) -> str:
        """As the parameter `released` names it."""
        return f"{self.round}/{self.task}/{self.member}"

    @property
    def tries(self) -> int:
        """How much of the backoffLimit was used up before it."""
        return self.counted + self.restart

    @property
    def was_stopped(self) -> bool:
        """Argo ended it because the whole Workflow was stopped."""
        return "shutdown with strategy" in self.message

    @property
    def was_taken_away(self) -> bool:
        """It ended by eviction, preemption, a lost machine or the like, and not by its own fault."""
        return self.phase == "Failed" and _TAKEN_AWAY.search(self.message) is not None


@dataclass(frozen=True, slots=True)
class Decision:
    """The allocator's last word on a job: what it does (such as `wait` or `stop`), why, and when (RFC 3339)."""

    action: str
    why: str
    time: str


@dataclass(frozen=True, slots=True)
class Observation:
    """All that can be seen of a job.

    `attempts` are in the order of `Attempt.order`. `granted` is what may run in the current round, `initial` what the
    first one began with; `again` has the suffixes of replicas that came back, by "round/task/index". `closing`: Argo
    starts nothing more, because the Workflow has ended or was told to stop; `gave_up`: the job itself told it so, as
    its tries are used up. `restarts` and `reschedules` are the whole job's: over all replicas and rounds, and over the
    Workflows that this one continues. `past` is what the job went through in those, each phase with the times at which
    it last began and ended; `started` when the first one began.
    """

    name: str
    round: str
    rounds: tuple[str, ...]
    tasks: tuple[str, ...]
    granted: dict[str, int]
    initial: dict[str, int]
    released: frozenset[str]
    again: dict[str, str]
    backoff_limit: int
    attempts: tuple[Attempt, ...]
    restarts: int
    reschedules: int
    closing: bool
    gave_up: bool
    decision: Decision | None
    offloaded: bool
    step_failure: str  # why a step of diflow's own failed, or ""
    step_waiting: str
    profilings: dict[str, Any]
    past: tuple[tuple[str, str, str], ...] = ()
    started: str = ""
    is_left: bool = False

    @property
    def wanted(self) -> frozenset[tuple[str, int]]:
        """The replicas that should run now, each as (task, index)."""
        return frozenset(
            (task, index)
            for task, count in self.granted.items()
            for index in range(count)
            if f"{self.round}/{task}/{self.member(self.round, task, index)}" not in self.released
        )

    def member(self, round_: str, task: str, index: int) -> str:
        """The name by which a replica goes in its newest life in this round: its index, or "2.1"."""
        return f"{index}{self.again.get(f'{round_}/{task}/{index}', '')}"

    def was_released(self, attempt: Attempt) -> bool:
        """It was stopped on purpose: `released` says so, or it was dropped since, or has come back in another life."""
        return (
            attempt.key in self.released
            or attempt.member != self.member(attempt.round, attempt.task, attempt.index)
            or (attempt.round == self.round and attempt.index >= self.granted.get(attempt.task, 0))
        )

    @property
    def stopped(self) -> str:
        """Why the allocator ended the job, or ""."""
        return self.decision.why if self.closing and self.decision and self.decision.action == _STOP else ""

    def latest(self) -> dict[tuple[str, int], Attempt]:
        """The newest attempt of each replica in the current round and in its present life, by (task, index)."""
        current = [a for a in self.attempts if a.round == self.round]
        restart = max((a.restart for a in current), default=0)
        return {
            (a.task, a.index): a
            for a in current
            if a.restart == restart and a.member == self.member(self.round, a.task, a.index)
        }


def observe(workflow: Object, pods: Sequence[Object] = ()) -> Observation:
    """Read a Workflow and, where they are given, its pods."""
    metadata = workflow.get("metadata") or {}
    name = metadata.get("name") or ""
    parameters = _parameters(workflow)
    rounds = [str(r) for r in _json(parameters.get(keys.PARAM_ROUNDS), [])] or ["1"]
    current = parameters.get(keys.PARAM_CURRENT) or rounds[-1]
    annotations = metadata.get("annotations") or {}
    decision = _decision(annotations.get(keys.DECISION))
    gated = decision.why if decision and decision.action != _STOP else ""
    dijob = _mapping(_json(annotations.get(keys.DIJOB), {}))
    initial = _replicas_of(dijob)
    granted = _counts(_mapping(_json(parameters.get(keys.PARAM_GRANTED), {})).get(current)) or initial
    found = {**initial, **granted}
    nodes, offloaded = read_nodes(workflow, pods)
    by_node = {_annotation(pod, _NODE_ID): pod for pod in pods}

    attempts: list[Attempt] = []
    gave_up = False
    failures: list[str] = []
    waits: list[str] = []
    prefix = f"{name}.round("
    for node_id, node in nodes.items():
        node_name = node.get("name") or ""
        if not node_name.startswith(prefix):
            if node.get("type") in ("Pod", "Retry") and node_name.startswith(f"{name}.service"):
                _read_step(node, by_node.get(node_id), failures, waits)
            gave_up = gave_up or _has_given_up(node)
            continue
        gave_up = gave_up or _has_given_up(node)
        if node.get("type") == "Pod" and (place := nodenames.parse(name, node_name)) is not None and place.task:
            attempts.append(_attempt(node, by_node.get(node_id), place, gated=gated))
    attempts = sorted((a for a in attempts if not _is_stillborn(a)), key=lambda a: (a.order, a.created))
    for attempt in attempts:
        found.setdefault(attempt.task, 0)
    before = _mapping(_json(annotations.get(keys.HISTORY_BEFORE), {}))
    return Observation(
        name=chain.job_name(workflow),
        round=current,
        rounds=tuple(rounds),
        tasks=tuple(found),
        granted=granted,
        initial=initial,
        released=frozenset(str(r) for r in _json(parameters.get(keys.PARAM_RELEASED), [])),
        again={key: str(suffix) for key, suffix in _json(parameters.get(keys.PARAM_AGAIN), {}).items()},
        backoff_limit=_backoff_limit(dijob),
        attempts=tuple(attempts),
        restarts=_restarts(attempts) + _before(annotations, keys.RESTARTS_BEFORE),
        reschedules=_moves(attempts) + _rounds_left(rounds, attempts) + _before(annotations, keys.ROUNDS_BEFORE),
        closing=(workflow.get("spec") or {}).get("shutdown") in STOPS
        or (workflow.get("status") or {}).get("phase") in ("Succeeded", "Failed", "Error"),
        gave_up=gave_up,
        decision=decision,
        offloaded=offloaded,
        step_failure=failures[0] if failures else "",
        step_waiting=waits[0] if waits else "",
        profilings=_mapping(_json(parameters.get(keys.PARAM_PROFILINGS), {})),
        past=tuple(_past(before.get("phases"))),
        started=_time(before.get("started")) or (workflow.get("status") or {}).get("startedAt") or "",
        is_left=bool(chain.continued_in(workflow)),
    )


def read_nodes(workflow: Object, pods: Sequence[Object] = ()) -> tuple[dict[str, Object], bool]:
    """The Workflow's nodes by their id, unpacked where Argo packed them.

    The second value says that Argo keeps the nodes of this Workflow in its database: then they are put together from
    the pods, as far as those go.
    """
    status = workflow.get("status") or {}
    nodes = status.get("nodes")
    if nodes:
        return nodes, False
    packed = status.get("compressedNodes")
    if packed:
        return _unpacked(packed), False
    if status.get("offloadNodeStatusVersion"):
        return dict(_nodes_of_pods(pods)), True
    return {}, False


def _unpacked(packed: str) -> dict[str, Object]:
    """The nodes in `compressedNodes`; none where somebody wrote something else there, however small it was packed."""
    try:
        unzip = zlib.decompressobj(wbits=31)
        text = unzip.decompress(base64.b64decode(packed), _MOST_NODES_BYTES)
        found = json.loads(text) if unzip.eof else None
    except (ValueError, RecursionError, zlib.error):
        return {}
    return found if isinstance(found, dict) else {}


def waiting_reason(pod: Object, *, gated: str = "") -> str:
    """Why a pod does not start and what to do, or "" when it is on its way.

    `gated` is what the allocator says of a pod that it has not admitted.
    """
    status = pod.get("status") or {}
    if status.get("phase") not in (None, "", "Pending"):
        return ""
    statuses = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    for container in statuses:
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason") or ""
        if reason and reason not in ("ContainerCreating", "PodInitializing"):
            return tell(_sentence(reason, waiting.get("message") or ""))
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            if condition.get("reason") == _GATED:
                gates = [g.get("name", "") for g in (pod.get("spec") or {}).get("schedulingGates") or []]
                if gated and gates == [keys.GATE]:
                    return gated
                return f"waits to be admitted (gate {', '.join(gates)})" if gates else "waits to be admitted"
            return tell(_sentence(condition.get("reason") or "", condition.get("message") or ""))
    return ""


def _attempt(node: Object, pod: Object | None, place: NodeName, *, gated: str) -> Attempt:
    argo = node.get("phase") or "Pending"
    ended = argo in _FULFILLED
    message = (node.get("message") or "").removeprefix(f"{_ARGO_MAIN}: ")
    exit_code = _number((node.get("outputs") or {}).get("exitCode"))
    phase = "Failed" if argo == "Error" else argo
    created = node.get("startedAt") or ""
    finished = (node.get("finishedAt") or "") if ended else ""
    host = node.get("hostNodeName") or ""
    waiting = tell(message) if phase == "Pending" and not _is_on_its_way(message) else ""
    if gated and waiting and message.startswith(_GATED):
        waiting = gated
    # Of a pod that is gone, only what Argo kept: with an exit code it has run; taken away from a machine, most likely.
    told = exit_code is not None or "exit code" in message or (host != "" and _TAKEN_AWAY.search(message) is not None)
    ran = phase == "Running" or (ended and (phase == "Succeeded" or told))
    placed = created if host or ran else ""
    ready = created if ran else ""
    is_ready = phase == "Running"
    is_ending = False
    if pod is not None:
        status = pod.get("status") or {}
        host = (pod.get("spec") or {}).get("nodeName") or host
        conditions = {c.get("type"): c for c in status.get("conditions") or []}
        placed = _since(conditions.get("PodScheduled")) or placed
        main = _main_state(status)
        terminated = main.get("terminated") or {}
        if not ended:
            phase = status.get("phase") or phase
            waiting = waiting_reason(pod, gated=gated)
            is_ending = phase == "Running" and bool(terminated)
            is_ready = phase == "Running" and (conditions.get("Ready") or {}).get("status") == "True"
            if phase in ("Succeeded", "Failed"):
                finished = terminated.get("finishedAt") or finished or created
                message = message or _ending(status, terminated)
        exit_code = exit_code if exit_code is not None else _number(terminated.get("exitCode"))
        ready = _since(conditions.get("Ready")) or _started(main) or ("" if not ended else ready)
        if phase == "Running" and not is_ready and not conditions.get("Ready"):
            ready = ""
    return Attempt(
        round=place.round,
        round_index=place.round_index,
        restart=place.restart,
        task=place.task,
        index=place.index,
        member=place.member,
        life=place.life,
        counted=place.counted,
        uncounted=place.uncounted,
        node_id=node.get("id") or "",
        phase=phase if phase in ("Pending", "Running", "Succeeded", "Failed") else _other(argo),
        message=message,
        waiting=waiting,
        exit_code=exit_code,
        host=host,
        created=created,
        placed=placed,
        ready=ready,
        is_ready=is_ready,
        is_ending=is_ending,
        finished=finished,
    )


def _other(phase: str) -> str:
    return "Succeeded" if phase in ("Skipped", "Omitted") else "Unknown"


def _is_on_its_way(message: str) -> bool:
    return not message or message.startswith(("ContainerCreating", "PodInitializing"))


def _is_stillborn(attempt: Attempt) -> bool:
    """Argo noted another try of a pod that it had stopped itself, and never made it."""
    return attempt.was_stopped and not attempt.host and (attempt.tries > 0 or attempt.uncounted > 0)


def _restarts(attempts: Sequence[Attempt]) -> int:
    """How often the backoffLimit was drawn on: by single replicas, or by the whole round."""
    alone: dict[object, int] = {}
    together: dict[str, int] = {}
    for a in attempts:
        key = (a.round, a.restart, a.task, a.member)
        alone[key] = max(alone.get(key, 0), a.counted)
        together[a.round] = max(together.get(a.round, 0), a.restart)
    return sum(alone.values()) + sum(together.values())


def _before(annotations: Mapping[str, Any], key: str) -> int:
    """What an earlier Workflow of the same job has left in the count."""
    return max(0, _number(annotations.get(key)) or 0)


def _past(phases: Any) -> Iterator[tuple[str, str, str]]:
    for item in phases if isinstance(phases, list) else []:
        if isinstance(item, list) and len(item) == 3 and isinstance(item[0], str) and _time(item[1]):
            yield item[0], _time(item[1]), _time(item[2]) or _time(item[1])


def _decision(text: Any) -> Decision | None:
    said = _mapping(_json(text, {}))
    why = said.get("why")
    if not isinstance(why, str) or not why:
        return None
    return Decision(action=str(said.get("action") or ""), why=why, time=_time(said.get("time")))


def _time(text: Any) -> str:
    """A time as it is, if it is one that everybody can read."""
    try:
        return text if datetime.fromisoformat(text).tzinfo else ""
    except (TypeError, ValueError):
        return ""


def _moves(attempts: Sequence[Attempt]) -> int:
    """How many pods were made anew without drawing on the backoffLimit."""
    return sum(1 for a in attempts if a.uncounted)


def _rounds_left(rounds: Sequence[str], attempts: Sequence[Attempt]) -> int:
    """How many rounds were given up for another one; not those of which no pod ever got a machine.

    A job that is given another number of replicas than it was submitted with at its first start is in its second round.
    """
    seen = {a.round for a in attempts}
    placed = {a.round for a in attempts if a.placed}
    return sum(1 for name in rounds[:-1] if name in placed or name not in seen)


def _has_given_up(node: Object) -> bool:
    """The step that stops a failed job has got a machine.

    It may end as Failed all the same: by its own condition, or because Argo stops it with the rest. After a user's stop
    it fails too, as Argo then starts nothing more, but it never gets a machine.
    """
    if _GIVE_UP not in (node.get("name") or "") or node.get("phase") in ("Skipped", "Omitted"):
        return False
    return node.get("phase") not in ("Failed", "Error") or bool(node.get("hostNodeName"))


def _read_step(node: Object, pod: Object | None, failures: list[str], waits: list[str]) -> None:
    phase, message = node.get("phase"), node.get("message") or ""
    if phase in ("Failed", "Error") and node.get("type") == "Retry" and "with strategy '" not in message:
        failures.append(message or "it failed")
    elif phase == "Pending" and node.get("type") == "Pod":
        reason = waiting_reason(pod) if pod is not None else ("" if _is_on_its_way(message) else tell(message))
        if reason:
            waits.append(reason)


def _since(condition: Object | None) -> str:
    if condition and condition.get("status") == "True":
        return condition.get("lastTransitionTime") or ""
    return ""


def _main_state(status: Object) -> Object:
    for container in status.get("containerStatuses") or []:
        if container.get("name") == _ARGO_MAIN:
            state: Object = container.get("state") or {}
            return state
    return {}


def _started(state: Object) -> str:
    """When a container that has ended, or that runs without being ready, was started."""
    return (state.get("terminated") or {}).get("startedAt") or ""


def _ending(status: Object, terminated: Object) -> str:
    if status.get("reason"):
        return _sentence(status["reason"], status.get("message") or "")
    code = terminated.get("exitCode")
    reason = terminated.get("reason") or "Error"
    return f"{reason} (exit code {code})" if code else ""


def _nodes_of_pods(pods: Sequence[Object]) -> Iterator[tuple[str, Object]]:
    for pod in pods:
        status = pod.get("status") or {}
        node_id = _annotation(pod, _NODE_ID)
        yield (
            node_id,
            {
                "id": node_id,
                "name": _annotation(pod, _NODE_NAME),
                "type": "Pod",
                "phase": "Pending",
                "startedAt": (pod.get("metadata") or {}).get("creationTimestamp") or "",
                "message": status.get("message") or "",
            },
        )


def _annotation(pod: Object, key: str) -> str:
    return ((pod.get("metadata") or {}).get("annotations") or {}).get(key) or ""


def _parameters(workflow: Object) -> dict[str, str]:
    arguments = (workflow.get("spec") or {}).get("arguments") or {}
    return {p.get("name", ""): str(p.get("value", "")) for p in arguments.get("parameters") or []}


def _json(text: Any, default: Any) -> Any:
    """Read JSON that anybody may have written; what cannot be read, or is of another kind, counts as absent."""
    if not text:
        return default
    try:
        value = json.loads(text)
    except (ValueError, TypeError):
        return default
    return value if isinstance(value, type(default)) else default


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _counts(value: Any) -> dict[str, int]:
    found = _mapping(value)
    return {task: min(count, keys.MOST_REPLICAS) for task, count in found.items() if isinstance(count, int)}


def _replicas_of(dijob: Mapping[str, Any]) -> dict[str, int]:
    tasks = _mapping(dijob.get("spec")).get("tasks")
    out: dict[str, int] = {}
    for task in tasks if isinstance(tasks, list) else []:
        if isinstance(task, dict):
            name = task.get("name") or task.get("type")
            count = task.get("replicas", 1)
            if name and isinstance(count, int):
                out[str(name)] = min(count, keys.MOST_REPLICAS)
    return out


def _backoff_limit(dijob: Mapping[str, Any]) -> int:
    limit = _mapping(dijob.get("spec")).get("backoffLimit", 3)
    return limit if isinstance(limit, int) else 3


def _number(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def _sentence(reason: str, message: str) -> str:
    message = " ".join(message.split())
    if not message or message.startswith(reason):
        return message or reason
    return f"{reason}: {message}"

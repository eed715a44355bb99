"""What the allocator knows of a job, a pod and a node: read once from the object, and kept instead of it.

The caches hold these in place of whole objects, which keeps thousands of pods in a few megabytes. Nothing here raises
on what somebody may have edited into an object: a job that cannot be understood says so in `problem`, and is held.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any

from diflow import chain, keys, plain, scaling
from diflow.allocator import amounts
from diflow.allocator.allocation import Allocation
from diflow.allocator.predicates import NODE_NAME, Requirement, Taint, Toleration, Where
from diflow.errors import InvalidError
from diflow.job import DIJob, Task
from diflow.nodenames import NodeName, parse
from diflow.observe import STOPS, read_nodes
from diflow.settings import RenderSettings

Json = dict[str, Any]

HOSTNAME = "kubernetes.io/hostname"
_NODE_NAME = "workflows.argoproj.io/node-name"
_SAID_OTHERWISE = frozenset(
    f"node.kubernetes.io/{name}" for name in ("not-ready", "unreachable", "unschedulable", "memory-pressure")
)
MOST_PREFERRED = 32
"""Preferred terms of a template that are read, the first ones: each is held against every node in each cycle."""
_LIFE = re.compile(r"(\.[1-9][0-9]{0,8})?")
_WEIGHTS = range(1, 101)
_DONE = frozenset({"Succeeded", "Failed", "Error", "Skipped", "Omitted"})
_ENDED = frozenset({"Succeeded", "Failed", "Error"})
_RAN = frozenset({"Running", "Succeeded"})


@dataclass(frozen=True, slots=True)
class Identity:
    """Which object a write is meant for: another of the same name, or a later version, refuses it."""

    namespace: str
    name: str
    uid: str
    version: str
    key: str = field(init=False, repr=False, compare=False)
    """"namespace/name": kept, as each cycle asks for it several times for each object."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", f"{self.namespace}/{self.name}")


@dataclass(frozen=True, slots=True)
class PodRead:
    """A pod that holds something or will. `place` is its place in its job's tree, None for a foreign pod.

    `owner` is the uid of its Workflow, "" if it names none: another of the same name is another job.
    """

    identity: Identity
    job: str
    owner: str
    place: NodeName | None
    phase: str
    host: str
    pinned: str
    gates: tuple[str, ...]
    is_terminating: bool
    is_stopping: bool
    request: Mapping[str, int]
    nodes: str
    rank: str
    replicas: str
    is_refused: bool = False
    """kube-scheduler has tried, and found no node for it."""
    containers: tuple[tuple[str, str], ...] = ()
    """(name, image) of each container that the kubelet has told of."""

    @property
    def is_gated(self) -> bool:
        return keys.GATE in self.gates

    @property
    def is_live(self) -> bool:
        return self.phase not in ("Succeeded", "Failed")

    @property
    def where(self) -> str:
        """The node that it takes room on, or "" if none yet."""
        return self.host or ("" if self.gates else self.pinned)

    @property
    def member(self) -> str:
        """As the parameter `released` names it."""
        return f"{self.place.round}/{self.place.task}/{self.place.member}" if self.place else ""


@dataclass(frozen=True, slots=True)
class Tree:
    """What Argo's nodes say: the phase of each member ("round/task/member") in the latest restart of its round."""

    members: Mapping[str, str] = field(default_factory=dict)
    restart_of: Mapping[str, int] = field(default_factory=dict)
    round_phase: Mapping[str, str] = field(default_factory=dict)
    recreated: frozenset[str] = frozenset()
    """Members of which a pod was taken away and made anew, in the latest restart of their round."""
    restarts: int = 0
    """How often the backoffLimit was drawn on, over all replicas and rounds."""
    moves: int = 0
    """How many pods were made anew without drawing on it."""
    idle: frozenset[str] = frozenset()
    """Rounds whose pods never got a node."""
    count: int = 0
    is_offloaded: bool = False

    def is_done(self, member: str) -> bool:
        return self.members.get(member, "") in _DONE

    def failed(self, round_: str) -> list[str]:
        """Members of a round whose tries are over."""
        prefix = f"{round_}/"
        return [m for m, phase in self.members.items() if phase in ("Failed", "Error") and m.startswith(prefix)]

    def finished(self, member: str) -> bool:
        return self.members.get(member, "") == "Succeeded"


@dataclass(frozen=True, slots=True)
class Role:
    """One task of a job as the allocator needs it. `low`..`high`: what it may be run with; `wanted`: asked for now."""

    name: str
    request: Mapping[str, int]
    where: Where
    host_ports: tuple[int, ...]
    submitted: int
    low: int
    high: int
    wanted: int


@dataclass(frozen=True, slots=True)
class JobRead:
    """A job's Workflow. `problem`: why it is held (""), `complaint`: what of it was ignored ("").

    `name` is the job's; a job that has gone on in another Workflow has the name of its first one. `continues` is the
    key of the part before this one, `continued_in` the name of the one after it. Of a part that the job has left, only
    what tells so is read.
    """

    identity: Identity
    created_seconds: float
    name: str = ""
    part: int = 1
    continues: str = ""
    continues_uid: str = ""
    continued_in: str = ""
    roles: tuple[Role, ...] = ()
    is_preemptible: bool = False
    priority: int = 0
    queue: str = ""
    backoff_limit: int = 3
    restarts_before: int = 0
    rounds_before: int = 0
    bounds: str = ""
    rounds: tuple[str, ...] = ("1",)
    current: str = "1"
    granted: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    released: frozenset[str] = frozenset()
    again: Mapping[str, str] = field(default_factory=dict)
    allocation: Allocation | None = None
    decision: Mapping[str, Any] = field(default_factory=dict)
    profilings: str = ""
    parameters: tuple[tuple[str, str], ...] = ()
    tree: Tree = field(default_factory=Tree)
    has_ended: bool = False
    is_stopping: bool = False
    is_suspended: bool = False
    problem: str = ""
    complaint: str = ""

    @property
    def key(self) -> str:
        return self.identity.key

    @property
    def restarts(self) -> int:
        """How often the backoffLimit was drawn on, over all Workflows of the job so far."""
        return self.restarts_before + self.tree.restarts

    @property
    def reschedules(self) -> int:
        """How often pods were made anew without drawing on it, and rounds that had a node were given up for new ones;
        over all Workflows so far."""
        return self.rounds_before + self.tree.moves + sum(name not in self.tree.idle for name in self.rounds[:-1])

    def member_text(self, task: str, index: int, *, round_: str | None = None) -> str:
        """The member of this index in its present life: `2`, or `2.1` when it came back."""
        return f"{index}{self.again.get(f'{round_ or self.current}/{task}/{index}', '')}"

    def member(self, task: str, index: int) -> str:
        """As `released` and the tree name it."""
        return f"{self.current}/{task}/{self.member_text(task, index)}"

    def running(self, task: str) -> int:
        """How many members of the current round are meant to run: what is granted, less the released tail."""
        count = self.granted.get(self.current, {}).get(task, 0)
        while self.released and count > 0 and self.member(task, count - 1) in self.released:
            count -= 1
        return count

    def has_tail(self, task: str) -> bool:
        """Released members are still in the group."""
        return self.running(task) < self.granted.get(self.current, {}).get(task, 0)


@dataclass(frozen=True, slots=True)
class NodeRead:
    """A node. `not_ready_since` is when it stopped being ready (seconds since 1970), None while it is ready."""

    name: str
    allocatable: Mapping[str, int]
    is_schedulable: bool
    not_ready_since: float | None
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]

    @property
    def is_open(self) -> bool:
        return self.is_schedulable and self.not_ready_since is None


def trim_pod(obj: Json) -> Json | None:
    """A pod as the cache keeps it; None for one that has ended and holds nothing any more."""
    pod = read_pod(obj)
    return {"metadata": _thin(obj), "read": pod} if pod.is_live else None


def trim_workflow(obj: Json) -> Json | None:
    """A Workflow as the cache keeps it."""
    return {"metadata": _thin(obj), "read": read_workflow(obj)}


def trim_node(obj: Json) -> Json | None:
    """A node as the cache keeps it."""
    return {"metadata": _thin(obj), "read": read_node(obj)}


def read_pod(obj: Mapping[str, Any]) -> PodRead:
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    job = labels.get("workflows.argoproj.io/workflow") or "" if labels.get(keys.OPERATOR) else ""
    return PodRead(
        identity=_identity(obj),
        job=f"{metadata.get('namespace')}/{job}" if job else "",
        owner=next(
            (o.get("uid") or "" for o in metadata.get("ownerReferences") or [] if o.get("kind") == "Workflow"), ""
        ),
        place=parse(job, annotations.get(_NODE_NAME) or "") if job else None,
        phase=status.get("phase") or "Pending",
        host=spec.get("nodeName") or "",
        pinned=(spec.get("nodeSelector") or {}).get(HOSTNAME) or "",
        gates=tuple(gate.get("name") or "" for gate in spec.get("schedulingGates") or []),
        is_terminating=bool(metadata.get("deletionTimestamp")),
        is_stopping=(spec.get("activeDeadlineSeconds") or 2) <= 1,
        request=_shared(amounts.of_pod(spec)),
        nodes=annotations.get(keys.NODES) or "",
        rank=annotations.get(keys.RANK) or "",
        replicas=annotations.get(keys.REPLICAS) or "",
        is_refused=any(condition.get("reason") == "Unschedulable" for condition in status.get("conditions") or []),
        containers=_alike(
            tuple((c.get("name") or "", c.get("image") or "") for c in status.get("containerStatuses") or [])
        ),
    )


def read_node(obj: Mapping[str, Any]) -> NodeRead:
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    ready: Mapping[str, Any] = next((c for c in status.get("conditions") or [] if c.get("type") == "Ready"), {})
    return NodeRead(
        name=metadata["name"],
        allocatable=amounts.read(status.get("allocatable")),
        is_schedulable=not spec.get("unschedulable"),
        not_ready_since=None if ready.get("status") == "True" else seconds(ready.get("lastTransitionTime") or ""),
        labels=metadata.get("labels") or {},
        # What is said by the node's other fields already, and what Kubernetes lets all but BestEffort pods tolerate.
        taints=tuple(
            Taint(t.get("key") or "", t.get("value") or "", t.get("effect") or "NoSchedule")
            for t in spec.get("taints") or []
            if t.get("key") not in _SAID_OTHERWISE
        ),
    )


def read_workflow(obj: Mapping[str, Any]) -> JobRead:
    """A Workflow as the allocator sees it; with `problem` if it cannot be understood."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    annotations = metadata.get("annotations") or {}
    before, before_uid = chain.continues(obj)
    parameters = tuple(
        (str(p.get("name", "")), str(p.get("value", "")))
        for p in ((spec.get("arguments") or {}).get("parameters") or [])
        if isinstance(p, dict)
    )
    base: Json = {
        "identity": _identity(obj),
        "created_seconds": seconds(chain.submitted(obj)),
        "name": chain.job_name(obj),
        "part": chain.part(obj),
        "continues": f"{metadata.get('namespace')}/{before}" if before else "",
        "continues_uid": before_uid,
        "continued_in": chain.continued_in(obj),
        "has_ended": status.get("phase") in _ENDED,
        "is_stopping": spec.get("shutdown") in STOPS,
        "is_suspended": bool(spec.get("suspend")),
        "parameters": parameters,
        "allocation": Allocation.parse(annotations.get(keys.ALLOCATION) or ""),
        "decision": plain.mapping(annotations.get(keys.DECISION) or ""),
    }
    if base["continued_in"]:
        return JobRead(**base, rounds=(), current="")
    if base["has_ended"]:
        return JobRead(**base)
    try:
        live, asked = _live(dict(parameters)), _asked(metadata, dict(parameters), annotations)
        if not all(role.name in live["granted"][live["current"]] for role in asked["roles"]):
            raise _edited(keys.PARAM_GRANTED, f"replicas of each task of round {live['current']}")
        return JobRead(
            **base,
            **live,
            **asked,
            tree=read_tree(obj),
            restarts_before=_number(annotations.get(keys.RESTARTS_BEFORE)),
            rounds_before=_number(annotations.get(keys.ROUNDS_BEFORE)),
            bounds=annotations.get(keys.BOUNDS) or "",
        )
    except InvalidError as error:
        return JobRead(**base, problem=str(error))


def read_tree(obj: Mapping[str, Any]) -> Tree:
    """The part of Argo's nodes that the allocator acts on."""
    name = obj["metadata"]["name"]
    nodes, offloaded = read_nodes(obj)
    places = [(place, node) for node in nodes.values() if (place := parse(name, node.get("name") or "")) is not None]
    restart_of: dict[str, int] = {}
    for place, _ in places:
        restart_of[place.round] = max(restart_of.get(place.round, 0), place.restart)
    members: dict[str, str] = {}
    round_phase: dict[str, str] = {}
    alone: dict[tuple[str, int, str, str], int] = {}
    recreated: set[str] = set()
    moves = 0
    idle: dict[str, bool] = {}
    for place, node in places:
        phase = node.get("phase") or "Pending"
        if place.is_pod and node.get("type") == "Pod":
            moves += place.uncounted > 0
            idle[place.round] = idle.get(place.round, True) and not _had_node(node, phase)
        if not place.task:
            if not place.is_attempt_of_round:
                round_phase[place.round] = phase
            continue
        key = f"{place.round}/{place.task}/{place.member}"
        if place.counted:
            at = (place.round, place.restart, place.task, place.member)
            alone[at] = max(alone.get(at, 0), place.counted)
        if place.restart != restart_of[place.round]:
            continue
        if place.is_member:
            members[key] = phase
        if place.is_pod and place.uncounted:
            recreated.add(key)
    return Tree(
        members=members,
        restart_of=restart_of,
        round_phase=round_phase,
        recreated=frozenset(recreated),
        restarts=sum(alone.values()) + sum(restart_of.values()),
        moves=moves,
        idle=frozenset(name for name, is_idle in idle.items() if is_idle),
        count=len(nodes),
        is_offloaded=offloaded,
    )


def _had_node(node: Mapping[str, Any], phase: str) -> bool:
    return bool(node.get("hostNodeName") or (node.get("outputs") or {}).get("exitCode")) or phase in _RAN


def seconds(time: str) -> float:
    """Kubernetes' time as seconds since 1970; 0 for none."""
    try:
        return datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0


def _live(parameters: Mapping[str, str]) -> Json:
    """The parameters that only the allocator writes. Raises InvalidError if somebody else did."""
    rounds = _parameter(parameters, keys.PARAM_ROUNDS, list)
    current = parameters.get(keys.PARAM_CURRENT, "")
    granted = _parameter(parameters, keys.PARAM_GRANTED, dict)
    released = _parameter(parameters, keys.PARAM_RELEASED, list)
    again = _parameter(parameters, keys.PARAM_AGAIN, dict, missing="{}")
    if not rounds or not all(isinstance(r, str) and r for r in rounds) or len(set(rounds)) < len(rounds):
        raise _edited(keys.PARAM_ROUNDS, 'a list of names such as ["1","2"]')
    if current not in rounds:
        raise _edited(keys.PARAM_CURRENT, f"one of {', '.join(rounds[-5:])}")
    if not isinstance(granted.get(current), dict) or not all(
        isinstance(counts, dict) and all(_is_count(n) for n in counts.values()) for counts in granted.values()
    ):
        raise _edited(keys.PARAM_GRANTED, 'replicas of each task by round, such as {"1":{"learner":1}}')
    if not all(isinstance(item, str) for item in released):
        raise _edited(keys.PARAM_RELEASED, "a list of texts")
    if not all(isinstance(item, str) and _LIFE.fullmatch(item) for item in again.values()):
        raise _edited(keys.PARAM_AGAIN, 'a mapping from members to lives, such as {"1/learner/2":".1"}')
    return {
        "rounds": tuple(rounds),
        "current": current,
        "granted": granted,
        "released": frozenset(released),
        "again": again,
    }


def _asked(metadata: Mapping[str, Any], parameters: Mapping[str, str], annotations: Mapping[str, str]) -> Json:
    """What the user asks for."""
    labels = metadata.get("labels") or {}
    job = _dijob(annotations.get(keys.DIJOB) or "")
    complaints: list[str] = []
    wanted = _wanted(parameters.get(keys.PARAM_REPLICAS, ""), job, complaints)
    bounds = _bounds(annotations.get(keys.BOUNDS) or "", job, complaints)
    roles = []
    for i, task in enumerate(job.tasks):
        found = scaling.asked(job, i, wanted=wanted, bounds=bounds)
        roles.append(
            Role(
                task.name,
                *_pod_of(job, i),
                submitted=task.replicas,
                low=found.low,
                high=found.high,
                wanted=found.wanted,
            )
        )
    return {
        "roles": tuple(roles),
        "is_preemptible": job.preemptible,
        "priority": keys.WORKFLOW_PRIORITIES.get(job.priority, 0),
        "queue": labels.get(keys.QUEUE) or job.queue or "",
        "backoff_limit": job.backoff_limit,
        "profilings": parameters.get(keys.PARAM_PROFILINGS, ""),
        "complaint": "; ".join(complaints),
    }


def _wanted(text: str, job: DIJob, complaints: list[str]) -> dict[str, int]:
    names = {task.name for task in job.tasks}
    try:
        given = json.loads(text) if text else {}
        if not isinstance(given, dict) or not all(name in names and _is_count(n) for name, n in given.items()):
            raise ValueError
    except (ValueError, RecursionError):
        complaints.append(f"the parameter {keys.PARAM_REPLICAS} is not a number of at least 1 for tasks of this job")
        return {}
    return given


def _bounds(text: str, job: DIJob, complaints: list[str]) -> dict[str, tuple[int, int]]:
    if not text:
        return {}
    names = {task.name for task in job.tasks}
    try:
        given = json.loads(text)
        out = {}
        for name, item in given.items():
            low, high = item["min"], item["max"]
            if name not in names or not _is_count(low) or not _is_count(high) or low > high:
                raise ValueError
            out[name] = (low, high)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        complaints.append(f"the annotation {keys.BOUNDS} is not a minimum and a maximum for tasks of this job")
        return {}
    return out


@lru_cache(maxsize=4096)
def _dijob(text: str) -> DIJob:
    try:
        return DIJob.from_manifest(json.loads(text))
    except InvalidError as error:
        raise InvalidError(f"the annotation {keys.DIJOB} is no valid job any more ({error})") from None
    except (ValueError, RecursionError):
        raise InvalidError(f"the annotation {keys.DIJOB} is no JSON any more") from None


@lru_cache(maxsize=4096)
def _pod_of_task(text: str) -> tuple[Mapping[str, int], Where, tuple[int, ...]]:
    spec = json.loads(text)
    ports = tuple(
        int(port["hostPort"])
        for container in spec.get("containers") or []
        for port in container.get("ports") or []
        if port.get("hostPort")
    )
    return amounts.of_pod(spec), read_where(spec), ports


def _pod_of(job: DIJob, index: int) -> tuple[Mapping[str, int], Where, tuple[int, ...]]:
    task: Task = job.tasks[index]
    spec = dict(task.template["spec"])
    containers = list(spec["containers"])
    main = next((i for i, c in enumerate(containers) if c.get("name") == keys.MAIN_CONTAINER), 0)
    if not containers[main].get("resources"):
        containers[main] = {**containers[main], "resources": _defaults().default_resources}
    return _pod_of_task(json.dumps({**spec, "containers": containers}, sort_keys=True))


@lru_cache(maxsize=1)
def _defaults() -> RenderSettings:
    return RenderSettings()


def read_where(spec: Mapping[str, Any]) -> Where:
    """The conditions on nodes that a pod's spec makes."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    preferred = affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or []
    weighed = [(item.get("weight"), _term(item.get("preference") or {})) for item in preferred[:MOST_PREFERRED]]
    return Where(
        selector=tuple(sorted((str(k), str(v)) for k, v in (spec.get("nodeSelector") or {}).items())),
        affinity=tuple(_term(term) for term in required.get("nodeSelectorTerms") or []),
        tolerations=tuple(
            Toleration(t.get("key") or "", t.get("operator") or "Equal", t.get("value") or "", t.get("effect") or "")
            for t in spec.get("tolerations") or []
        ),
        # Without a requirement a preferred term is for no node; other weights are refused by Kubernetes.
        preferred=tuple((weight, term) for weight, term in weighed if term and weight in _WEIGHTS),
    )


def _term(term: Mapping[str, Any]) -> tuple[Requirement, ...]:
    """The requirements of a node selector term. Of a node's fields Kubernetes knows the name alone."""
    lines = [(line["key"], line) for line in term.get("matchExpressions") or []]
    lines += [(NODE_NAME, line) for line in term.get("matchFields") or []]
    return tuple(
        Requirement(key, line["operator"], tuple(str(v) for v in line.get("values") or ())) for key, line in lines
    )


def _parameter(parameters: Mapping[str, str], name: str, kind: type, *, missing: str = "") -> Any:
    try:
        value = json.loads(parameters.get(name, missing))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, kind):
        raise _edited(name, "JSON as diflow writes it")
    return value


def _edited(name: str, wanted: str) -> InvalidError:
    return InvalidError(
        f"the parameter {name} is not what diflow wrote: it must be {wanted}; put it back, or delete the job"
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= keys.MOST_REPLICAS


def _number(value: Any) -> int:
    try:
        return max(0, int(value))
    except (TypeError, ValueError):
        return 0


@lru_cache(maxsize=8192)
def _interned(items: tuple[tuple[str, int], ...]) -> Mapping[str, int]:
    return dict(items)


def _shared(values: Mapping[str, int]) -> Mapping[str, int]:
    """One object for all pods that ask for the same."""
    return _interned(tuple(sorted(values.items())))


@lru_cache(maxsize=4096)
def _alike(containers: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """One object for all pods of the same containers."""
    return containers


def _identity(obj: Mapping[str, Any]) -> Identity:
    metadata = obj["metadata"]
    return Identity(
        metadata.get("namespace") or "",
        metadata["name"],
        metadata.get("uid") or "",
        metadata.get("resourceVersion") or "",
    )


def _thin(obj: Mapping[str, Any]) -> Json:
    metadata = obj["metadata"]
    return {name: metadata.get(name) for name in ("namespace", "name", "uid", "resourceVersion")}

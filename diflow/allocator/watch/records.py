"""The records of jobs, pods and nodes: what the allocator needs of an object, parsed once.

The caches hold records instead of whole objects, so that thousands of pods take a few megabytes. Nothing here raises on
an edited object: a job that cannot be parsed has the reason in `problem`, and is held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, wraps
from itertools import islice
from typing import Any

from diflow.allocator.model.predicates import NODE_NAME, Requirement, Taint, Toleration, Where
from diflow.common import keys, quantities
from diflow.common import limits as limits_
from diflow.common.memo import MIB, remembered
from diflow.dijob import memory
from diflow.dijob.pods import MONITOR_RESOURCES, read_template, work_container
from diflow.dijob.rules import hosts
from diflow.dijob.settings import RenderSettings
from diflow.dijob.stored import Health, NodeCheck, StoredSpec, StoredTask
from diflow.jobs import replica_ranges
from diflow.record import untrusted
from diflow.record.allocation import Allocation
from diflow.record.argo.failures import MAIN
from diflow.record.argo.node_names import NodeName, parse
from diflow.record.argo.nodes import nodes as nodes_of
from diflow.record.argo.nodes import owner_of
from diflow.record.argo.tree import Tree, read_tree
from diflow.record.exclusions import Exclusions
from diflow.record.health import HealthState
from diflow.record.live import Live
from diflow.record.namespace import applications
from diflow.record.nodecheck import Record
from diflow.record.parameters import ENDED, Decision, JobState

Json = dict[str, Any]

_LONGEST_REASON = 60
_LONGEST_NAME = 63
_MOST_CONTAINERS = 256
_IGNORED_TAINTS = frozenset(
    f"node.kubernetes.io/{name}" for name in ("not-ready", "unreachable", "unschedulable", "memory-pressure")
)
MOST_PREFERRED = 32
"""The most preferred terms of a template that count: each is matched against every node in each cycle."""
_WEIGHTS = range(1, 101)
LONGEST_DESCRIPTION = 2000
"""Characters of the description in the Argo UI that are kept."""
REQUESTS = (keys.BOUNDS, keys.REQUESTED, keys.REQUESTS, keys.CARRIED_OUT, keys.HELD)
"""Annotations with what users have requested since the submission, and with which requests were carried out."""
_LONGEST_REQUESTS = 65_536


@dataclass(frozen=True, slots=True)
class Identity:
    """The object that a write is for, and its version: with another uid or a later version the write is refused."""

    namespace: str
    name: str
    uid: str
    version: str
    key: str = field(init=False, repr=False, compare=False)
    """"namespace/name", precomputed as each cycle needs it several times."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", f"{self.namespace}/{self.name}")


@dataclass(frozen=True, slots=True)
class PodRead:
    """A live pod. `place`: its place in its job's tree, None for a pod of others.

    `owner`: the uid of the Workflow that owns it, "" without one. A pod belongs to a job only if this is the uid of the
    job's Workflow.
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
    """kube-scheduler has tried to bind it and found no node."""
    containers: tuple[tuple[str, str], ...] = ()
    """(name, image) of each container in the status of a job's pod. A long image is truncated."""
    has_run: bool = True
    """A container was started, by the pod's status: it may have something to save."""
    memory: int = 0
    """MiB of its main container, of a job whose failure policy may give it more; else 0."""
    created: float = 0.0
    """When the API server made it, in seconds since 1970."""
    began: float = 0.0
    """When its work's container was started, 0 while it does not run."""
    pending_since: float = 0.0
    """When it was bound, if none of its containers runs since then; else 0."""
    waits_for: str = ""
    """Why its first container that waits does not start, as its kubelet says."""

    @property
    def is_gated(self) -> bool:
        return keys.GATE in self.gates

    @property
    def is_live(self) -> bool:
        return self.phase not in ("Succeeded", "Failed")

    @property
    def where(self) -> str:
        """The node whose capacity it uses, "" if none yet."""
        return self.host or ("" if self.gates else self.pinned)

    @property
    def member(self) -> str:
        """The pod's member, as in the parameter `released`."""
        return f"{self.place.round}/{self.place.task}/{self.place.member}" if self.place else ""


@dataclass(frozen=True, slots=True)
class Role:
    """One task of a job. Replicas: `low` to `high` may run, in multiples of `unit`; `desired` are asked for now."""

    name: str
    request: Mapping[str, int]
    where: Where
    host_ports: tuple[int, ...]
    submitted: int
    low: int
    high: int
    desired: int
    unit: int = 1
    asked_memory: int = 0
    """MiB of the main container as submitted, of a task that may get more."""
    max_memory: int | None = None


@dataclass(frozen=True, slots=True)
class JobRead:
    """A job's Workflow. `problem`: why it is held (""), `complaint`: what of it was ignored ("").

    `created_seconds` is when this Workflow was created, as the API server says.

    `name` is the job's, which is that of its first Workflow. `continues`: the key of the previous Workflow;
    `continued_in`: the name of the next one. Of a superseded Workflow only these fields are read. `required`: the level
    of the topology that its DIJob requires, or "".
    `has_policy`: it has a failure policy, or a node check of its own; `memory`: the MiB of the main containers of its
    next pods, for the tasks that may get more; `excluded`: the nodes that are left out for it.
    `start_deadline_seconds`: the longest time from the creation of the job to its first admission, None without one.
    `pending_seconds`: how long a bound pod may be pending. `health`: the deadlines of its replicas, None without any;
    `health_state`: what was found of them. `node_check`: the check that its pods begin with, if it has one, and
    `checks` its results.
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
    required: str = ""
    backoff_limit: int = 3
    has_policy: bool = False
    start_deadline_seconds: int | None = None
    pending_seconds: int | None = None
    health: Health | None = None
    health_state: HealthState | None = None
    restarts_before: int = 0
    rounds_before: int = 0
    requests: tuple[tuple[str, str], ...] = ()
    """The annotations with what users have requested since the submission (`REQUESTS`), by name."""
    live: Live = field(default_factory=Live)
    allocation: Allocation | None = None
    decision: Mapping[str, Any] = field(default_factory=dict)
    excluded: Exclusions = field(default_factory=Exclusions)
    node_check: NodeCheck | None = None
    checks: Record = field(default_factory=Record)
    profilings: str = ""
    application: str = ""
    """The application that a preemptible job runs (`state/applications.py`); "" for others, which are not resized."""
    parameters: tuple[tuple[str, str], ...] = ()
    tree: Tree = field(default_factory=Tree)
    has_ended: bool = False
    is_stopping: bool = False
    is_being_deleted: bool = False
    is_suspended: bool = False
    awaits_admission: bool = False
    is_hidden: bool = False
    places_until: float = 0.0
    description: str = ""
    has_short_hosts: bool = False
    problem: str = ""
    complaint: str = ""

    @property
    def limits(self) -> str:
        """The minimum and maximum replicas of each task that the user asks for, as text."""
        return ",".join(f"{role.name}:{role.low}-{role.high}" for role in self.roles)

    @property
    def key(self) -> str:
        return self.identity.key

    @property
    def restarts(self) -> int:
        """Failures that count against backoffLimit, over all Workflows of the job so far."""
        return self.restarts_before + self.tree.restarts

    @property
    def reschedules(self) -> int:
        """Pods created again without counting against backoffLimit, and rounds with a node that were replaced; over all
        Workflows of the job so far."""
        return self.rounds_before + self.tree.moves + self.tree.rounds_left(self.live.rounds)


@dataclass(frozen=True, slots=True)
class NodeRead:
    """A node. `not_ready_since`: in seconds since 1970, None while it is ready."""

    name: str
    allocatable: Mapping[str, int]
    is_schedulable: bool
    not_ready_since: float | None
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    is_missing: bool = False
    """Its object does not exist, but pods are bound to it."""

    @property
    def is_open(self) -> bool:
        return self.is_schedulable and self.not_ready_since is None

    @property
    def trouble(self) -> str:
        """Why no new pods may go there, for people; "" if they may."""
        if self.is_missing:
            return "is gone"
        return "is not ready" if self.not_ready_since is not None else "" if self.is_schedulable else "is cordoned"


def _held_if_hostile(read: Callable[[Mapping[str, Any]], JobRead]) -> Callable[[Mapping[str, Any]], JobRead]:
    """Turn any error in reading a Workflow into the `problem` of that job, as well as a size beyond diflow.common.limits, of
    which nothing is kept."""

    @wraps(read)
    def careful(obj: Mapping[str, Any]) -> JobRead:
        try:
            found = read(obj)
            problem = found.problem or too_large(found)
        except Exception as error:  # the Workflow's text is the user's
            return _unreadable(obj, error)
        return (
            found
            if problem == found.problem
            else replace(found, problem=problem, roles=(), live=replace(found.live, granted={}, incarnations={}))
        )

    return careful


def _unreadable(obj: Mapping[str, Any], error: Exception) -> JobRead:
    """A job of which only the Workflow's identity is known. Its pods still use capacity."""
    identity, status = identity_of(obj), obj.get("status")
    phase = status.get("phase") if isinstance(status, dict) else ""
    problem = f"its Workflow cannot be read ({_error_text(error)}): undo what was edited in it, or delete the job"
    has_ended = isinstance(phase, str) and phase in ENDED
    return JobRead(identity, 0.0, name=identity.name, has_ended=has_ended, problem="" if has_ended else problem)


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]


def too_large(read: JobRead) -> str:
    """Why a job is too large to be planned, in one sentence; "" if it is within all bounds."""
    granted = sum(read.live.counts.values())
    replicas = max(sum(max(role.high, role.desired) for role in read.roles), granted)
    sizes = (
        ("replicas in all", replicas, limits_.MOST_REPLICAS),
        ("tasks", len(read.roles), limits_.MOST_TASKS),
        (
            "different resources",
            len({name for role in read.roles for name in role.request} - {quantities.PODS}),
            limits_.MOST_RESOURCES,
        ),
        ("host ports", sum(len(role.host_ports) for role in read.roles), limits_.MOST_PORTS),
        ("conditions on nodes", max((role.where.size for role in read.roles), default=0), limits_.MOST_CONDITIONS),
    )
    for what, number, most in sizes:
        if number > most:
            return f"it has {number:,} {what}, and a job may have {most:,}: ask for fewer"
    return ""


def trim_pod(obj: Json) -> Json | None:
    """A pod as the cache keeps it; None if it has ended."""
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
    job = labels.get(keys.ARGO_WORKFLOW) or "" if labels.get(keys.OPERATOR) else ""
    place = parse(job, annotations.get(keys.ARGO_NODE_NAME) or "") if job else None
    return PodRead(
        identity=identity_of(obj),
        job=f"{metadata.get('namespace')}/{job}" if job else "",
        owner=owner_of(obj),
        place=place,
        phase=status.get("phase") or "Pending",
        host=spec.get("nodeName") or "",
        pinned=(spec.get("nodeSelector") or {}).get(keys.HOSTNAME) or "",
        gates=tuple(gate.get("name") or "" for gate in spec.get("schedulingGates") or []),
        is_terminating=bool(metadata.get("deletionTimestamp")),
        is_stopping=(spec.get("activeDeadlineSeconds") or 2) <= 1,
        request=_shared(quantities.of_pod(spec)),
        nodes=_kept(annotations.get(keys.NODES), place),
        rank=_kept(annotations.get(keys.RANK), place),
        replicas=_kept(annotations.get(keys.REPLICAS), place),
        is_refused=any(condition.get("reason") == "Unschedulable" for condition in status.get("conditions") or []),
        containers=_containers(status) if place is not None else (),
        has_run=_has_run(status),
        memory=untrusted.whole(annotations.get(keys.MEMORY), digits=15) or 0 if place is not None else 0,
        created=untrusted.seconds(metadata.get("creationTimestamp")),
        began=_began(status) if place is not None else 0.0,
        pending_since=_pending_since(obj) if place is not None else 0.0,
        waits_for=_waits_for(status) if place is not None else "",
    )


def _kept(text: Any, place: NodeName | None) -> str:
    """An annotation of a job's pod that diflow updates; "" for other pods, and for a text that is too long."""
    return text if place is not None and isinstance(text, str) and len(text) <= limits_.MOST_HOST_BYTES else ""


def _began(status: Mapping[str, Any]) -> float:
    """When the container that runs the user's program was started; 0 if it does not run."""
    for container in status.get("containerStatuses") or []:
        if container.get("name") == MAIN:
            return untrusted.seconds(untrusted.sub(container, "state", "running").get("startedAt"))
    return 0.0


def _pending_since(pod: Mapping[str, Any]) -> float:
    """Since when a bound pod has been waiting for its node, without the time in which its init containers worked; 0 if
    it has no node, if an init container works, or if the work runs.

    Argo's container `wait`, and others beside the work, run while its image cannot be pulled.
    """
    spec, status = untrusted.sub(pod, "spec"), untrusted.sub(pod, "status")
    if status.get("phase") not in (None, "Pending") or not spec.get("nodeName") or _began(status):
        return 0.0
    beside = {c.get("name") for c in spec.get("initContainers") or [] if c.get("restartPolicy") == "Always"}
    worked = 0.0
    for container in status.get("initContainerStatuses") or []:
        if container.get("name") in beside:
            continue
        if untrusted.sub(container, "state").get("running"):
            return 0.0
        # Data that took longer to be copied than the pod may wait must not end it when the copy is done.
        worked = max(worked, untrusted.seconds(untrusted.sub(container, "state", "terminated").get("finishedAt")))
    bound: Mapping[str, Any] = next((c for c in status.get("conditions") or [] if c.get("type") == "PodScheduled"), {})
    since = bound.get("lastTransitionTime") if bound.get("status") == "True" else None
    placed = untrusted.seconds(since) or untrusted.seconds(untrusted.sub(pod, "metadata").get("creationTimestamp"))
    return max(placed, worked)


def _waits_for(status: Mapping[str, Any]) -> str:
    for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        if reason := untrusted.string(untrusted.sub(container, "state", "waiting").get("reason"), most=_LONGEST_REASON):
            return reason
    return ""


def _has_run(status: Mapping[str, Any]) -> bool:
    every = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    states = [state for container in every for state in (container.get("state"), container.get("lastState")) if state]
    return status.get("phase") not in (None, "Pending") or any({"running", "terminated"} & set(s) for s in states)


def read_node(obj: Mapping[str, Any]) -> NodeRead:
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    ready: Mapping[str, Any] = next((c for c in status.get("conditions") or [] if c.get("type") == "Ready"), {})
    return NodeRead(
        name=metadata["name"],
        allocatable=quantities.read(status.get("allocatable")),
        is_schedulable=not spec.get("unschedulable"),
        # A new object has no condition yet: it is not ready since its creation.
        not_ready_since=None
        if ready.get("status") == "True"
        else untrusted.seconds(ready.get("lastTransitionTime") or metadata.get("creationTimestamp")),
        labels=metadata.get("labels") or {},
        # Without taints that repeat other fields of the node, and memory-pressure, which most pods tolerate.
        taints=tuple(
            Taint(t.get("key") or "", t.get("value") or "", t.get("effect") or "NoSchedule")
            for t in spec.get("taints") or []
            if t.get("key") not in _IGNORED_TAINTS
        ),
    )


@_held_if_hostile
def read_workflow(obj: Mapping[str, Any]) -> JobRead:
    """The record of a Workflow; with `problem` if it cannot be parsed."""
    state = JobState.parse(obj)
    base: Json = {
        "identity": Identity(state.namespace, state.workflow, state.uid, state.version),
        "created_seconds": untrusted.seconds(untrusted.sub(obj, "metadata").get("creationTimestamp")),
        "name": state.name,
        "part": state.part,
        "continues": f"{state.namespace}/{state.continues}" if state.continues else "",
        "continues_uid": state.continues_uid,
        "continued_in": state.continued_in,
        "has_ended": state.has_ended,
        "is_stopping": state.is_stopping,
        "is_being_deleted": state.is_being_deleted,
        "is_suspended": state.is_suspended,
        "awaits_admission": state.awaits_admission,
        "is_hidden": state.is_hidden,
        "places_until": state.places_until,
        "description": untrusted.string(
            untrusted.sub(obj, "metadata", "annotations").get(keys.DESCRIPTION), most=LONGEST_DESCRIPTION
        ),
        "parameters": state.parameters,
        "allocation": state.allocation,
        "excluded": state.excluded,
        "decision": decision_fields(state.decision),
    }
    if base["continued_in"]:
        return JobRead(**base, live=Live((), ""))
    if base["has_ended"]:
        return JobRead(**base)
    if state.problem:
        return JobRead(**base, problem=state.problem)
    spec = state.spec
    nodes, offloaded = nodes_of(obj)
    return JobRead(
        **base,
        live=state.live,
        roles=_roles(state),
        is_preemptible=state.is_preemptible,
        priority=keys.WORKFLOW_PRIORITIES.get(state.priority, 0),
        queue=state.queue,
        required=spec.topology.required if spec.topology is not None else "",
        backoff_limit=spec.backoff_limit,
        start_deadline_seconds=spec.start_deadline_seconds,
        pending_seconds=spec.pending_seconds,
        node_check=spec.node_check,
        checks=Record()
        if spec.node_check is None
        else Record.parse(untrusted.sub(obj, "metadata", "annotations").get(keys.NODE_CHECK)),
        health=spec.health,
        health_state=state.health,
        profilings=state.profilings,
        complaint="; ".join(state.complaints),
        has_policy=spec.has_rules,
        tree=read_tree(nodes, is_offloaded=offloaded, rules=state.rules if spec.has_rules else None),
        restarts_before=state.restarts_before,
        rounds_before=state.rounds_before,
        requests=_requests(untrusted.sub(obj, "metadata", "annotations")),
        has_short_hosts=hosts.are_short(sum(task.most for task in spec.tasks), (task.pod for task in spec.tasks)),
        application=application_of(obj, spec) if state.is_preemptible else "",
    )


def _requests(annotations: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    given = [name for name in REQUESTS if name in annotations]
    found = ((name, untrusted.string(annotations[name], most=_LONGEST_REQUESTS)) for name in given)
    return tuple((name, text) for name, text in found if text)


def decision_fields(said: Decision | None) -> dict[str, str]:
    """A decision as a record has it."""
    return {"action": said.action, "why": said.why, "time": said.time} if said else {}


def application_of(obj: Mapping[str, Any], spec: StoredSpec) -> str:
    """The application of a job: by its annotation, or by the image and the command of its elastic task."""
    elastic = (task for task in spec.tasks if (task.min_replicas or task.replicas) < task.most)
    containers = next(elastic, spec.tasks[0]).pod["containers"]
    main = containers[work_container(containers)]
    return applications.name_of(
        untrusted.sub(obj, "metadata", "annotations"),
        namespace=untrusted.string(untrusted.sub(obj, "metadata").get("namespace")),
        image=main.get("image") or "",
        command=main.get("command") or (),
    )


def _roles(state: JobState) -> tuple[Role, ...]:
    """The tasks that the user asks for."""
    spec, out = state.spec, []
    for i, task in enumerate(spec.tasks):
        found = replica_ranges.asked(spec, i, desired=state.desired, bounds=state.bounds)
        mib = state.live.memory.get(task.name)
        out.append(
            Role(
                task.name,
                *_needs((bytes(task.template), mib, spec.monitor is not None)),
                submitted=task.replicas,
                low=found.low,
                high=found.high,
                desired=found.desired,
                unit=task.node_unit or 1,
                asked_memory=_asked_memory(task) if mib is not None else 0,
                max_memory=quantities.amount("memory", task.max_memory, "maxMemory") if task.max_memory else None,
            )
        )
    return tuple(out)


Needs = tuple[Mapping[str, int], Where, tuple[int, ...]]
"""What each replica of a task requests, where it may be, and its host ports."""


@remembered(most_bytes=8 * MIB, size=lambda key: 200 + len(key[0]))  # a result takes up to 16 times that
def _needs(key: tuple[bytes, int | None, bool]) -> Needs:
    """Of (a pod template, the MiB of its main container if they are not its own, whether there is a monitor)."""
    template, mib, is_monitored = key
    spec = read_template(template)["spec"]
    given: list[Mapping[str, Any]] = [*spec["containers"]]
    main = work_container(given)
    resources = _resources(given[main])
    given[main] = {**given[main], "resources": resources if mib is None else memory.with_memory(resources, mib)}
    if is_monitored:
        given.append({"name": keys.MONITOR_CONTAINER, "resources": MONITOR_RESOURCES})
    ports = tuple(port["hostPort"] for one in given for port in one.get("ports") or () if port.get("hostPort"))
    return _shared(quantities.of_pod({**spec, "containers": given})), read_where(spec), ports


def _resources(main: Mapping[str, Any]) -> Mapping[str, Any]:
    """Those of a main container, the default ones if it has none."""
    return main.get("resources") or _defaults().default_resources


def _asked_memory(task: StoredTask) -> int:
    """The MiB of its main container as submitted."""
    containers = task.pod["containers"]
    return memory.of_container(_resources(containers[work_container(containers)]))[0]


@lru_cache(maxsize=1)
def _defaults() -> RenderSettings:
    return RenderSettings()


def read_where(spec: Mapping[str, Any]) -> Where:
    """The node constraints of a pod's spec."""
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
        # An empty preferred term matches no node; Kubernetes refuses other weights.
        preferred=tuple((weight, term) for weight, term in weighed if term and weight in _WEIGHTS),
    )


def _term(term: Mapping[str, Any]) -> tuple[Requirement, ...]:
    """The requirements of a node selector term. metadata.name is the only field that Kubernetes supports."""
    lines = [(line["key"], line) for line in term.get("matchExpressions") or []]
    lines += [(NODE_NAME, line) for line in term.get("matchFields") or []]
    return tuple(
        Requirement(key, line["operator"], tuple(str(v) for v in line.get("values") or ())) for key, line in lines
    )


@remembered(most_bytes=16 * MIB, size=lambda items: 200 + sum(100 + len(name) for name, _ in items))
def _interned(items: tuple[tuple[str, int], ...]) -> Mapping[str, int]:
    return dict(items)


def _shared(values: Mapping[str, int]) -> Mapping[str, int]:
    """One shared object for all equal requests."""
    return _interned(tuple(sorted(values.items())))


def _containers(status: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The name and the image of each container, without an image that is too long."""
    found = islice(untrusted.mappings(status.get("containerStatuses")), _MOST_CONTAINERS)
    read = ((untrusted.string(c.get("name"), most=_LONGEST_NAME), c.get("image")) for c in found)
    return _alike(tuple((name, untrusted.string(image, most=limits_.LONGEST_IMAGE)) for name, image in read))


@remembered(most_bytes=16 * MIB, size=lambda items: 200 + sum(200 + len(a) + len(b) for a, b in items))
def _alike(containers: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """One shared object for all equal tuples."""
    return containers


def identity_of(obj: Mapping[str, Any]) -> Identity:
    """The object that a write to this one is for."""
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

"""The one record of a pod: what diflow needs of it, read once.

Thousands of pods take a few megabytes. Users can edit the labels and annotations, so none of them raises here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from typing import Any, Final

from diflow.common import keys, limits, quantities
from diflow.common.memo import MIB, remembered, same_text
from diflow.common.predicates import NO_RULES, PodRules, Toleration, Where
from diflow.dijob.conditions import host_ports, read_rules, read_where
from diflow.record import untrusted
from diflow.record.argo.failures import MAIN
from diflow.record.argo.node_names import NodeName, parse
from diflow.record.argo.nodes import owner_of
from diflow.record.identity import Identity

_LONGEST_REASON: Final = 60
_LONGEST_NAME: Final = 63
_LONGEST_GROUP: Final = 253
_LONGEST_NUMBER: Final = 9
_MOST_CONTAINERS: Final = 256
_GRACE_SECONDS: Final = 30.0  # Kubernetes' default
_HIGHEST_PORT: Final = 65_535
_MOST_PORTS: Final = 128
_MOST_LABELS: Final = 64
_MOST_TERMS: Final = 32
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_LONGEST_REFUSAL: Final = 600


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a job's pod is reached. `job`: the job's name, as its labels say; `address` is "" while it has none."""

    job: str = ""
    address: str = ""
    port: int = keys.PORT
    on_host_network: bool = False


@dataclass(frozen=True, slots=True)
class PodRecord:
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
    hosts: str = ""
    """The digest of the hosts of all replicas, as the pod was told them (`roster_digest`); "" if it was told none."""
    rank: str = ""
    replicas: str = ""
    is_refused: bool = False
    """kube-scheduler has tried to bind it and found no node."""
    containers: tuple[tuple[str, str], ...] = ()
    """(name, image) of each container in the status of a job's pod. A long image is truncated."""
    is_ready: bool = field(default=False, compare=False)
    """As Kubernetes says. Nothing is decided by it, so that a change of it is none for the allocator."""
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
    grace_seconds: float = _GRACE_SECONDS
    """How long it has from SIGTERM to SIGKILL."""
    is_let_go: bool = False
    """Argo counts it as ended, by its label, and signals it no more."""
    rules: PodRules = NO_RULES
    """Its labels, the pods that it keeps away from its node or zone, and its claims."""
    ports: tuple[int, ...] = ()
    """The ports of its node that it takes."""
    tolerations: tuple[Toleration, ...] = ()
    """Those of a replica's pod, with what admission has added."""
    group: str = ""
    """The PodGroup that kube-scheduler places it with; "" for none."""
    priority_class: str = ""
    """Of a pod in a PodGroup: the PriorityClass that it names."""
    refusal: str = ""
    """Why kube-scheduler has not bound it, in its own words."""
    endpoint: Endpoint = Endpoint()
    """Of a record for serving (`serving_record_of`)."""
    is_demand: bool = False
    """It stands for a replica that has no node, and never runs (`diflow/allocator/reconcile/demand_pods.py`)."""

    @property
    def namespace(self) -> str:
        return self.identity.namespace

    @property
    def name(self) -> str:
        return self.identity.name

    @property
    def uid(self) -> str:
        return self.identity.uid

    @property
    def workflow(self) -> str:
        """The name of its Workflow, "" for a pod of others."""
        return self.job.partition("/")[2]

    @property
    def round(self) -> str:
        """ "" for a pod that is in no round."""
        return self.place.round if self.place is not None else ""

    @property
    def task(self) -> str:
        """ "" for a pod that is no replica."""
        return self.place.task if self.place is not None else ""

    @property
    def index(self) -> int:
        """Its index in its task, -1 for a pod that is no replica."""
        return self.place.index if self.place is not None and self.place.task else -1

    @property
    def replica(self) -> tuple[str, int]:
        """(its task, its index there)."""
        return self.task, self.index

    @property
    def restart(self) -> int:
        """The restart of its round in which it was made."""
        return self.place.restart if self.place is not None else 0

    @property
    def is_gated(self) -> bool:
        return keys.GATE in self.gates

    @property
    def is_live(self) -> bool:
        return self.phase not in ("Succeeded", "Failed")

    @property
    def is_ending(self) -> bool:
        """It was told to end."""
        return self.is_stopping or self.is_terminating

    @property
    def goes_on(self) -> bool:
        """Its work runs or may still begin, and nothing ends it. What only Argo's containers or others beside the work
        still do, as to upload outputs, ends by itself."""
        return self.is_live and not self.is_ending and bool(self.began or not self.has_run)

    @property
    def where(self) -> str:
        """The node to which it is bound, or else the one that it asks for once it has no gates; "" if there is none."""
        return self.host or ("" if self.gates else self.pinned)

    @property
    def member(self) -> str:
        """The pod's member, as in the parameter `released`."""
        return f"{self.place.round}/{self.place.task}/{self.place.member}" if self.place else ""


def pod_record_of(obj: Mapping[str, Any]) -> PodRecord:
    """The record of a pod, for planning."""
    fields = _fields(obj)
    if fields["place"] is not None:
        fields |= _planned(obj)
    spec = obj.get("spec") or {}
    ports = host_ports(spec, spec.get("containers") or ())[:_MOST_PORTS]
    return PodRecord(identity=Identity.of(obj), rules=_rules(obj), ports=ports, **fields)


def serving_record_of(obj: Mapping[str, Any]) -> PodRecord:
    """The record of a pod with where it is reached, and without what only planning needs."""
    labels = untrusted.sub(obj, "metadata", "labels")
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    at = Endpoint(
        job=same_text(labels.get(keys.JOB) or ""),
        address=str(status.get("podIP") or ""),
        port=_port(spec),
        on_host_network=bool(spec.get("hostNetwork")),
    )
    return PodRecord(identity=replace(Identity.of(obj), version=""), endpoint=at, **_fields(obj))


@dataclass(frozen=True, slots=True)
class CheckRun:
    """The node check of a pod. `exit_code`: 0 if it has not failed, or was ended with its pod. `created`: the pod, in
    seconds since 1970."""

    pod: str
    node: str
    created: float
    has_begun: bool = False
    exit_code: int = 0


def check_run_of(obj: Mapping[str, Any]) -> CheckRun:
    """The node check of this pod."""
    metadata, status = untrusted.sub(obj, "metadata"), untrusted.sub(obj, "status")
    made = CheckRun(
        untrusted.string(metadata.get("name")),
        untrusted.string(untrusted.sub(obj, "spec").get("nodeName")),
        untrusted.seconds(metadata.get("creationTimestamp")),
    )
    for one in untrusted.mappings(status.get("initContainerStatuses")):
        if one.get("name") == keys.CHECK_CONTAINER:
            state = untrusted.sub(one, "state")
            code = None if status.get("reason") else untrusted.sub(state, "terminated").get("exitCode")
            has_begun = bool(state.keys() & {"running", "terminated"})
            return replace(made, has_begun=has_begun, exit_code=code if isinstance(code, int) else 0)
    return made


def _rules(obj: Mapping[str, Any]) -> PodRules:
    """What matters of a live pod to others. Of many labels or terms the first ones."""
    spec, labels = obj.get("spec") or {}, obj["metadata"].get("labels") or {}
    own = {same_text(key): same_text(value) for key, value in islice(labels.items(), _MOST_LABELS)}
    claims = [(one.get("persistentVolumeClaim") or {}).get("claimName") for one in spec.get("volumes") or ()]
    anti = (spec.get("affinity") or {}).get("podAntiAffinity") or {}
    terms = anti.get(_REQUIRED) or []
    affinity = {"podAntiAffinity": {_REQUIRED: terms[:_MOST_TERMS]}} if terms else {}
    namespace = obj["metadata"].get("namespace") or ""
    return read_rules(
        {"affinity": affinity}, namespace=namespace, labels=own, claims=[c for c in claims[:_MOST_TERMS] if c]
    )


def _fields(obj: Mapping[str, Any]) -> dict[str, Any]:
    """What is read of every pod."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    # The label of a node that is asked for is not its name on every cluster: a replica's pod has that, too.
    pinned = (spec.get("nodeSelector") or {}).get(keys.HOSTNAME) or ""
    job = labels.get(keys.ARGO_WORKFLOW) or "" if labels.get(keys.OPERATOR) else ""
    return {
        "job": same_text(f"{metadata.get('namespace')}/{job}") if job else "",
        "owner": same_text(owner_of(obj)),
        "place": parse(job, annotations.get(keys.ARGO_NODE_NAME) or "") if job else None,
        "phase": same_text(status.get("phase") or "Pending"),
        "host": same_text(spec.get("nodeName") or ""),
        "pinned": (pinned and job and annotations.get(keys.NODE)) or pinned,
        "gates": tuple(gate.get("name") or "" for gate in spec.get("schedulingGates") or []),
        "is_terminating": bool(metadata.get("deletionTimestamp")),
        "is_stopping": (spec.get("activeDeadlineSeconds") or 2) <= 1,
        "request": shared(quantities.of_pod(spec, status)),
        "is_refused": bool(_refused(status)),
        "is_demand": keys.DEMAND in labels and spec.get("schedulerName") == keys.DEMAND_SCHEDULER,
        "is_ready": _is_ready(status),
        "has_run": _has_run(status),
        "created": untrusted.seconds(metadata.get("creationTimestamp")),
    }


def _planned(obj: Mapping[str, Any]) -> dict[str, Any]:
    """What planning needs of a replica's pod."""
    annotations, status = obj["metadata"].get("annotations") or {}, obj.get("status") or {}
    return {
        "hosts": roster_digest(annotations.get(keys.NODES)),
        "rank": untrusted.string(annotations.get(keys.RANK), most=_LONGEST_NUMBER),
        "replicas": untrusted.string(annotations.get(keys.REPLICAS), most=_LONGEST_NUMBER),
        "containers": _containers(status),
        "memory": untrusted.whole(annotations.get(keys.MEMORY), digits=15) or 0,
        "began": began(status),
        "grace_seconds": grace_seconds(obj.get("spec") or {}),
        "is_let_go": (obj["metadata"].get("labels") or {}).get(keys.ARGO_COMPLETED) == "true",
        "pending_since": _pending_since(obj),
        "waits_for": _waits_for(status),
        "tolerations": _same_tolerations(read_where({"tolerations": (obj.get("spec") or {}).get("tolerations")})),
        **_group(obj),
        "refusal": untrusted.string(_refused(status).get("message"), most=_LONGEST_REFUSAL),
    }


def _group(obj: Mapping[str, Any]) -> dict[str, str]:
    spec = untrusted.sub(obj, "spec")
    name = untrusted.string(untrusted.sub(spec, "schedulingGroup").get("podGroupName"), most=_LONGEST_GROUP)
    class_name = untrusted.string(spec.get("priorityClassName"), most=_LONGEST_GROUP)
    return {"group": name, "priority_class": same_text(class_name)} if name else {}


def _same_tolerations(where: Where) -> tuple[Toleration, ...]:
    """One shared object for all equal tolerations, of which few pods have more than four."""
    return _shared_tolerations(where.tolerations[:_MOST_LABELS])


@lru_cache(maxsize=4096)
def _shared_tolerations(given: tuple[Toleration, ...]) -> tuple[Toleration, ...]:
    return given


def _refused(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """The condition by which kube-scheduler says that it has found no node; {} without one."""
    return next((one for one in status.get("conditions") or [] if one.get("reason") == "Unschedulable"), {})


def _port(spec: Mapping[str, Any]) -> int:
    for container in spec.get("containers") or []:
        for port in container.get("ports") or []:
            number = port.get("containerPort")
            if port.get("name") == keys.PORT_NAME and type(number) is int and 1 <= number <= _HIGHEST_PORT:
                return number
    return keys.PORT


def roster_digest(hosts: Any) -> str:
    """Of the hosts of all replicas as one text; "" without it. Each of a thousand pods has all hosts."""
    if not isinstance(hosts, str) or not hosts:
        return ""
    return same_text(blake2b(hosts.encode(errors="replace"), digest_size=16).hexdigest())


def grace_seconds(spec: Mapping[str, Any]) -> float:
    """How long a pod has from SIGTERM to SIGKILL."""
    given = spec.get("terminationGracePeriodSeconds")
    return float(given) if type(given) is int and given >= 0 else _GRACE_SECONDS


def began(status: Mapping[str, Any]) -> float:
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
    if status.get("phase") not in (None, "Pending") or not spec.get("nodeName") or began(status):
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


def _is_ready(status: Mapping[str, Any]) -> bool:
    if status.get("phase") != "Running":
        return False
    found = untrusted.mappings(status.get("conditions"))
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in found)


def _has_run(status: Mapping[str, Any]) -> bool:
    every = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    states = [state for container in every for state in (container.get("state"), container.get("lastState")) if state]
    return status.get("phase") not in (None, "Pending") or any({"running", "terminated"} & set(s) for s in states)


@remembered(most_bytes=16 * MIB, size=lambda items: 200 + sum(100 + len(name) for name, _ in items))
def _interned(items: tuple[tuple[str, int], ...]) -> Mapping[str, int]:
    return dict(items)


def shared(values: Mapping[str, int]) -> Mapping[str, int]:
    """One shared object for all equal requests."""
    return _interned(tuple(sorted(values.items())))


def _containers(status: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The name and the image of each container, without an image that is too long."""
    found = islice(untrusted.mappings(status.get("containerStatuses")), _MOST_CONTAINERS)
    read = ((untrusted.string(c.get("name"), most=_LONGEST_NAME), c.get("image")) for c in found)
    return _alike(tuple((name, untrusted.string(image, most=limits.LONGEST_IMAGE)) for name, image in read))


@remembered(most_bytes=16 * MIB, size=lambda items: 200 + sum(200 + len(a) + len(b) for a, b in items))
def _alike(containers: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """One shared object for all equal tuples."""
    return containers

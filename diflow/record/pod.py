"""The one record of a pod: what diflow needs of it, read once.

Thousands of pods take a few megabytes. Users can edit the labels and annotations, so none of them raises here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from diflow.common import keys, limits, quantities
from diflow.common.memo import MIB, remembered, same_text
from diflow.record import untrusted
from diflow.record.argo.failures import MAIN
from diflow.record.argo.node_names import NodeName, parse
from diflow.record.argo.nodes import owner_of
from diflow.record.identity import Identity

_LONGEST_REASON: Final = 60
_LONGEST_NAME: Final = 63
_MOST_CONTAINERS: Final = 256
_HIGHEST_PORT: Final = 65_535


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
    nodes: str = ""
    rank: str = ""
    replicas: str = ""
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
    endpoint: Endpoint = Endpoint()
    """Of a record for serving (`serving_record_of`)."""

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


def pod_record_of(obj: Mapping[str, Any]) -> PodRecord:
    """The record of a pod, for planning."""
    fields = _fields(obj)
    if fields["place"] is not None:
        fields |= _planned(obj)
    return PodRecord(identity=Identity.of(obj), **fields)


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


def _fields(obj: Mapping[str, Any]) -> dict[str, Any]:
    """What is read of every pod."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    job = labels.get(keys.ARGO_WORKFLOW) or "" if labels.get(keys.OPERATOR) else ""
    return {
        "job": same_text(f"{metadata.get('namespace')}/{job}") if job else "",
        "owner": same_text(owner_of(obj)),
        "place": parse(job, annotations.get(keys.ARGO_NODE_NAME) or "") if job else None,
        "phase": same_text(status.get("phase") or "Pending"),
        "host": same_text(spec.get("nodeName") or ""),
        "pinned": (spec.get("nodeSelector") or {}).get(keys.HOSTNAME) or "",
        "gates": tuple(gate.get("name") or "" for gate in spec.get("schedulingGates") or []),
        "is_terminating": bool(metadata.get("deletionTimestamp")),
        "is_stopping": (spec.get("activeDeadlineSeconds") or 2) <= 1,
        "request": shared(quantities.of_pod(spec)),
        "is_refused": any(condition.get("reason") == "Unschedulable" for condition in status.get("conditions") or []),
        "has_run": _has_run(status),
        "created": untrusted.seconds(metadata.get("creationTimestamp")),
    }


def _planned(obj: Mapping[str, Any]) -> dict[str, Any]:
    """What planning needs of a replica's pod."""
    annotations, status = obj["metadata"].get("annotations") or {}, obj.get("status") or {}
    return {
        "nodes": _kept(annotations.get(keys.NODES)),
        "rank": _kept(annotations.get(keys.RANK)),
        "replicas": _kept(annotations.get(keys.REPLICAS)),
        "containers": _containers(status),
        "memory": untrusted.whole(annotations.get(keys.MEMORY), digits=15) or 0,
        "began": _began(status),
        "pending_since": _pending_since(obj),
        "waits_for": _waits_for(status),
    }


def _port(spec: Mapping[str, Any]) -> int:
    for container in spec.get("containers") or []:
        for port in container.get("ports") or []:
            number = port.get("containerPort")
            if port.get("name") == keys.PORT_NAME and type(number) is int and 1 <= number <= _HIGHEST_PORT:
                return number
    return keys.PORT


def _kept(text: Any) -> str:
    """An annotation of a job's pod that diflow updates; "" for a text that is too long."""
    return text if isinstance(text, str) and len(text) <= limits.MOST_HOST_BYTES else ""


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

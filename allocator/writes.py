"""The writes that the allocator makes, as plain values; each is refused when its object has changed meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from diflow import keys
from diflow.allocator.allocation import Allocation
from diflow.allocator.reading import HOSTNAME, Identity, JobRead, PodRead
from diflow.job import canonical_json
from diflow.kube.kinds import POD, WORKFLOW, Kind

Json = dict[str, Any]
Reason = Literal[
    "Admitted",
    "Resized",
    "Preempted",
    "Waiting",
    "Restarted",
    "Rescheduled",
    "NodeLost",
    "Stopped",
    "Refused",
    "Continued",
    "PolicyFailed",
]


KILLED = 137
"""The exit code of a container that was killed, or of which nothing is left."""


@dataclass(frozen=True, slots=True)
class Note:
    """What to tell about a job, as an Event on its Workflow."""

    reason: Reason
    message: str
    is_warning: bool = False


@dataclass(frozen=True, slots=True)
class NextPart:
    """The Workflow in which a job is to go on: what of it is not as in the one before.

    `names` are tried in turn, until one is free. `parameters` and `annotations` are as they are to stand in it.
    """

    names: tuple[str, ...]
    parameters: Mapping[str, str]
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Write:
    """One merge patch of one object, for one job; or, with `part`, the creation of a Workflow that continues `target`.

    `note` is told when it was made.
    """

    kind: Kind
    target: Identity
    job: str
    body: Json
    subresource: str = ""
    note: Note | None = None
    why: str = ""
    part: NextPart | None = None

    def patch(self, epoch: str) -> Json:
        """The body with what makes it fail if the object is another one by now, and with the writer's epoch."""
        metadata = {"uid": self.target.uid, "resourceVersion": self.target.version, **(self.body.get("metadata") or {})}
        annotations = {**(metadata.get("annotations") or {}), keys.EPOCH: epoch}
        if not self.subresource:
            metadata["annotations"] = annotations
        return {**self.body, "metadata": metadata}


def admit(pod: PodRead, node: str, job: str) -> Write:
    """Take our gate away and pin the pod to its node, in one patch."""
    gates = [{"name": gate} for gate in pod.gates if gate != keys.GATE]
    body = {
        "metadata": {"annotations": {keys.NODE: node}},
        "spec": {"schedulingGates": gates or None, "nodeSelector": {HOSTNAME: node}},
    }
    return Write(POD, pod.identity, job, body, why=f"admitted to {node}")


def stop(pod: PodRead, job: str, why: str) -> Write:
    """End a pod: one that runs with TERM and its grace period; one that no kubelet knows by its status, as Argo would
    make a pod that was deleted before it ran once more. Only the latter shows Argo `why`."""
    if pod.host:
        return Write(POD, pod.identity, job, {"spec": {"activeDeadlineSeconds": 1}}, why=why)
    return fail(pod, job, why)


def fail(pod: PodRead, job: str, message: str, *, note: Note | None = None) -> Write:
    """End a pod by its status alone. Argo takes the message for that of the attempt."""
    # kubectl would go on to show the pod as SchedulingGated, which the condition says.
    condition = {"type": "PodScheduled", "status": "False", "reason": "Released", "message": message}
    status: Json = {"phase": "Failed", "reason": "Released", "message": message}
    if not pod.host:
        status["conditions"] = [condition]
    body = {"status": status}
    return Write(POD, pod.identity, job, body, subresource="status", note=note, why=message)


def write_off(pod: PodRead, job: str, message: str, at: str, *, note: Note | None = None) -> Write:
    """End a pod of which its kubelet says nothing any more, and its containers with it, as a kubelet does that finds
    nothing of them (`at`: the time in RFC 3339). Argo waits for ever for what the executor of a pod has to report, if
    the container of the executor has not come to an end; nobody else would ever say that it has."""
    write = fail(pod, job, message, note=note)
    end = {"exitCode": KILLED, "reason": "ContainerStatusUnknown", "message": message, "finishedAt": at}
    ended = {"imageID": "", "ready": False, "restartCount": 0, "state": {"terminated": end}}
    if pod.containers:
        write.body["status"]["containerStatuses"] = [
            {"name": name, "image": image, **ended} for name, image in pod.containers
        ]
    return write


def tell_roster(pod: PodRead, job: str, values: Mapping[str, str]) -> Write:
    """Bring a running pod's annotations up to date; the kubelet copies them into its files."""
    return Write(POD, pod.identity, job, {"metadata": {"annotations": dict(values)}}, why="roster")


def touch(job: JobRead) -> Write:
    """Change nothing of a job but who has written last."""
    return Write(WORKFLOW, job.identity, job.key, {}, why="taken over")


def change_job(
    job: JobRead,
    *,
    parameters: Mapping[str, Any] | None = None,
    allocation: Allocation | None = None,
    decision: Mapping[str, Any] | None = None,
    annotations: Mapping[str, str | None] | None = None,
    labels: Mapping[str, str] | None = None,
    spec: Mapping[str, Any] | None = None,
    note: Note | None = None,
    of: str = "",
) -> Write:
    """Change the Workflow of a job. Parameters are given as values; they are written as text always (a list in a merge
    patch is replaced as a whole, so the others go along, as they were). `of`: the job for which it is done, by its key,
    if that is another one."""
    given: dict[str, str | None] = {**(annotations or {}), **_said(allocation, decision)}
    metadata: Json = {}
    if given:
        metadata["annotations"] = given
    if labels:
        metadata["labels"] = dict(labels)
    body: Json = {"metadata": metadata} if metadata else {}
    change: Json = dict(spec or {})
    if parameters:
        texts = _texts(parameters)
        known = [{"name": name, "value": texts.get(name, value)} for name, value in job.parameters]
        missing = texts.keys() - {name for name, _ in job.parameters}
        change["arguments"] = {"parameters": known + [{"name": name, "value": texts[name]} for name in sorted(missing)]}
    if change:
        body["spec"] = change
    return Write(WORKFLOW, job.identity, of or job.key, body, note=note, why=note.reason if note else "decision")


def _said(allocation: Allocation | None, decision: Mapping[str, Any] | None) -> dict[str, str]:
    out: dict[str, str] = {}
    if allocation is not None:
        out[keys.ALLOCATION] = allocation.to_json()
    if decision is not None:
        out[keys.DECISION] = canonical_json(dict(decision))
    return out


def _texts(parameters: Mapping[str, Any]) -> dict[str, str]:
    return {name: value if isinstance(value, str) else canonical_json(value) for name, value in parameters.items()}


def stop_job(job: JobRead, *, decision: Mapping[str, Any], note: Note | None = None, of: str = "") -> Write:
    """End the job's Workflow, as a user's `stop` does."""
    return change_job(job, spec={"shutdown": "Stop"}, decision=decision, note=note, of=of)


def new_round(
    job: JobRead,
    counts: Mapping[str, int],
    nodes: Mapping[str, tuple[str, ...]],
    *,
    now: float,
    decision: Mapping[str, Any] | None = None,
    note: Note | None = None,
) -> Write:
    """Append a round that supersedes the current one, and say where its replicas go (nowhere yet: `nodes` is empty)."""
    allocation = _next_allocation(job, nodes, now)
    name = allocation.round
    parameters = {
        keys.PARAM_ROUNDS: [*job.rounds, name],
        keys.PARAM_CURRENT: name,
        keys.PARAM_GRANTED: {**job.granted, name: dict(counts)},
    }
    return change_job(job, parameters=parameters, allocation=allocation, decision=decision, note=note)


def new_part(
    job: JobRead,
    counts: Mapping[str, int],
    nodes: Mapping[str, tuple[str, ...]],
    *,
    names: tuple[str, ...],
    now: float,
    decision: Mapping[str, Any] | None = None,
    note: Note | None = None,
) -> Write:
    """As `new_round`, in a Workflow of its own, which continues this one."""
    allocation = _next_allocation(job, nodes, now)
    name = allocation.round
    parameters = {
        keys.PARAM_ROUNDS: [name],
        keys.PARAM_CURRENT: name,
        keys.PARAM_GRANTED: {name: dict(counts)},
        keys.PARAM_AGAIN: {},
        keys.PARAM_RELEASED: [],
    }
    part = NextPart(names, _texts(parameters), _said(allocation, decision))
    return Write(WORKFLOW, job.identity, job.key, {}, note=note, why="the next Workflow of the job", part=part)


def _next_allocation(job: JobRead, nodes: Mapping[str, tuple[str, ...]], now: float) -> Allocation:
    before = job.allocation
    started = bool(before and before.first)
    return Allocation(
        round=str(max((int(r) for r in job.rounds if r.isdigit()), default=0) + 1),
        nodes=nodes,
        since=now,
        first=before.first if before and before.first else (now if nodes else 0.0),
        moves=(before.moves if before else 0) + (1 if started and nodes else 0),
    )

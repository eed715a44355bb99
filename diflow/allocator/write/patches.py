"""The writes of the allocator, as plain values. The API server refuses one whose object has changed meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, Literal

from diflow.common import keys
from diflow.common.jsontext import canonical_json
from diflow.common.limits import MOST_MOVES
from diflow.kube.kinds import POD, WORKFLOW, Kind
from diflow.record import untrusted
from diflow.record.allocation import Allocation
from diflow.record.argo import ended_pods
from diflow.record.exclusions import Exclusions
from diflow.record.identity import Identity
from diflow.record.job import LONGEST_DESCRIPTION, JobRecord
from diflow.record.overstay import STOP_NOW
from diflow.record.parameters import ADMITTED
from diflow.record.patches import live, merged, stopping
from diflow.record.pod import PodRecord

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
    "NodeLeftOut",
    "PolicyFailed",
    "OutOfMemory",
    "Unhealthy",
    "Healthy",
    "SlowNode",
    "NotStarted",
    "Repaired",
    "StoppedLate",
    "ReadLate",
    "MemoryFull",
]


NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
PLACES_SECONDS = 120.0
"""How long the pods of an admitted job are created without gates. Argo looks at a Workflow after some seconds, and
creates about a hundred pods a second."""


@dataclass(frozen=True, slots=True)
class Note:
    """An Event on a job's Workflow."""

    reason: Reason
    message: str
    is_warning: bool = False


@dataclass(frozen=True, slots=True)
class NextPart:
    """The next Workflow of a job: how it differs from the one before.

    `names` are tried in order until one is free. The others are those of the new Workflow; labels that it does not name
    stay.
    """

    names: tuple[str, ...]
    parameters: Mapping[str, str]
    annotations: Mapping[str, str]
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Write:
    """One merge patch of one object, for one job; or, with `part`, the creation of a Workflow that continues `target`.

    `note` becomes an Event when the write has succeeded.
    """

    kind: Kind
    target: Identity
    job: str
    body: Json
    subresource: str = ""
    note: Note | None = None
    why: str = ""
    part: NextPart | None = None
    frees: bool = False
    """It frees capacity for other jobs: on a full object it is written even if its job then has no place."""
    is_optional: bool = False
    """It may be dropped: its content can be derived from the pods again."""
    is_minimal: bool = False
    """It adds no annotations, not even the leader's epoch."""
    is_repair: bool = False
    """It repairs what `argo retry` did to Argo's nodes, which the executor reads: the body is empty here."""

    @property
    def is_touch(self) -> bool:
        """It changes nothing but the leader's epoch."""
        return not self.body and self.part is None and not self.is_repair

    @property
    def annotations(self) -> Mapping[str, str | None]:
        """The annotations that it sets, or removes (None)."""
        return (self.body.get("metadata") or {}).get("annotations") or {}

    def patch(self, epoch: str, more: Mapping[str, str | None] = NOTHING) -> Json:
        """The body with the uid and resourceVersion, so that it fails on a changed object, and the leader's epoch.
        `more`: further annotations."""
        annotations = {**self.annotations, **more}
        if not self.subresource and not self.is_minimal:
            annotations[keys.EPOCH] = epoch
        metadata = {"uid": self.target.uid, "resourceVersion": self.target.version, **(self.body.get("metadata") or {})}
        return {**self.body, "metadata": {**metadata, **({"annotations": annotations} if annotations else {})}}

    @property
    def is_only_text(self) -> bool:
        """Nothing depends on it: the text of a decision, a pod's roster, or what can be derived from the pods."""
        if self.is_optional:
            return True
        if self.part is not None or self.is_repair or self.body.keys() - {"metadata"}:
            return False
        texts = {keys.DECISION, keys.DESCRIPTION, keys.HEALTH, keys.RUN_TIME}
        return self.kind is not WORKFLOW or self.annotations.keys() <= texts

    def minimal(self) -> Write | None:
        """The same write for an object at its size limit: without new annotations, and for a Workflow without those
        of the allocator. None if nothing would be left, or if an annotation is what matters, as a new allocation."""
        given = self.annotations
        metadata = {name: value for name, value in (self.body.get("metadata") or {}).items() if name != "annotations"}
        body = {key: value for key, value in self.body.items() if key != "metadata"}
        if self.part is not None or self.is_repair or self.is_minimal:
            return None
        if self.kind is WORKFLOW:
            at = Allocation.parse(given.get(keys.ALLOCATION) or "")
            if given.keys() - {keys.ALLOCATION, keys.DECISION, keys.DESCRIPTION}:
                return None
            if at is not None and at.is_placed and not self.frees:
                return None
            if not body and keys.ALLOCATION not in given:
                return None
            metadata["annotations"] = {keys.ALLOCATION: None, keys.DECISION: None}
        elif not body:
            return None
        return replace(self, body={**body, "metadata": metadata} if metadata else body, is_minimal=True)


def rebased(write: Write, read: JobRecord, now: JobRecord) -> Write | None:
    """A write that was decided for the Workflow as `read`, rebased on the Workflow as it is `now`; None if the fields
    that the decision depends on differ. Other fields change all the time: annotations, reports, Argo's node status."""
    if write.target.uid != read.identity.uid or _decided_by(read) != _decided_by(now):
        return None
    body = dict(write.body)
    arguments = (body.get("spec") or {}).get("arguments")
    if arguments:
        # A merge patch replaces the whole list, so parameters that others have changed meanwhile are included.
        before = dict(read.texts.parameters)
        ours = {p["name"]: p["value"] for p in arguments["parameters"] if before.get(p["name"]) != p["value"]}
        body["spec"] = {**body["spec"], "arguments": {"parameters": merged(now.texts.parameters, ours)}}
    return replace(write, target=now.identity, body=body)


def _decided_by(read: JobRecord) -> tuple[object, ...]:
    tree = read.argo.tree
    return (
        (
            read.identity.uid,
            read.problem,
            read.has_ended,
            read.is_stopping,
            read.wishes.is_suspended,
            read.chain.continued_in,
        ),
        (read.argo.awaits_admission, read.argo.places_until, read.wishes.requests),
        (
            read.live.rounds,
            read.live.current,
            read.live.granted,
            read.live.released,
            read.live.incarnations,
            read.notes.allocation,
            read.notes.excluded,
            read.live.memory,
        ),
        (
            read.needs.roles,
            read.terms.is_preemptible,
            read.terms.priority_number,
            read.wishes.queue,
            read.spec.required,
            read.spec.backoff_limit,
        ),
        (tree.restart_of, tree.round_phase, tree.recreated, tree.restarts, tree.endings, tree.never_began),
        frozenset(member for member in tree.members if tree.is_done(member)),
    )


def admit(pod: PodRecord, node: str, job: str) -> Write:
    """Remove diflow's scheduling gate and pin the pod to its node, in one patch; "": kube-scheduler chooses one."""
    gates = [{"name": gate} for gate in pod.gates if gate != keys.GATE]
    body: Json = {"spec": {"schedulingGates": gates or None}}
    if node:
        body["metadata"] = {"annotations": {keys.NODE: node}}
        body["spec"]["nodeSelector"] = {keys.HOSTNAME: node}
    return Write(POD, pod.identity, job, body, why=f"admitted to {node or 'a node that kube-scheduler chooses'}")


def stop(pod: PodRecord, job: str, why: str, at: str) -> Write:
    """End a pod. A running pod gets TERM and its grace period, by `activeDeadlineSeconds`.

    An unbound pod is ended by its status, which also shows Argo `why`: Argo would create it again if it were deleted.
    A bound pod that never ran has nothing to save, and its kubelet ignores the deadline while it waits for a volume: it
    is written off (`at`: the time in RFC 3339)."""
    if not pod.host:
        return fail(pod, job, why)
    if not pod.has_run:
        return write_off(pod, job, why, at)
    return Write(POD, pod.identity, job, dict(STOP_NOW), why=why)


def fail(pod: PodRecord, job: str, message: str, *, note: Note | None = None) -> Write:
    """End a pod by its status alone. Argo takes `message` as the message of the attempt."""
    body = ended_pods.failed(message, is_bound=bool(pod.host))
    return Write(POD, pod.identity, job, body, subresource="status", note=note, why=message)


def write_off(pod: PodRecord, job: str, message: str, at: str, *, note: Note | None = None) -> Write:
    """End a pod that its kubelet does not report on, and its containers, as a kubelet does for containers that it
    cannot find (`at`: the time in RFC 3339). Argo waits for the report of a pod's executor until the status says that
    the executor's container has terminated."""
    body = ended_pods.failed(message, is_bound=bool(pod.host), containers=pod.containers, at=at)
    return Write(POD, pod.identity, job, body, subresource="status", note=note, why=message)


def update_roster(pod: PodRecord, job: str, values: Mapping[str, str]) -> Write:
    """Update the roster in a running pod's annotations; the kubelet copies them into its files."""
    return Write(POD, pod.identity, job, {"metadata": {"annotations": dict(values)}}, why="roster")


def touch(job: JobRecord) -> Write:
    """Change only the leader's epoch in a job's Workflow."""
    return Write(WORKFLOW, job.identity, job.key, {}, why="taken over")


def change_job(  # noqa: PLR0913 (each is a part of the patch)
    job: JobRecord,
    *,
    parameters: Mapping[str, str] | None = None,
    allocation: Allocation | None = None,
    decision: Mapping[str, Any] | None = None,
    annotations: Mapping[str, str | None] | None = None,
    labels: Mapping[str, str | None] | None = None,
    spec: Mapping[str, Any] | None = None,
    excluded: Exclusions | None = None,
    note: Note | None = None,
    of: str = "",
) -> Write:
    """Change the Workflow of a job. `parameters`: from `diflow.record.patches`; the unchanged ones are included, as a
    merge patch replaces a list as a whole. `of`: the key of the job for which this is done, if it is another one."""
    given: dict[str, str | None] = {**(annotations or {}), **_annotations(allocation, decision, excluded)}
    if allocation is not None and job.argo.places_until:
        parameters = {**live(places=ADMITTED), **(parameters or {})}  # no pod is created for the old allocation
    if job.argo.awaits_admission and decision is not None:
        given[keys.DESCRIPTION] = description(job, decision)
    metadata: Json = {}
    if given:
        metadata["annotations"] = given
    if job.argo.is_hidden and decision is not None:
        labels = {**(labels or {}), keys.INSTANCE: None}
    if allocation is not None:
        labels = {**(labels or {}), **_labels(allocation)}
    if labels:
        metadata["labels"] = dict(labels)
    body: Json = {"metadata": metadata} if metadata else {}
    change: Json = dict(spec or {})
    if parameters:
        change["arguments"] = {"parameters": merged(job.texts.parameters, parameters)}
    if change:
        body["spec"] = change
    return Write(WORKFLOW, job.identity, of or job.key, body, note=note, why=note.reason if note else "decision")


def repair(job: JobRecord) -> Write:
    """Repair a job that `argo retry` has left without pods (`diflow.jobs.retry.repair`)."""
    text = "argo retry had reset only a part of the job, so that Argo created no pods: the rest was reset"
    return Write(WORKFLOW, job.identity, job.key, {}, note=Note("Repaired", text), why="argo retry", is_repair=True)


_WAITS = "; waits: "


def description(job: JobRecord, decision: Mapping[str, Any]) -> str:
    """What the Argo UI shows of a job: as submitted, and why it waits for its admission."""
    submitted = job.texts.description.split(_WAITS, 1)[0]
    if decision.get("action") not in ("wait", "late"):
        return submitted
    return f"{submitted}{_WAITS}{decision['why']}"[:LONGEST_DESCRIPTION]


def admit_job(
    job: JobRecord, at: Allocation, *, now: float, parameters: Mapping[str, str] = NOTHING, **change: Any
) -> Write:
    """Admit a job which has no pods yet: they are created on their nodes, or with gates if kube-scheduler chooses
    these: it has to see all of them at once. `change`: as in `change_job`."""
    places = live(places=ADMITTED if at.unpinned else at.places(uid=job.identity.uid, until=now + PLACES_SECONDS))
    admitted: Mapping[str, str | None] = {keys.ADMITTED: "true"}
    return change_job(job, parameters={**parameters, **places}, labels=admitted, spec={"suspend": None}, **change)


def _annotations(
    allocation: Allocation | None, decision: Mapping[str, Any] | None, excluded: Exclusions | None
) -> dict[str, str]:
    out: dict[str, str] = {}
    if allocation is not None:
        out[keys.ALLOCATION] = allocation.to_json()
    if decision is not None:
        out[keys.DECISION] = canonical_json(dict(decision))
    if excluded is not None:
        out[keys.EXCLUDED] = excluded.to_json()
    return out


def stop_job(job: JobRecord, *, decision: Mapping[str, Any], note: Note | None = None, of: str = "") -> Write:
    """End the job's Workflow, as a user's `stop` does."""
    labels = {keys.ADMITTED: None} if job.argo.awaits_admission else None  # see `record.patches.stop`
    return change_job(job, spec=stopping(), labels=labels, decision=decision, note=note, of=of)


def new_round(  # noqa: PLR0913 (each is a part of the patch)
    job: JobRecord,
    counts: Mapping[str, int],
    nodes: Mapping[str, tuple[str, ...]],
    *,
    now: float,
    names: tuple[str, ...] = (),
    decision: Mapping[str, Any] | None = None,
    annotations: Mapping[str, str] | None = None,
    excluded: Exclusions | None = None,
    memory: Mapping[str, int] | None = None,
    note: Note | None = None,
    change: Callable[[Allocation], Allocation] = lambda at: at,
) -> Write:
    """Append a round that supersedes the current one, with the nodes of its replicas (empty: no place yet).
    `change`: applied to its allocation. With `names`, it is the first round of a new Workflow that continues this
    one."""
    allocation = change(_next_allocation(job, nodes, now))
    name = allocation.round
    if not names:
        granted = {**job.live.granted, name: counts}
        parameters = live(rounds=[*job.live.rounds, name], current=name, granted=granted, memory=memory)
        return change_job(
            job,
            parameters=parameters,
            allocation=allocation,
            decision=decision,
            annotations=annotations,
            excluded=excluded,
            note=note,
        )
    parameters = live(
        rounds=[name],
        current=name,
        granted={name: counts},
        incarnations={},
        released=[],
        places=ADMITTED,
        memory=memory,
    )
    given = {**(annotations or {}), **_annotations(allocation, decision, excluded)}
    part = NextPart(names, parameters, given, _labels(allocation))
    return Write(WORKFLOW, job.identity, job.key, {}, note=note, why="the next Workflow of the job", part=part)


def _labels(allocation: Allocation) -> dict[str, str]:
    return {keys.GRANTED: str(sum(len(nodes) for nodes in allocation.nodes.values()))}


def placed(
    job: JobRecord,
    nodes: Mapping[str, tuple[str, ...]],
    *,
    now: float,
    asked: str = "",
    unpinned: bool | None = None,
) -> Allocation:
    """Another allocation of the job's current round; without any node, it waits. `unpinned`: as in `Allocation`; None:
    as before."""
    before = job.notes.allocation
    return Allocation(
        job.live.current,
        nodes,
        since=now,
        first=before.first if before and before.first else (now if nodes else 0.0),
        moves=before.moves if before else 0,
        asked=asked,
        requests={role.name: role.request for role in job.needs.roles},
        unpinned=(before.unpinned if before else False) if unpinned is None else unpinned,
        refusals=before.refusals if before else 0,
        losses=before.losses if before else 0,
        short_since=before.short_since if before and any(map(any, nodes.values())) else 0.0,
        forgiven=before.forgiven if before else 0,
    )


def _next_allocation(job: JobRecord, nodes: Mapping[str, tuple[str, ...]], now: float) -> Allocation:
    """That of the next round."""
    found, before = placed(job, nodes, now=now, asked=job.limits), job.notes.allocation
    number = max((number for r in job.live.rounds if (number := untrusted.whole(r)) is not None), default=0) + 1
    is_move = bool(nodes and before and before.first)
    return replace(found, round=str(number), moves=min(MOST_MOVES, found.moves + is_move))

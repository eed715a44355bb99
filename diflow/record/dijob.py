"""The one record of a DIJob object, bounded in size, whatever the object contains; and which Workflows are an object's.

The controller (`diflow.controller`) gives each DIJob object a Workflow of its name, which the object owns.
"""

from __future__ import annotations

import dataclasses
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from diflow.common import keys
from diflow.common.jsontext import canonical_json
from diflow.common.limits import MOST_MANIFEST_BYTES, MOST_METADATA_BYTES, MOST_REPLICAS, MOST_TASKS
from diflow.dijob.rules import generations
from diflow.record import chain, untrusted
from diflow.record.identity import Identity
from diflow.record.status.status import ENDED, Condition

Json = dict[str, Any]
Object = Mapping[str, Any]
Counts = tuple[int, int | None, int | None]
"""(replicas, minReplicas, maxReplicas) of a task."""

MOST_STATUS_BYTES: Final = 512 * 1024
"""Of a status that is kept. The controller's own has less than half: 2,000 nodes of 63 characters, and 64 KiB of
reports. Of a larger one, which others wrote, only the numbers are kept, and it is replaced."""
_OF_OTHERS: Final = frozenset(("kubectl.kubernetes.io/last-applied-configuration", keys.WAITED_BY))
"""Annotations of DIJob objects by kubectl and by diflow. Which of diflow's names are for users, is known to
`diflow.dijob.rules.podtemplate`."""
_POD: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_LONGEST_POD: Final = 253
_BEGUN: Final = frozenset({"Starting", "Running", "Restarting", "Rescheduling"})
_LONGEST_MESSAGE: Final = 4096
_MOST_CONDITIONS: Final = 32
_NUMBERS: Final = ("replicas", "reportedReplicas", "scaleRequests")


@dataclass(frozen=True, slots=True)
class DIJobRecord:
    """A DIJob object. `labels` and `annotations` are those of its job; `spec` is what its user wrote there. All three
    are empty if they are too large, and `problem` says so.

    `begun`: its status says that pods of it were started. `status` is what it has now; {} if it has none. `waited_by`:
    the pod of a step that waits for the job, "" if there is none.
    """

    identity: Identity
    generation: int = 0
    created: str = ""
    is_deleted: bool = False
    is_deleted_in_foreground: bool = False
    labels: Json = field(default_factory=dict)
    annotations: Json = field(default_factory=dict)
    spec: Any = None
    status: Json = field(default_factory=dict)
    begun: bool = False
    problem: str = ""
    waited_by: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Its namespace and name."""
        return self.identity.namespace, self.identity.name

    @property
    def phase(self) -> str:
        """The phase that its status has; "" without one."""
        return untrusted.string(self.status.get("phase"), most=keys.LABEL_LIMIT)

    @property
    def has_ended(self) -> bool:
        """Its status says that it has ended."""
        return self.phase in ENDED

    @property
    def fields(self) -> Object:
        """The spec as a mapping, {} if it is none."""
        return untrusted.sub(self.spec)

    @property
    def job(self) -> Json:
        """The fields of its job's manifest; {} if they are too large."""
        names = {"name": self.identity.name, "namespace": self.identity.namespace}
        own = {"labels": self.labels, "annotations": self.annotations}
        return {} if self.problem else {"metadata": {**names, **own}, "spec": self.spec}

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions of its status."""
        given = untrusted.mappings(self.status.get("conditions"))
        return tuple(map(_condition, islice(given, _MOST_CONDITIONS)))

    @property
    def counts(self) -> dict[str, Counts]:
        """The replicas of each task as the spec has them now, without invalid ones."""
        return counts(self.fields)

    def number(self, name: str) -> int | None:
        """A number of its status."""
        value = self.status.get(name)
        return value if untrusted.is_count(value, least=0, most=2**31 - 1) else None


def packed(record: DIJobRecord) -> bytes:
    """The record as compressed text: a spec of 128 KiB may be megabytes of Python's objects."""
    fields = {name: getattr(record, name) for name in _FIELDS}
    identity = record.identity
    text = json.dumps([[identity.namespace, identity.name, identity.uid, identity.version], fields])
    return zlib.compress(text.encode(), 1)


def unpacked(data: bytes) -> DIJobRecord:
    """The record of this text."""
    identity, fields = json.loads(zlib.decompress(data))
    return DIJobRecord(Identity(*identity), **fields)


def dijob_record_of(obj: Object) -> DIJobRecord:
    """The record of a DIJob object. It never raises."""
    metadata, status = untrusted.sub(obj, "metadata"), dict(untrusted.sub(obj, "status"))
    labels, annotations = dict(untrusted.sub(metadata, "labels")), dict(untrusted.sub(metadata, "annotations"))
    waited_by = _pod(annotations.get(keys.WAITED_BY))
    # Neither the copy of the object that `kubectl apply` keeps there, nor what diflow puts on objects.
    annotations = {name: text for name, text in annotations.items() if name not in _OF_OTHERS}
    own = {"labels": labels, "annotations": annotations}
    problem = _too_large("labels and annotations", own, 2 * MOST_METADATA_BYTES)
    problem = problem or _too_large("its spec", obj.get("spec"), 2 * MOST_MANIFEST_BYTES)
    if problem:
        own = {}
    past = (status.get("phase"), *(one.get("type") for one in untrusted.mappings(status.get("conditions"))))
    if _size(status) > MOST_STATUS_BYTES:
        phase = untrusted.string(status.get("phase"), most=keys.LABEL_LIMIT)
        status = {name: status[name] for name in _NUMBERS if isinstance(status.get(name), int)} | {"phase": phase}
    generation = metadata.get("generation")
    return DIJobRecord(
        Identity.of(obj),
        generation=generation if untrusted.is_count(generation, least=0, most=2**63 - 1) else 0,
        created=untrusted.time(metadata.get("creationTimestamp")),
        is_deleted=bool(metadata.get("deletionTimestamp")),
        is_deleted_in_foreground=untrusted.is_deleted_in_foreground(metadata),
        spec=None if problem else obj.get("spec"),
        status=status,
        begun=any(isinstance(name, str) and name in _BEGUN for name in past),
        problem=problem,
        waited_by=waited_by,
        **own,
    )


_FIELDS: Final = tuple(one.name for one in dataclasses.fields(DIJobRecord) if one.name != "identity")


def _condition(given: Object) -> Condition:
    text = {name: untrusted.string(given.get(name), most=_LONGEST_MESSAGE) for name in ("type", "reason", "message")}
    began, updated = (untrusted.time(given.get(name)) for name in ("lastTransitionTime", "lastUpdateTime"))
    status = given.get("status")
    status = status if status in ("True", "Unknown") else "False"
    return Condition(text["type"], status, text["reason"], text["message"], began, updated)


def counts(spec: Object) -> dict[str, Counts]:
    """The replicas of each task in the spec of a manifest, without invalid ones."""
    out: dict[str, Counts] = {}
    given = spec.get("tasks")
    if given is None and "template" in spec:
        low, high = generations.one_range(spec)
        found = low, low, high
        return {generations.ONE_TASK: found} if is_counts(found) else {}
    for task in list(untrusted.mappings(given))[:MOST_TASKS]:
        name = untrusted.string(task.get("name") or task.get("type"), most=keys.LABEL_LIMIT)
        found = task.get("replicas", 1), task.get("minReplicas"), task.get("maxReplicas")
        if name and is_counts(found):
            out[name] = found
    return out


def is_counts(value: Any) -> bool:
    """Whether these are valid `Counts`."""
    if not isinstance(value, tuple | list) or len(value) != 3 or value[0] is None:
        return False
    return all(n is None or untrusted.is_count(n, most=MOST_REPLICAS) for n in value)


def _pod(value: Any) -> str:
    """The name of a pod; "" for what cannot be one."""
    name = untrusted.string(value)
    return name if len(name) <= _LONGEST_POD and _POD.fullmatch(name) else ""


def _too_large(what: str, value: Any, most: int) -> str:
    size = _size(value)
    return (
        f"{what}: {size:,} bytes as JSON, and a job has at most {most // 2:,} (docs/limits.md)" if size > most else ""
    )


def _size(value: Any) -> int:
    try:
        return len(canonical_json(value).encode(errors="replace"))
    except RecursionError:  # the API server's answer is parsed with far fewer levels
        return 2**31


def owner_of(workflow: Object) -> tuple[str, str]:
    """(name, uid) of the DIJob object that owns a Workflow; empty text if none does."""
    for reference in _owners(workflow):
        group = untrusted.string(reference.get("apiVersion")).partition("/")[0]
        if reference.get("kind") == keys.KIND and group == keys.API_GROUP:
            return untrusted.string(reference.get("name")), untrusted.string(reference.get("uid"))
    return "", ""


def runs_in(workflow: Object) -> tuple[str, str]:
    """(name, uid) of the DIJob object whose job runs in a Workflow; empty text if none does.

    An object may own other Workflows than its job's: `argo resubmit` copies owner references, and users can write them.
    """
    name, uid = owner_of(workflow)
    return (name, uid) if chain.job_name(workflow) == name else ("", "")


def owner_reference(identity: Identity) -> Json:
    """The owner reference of a DIJob's Workflow. A foreground deletion of the object waits for the Workflow."""
    reference = identity.owner_reference(keys.API_VERSION, keys.KIND)
    return {**reference, "controller": True, "blockOwnerDeletion": True}


def disowned(workflow: Object, uid: str) -> Json:
    """The merge patch by which the object with this uid gives up a Workflow. It is valid for this version of the
    Workflow only."""
    left = [one for one in _owners(workflow) if one.get("uid") != uid]
    return Identity.of(workflow).bind({"metadata": {"ownerReferences": left or None}})


def _owners(workflow: Object) -> list[Object]:
    return list(untrusted.mappings(untrusted.sub(workflow, "metadata").get("ownerReferences")))


@dataclass(frozen=True, slots=True)
class StepPod:
    """A pod of a step that waits for a DIJob. `created` is RFC 3339 text.

    One without the label of a step counts as ended: a cache of such pods would not follow it.
    """

    created: str
    has_ended: bool


def step_pod_of(obj: Object) -> StepPod:
    """Read a pod. One that is being deleted has ended."""
    metadata, phase = untrusted.sub(obj, "metadata"), untrusted.sub(obj, "status").get("phase")
    is_step = untrusted.sub(metadata, "labels").get(keys.STEP) == "true"
    waits = is_step and phase not in ("Succeeded", "Failed") and not metadata.get("deletionTimestamp")
    return StepPod(untrusted.time(metadata.get("creationTimestamp")), not waits)

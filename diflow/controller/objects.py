"""A DIJob object as the controller keeps it: what it needs of it, bounded in size, whatever the object contains."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from diflow.common import keys
from diflow.common.errors import InvalidError
from diflow.common.jsontext import canonical_json
from diflow.common.limits import MOST_MANIFEST_BYTES, MOST_METADATA_BYTES, MOST_REPLICAS, MOST_TASKS
from diflow.dijob.model import DIJob
from diflow.dijob.rules import generations
from diflow.jobs import dijobs, v1alpha1
from diflow.record import untrusted
from diflow.record.status.status import ENDED

Json = dict[str, Any]

Counts = tuple[int, int | None, int | None]
"""(replicas, minReplicas, maxReplicas) of a task."""

MOST_STATUS_BYTES: Final = 512 * 1024
"""Of a status that is kept. The controller's own has less than half: 2,000 nodes of 63 characters, and 64 KiB of
reports. Of a larger one, which others wrote, only the numbers are kept, and it is replaced."""
_POD: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_LONGEST_POD: Final = 253
_BEGUN: Final = frozenset({"Starting", "Running", "Restarting", "Rescheduling"})
_NUMBERS: Final = ("replicas", "reportedReplicas", "scaleRequests")


@dataclass(frozen=True, slots=True)
class DIJobRead:
    """A DIJob object. `job` has the fields of a manifest; {} if it is too large, and `problem` says so.

    `begun`: its status says that pods of it were started. `status` is what it has now; {} if it has none. `waited_by`:
    the pod of a step that waits for the job, "" if there is none.
    """

    namespace: str
    name: str
    uid: str
    version: str
    generation: int
    created: str
    is_deleted: bool
    is_deleted_in_foreground: bool
    phase: str
    begun: bool
    job: Json
    status: Json
    problem: str = ""
    waited_by: str = ""

    @property
    def has_ended(self) -> bool:
        """Its status says that it has ended."""
        return self.phase in ENDED

    @property
    def has_coordinator(self) -> bool:
        """It has the form of v1alpha1."""
        return v1alpha1.is_one(self.job)

    @property
    def counts(self) -> dict[str, Counts]:
        """The replicas of each task as the spec has them now, without invalid ones."""
        return counts(self.job)

    def number(self, name: str) -> int | None:
        """A number of its status."""
        value = self.status.get(name)
        return value if untrusted.is_count(value, least=0, most=2**31 - 1) else None

    def read(self) -> tuple[DIJob, tuple[str, ...]]:
        """The job, and the paths of its unknown fields. Raises InvalidError."""
        if self.problem:
            raise InvalidError(self.problem)
        return dijobs.read(self.job)


def read(obj: Mapping[str, Any]) -> DIJobRead:
    """What to keep of an object. It never raises."""
    metadata, status = untrusted.sub(obj, "metadata"), untrusted.sub(obj, "status")
    phase = untrusted.string(status.get("phase"), most=63)
    past = {phase, *(untrusted.string(c.get("type"), most=63) for c in untrusted.mappings(status.get("conditions")))}
    own = {"labels": dict(untrusted.sub(metadata, "labels")), "annotations": dijobs.own_annotations(metadata)}
    job: Json = {
        "metadata": {**{name: metadata.get(name) for name in ("name", "namespace")}, **own},
        "spec": obj.get("spec"),
    }
    problem = _too_large("labels and annotations", own, 2 * MOST_METADATA_BYTES)
    problem = problem or _too_large("its spec", obj.get("spec"), 2 * MOST_MANIFEST_BYTES)
    kept = dict(status)
    if _size(kept) > MOST_STATUS_BYTES:
        kept = {name: kept[name] for name in _NUMBERS if isinstance(kept.get(name), int)} | {"phase": phase}
    return DIJobRead(
        namespace=untrusted.string(metadata.get("namespace")),
        name=untrusted.string(metadata.get("name")),
        uid=untrusted.string(metadata.get("uid")),
        version=untrusted.string(metadata.get("resourceVersion")),
        generation=_generation(metadata.get("generation")),
        created=untrusted.time(metadata.get("creationTimestamp")),
        is_deleted=bool(metadata.get("deletionTimestamp")),
        is_deleted_in_foreground=untrusted.is_deleted_in_foreground(metadata),
        phase=phase,
        begun=bool(past & _BEGUN),
        job={} if problem else job,
        status=kept,
        problem=problem,
        waited_by=_pod(untrusted.sub(metadata, "annotations").get(keys.WAITED_BY)),
    )


def counts(manifest: Mapping[str, Any]) -> dict[str, Counts]:
    """The replicas of each task of a manifest, without invalid ones."""
    out: dict[str, Counts] = {}
    spec = untrusted.sub(manifest, "spec")
    given = spec.get("tasks")
    if given is None and "template" in spec:
        low, high = generations.one_range(spec)
        found = low, low, high
        return {generations.ONE_TASK: found} if is_counts(found) else {}
    for task in list(untrusted.mappings(given))[:MOST_TASKS]:
        name = untrusted.string(task.get("name") or task.get("type"), most=63)
        found = task.get("replicas", 1), task.get("minReplicas"), task.get("maxReplicas")
        if name and is_counts(found):
            out[name] = found
    return out


def _generation(value: Any) -> int:
    return value if untrusted.is_count(value, least=0, most=2**63 - 1) else 0


def _pod(value: Any) -> str:
    """The name of a pod; "" for what cannot be one."""
    name = untrusted.string(value)
    return name if len(name) <= _LONGEST_POD and _POD.fullmatch(name) else ""


def is_counts(value: Any) -> bool:
    """Whether these are valid `Counts`."""
    if not isinstance(value, tuple | list) or len(value) != 3 or value[0] is None:
        return False
    return all(n is None or untrusted.is_count(n, most=MOST_REPLICAS) for n in value)


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

"""Changes of a DIJob object that request other numbers of replicas, as a change of its Workflow. Pure.

There are two: a change of the replicas in the spec, and a write of `status.replicas` by others, as DI-orchestrator's
own allocator does it. Users can also request replicas without the object (`POST .../replicas`), so a spec is carried
out once, when it changes, and not enforced. What was carried out is in an annotation of the Workflow, which the same
patch writes: after a crash at any time each request is carried out once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from diflow.common import keys
from diflow.common.errors import ConflictError, InvalidError, NotFoundError
from diflow.common.jsontext import canonical_json
from diflow.common.limits import MOST_REPLICAS, MOST_TASKS
from diflow.controller.objects import Counts, DIJobRead, counts, is_counts
from diflow.dijob.model import same_part
from diflow.jobs.replica_ranges import check_size, with_bounds, with_number
from diflow.jobs.scale_requests import check_hostnames, check_scalable, scaled
from diflow.record import untrusted
from diflow.record.job import JobRecord
from diflow.record.notes import Notes
from diflow.record.parameters import manifest
from diflow.record.ranges import asked, elastic

Json = dict[str, Any]

_LONGEST: Final = 16_384
"""Of the annotation: 40 tasks take less than 4 KiB."""
_MOST_REQUESTS: Final = 2**31 - 1
_DIGEST: Final = 16
_OF_ANY_TYPE: Final[Mapping[str, str]] = {"nodeCheck": "node_check", "monitor": "monitor"}
"""Fields of manifests that may be `true` or an object, which no rule of a CRD can read, nor protect."""


@dataclass(frozen=True, slots=True)
class CarriedOut:
    """The replicas of the spec that were carried out last, by task; the number of answered writes of
    `status.replicas`, and the number of replicas in the last of them."""

    spec: Mapping[str, Counts]
    status: int = 0
    replicas: int = 0
    ignored: str = ""
    """The change of other fields that was refused last, as a digest."""

    @classmethod
    def read(cls, job: JobRecord, workflow: Mapping[str, Any]) -> CarriedOut:
        """As the Workflow has it; what it was made of, if the annotation is missing or was edited."""
        text = job.wishes.request(keys.CARRIED_OUT)
        given = untrusted.mapping(text) if len(text) <= _LONGEST else {}
        spec, number = given.get("spec"), given.get("status")
        known = counts(manifest(workflow))
        if isinstance(spec, dict) and len(spec) <= MOST_TASKS:
            known |= {task: tuple(found) for task, found in spec.items() if is_counts(found)}
        pair = number if isinstance(number, list) and len(number) == 2 else [0, 0]
        ignored = untrusted.string(given.get("ignored"), most=_DIGEST)
        status, replicas = (n if untrusted.is_count(n, least=0, most=_MOST_REQUESTS) else 0 for n in pair)
        return cls(known, status, replicas, ignored)

    def text(self) -> str:
        """The annotation's text."""
        spec = {task: list(found) for task, found in self.spec.items()}
        more = {"ignored": self.ignored} if self.ignored else {}
        return canonical_json({"spec": spec, "status": [self.status, self.replicas], **more})


@dataclass(frozen=True, slots=True)
class Answer:
    """The patch of the Workflow that carries requests out, and what was done and refused, as texts. `ignored`: fields
    that were changed and cannot change."""

    patch: Json
    done: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


@dataclass(slots=True)
class _Draft:
    """The requests of a Workflow while they are changed."""

    current: JobRecord
    desired: dict[str, int]
    bounds: Mapping[str, tuple[int, int]]
    notes: Notes
    namespace: str
    done: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def answered(obj: DIJobRead, job: JobRecord, workflow: Mapping[str, Any]) -> int:
    """The number for `status.scaleRequests` once a wish was carried out. `job`: the record of the Workflow."""
    carried_out = CarriedOut.read(job, workflow)
    return max(_counted(obj, carried_out), carried_out.status)


def answer(obj: DIJobRead, job: JobRecord, workflow: Mapping[str, Any]) -> Answer | None:
    """The patch of the Workflow that carries out what the object requests; None if nothing is left to be done. `job`:
    the record of the Workflow."""
    before = CarriedOut.read(job, workflow)
    new = obj.counts
    changed = {task: found for task, found in new.items() if task in before.spec and before.spec[task] != found}
    by, answered = _wish(obj, before)
    ignored, digest = _ignored(obj, workflow, before)
    if not changed and not by and not ignored:
        return None
    after = CarriedOut({**before.spec, **changed}, *answered, digest)
    if not changed and not by:
        return Answer(_noted(workflow, after), ignored=ignored)
    try:
        check_scalable(job)
    except (InvalidError, ConflictError, NotFoundError) as error:
        return Answer(_noted(workflow, after), refused=(str(error),), ignored=ignored)
    draft = _Draft(
        job,
        dict(job.wishes.desired),
        job.wishes.bounds,
        Notes.read(job.wishes.request(keys.REQUESTS)),
        obj.namespace,
    )
    for task in changed:
        _as_specified(draft, task, new)
    if by:
        _more(draft, by)
    noted = {keys.CARRIED_OUT: after.text()}
    if draft.notes != Notes.read(job.wishes.request(keys.REQUESTS)):
        noted[keys.REQUESTS] = draft.notes.text()
    patch = scaled(job, draft.desired, draft.bounds, annotations=noted)
    return Answer(patch, tuple(draft.done), tuple(draft.refused), ignored)


def _ignored(obj: DIJobRead, workflow: Mapping[str, Any], before: CarriedOut) -> tuple[tuple[str, ...], str]:
    """The fields that the CRD cannot compare and that differ from those of the Workflow, if they were not reported
    before; and a digest of them."""
    now, made = untrusted.sub(obj.job, "spec"), untrusted.sub(manifest(workflow), "spec")
    # What is equal as it stands, as in nearly all jobs, is not parsed.
    changed = [
        name
        for name, part in _OF_ANY_TYPE.items()
        if now.get(name) != made.get(name) and not same_part(part, now.get(name), made.get(name))
    ]
    if not changed or not made or obj.problem:
        return (), before.ignored
    digest = hashlib.sha256(canonical_json({name: now.get(name) for name in changed}).encode(errors="replace"))
    text = digest.hexdigest()[:_DIGEST]
    return (tuple(changed) if text != before.ignored else ()), text


def _wish(obj: DIJobRead, before: CarriedOut) -> tuple[int, tuple[int, int]]:
    """How many more replicas others have written into `status.replicas` than the controller has (0: none), and what to
    note of that.

    Each answered write is counted in the status, after the Workflow. One that only the Workflow counts was carried out
    already, before a crash or in this second: what is left is the difference to the number of then.
    """
    replicas, reported = obj.number("replicas"), obj.number("reportedReplicas")
    noted = before.status, before.replicas
    if replicas is None or reported is None or replicas == reported:
        return 0, noted
    number = _counted(obj, before) + 1
    by = replicas - (before.replicas if number <= before.status else reported)
    return by, (max(number, before.status), replicas) if by else noted


def _counted(obj: DIJobRead, before: CarriedOut) -> int:
    """The answered writes of `status.replicas` that the status counts; those that the Workflow counts, if somebody
    wrote a number into the status that nobody could have reached."""
    number = obj.number("scaleRequests") or 0
    return number if number < _MOST_REQUESTS // 2 else before.status


def _as_specified(draft: _Draft, task: str, spec: Mapping[str, Counts]) -> None:
    """Request for a task what a job submitted with these replicas would request."""
    job = draft.current.spec
    index = next((i for i, one in enumerate(job.tasks) if one.name == task), None)
    if index is None:
        return
    replicas = spec[task][0]
    try:
        if not job.is_preemptible:
            desired, bounds = with_number(job, index, replicas, desired=draft.desired, bounds=draft.bounds)
        else:
            least = (job.tasks[index].node_unit or 1) if index == len(job.tasks) - 1 else replicas
            low, high = _range(task, spec, least=least)
            desired, bounds = with_bounds(job, index, low, high, desired=draft.desired, bounds=draft.bounds)
        _accept(draft, index, desired, bounds)
        draft.notes = draft.notes.without_range(task)
    except InvalidError as error:
        draft.refused.append(f"{task}: {error.message}")


def _range(task: str, spec: Mapping[str, Counts], *, least: int) -> tuple[int, int]:
    """The range of a preemptible job's task, as that of a job submitted with this spec
    (`replica_ranges.submitted_range`). `least`: its minimum if no task has bounds."""
    replicas, low, high = spec[task]
    if any(found[1] or found[2] for found in spec.values()):
        return low or replicas, high or replicas
    return min(least, replicas), replicas


def _more(draft: _Draft, by: int) -> None:
    """Add the difference to the elastic task, else to the last one."""
    job = draft.current.spec
    task = elastic(job.tasks, bounds=draft.bounds)
    index = next(i for i, one in enumerate(job.tasks) if one.name == task)
    # A preemptible job has as many as the allocator grants: the status has reported those.
    now = draft.current.live.running(task) if job.is_preemptible else draft.desired.get(task, job.tasks[index].replicas)
    number = now + by
    try:
        if not 1 <= number <= MOST_REPLICAS:
            raise InvalidError(f"{number:,} replicas: a task has from 1 to {MOST_REPLICAS:,}")
        _accept(draft, index, *with_number(job, index, number, desired=draft.desired, bounds=draft.bounds))
    except InvalidError as error:
        draft.refused.append(f"status.replicas: {task}: {error.message}")


def _accept(draft: _Draft, index: int, desired: dict[str, int], bounds: Mapping[str, tuple[int, int]]) -> None:
    """Take these requests into the draft. Raises InvalidError if the job would exceed a limit."""
    job = draft.current.spec
    after = asked(job, index, desired=desired, bounds=bounds)
    check_size(draft.current.submitted, desired=desired, bounds=bounds, namespace=draft.namespace, path="")
    check_hostnames(draft.current, index, after.high, path="")
    before = asked(job, index, desired=draft.desired, bounds=draft.bounds)
    draft.desired, draft.bounds = desired, bounds
    was, now = before.text(), after.text()
    draft.done.append(
        f"{after.task}: {was} → {now} replicas" if was != now else f"{after.task}: {now} replicas, as before"
    )


def _noted(workflow: Mapping[str, Any], after: CarriedOut) -> Json:
    """The patch that only notes what was answered."""
    metadata = untrusted.sub(workflow, "metadata")
    return {
        "metadata": {
            "uid": metadata.get("uid"),
            "resourceVersion": metadata.get("resourceVersion"),
            "annotations": {keys.CARRIED_OUT: after.text()},
        }
    }

"""What a DIJob object asks of its Workflow, as changes of that. Pure.

The job may have to stop. And an object can request other numbers of replicas in two ways: by its spec, and by a write
of others into `status.replicas`, as DI-orchestrator's own allocator does it. Users can also request replicas without
the object (`POST .../replicas`), so a spec is carried out once, when it changes, and not enforced. What was carried out
is in an annotation of the Workflow, which the same patch writes: after a crash at any time each request is carried out
once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from diflow.common import keys
from diflow.common.errors import ConflictError, InvalidError, NotFoundError
from diflow.common.jsontext import canonical_json
from diflow.common.limits import MOST_REPLICAS, MOST_TASKS
from diflow.controller import statuses
from diflow.dijob.model import same_part
from diflow.record import patches, untrusted
from diflow.record.dijob import Counts, DIJobRecord, counts, is_counts
from diflow.record.job import JobRecord
from diflow.record.parameters import manifest
from diflow.record.requests import resuming
from diflow.record.requests.changes import Draft, check_scalable
from diflow.record.requests.ranges import elastic

Json = dict[str, Any]

_LONGEST: Final = 16_384
"""Of the annotation: 40 tasks take less than 4 KiB."""
_IGNORED: Final = f"cannot change in a job that was created, and the change has no effect: {statuses.ADVICE}"
_MOST_REQUESTS: Final = 2**31 - 1
_DIGEST: Final = 16
_OF_ANY_TYPE: Final[Mapping[str, str]] = {"nodeCheck": "node_check", "monitor": "monitor"}
"""Fields of manifests that may be `true` or an object, which no rule of a CRD can read, nor protect."""


@dataclass(frozen=True, slots=True)
class CarriedOut:
    """The replicas of the spec that were carried out last, by task; the number of answered writes of
    `status.replicas`, and the number of replicas in the last of them. `made`: the spec of the manifest of which the
    Workflow was made."""

    spec: Mapping[str, Counts]
    status: int = 0
    replicas: int = 0
    ignored: str = ""
    """The change of other fields that was refused last, as a digest."""
    is_suspended: bool = False
    """The spec's `suspend`, as it was carried out last."""
    made: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, job: JobRecord, workflow: Mapping[str, Any]) -> CarriedOut:
        """As the Workflow has it; what it was made of, if the annotation is missing or was edited."""
        text = job.wishes.request(keys.CARRIED_OUT)
        given = untrusted.mapping(text) if len(text) <= _LONGEST else {}
        spec, number = given.get("spec"), given.get("status")
        made = untrusted.sub(manifest(workflow), "spec")
        known = counts(made)
        if isinstance(spec, dict) and len(spec) <= MOST_TASKS:
            known |= {task: tuple(found) for task, found in spec.items() if is_counts(found)}
        pair = number if isinstance(number, list) and len(number) == 2 else [0, 0]
        ignored = untrusted.string(given.get("ignored"), most=_DIGEST)
        status, replicas = (n if untrusted.is_count(n, least=0, most=_MOST_REQUESTS) else 0 for n in pair)
        is_suspended = given.get("suspend", made.get("suspend")) is True
        return cls(known, status, replicas, ignored, is_suspended, made)

    def text(self) -> str:
        """The annotation's text."""
        spec = {task: list(found) for task, found in self.spec.items()}
        more: Json = {"ignored": self.ignored} if self.ignored else {}
        if self.is_suspended != (self.made.get("suspend") is True):
            more["suspend"] = self.is_suspended
        return canonical_json({"spec": spec, "status": [self.status, self.replicas], **more})


@dataclass(frozen=True, slots=True)
class Change:
    """A patch of the Workflow. `kind`: of `writes.WHAT`; `events`: (reason, message) of what the object is told."""

    kind: str
    patch: Json
    events: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class _Answer:
    """What becomes of the requests of an object, and what it is told: what was done, and what was refused."""

    draft: Draft
    done: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def accept(self, index: int, new: Draft) -> None:
        """Take the request for one task. Raises InvalidError if the job would exceed a limit."""
        new.check(index, path="")
        before, after = self.draft.range_of(index), new.range_of(index)
        self.draft = new
        was, now = before.text(), after.text()
        self.done.append(
            f"{after.task}: {was} → {now} replicas" if was != now else f"{after.task}: {now} replicas, as before"
        )


def stop(obj: DIJobRecord, job: JobRecord, why: str) -> Change:
    """Stop the job."""
    patch = job.identity.bind(patches.stop())
    patch["metadata"]["annotations"] = {keys.STOPPED_BECAUSE: why}
    if obj.is_deleted_in_foreground:
        # With its DIJob, it changes at once and with each pod that ends, and the stop must not wait for the last one.
        del patch["metadata"]["resourceVersion"]
    return Change("stop", patch, (("Stopped", why),))


def answered(obj: DIJobRecord, before: CarriedOut) -> int:
    """The number for `status.scaleRequests` once a wish was carried out."""
    return max(_counted(obj, before), before.status)


def answer(obj: DIJobRecord, job: JobRecord, before: CarriedOut, *, now: float) -> Change | None:
    """What carries out the requests of the object in its Workflow; None if nothing is left to be done. `now`: seconds
    since 1970."""
    if not obj.problem and (obj.fields.get("suspend") is True) != before.is_suspended:
        return _suspended(job, before, now=now)
    new = obj.counts
    changed = {task: found for task, found in new.items() if task in before.spec and before.spec[task] != found}
    by, answered = _wish(obj, before)
    ignored, digest = _ignored(obj, before)
    if not changed and not by and not ignored:
        return None
    noted = replace(
        before, spec={**before.spec, **changed}, status=answered[0], replicas=answered[1], ignored=digest
    ).text()
    told = _Answer(Draft.of(job))
    patch = job.identity.bind({"metadata": {"annotations": {keys.CARRIED_OUT: noted}}})
    if changed or by:
        try:
            check_scalable(job)
        except (InvalidError, ConflictError, NotFoundError) as error:
            told.refused.append(str(error))
        else:
            for task in changed:
                _as_specified(told, task, new)
            if by:
                _more(told, by)
            patch = told.draft.patch({keys.CARRIED_OUT: noted})
    fields = " and ".join(f"spec.{name}" for name in ignored)
    events = [
        *(("Scaled", text) for text in told.done),
        *(("ScaleRefused", f"the request for other replicas was refused: {text}") for text in told.refused),
        *([("ChangeIgnored", f"{fields} {_IGNORED}")] if fields else []),
    ]
    return Change("request", patch, tuple(events))


def _suspended(job: JobRecord, before: CarriedOut, *, now: float) -> Change:
    """Suspend the job, or resume it, as its spec has changed. What else is requested follows."""
    carried = replace(before, is_suspended=not before.is_suspended)
    noted = {keys.CARRIED_OUT: carried.text()}
    if job.is_closing:
        return Change("request", job.identity.bind({"metadata": {"annotations": noted}}))
    if carried.is_suspended:
        patch, event = resuming.suspended(job, annotations=noted), ("Suspended", "its spec says suspend: true")
    else:
        patch, event = resuming.resumed(job, now=now, annotations=noted), ("Resumed", "its spec says suspend: false")
    return Change("request", job.identity.bind(patch), (event,))


def _ignored(obj: DIJobRecord, before: CarriedOut) -> tuple[tuple[str, ...], str]:
    """The fields that the CRD cannot compare and that differ from those of the Workflow, if they were not reported
    before; and a digest of them."""
    now, made = obj.fields, before.made
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


def _wish(obj: DIJobRecord, before: CarriedOut) -> tuple[int, tuple[int, int]]:
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


def _counted(obj: DIJobRecord, before: CarriedOut) -> int:
    """The answered writes of `status.replicas` that the status counts; those that the Workflow counts, if somebody
    wrote a number into the status that nobody could have reached."""
    number = obj.number("scaleRequests") or 0
    return number if number < _MOST_REQUESTS // 2 else before.status


def _as_specified(told: _Answer, task: str, spec: Mapping[str, Counts]) -> None:
    """Request for a task what a job submitted with these replicas would request."""
    draft, job = told.draft, told.draft.job.spec
    index = next((i for i, one in enumerate(job.tasks) if one.name == task), None)
    if index is None:
        return
    replicas = spec[task][0]
    try:
        if not job.is_preemptible:
            new = draft.with_number(index, replicas)
        else:
            least = (job.tasks[index].node_unit or 1) if index == len(job.tasks) - 1 else replicas
            low, high = _range(task, spec, least=least)
            new = draft.with_bounds(index, low, high)
        told.accept(index, replace(new, notes=new.notes.without_range(task)))
    except InvalidError as error:
        told.refused.append(f"{task}: {error.message}")


def _range(task: str, spec: Mapping[str, Counts], *, least: int) -> tuple[int, int]:
    """The range of a preemptible job's task, as that of a job submitted with this spec
    (`ranges.submitted_range`). `least`: its minimum if no task has bounds."""
    replicas, low, high = spec[task]
    if any(found[1] or found[2] for found in spec.values()):
        return low or replicas, high or replicas
    return min(least, replicas), replicas


def _more(told: _Answer, by: int) -> None:
    """Add the difference to the elastic task, else to the last one."""
    draft, job = told.draft, told.draft.job.spec
    task = elastic(job.tasks, bounds=draft.bounds)
    index = next(i for i, one in enumerate(job.tasks) if one.name == task)
    # A preemptible job has as many as the allocator grants: the status has reported those.
    now = draft.job.live.running(task) if job.is_preemptible else draft.desired.get(task, job.tasks[index].replicas)
    number = now + by
    try:
        if not 1 <= number <= MOST_REPLICAS:
            raise InvalidError(f"{number:,} replicas: a task has from 1 to {MOST_REPLICAS:,}")
        told.accept(index, draft.with_number(index, number))
    except InvalidError as error:
        told.refused.append(f"status.replicas: {task}: {error.message}")

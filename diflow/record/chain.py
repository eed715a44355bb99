"""A job that continues in another Workflow: the job's name, its parts and which of them is current.

A Workflow has a size limit, and each round of a preemptible job adds to it. Before the limit is reached, the allocator
continues the job in a second Workflow, and so on (docs/decisions/0006). Each part names its neighbours:

    long ──continued-in──> long-s2 ──continued-in──> long-s3
         <──continues────          <──continues────

The annotation `continued-in` switches from one part to the next: a part that it does not name yet is a pending
successor. `argo resubmit` copies labels and annotations: the copy of a part is the first Workflow of another job. Pure;
it imports neither Hera nor pydantic, because `diflow list` runs it on a thousand Workflows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from diflow.common import keys
from diflow.common.limits import MOST_PARTS
from diflow.record import untrusted

Object = Mapping[str, Any]
Whole = TypeVar("Whole")

_DIGEST: Final = 6
_LONGEST: Final = 253


@dataclass(frozen=True, slots=True)
class Chain:
    """The place of a Workflow in its job: `job` is the job's name, "" if that is the Workflow's own; `continues` the
    name of the previous Workflow and `continued_in` that of the next one, or "". `submitted_seconds`: when the job was,
    0 if that was with this Workflow."""

    job: str = ""
    part: int = 1
    continues: str = ""
    continues_uid: str = ""
    continued_in: str = ""
    submitted_seconds: float = 0.0


_ALONE: Final = Chain()
_LABELS: Final = frozenset({keys.CHAIN, keys.PART})
_LINKS: Final = frozenset({keys.CONTINUES, keys.CONTINUES_UID, keys.CONTINUED_IN, keys.SUBMITTED})


class Part(NamedTuple):
    """A Workflow as a part of its job, with the names of its neighbours as in `Chain`. `job`: the job's name; `number`:
    as `Chain.part`; `created`: when the Workflow was (RFC 3339), or ""."""

    namespace: str
    name: str
    uid: str
    continues: str
    continues_uid: str
    continued_in: str
    job: str
    number: int
    created: str


def read(workflow: Object) -> Chain:
    """The place of a Workflow in its job."""
    if not _is_linked(workflow):
        return _ALONE  # as most are: one object for all of them
    job, (before, uid) = job_name(workflow), continues(workflow)
    since = 0.0 if is_copy(workflow) else untrusted.seconds(_annotations(workflow).get(keys.SUBMITTED))
    found = Chain("" if job == _name(workflow) else job, part(workflow), before, uid, continued_in(workflow), since)
    return _ALONE if found == _ALONE else found


def _is_linked(workflow: Object) -> bool:
    """Whether a label or an annotation says that the job has other Workflows."""
    return not (_LABELS.isdisjoint(_labels(workflow)) and _LINKS.isdisjoint(_annotations(workflow)))


def part_of(workflow: Object) -> Part:
    """A Workflow as a part of its job."""
    metadata = untrusted.sub(workflow, "metadata")
    namespace, name, uid = (untrusted.string(metadata.get(name)) for name in ("namespace", "name", "uid"))
    created = untrusted.time(metadata.get("creationTimestamp"))
    if not _is_linked(workflow):
        return Part(namespace, name, uid, "", "", "", name, 1, created)
    links = (*continues(workflow), continued_in(workflow))
    return Part(namespace, name, uid, *links, job_name(workflow), part(workflow), created)


def is_copy(workflow: Object) -> bool:
    """Whether `argo resubmit` made it of another Workflow. It is the first one of its job: what it says of earlier ones
    is of the job that it was made of."""
    return bool(_labels(workflow).get(keys.RESUBMITTED))


def job_name(workflow: Object) -> str:
    """The job's name: the name of its first Workflow."""
    if is_copy(workflow):
        return _name(workflow)
    return untrusted.string(_labels(workflow).get(keys.CHAIN), most=_LONGEST) or _name(workflow)


def part(workflow: Object) -> int:
    """1 for the Workflow that was submitted, 2 for the one that continues it, and so on."""
    if is_copy(workflow):
        return 1
    number = untrusted.whole(_labels(workflow).get(keys.PART), most=MOST_PARTS)
    return number or 1


def continued_in(workflow: Object) -> str:
    """The name of the Workflow in which the job continues, or ""."""
    if is_copy(workflow) and _labels(workflow).get(keys.CHAIN) != _name(workflow):
        return ""  # a copied annotation: the patch that continues this job sets the label, too
    return untrusted.string(_annotations(workflow).get(keys.CONTINUED_IN), most=_LONGEST)


def submitted(workflow: Object) -> str:
    """When the job was submitted (RFC 3339)."""
    created = untrusted.time(untrusted.sub(workflow, "metadata").get("creationTimestamp"))
    return created if is_copy(workflow) else untrusted.time(_annotations(workflow).get(keys.SUBMITTED)) or created


def continues(workflow: Object) -> tuple[str, str]:
    """(name, uid) of the Workflow that this one continues; empty text for the first part."""
    if is_copy(workflow):
        return "", ""
    annotations = _annotations(workflow)
    return (
        untrusted.string(annotations.get(keys.CONTINUES), most=_LONGEST),
        untrusted.string(annotations.get(keys.CONTINUES_UID), most=_LONGEST),
    )


def newest(workflows: Iterable[Whole], part: Callable[[Any], Part] = part_of) -> list[Whole]:
    """The current Workflow of each job, in the order given: neither superseded parts nor pending successors. `part`:
    what such a Workflow is in its job."""
    found = [(one, part(one)) for one in workflows]
    by_name = {(one.namespace, one.name): one for _, one in found}
    return [whole for whole, one in found if not _is_superseded(one, by_name) and not _is_pending(one, by_name)]


def current(job: str, workflows: Iterable[Whole], part: Callable[[Any], Part] = part_of) -> Whole | None:
    """The Workflow in which this job is now, of those of its namespace: the one of its name, or the last of those that
    continue it. None if there is none. `part`: as for `newest`.

    Anybody can write labels and annotations, so a Workflow continues another one only if both name each other. Where
    the next one is gone, the job is in the oldest of the Workflows that continue one which is gone.
    """
    found = [(part(one), one) for one in workflows]
    known = {one.name: one for one, _ in found}
    at = _last(known.get(job), known)
    if at is None or at.continued_in not in ("", *known):
        above = at.number if at is not None else 1
        heads = (one for one in known.values() if one.job == job and one.continues not in ("", *known))
        at = _last(min((one for one in heads if one.number > above), key=_age, default=None), known) or at
    return next((whole for one, whole in found if one is at), None)


def _last(one: Part | None, known: Mapping[str, Part]) -> Part | None:
    """The Workflow of `known`, by name, in which the job of this one is now."""
    while one is not None:
        after = known.get(one.continued_in)
        if after is None or (after.continues, after.continues_uid) != (one.name, one.uid) or after.number <= one.number:
            break
        one = after
    return one


def _age(one: Part) -> tuple[bool, str, str]:
    return not one.created, one.created, one.name


def _is_superseded(one: Part, by_name: Mapping[tuple[str, str], Part]) -> bool:
    """The job continues in another Workflow of the list."""
    after = by_name.get((one.namespace, one.continued_in))
    return after is not None and after.continues_uid == one.uid


def _before(one: Part, by_name: Mapping[tuple[str, str], Part]) -> Part | None:
    """The Workflow of the list that this one says to continue."""
    before = by_name.get((one.namespace, one.continues)) if one.continues else None
    return before if before is not None and before.uid == one.continues_uid else None


def _is_pending(one: Part, by_name: Mapping[tuple[str, str], Part]) -> bool:
    """It was created to continue another Workflow of the list, which does not name it (yet)."""
    before = _before(one, by_name)
    return before is not None and before.continued_in != one.name


def earlier(one: Part, known: Mapping[tuple[str, str], Part]) -> list[str]:
    """The names of the Workflows in which the job was before, the latest first: those of `known`, by namespace and
    name, that name their successors as well."""
    out: list[str] = []
    here = one
    while len(out) < len(known):
        before = _before(here, known)
        if before is None or before.continued_in != here.name:
            break
        out.append(before.name)
        here = before
    return out


def part_name(job: str, number: int, *, most_characters: int, salt: str = "") -> str:
    """The name of a job's `number`th Workflow: `long-s2`, or `long-s2-1f3a` with a salt where that is taken.

    `most_characters` is the length limit: the end of a longer name is replaced by a digest of the name. "" if the limit
    is too small for a unique name.
    """
    end = f"-s{number}{f'-{salt}' if salt else ''}"
    if len(job) + len(end) <= most_characters:
        return job + end
    digest = hashlib.sha256(job.encode()).hexdigest()[:_DIGEST]
    stem = job[: max(0, most_characters - len(end) - _DIGEST - 1)].rstrip("-")
    return f"{stem}-{digest}{end}" if stem else ""


def longest_name(tasks: Mapping[str, int]) -> int:
    """How many characters the name of a Workflow may have, given the largest number of replicas of each task.

    The name is part of each replica's host name, which is a DNS label.
    """
    longest = max((len(f"-{task}-") + max(4, len(str(count))) for task, count in tasks.items()), default=0)
    return keys.LABEL_LIMIT - longest


def _name(workflow: Object) -> str:
    return untrusted.string(untrusted.sub(workflow, "metadata").get("name"))


def _space(workflow: Object) -> str:
    return untrusted.string(untrusted.sub(workflow, "metadata").get("namespace"))


def _labels(workflow: Object) -> Mapping[str, Any]:
    return untrusted.sub(workflow, "metadata", "labels")


def _annotations(workflow: Object) -> Mapping[str, Any]:
    return untrusted.sub(workflow, "metadata", "annotations")

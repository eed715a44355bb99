"""The records of gangs that wait, from the metadata of their Workflows, for commands that read thousands of them once.

Such gangs often differ in little: what is equal is read once.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from diflow.allocator.watch.records import (
    LONGEST_DESCRIPTION,
    WITHOUT_REFERENCES,
    JobRead,
    decision_fields,
    identity_of,
    read_workflow,
)
from diflow.common import keys, names
from diflow.record import chain, parameters, untrusted
from diflow.record.waiting import from_metadata

_OWN: Final = ("name", "uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "ownerReferences")
_OWN_ANNOTATIONS: Final = (keys.DIJOB, keys.DECISION, keys.DESCRIPTION, keys.TITLE)


def reader() -> Callable[[Mapping[str, Any]], JobRead]:
    """A function like `read_workflow` of `from_metadata`. It keeps what it has read for as long as it exists."""
    known: dict[bytes, JobRead] = {}

    def read(head: Mapping[str, Any]) -> JobRead:
        shared = _shared(head)
        like = known.get(shared) if shared is not None else None
        if like is not None:
            return _with_own(like, head)
        found = read_workflow(from_metadata(head))
        # The text of a problem may have the job's name in it.
        if shared is not None and not found.problem:
            known[shared] = found
        return found

    return read


def _shared(head: Mapping[str, Any]) -> bytes | None:
    """What the record depends on, without what `_with_own` reads, as bytes. Gangs with equal bytes have equal records.
    None for a job that has to be read by itself."""
    try:
        metadata = head["metadata"]
        annotations = metadata["annotations"]
        dijob, spec = parameters.split_manifest(annotations[keys.DIJOB]) or ({}, "")
        names.check_job(dijob["name"])
        # Of a valid name only the length matters (`diflow.dijob.model.read_annotation`).
        job = ({**dijob, "name": len(dijob["name"])}, spec)
        rest = {name: value for name, value in annotations.items() if name not in _OWN_ANNOTATIONS}
        other = {name: value for name, value in metadata.items() if name not in _OWN}
        return marshal.dumps((job, {**other, "annotations": rest}), WITHOUT_REFERENCES)
    except Exception:  # whatever is wrong with it, `read_workflow` says so
        return None


def _with_own(like: JobRead, head: Mapping[str, Any]) -> JobRead:
    metadata = head["metadata"]
    annotations = metadata["annotations"]
    return replace(
        like,
        identity=identity_of(head),
        created_seconds=untrusted.seconds(metadata.get("creationTimestamp")),
        name=chain.job_name(head),
        decision=decision_fields(parameters.decision_of(annotations.get(keys.DECISION))),
        description=untrusted.string(annotations.get(keys.DESCRIPTION), most=LONGEST_DESCRIPTION),
    )

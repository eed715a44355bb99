"""Gangs that wait for their first admission, read from the metadata of their Workflows alone."""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from diflow.common import keys, names
from diflow.record import chain, untrusted
from diflow.record.identity import Identity
from diflow.record.job import LONGEST_DESCRIPTION, JobRecord
from diflow.record.parameters import decision_of, split_manifest, submitted_replicas
from diflow.record.patches import initial

Object = dict[str, Any]

WITHOUT_REFERENCES: Final = 2
"""A version of marshal in which equal data has equal bytes."""
_OWN: Final = ("name", "uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "ownerReferences")
_OWN_ANNOTATIONS: Final = (keys.DIJOB, keys.DECISION, keys.DESCRIPTION, keys.TITLE)


def from_metadata(head: Mapping[str, Any]) -> Object:
    """The Workflow of a gang that waits, as far as diflow reads it, from its metadata."""
    annotations = untrusted.sub(head, "metadata", "annotations")
    # An unreadable DIJob has no tasks, and its state names the problem, as that of the whole Workflow does.
    values = dict(_initial(tuple(submitted_replicas(head).items())))
    if requested := untrusted.string(annotations.get(keys.REQUESTED)):
        values[keys.PARAM_REPLICAS] = requested
    parameters = [{"name": name, "value": value} for name, value in values.items()]
    return {**head, "spec": {"suspend": True, "arguments": {"parameters": parameters}}, "status": {}}


@lru_cache(maxsize=256)
def _initial(replicas: tuple[tuple[str, int], ...]) -> tuple[tuple[str, str], ...]:
    return tuple(initial(dict(replicas), is_gang=True).items())


def shared(head: Mapping[str, Any]) -> bytes | None:
    """What the record of such a gang depends on, without what `with_own` reads, as bytes. Gangs with equal bytes have
    equal records. None for a job that has to be read by itself."""
    try:
        metadata = head["metadata"]
        annotations = metadata["annotations"]
        dijob, spec = split_manifest(annotations[keys.DIJOB]) or ({}, "")
        names.check_job(dijob["name"])
        # Of a valid name only the length matters (`diflow.dijob.model.read_annotation`).
        job = ({**dijob, "name": len(dijob["name"])}, spec)
        rest = {name: value for name, value in annotations.items() if name not in _OWN_ANNOTATIONS}
        other = {name: value for name, value in metadata.items() if name not in _OWN}
        return marshal.dumps((job, {**other, "annotations": rest}), WITHOUT_REFERENCES)
    except Exception:  # whatever is wrong with it, the reader of the whole says so
        return None


def with_own(like: JobRecord, head: Mapping[str, Any]) -> JobRecord:
    """The record of this gang, which differs from that of another one only in what is its own (`shared`)."""
    metadata = untrusted.sub(head, "metadata")
    annotations, created = untrusted.sub(metadata, "annotations"), metadata.get("creationTimestamp")
    description = untrusted.string(annotations.get(keys.DESCRIPTION), most=LONGEST_DESCRIPTION)
    return replace(
        like,
        identity=Identity.of(head),
        chain=chain.read(head),
        notes=replace(like.notes, decision=decision_of(annotations.get(keys.DECISION))),
        argo=replace(like.argo, created_seconds=untrusted.seconds(created)),
        texts=replace(like.texts, description=description),
    )

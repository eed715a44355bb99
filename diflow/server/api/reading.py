"""What the cache keeps of a Workflow, instead of the whole object.

Users can edit these objects, so no content raises here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from diflow.record import side_by_side
from diflow.record.job import FORGOTTEN, JobRecord, Notes, Texts, record_of


def served_record_of(obj: Mapping[str, Any]) -> JobRecord:
    """The record of a job's Workflow as the server keeps it."""
    return served(record_of(obj), obj)


def served(found: JobRecord, obj: Mapping[str, Any]) -> JobRecord:
    """The record of this Workflow with what runs beside its first round, and without what the server does not need."""
    known = side_by_side.read(obj)
    return replace(
        found,
        submitted=found.submitted.trimmed,
        wishes=replace(found.wishes, desired={}, requests=()),
        notes=Notes(excluded=found.notes.excluded, pool=found.notes.pool),
        course=FORGOTTEN,
        argo=found.argo if known is None else replace(found.argo, side_by_side=known),
        texts=Texts(
            check_text=found.texts.check_text if found.spec.node_check is not None else None,
            report=found.texts.report,
            report_at=found.texts.report_at,
        ),
    )


def without_room(found: JobRecord, most_mib: int) -> JobRecord:
    """What is kept of a job if its namespace has no room for more: who it is."""
    why = (
        f"the jobs of namespace {found.identity.namespace} fill the {most_mib} MiB of memory that the server keeps for "
        "one namespace: nothing is known of this one until others of them are deleted or smaller"
    )
    return JobRecord(found.identity, chain=found.chain, terms=found.terms, problem=found.problem or why)


def address(host: str, port: int) -> str:
    """`host:port`, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

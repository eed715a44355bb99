"""What the cache keeps of a Workflow, instead of the whole object.

Users can edit these objects, so no content raises here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from diflow.record import modules
from diflow.record.job import JobRecord, Notes, Texts, record_of


def served_record_of(obj: Mapping[str, Any]) -> JobRecord:
    """The record of a job's Workflow as the server keeps it."""
    return served(record_of(obj), obj)


def served(found: JobRecord, obj: Mapping[str, Any]) -> JobRecord:
    """The record of this Workflow with its modules, and without what the server does not need."""
    known = modules.read(obj)
    return replace(
        found,
        submitted=found.submitted.trimmed,
        wishes=replace(found.wishes, desired={}, requests=()),
        notes=Notes(excluded=found.notes.excluded, pool=found.notes.pool),
        argo=found.argo if known is None else replace(found.argo, modules=known),
        texts=Texts(
            check_text=found.texts.check_text if found.spec.node_check is not None else "",
            report=found.texts.report,
            report_at=found.texts.report_at,
        ),
    )


def address(host: str, port: int) -> str:
    """`host:port`, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

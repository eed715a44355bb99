"""The records of gangs that wait, from the metadata of their Workflows, for commands that read thousands of them once.

Such gangs often differ in little: what is equal is read once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from diflow.allocator.watch.records import planning_record_of
from diflow.record.job import JobRecord
from diflow.record.waiting import from_metadata, shared, with_own


def reader() -> Callable[[Mapping[str, Any]], JobRecord]:
    """A function like `planning_record_of` of `from_metadata`. It keeps what it has read for as long as it exists."""
    known: dict[bytes, JobRecord] = {}

    def read(head: Mapping[str, Any]) -> JobRecord:
        equal = shared(head)
        like = known.get(equal) if equal is not None else None
        if like is not None:
            return with_own(like, head)
        found = planning_record_of(from_metadata(head))
        # The text of a problem may have the job's name in it.
        if equal is not None and not found.problem:
            known[equal] = found
        return found

    return read

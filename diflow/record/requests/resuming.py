"""Suspends a job for its user, and resumes it: the patches of its Workflow, for the commands and the controller."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from diflow.common import keys, limits
from diflow.record import untrusted
from diflow.record.job import JobRecord

Patch = dict[str, Any]


def suspended(job: JobRecord, *, annotations: Mapping[str, str] | None = None) -> Patch:
    """Let Argo make no more pods of the job. `annotations` are further ones of its Workflow."""
    return _patch(job, annotations, held="true", spec={"suspend": True})


def resumed(job: JobRecord, *, now: float, annotations: Mapping[str, str] | None = None) -> Patch:
    """Undo that: a gang that was never admitted waits for the allocator then. `now`: in seconds since 1970."""
    spec: Patch = {"suspend": True if job.argo.was_never_admitted else None}
    if (seconds := _deadline_of_argo(job, now=now)) is not None:
        spec["activeDeadlineSeconds"] = seconds
    return _patch(job, annotations, held=None, spec=spec)


def _patch(job: JobRecord, annotations: Mapping[str, str] | None, *, held: str | None, spec: Patch) -> Patch:
    metadata: Patch = {"annotations": {**(annotations or {}), keys.HELD: held}}
    if job.argo.is_hidden:
        metadata["labels"] = {keys.INSTANCE: None}
    return {"metadata": metadata, "spec": spec}


def _deadline_of_argo(job: JobRecord, *, now: float) -> int | None:
    """Argo's deadline of the Workflow of a job that the allocator does not place and of which no pod was made; None if
    it has none, or keeps what it has. Argo counts from its start, and the suspension as well."""
    most = job.spec.active_deadline_seconds
    if most is None or job.terms.is_gang or job.argo.has_begun:
        return None
    started = untrusted.seconds(job.course.started)
    return min(most + math.ceil(max(0.0, now - started) if started else 0.0), limits.MOST_RUN_SECONDS)

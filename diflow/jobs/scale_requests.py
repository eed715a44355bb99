"""Scale requests: the job that may be scaled, and the patch for a new request.

Shared by `diflow scale`, the controller and the server. All write only what users may write (the parameter `replicas`,
the annotation `diflow/bounds`). This module knows none of them, and does not access the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diflow.common import keys, names
from diflow.common.errors import ConflictError, InvalidError, NotFoundError
from diflow.common.jsontext import canonical_json
from diflow.record.job import JobRecord
from diflow.record.patches import live, merged
from diflow.record.ranges import Bounds

Json = dict[str, Any]


def check_scalable(job: JobRecord) -> None:
    """Raises NotFoundError if the Workflow is not diflow's, ConflictError if it has ended, InvalidError if no allocator
    acts on it (`scheduling: none`) or if it is unreadable."""
    if not job.terms.is_job:
        raise NotFoundError(f"the Workflow {job.name} is not a diflow job")
    if job.has_ended:
        raise ConflictError(f"job {job.name} has ended already ({job.argo.phase}): nothing of it can be scaled")
    if not job.terms.is_gang:
        raise InvalidError(
            f"job {job.name} has scheduling: none, so Argo alone runs it and nothing acts on other numbers: submit it "
            "with scheduling: gang, for the allocator"
        )
    if job.problem:
        raise InvalidError(f"job {job.name} cannot be read: {job.problem}")


def scaled(
    job: JobRecord, desired: Mapping[str, int], bounds: Bounds, *, annotations: Mapping[str, str] | None = None
) -> Json:
    """The merge patch that requests these instead. It is valid for this version of the Workflow only."""
    values = merged(job.texts.parameters, live(replicas=desired))
    change: Json = {
        "metadata": {"uid": job.identity.uid, "resourceVersion": job.identity.version},
        "spec": {"arguments": {"parameters": values}},
    }
    noted = dict(annotations or {})
    if bounds != job.wishes.bounds:
        given = {task: {"min": pair[0], "max": pair[1]} for task, pair in bounds.items()}
        noted[keys.BOUNDS] = canonical_json(given)
    if job.argo.awaits_admission:
        noted[keys.REQUESTED] = canonical_json(dict(desired))
    if noted:
        change["metadata"]["annotations"] = noted
    return change


def check_hostnames(job: JobRecord, index: int, highest: int, *, path: str) -> None:
    """Raises InvalidError if the name of the last of `highest` replicas of this task would be too long."""
    names.check_hostname(job.identity.name, job.spec.tasks[index].name, highest, path=path)

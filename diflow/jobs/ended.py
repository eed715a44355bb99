"""Lists the jobs that have ended: those whose Workflows still exist, and those that the allocator has recorded."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from diflow.common import keys
from diflow.common.errors import UnauthorizedError
from diflow.kube.api import Cluster
from diflow.kube.kinds import CONFIG_MAP, WORKFLOW
from diflow.record import chain, untrusted
from diflow.record.namespace import ended
from diflow.record.status.status import has_completed

if TYPE_CHECKING:
    from diflow.record.namespace.ended import EndedJob


@dataclass(frozen=True, slots=True)
class Listed:
    """The jobs that have ended, the last one first. `trouble`: why the records were not read, or ""."""

    jobs: tuple[EndedJob, ...]
    trouble: str = ""


def list_ended(*, everywhere: bool, cluster: Cluster) -> Listed:
    """The jobs of the namespace, or `everywhere`, that have ended; each once.

    Of a job that is recorded only the metadata of its Workflow is read; of the others the whole Workflow, if it exists.
    """
    heads = cluster.list_all(WORKFLOW, labels=keys.MANAGED, metadata_only=True, everywhere=everywhere)
    trouble = ""
    recorded: dict[tuple[str, str, str], EndedJob] = {}
    try:
        for config_map in _records(cluster, everywhere=everywhere):
            space = untrusted.string(untrusted.sub(config_map, "metadata").get("namespace"))
            found = ended.parse(ended.text_of(config_map), namespace=space, now_seconds=time.time())
            recorded |= {job.key: job for job in found}
    except UnauthorizedError as error:
        trouble = str(error)
    versions = {(job.namespace, job.uid, job.version) for job in recorded.values()}
    unknown = False
    for head in heads:
        metadata = head["metadata"]
        space = str(metadata.get("namespace") or "")
        if chain.continued_in(head):
            continue
        if not has_completed(head):
            # It runs, or runs again after `argo retry`.
            recorded.pop((space, chain.job_name(head), chain.submitted(head)), None)
        elif (space, metadata.get("uid"), metadata.get("resourceVersion")) not in versions:
            unknown = True
    present: list[EndedJob] = []
    if unknown:
        workflows = cluster.list_all(
            WORKFLOW, labels=f"{keys.MANAGED},{keys.ARGO_COMPLETED}=true", everywhere=everywhere
        )
        present = [job for job in map(ended.of_workflow, workflows) if job is not None]
    jobs = ended.merged(recorded.values(), present)
    return Listed(tuple(reversed(jobs)), trouble)


def _records(cluster: Cluster, *, everywhere: bool) -> list[dict[str, Any]]:
    """The ConfigMaps with the records."""
    if everywhere:
        return cluster.list_all(CONFIG_MAP, everywhere=True, fields=f"metadata.name={keys.ENDED_JOBS}")
    found = cluster.find(CONFIG_MAP, keys.ENDED_JOBS)
    return [found] if found is not None else []

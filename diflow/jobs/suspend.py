"""Suspends, resumes and stops a job: changes of the Workflow's spec, which Argo carries out.

A gang that waits for its admission is suspended, too. What its user has suspended has an annotation (`keys.HELD`), so
that the allocator does not admit it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diflow.common import keys
from diflow.common.errors import ConflictError
from diflow.jobs import changing
from diflow.kube.api import Cluster
from diflow.record import patches
from diflow.record.job import JobRecord, record_of
from diflow.record.patches import STOP, TERMINATE

Object = dict[str, Any]


def suspend(name: str, *, namespace: str | None = None, cluster: Cluster | None = None) -> None:
    """Let Argo start no more pods of the job; running pods continue. Raises ConflictError if it has ended."""
    _change(name, lambda _: _suspended(True, held=True), namespace=namespace, cluster=cluster)


def resume(name: str, *, namespace: str | None = None, cluster: Cluster | None = None) -> bool:
    """Undo `suspend`. Returns whether the job was suspended. Raises ConflictError if it has ended.

    A gang that was never admitted waits for its admission then.
    """
    return _change(
        name,
        lambda job: _suspended(job.argo.was_never_admitted, held=False),
        namespace=namespace,
        cluster=cluster,
    ).wishes.is_suspended


def stop(name: str, *, namespace: str | None = None, cluster: Cluster | None = None, at_once: bool = False) -> None:
    """Stop the job: its pods get SIGTERM and their grace period. `at_once` does what `argo terminate` does.

    Raises ConflictError if it has ended.
    """
    how = TERMINATE if at_once else STOP
    _change(name, lambda _: patches.stop(how), namespace=namespace, cluster=cluster)


def _suspended(value: bool, *, held: bool) -> Object:
    return {
        "metadata": {"annotations": {keys.HELD: "true" if held else None}},
        "spec": {"suspend": True if value else None},
    }


def _change(
    name: str, change_of: Callable[[JobRecord], Object], *, namespace: str | None, cluster: Cluster | None
) -> JobRecord:
    """Change a job's Workflow as `change_of` says. Returns its record before."""

    def decide(workflow: Object) -> tuple[JobRecord, Object]:
        job = record_of(workflow)
        if job.outcome:
            raise ConflictError(f"job {name} has ended already ({job.outcome})")
        patch = change_of(job)
        if job.argo.is_hidden:
            patch.setdefault("metadata", {}).setdefault("labels", {})[keys.INSTANCE] = None
        if job.may_go_on or job.argo.was_never_admitted or job.argo.is_hidden:
            # The Workflow may be superseded meanwhile, or the job admitted.
            expected = {"uid": job.identity.uid, "resourceVersion": job.identity.version}
            patch["metadata"] = {**patch.get("metadata", {}), **expected}
        return job, patch

    return changing.change(name, decide, namespace=namespace, cluster=cluster)

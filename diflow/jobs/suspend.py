"""Suspends, resumes and stops a job: changes of the Workflow's spec, which Argo carries out.

A gang that waits for its admission is suspended, too. What its user has suspended has an annotation (`keys.HELD`), so
that the allocator does not admit it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diflow.common import keys
from diflow.common.errors import ConflictError
from diflow.jobs import changing, parts
from diflow.kube.api import Cluster
from diflow.record import patches
from diflow.record.job import JobRecord, record_of
from diflow.record.parameters import was_never_admitted
from diflow.record.patches import STOP, TERMINATE
from diflow.record.status import status

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
        lambda workflow: _suspended(was_never_admitted(workflow), held=False),
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
    name: str, change_of: Callable[[Object], Object], *, namespace: str | None, cluster: Cluster | None
) -> JobRecord:
    """Change a job's Workflow as `change_of` says. Returns its state before."""

    def decide(workflow: Object) -> tuple[JobRecord, Object]:
        now = status.derive(workflow)
        if now.ended:
            raise ConflictError(f"job {name} has ended already ({now.phase})")
        state, patch = record_of(workflow), change_of(workflow)
        if state.argo.is_hidden:
            metadata = patch.get("metadata", {})
            patch["metadata"] = {**metadata, "labels": {**metadata.get("labels", {}), keys.INSTANCE: None}}
        if parts.may_go_on(workflow) or was_never_admitted(workflow) or state.argo.is_hidden:
            # The Workflow may be superseded meanwhile, or the job admitted.
            expected = {name: workflow["metadata"][name] for name in ("uid", "resourceVersion")}
            patch["metadata"] = {**patch.get("metadata", {}), **expected}
        return state, patch

    return changing.change(name, decide, namespace=namespace, cluster=cluster)

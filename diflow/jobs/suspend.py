"""Suspends, resumes and stops a job: changes of the Workflow's spec, which Argo carries out."""

from __future__ import annotations

from typing import Any

from diflow.errors import ConflictError
from diflow.jobs import changing, parts
from diflow.kube.api import Cluster
from diflow.state import status


def suspend(name: str, *, namespace: str | None = None, cluster: Cluster | None = None) -> None:
    """Let Argo start no more pods of the job; running pods continue. Raises ConflictError if it has ended."""
    _change(name, {"suspend": True}, namespace=namespace, cluster=cluster)


def resume(name: str, *, namespace: str | None = None, cluster: Cluster | None = None) -> bool:
    """Undo `suspend`. Returns whether the job was suspended. Raises ConflictError if it has ended."""
    return bool(_change(name, {"suspend": None}, namespace=namespace, cluster=cluster).get("suspend"))


def stop(name: str, *, namespace: str | None = None, cluster: Cluster | None = None, at_once: bool = False) -> None:
    """Stop the job: its pods get SIGTERM and their grace period. `at_once` does what `argo terminate` does.

    Its Service remains for a retry and is deleted with the Workflow.

    Raises ConflictError if it has ended.
    """
    _change(name, {"shutdown": "Terminate" if at_once else "Stop"}, namespace=namespace, cluster=cluster)


def _change(name: str, spec: dict[str, Any], *, namespace: str | None, cluster: Cluster | None) -> dict[str, Any]:
    """Change a job's spec. Returns the previous one."""

    def decide(workflow: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        now = status.derive(workflow)
        if now.ended:
            raise ConflictError(f"job {name} has ended already ({now.phase})")
        patch: dict[str, Any] = {"spec": spec}
        if parts.may_go_on(workflow):  # the change must not go to a Workflow that was superseded meanwhile
            metadata = workflow["metadata"]
            patch["metadata"] = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        return workflow.get("spec") or {}, patch

    return changing.change(name, decide, namespace=namespace, cluster=cluster)

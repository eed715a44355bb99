"""Suspends, resumes and stops a job: changes of the Workflow's spec, which Argo carries out."""

from __future__ import annotations

import time
from typing import Any, Final

from diflow.errors import ConflictError
from diflow.jobs import lookup, parts
from diflow.kube.api import Cluster
from diflow.kube.kinds import WORKFLOW
from diflow.state import status

_PAUSE_SECONDS: Final = 0.2
_TRIES: Final = 6


def suspend(name: str, *, namespace: str | None = None, cluster: Cluster | None = None) -> None:
    """Let Argo start no more pods of the job; running pods continue. Raises ConflictError if it has ended."""
    _change(name, {"suspend": True}, namespace=namespace, cluster=cluster)


def resume(name: str, *, namespace: str | None = None, cluster: Cluster | None = None) -> bool:
    """Undo `suspend`. Returns whether the job was suspended. Raises ConflictError if it has ended."""
    return bool(_change(name, {"suspend": None}, namespace=namespace, cluster=cluster).get("suspend"))


def stop(name: str, *, namespace: str | None = None, cluster: Cluster | None = None, at_once: bool = False) -> None:
    """Stop the job: its pods get SIGTERM and their grace period. `at_once` does what `argo terminate` does.

    Raises ConflictError if it has ended.
    """
    _change(name, {"shutdown": "Terminate" if at_once else "Stop"}, namespace=namespace, cluster=cluster)


def _change(name: str, spec: dict[str, Any], *, namespace: str | None, cluster: Cluster | None) -> dict[str, Any]:
    """Change a job's spec. Returns the previous one."""
    cluster = cluster or Cluster.connect()
    attempt = 0
    while True:
        attempt += 1
        workflow = lookup.current_workflow(name, namespace=namespace, cluster=cluster)
        now = status.derive(workflow)
        if now.ended:
            raise ConflictError(f"job {name} has ended already ({now.phase})")
        metadata = workflow["metadata"]
        change: dict[str, Any] = {"spec": spec}
        if parts.may_go_on(workflow):  # the change must not go to a Workflow that was superseded meanwhile
            change["metadata"] = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        try:
            cluster.patch(WORKFLOW, metadata["name"], change, namespace=namespace)
        except ConflictError:
            if attempt == _TRIES:
                raise
            time.sleep(_PAUSE_SECONDS * attempt)
        else:
            return workflow.get("spec") or {}

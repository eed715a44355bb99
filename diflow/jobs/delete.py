"""Deletes a job."""

from __future__ import annotations

from diflow.common.errors import NotFoundError
from diflow.jobs import dijobs, parts
from diflow.jobs.checks.connecting import connect
from diflow.kube.api import Cluster
from diflow.kube.kinds import WORKFLOW
from diflow.record.dijob import runs_in
from diflow.record.job import record_of
from diflow.record.status import status


def staying(name: str, *, cluster: Cluster) -> str:
    """What to tell a user who deletes the DIJob object of this name: that a Workflow of the name, which is not the
    object's, stays. "" if there is none."""
    obj = dijobs.find(cluster, name)
    workflow = cluster.find(WORKFLOW, name) if obj is not None else None
    # That of an earlier object of the name is being deleted.
    if obj is None or workflow is None or runs_in(workflow)[1]:
        return ""
    command = "diflow" if status.is_job(workflow) else "argo"
    return f"the Workflow {name} stays, as it is not of that DIJob; `{command} delete {name}` deletes it"


def delete(name: str, *, namespace: str | None = None, cluster: Cluster | None = None) -> bool:
    """Delete the job's Workflows; Kubernetes then removes its pods. Returns whether it existed.

    All parts of the job are deleted. Of a job that is a DIJob object, the object is deleted, and Kubernetes removes its
    Workflows, too. Raises NotFoundError if the Workflow of that name is not diflow's.
    """
    cluster = cluster or connect()
    obj = dijobs.find(cluster, name, namespace=namespace)
    if obj is not None:
        return cluster.delete(dijobs.DIJOB, name, namespace=namespace, uid=obj.identity.uid)
    workflow = cluster.find(WORKFLOW, name, namespace=namespace)
    job = record_of(workflow) if workflow is not None else None
    if job is not None and not job.terms.is_job:
        raise NotFoundError(f"the Workflow {name} is not a diflow job: use `argo delete` for it")
    first = job.name if job is not None else name
    gone = job is not None and cluster.delete(WORKFLOW, first, namespace=namespace)
    # Parts that the allocator has created until now; it does not continue a deleted Workflow.
    for part in parts.all_of(cluster, first, namespace=namespace) if job is None or job.may_go_on else ():
        gone = cluster.delete(WORKFLOW, part["metadata"]["name"], namespace=namespace) or gone
    return gone

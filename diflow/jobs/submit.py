"""Submits a job: all checks, then its Workflow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from diflow import keys
from diflow.errors import ConflictError, UnauthorizedError
from diflow.jobs import parts, prerequisites
from diflow.kube.api import Cluster
from diflow.kube.kinds import CONFIG_MAP, WORKFLOW

if TYPE_CHECKING:
    from diflow.job import DIJob, Scheduling

AnyJob = TypeVar("AnyJob", bound="DIJob")


def submit(job: AnyJob, *, cluster: Cluster | None = None, dry_run: bool = False) -> AnyJob:
    """Create the job's Workflow. Returns the job with its namespace and scheduling set.

    A job without `scheduling` is left to the allocator if the cluster has one.

    Everything is checked before an object is created: the prerequisites (accounts, priority class, Argo), and the
    Workflow, by a dry run of the API server. So a rejected job leaves nothing behind. `dry_run` stops there.

    Raises ConflictError if the name is taken.
    """
    from diflow.workflows import render  # noqa: PLC0415 (Hera takes half a second to import)

    cluster = cluster or Cluster.connect()
    namespace = job.namespace or cluster.namespace
    announced = _announced(cluster)
    scheduling = job.scheduling or announced
    placed = job.model_copy(update={"namespace": namespace, "scheduling": scheduling})
    prerequisites.check_ready(cluster, namespace=namespace, priority=job.priority)
    prerequisites.check_host_names(cluster, job, namespace=namespace)
    if left := parts.all_of(cluster, job.name, namespace=namespace):  # of an earlier job whose first part was deleted
        raise _taken(job.name, left[-1]["metadata"]["name"], namespace)
    body = render(placed)
    if scheduling == announced == "gang":
        # The allocator decides first, often at once; Argo then starts the job without a wait.
        body["metadata"]["labels"].setdefault(keys.INSTANCE, keys.INSTANCE_VALUE)
    _create(cluster, body, namespace=namespace, dry_run=True)
    if not dry_run:
        _create(cluster, body, namespace=namespace, dry_run=False)
    return placed


def _announced(cluster: Cluster) -> Scheduling | None:
    """The default scheduling, which the allocator publishes in a ConfigMap that all users may read."""
    try:
        found = cluster.find(CONFIG_MAP, keys.ALLOCATOR, namespace=keys.PUBLIC_NAMESPACE)
    except UnauthorizedError:
        return None
    return "gang" if found is not None and (found.get("data") or {}).get("scheduling") == "gang" else None


def _create(cluster: Cluster, body: dict[str, Any], *, namespace: str, dry_run: bool) -> None:
    try:
        cluster.create(WORKFLOW, body, namespace=namespace, dry_run=dry_run)
    except ConflictError:
        name = body["metadata"]["name"]
        raise _taken(name, name, namespace) from None


def _taken(name: str, workflow: str, namespace: str) -> ConflictError:
    return ConflictError(
        f"there is a Workflow {workflow} in the namespace {namespace!r} already: give the job another name (--name), "
        f"or remove the old one first (diflow delete {name} -n {namespace})"
    )

"""Finds the Workflows of a job that continues from one to another (see `diflow.record.chain`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from diflow.common import keys, names
from diflow.common.errors import NoNamespaceError, NotFoundError, UnauthorizedError
from diflow.kube.kinds import WORKFLOW
from diflow.record import chain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diflow.kube.api import Cluster

Json = dict[str, Any]

# Each step is a request. Users can edit the annotations that link the parts, so a chain may contain a cycle.
_MOST: Final = 10_000


def newest(cluster: Cluster, name: str, *, namespace: str | None = None) -> Json | None:
    """The current Workflow of the job `name`; None if there is none. It need not be one of diflow's.

    The first part may be deleted already. Raises NoNamespaceError for a namespace that does not exist.
    """
    try:
        found = cluster.get(WORKFLOW, name, namespace=namespace)
    except NoNamespaceError:
        raise
    except NotFoundError:
        left = chain.current(name, all_of(cluster, name, namespace=namespace))
        return cluster.find(WORKFLOW, left["metadata"]["name"], namespace=namespace) if left is not None else None
    return last(cluster, found, namespace=namespace)


def last(cluster: Cluster, workflow: Json, *, namespace: str | None = None) -> Json:
    """The Workflow in which the job of this one is continued now."""
    current = workflow
    for after in later(cluster, workflow, namespace=namespace):
        current = after
    return current


def absent(name: str, namespace: str) -> NotFoundError:
    """The error for a job that does not exist."""
    return NotFoundError(f"there is no job {name} in the namespace {namespace!r}: `diflow list -A` shows all jobs")


def following(cluster: Cluster, workflow: Json, *, namespace: str | None = None) -> Json | None:
    """The Workflow that continues this one; None if there is none."""
    name = chain.continued_in(workflow)
    after = cluster.find(WORKFLOW, name, namespace=namespace) if name else None
    if after is None or chain.continues(after)[1] != workflow["metadata"].get("uid"):
        return None
    return after if chain.part(after) > chain.part(workflow) else None  # else the annotations were edited into a cycle


def later(cluster: Cluster, workflow: Json, *, namespace: str | None = None) -> Iterator[Json]:
    """The Workflows that continue this one, in their order. Each is read when the iterator comes to it."""
    for _ in range(_MOST):
        after = following(cluster, workflow, namespace=namespace)
        if after is None:
            return
        yield after
        workflow = after


def earlier(cluster: Cluster, workflow: Json) -> Iterator[Json]:
    """The Workflows that this one continues, the latest first, as far as they still exist. Each is read when the
    iterator comes to it."""
    for _ in range(_MOST):
        name, uid = chain.continues(workflow)
        before = cluster.find(WORKFLOW, name) if name else None
        if before is None or before["metadata"].get("uid") != uid or chain.part(before) >= chain.part(workflow):
            return
        yield before
        workflow = before


def all_of(cluster: Cluster, job: str, *, namespace: str | None = None) -> list[Json]:
    """The metadata of all parts of a job, the first one first; empty for a job with a single Workflow."""
    if not names.is_label(job):  # also, it must not inject anything into the label selector
        return []
    try:
        found = cluster.list_all(WORKFLOW, namespace=namespace, labels=f"{keys.CHAIN}={job}", metadata_only=True)
    except UnauthorizedError:  # a user who may get Workflows may not be allowed to list them
        return []
    return sorted((part for part in found if chain.job_name(part) == job), key=chain.part)

"""Finds the Workflows of a job that has gone on from one to another (see `diflow.state.chain`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from diflow import keys, names
from diflow.errors import NotFoundError, UnauthorizedError
from diflow.kube.kinds import WORKFLOW
from diflow.state import chain

if TYPE_CHECKING:
    from diflow.kube.api import Cluster

Json = dict[str, Any]

# Each step is a request. Users can edit what names the next part, so a chain may also be a circle.
_MOST: Final = 10_000


def newest(cluster: Cluster, name: str, *, namespace: str | None = None) -> Json | None:
    """The Workflow in which the job `name` is now, None if there is none. It may be any Workflow, also not diflow's.

    The first part may be gone already. Raises NotFoundError for a namespace that is not there.
    """
    try:
        found = cluster.get(WORKFLOW, name, namespace=namespace)
    except NotFoundError as error:
        if "there is no namespace" in str(error):
            raise
        left = chain.newest(all_of(cluster, name, namespace=namespace))
        if not left:
            return None
        return cluster.find(WORKFLOW, left[-1]["metadata"]["name"], namespace=namespace)
    seen = {name}
    while len(seen) < _MOST:
        after = following(cluster, found, namespace=namespace)
        if after is None or after["metadata"]["name"] in seen:
            break
        seen.add(after["metadata"]["name"])
        found = after
    return found


def absent(name: str, namespace: str) -> NotFoundError:
    """There is no such job, in words."""
    return NotFoundError(f"there is no job {name} in the namespace {namespace!r}: `diflow list -A` shows all jobs")


def following(cluster: Cluster, workflow: Json, *, namespace: str | None = None) -> Json | None:
    """The Workflow in which the job of this one has gone on, if it has and that one is there."""
    name = chain.continued_in(workflow)
    after = cluster.find(WORKFLOW, name, namespace=namespace) if name else None
    if after is None or chain.continues(after)[1] != workflow["metadata"].get("uid"):
        return None
    return after if chain.part(after) > chain.part(workflow) else None  # else somebody has tied the chain into a ring


def all_of(cluster: Cluster, job: str, *, namespace: str | None = None) -> list[Json]:
    """The metadata of all parts of a job, the first one first; none for a job that never went on in a second one."""
    if not names.is_label(job):  # nor may it say more than a name where it selects
        return []
    try:
        found = cluster.list_all(WORKFLOW, namespace=namespace, labels=f"{keys.CHAIN}={job}", metadata_only=True)
    except UnauthorizedError:  # whoever may read one Workflow need not be allowed to list them
        return []
    return sorted(found, key=chain.part)


def may_go_on(workflow: Json) -> bool:
    """The job may go on in another Workflow at any moment: the allocator does that, with preemptible ones alone."""
    labels = workflow["metadata"].get("labels") or {}
    return labels.get(keys.SCHEDULING) == "gang" and labels.get(keys.PREEMPTIBLE) == "true"

"""Reads many Workflows, and of gangs that wait for their first admission only the metadata.

A Workflow has 10 kB and more, and the API server's serialisation takes most of the time of a long list. Nobody but its
user changes a gang that waits, and what changes is in its metadata: the DIJob, the allocator's decision, and the
replicas that were requested since (`keys.REQUESTED`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from diflow.common import keys
from diflow.common.errors import NotFoundError, UnauthorizedError
from diflow.kube.kinds import WORKFLOW
from diflow.record.waiting import has_places, is_waiting

if TYPE_CHECKING:
    from diflow.kube.api import Cluster

Object = dict[str, Any]
Result = TypeVar("Result")

_WAITS: Final = f"{keys.ADMITTED}=false"
_OTHERS: Final = f"{keys.ADMITTED}!=false"
_FEW: Final = 50
"""The most Workflows that are read one by one."""


def list_heads(cluster: Cluster, *, labels: str, **where: Any) -> list[Object]:
    """The metadata of the Workflows with these labels that wait for their first admission."""
    return cluster.list_all(WORKFLOW, labels=f"{labels},{_WAITS}", metadata_only=True, **where)


def each(
    cluster: Cluster,
    *,
    of_head: Callable[[Object], Result],
    of_workflow: Callable[[Object], Result],
    labels: str,
    namespace: str | None = None,
    everywhere: bool = False,
    heads: Sequence[Object] | None = None,
    read: Sequence[Object] = (),
) -> list[Result]:
    """What these functions make of the Workflows with these labels: `of_head` from the metadata of a gang that waits,
    `of_workflow` from all others.

    What somebody wrote into the parameters of such a gang by hand is not seen before its admission, nor is the number
    of replicas of a place that it lost before. `heads`: the
    metadata of all, if it was just read; `read`: Workflows that were just read as a whole.
    """
    where: dict[str, Any] = {"namespace": namespace, "everywhere": everywhere}
    # In this order, a gang that is admitted between the requests is in one of them.
    if heads is None:
        heads = list_heads(cluster, labels=labels, **where)
    heads = [head for head in heads if is_waiting(head)]
    full = cluster.list_all(WORKFLOW, labels=f"{labels},{_OTHERS}", **where)
    full += _placed(cluster, heads, labels)
    known = {workflow["metadata"].get("uid") for workflow in full}
    whole = {workflow["metadata"].get("uid"): workflow for workflow in read}
    waits = ((head["metadata"].get("uid"), head) for head in heads)
    found = [of_workflow(whole[uid]) if uid in whole else of_head(head) for uid, head in waits if uid not in known]
    return [*found, *map(of_workflow, full)]


def _placed(cluster: Cluster, heads: Sequence[Object], labels: str) -> list[Object]:
    """The Workflows of the gangs that have places: these wait for other pods to end, or somebody resumed them (`argo
    resume`), so that they have pods without an admission.

    Of a user who may list Workflows but not get one, few such gangs are read from their metadata: everybody can write
    this annotation, and it must not make the list fail.
    """
    placed = [head["metadata"] for head in heads if has_places(head)]
    if len(placed) > _FEW:  # only their namespaces are read as a whole
        namespaces = sorted({str(metadata.get("namespace") or "") for metadata in placed})
        return [
            workflow
            for namespace in namespaces
            for workflow in cluster.list_all(WORKFLOW, labels=f"{labels},{_WAITS}", namespace=namespace)
        ]
    out = []
    for metadata in placed:
        with suppress(NotFoundError, UnauthorizedError):
            workflow = cluster.get(WORKFLOW, metadata["name"], namespace=metadata.get("namespace"))
            if workflow["metadata"].get("uid") == metadata.get("uid"):
                out.append(workflow)
    return out

"""Reads many Workflows, and of gangs that wait for their first admission only the metadata.

A Workflow has 10 kB and more, and the API server's serialisation takes most of the time of a long list. Nobody but its
user changes a gang that waits, and what changes is in its metadata: the DIJob, the allocator's decision, and the
replicas that were requested since (`keys.REQUESTED`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from diflow import keys
from diflow.kube.kinds import WORKFLOW
from diflow.kube.refusals import GoneError
from diflow.state import untrusted
from diflow.state.waiting import from_metadata

if TYPE_CHECKING:
    from diflow.kube.api import Cluster

Object = dict[str, Any]
Result = TypeVar("Result")

_WAITS: Final = f"{keys.ADMITTED}=false"
_OTHERS: Final = f"{keys.ADMITTED}!=false"


def workflows(
    cluster: Cluster,
    *,
    labels: str,
    namespace: str | None = None,
    everywhere: bool = False,
    heads: Sequence[Object] | None = None,
    read: Sequence[Object] = (),
) -> list[Object]:
    """All Workflows with these labels; those of gangs that wait have no templates, and a status without nodes.

    What somebody wrote into the parameters of such a gang by hand is not seen before its admission. `heads`: the
    metadata of all, if it was just read; `read`: Workflows that were just read as a whole.
    """
    where: dict[str, Any] = {"namespace": namespace, "everywhere": everywhere}
    return parsed(cluster, lambda workflow: workflow, labels=labels, heads=heads, read=read, **where)


def parsed(
    cluster: Cluster,
    parse: Callable[[Object], Result],
    *,
    labels: str,
    namespace: str | None = None,
    everywhere: bool = False,
    heads: Sequence[Object] | None = None,
    read: Sequence[Object] = (),
) -> list[Result]:
    """As `workflows`, each one parsed: a page of a long list is parsed while the next one is fetched."""
    where: dict[str, Any] = {"namespace": namespace, "everywhere": everywhere}
    whole = {workflow["metadata"].get("uid"): workflow for workflow in read}
    waits: dict[Any, Result] = {}
    resumed: set[str] = set()
    # In this order, a gang that is admitted between the requests is in one of them.
    for head in _heads(cluster, labels=f"{labels},{_WAITS}", **where) if heads is None else heads:
        if untrusted.sub(head, "metadata", "labels").get(keys.ADMITTED) != "false":
            continue
        uid = head["metadata"].get("uid")
        waits[uid] = parse(whole.get(uid) or from_metadata(head))
        if keys.ALLOCATION in untrusted.sub(head, "metadata", "annotations"):
            resumed.add(str(head["metadata"].get("namespace") or ""))
    full = cluster.list_all(WORKFLOW, labels=f"{labels},{_OTHERS}", **where)
    # Somebody resumed these (`argo resume`), so they have pods without an admission. Only their namespaces are read as
    # a whole: everybody can write this annotation.
    for name in sorted(resumed):
        full += cluster.list_all(WORKFLOW, labels=f"{labels},{_WAITS}", namespace=name)
    known = {workflow["metadata"].get("uid") for workflow in full}
    return [*(found for uid, found in waits.items() if uid not in known), *map(parse, full)]


def _heads(cluster: Cluster, **selection: Any) -> Iterator[Object]:
    """The metadata of Workflows, page by page; some of them twice if the list had to be read once more."""
    try:
        for page, _ in cluster.list_pages(WORKFLOW, metadata_only=True, **selection):
            yield from page
    except GoneError:
        yield from cluster.list_all(WORKFLOW, metadata_only=True, **selection)

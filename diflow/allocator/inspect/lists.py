"""Lists the objects of a cluster in the background.

Half of the time of a command on a large cluster is the import of what the allocator is made of, the other half are
lists, for most of which the API server is at work: a command begins the lists, then it imports the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from diflow.allocator.watch.selectors import LIVE, MANAGED
from diflow.common import keys
from diflow.jobs import waiting
from diflow.kube.ahead import Ahead
from diflow.kube.kinds import NODE, POD

if TYPE_CHECKING:
    from diflow.kube.api import Cluster

Objects = list[dict[str, Any]]
JOBS: Final = f"{MANAGED},{keys.NOT_COMPLETED}"
"""Label selector: the Workflows under the allocator that have not ended."""


@dataclass(frozen=True, slots=True)
class Lists:
    """All nodes, the pods that hold resources, and the metadata of the gangs that wait for their first admission."""

    nodes: Ahead[Objects]
    pods: Ahead[Objects]
    waiting: Ahead[Objects]


def begin(cluster: Cluster) -> Lists:
    """Begin to read the lists. Their errors are raised where they are used."""
    return Lists(
        waiting=Ahead(waiting.list_heads, cluster, labels=JOBS, everywhere=True),
        pods=Ahead(cluster.list_all, POD, everywhere=True, fields=LIVE),
        nodes=Ahead(cluster.list_all, NODE, everywhere=True),
    )

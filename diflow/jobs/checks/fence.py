"""The fence: the API server refuses the writes of a former leader.

The writes of a leader name its term in the Lease as their field manager (`Elector.writes_as`). The
ValidatingAdmissionPolicy in manifests/allocator/fence.yaml compares that with the Lease, and so refuses a write that
was sent before another process took over and arrives afterwards. Writes with other field managers are not compared.
Epoch 0 is before the first leader: a write with it is refused wherever the policy is in force.
"""

from __future__ import annotations

from typing import Final

from diflow.jobs.checks import probing
from diflow.kube.api import Cluster

MESSAGE: Final = "this write is of an allocator that does not hold the Lease any more"
"""In the policy: by this text its refusals are recognised."""


def is_refused(cluster: Cluster, manager: str, *, namespace: str) -> bool:
    """Whether the policy refuses writes with this field manager. Without a Lease it refuses none.

    Raises the errors of requests that are refused for another reason.
    """
    return probing.is_refused(cluster, "diflow-fence-probe", message=MESSAGE, namespace=namespace, manager=manager)

"""The fence: the API server refuses the writes of a former leader.

The writes of a leader name its term in the Lease as their field manager (`Elector.writes_as`). The
ValidatingAdmissionPolicy in manifests/allocator/fence.yaml compares that with the Lease, and so refuses a write that
was sent before another process took over and arrives afterwards. Writes with other field managers are not compared.
Epoch 0 is before the first leader: a write with it is refused wherever the policy is in force.
"""

from __future__ import annotations

from typing import Any, Final

from diflow.common import keys
from diflow.common.errors import ConflictError, InvalidError
from diflow.kube.api import Cluster
from diflow.kube.kinds import WORKFLOW

MESSAGE: Final = "this write is of an allocator that does not hold the Lease any more"
"""In the policy: by this text its refusals are recognised."""

# Not stored. It has the label of a job, as the policy looks at no other objects, and a template, as an invalid Workflow
# may be refused before any policy is asked.
_PROBE: Final[dict[str, Any]] = {
    "apiVersion": f"{WORKFLOW.group}/{WORKFLOW.version}",
    "kind": WORKFLOW.name,
    "metadata": {"name": "diflow-fence-probe", "labels": {keys.MANAGED_BY: keys.MANAGED_BY_VALUE}},
    "spec": {"entrypoint": "none", "suspend": True, "templates": [{"name": "none", "suspend": {}}]},
}


def is_refused(cluster: Cluster, manager: str, *, namespace: str) -> bool:
    """Whether the policy refuses writes with this field manager, by a dry run that creates a Workflow. Without a Lease
    it refuses none.

    Raises the errors of requests that are refused for another reason.
    """
    try:
        cluster.create(WORKFLOW, _PROBE, namespace=namespace, dry_run=True, manager=manager)
    except ConflictError:  # there is a Workflow of that name: the policy was asked before
        return False
    except InvalidError as error:
        if MESSAGE in str(error):
            return True
        raise
    return False

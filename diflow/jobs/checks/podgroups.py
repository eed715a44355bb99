"""Whether kube-scheduler binds the pods of gangs all together or not at all: by the policy in manifests/podgroups."""

from __future__ import annotations

from typing import Any, Final

from diflow.common import keys
from diflow.kube.api import Cluster
from diflow.kube.kinds import POD, POD_GROUP
from diflow.record import untrusted
from diflow.workflows.pods import CONFINED

# As a pod of a gang looks to the policy, and as a restricted namespace allows it.
_CONFINED: Final = {
    **CONFINED,
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
_PROBE: Final[dict[str, Any]] = {
    "metadata": {
        "name": "diflow-podgroups-probe",
        "labels": {keys.ARGO_WORKFLOW: "diflow-podgroups-probe", keys.OPERATOR: keys.OPERATOR_VALUE},
        "annotations": {keys.NODE: ""},
    },
    "spec": {
        "schedulingGates": [{"name": keys.GATE}],
        "containers": [
            {
                "name": "main",
                "image": "probe",
                "resources": {"limits": {"cpu": "1m", "memory": "1Mi"}},
                "securityContext": _CONFINED,
            }
        ],
    },
}


def are_served(cluster: Cluster) -> bool:
    """Whether the API server has the kind PodGroup."""
    return cluster.serves(POD_GROUP)


def are_used(cluster: Cluster, *, namespace: str) -> bool:
    """Whether a pod of a gang that is made in this namespace gets into a PodGroup. It is a dry run: nothing is stored.

    Raises the errors of a request that is refused.
    """
    made = cluster.create(POD, _PROBE, namespace=namespace, dry_run=True)
    return bool(untrusted.sub(made, "spec").get("schedulingGroup"))

"""Whether the rules for namespaces hold where objects are made: the policy in manifests/admission.

The policy refuses an object of one name wherever it is in force, as the fence refuses one epoch (`fence.py`).
"""

from __future__ import annotations

from typing import Final

from diflow.jobs.checks import probing
from diflow.kube.api import Cluster

MESSAGE: Final = "the rules of queues.yaml are in force"
"""In the policy: by this text its refusal is recognised."""


def are_in_force(cluster: Cluster, *, namespace: str) -> bool:
    """Whether the policy judges what is made in this namespace.

    Raises the errors of requests that are refused for another reason.
    """
    return probing.is_refused(cluster, "diflow-rules-probe", message=MESSAGE, namespace=namespace)

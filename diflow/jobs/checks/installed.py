"""Whether a cluster runs DIJob objects: the kind, the controller, and operators of DI-orchestrator."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from diflow.common import keys
from diflow.jobs.dijobs import DIJOB
from diflow.kube.kinds import CRD, DEPLOYMENT
from diflow.record import untrusted

if TYPE_CHECKING:
    from diflow.kube.api import Cluster

_OURS: Final = ("app.kubernetes.io/part-of", "diflow")
# The images of its releases: .../di-orchestrator:v1.1.3 and .../di-operator:v0.2.0.
_OPERATOR: Final = re.compile(r"(^|/)di-(orchestrator|operator)(?=[:@]|$)")
_OTHERS_COMMAND: Final = "server"


@dataclass(frozen=True, slots=True)
class Installed:
    """`kind`: whether the kind DIJob is served, and `is_ours`: by diflow's CRD. `controller`: its ready pods and all
    pods; None if it is not installed as a Deployment. `operators`: Deployments ("namespace/name") that would act on
    the same objects."""

    kind: bool
    is_ours: bool
    controller: tuple[int, int] | None
    operators: tuple[str, ...]


def kind_of(cluster: Cluster) -> tuple[bool, bool]:
    """(whether the kind DIJob is installed, whether by diflow)."""
    crd = cluster.find(CRD, f"{DIJOB.plural}.{DIJOB.group}")
    if crd is None:
        return False, False
    versions = [v for v in crd["spec"]["versions"] if v.get("name") == DIJOB.version and v.get("served")]
    labels = crd["metadata"].get("labels") or {}
    return True, bool(versions) and labels.get(_OURS[0]) == _OURS[1]


def look(cluster: Cluster) -> Installed:
    """Read all of it. Raises UnauthorizedError if the user may not."""
    kind, is_ours = kind_of(cluster)
    controller: tuple[int, int] | None = None
    operators: list[str] = []
    for deployment in cluster.list_all(DEPLOYMENT, everywhere=True):
        metadata, status = deployment["metadata"], deployment.get("status") or {}
        if metadata["name"] == keys.CONTROLLER:
            controller = int(status.get("readyReplicas") or 0), int(status.get("replicas") or 0)
        elif any(_is_operator(container) for container in _containers(deployment)):
            operators.append(f"{metadata.get('namespace')}/{metadata['name']}")
    return Installed(kind, is_ours, controller, tuple(operators))


def _containers(deployment: dict[str, Any]) -> list[dict[str, Any]]:
    spec = untrusted.sub(deployment, "spec", "template", "spec")
    return [dict(one) for one in untrusted.mappings(spec.get("containers"))]


def _is_operator(container: dict[str, Any]) -> bool:
    """Whether it is the operator: the same image also has its server, which changes no objects."""
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    return _OPERATOR.search(str(container.get("image") or "")) is not None and _OTHERS_COMMAND not in words

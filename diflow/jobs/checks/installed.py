"""Whether a cluster runs DIJob objects: the kind, the controller, and operators of DI-orchestrator."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from diflow.common import keys
from diflow.jobs.checks.deployments import Container, Deployed
from diflow.jobs.dijobs import DIJOB
from diflow.kube.kinds import CRD, DEPLOYMENT
from diflow.record import untrusted

if TYPE_CHECKING:
    from diflow.kube.api import Cluster

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
    return True, bool(versions) and untrusted.label(crd, "app.kubernetes.io/part-of") == "diflow"


def look(cluster: Cluster) -> Installed:
    """Read all of it. Raises UnauthorizedError if the user may not."""
    kind, is_ours = kind_of(cluster)
    controller: tuple[int, int] | None = None
    operators: list[str] = []
    for deployment in map(Deployed.of, cluster.list_all(DEPLOYMENT, everywhere=True)):
        if deployment.name == keys.CONTROLLER:
            controller = deployment.pods
        elif any(_is_operator(container) for container in deployment.containers):
            operators.append(f"{deployment.namespace}/{deployment.name}")
    return Installed(kind, is_ours, controller, tuple(operators))


def _is_operator(container: Container) -> bool:
    """Whether it is the operator: the same image also has its server, which changes no objects."""
    return _OPERATOR.search(container.image) is not None and _OTHERS_COMMAND not in container.words

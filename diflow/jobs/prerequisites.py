"""Checks the prerequisites of diflow's jobs in a cluster: Argo Workflows, service accounts, priority classes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from diflow import keys
from diflow.errors import NotFoundError, UnauthorizedError, UnavailableError
from diflow.kube.kinds import DEPLOYMENT, NAMESPACE, PRIORITY_CLASS, SERVICE_ACCOUNT

if TYPE_CHECKING:
    from diflow.kube.api import Cluster

OLDEST: Final = (3, 7, 0)
_CONTROLLER: Final = "workflow-controller"


def controller_version(cluster: Cluster) -> tuple[int, int, int] | None:
    """The version of Argo's workflow controller, from its image; None if unknown.

    Raises UnauthorizedError if the user may not read Deployments.
    """
    for deployment in cluster.list_all(DEPLOYMENT, everywhere=True, fields=f"metadata.name={_CONTROLLER}"):
        containers = deployment["spec"]["template"]["spec"]["containers"]
        for container in containers:
            version = image_version(container.get("image") or "")
            if version is not None:
                return version
    return None


def image_version(image: str) -> tuple[int, int, int] | None:
    """The version in an image's tag: `quay.io/argoproj/workflow-controller:v3.7.3` is (3, 7, 3)."""
    match = re.search(r":v?(\d+)\.(\d+)\.(\d+)", image)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def is_too_old(version: tuple[int, int, int]) -> str:
    """The message for an Argo that is too old, or ""."""
    if version >= OLDEST:
        return ""
    needed = f"{OLDEST[0]}.{OLDEST[1]}"
    return f"Argo Workflows {version_text(version)} is too old: {needed} or newer is needed"


def version_text(version: tuple[int, int, int]) -> str:
    """(3, 7, 3) as 3.7.3."""
    return ".".join(str(part) for part in version)


def check_ready(cluster: Cluster, *, namespace: str, priority: str) -> None:
    """Check that a job can run in the namespace. Objects that the user may not read are assumed to exist.

    Raises UnavailableError that names what is missing, NotFoundError if it is the namespace.
    """
    for account in (keys.WORKER_ACCOUNT, keys.STEPS_ACCOUNT):
        if _is_missing(cluster, "account", account, namespace):
            if _is_missing(cluster, "namespace", namespace, namespace):
                raise NotFoundError(f"there is no namespace {namespace!r}: check -n, or create it")
            raise UnavailableError(
                f"the service account {account} is missing in the namespace {namespace!r}: apply diflow's manifests "
                f"there (kubectl apply -n {namespace} -k manifests/)"
            )
    wanted = keys.PRIORITY_CLASSES[priority]
    if _is_missing(cluster, "priority", wanted, namespace):
        raise UnavailableError(
            f"the PriorityClass {wanted} is missing: apply diflow's manifests (kubectl apply -k manifests/)"
        )
    try:
        version = controller_version(cluster)
    except UnauthorizedError:
        return
    if version is not None and (problem := is_too_old(version)):
        raise UnavailableError(problem)


def _is_missing(cluster: Cluster, what: str, name: str, namespace: str) -> bool:
    try:
        if what == "account":
            cluster.get(SERVICE_ACCOUNT, name, namespace=namespace)
        elif what == "namespace":
            cluster.get(NAMESPACE, name)
        else:
            cluster.get(PRIORITY_CLASS, name)
    except UnauthorizedError:
        return False
    except NotFoundError:
        return True
    return False

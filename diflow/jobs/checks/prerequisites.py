"""Checks the prerequisites of diflow's jobs in a cluster: Argo Workflows, service accounts, priority classes."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final

from diflow.common import keys, names
from diflow.common.errors import ConflictError, NoNamespaceError, NotFoundError, UnauthorizedError, UnavailableError
from diflow.kube.kinds import DEPLOYMENT, NAMESPACE, PRIORITY_CLASS, SERVICE, SERVICE_ACCOUNT, WORKFLOW
from diflow.record.job import record_of

if TYPE_CHECKING:
    from diflow.dijob.model import DIJob
    from diflow.kube.api import Cluster

OLDEST: Final = (3, 7, 0)
_CONTROLLER: Final = "workflow-controller"
SERVICE_REMEDY: Final = "kubectl apply -n {} -k manifests/jobs"


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

    Raises UnavailableError that names what is missing, NoNamespaceError if it is the namespace.
    """
    for account in (keys.WORKER_ACCOUNT, keys.STEPS_ACCOUNT):
        if cluster.lacks(SERVICE_ACCOUNT, account, namespace=namespace):
            if cluster.lacks(NAMESPACE, namespace):
                raise NoNamespaceError(f"there is no namespace {namespace!r}: check -n, or create it")
            raise UnavailableError(
                f"the service account {account} is missing in the namespace {namespace!r}: "
                f"{SERVICE_REMEDY.format(namespace)}"
            )
    with contextlib.suppress(UnauthorizedError):
        if problem := service_problem(cluster, namespace):
            raise UnavailableError(f"{problem}: {SERVICE_REMEDY.format(namespace)}")
    wanted = keys.PRIORITY_CLASSES[priority]
    if cluster.lacks(PRIORITY_CLASS, wanted):
        raise UnavailableError(f"the PriorityClass {wanted} is missing: kubectl apply -k manifests/cluster")
    try:
        version = controller_version(cluster)
    except UnauthorizedError:
        return
    if version is not None and (problem := is_too_old(version)):
        raise UnavailableError(problem)


def service_problem(cluster: Cluster, namespace: str) -> str:
    """What is wrong with the Service that resolves the host names of a namespace's jobs; "" if nothing is. Raises
    UnauthorizedError if the user may not read it."""
    try:
        spec = cluster.get(SERVICE, keys.SERVICE, namespace=namespace).get("spec") or {}
    except NotFoundError:
        return f"the Service {keys.SERVICE}, by which replicas find each other, is missing in {namespace!r}"
    if spec.get("clusterIP") != "None" or spec.get("selector") != {keys.OPERATOR: keys.OPERATOR_VALUE}:
        return f"the Service {keys.SERVICE} in {namespace!r} is another one than that of diflow's manifests"
    if spec.get("publishNotReadyAddresses") is not True:
        return f"the Service {keys.SERVICE} in {namespace!r} does not publish the addresses of pods that start"
    return ""


def check_host_names(cluster: Cluster, job: DIJob, *, namespace: str) -> None:
    """Check that no other job of the namespace has a replica of the same host name, as `a` with a task `b-c` and `a-b`
    with a task `c` would have. Raises ConflictError."""
    others: dict[str, dict[str, str]] = {}
    for task in job.tasks:
        parts = f"{job.name}-{task.name}".split("-")
        for i in range(1, len(parts)):
            others.setdefault("-".join(parts[:i]), {})["-".join(parts[i:])] = task.name
    others.pop(job.name)
    for other, tasks in others.items():
        try:
            found = cluster.find(WORKFLOW, other, namespace=namespace)
        except UnauthorizedError:
            return  # the user may create Workflows, and not read them
        state = record_of(found) if found is not None else None
        if state is None or not state.terms.is_job or state.has_ended:
            continue
        for its in state.spec.tasks:
            if its.name in tasks:
                name = tasks[its.name]
                raise ConflictError(
                    f"the job {other} has a task {its.name}, whose replicas would have the same host names as the task "
                    f"{name} of this job ({names.hostname(job.name, name, 0)}): give the job another name"
                )

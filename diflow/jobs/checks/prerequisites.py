"""Checks the prerequisites of diflow's jobs in a cluster: Argo Workflows, service accounts, priority classes."""

from __future__ import annotations

import contextlib
import math
import re
from typing import TYPE_CHECKING, Final

from diflow.common import keys, names
from diflow.common.clock import Clock
from diflow.common.errors import (
    ConflictError,
    DiflowError,
    NoNamespaceError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
)
from diflow.jobs.checks import argo_settings
from diflow.kube.kinds import LOCAL_ACCESS_REVIEW, NAMESPACE, PRIORITY_CLASS, SERVICE, SERVICE_ACCOUNT, WORKFLOW
from diflow.record import untrusted
from diflow.record.job import record_of

if TYPE_CHECKING:
    from diflow.dijob.model import DIJob
    from diflow.kube.api import Cluster

OLDEST: Final = (3, 7, 0)
_RESULTS: Final = "workflowtaskresults.argoproj.io"
SERVICE_REMEDY: Final = "kubectl apply -n {} -k manifests/jobs"
_KEEP_SECONDS: Final = 10.0
_MOST_KEPT: Final = 10_000


def controller_version(cluster: Cluster) -> tuple[int, int, int] | None:
    """The version of Argo's workflow controller, from its image; None if unknown.

    Raises UnauthorizedError if the user may not read Deployments.
    """
    containers = (container for found in argo_settings.controllers(cluster) for container in found.containers)
    return next(filter(None, (image_version(container.image) for container in containers)), None)


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


def check_named(cluster: Cluster, job: DIJob, *, namespace: str) -> None:
    """Check the service accounts and the priority classes that the templates of a job name. What the user may not read,
    or ask about, is assumed to be in order.

    Raises UnavailableError: they may be made, or get the rights, at any time.
    """
    own = keys.PRIORITY_CLASSES[job.priority]
    seen: set[tuple[str, str]] = set()
    for i, task in enumerate(job.tasks):
        spec, path = task.template["spec"], f"spec.tasks[{i}].template.spec"
        account, named = spec.get("serviceAccountName") or spec.get("serviceAccount"), spec.get("priorityClassName")
        if named and named != own and ("class", named) not in seen:
            seen.add(("class", named))
            if cluster.lacks(PRIORITY_CLASS, named):
                raise UnavailableError(
                    f"{path}.priorityClassName: there is no PriorityClass {named}, so Kubernetes would refuse the "
                    "pods: create it, or leave the field out"
                )
        if account and account != keys.WORKER_ACCOUNT and ("account", account) not in seen:
            seen.add(("account", account))
            _check_account(cluster, account, path=f"{path}.serviceAccountName", namespace=namespace)


def _check_account(cluster: Cluster, account: str, *, path: str, namespace: str) -> None:
    if cluster.lacks(SERVICE_ACCOUNT, account, namespace=namespace):
        raise UnavailableError(
            f"{path}: there is no service account {account} in the namespace {namespace!r}, so Kubernetes would refuse "
            "the pods: create it, or leave the field out"
        )
    for verb in ("create", "patch"):
        if lacks_right(cluster, account, verb, namespace=namespace):
            raise UnavailableError(
                f"{path}: the service account {account} has no right to {verb} {_RESULTS}, by which Argo learns how a "
                f"pod has ended: each pod would end as an error. Bind it to a Role with that right in {namespace!r} "
                "(as manifests/jobs does for diflow-worker), or leave the field out"
            )


def lacks_right(cluster: Cluster, account: str, verb: str, *, namespace: str) -> bool:
    """Whether a service account has no right on Argo's task results; False if the user may not ask that."""
    resource, _, group = _RESULTS.partition(".")
    attributes = {"namespace": namespace, "verb": verb, "group": group, "resource": resource}
    subject = {"user": f"system:serviceaccount:{namespace}:{account}", "groups": _groups(namespace)}
    review = {
        "apiVersion": LOCAL_ACCESS_REVIEW.api_version,
        "kind": LOCAL_ACCESS_REVIEW.name,
        "metadata": {"namespace": namespace},
        "spec": {**subject, "resourceAttributes": attributes},
    }
    try:
        found = cluster.create(LOCAL_ACCESS_REVIEW, review, namespace=namespace)
    except UnauthorizedError:
        return False
    return untrusted.sub(found, "status").get("allowed") is False


def _groups(namespace: str) -> list[str]:
    """Those of the service accounts of a namespace, which Kubernetes adds."""
    return ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]


class Prerequisites:
    """What `check_ready` has found, or found missing, by namespace and priority: kept for some seconds, for jobs that
    are applied together."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[tuple[str, str], tuple[float, DiflowError | None]] = {}

    def check(self, cluster: Cluster, *, namespace: str, priority: str) -> None:
        """As `check_ready`, whose five requests are half of those of a job."""
        key = (namespace, priority)
        when, missing = self._known.get(key, (-math.inf, None))
        if when + _KEEP_SECONDS <= self._clock.monotonic():
            missing = None
            try:
                check_ready(cluster, namespace=namespace, priority=priority)
            except (NotFoundError, UnavailableError) as error:
                missing = error
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            self._known[key] = self._clock.monotonic(), missing
        if missing is not None:
            raise missing


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

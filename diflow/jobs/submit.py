"""Submits a job: all checks, then its Workflow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from diflow.common import keys, limits
from diflow.common.errors import ConflictError, InvalidError, UnauthorizedError, UnavailableError
from diflow.jobs import earlier_pods, parts
from diflow.jobs.checks import prerequisites
from diflow.jobs.checks.connecting import connect
from diflow.kube.api import Cluster
from diflow.kube.kinds import CONFIG_MAP, WORKFLOW
from diflow.record import untrusted

if TYPE_CHECKING:
    from diflow.dijob.model import DIJob

TTL: Final = "ttlSecondsAfterFinished"
"""The field of a job, and the key of the allocator's public ConfigMap with its default."""

AnyJob = TypeVar("AnyJob", bound="DIJob")


class CheckReady(Protocol):
    """As `prerequisites.check_ready`."""

    def __call__(self, cluster: Cluster, *, namespace: str, priority: str) -> None:
        """Raises UnavailableError that names what is missing."""


class CheckPods(Protocol):
    """As `earlier_pods.check`."""

    def __call__(self, cluster: Cluster, name: str, *, namespace: str) -> None:
        """Raises ConflictError that names pods."""


def submit(
    job: AnyJob,
    *,
    cluster: Cluster | None = None,
    dry_run: bool = False,
    owner: Mapping[str, Any] | None = None,
    before_create: Callable[[], object] = lambda: None,
    check_ready: CheckReady = prerequisites.check_ready,
    check_pods: CheckPods = earlier_pods.wait,
    rendering: Callable[[DIJob], dict[str, Any]] | None = None,
) -> AnyJob:
    """Create the job's Workflow. Returns the job with its namespace and scheduling set.

    A job without `scheduling` is left to the allocator if the cluster has one. One without
    `ttl_seconds_after_finished` has that of the cluster.

    Everything is checked before an object is created: the prerequisites (accounts, priority class, Argo), the Workflow,
    by a dry run of the API server, and that no pods of an earlier Workflow of this name are left. So a rejected job
    leaves nothing behind. `dry_run` stops there.

    `owner`: the owner reference of the Workflow of a DIJob object. `before_create` is called immediately before the
    Workflow is created. `check_ready` checks the prerequisites. `check_pods` looks for the pods of an earlier Workflow,
    by default for a minute until they are gone. `rendering` makes the Workflow, by default that of a v2alpha1 job.

    Raises ConflictError if the name is taken, or pods of an earlier Workflow stay.
    """
    from diflow.workflows import render  # noqa: PLC0415 (Hera takes half a second to import)

    cluster = cluster or connect()
    namespace = job.namespace or cluster.namespace
    announced = _announced(cluster)
    placed = job.model_copy(update={"namespace": namespace, **_defaults(job, announced)})
    for path, given in (("spec.topology", placed.topology), ("spec.nodeCheck", placed.node_check)):
        if given is not None and placed.scheduling != "gang":
            raise InvalidError("requires the allocator, which is not installed in this cluster", path=path)
    check_ready(cluster, namespace=namespace, priority=job.priority)
    prerequisites.check_host_names(cluster, job, namespace=namespace)
    if left := parts.all_of(cluster, job.name, namespace=namespace):  # of an earlier job whose first part was deleted
        raise _taken(job.name, left[-1]["metadata"]["name"], namespace)
    body = (rendering or render)(placed)
    if placed.scheduling == announced.get("scheduling") == "gang":
        # The allocator decides first, often at once; Argo then starts the job without a wait.
        body["metadata"]["labels"][keys.INSTANCE] = keys.INSTANCE_VALUE
    if owner is not None:
        body["metadata"]["ownerReferences"] = [dict(owner)]
    _create(cluster, body, namespace=namespace, dry_run=True)
    check_pods(cluster, job.name, namespace=namespace)
    if not dry_run:
        before_create()
        _create(cluster, body, namespace=namespace, dry_run=False)
    return placed


def default_ttl(cluster: Cluster) -> int | None:
    """How many seconds the cluster keeps ended jobs that do not say it; None if it keeps them, or says nothing valid.

    Raises UnavailableError if that cannot be read.
    """
    announced = _announced(cluster)
    try:
        return _ttl_in(announced)
    except UnavailableError:
        return None


def _announced(cluster: Cluster) -> dict[str, Any]:
    """What the allocator publishes in a ConfigMap that all users may read."""
    try:
        found = cluster.find(CONFIG_MAP, keys.ALLOCATOR, namespace=keys.PUBLIC_NAMESPACE)
    except UnauthorizedError:
        found = None
    return (found or {}).get("data") or {}


def _defaults(job: DIJob, said: dict[str, Any]) -> dict[str, Any]:
    """`scheduling` and `ttl_seconds_after_finished`, by default as the allocator says."""
    scheduling = job.scheduling or ("gang" if said.get("scheduling") == "gang" else None)
    seconds = job.ttl_seconds_after_finished
    if seconds is None:
        seconds = _ttl_in(said)
    return {"scheduling": scheduling, "ttl_seconds_after_finished": seconds}


def _ttl_in(said: Mapping[str, Any]) -> int | None:
    """The default in the ConfigMap's data. Raises UnavailableError if it is invalid."""
    if not said.get(TTL):
        return None
    seconds = untrusted.whole(said[TTL], digits=10)
    if seconds is None or not limits.LEAST_TTL_SECONDS <= seconds <= limits.MOST_TTL_SECONDS:
        raise UnavailableError(
            f"the ConfigMap {keys.PUBLIC_NAMESPACE}/{keys.ALLOCATOR} has {TTL}: {str(said[TTL])[:40]!r}, which is "
            f"no whole number from {limits.LEAST_TTL_SECONDS} to {limits.MOST_TTL_SECONDS}: tell the "
            f"administrator, or set spec.{TTL}"
        )
    return seconds


def _create(cluster: Cluster, body: dict[str, Any], *, namespace: str, dry_run: bool) -> None:
    try:
        cluster.create(WORKFLOW, body, namespace=namespace, dry_run=dry_run)
    except ConflictError:
        name = body["metadata"]["name"]
        raise _taken(name, name, namespace) from None


def _taken(name: str, workflow: str, namespace: str) -> ConflictError:
    return ConflictError(
        f"there is a Workflow {workflow} in the namespace {namespace!r} already: give the job another name (--name), "
        f"or remove the old one first (diflow delete {name} -n {namespace})"
    )

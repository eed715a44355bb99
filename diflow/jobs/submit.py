"""Submits a job: all checks, then its Workflow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from diflow.common import keys, limits
from diflow.common.errors import ConflictError, InvalidError, UnauthorizedError, UnavailableError
from diflow.common.jsontext import canonical_json
from diflow.jobs import earlier_pods, parts
from diflow.jobs.checks import prerequisites, templates
from diflow.jobs.checks.connecting import connect
from diflow.jobs.checks.queues import check_queue
from diflow.kube.api import Cluster
from diflow.kube.kinds import CONFIG_MAP, WORKFLOW
from diflow.record import patches, untrusted

if TYPE_CHECKING:
    from diflow.dijob.model import DIJob

TTL: Final = "ttlSecondsAfterFinished"
"""The field of a job, and the key of the allocator's public ConfigMap with its default."""

AnyJob = TypeVar("AnyJob", bound="DIJob")


class CheckReady(Protocol):
    """As `prerequisites.check_ready`."""

    def __call__(self, cluster: Cluster, *, namespace: str, priority: str) -> None:
        """Raises UnavailableError that names what is missing."""


class CheckTemplates(Protocol):
    """As `templates.check`."""

    def __call__(self, cluster: Cluster, job: DIJob, *, namespace: str) -> None:
        """Raises InvalidError with a path in the job."""


class CheckPods(Protocol):
    """As `earlier_pods.check`."""

    def __call__(self, cluster: Cluster, name: str, *, namespace: str) -> None:
        """Raises ConflictError that names pods."""


@dataclass(frozen=True, slots=True)
class Checks:
    """What is checked besides the Workflow: the queue, the prerequisites, the pod templates, and that no pods of an
    earlier Workflow are left, for which it waits up to a minute by default. `accepted`: who submits a job again gives
    what it got here, a digest of what the API server has accepted last, and it is asked about nothing else. `refusals`:
    what admission would refuse of its pods now, of which users are told (`admission.refusals`)."""

    queue: Callable[..., None] = check_queue
    ready: CheckReady = prerequisites.check_ready
    templates: CheckTemplates = templates.check
    pods: CheckPods = earlier_pods.wait
    accepted: set[bytes] = field(default_factory=set)
    refusals: Callable[..., Iterable[str]] = lambda *_, **__: ()


def submit(
    job: AnyJob,
    *,
    cluster: Cluster | None = None,
    dry_run: bool = False,
    owner: Mapping[str, Any] | None = None,
    before_create: Callable[[], object] = lambda: None,
    checks: Checks | None = None,
    rendering: Callable[[DIJob], dict[str, Any]] | None = None,
    on_note: Callable[[str], object] = lambda _: None,
) -> AnyJob:
    """Create the job's Workflow. Returns the job with its namespace and scheduling set.

    A job without `scheduling` is left to the allocator if the cluster has one. One without
    `ttl_seconds_after_finished` has that of the cluster.

    Everything is checked before an object is created: the prerequisites (accounts, priority class, Argo), the pod
    templates and the Workflow, by dry runs of the API server, and that no pods of an earlier Workflow of this name are
    left. So a rejected job leaves nothing behind. `dry_run` stops there.

    `owner`: the owner reference of the Workflow of a DIJob object. `before_create` is called immediately before the
    Workflow is created. `rendering` makes the Workflow, by default that of a v2alpha1 job. `on_note` is told of what is
    no error, and may be a mistake.

    Raises ConflictError if the name is taken, or pods of an earlier Workflow stay.
    """
    from diflow.workflows import render  # noqa: PLC0415 (Hera takes half a second to import)

    cluster, checks = cluster or connect(), checks or Checks()
    namespace = job.namespace or cluster.namespace
    announced = _announced(cluster)
    placed = job.model_copy(update={"namespace": namespace, **_defaults(job, announced)})
    limited = {f"spec.tasks[{i}].activeDeadlineSeconds": t.active_deadline_seconds for i, t in enumerate(placed.tasks)}
    for path, given in {"spec.topology": placed.topology, "spec.nodeCheck": placed.node_check, **limited}.items():
        if given is not None and placed.scheduling != "gang":
            raise InvalidError("requires the allocator, which is not installed in this cluster", path=path)
    _check_queue(placed, cluster, announced, check=checks.queue, on_note=on_note)
    checks.ready(cluster, namespace=namespace, priority=job.priority)
    prerequisites.check_named(cluster, job, namespace=namespace)
    prerequisites.check_host_names(cluster, job, namespace=namespace)
    if left := parts.all_of(cluster, job.name, namespace=namespace):  # of an earlier job whose first part was deleted
        raise _taken(job.name, left[-1]["metadata"]["name"], namespace)
    body = (rendering or render)(placed)
    if placed.scheduling == announced.get("scheduling") == "gang" and not placed.suspend:
        # The allocator decides first, often at once; Argo then starts the job without a wait.
        body = patches.hidden(body)
    if owner is not None:
        body["metadata"]["ownerReferences"] = [dict(owner)]
    _ask(cluster, placed, body, namespace=namespace, checks=checks)
    for text in checks.refusals(cluster, body, [task.name for task in placed.tasks], namespace=namespace):
        on_note(f"job {job.name} would wait: {text}" if placed.scheduling == "gang" else f"job {job.name}: {text}")
    checks.pods(cluster, job.name, namespace=namespace)
    if not dry_run:
        before_create()
        _create(cluster, body, namespace=namespace, dry_run=False)
    return placed


def _ask(cluster: Cluster, job: DIJob, body: Mapping[str, Any], *, namespace: str, checks: Checks) -> None:
    """Let the API server check the pod templates and the Workflow, by dry runs, unless it has accepted these."""
    digest = blake2b(canonical_json(body).encode(), digest_size=16).digest()
    if digest in checks.accepted:
        return
    checks.accepted.clear()
    checks.templates(cluster, job, namespace=namespace)
    _create(cluster, body, namespace=namespace, dry_run=True)
    checks.accepted.add(digest)


def check_queue_of(job: DIJob, *, cluster: Cluster, on_note: Callable[[str], object]) -> None:
    """Check the queue and the priority of a job as `submit` does. Raises InvalidError."""
    announced = _announced(cluster)
    namespace = job.namespace or cluster.namespace
    placed = job.model_copy(update={"namespace": namespace, **_defaults(job, announced)})
    _check_queue(placed, cluster, announced, check=check_queue, on_note=on_note)


def _check_queue(
    job: DIJob,
    cluster: Cluster,
    announced: Mapping[str, Any],
    *,
    check: Callable[..., None],
    on_note: Callable[[str], object],
) -> None:
    home = announced.get("namespace")
    if job.scheduling == "gang" and home:
        check(
            cluster,
            job.queue,
            namespace=job.namespace,
            priority=job.priority,
            is_preemptible=job.preemptible,
            home=home,
            config=announced.get("queues") or keys.QUEUES,
            on_note=on_note,
        )


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


def _create(cluster: Cluster, body: Mapping[str, Any], *, namespace: str, dry_run: bool) -> None:
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

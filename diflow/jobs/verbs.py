"""The operations on a job: submit, get, list, wait, stop, retry, delete.

Each function works on a `Cluster` (by default that of the kubeconfig) and on the job's Workflow, which holds all of its
state. Errors are those of `diflow.errors`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from diflow import keys
from diflow.errors import ConflictError, JobFailedError, NotFoundError, UnauthorizedError
from diflow.jobs import parts, prerequisites
from diflow.jobs.follow import follow, selector
from diflow.jobs.retry import retried
from diflow.kube.api import Cluster
from diflow.kube.kinds import CONFIG_MAP, EVENT, POD, WORKFLOW
from diflow.state import chain, status
from diflow.state.parameters import JobState, manifest

if TYPE_CHECKING:
    from diflow.job import DIJob, Scheduling
    from diflow.state.status import JobStatus

AnyJob = TypeVar("AnyJob", bound="DIJob")

LATEST: Final = "@latest"
_MANAGED: Final = f"{keys.MANAGED_BY}={keys.MANAGED_BY_VALUE}"
_NOT_COMPLETED: Final = "workflows.argoproj.io/completed!=true"
_MANY: Final = 200
_PODS_GONE_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.2
_TRIES: Final = 6


@dataclass(frozen=True, slots=True)
class Job:
    """A job in a cluster: its Workflow, its pods (none if not requested) and its status."""

    workflow: dict[str, Any]
    pods: tuple[dict[str, Any], ...]
    status: JobStatus

    @property
    def name(self) -> str:
        """The job's name: the name of its first Workflow."""
        return chain.job_name(self.workflow)

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return str(self.workflow["metadata"].get("namespace") or "")

    @property
    def created(self) -> str:
        """When it was submitted (RFC 3339)."""
        return chain.submitted(self.workflow)

    @property
    def dijob(self) -> dict[str, Any]:
        """The manifest as submitted, without its unreadable parts: its owner may have edited it since."""
        return manifest(self.workflow)

    @property
    def round(self) -> str:
        """The current round ("1", "2" ...); "" if the parameters are unreadable."""
        state = JobState.parse(self.workflow)
        return "" if state.problem else state.current


def submit(job: AnyJob, *, cluster: Cluster | None = None, dry_run: bool = False) -> AnyJob:
    """Create the job's Workflow. Returns the job with its namespace and scheduling set.

    A job without `scheduling` is left to the allocator if the cluster has one.

    Everything is checked before an object is created: the prerequisites (accounts, priority class, Argo), and the
    Workflow, by a dry run of the API server. So a rejected job leaves nothing behind. `dry_run` stops there.

    Raises ConflictError if the name is taken.
    """
    from diflow.workflows import render  # noqa: PLC0415 (Hera takes half a second to import)

    cluster = cluster or Cluster.connect()
    namespace = job.namespace or cluster.namespace
    scheduling = job.scheduling or _scheduling(cluster)
    placed = job.model_copy(update={"namespace": namespace, "scheduling": scheduling})
    body = render(placed)
    prerequisites.check_ready(cluster, namespace=namespace, priority=job.priority)
    _create(cluster, body, namespace=namespace, dry_run=True)
    if left := parts.all_of(cluster, job.name, namespace=namespace):  # of an earlier job whose first part was deleted
        raise _taken(job.name, left[-1]["metadata"]["name"], namespace)
    if not dry_run:
        _create(cluster, body, namespace=namespace, dry_run=False)
    return placed


def _scheduling(cluster: Cluster) -> Scheduling | None:
    """The default scheduling, which the allocator publishes in a ConfigMap that all users may read."""
    try:
        found = cluster.find(CONFIG_MAP, keys.ALLOCATOR, namespace=keys.PUBLIC_NAMESPACE)
    except UnauthorizedError:
        return None
    return "gang" if found is not None and (found.get("data") or {}).get("scheduling") == "gang" else None


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


def get(name: str, *, namespace: str | None = None, cluster: Cluster | None = None) -> Job:
    """One job with its pods. Raises NotFoundError, also for a Workflow that is not diflow's."""
    cluster = cluster or Cluster.connect()
    workflow = _workflow(name, namespace=namespace, cluster=cluster)
    try:
        pods = tuple(cluster.list_all(POD, namespace=namespace, labels=selector(workflow["metadata"]["name"])))
    except UnauthorizedError:
        pods = ()
    return Job(workflow, pods, status.derive(workflow, pods))


def _workflow(name: str, *, namespace: str | None, cluster: Cluster) -> dict[str, Any]:
    """The current Workflow of the job. Raises NotFoundError, also for one that is not diflow's."""
    where = namespace or cluster.namespace
    workflow = parts.newest(cluster, name, namespace=namespace)
    if workflow is None:
        raise parts.absent(name, where)
    if not status.is_job(workflow):
        raise NotFoundError(f"the Workflow {name} in the namespace {where!r} is not a diflow job: use `argo` for it")
    return workflow


def list_jobs(
    *,
    namespace: str | None = None,
    everywhere: bool = False,
    labels: str = "",
    brief: bool = False,
    cluster: Cluster | None = None,
) -> list[Job]:
    """All jobs of the namespace, or `everywhere`, the newest first. Pods are not read.

    `brief`: of many ended jobs, only the metadata is read (see `status.derive_ended`). A Workflow has about 80 kB, and
    the API server's serialisation takes most of the time of a long list.
    """
    cluster = cluster or Cluster.connect()
    chosen = f"{_MANAGED},{labels}" if labels else _MANAGED
    where: dict[str, Any] = {"namespace": namespace, "everywhere": everywhere}
    ended: list[Job] = []
    if brief:
        heads = cluster.list_all(WORKFLOW, labels=chosen, metadata_only=True, **where)
        if len(heads) > _MANY:
            derived = ((head, status.derive_ended(head)) for head in heads)
            ended = [Job(head, (), found) for head, found in derived if found is not None]
            chosen = f"{chosen},{_NOT_COMPLETED}"
    workflows = cluster.list_all(WORKFLOW, labels=chosen, **where)
    known = {workflow["metadata"]["uid"] for workflow in workflows}
    ended = [job for job in ended if job.workflow["metadata"]["uid"] not in known]
    present = {w["metadata"]["uid"] for w in chain.newest([*workflows, *(job.workflow for job in ended)])}
    jobs = [Job(w, (), status.derive(w)) for w in workflows if w["metadata"]["uid"] in present]
    jobs += [job for job in ended if job.workflow["metadata"]["uid"] in present]
    return sorted(jobs, key=lambda job: _created(job.workflow), reverse=True)


def names(*, namespace: str | None = None, cluster: Cluster | None = None) -> list[str]:
    """The names of all jobs in the namespace, the newest first."""
    cluster = cluster or Cluster.connect()
    found = cluster.list_all(WORKFLOW, namespace=namespace, labels=_MANAGED, metadata_only=True)
    newest = sorted(chain.newest(found), key=_created, reverse=True)
    return list(dict.fromkeys(chain.job_name(workflow) for workflow in newest))


def latest(*, namespace: str | None = None, cluster: Cluster | None = None) -> str:
    """The name of the newest job in the namespace. Raises NotFoundError if there is none."""
    cluster = cluster or Cluster.connect()
    found = names(namespace=namespace, cluster=cluster)
    if not found:
        raise NotFoundError(f"there is no job in the namespace {namespace or cluster.namespace!r} yet")
    return found[0]


def events(name: str, *, namespace: str | None = None, cluster: Cluster | None = None) -> list[dict[str, Any]]:
    """The events of the job's Workflow and pods, the oldest first; none if the user may not list them."""
    cluster = cluster or Cluster.connect()
    try:
        found = cluster.list_all(EVENT, namespace=namespace)
    except UnauthorizedError:
        return []
    workflows = _names(name, namespace=namespace, cluster=cluster)
    about = [e for e in found if any(_is_about(e.get("involvedObject") or {}, each) for each in workflows)]
    return sorted(about, key=event_time)


def allocator_events(
    name: str, *, namespace: str | None = None, cluster: Cluster | None = None
) -> list[dict[str, Any]] | None:
    """The allocator's events about the job, the oldest first; None if the user may not list events."""
    cluster = cluster or Cluster.connect()
    workflows = _names(name, namespace=namespace, cluster=cluster)
    about = f"involvedObject.name={name}," if workflows == {name} else ""
    try:
        found = cluster.list_all(EVENT, namespace=namespace, fields=f"{about}involvedObject.kind={WORKFLOW.name}")
    except UnauthorizedError:
        return None
    found = [event for event in found if (event.get("involvedObject") or {}).get("name") in workflows]
    return sorted((event for event in found if is_allocators(event)), key=event_time)


def is_allocators(event: dict[str, Any]) -> bool:
    """Whether the allocator wrote this event."""
    component = (event.get("source") or {}).get("component") or event.get("reportingComponent")
    return bool(component == keys.ALLOCATOR)


def event_time(event: dict[str, Any]) -> str:
    """When an event last happened."""
    series = event.get("series") or {}
    time = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return str(time or event["metadata"].get("creationTimestamp") or "")


def _names(job: str, *, namespace: str | None, cluster: Cluster) -> set[str]:
    """The names of the job's Workflows."""
    return {job, *(part["metadata"]["name"] for part in parts.all_of(cluster, job, namespace=namespace))}


def _is_about(thing: dict[str, Any], name: str) -> bool:
    kind, about = thing.get("kind"), thing.get("name") or ""
    return (kind == WORKFLOW.name and about == name) or (kind == POD.name and about.startswith(f"{name}-"))


def _created(workflow: chain.Object) -> tuple[str, str]:
    return (chain.submitted(workflow), chain.job_name(workflow))


def wait(
    name: str,
    *,
    namespace: str | None = None,
    timeout_seconds: float | None = None,
    cluster: Cluster | None = None,
    until: Callable[[JobStatus], bool] | None = None,
) -> JobStatus:
    """Wait until the job has ended, or until the condition `until` is met, and return its status.

    Raises JobFailedError if the job failed (unless `until` waits for that), TimeoutError after `timeout_seconds`,
    NotFoundError if the job is deleted.
    """
    cluster = cluster or Cluster.connect()
    _workflow(name, namespace=namespace, cluster=cluster)
    seen: JobStatus | None = None
    for snapshot in follow(cluster, name, namespace=namespace, seconds=timeout_seconds):
        if snapshot.workflow is None:
            raise NotFoundError(f"job {name} was deleted before it had ended")
        if snapshot.trouble:
            continue
        seen = status.derive(snapshot.workflow, snapshot.pods)
        if until is not None and until(seen):
            return seen
        if seen.phase == "Failed":
            raise JobFailedError(f"job {name} failed: {seen.message}")
        if seen.ended:
            return seen
    phase = seen.phase if seen else "Unknown"
    message = f": {seen.message}" if seen and seen.message else ""
    raise TimeoutError(f"job {name} is still {phase} after {timeout_seconds:g} s{message}")


def delete(name: str, *, namespace: str | None = None, cluster: Cluster | None = None) -> bool:
    """Delete the job's Workflows; Kubernetes then removes its pods and its Service. Returns whether it existed.

    All parts of the job are deleted. Raises NotFoundError if the Workflow of that name is not diflow's.
    """
    cluster = cluster or Cluster.connect()
    workflow = cluster.find(WORKFLOW, name, namespace=namespace)
    if workflow is not None and not status.is_job(workflow):
        raise NotFoundError(f"the Workflow {name} is not a diflow job: use `argo delete` for it")
    job = chain.job_name(workflow) if workflow is not None else name
    gone = workflow is not None and cluster.delete(WORKFLOW, job, namespace=namespace)
    # Parts that the allocator has created until now; it does not continue a deleted Workflow.
    left = parts.all_of(cluster, job, namespace=namespace) if workflow is None or parts.may_go_on(workflow) else []
    for part in left:
        gone = cluster.delete(WORKFLOW, part["metadata"]["name"], namespace=namespace) or gone
    return gone


def wait_deleted(
    name: str, *, namespace: str | None = None, timeout_seconds: float | None = None, cluster: Cluster | None = None
) -> None:
    """Wait until there is no such job. Raises TimeoutError after `timeout_seconds`."""
    cluster = cluster or Cluster.connect()
    try:
        for snapshot in follow(cluster, name, namespace=namespace, seconds=timeout_seconds):
            if snapshot.workflow is None:
                return
    except NotFoundError:
        return
    raise TimeoutError(f"job {name} is still there after {timeout_seconds:g} s")


def suspend(name: str, *, namespace: str | None = None, cluster: Cluster | None = None) -> None:
    """Let Argo start no more pods of the job; running pods continue. Raises ConflictError if it has ended."""
    _change(name, {"suspend": True}, namespace=namespace, cluster=cluster)


def resume(name: str, *, namespace: str | None = None, cluster: Cluster | None = None) -> bool:
    """Undo `suspend`. Returns whether the job was suspended. Raises ConflictError if it has ended."""
    return bool(_change(name, {"suspend": None}, namespace=namespace, cluster=cluster).get("suspend"))


def stop(name: str, *, namespace: str | None = None, cluster: Cluster | None = None, at_once: bool = False) -> None:
    """Stop the job: its pods get SIGTERM and their grace period. `at_once` does what `argo terminate` does.

    Its Service remains for a retry and is deleted with the Workflow.

    Raises ConflictError if it has ended.
    """
    _change(name, {"shutdown": "Terminate" if at_once else "Stop"}, namespace=namespace, cluster=cluster)


def _change(name: str, spec: dict[str, Any], *, namespace: str | None, cluster: Cluster | None) -> dict[str, Any]:
    """Change a job's spec. Returns the previous one."""
    cluster = cluster or Cluster.connect()
    attempt = 0
    while True:
        attempt += 1
        workflow = _workflow(name, namespace=namespace, cluster=cluster)
        now = status.derive(workflow)
        if now.ended:
            raise ConflictError(f"job {name} has ended already ({now.phase})")
        metadata = workflow["metadata"]
        change: dict[str, Any] = {"spec": spec}
        if parts.may_go_on(workflow):  # the change must not go to a Workflow that was superseded meanwhile
            change["metadata"] = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        try:
            cluster.patch(WORKFLOW, metadata["name"], change, namespace=namespace)
        except ConflictError:
            if attempt == _TRIES:
                raise
            time.sleep(_POLL_SECONDS * attempt)
        else:
            return workflow.get("spec") or {}


def retry(
    name: str,
    *,
    namespace: str | None = None,
    cluster: Cluster | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> None:
    """Run the failed replicas of a failed job again, with their full backoffLimit. Succeeded ones are kept.

    Raises ConflictError if the job has not failed, or is changed meanwhile.
    """
    cluster = cluster or Cluster.connect()
    workflow = _workflow(name, namespace=namespace, cluster=cluster)
    name = workflow["metadata"]["name"]
    new, forgotten = retried(workflow, now=now().strftime("%Y-%m-%dT%H:%M:%SZ"))
    pods = [pod for pod in cluster.list_all(POD, namespace=namespace, labels=selector(name)) if _node(pod) in forgotten]
    for pod in pods:
        cluster.delete(POD, pod["metadata"]["name"], namespace=namespace)
    _wait_gone(cluster, name, forgotten, namespace=namespace)
    cluster.replace(WORKFLOW, name, new, namespace=namespace)


def _wait_gone(cluster: Cluster, name: str, forgotten: set[str], *, namespace: str | None) -> None:
    """Wait for the deletion of the old pods, as the new ones have the same names."""
    deadline = time.monotonic() + _PODS_GONE_SECONDS
    while any(_node(pod) in forgotten for pod in cluster.list_all(POD, namespace=namespace, labels=selector(name))):
        if time.monotonic() > deadline:
            raise ConflictError(f"old pods of job {name} are still being deleted: try again in a moment")
        time.sleep(_POLL_SECONDS)


def _node(pod: dict[str, Any]) -> str:
    return str((pod["metadata"].get("annotations") or {}).get("workflows.argoproj.io/node-id") or "")

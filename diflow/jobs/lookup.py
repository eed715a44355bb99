"""Reads jobs: one by its name, the list, and the newest.

The job's Workflow holds all of its state. The functions of `diflow.jobs` work on a `Cluster`, by default that of the
kubeconfig. Errors are those of `diflow.common.errors`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Self

from diflow.common import keys
from diflow.common.errors import NotFoundError, UnauthorizedError
from diflow.jobs import dijobs, parts, waiting
from diflow.jobs.checks.connecting import connect
from diflow.jobs.follow import selector
from diflow.kube.api import Cluster
from diflow.kube.kinds import POD, WORKFLOW
from diflow.record import chain
from diflow.record.dijob import DIJobRecord, runs_in
from diflow.record.job import JobRecord, record_of
from diflow.record.parameters import manifest
from diflow.record.status import status
from diflow.record.status.observe import observe_state
from diflow.record.waiting import from_metadata

if TYPE_CHECKING:
    from diflow.record.status.status import JobStatus

LATEST: Final = "@latest"
_MANY: Final = 200
_MOST_BY_NAME: Final = 20


@dataclass(frozen=True)
class Job:
    """A job in a cluster: its Workflow, its pods (none if not requested) and its status. `known`: its record, if it was
    made already."""

    workflow: dict[str, Any]
    pods: tuple[dict[str, Any], ...]
    status: JobStatus
    known: JobRecord | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, workflow: dict[str, Any], pods: tuple[dict[str, Any], ...] = ()) -> Self:
        """The job of a Workflow and of its pods, which are read once."""
        record = record_of(workflow)
        return cls(workflow, pods, status.derive_seen(observe_state(record, workflow, pods)), record)

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
        return self.record.round

    @cached_property
    def record(self) -> JobRecord:
        """What its Workflow says."""
        return self.known or record_of(self.workflow)


def get(name: str, *, namespace: str | None = None, cluster: Cluster | None = None) -> Job:
    """One job with its pods. Raises NotFoundError, also for a Workflow that is not diflow's.

    A DIJob object without a Workflow is a job, too: it waits for one, or has none any more.
    """
    cluster = cluster or connect()
    try:
        workflow = current_workflow(name, namespace=namespace, cluster=cluster)
    except NotFoundError:
        obj = dijobs.find(cluster, name, namespace=namespace)
        if obj is None:
            raise
        return _without_workflow(obj)
    try:
        pods = tuple(cluster.list_all(POD, namespace=namespace, labels=selector(workflow["metadata"]["name"])))
    except UnauthorizedError:
        pods = ()
    return Job.of(workflow, pods)


def beside(job: Job, *, cluster: Cluster) -> Job | None:
    """The DIJob object that has the name of a job, and not its Workflow: it waits or has failed for that reason."""
    if runs_in(job.workflow)[1]:
        return None
    obj = dijobs.find(cluster, job.name, namespace=job.namespace or None)
    # The job may be the object itself, which has no Workflow.
    if obj is None or obj.identity.uid == job.workflow["metadata"].get("uid"):
        return None
    return _without_workflow(obj)


def current_workflow(name: str, *, namespace: str | None, cluster: Cluster) -> dict[str, Any]:
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
    everywhere: bool = False,
    labels: str = "",
    brief: bool = False,
    cluster: Cluster | None = None,
) -> list[Job]:
    """All jobs of the default namespace, or `everywhere`, the newest first. Pods are not read.

    `brief`: of many gangs that wait and many ended jobs, only the metadata is read (see `status.derive_waiting` and
    `status.derive_ended`). A Workflow that ran has about 80 kB, and the API server's serialisation takes most of the
    time of a long list.
    """
    cluster = cluster or connect()
    chosen = f"{keys.MANAGED},{labels}" if labels else keys.MANAGED
    where: dict[str, Any] = {"everywhere": everywhere}
    ended: list[Job] = []
    waits: dict[str, JobStatus] = {}
    heads = cluster.list_all(WORKFLOW, labels=chosen, metadata_only=True, **where) if brief else []
    if len(heads) > _MANY:
        derived = ((head, status.derive_ended(head)) for head in heads)
        ended = [Job(head, (), found) for head, found in derived if found is not None]
        over = {job.workflow["metadata"]["uid"] for job in ended}
        live = [head for head in heads if head["metadata"]["uid"] not in over]
        workflows, waits = _live_of_many(cluster, live, labels=chosen, where=where)
    else:
        workflows = cluster.list_all(WORKFLOW, labels=chosen, **where)
    known = {workflow["metadata"]["uid"] for workflow in workflows}
    ended = [job for job in ended if job.workflow["metadata"]["uid"] not in known]
    present = {w["metadata"]["uid"] for w in chain.newest([*workflows, *(job.workflow for job in ended)])}
    jobs = [
        Job(w, (), waits[uid]) if uid in waits else Job.of(w)
        for w in workflows
        if (uid := w["metadata"]["uid"]) in present
    ]
    jobs += [job for job in ended if job.workflow["metadata"]["uid"] in present]
    # A DIJob and a Workflow of its name that it does not own are two jobs: the DIJob has failed for that reason.
    owners = {runs_in(job.workflow)[1] for job in jobs}
    jobs += [
        _without_workflow(obj)
        for obj in dijobs.list_all(cluster, labels=labels, **where)
        if obj.identity.uid not in owners
    ]
    return sorted(jobs, key=lambda job: _created(job.workflow), reverse=True)


def _live_of_many(
    cluster: Cluster, heads: list[dict[str, Any]], *, labels: str, where: dict[str, Any]
) -> tuple[list[dict[str, Any]], dict[str, JobStatus]]:
    """The Workflows with this metadata; of gangs that wait, without a further request: with their status, by uid."""
    waits: dict[str, JobStatus] = {}

    def of_head(head: dict[str, Any]) -> dict[str, Any]:
        if (known := status.derive_waiting(head)) is not None:
            waits[head["metadata"]["uid"]] = known
        return from_metadata(head)

    workflows = waiting.each(
        cluster,
        of_head=of_head,
        of_workflow=lambda workflow: workflow,
        labels=f"{labels},{keys.NOT_COMPLETED}",
        heads=heads,
        **where,
    )
    # The others have ended since their metadata was read, or have labels of Argo that somebody changed.
    read = {workflow["metadata"]["uid"] for workflow in workflows}
    left = [head for head in heads if head["metadata"]["uid"] not in read]
    return workflows + _still_there(cluster, left, labels=labels), waits


def _still_there(cluster: Cluster, heads: list[dict[str, Any]], *, labels: str) -> list[dict[str, Any]]:
    """The Workflows with this metadata that still exist: a few of a namespace by their names, many in one list."""
    of_namespace: dict[str, dict[str, str]] = {}
    for metadata in (head["metadata"] for head in heads):
        of_namespace.setdefault(str(metadata.get("namespace") or ""), {})[metadata["uid"]] = metadata["name"]
    found: list[dict[str, Any]] = []
    for namespace, wanted in of_namespace.items():
        if len(wanted) > _MOST_BY_NAME:
            read = cluster.list_all(WORKFLOW, labels=labels, namespace=namespace)
        else:
            read = [w for name in wanted.values() if (w := cluster.find(WORKFLOW, name, namespace=namespace))]
        found += [workflow for workflow in read if workflow["metadata"]["uid"] in wanted]
    return found


def names(*, cluster: Cluster | None = None) -> list[str]:
    """The names of all jobs in the default namespace, the newest first."""
    cluster = cluster or connect()
    found = chain.newest(cluster.list_all(WORKFLOW, labels=keys.MANAGED, metadata_only=True))
    objects = dijobs.list_all(cluster, metadata_only=True)
    created = [*map(_created, found), *((obj.created, obj.identity.name) for obj in objects)]
    return list(dict.fromkeys(name for _, name in sorted(created, reverse=True)))


def latest(*, cluster: Cluster | None = None) -> str:
    """The name of the newest job in the default namespace. Raises NotFoundError if there is none."""
    cluster = cluster or connect()
    found = names(cluster=cluster)
    if not found:
        raise NotFoundError(f"there is no job in the namespace {cluster.namespace!r} yet")
    return found[0]


def _without_workflow(obj: DIJobRecord) -> Job:
    return Job(dijobs.as_workflow(obj), (), dijobs.status_of(obj))


def _created(workflow: chain.Object) -> tuple[str, str]:
    return (chain.submitted(workflow), chain.job_name(workflow))

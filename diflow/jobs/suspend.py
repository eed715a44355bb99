"""Suspends, resumes and stops a job: changes of the Workflow's spec, which Argo carries out.

A gang that waits for its admission is suspended, too. What its user has suspended has an annotation (`keys.HELD`), so
that the allocator does not admit it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from diflow.common.clock import SYSTEM, Clock
from diflow.common.errors import ConflictError, NotFoundError, UnauthorizedError
from diflow.jobs import changing
from diflow.jobs.checks.connecting import connect
from diflow.jobs.follow import selector
from diflow.kube.api import Cluster
from diflow.kube.kinds import POD
from diflow.record import overstay, patches
from diflow.record.job import JobRecord, record_of
from diflow.record.patches import STOP, TERMINATE
from diflow.record.pod import pod_record_of
from diflow.record.requests import resuming

Object = dict[str, Any]


def suspend(name: str, *, namespace: str | None = None, cluster: Cluster | None = None) -> None:
    """Let Argo start no more pods of the job; running pods continue. Raises ConflictError if it has ended."""
    _change(name, resuming.suspended, namespace=namespace, cluster=cluster)


def resume(name: str, *, namespace: str | None = None, cluster: Cluster | None = None, clock: Clock = SYSTEM) -> bool:
    """Undo `suspend`. Returns whether the job was suspended. Raises ConflictError if it has ended.

    A gang that was never admitted waits for its admission then.
    """
    return _change(
        name,
        lambda job: resuming.resumed(job, now=clock.wall()),
        namespace=namespace,
        cluster=cluster,
    ).wishes.is_suspended


@dataclass(frozen=True, slots=True)
class Stopped:
    """What a stop has done. `had_ended`: the job had ended before, and pods of it still ran. `late`: how many pods the
    kubelet stops if they run on after their grace period. `refused`: why it does not, "" if it does."""

    had_ended: bool = False
    late: int = 0
    refused: str = ""


def stop(
    name: str,
    *,
    namespace: str | None = None,
    cluster: Cluster | None = None,
    at_once: bool = False,
    clock: Clock = SYSTEM,
) -> Stopped:
    """Stop the job: its pods get SIGTERM and their grace period. `at_once` does what `argo terminate` does.

    The allocator ends the pods that ignore SIGTERM. Of a job that it does not place, and of one that has ended already,
    they get a deadline here (`diflow.record.overstay`).

    Raises ConflictError if the job has ended, and no pod of it still runs.
    """
    cluster = cluster or connect()
    how = TERMINATE if at_once else STOP
    job = _change(name, lambda _: patches.stop(how), namespace=namespace, cluster=cluster, may_have_ended=True)
    if job.terms.is_gang and not job.outcome:
        return Stopped()
    try:
        late = _limit_pods(cluster, job, clock)
    except UnauthorizedError as error:
        if job.outcome:
            raise
        return Stopped(refused=str(error))
    if job.outcome and not late:
        raise _has_ended(name, job)
    return Stopped(had_ended=bool(job.outcome), late=late)


def _limit_pods(cluster: Cluster, job: JobRecord, clock: Clock) -> int:
    """Let the pods of a job run no longer than their grace period from now. Returns how many that are."""
    where = job.identity.namespace or None
    pods = cluster.list_all(POD, namespace=where, labels=selector(job.identity.name))
    now, found = clock.wall() + (cluster.clock_skew_seconds() or 0.0), 0
    for pod in pods:
        record = pod_record_of(pod)
        if record.owner != job.identity.uid or record.place is None or not record.goes_on:
            continue
        found += 1
        patch = overstay.deadline(pod, overstay.patience_seconds(record), now=now)
        if patch is not None:
            with suppress(NotFoundError, ConflictError):
                cluster.patch(POD, record.name, patch, namespace=where)
    return found


def _has_ended(name: str, job: JobRecord) -> ConflictError:
    return ConflictError(f"job {name} has ended already ({job.outcome})")


def _change(
    name: str,
    change_of: Callable[[JobRecord], Object],
    *,
    namespace: str | None,
    cluster: Cluster | None,
    may_have_ended: bool = False,
) -> JobRecord:
    """Change a job's Workflow as `change_of` says, unless the job has ended. Returns its record before."""

    def decide(workflow: Object) -> tuple[JobRecord, Object | None]:
        job = record_of(workflow)
        if job.outcome:
            if may_have_ended:
                return job, None
            raise _has_ended(name, job)
        patch = change_of(job)
        if job.may_go_on or job.argo.was_never_admitted or job.argo.is_hidden:
            # The Workflow may be superseded meanwhile, or the job admitted.
            patch = job.identity.bind(patch)
        return job, patch

    return changing.change(name, decide, namespace=namespace, cluster=cluster)

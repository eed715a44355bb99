"""Requests another number of replicas for an existing job. Only the request is written; the allocator acts on it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from diflow.common.clock import SYSTEM, Clock
from diflow.common.errors import InvalidError
from diflow.common.limits import MOST_REPLICAS
from diflow.dijob.stored import StoredJob
from diflow.jobs import changing, dijobs
from diflow.jobs.checks.connecting import connect
from diflow.kube.api import Cluster
from diflow.record.dijob import runs_in
from diflow.record.job import JobRecord, record_of
from diflow.record.requests.changes import Draft, check_scalable, choose_task
from diflow.record.requests.ranges import Range


@dataclass(frozen=True, slots=True)
class Scaled:
    """The earlier and the new request for one task of a job.

    `outdated`: the tasks whose running replicas keep the DI_RANK that they started with, though their rank changes.
    All replicas of a preemptible job start again.
    """

    task: str
    before: Range
    after: Range
    outdated: tuple[str, ...] = ()


def scale(
    name: str,
    *,
    task: str | None = None,
    replicas: int | None = None,
    low: int | None = None,
    high: int | None = None,
    namespace: str | None = None,
    cluster: Cluster | None = None,
    clock: Clock = SYSTEM,
) -> Scaled:
    """Request `replicas`, or `low` to `high` of a preemptible job (the one not given stays as it is).

    Of a job that is a DIJob object, its spec is changed, which the controller carries out. The write has the
    resourceVersion that was read and is repeated on a conflict. Raises InvalidError for an invalid
    request, NotFoundError, and ConflictError if the job has ended or conflicts persist.
    """
    cluster = cluster or connect()

    def decide(workflow: dict[str, Any]) -> tuple[Scaled, changing.Change]:
        job = record_of(workflow)
        done, patch = _change(job, task=task, replicas=replicas, low=low, high=high)
        if patch is None:
            return done, None
        return done, _of_object(cluster, job, runs_in(workflow), done) or patch

    return changing.change(name, decide, namespace=namespace, cluster=cluster, clock=clock)


def _of_object(cluster: Cluster, job: JobRecord, object_of: tuple[str, str], done: Scaled) -> changing.Patch | None:
    """The change of the DIJob object, by its name and uid, whose job this is; None if there is none, or if its spec has
    these numbers already, and only the Workflow has others."""
    name, uid = object_of
    obj = dijobs.find(cluster, name, namespace=job.identity.namespace or None) if uid else None
    if obj is None or obj.identity.uid != uid:
        return None
    is_preemptible = job.terms.is_preemptible
    patch = dijobs.scaled(obj, done.task, low=done.after.low, high=done.after.high, is_preemptible=is_preemptible)
    return changing.Patch(dijobs.DIJOB, name, patch) if patch is not None else None


def _change(
    current: JobRecord, *, task: str | None, replicas: int | None, low: int | None, high: int | None
) -> tuple[Scaled, dict[str, Any] | None]:
    check_scalable(current)
    job, now = current.submitted, Draft.of(current)
    index = choose_task(job, task, now.bounds)
    before = now.range_of(index)
    if replicas is not None:
        _check_count(replicas, "--replicas")
        _check_submitted_bounds(job, index, replicas)
        new = now.with_number(index, replicas)
    else:
        new = _by_bounds(now, index, low, high)
        # The range that the server recorded for this task is obsolete once a user requests bounds.
        new = replace(new, notes=new.notes.without_range(before.task))
    after = new.range_of(index)
    if new == now:
        return Scaled(before.task, before, after), None
    new.check(index, path="--replicas" if replicas is not None else "--max")
    later = () if job.spec.is_preemptible else tuple(task.name for task in job.spec.tasks[index + 1 :])
    return Scaled(before.task, before, after, later), new.patch()


def _by_bounds(draft: Draft, index: int, low: int | None, high: int | None) -> Draft:
    job = draft.job.submitted
    if not job.spec.is_preemptible:
        raise InvalidError(
            f"job {job.name} is not preemptible: it has as many replicas as were asked for; use --replicas"
        )
    for number, option in ((low, "--min"), (high, "--max")):
        if number is not None:
            _check_count(number, option)
    now = draft.range_of(index)
    new_low, new_high = low if low is not None else now.low, high if high is not None else now.high
    if new_low > new_high:
        other = "" if low is not None and high is not None else f"; give {'--max' if high is None else '--min'}, too"
        raise InvalidError(f"the minimum {new_low} is above the maximum {new_high}{other}", path="--min")
    return draft.with_bounds(index, new_low, new_high)


def _check_submitted_bounds(job: StoredJob, index: int, replicas: int) -> None:
    """Of a job that is not preemptible, nothing else changes its bounds. Raises InvalidError."""
    task = job.spec.tasks[index]
    low, high = task.min_replicas, task.max_replicas
    if not job.spec.is_preemptible and not (low or 1) <= replicas <= (high or replicas):
        bounds = f"{low or 1} to {high}" if high else f"at least {low}"
        raise InvalidError(
            f"task {task.name} may have {bounds} replicas, by its minReplicas and maxReplicas", path="--replicas"
        )


def _check_count(number: int, option: str) -> None:
    if not 1 <= number <= MOST_REPLICAS:
        raise InvalidError(f"must be from 1 to {MOST_REPLICAS}, not {number}", path=option)

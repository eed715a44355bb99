"""Changes of the replicas that are requested of a job: which job may be scaled, what another number or other bounds of
a task mean, and the patch.

Shared by `diflow scale`, the controller and the server. All write only what users may write (the parameter `replicas`,
the annotation `diflow/bounds`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diflow.common import keys, names
from diflow.common.errors import ConflictError, InvalidError, NotFoundError
from diflow.common.jsontext import canonical_json
from diflow.common.limits import MOST_REPLICAS
from diflow.dijob.rules import ditask, hosts
from diflow.dijob.stored import StoredJob, StoredSpec, StoredTask
from diflow.record.job import JobRecord
from diflow.record.patches import live, merged
from diflow.record.requests.ranges import Bounds, asked, scales, submitted_range

Json = dict[str, Any]


def check_scalable(job: JobRecord) -> None:
    """Raises NotFoundError if the Workflow is not diflow's, ConflictError if it has ended, InvalidError if no allocator
    acts on it (`scheduling: none`) or if it is unreadable."""
    if not job.terms.is_job:
        raise NotFoundError(f"the Workflow {job.name} is not a diflow job")
    if job.has_ended:
        raise ConflictError(f"job {job.name} has ended already ({job.argo.phase}): nothing of it can be scaled")
    if not job.terms.is_gang:
        raise InvalidError(
            f"job {job.name} has scheduling: none, so Argo alone runs it and nothing acts on other numbers: submit it "
            "with scheduling: gang, for the allocator"
        )
    if job.problem:
        raise InvalidError(f"job {job.name} cannot be read: {job.problem}")


def with_number(
    job: StoredSpec, index: int, number: int, *, desired: Mapping[str, int], bounds: Bounds
) -> tuple[dict[str, int], Bounds]:
    """(desired, bounds) that request exactly `number` replicas of a task, or at most that for a preemptible job.

    Raises InvalidError if it is not a multiple of the task's unit."""
    task = job.tasks[index]
    _check_unit(task, number)
    new = {**desired, task.name: number}
    now = asked(job, index, desired=new, bounds=bounds)
    if now.high != number:
        # The submitted number is no maximum by itself, so the bounds set it.
        bounds = {**bounds, **all_ranges(job, bounds), task.name: (min(now.low, number), number)}
    return new, bounds


def with_bounds(
    job: StoredSpec, index: int, low: int, high: int, *, desired: Mapping[str, int], bounds: Bounds
) -> tuple[dict[str, int], Bounds]:
    """(desired, bounds) that request `low` to `high` replicas of a preemptible job's task.

    Raises InvalidError if they are not multiples of the task's unit."""
    task = job.tasks[index]
    for number in (low, high):
        _check_unit(task, number)
    # Any other number would limit the bounds; the submitted one does not.
    return {**desired, task.name: task.replicas}, {**all_ranges(job, bounds), task.name: (low, high)}


def _check_unit(task: StoredTask, number: int) -> None:
    if task.node_unit and number % task.node_unit:
        raise InvalidError(f"task {task.name}: {number:,} is not a multiple of its nodeUnit {task.node_unit}")


def all_ranges(job: StoredSpec, bounds: Bounds) -> dict[str, tuple[int, int]]:
    """The bounds of all tasks that scale now: once one task has bounds, the others need theirs to scale."""
    scaling = scales(job, bounds)
    ranges = {t.name: submitted_range(job, i, scaling=scaling) for i, t in enumerate(job.tasks)}
    return {**{name: pair for name, pair in ranges.items() if pair[0] < pair[1]}, **bounds}


def check_size(job: StoredJob, *, desired: Mapping[str, int], bounds: Bounds, namespace: str, path: str) -> None:
    """Raises InvalidError if the job would exceed a limit: its replicas, or the length of its host names."""
    spec, pods = job.spec, [task.pod for task in job.spec.tasks]
    most = [asked(spec, i, desired=desired, bounds=bounds).high for i in range(len(spec.tasks))]
    if sum(most) > MOST_REPLICAS:
        raise InvalidError(
            f"job {job.name} would have {sum(most):,} replicas in all, and at most {MOST_REPLICAS:,} are allowed",
            path=path,
        )
    try:
        hosts.check_hosts(
            job.name,
            namespace,
            [(task.name, number) for task, number in zip(spec.tasks, most, strict=True)],
            pods,
            short=hosts.are_short(sum(task.most for task in spec.tasks), pods),  # as its Workflow was made
            engine=ditask.of_annotations({} if job.ditask is None else {keys.DITASK: job.ditask}),
        )
    except InvalidError as error:
        raise InvalidError(error.message, path=path) from None


def choose_task(job: StoredJob, name: str | None, bounds: Bounds) -> int:
    """The index of the task to scale: the one named, the only one, or the only one that scales.

    Raises InvalidError that lists the tasks.
    """
    spec = job.spec
    known = [task.name for task in spec.tasks]
    if name is not None:
        if name not in known:
            raise InvalidError(f"job {job.name} has no task {name!r}; it has {', '.join(known)}", path="--task")
        return known.index(name)
    if len(known) == 1:
        return 0
    if spec.is_preemptible:
        ranges = [asked(spec, i, desired={}, bounds=bounds) for i in range(len(known))]
        scaling = [i for i, found in enumerate(ranges) if found.low < found.high]
        if len(scaling) == 1:
            return scaling[0]
    raise InvalidError(f"say which task of job {job.name}: {', '.join(known)}", path="--task")


def scaled(
    job: JobRecord, desired: Mapping[str, int], bounds: Bounds, *, annotations: Mapping[str, str] | None = None
) -> Json:
    """The merge patch that requests these instead. It is valid for this version of the Workflow only."""
    values = merged(job.texts.parameters, live(replicas=desired))
    change: Json = {
        "metadata": job.identity.this_version,
        "spec": {"arguments": {"parameters": values}},
    }
    noted = dict(annotations or {})
    if bounds != job.wishes.bounds:
        given = {task: {"min": pair[0], "max": pair[1]} for task, pair in bounds.items()}
        noted[keys.BOUNDS] = canonical_json(given)
    if job.argo.awaits_admission:
        noted[keys.REQUESTED] = canonical_json(dict(desired))
    if noted:
        change["metadata"]["annotations"] = noted
    return change


def check_hostnames(job: JobRecord, index: int, highest: int, *, path: str) -> None:
    """Raises InvalidError if the name of the last of `highest` replicas of this task would be too long."""
    names.check_hostname(job.identity.name, job.spec.tasks[index].name, highest, path=path)

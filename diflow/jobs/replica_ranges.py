"""The replica ranges of a job: as submitted, and as requested since.

A request is in the Workflow: the parameter `replicas` (a number for each task) and the annotation `diflow/bounds` (a
minimum and a maximum). A number other than the submitted one is the maximum of a preemptible job's task, and exactly
the number of another job's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diflow.common import keys
from diflow.common.errors import InvalidError
from diflow.common.limits import MOST_REPLICAS
from diflow.dijob.rules import ditask, hosts
from diflow.dijob.stored import StoredJob, StoredSpec, StoredTask

Bounds = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Asked:
    """The request for one task: `low`..`high` replicas, and the number `desired`."""

    task: str
    low: int
    high: int
    desired: int

    def text(self) -> str:
        """Such as `3` or `1 to 4`."""
        return str(self.high) if self.low == self.high else f"{self.low} to {self.high}"


def scales(job: StoredSpec, bounds: Bounds) -> bool:
    """Whether a task has a minimum or a maximum: then only tasks that have them scale."""
    return any(task.max_replicas or task.min_replicas for task in job.tasks) or bool(bounds)


def submitted_range(job: StoredSpec, index: int, *, scaling: bool) -> tuple[int, int]:
    """The range of a task as submitted. If no task has one, the last task scales from 1 replica."""
    task = job.tasks[index]
    if not job.is_preemptible:
        return task.replicas, task.replicas
    if scaling:
        return task.min_replicas or task.replicas, task.most
    return (task.node_unit or 1 if index == len(job.tasks) - 1 else task.replicas), task.replicas


def asked(job: StoredSpec, index: int, *, desired: Mapping[str, int], bounds: Bounds) -> Asked:
    """The present request for one task."""
    task = job.tasks[index]
    low, high = bounds.get(task.name) or submitted_range(job, index, scaling=scales(job, bounds))
    number = desired.get(task.name, task.replicas)
    if not job.is_preemptible:
        low = high = number
    elif number != task.replicas:  # a requested number is also the maximum
        low, high = min(low, number), number
    unit = task.node_unit or 1
    if unit > 1:  # a number in the Workflow may be none of its multiples
        high, number = max(unit, high - high % unit), max(unit, number - number % unit)
        low = min(high, -(-low // unit) * unit)
    return Asked(task.name, low, high, number)


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
    names = [task.name for task in spec.tasks]
    if name is not None:
        if name not in names:
            raise InvalidError(f"job {job.name} has no task {name!r}; it has {', '.join(names)}", path="--task")
        return names.index(name)
    if len(names) == 1:
        return 0
    if spec.is_preemptible:
        ranges = [asked(spec, i, desired={}, bounds=bounds) for i in range(len(names))]
        scaling = [i for i, found in enumerate(ranges) if found.low < found.high]
        if len(scaling) == 1:
            return scaling[0]
    raise InvalidError(f"say which task of job {job.name}: {', '.join(names)}", path="--task")


def elastic(tasks: Sequence[StoredTask], *, bounds: Mapping[str, tuple[int, int]]) -> str:
    """The elastic task: the first one whose minimum is below its maximum, else the last one.

    The policies resize the same task.
    """
    elastic_tasks = (task.name for task in tasks if _is_elastic(task, bounds))
    return next(elastic_tasks, tasks[-1].name if tasks else "")


def _is_elastic(task: StoredTask, bounds: Mapping[str, tuple[int, int]]) -> bool:
    low, high = bounds.get(task.name) or (task.min_replicas or task.replicas, task.most)
    return low < high

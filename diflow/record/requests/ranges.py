"""The replica ranges of a job: as submitted, and as requested since.

A request is in the Workflow: the parameter `replicas` (a number for each task) and the annotation `diflow/bounds` (a
minimum and a maximum). A number other than the submitted one is the maximum of a preemptible job's task, and exactly
the number of another job's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diflow.dijob.stored import StoredSpec, StoredTask

Bounds = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Range:
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


def asked(job: StoredSpec, index: int, *, desired: Mapping[str, int], bounds: Bounds) -> Range:
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
    return Range(task.name, low, high, number)


def elastic(tasks: Sequence[StoredTask], *, bounds: Mapping[str, tuple[int, int]]) -> str:
    """The elastic task: the first one whose minimum is below its maximum, else the last one.

    The policies resize the same task.
    """
    elastic_tasks = (task.name for task in tasks if is_elastic(task, bounds))
    return next(elastic_tasks, tasks[-1].name if tasks else "")


def is_elastic(task: StoredTask, bounds: Bounds) -> bool:
    """Whether the minimum of a task is below its maximum."""
    low, high = bounds.get(task.name) or (task.min_replicas or task.replicas, task.most)
    return low < high

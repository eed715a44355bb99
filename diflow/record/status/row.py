"""The row of a job: what `describe`, `list`, `queue`, `top`, `explain` and the status page show of it alike.

It is made in one place, from the record of the job and from its replicas that are on nodes, which the reader knows from
Argo's nodes or from its pods. A view adds what only it shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from diflow.common.words import DEFAULT_QUEUE
from diflow.record.job import JobRecord
from diflow.record.parameters import Decision
from diflow.record.stage import Stage, is_planned, is_queued

_NOT_READY: Final = (Stage.ENDED, Stage.DELETING)
"""Kubernetes deletes the pods of a job before the job, whatever they still report."""

Replicas = Mapping[tuple[str, int], bool]
"""The replicas that are on nodes now, by task and index; each with whether it is ready."""


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One task. Replicas: `low` to `high` may run, `desired` are asked for, `granted` have a place, `ready` are ready
    now."""

    name: str
    low: int
    high: int
    desired: int
    granted: int
    ready: int

    @property
    def range_text(self) -> str:
        """Such as `3` or `1-4`."""
        return _range_text(self.low, self.high)


@dataclass(frozen=True, slots=True)
class Count:
    """The replicas of a job, by task and in all: so many are `wanted` now, have been `granted` a place, and are
    `ready`, as Kubernetes has it.

    What is wanted of a job that cannot be read is not known. It keeps the replicas that are on nodes, so these are its
    granted ones.
    """

    tasks: tuple[TaskRow, ...] = ()
    wanted: int = 0
    granted: int = 0
    ready: int = 0


def on_nodes(pods: Iterable[tuple[str, int, bool]]) -> Replicas:
    """The replicas with these pods on nodes: (task, index, whether it is ready). It is, if one of its pods is."""
    found: dict[tuple[str, int], bool] = {}
    for task, index, is_ready in pods:
        found[task, index] = found.get((task, index), False) or is_ready
    return found


def count_of(record: JobRecord, stage: Stage, replicas: Replicas, *, has_places: bool) -> Count:
    """The one count of a job's replicas. `replicas`: of the current round; of a job that cannot be read, all."""
    ready = [place for place, is_ready in replicas.items() if is_ready and stage not in _NOT_READY]
    if record.problem:
        return Count((), len(replicas), len(replicas), len(ready))
    running = record.running
    by_task = Counter(task for task, index in ready if index < running.get(task, 0))
    tasks = []
    for i, task in enumerate(record.spec.tasks):
        asked, granted = record.range_of(i), running[task.name] if has_places else 0
        tasks.append(TaskRow(task.name, asked.low, asked.high, asked.desired, granted, by_task[task.name]))
    wanted = sum(running.values())
    return Count(tuple(tasks), wanted, wanted if has_places else 0, by_task.total())


@dataclass(frozen=True, slots=True)
class JobRow:
    """The row. `message`: the job's sentence. `decision`: the allocator's last one, if it decides about the job."""

    record: JobRecord
    stage: Stage
    message: str
    count: Count
    decision: Decision

    @classmethod
    def of(cls, record: JobRecord, stage: Stage, message: str, found: Count, **own: Any) -> Self:
        """The row of this job. `own`: what only the view shows."""
        said = record.notes.decision.change if is_planned(stage, has_places=found.granted > 0) else Decision()
        return cls(record=record, stage=stage, message=message, count=found, decision=said, **own)

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def namespace(self) -> str:
        return self.record.identity.namespace

    @property
    def key(self) -> str:
        """The job's "namespace/name", whichever Workflow it is in."""
        return f"{self.namespace}/{self.name}"

    @property
    def queue(self) -> str:
        return self.record.wishes.queue or DEFAULT_QUEUE

    @property
    def priority(self) -> str:
        return self.record.terms.priority

    @property
    def is_preemptible(self) -> bool:
        return self.record.terms.is_preemptible

    @property
    def submitted(self) -> float:
        """In seconds since 1970."""
        return self.record.submitted_seconds

    @property
    def tasks(self) -> tuple[TaskRow, ...]:
        return self.count.tasks

    @property
    def low(self) -> int:
        return sum(task.low for task in self.tasks)

    @property
    def high(self) -> int:
        return sum(task.high for task in self.tasks)

    @property
    def desired(self) -> int:
        return sum(task.desired for task in self.tasks)

    @property
    def granted(self) -> int:
        return self.count.granted

    @property
    def ready(self) -> int:
        return self.count.ready

    @property
    def range_text(self) -> str:
        """The replicas that are asked for, such as `3` or `1-4`; `-` if that could not be read."""
        return _range_text(self.low, self.high) if self.high else "-"

    @property
    def is_placed(self) -> bool:
        """It holds places on nodes."""
        return self.granted > 0

    @property
    def is_queued(self) -> bool:
        """It needs the allocator, and stands in the queue."""
        return self.record.is_gang and is_queued(self.stage, has_places=self.is_placed)


def placed_and_waiting(rows: Iterable[JobRow]) -> tuple[int, int]:
    """(how many of these jobs hold places, how many stand in the queue): no job does both."""
    found = list(rows)
    return sum(row.is_placed for row in found), sum(row.is_queued for row in found)


def _range_text(low: int, high: int) -> str:
    return str(high) if low == high else f"{low}-{high}"

"""Changes of the replicas that are requested of a job: which job may be scaled, what another number or other bounds of
a task mean, and the patch.

Shared by `diflow scale`, the controller and the server. All write only what users may write (the parameter `replicas`,
the annotation `diflow/bounds`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, Self

from diflow.common import keys, names
from diflow.common.errors import ConflictError, InvalidError, NotFoundError
from diflow.common.jsontext import canonical_json
from diflow.common.limits import MOST_REPLICAS
from diflow.dijob.rules import ditask, hosts
from diflow.dijob.stored import StoredJob, StoredTask
from diflow.record.job import JobRecord
from diflow.record.patches import live, merged
from diflow.record.requests.notes import Notes
from diflow.record.requests.ranges import Bounds, Range, asked, scales, submitted_range

Json = dict[str, Any]

NO_ANNOTATIONS: Final[Mapping[str, str]] = MappingProxyType({})


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


@dataclass(frozen=True, slots=True)
class Draft:
    """The requests of a job while they are changed: replicas and bounds by task, and the notes of the server."""

    job: JobRecord
    desired: Mapping[str, int]
    bounds: Bounds
    notes: Notes

    @classmethod
    def of(cls, job: JobRecord) -> Self:
        """Those that it has now."""
        return cls(job, job.wishes.desired, job.wishes.bounds, Notes.read(job.wishes.request(keys.REQUESTS)))

    def range_of(self, index: int) -> Range:
        """The request for one task."""
        return asked(self.job.spec, index, desired=self.desired, bounds=self.bounds)

    def with_number(self, index: int, number: int) -> Self:
        """Request exactly `number` replicas of a task, or at most that for a preemptible job.

        Raises InvalidError if it is not a multiple of the task's unit."""
        task = self.job.spec.tasks[index]
        _check_unit(task, number)
        new = replace(self, desired={**self.desired, task.name: number})
        now = new.range_of(index)
        if now.high == number:
            return new
        # The submitted number is no maximum by itself, so the bounds set it.
        return replace(new, bounds={**self._all_ranges(), task.name: (min(now.low, number), number)})

    def with_bounds(self, index: int, low: int, high: int) -> Self:
        """Request `low` to `high` replicas of a preemptible job's task.

        Raises InvalidError if they are not multiples of the task's unit."""
        task = self.job.spec.tasks[index]
        for number in (low, high):
            _check_unit(task, number)
        # Any other number would limit the bounds; the submitted one does not.
        desired = {**self.desired, task.name: task.replicas}
        return replace(self, desired=desired, bounds={**self._all_ranges(), task.name: (low, high)})

    def _all_ranges(self) -> dict[str, tuple[int, int]]:
        """The bounds of all tasks that scale now: once one task has bounds, the others need theirs to scale."""
        job = self.job.spec
        scaling = scales(job, self.bounds)
        ranges = {t.name: submitted_range(job, i, scaling=scaling) for i, t in enumerate(job.tasks)}
        return {**{name: pair for name, pair in ranges.items() if pair[0] < pair[1]}, **self.bounds}

    def check(self, index: int, *, path: str) -> None:
        """Raises InvalidError if the job would exceed a limit with these requests, of which that for one task is
        new."""
        here = self.job.identity
        check_size(self.job.submitted, desired=self.desired, bounds=self.bounds, namespace=here.namespace, path=path)
        # Of the Workflow in which the job is now.
        names.check_hostname(here.name, self.job.spec.tasks[index].name, self.range_of(index).high, path=path)

    def patch(self, annotations: Mapping[str, str] = NO_ANNOTATIONS) -> Json:
        """The merge patch that requests these. It is valid for this version of the Workflow only."""
        job, now = self.job, Draft.of(self.job)
        noted = dict(annotations)
        if self.bounds != now.bounds:
            given = {task: {"min": pair[0], "max": pair[1]} for task, pair in self.bounds.items()}
            noted[keys.BOUNDS] = canonical_json(given)
        if job.argo.awaits_admission:
            noted[keys.REQUESTED] = canonical_json(dict(self.desired))
        if self.notes != now.notes:
            noted[keys.REQUESTS] = self.notes.text()
        values = merged(job.texts.parameters, live(replicas=self.desired))
        return job.identity.bind(
            {**({"metadata": {"annotations": noted}} if noted else {}), "spec": {"arguments": {"parameters": values}}}
        )


def _check_unit(task: StoredTask, number: int) -> None:
    if task.node_unit and number % task.node_unit:
        raise InvalidError(f"task {task.name}: {number:,} is not a multiple of its nodeUnit {task.node_unit}")


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

"""The DIJob in the annotation `diflow/dijob` of a Workflow: the one reader of a stored job, with bounds in its types.

`diflow.dijob.model.DIJob` is what users write: it checks everything, and explains it. Here is what the readers of a
Workflow need of it, of a text that its owner may have edited since. What cannot be what diflow wrote makes the job
unreadable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, Any, Final, Literal, get_args

from msgspec import Meta, Raw, Struct, field
from msgspec.structs import force_setattr, replace

from diflow.common import keys, limits, names, quantities
from diflow.common.deadlines import Deadlines
from diflow.common.errors import InvalidError
from diflow.common.jsontext import NotOfTypeError, converter, reader, wrong
from diflow.common.memo import MIB, remembered
from diflow.dijob.conditions import host_ports, read_rules, read_where
from diflow.dijob.pods import PodSpec, Volume, read_template, work_container

TaskType = Literal["learner", "collector", "evaluator", "none"]
Priority = Literal["normal", "high"]
Scheduling = Literal["none", "gang"]
HealthAction = Literal["report", "restart"]
Action = Literal["Count", "Ignore", "FailJob", "Elsewhere", "MoreMemory"]
Operator = Literal["In", "NotIn"]

ACTIONS: Final[tuple[Action, ...]] = get_args(Action)
OPERATORS: Final[tuple[Operator, ...]] = get_args(Operator)
DISRUPTION: Final = "DisruptionTarget"
"""The one condition that is known: Kubernetes sets it when a pod is evicted, preempted or deleted with its node."""

_Count = Annotated[int, Meta(ge=1, le=limits.MOST_REPLICAS)]
_RunTime = Annotated[int, Meta(ge=1, le=limits.MOST_RUN_SECONDS)]
_Seconds = Annotated[int, Meta(ge=0, le=limits.MOST_HEALTH_SECONDS)]
_Label = Annotated[str, Meta(max_length=keys.LABEL_LIMIT, pattern=rf"^{names.LABEL_PATTERN}\Z")]
_TaskName = Annotated[str, Meta(max_length=keys.LABEL_LIMIT, pattern=rf"^({names.TASK_PATTERN})?\Z")]
_Quantity = Annotated[str, Meta(max_length=limits.LONGEST_QUANTITY)]
_Code = Annotated[int, Meta(ge=0, le=limits.MOST_CODE)]


class OnExitCodes(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A rule about the exit code of a container that failed; of any of them without `container_name`."""

    operator: Operator
    values: Annotated[tuple[_Code, ...], Meta(min_length=1, max_length=limits.MOST_CODES)]
    container_name: _Label | None = None

    def __post_init__(self) -> None:
        if self.operator == "In" and 0 in self.values:
            raise wrong("values", "0 is no failure: it cannot be one of the exit codes of In")
        if len(set(self.values)) < len(self.values):
            raise wrong("values", "names an exit code twice")


class OnPodCondition(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A rule about a condition of the pod."""

    type: str
    status: str = "True"

    def __post_init__(self) -> None:
        if self.type != DISRUPTION:
            raise wrong("type", f"must be {DISRUPTION}: Argo records no other condition of a pod that has ended")
        if self.status != "True":
            raise wrong("status", 'must be "True", which is the default')


class FailureRule(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What follows when a replica fails in this way."""

    action: Action
    on_exit_codes: OnExitCodes | None = None
    on_pod_conditions: (
        Annotated[tuple[OnPodCondition, ...], Meta(min_length=1, max_length=limits.MOST_POD_CONDITIONS)] | None
    ) = None

    def __post_init__(self) -> None:
        if (self.on_exit_codes is None) == (self.on_pod_conditions is None):
            raise ValueError("must have one of onExitCodes and onPodConditions")
        if self.on_exit_codes is None and self.action == "MoreMemory":
            raise wrong("action", "more memory does not help a pod that was evicted")


class FailurePolicy(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What follows when a replica fails: the first of these rules that matches decides, and then the default ones."""

    rules: tuple[FailureRule, ...] = ()

    def __post_init__(self) -> None:
        if len(self.rules) > limits.MOST_RULES:
            raise wrong("rules", f"has {len(self.rules):,} rules, at most {limits.MOST_RULES} are allowed")


class Topology(Struct, frozen=True):
    """Where the replicas have to be: all in one domain of this level."""

    required: Annotated[str, Meta(min_length=1, max_length=317, pattern=r"^[A-Za-z0-9./_-]+\Z")]


class NodeCheck(Struct, frozen=True, rename="camel"):
    """A check of the nodes before the work."""

    image: Annotated[str, Meta(min_length=1, max_length=limits.LONGEST_IMAGE)] | None = None
    command: Annotated[tuple[str, ...], Meta(min_length=1, max_length=limits.MOST_COMMAND)] | None = None
    timeout_seconds: Annotated[int, Meta(ge=10, le=limits.MOST_CHECK_SECONDS)] = 120
    max_moves: Annotated[int, Meta(ge=0, le=limits.MOST_CHECK_MOVES)] = 3


class Monitor(Struct, frozen=True):
    """There is a container beside the work that reports for it."""


class Health(Struct, frozen=True, rename="camel"):
    """How long the replicas may be quiet, in seconds (0: as long as they like), and what follows."""

    heartbeat_seconds: _Seconds = 600
    progress_seconds: _Seconds = 900
    first_progress_seconds: _Seconds = 7200
    action: HealthAction = "report"
    max_restarts: Annotated[int, Meta(ge=1, le=limits.MOST_HEALTH_RESTARTS)] = 3

    @property
    def deadlines(self) -> Deadlines:
        """The same, with no limit as `inf`."""
        return Deadlines(
            heartbeat=self.heartbeat_seconds or math.inf,
            progress=self.progress_seconds or math.inf,
            first_progress=self.first_progress_seconds or math.inf,
        )


class StoredTask(Struct, frozen=True, rename="camel", dict=True):
    """One task as submitted. `template`: the text of its pod template; empty in a record that was made without."""

    type: TaskType = "none"
    name: _TaskName = ""
    replicas: _Count = 1
    min_replicas: _Count | None = None
    max_replicas: _Count | None = None
    node_unit: _Count | None = None
    max_memory: _Quantity | None = None
    active_deadline_seconds: _RunTime | None = None
    template: Raw = Raw()

    def __post_init__(self) -> None:
        if not self.name:
            if self.type == "none":
                raise wrong("name", "is missing")
            force_setattr(self, "name", self.type)
        if self.max_memory is not None and (quantities.exact(self.max_memory) or -1) < 0:
            raise wrong("maxMemory", "is no amount")
        # As text of its own: a part of the annotation's text would keep all of it.
        force_setattr(self, "template", Raw(bytes(self.template)))

    @property
    def most(self) -> int:
        """The maximum number of replicas."""
        return self.max_replicas or self.replicas

    def check(self, path: str) -> None:
        """Raises the error of a struct's own check if its numbers do not go together, or its template is invalid."""
        low, high, unit = self.min_replicas, self.most, self.node_unit
        if not (low or 1) <= self.replicas <= high:
            raise wrong(f"{path}.replicas", f"{self.replicas} is not from {low or 1} to {high}")
        if unit is not None and any(count is not None and count % unit for count in (low, self.replicas, high)):
            raise wrong(f"{path}.nodeUnit", f"{unit} divides not all of its numbers of replicas")
        try:
            if bytes(self.template):
                read_template(bytes(self.template))
        except NotOfTypeError as error:
            raise wrong(f"{path}.template{error.path and '.'}{error.path}", str(error)) from None

    @property
    def pod(self) -> PodSpec:
        """What diflow needs of the pods' spec, decoded anew. Raises InvalidError for a task without a template."""
        if not bytes(self.template):
            raise InvalidError(f"the annotation {keys.DIJOB} is not a valid job any more (a task has no template)")
        return read_template(bytes(self.template))["spec"]

    @cached_property
    def main(self) -> str:
        """The name of the main container."""
        containers = self.pod["containers"] if bytes(self.template) else [{}]
        return containers[work_container(containers)].get("name", "")

    def without_template(self) -> StoredTask:
        """The task without its template. It still knows the name of its main container."""
        trimmed = replace(self, template=Raw())
        if self.main:
            vars(trimmed)["main"] = self.main
        return trimmed


class StoredSpec(Struct, frozen=True, rename="camel", dict=True):
    """The spec of a DIJob as submitted. Jobs of equal specs share it.

    `failure_policy`: None if failures have the default consequences.
    """

    tasks: Annotated[tuple[StoredTask, ...], Meta(min_length=1)]
    priority: Priority = "normal"
    is_preemptible: bool = field(name="preemptible", default=False)
    backoff_limit: Annotated[int, Meta(ge=0, le=limits.MOST_BACKOFF_LIMIT)] = 3
    queue: _Label | None = None
    topology: Topology | None = None
    scheduling: Scheduling | None = None
    active_deadline_seconds: _RunTime | None = None
    start_deadline_seconds: Annotated[int, Meta(ge=1, le=limits.MOST_START_SECONDS)] | None = None
    pending_seconds: Annotated[int, Meta(ge=limits.LEAST_PENDING_SECONDS, le=limits.MOST_START_SECONDS)] | None = None
    node_check: NodeCheck | None = None
    monitor: Monitor | None = None
    failure_policy: FailurePolicy | None = None
    health: Health | None = None
    volumes: tuple[Volume, ...] = ()

    def __post_init__(self) -> None:
        if len(self.tasks) > limits.MOST_TASKS:
            raise wrong("tasks", f"it says {len(self.tasks):,} tasks, and a job may have {limits.MOST_TASKS}")
        replicas = sum(max(task.replicas, task.most) for task in self.tasks)
        if replicas > limits.MOST_REPLICAS:
            raise wrong("tasks", f"it says {replicas:,} replicas, and a job may have {limits.MOST_REPLICAS:,}")
        if len({task.name for task in self.tasks}) < len(self.tasks):
            raise wrong("tasks", "two of them have one name")
        for i, task in enumerate(self.tasks):
            task.check(f"tasks[{i}]")

    @property
    def has_allocator(self) -> bool:
        """It was submitted to be placed by the allocator."""
        return self.scheduling == "gang"

    @cached_property
    def run_times(self) -> Mapping[str, int]:
        """The most seconds that each task may run; under "" those of the whole job. Without what has no limit."""
        each = {"": self.active_deadline_seconds, **{task.name: task.active_deadline_seconds for task in self.tasks}}
        return {name: seconds for name, seconds in each.items() if seconds is not None}

    @property
    def deadlines(self) -> Deadlines | None:
        """How long its replicas may be quiet, None if it does not ask for that."""
        return self.health.deadlines if self.health is not None else None

    @property
    def required(self) -> str:
        """The level of the topology that all its replicas share a domain of, or ""."""
        return self.topology.required if self.topology is not None else ""

    @property
    def checks_nodes(self) -> bool:
        """Its node check has a command of the user's."""
        return self.node_check is not None and self.node_check.command is not None

    @property
    def has_rules(self) -> bool:
        """Failures have consequences: it has a failure policy, or a node check of its own."""
        return self.failure_policy is not None or (self.checks_nodes and self.has_allocator)

    @cached_property
    def too_large(self) -> str:
        """Why the allocator cannot place the job, whatever is asked of it later, in one sentence; "" if it can. What is
        counted here is a part of what the user's model counts. Raises InvalidError without templates."""
        pods = [task.pod for task in self.tasks]
        resources = {name for pod in pods for name in quantities.of_pod(pod)} - {quantities.PODS}
        ports = sum(len(host_ports(pod, pod["containers"])) for pod in pods)
        conditions = max(read_where(pod).size + read_rules(pod, namespace="", labels={}).size for pod in pods)
        return (
            too_many("different resources", len(resources), limits.MOST_RESOURCES)
            or too_many("host ports", ports, limits.MOST_PORTS)
            or too_many("conditions on nodes", conditions, limits.MOST_CONDITIONS)
        )

    @cached_property
    def without_templates(self) -> StoredSpec:
        """The spec for those that keep it, and need no templates any more: one object for all jobs of this spec."""
        return replace(self, tasks=tuple(task.without_template() for task in self.tasks), volumes=())

    def main(self, task: str) -> str:
        """The name of a task's main container; "" if there is no such task."""
        return next((found.main for found in self.tasks if found.name == task), "")


def too_many(what: str, number: int, most: int) -> str:
    """Why a job is held that has more of something than it may; "" if it has not."""
    return f"it has {number:,} {what}, and a job may have {most:,}: ask for fewer" if number > most else ""


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job as submitted. `ditask`: how its replicas find each other (`rules/ditask.py`), None if they do not so."""

    name: str
    namespace: str | None
    ditask: str | None
    spec: StoredSpec

    @property
    def trimmed(self) -> StoredJob:
        """Its spec alone, without templates, for those that keep thousands of jobs."""
        return StoredJob("", None, None, self.spec.without_templates) if self.spec.tasks else NOTHING


NOTHING: Final = StoredJob("", None, None, StoredSpec(()))
"""Of a Workflow whose job cannot be read."""


class _Annotations(Struct, frozen=True):
    ditask: str | None = field(name=keys.DITASK, default=None)


class _Metadata(Struct, frozen=True):
    name: _Label
    namespace: _Label | None = None
    annotations: _Annotations = _Annotations()


class _Manifest(Struct, frozen=True, tag_field="kind", tag=keys.KIND):
    metadata: _Metadata
    spec: Raw


_LARGEST: Final = 2 * limits.MOST_MANIFEST_BYTES
_read_manifest: Final = reader(_Manifest)
_read_spec: Final = reader(StoredSpec)
_policy: Final = converter(FailurePolicy)


def _kept_bytes(text: bytes) -> int:
    """What a spec takes in memory beside its text: objects of 15 bytes for each byte of a text of many short parts, of
    which a task without anything else makes the most; with the spec without its templates, twice that. So all that is
    known stays below 32 MiB, and the largest spec that `submit` lets through still fits (1/16 of the whole)."""
    return 2000 + 15 * len(text)


_known_spec: Final = remembered(most_bytes=16 * MIB, size=_kept_bytes)(_read_spec)


def read_job(text: Any) -> StoredJob:
    """The job in the annotation. Raises InvalidError, with one sentence for its owner.

    A user's jobs often differ in their names alone: equal specs are decoded, and kept, once.
    """
    return _latest(text) if isinstance(text, str) else _read(text, _known_spec)


@lru_cache(maxsize=1)
def _latest(text: str) -> StoredJob:
    """Of a gang that waits, the text is read twice: for its parameters, and for its record."""
    return _read(text, _known_spec)


def decoded(text: Any) -> StoredJob:
    """As `read_job`, without what is known of equal specs."""
    return _read(text, _read_spec)


def _read(text: Any, read_spec: Callable[[bytes], StoredSpec]) -> StoredJob:
    if isinstance(text, str) and len(text) > _LARGEST:
        raise InvalidError(f"the annotation {keys.DIJOB} is larger than that of any job that diflow makes")
    path = ""
    try:
        found = _read_manifest(text)
        path = "spec"
        spec = read_spec(bytes(found.spec))
    except NotOfTypeError as error:
        if not error.is_json:
            raise InvalidError(f"the annotation {keys.DIJOB} is no JSON any more") from None
        where = ".".join(filter(None, (path, error.path)))
        at = f" ({where})" if where else ""
        raise InvalidError(f"the annotation {keys.DIJOB} is not a valid job any more{at}: {error}") from None
    metadata = found.metadata
    return StoredJob(metadata.name, metadata.namespace, metadata.annotations.ditask, spec)


def failure_policy(given: Any) -> FailurePolicy:
    """The failure policy of plain data. Raises InvalidError with the path within it."""
    try:
        return _policy(given)
    except NotOfTypeError as error:
        raise InvalidError(str(error), path=error.path) from None

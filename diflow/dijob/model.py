"""The DIJob as a frozen and validated model.

It knows the manifest's schema (`diengine.opendilab.org/v2alpha1`, kind DIJob), but neither Argo nor clusters:
`submit()` and the like are in `diflow.jobs.verbs`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from diflow.common import keys, limits, names, quantities
from diflow.common.errors import InvalidError
from diflow.common.jsontext import canonical_json, reader
from diflow.common.words import shortened
from diflow.dijob import manifests, memory
from diflow.dijob.conditions import read_rules, read_where
from diflow.dijob.pods import work_container
from diflow.dijob.rules import ditask, hosts
from diflow.dijob.rules.complaints import Model, describe
from diflow.dijob.rules.failurerules import FailurePolicy
from diflow.dijob.rules.generations import refuse_older, with_tasks
from diflow.dijob.rules.kinds import way_over
from diflow.dijob.rules.metadata import check_annotations, check_labels, generated_name
from diflow.dijob.rules.podrules import check_image, check_mounts
from diflow.dijob.rules.podtemplate import check_pod_template, check_volumes
from diflow.dijob.rules.syntax import qualified_name
from diflow.dijob.rules.unknown import IN_METADATA, said
from diflow.dijob.stored import HealthAction, Priority, Scheduling, TaskType
from diflow.dijob.yamltext import dump_yaml

CleanPodPolicy = Literal["Running", "All", "None"]
Replicas = Annotated[int, Field(ge=1, le=limits.MOST_REPLICAS, strict=True)]
RunTime = Annotated[int, Field(ge=1, le=limits.MOST_RUN_SECONDS, strict=True)]
Deadline = Annotated[int, Field(ge=0, le=limits.MOST_HEALTH_SECONDS, strict=True)]

# Fields of DI-orchestrator's manifests without a meaning in diflow: dropped without a warning.
_IGNORED = frozenset({"group"})
_MANIFEST = frozenset({"apiVersion", "kind", "metadata", "spec", "status"})
_IN_METADATA = frozenset({"name", "namespace", "labels", "annotations"})
_load: Final = reader(dict[str, Any])
# Metadata that the API server adds, as in the output of `kubectl get -o yaml`.
_SERVER_METADATA = frozenset(
    {
        "creationTimestamp",
        "generation",
        "resourceVersion",
        "uid",
        "managedFields",
        "selfLink",
        "ownerReferences",
        "finalizers",
    }
)


class UnknownFieldWarning(UserWarning):
    """A manifest has a field that diflow does not know; it is left out. Its argument is the path of the field."""

    @property
    def path(self) -> str:
        """The path of the field in the manifest."""
        return str(self.args[0])

    @property
    def said(self) -> str:
        """What to say of it after its path: where it belongs, or what was probably meant."""
        return said(self.path, DIJob)

    def __str__(self) -> str:
        return f"{self.path} {self.said} (it is left out)"


_COLLECTED: Final[ContextVar[list[UnknownFieldWarning] | None]] = ContextVar("unknown_fields", default=None)


@contextmanager
def unknown_fields() -> Iterator[list[UnknownFieldWarning]]:
    """Collect the warnings about unknown fields of this thread, which then are shown to nobody.

    `warnings.catch_warnings` changes the whole process: it would take the warnings of other threads, which read the
    jobs of other users, and may leave itself in force.
    """
    found: list[UnknownFieldWarning] = []
    token = _COLLECTED.set(found)
    try:
        yield found
    finally:
        _COLLECTED.reset(token)


class _Model(Model):
    """Whose defaults are validated, too."""

    model_config = ConfigDict(validate_default=True)


Part = TypeVar("Part", bound=_Model)


class Task(_Model):
    """One role of a job: replicas that are made from one template."""

    type: TaskType = Field(
        "none", description="`learner`, `collector`, `evaluator`, or `none` for a task with a name of its own."
    )
    name: str = Field("", description="Not set: the type. Required where that is `none`.")
    replicas: Replicas = Field(1, description="The desired number of replicas.")
    min_replicas: Replicas | None = Field(None, description="The fewest replicas to which it may be resized.")
    max_replicas: Replicas | None = Field(None, description="The most replicas to which it may be resized.")
    node_unit: Replicas | None = Field(
        None,
        description="The number of replicas is always a multiple of it, as programs need that split a model over "
        "several nodes: `replicas`, `minReplicas`, `maxReplicas` and requests to scale have to be multiples.",
    )
    max_memory: str | None = Field(
        None,
        max_length=limits.LONGEST_QUANTITY,
        description="The most memory that a replica may get after it ran out of memory (`failurePolicy`).",
    )
    active_deadline_seconds: RunTime | None = Field(
        None,
        description="The same as of the job, for the time in which a replica of this task runs. Needs the allocator.",
    )
    template: dict[str, Any] = Field(
        description="A Kubernetes pod template. The work is the container `di-container`, else the first one."
    )

    @model_validator(mode="before")
    @classmethod
    def _named_by_its_type(cls, data: Any) -> Any:
        if isinstance(data, dict) and not data.get("name") and data.get("type", "none") != "none":
            data = {**data, "name": data["type"]}
        if isinstance(data, dict) and "template" in data:
            template, unknown = check_pod_template(data["template"])
            _warn(unknown)
            data = {**data, "template": template}
        return data

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Self:
        low = self.min_replicas if self.min_replicas is not None else self.replicas
        high = self.max_replicas if self.max_replicas is not None else self.replicas
        if self.min_replicas is not None and self.min_replicas > high:
            raise InvalidError(f"minReplicas {low} is above {high}", path="minReplicas")
        if self.min_replicas is not None and self.replicas < low:
            raise InvalidError(f"replicas {self.replicas} is below minReplicas {low}", path="replicas")
        if self.replicas > high:
            raise InvalidError(f"replicas {self.replicas} is above maxReplicas {high}", path="replicas")
        counts = {"replicas": self.replicas, "minReplicas": self.min_replicas, "maxReplicas": self.max_replicas}
        for field, count in counts.items():
            if self.node_unit and count and count % self.node_unit:
                raise InvalidError(f"{field} {count} is not a multiple of nodeUnit {self.node_unit}", path=field)
        return self

    @model_validator(mode="after")
    def _memory_is_a_bound(self) -> Self:
        if self.max_memory is not None:
            most = quantities.amount("memory", self.max_memory, "maxMemory")
            has, _ = memory.of_container(self.work_container.get("resources"))
            if most > memory.MOST_MIB:
                raise InvalidError(f"{self.max_memory} is more than any node has", path="maxMemory")
            if most < max(1, has):
                raise InvalidError(f"{self.max_memory} is less than the replicas have at first", path="maxMemory")
        return self

    @property
    def work_container(self) -> dict[str, Any]:
        """The main container of its template."""
        containers: list[dict[str, Any]] = self.template["spec"]["containers"]
        return containers[work_container(containers)]


class Topology(_Model):
    """Where the replicas of a job have to be."""

    required: str = Field(
        strict=True,
        description="A level of the cluster's topology, such as `rack`, by its name or its node label: all replicas "
        "are in one domain of it, at every size and after every move.",
    )

    @model_validator(mode="after")
    def _is_a_label(self) -> Self:
        qualified_name(self.required, "required")
        return self


class NodeCheck(_Model):
    """A check of the nodes before the work, in an init container of each pod."""

    image: str | None = Field(
        None,
        min_length=1,
        max_length=limits.LONGEST_IMAGE,
        strict=True,
        description="The image of the check. Not set: diflow's, which has diflow's own check.",
    )
    command: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        max_length=limits.MOST_COMMAND,
        description="A check of your own, which fails if the node is not fit. Not set: diflow's own.",
    )
    timeout_seconds: int = Field(
        120, ge=10, le=limits.MOST_CHECK_SECONDS, strict=True, description="The longest time of diflow's own check."
    )
    max_moves: int = Field(
        3,
        ge=0,
        le=limits.MOST_CHECK_MOVES,
        strict=True,
        description="How often the gang is placed again because of the check.",
    )

    @model_validator(mode="after")
    def _a_command_has_an_image(self) -> Self:
        if self.command is not None and self.image is None:
            raise InvalidError("is missing: a command of your own needs the image that has it", path="image")
        if self.image is not None:
            check_image(self.image, path="image")
        return self


class Monitor(_Model):
    """A container beside the work that reports its steps and what it uses."""

    checkpoint_volume: str | None = Field(
        None,
        strict=True,
        description="A volume of the job to which the last complete checkpoint is saved that the work has left in "
        "memory when it ends without success.",
    )
    checkpoint_path: str | None = Field(
        None,
        min_length=1,
        max_length=limits.LONGEST_CHECKPOINT_PATH,
        strict=True,
        description="The folder there. Not set: `checkpoints/<name of the job>`, as jobs that share a folder replace "
        "each other's checkpoints.",
    )

    @model_validator(mode="after")
    def _path_is_inside(self) -> Self:
        if self.checkpoint_volume is not None:
            names.check_label(self.checkpoint_volume, what="the volume's name", path="checkpointVolume")
        parts = self.checkpoint_path.split("/") if self.checkpoint_path is not None else ()
        if not all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", part, re.ASCII) for part in parts):
            text = "must be a relative path of letters, digits, dashes, dots and underscores, without '..'"
            raise InvalidError(text, path="checkpointPath")
        return self


class Health(_Model):
    """How long the replicas of a job may be quiet, and what follows."""

    heartbeat_seconds: Deadline = Field(
        600, description="A replica without any sign of life for so long is silent. 0: never."
    )
    # The progress of a job that saves for ten minutes rests for longer than ten minutes, by the step around that.
    progress_seconds: Deadline = Field(
        900,
        description="A replica whose step has not risen for so long is stalled. 0: never. It has to be longer than a "
        "checkpoint or an evaluation together with one step.",
    )
    first_progress_seconds: Deadline = Field(
        7200, description="The same, from the start of a pod to its first step. 0: never."
    )
    action: HealthAction = Field(
        "report",
        description="`report` names the replicas. `restart` also starts the silent and stalled ones again, which does "
        "not count against `backoffLimit`.",
    )
    max_restarts: int = Field(
        3,
        ge=1,
        le=limits.MOST_HEALTH_RESTARTS,
        strict=True,
        description="The most restarts of the job for this reason, after which `diflow describe` says so. "
        "`diflow retry` counts from 0 again.",
    )

    @model_validator(mode="after")
    def _server_may_be_away(self) -> Self:
        for name in ("heartbeat_seconds", "progress_seconds", "first_progress_seconds"):
            if 0 < getattr(self, name) < limits.LEAST_HEALTH_SECONDS:
                text = f"must be 0, which is no limit, or at least {limits.LEAST_HEALTH_SECONDS}"
                raise InvalidError(text, path=to_camel(name))
        return self


class DIJob(_Model):
    """A job of one or more tasks, run as one Argo Workflow. `diflow.DIJob` adds what can be done with it in a cluster
    (`diflow/jobs/verbs.py`)."""

    name: str = Field(description="A DNS label. It becomes the name of the Workflow.")
    namespace: str | None = Field(None, description="Not set: that of the current context.")
    labels: dict[str, str] = Field(default_factory=dict, description="Labels of the Workflow.")
    annotations: dict[str, str] = Field(
        default_factory=dict, description="Annotations of the Workflow. Some of them are for diflow."
    )
    tasks: tuple[Task, ...] = Field(
        min_length=1, description="The kinds of replicas of the job, each with a pod template."
    )
    priority: Priority = Field(
        "normal", description="`normal` or `high`: which jobs come first, and which give way to others."
    )
    preemptible: bool = Field(
        False, strict=True, description="Whether the allocator may resize, move and stop the job while it runs."
    )
    backoff_limit: int = Field(
        3,
        ge=0,
        le=limits.MOST_BACKOFF_LIMIT,
        strict=True,
        description="How often a replica that failed is started again, of a preemptible job all of them. Eviction, "
        "preemption and lost nodes do not count.",
    )
    suspend: bool = Field(
        False,
        strict=True,
        description="The job is created suspended: it has no pods until `diflow resume`, or, of a DIJob object, until "
        "this is changed to false.",
    )
    active_deadline_seconds: RunTime | None = Field(
        None,
        description="The job fails, with the reason DeadlineExceeded, when it has run for so many seconds: the time in "
        "which a replica of it runs, in all rounds together. Waiting in the queue, being suspended without pods and "
        "being placed again do not count. Without the allocator Argo counts from its start of the Workflow.",
    )
    clean_pod_policy: CleanPodPolicy = Field(
        "Running", description="Which pods are removed when the job has ended: `Running`, `All` or `None`."
    )
    volumes: tuple[dict[str, Any], ...] = Field((), description="Volumes that all tasks can mount.")
    queue: str | None = Field(None, description="The queue on whose share the job draws. Not set: `default`.")
    topology: Topology | None = Field(None, description="Where the replicas have to be. Needs the allocator.")
    scheduling: Scheduling | None = Field(
        None,
        description="`gang`: the allocator starts the job. `none`: Argo alone runs it. Not set: `gang` where an "
        "allocator is installed.",
    )
    ttl_seconds_after_finished: int | None = Field(
        None,
        ge=limits.LEAST_TTL_SECONDS,
        le=limits.MOST_TTL_SECONDS,
        strict=True,
        description="So many seconds after its end, at least 60, the job is deleted with its pods and their logs. "
        "Not set: as the administrator of the allocator has set it; else never.",
    )
    start_deadline_seconds: int | None = Field(
        None,
        ge=1,
        le=limits.MOST_START_SECONDS,
        strict=True,
        description="The job fails if the allocator has no places for it so many seconds after its creation, with "
        "that reason; not while its user has suspended it. If no allocator decided then, the next plan decides. Not "
        "set: it waits as long as it takes. Needs the allocator.",
    )
    node_check: NodeCheck | None = Field(
        None,
        description="`true`, or an object: a check of the nodes before the work, which leaves bad ones out. Needs the "
        "allocator and the server.",
    )
    monitor: Monitor | None = Field(
        None, description="`true`, or an object: a container beside the work that reports for it."
    )
    failure_policy: FailurePolicy | None = Field(
        None,
        description="What follows when a replica fails, by its exit code: the first rule that matches decides, then "
        "the default ones. `{}`: the default rules. Not set: all failures count but those from outside.",
    )
    health: Health | None = Field(
        None,
        description="After how many seconds replicas are silent or stalled, and what follows. Not set: they are not "
        "looked for. Needs the allocator and the server.",
    )
    pending_seconds: int | None = Field(
        None,
        ge=limits.LEAST_PENDING_SECONDS,
        le=limits.MOST_START_SECONDS,
        strict=True,
        description="After so many seconds, at least 60, in which a pod has a node and does not start (an image that "
        "cannot be pulled, a volume that is not mounted), a job that may shrink goes on without it, and another one "
        "returns to the queue. Not set: 900 for a preemptible job, or as the administrator of the allocator has set "
        "it; others wait. Needs the allocator.",
    )

    @model_validator(mode="before")
    @classmethod
    def _parts_are_checked_with_their_path(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = dict(data)
        for name in ("cleanPodPolicy", "clean_pod_policy"):
            if data.get(name) == "":  # as written by DI-orchestrator's own programs
                del data[name]
            elif name in data and not (isinstance(data[name], str) and data[name] in get_args(CleanPodPolicy)):
                text = f"Invalid CleanPodPolicy {shortened(str(data[name]), 80)}, expected in [None, Running, All]"
                raise InvalidError(text, path="spec.cleanPodPolicy")
        for name in ("ttlSecondsAfterFinished", "ttl_seconds_after_finished"):
            if type(seconds := data.get(name)) is int and 0 <= seconds < limits.LEAST_TTL_SECONDS:
                why = "in which the end of the job is seen and recorded"
                text = f"must be at least {limits.LEAST_TTL_SECONDS}, {why}, not {seconds}"
                raise InvalidError(text, path="spec.ttlSecondsAfterFinished")
        if isinstance(data.get("tasks"), list | tuple):
            hosts.limit("tasks", len(data["tasks"]), limits.MOST_TASKS, "spec.tasks")
            data["tasks"] = tuple(_task(item, i) for i, item in enumerate(data["tasks"]))
        if data.get("volumes") is not None:
            given = list(data["volumes"]) if isinstance(data["volumes"], list | tuple) else data["volumes"]
            volumes, unknown = check_volumes(given, path="spec.volumes")
            _warn(unknown)
            data["volumes"] = tuple(volumes)
        for name, part in _PARTS.items():
            for given in dict.fromkeys((name, to_camel(name))):
                if data.get(given) is not None:
                    data[given] = part(data[given])
        return data

    @model_validator(mode="after")
    def _an_allocator_is_there_for_its_fields(self) -> Self:
        of_allocator = {
            "topology": self.topology,
            "startDeadlineSeconds": self.start_deadline_seconds,
            "nodeCheck": self.node_check,
            "health": self.health,
            "pendingSeconds": self.pending_seconds,
            **{f"tasks[{i}].activeDeadlineSeconds": task.active_deadline_seconds for i, task in enumerate(self.tasks)},
        }
        for name, value in of_allocator.items():
            if value is not None and self.scheduling == "none":
                raise InvalidError("needs the allocator, which `scheduling: none` excludes", path=f"spec.{name}")
        return self

    @model_validator(mode="after")
    def _priority_is_said_once(self) -> Self:
        """The rules for queues and namespaces go by `priority`, kube-scheduler by the priority class of the pods."""
        is_alone = self.scheduling == "none" and "priority" not in self.model_fields_set
        own = keys.PRIORITY_CLASSES[self.priority]
        for i, task in enumerate(self.tasks):
            given = task.template["spec"].get("priorityClassName")
            if given and given != own and not is_alone:
                raise InvalidError(
                    f"is {given}, beside spec.priority {self.priority}, which makes it {own}: leave it out, and set "
                    "spec.priority (a job with `scheduling: none` may name a class instead of spec.priority)",
                    path=f"spec.tasks[{i}].template.spec.priorityClassName",
                )
        return self

    @model_validator(mode="after")
    def _failures_are_of_its_containers(self) -> Self:
        if self.failure_policy is None:
            for i, task in enumerate(self.tasks):
                if task.max_memory is not None:
                    text = "has no effect without spec.failurePolicy, whose rules give a replica more memory"
                    raise InvalidError(text, path=f"spec.tasks[{i}].maxMemory")
            return self
        known = {container.get("name") for task in self.tasks for container in hosts.containers(task.template["spec"])}
        mains = {task.work_container.get("name") for task in self.tasks}
        for i, rule in enumerate(self.failure_policy.rules):
            path = f"spec.failurePolicy.rules[{i}].onExitCodes.containerName"
            named = rule.on_exit_codes.container_name if rule.on_exit_codes is not None else None
            if named is not None and named not in known:
                raise InvalidError("no task has a container of this name", path=path)
            if rule.action == "MoreMemory" and named is not None and named not in mains:
                raise InvalidError("only the main container of a task gets more memory", path=path)
        return self

    @model_validator(mode="after")
    def _tasks_go_together(self) -> Self:
        """DI-orchestrator's rules, in its order (task by task, then unique names) and with its messages."""
        types: set[str] = set()
        for i, task in enumerate(self.tasks):
            if task.type != "none" and task.type in types:
                raise InvalidError(f"the number of {task.type} task is more than one", path="spec.tasks")
            if task.type == "none" and not task.name:
                raise InvalidError("none type task has no name", path=f"spec.tasks[{i}]")
            types.add(task.type)
        seen: set[str] = set()
        for i, task in enumerate(self.tasks):
            if task.name in seen:
                raise InvalidError(f"there is more than one task named {task.name}", path=f"spec.tasks[{i}].name")
            seen.add(task.name)
        return self

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        names.check_job(self.name)
        if self.namespace is not None:
            names.check_label(self.namespace, what="the namespace", path="metadata.namespace")
        if self.queue is not None:
            names.check_label(self.queue, what="the queue's name", path="spec.queue")
        for i, task in enumerate(self.tasks):
            path = f"spec.tasks[{i}].name"
            names.check_task(task.name, path=path)
            names.check_hostname(self.name, task.name, task.max_replicas or task.replicas, path=path)
        return self

    @model_validator(mode="after")
    def _metadata_is_the_users_own(self) -> Self:
        check_labels(self.labels, path="metadata.labels")
        check_annotations(self.annotations, path="metadata.annotations")
        size = sum(
            len(f"{key}{value}".encode()) for part in (self.labels, self.annotations) for key, value in part.items()
        )
        hosts.limit("bytes of labels and annotations", size, limits.MOST_METADATA_BYTES, "metadata")
        return self

    @model_validator(mode="after")
    def _mounts_have_volumes(self) -> Self:
        for i, task in enumerate(self.tasks):
            check_mounts(task.template["spec"], self.volumes, f"spec.tasks[{i}].template.spec")
        return self

    @model_validator(mode="after")
    def _names_of_containers_are_free(self) -> Self:
        taken = {keys.CHECK_CONTAINER: "nodeCheck"} if self.node_check is not None else {}
        if self.monitor is not None:
            taken[keys.MONITOR_CONTAINER] = "monitor"
        for i, task in enumerate(self.tasks):
            for container in hosts.containers(task.template["spec"]):
                if field := taken.get(str(container.get("name"))):
                    path = f"spec.tasks[{i}].template.spec"
                    raise InvalidError(f"spec.{field} adds a container named {container['name']!r} already", path=path)
        return self

    @model_validator(mode="after")
    def _checkpoints_have_a_volume(self) -> Self:
        volume = self.monitor.checkpoint_volume if self.monitor is not None else None
        for task in self.tasks if volume is not None else ():
            own = (*self.volumes, *task.template["spec"].get("volumes", ()))
            if all(given.get("name") != volume for given in own):
                text = f"there is no volume {volume!r} in spec.volumes, nor in the template of task {task.name}"
                raise InvalidError(text, path="spec.monitor.checkpointVolume")
        return self

    @model_validator(mode="after")
    def _is_not_too_large(self) -> Self:
        """The limits that protect the readers of a job: Argo, the allocator and the server (`bounds`)."""
        replicas = sum(_most(task) for task in self.tasks)
        hosts.limit("replicas in all", replicas, limits.MOST_REPLICAS, "spec.tasks")
        containers = [c for task in self.tasks for c in hosts.containers(task.template["spec"])]
        asked = {
            name
            for container in containers
            for kind in ("requests", "limits")
            for name in container.get("resources", {}).get(kind, ())
        } | {name for task in self.tasks for name in task.template["spec"].get("overhead") or ()}
        hosts.limit("different resources", len(asked), limits.MOST_RESOURCES, "spec.tasks")
        ports = sum(len(container.get("ports", ())) for container in containers)
        hosts.limit("ports", ports, limits.MOST_PORTS, "spec.tasks")
        for i, task in enumerate(self.tasks):
            spec = task.template["spec"]
            conditions = read_where(spec).size + read_rules(spec, namespace="", labels={}).size
            path = f"spec.tasks[{i}].template.spec"
            hosts.limit("conditions on nodes in one task", conditions, limits.MOST_CONDITIONS, path)
        self.check_hosts()
        size = len(canonical_json(self.to_manifest()).encode())
        hosts.limit("bytes as JSON", size, limits.MOST_MANIFEST_BYTES, "spec")
        return self

    @property
    def has_short_hosts(self) -> bool:
        """Whether its hosts are listed without their domain (`diflow.dijob.rules.hosts`)."""
        return hosts.are_short(sum(_most(task) for task in self.tasks), (task.template["spec"] for task in self.tasks))

    def check_hosts(self) -> None:
        """Raises InvalidError if the names of all hosts are too long, as every container has those of each task."""
        hosts.check_hosts(
            self.name,
            self.namespace,
            [(task.name, _most(task)) for task in self.tasks],
            [task.template["spec"] for task in self.tasks],
            short=self.has_short_hosts,
            engine=ditask.of_annotations(self.annotations),
        )

    @classmethod
    def from_manifest(cls, manifest: Any) -> Self:
        """Read a DIJob manifest given as plain data. Unknown fields warn (UnknownFieldWarning) and are dropped."""
        if not isinstance(manifest, dict):
            raise InvalidError(
                f"a DIJob is a mapping with apiVersion, kind, metadata and spec, not {describe(manifest)}"
            )
        refuse_older(manifest)
        kind, version = manifest.get("kind"), manifest.get("apiVersion")
        if other := way_over(manifest):
            raise InvalidError(other, path="kind")
        if kind != keys.KIND:
            raise InvalidError(f"must be {keys.KIND}, not {describe(kind)}", path="kind")
        if version != keys.API_VERSION:
            raise InvalidError(f"must be {keys.API_VERSION}, not {describe(version)}", path="apiVersion")
        _warn([key for key in manifest if key not in _MANIFEST])
        manifest = with_tasks(manifest)
        fields = _in_manifests(cls) - _IN_METADATA
        metadata = _known(manifest, "metadata", frozenset(IN_METADATA), ignored=_SERVER_METADATA)
        prefix = metadata.pop("generateName", None)
        if "name" not in metadata and prefix is not None:
            metadata["name"] = generated_name(prefix, path="metadata.generateName")
        spec = _known(manifest, "spec", fields, ignored=_IGNORED)
        if "name" not in metadata:
            raise InvalidError("is missing: give the job a name, or generateName", path="metadata.name")
        if "tasks" not in spec:
            raise InvalidError("is missing: a job has at least one task", path="spec.tasks")
        try:
            return cls(**metadata, **spec)
        except InvalidError as error:
            raise _in_manifest(error) from None

    @classmethod
    def from_yaml(cls, source: str | Path) -> Self:
        """Read a DIJob from YAML or JSON text, or from the file at a Path (a str is always the text itself).

        Of several objects the only DIJob is taken. Duplicate keys warn (DuplicateKeyWarning).
        """
        found = manifests.read_file(source) if isinstance(source, Path) else manifests.read(source)
        document = manifests.only_job(found)
        for text in document.warnings():
            warnings.warn(manifests.DuplicateKeyWarning(text), stacklevel=2)
        return cls.from_manifest(document.data)

    def to_manifest(self) -> dict[str, Any]:
        """The job as a DIJob manifest, without the fields that have their default."""
        spec = self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        metadata = {key: spec.pop(key) for key in list(spec) if key in _IN_METADATA}
        for task in spec["tasks"]:
            if task.get("type") == task.get("name"):
                task.pop("name", None)
        if "volumes" in spec:
            spec["volumes"] = list(spec["volumes"])
        return {"apiVersion": keys.API_VERSION, "kind": keys.KIND, "metadata": metadata, "spec": spec}

    def to_yaml(self) -> str:
        """The job as a DIJob manifest in YAML."""
        return dump_yaml(self.to_manifest())


def read_annotation(text: Any) -> DIJob:
    """The DIJob in the annotation `diflow/dijob` of a Workflow, fully validated. Raises InvalidError."""
    try:
        with unknown_fields():
            return DIJob.from_manifest(_load(text))
    except InvalidError as error:
        raise InvalidError(f"the annotation {keys.DIJOB} is not a valid job any more ({error})") from None
    except ValueError:
        raise InvalidError(f"the annotation {keys.DIJOB} is no JSON any more") from None


@cache
def _in_manifests(model: type[BaseModel]) -> frozenset[str]:
    """The names of a model's fields in manifests."""
    return frozenset(to_camel(name) for name in model.model_fields)


def _most(task: Task) -> int:
    """The maximum number of replicas of a task."""
    return task.max_replicas or task.replicas


def _task(item: Any, index: int) -> Task:
    if isinstance(item, Task):
        return item
    path = f"spec.tasks[{index}]"
    given = _given(Task, item, path)
    with unknown_fields() as found, _at(path):
        task = Task(**given)
    _warn([f"{path}.{warning.path}" for warning in found])
    return task


def _failure_policy(item: Any) -> FailurePolicy:
    if isinstance(item, FailurePolicy):
        return item
    path = "spec.failurePolicy"
    try:
        return FailurePolicy.of(_mapping(item, path))
    except InvalidError as error:
        inner = error.path.removeprefix(path).removeprefix(".")
        raise InvalidError(error.message, path=f"{path}.{inner}" if inner else path) from None


def _topology(item: Any) -> Topology:
    if isinstance(item, Topology):
        return item
    path = "spec.topology"
    given = _given(Topology, item, path)
    if "required" not in given:
        raise InvalidError("is missing: name a level of the cluster's topology", path=f"{path}.required")
    with _at(path):
        return Topology(**given)


def _part(model: type[Part], item: Any, path: str) -> Part:
    """A part of a spec."""
    if isinstance(item, model):
        return item
    given = _given(model, item, path)
    with _at(path):
        return model(**given)


def _switched(model: type[Part], item: Any, path: str) -> Part | None:
    """A part of a spec that may be `true` for its defaults, and `false` for nothing."""
    if item is False:
        return None
    if item is True:
        return model()
    if not isinstance(item, model | dict):
        raise InvalidError(f"must be true, false or a mapping, not {describe(item)}", path=path)
    return _part(model, item, path)


def _given(model: type[BaseModel], item: Any, path: str) -> dict[str, Any]:
    """The known fields of a part of a spec that are set; the others warn."""
    data = _mapping(item, path)
    known = _in_manifests(model) | model.model_fields.keys()
    _warn([f"{path}.{key}" for key in data if key not in known])
    return {key: value for key, value in data.items() if key in known and value is not None}


@contextmanager
def _at(path: str) -> Iterator[None]:
    """Errors of the part at this path have its path."""
    try:
        yield
    except InvalidError as error:
        raise InvalidError(error.message, path=f"{path}.{error.path}" if error.path else path) from None


_PARTS: Final[Mapping[str, Callable[[Any], BaseModel | None]]] = {
    "topology": _topology,
    "failure_policy": _failure_policy,
    "health": partial(_part, Health, path="spec.health"),
    "node_check": partial(_switched, NodeCheck, path="spec.nodeCheck"),
    "monitor": partial(_switched, Monitor, path="spec.monitor"),
}
"""The parts of a spec, read by themselves for errors with their path."""


def same_part(name: str, one: Any, other: Any) -> bool:
    """Whether two values of `node_check` or `monitor`, as manifests have them, mean the same: `true` is `{}`."""
    with unknown_fields():
        try:
            found = [_PARTS[name](value) if value is not None else None for value in (one, other)]
        except InvalidError:
            return False
    return found[0] == found[1]


def _mapping(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidError(f"must be a mapping, not {describe(value)}", path=path)
    for key in value:
        if not isinstance(key, str):
            raise InvalidError(f"the key {describe(key)} must be text: put it in quotes", path=path)
    return value


def _known(manifest: dict[str, Any], part: str, known: Set[str], *, ignored: Set[str]) -> dict[str, Any]:
    """The known fields of `part` that are set; the others warn unless they are `ignored`."""
    given = _mapping(manifest.get(part) or {}, part)
    _warn([f"{part}.{key}" for key in given if key not in known and key not in ignored])
    return {key: value for key, value in given.items() if key in known and value is not None}


def _in_manifest(error: InvalidError) -> InvalidError:
    """Convert a field of the model to its path in a manifest."""
    head = error.path.split(".", 1)[0].split("[", 1)[0]
    if head in ("", "spec", "metadata", "kind", "apiVersion"):
        return error
    root = "metadata" if head in _IN_METADATA else "spec"
    return InvalidError(error.message, path=f"{root}.{error.path}")


def _warn(paths: Iterable[str]) -> None:
    """Warn of unknown fields."""
    collected = _COLLECTED.get()
    for path in paths:
        warning = UnknownFieldWarning(path)
        if collected is None:
            warnings.warn(warning, stacklevel=4)
        else:
            collected.append(warning)

"""DIJob → Argo Workflow: the DAG of rounds, tasks and replicas, and the steps around them.

    job (DAG)
    ├─ round   once for each entry of the parameter `rounds`
    │  ├─ <task>   one fan-out for each task, as many as `granted` says, named as `incarnations` says
    │  │  └─ replicaOf-<task> (DAG)   the counted retries: backoffLimit
    │  │     ├─ <task>              the pod, with the retries that are not counted
    │  │     └─ superseded          makes a replica that was stopped on purpose count as Succeeded
    │  └─ superseded   the same for a replaced round

A replica that failed finally makes Argo stop the others (`give-up`), so a job never hangs on pods that wait for a lost
peer. Unless that happens, the pods of the job are the only ones of its Workflow.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, TypeVarTuple, cast

import msgspec
from hera.workflows import Workflow
from hera.workflows import models as m
from pydantic import BaseModel

from diflow.common import keys, limits
from diflow.common.errors import InvalidError
from diflow.dijob.model import CleanPodPolicy, DIJob
from diflow.dijob.settings import RenderSettings, render_settings
from diflow.dijob.stored import Priority
from diflow.dijob.yamltext import dump_yaml
from diflow.kube.kinds import WORKFLOW
from diflow.record.argo.failures import Rules
from diflow.record.argo.node_names import dag_task
from diflow.record.patches import STOP, initial
from diflow.version import __version__
from diflow.workflows import expressions as expr
from diflow.workflows.pods import (
    Common,
    dijob_annotation,
    job_patch,
    memory_of,
    pod_security,
    pod_template,
    roster_volume,
    shared_annotations,
    task_rules,
    token_volume,
)

# Attempts that are not counted are limited, too: each adds a node to the Workflow, whose size is limited.
UNCOUNTED_LIMIT = 1000
UNCOUNTED_BACKOFF = m.Backoff(duration="1s", factor=m.IntOrString(root=2), cap="60s")
_STEP_RETRIES = 5
_LONGEST_LINE = 65_536
# In the order of the fields of Argo's template.
_PLACE_IN_TEMPLATE = {field.alias or name: place for place, (name, field) in enumerate(m.Template.model_fields.items())}

Json = dict[str, Any]
Given = TypeVarTuple("Given")


def plain(model: BaseModel) -> Json:
    """A model of Hera as plain data."""
    return model.model_dump(exclude_none=True, by_alias=True)


def _built_once(build: Callable[[*Given], BaseModel]) -> Callable[[*Given], Json]:
    """Build a part of a Workflow once for the same arguments, as plain data. The result is shared: do not change it.

    Hera's models are what rendering took most of its time for.
    """

    @lru_cache(maxsize=256)
    def built(*given: *Given) -> Json:
        return plain(build(*given))

    return cast("Callable[[*Given], Json]", wraps(build)(built))


def build(job: DIJob, *, settings: RenderSettings | None = None) -> Workflow:
    """The Argo Workflow of a job, as a Hera Workflow.

    The namespace stays unset if the job has none. Raises InvalidError if the Workflow is too large.
    """
    return cast("Workflow", Workflow.from_dict(render(job, settings=settings)))


def render(job: DIJob, *, settings: RenderSettings | None = None) -> dict[str, Any]:
    """The Argo Workflow of a job as plain data for the API server.

    It is built from Hera's models directly, as Hera's Workflow searches each template for additions, which takes longer
    than all the rest. Raises InvalidError if the Workflow is too large.
    """
    return checked(_workflow(job, settings if settings is not None else render_settings()))


def checked(workflow: Json) -> Json:
    """A copy of the Workflow, whose parts belong to the job and to other Workflows. Raises InvalidError if it is too
    large."""
    packed = msgspec.json.encode(workflow)
    if len(packed) > limits.MOST_WORKFLOW_BYTES:
        raise InvalidError(
            f"the Workflow of this job has {len(packed)} bytes, at most {limits.MOST_WORKFLOW_BYTES} are allowed, "
            "as Argo keeps its state beside it: give the job fewer tasks or containers, or move long scripts into the "
            "image or into a ConfigMap",
            path="spec.tasks",
        )
    data: Json = msgspec.json.decode(packed)  # the fastest copy of plain data
    return data


def _workflow(job: DIJob, settings: RenderSettings) -> Json:
    tasks = tuple(task.name for task in job.tasks)
    common = Common.of(job, settings)
    rules = [task_rules(job, index, settings) for index in range(len(tasks))]
    memory = {
        task.name: memory_of(task, settings) for task, its in zip(job.tasks, rules, strict=True) if its.asks_for_memory
    }
    return workflow_of(
        job,
        settings,
        parameters=initial(
            {task.name: task.replicas for task in job.tasks}, is_gang=job.scheduling == "gang", memory=memory
        ),
        common=common,
        pods={"annotations": shared_annotations(job)},
        volumes=[roster_volume(job), token_volume(job)],
        templates=[
            job_dag(),
            _round_dag(tasks, _restarts_together(job), job.backoff_limit),
            *(
                _replica_dag(task, job.backoff_limit, job.preemptible, _gives_up(job, its), its)
                for task, its in zip(tasks, rules, strict=True)
            ),
            *(_pods(common, index, its) for index, its in enumerate(rules)),
            superseded(),
            _give_up_step(),
        ],
    )


def workflow_of(
    job: DIJob,
    settings: RenderSettings,
    *,
    parameters: dict[str, str],
    common: Common,
    pods: Json | None,
    volumes: list[Json],
    templates: list[Json],
) -> Json:
    """The Workflow of a job with these parameters, volumes, templates, and metadata of all `pods`. Parts of it are
    shared: see `checked`."""
    is_gang = job.scheduling == "gang"
    frame = _frame(
        job.priority,
        is_gang or job.suspend,
        job.clean_pod_policy,
        job.ttl_seconds_after_finished,
        # The allocator counts the time of a gang. Of a job that is created suspended Argo would count the suspension:
        # it gets its deadline when it is resumed (`patches.suspended`).
        None if is_gang or job.suspend else job.active_deadline_seconds,
    )
    metadata = {
        "annotations": _annotations(job),
        "labels": _labels(job),
        "name": job.name,
        **({} if job.namespace is None else {"namespace": job.namespace}),
    }
    spec = {
        **frame["spec"],
        "arguments": {"parameters": [{"name": name, "value": value} for name, value in parameters.items()]},
        "podMetadata": pods,
        "podSpecPatch": job_patch(common),
        "securityContext": pod_security({}, settings),
        "templates": templates,
        "volumes": volumes,
    }
    return {**frame, "metadata": metadata, "spec": {name: value for name, value in spec.items() if value is not None}}


@_built_once
def _frame(
    priority: Priority,
    is_suspended: bool,
    clean_pod_policy: CleanPodPolicy,
    ttl_seconds: int | None,
    deadline_seconds: int | None,
) -> m.Workflow:
    """The Workflow without what depends on more of the job than this, in the order of the fields of Argo's Workflow."""
    return m.Workflow(
        api_version=WORKFLOW.api_version,
        kind=WORKFLOW.name,
        metadata=m.ObjectMeta(),
        spec=m.WorkflowSpec(
            entrypoint=keys.TEMPLATE_JOB,
            service_account_name=keys.WORKER_ACCOUNT,
            pod_priority_class_name=keys.PRIORITY_CLASSES[priority],
            priority=keys.WORKFLOW_PRIORITIES[priority],
            ttl_strategy=None if ttl_seconds is None else m.TTLStrategy(seconds_after_completion=ttl_seconds),
            pod_gc=m.PodGC(strategy="OnWorkflowCompletion") if clean_pod_policy == "All" else None,
            # A gang that is not admitted yet has no pods: the allocator lifts this when it has places for them.
            suspend=True if is_suspended else None,
            active_deadline_seconds=deadline_seconds,
            arguments=m.Arguments(),
            pod_metadata=m.Metadata(),
            pod_spec_patch="",
            security_context=m.PodSecurityContext(),
            templates=[],
            volumes=[],
        ),
    )


def to_yaml(job: DIJob, *, settings: RenderSettings | None = None) -> str:
    """The Argo Workflow of a job as YAML for `argo submit` and `kubectl create`."""
    # Expressions on one line are searchable, and shorter than folded ones.
    return dump_yaml(render(job, settings=settings), width=_LONGEST_LINE)


def _labels(job: DIJob) -> dict[str, str]:
    labels = {
        **job.labels,
        keys.MANAGED_BY: keys.MANAGED_BY_VALUE,
        keys.PRIORITY: job.priority,
        keys.PREEMPTIBLE: str(job.preemptible).lower(),
        keys.SCHEDULING: job.scheduling or "none",
        keys.GRANTED: str(sum(task.replicas for task in job.tasks)),
    }
    if job.scheduling == "gang":
        labels[keys.ADMITTED] = "false"
    return {**labels, keys.QUEUE: job.queue} if job.queue else labels


def _annotations(job: DIJob) -> dict[str, str]:
    roles = ", ".join(f"{task.replicas} × {task.name}" for task in job.tasks)
    mode = "preemptible" if job.preemptible else "not preemptible"
    where = f", in one {job.topology.required}" if job.topology is not None else ""
    return {
        keys.TITLE: f"DIJob {job.name}",
        keys.DESCRIPTION: f"{roles}; {job.priority} priority, {mode}, backoffLimit {job.backoff_limit}{where}",
        **job.annotations,
        **({keys.HELD: "true"} if job.suspend else {}),
        keys.DIJOB: dijob_annotation(job),
        keys.VERSION: __version__,
    }


@_built_once
def superseded() -> m.Template:
    return m.Template(name=keys.TEMPLATE_SUPERSEDED, suspend=m.SuspendTemplate(duration="0"))


@_built_once
def job_dag() -> m.Template:
    return m.Template(
        name=keys.TEMPLATE_JOB,
        dag=m.DAGTemplate(
            tasks=[
                m.DAGTask(
                    name="round",
                    template=keys.TEMPLATE_ROUND,
                    arguments=arguments(round="{{item}}"),
                    with_param=f"{{{{workflow.parameters.{keys.PARAM_ROUNDS}}}}}",
                )
            ]
        ),
    )


@_built_once
def _round_dag(tasks: tuple[str, ...], restarts_together: bool, backoff_limit: int) -> m.Template:
    ended = " && ".join(f"({has_ended(task)})" for task in tasks)
    leaf = m.DAGTask(
        name=keys.TEMPLATE_SUPERSEDED,
        template=keys.TEMPLATE_SUPERSEDED,
        depends=ended,
        when=expr.is_current().replace("==", "!="),
    )
    return m.Template(
        name=keys.TEMPLATE_ROUND,
        inputs=inputs("round"),
        retry_strategy=_retry(backoff_limit, expr.is_current()) if restarts_together else None,
        dag=m.DAGTemplate(fail_fast=False, tasks=[*(_fanout(task, restarts_together) for task in tasks), leaf]),
    )


def _fanout(task: str, restarts_together: bool) -> m.DAGTask:
    return m.DAGTask(
        name=dag_task(task),
        template=replica_name(task),
        arguments=arguments(
            round="{{inputs.parameters.round}}",
            index=expr.template(expr.index_of_item()),
            member="{{item}}",
            **({"attempt": "{{retries}}"} if restarts_together else {}),
        ),
        with_param=expr.template(expr.members(task)),
    )


@_built_once
def _replica_dag(task: str, backoff_limit: int, preemptible: bool, gives_up: bool, rules: Rules) -> m.Template:
    retried_alone = not preemptible and backoff_limit > 0
    restarts_together = preemptible and backoff_limit > 0
    given = _replica_inputs(restarts_together)
    attempt = "{{retries}}" if retried_alone else "{{inputs.parameters.attempt}}" if restarts_together else None
    last = f"'{attempt}' == '{backoff_limit}' && " if attempt else ""
    if last and (ends := expr.ends_the_job(dag_task(task), rules)):
        last = f"('{attempt}' == '{backoff_limit}' || {ends}) && "
    return m.Template(
        name=replica_name(task),
        annotations={keys.DISPLAY_NAME: f"{task}-{{{{inputs.parameters.member}}}}"},
        inputs=inputs(*given),
        retry_strategy=_retry(backoff_limit, expr.is_wanted(task)) if retried_alone else None,
        dag=m.DAGTemplate(
            tasks=[
                m.DAGTask(
                    name=dag_task(task),
                    template=task,
                    arguments=arguments(
                        **{name: f"{{{{inputs.parameters.{name}}}}}" for name in given},
                        **({"attempt": "{{retries}}"} if retried_alone else {}),
                        **({"memory": expr.template(expr.memory(task))} if rules.asks_for_memory else {}),
                    ),
                ),
                # In Argo a failed node fails every DAG above it, even after it was dropped from a fan-out. So a replica
                # that was stopped on purpose must count as Succeeded immediately.
                m.DAGTask(
                    name=keys.TEMPLATE_SUPERSEDED,
                    template=keys.TEMPLATE_SUPERSEDED,
                    depends=has_ended(task),
                    when=expr.template(expr.is_unwanted(task)),
                    # On the leaf: Argo evaluates no other hooks once the DAG has ended.
                    hooks={"give-up": _give_up(f"{last}{expr.has_failed(dag_task(task))} && {expr.is_wanted(task)}")}
                    if gives_up
                    else None,
                ),
            ]
        ),
    )


def _pods(common: Common, index: int, rules: Rules) -> Json:
    job = common.job
    task = job.tasks[index].name
    fields = pod_template(common, index)
    # A failed replica stops the others of its round; with backoffLimit 0 there is one attempt, without a number.
    restart = "" if not job.preemptible else "{{inputs.parameters.attempt}}" if _restarts_together(job) else "0"
    stopped = expr.is_stopped(deadline_seconds=fields.get("activeDeadlineSeconds"), restart=restart)
    # The user's part was checked with Hera's models when the job was made.
    template = {**fields, **_pod_frame(task, stopped, _pod_inputs(job, rules), rules)}
    return dict(sorted(template.items(), key=lambda item: _PLACE_IN_TEMPLATE[item[0]]))


@_built_once
def _pod_frame(task: str, stopped: str, given: tuple[str, ...], rules: Rules) -> m.Template:
    """What the template of a task's pods has besides the fields of `pod_template`."""
    return m.Template(
        name=task,
        annotations={keys.DISPLAY_NAME: f"{task}-{{{{inputs.parameters.member}}}}"},
        inputs=inputs(*given),
        retry_strategy=m.RetryStrategy(
            limit=m.IntOrString(root=UNCOUNTED_LIMIT),
            backoff=UNCOUNTED_BACKOFF,
            expression=f"{expr.is_wanted(task)} && ({expr.is_uncounted(rules)} || {stopped})",
        ),
    )


@_built_once
def _give_up_step() -> m.Template:
    """The step that stops the Workflow, under a service account that the job's own pods do not have."""
    stop = {
        "apiVersion": WORKFLOW.api_version,
        "kind": WORKFLOW.name,
        "metadata": {"name": "{{workflow.name}}", "namespace": "{{workflow.namespace}}"},
        "spec": {"shutdown": STOP},
    }
    return m.Template(
        name=keys.TEMPLATE_GIVE_UP,
        service_account_name=keys.STEPS_ACCOUNT,
        # The Workflow's patch and annotations of all pods read it.
        inputs=m.Inputs(parameters=[m.Parameter(name="round", default="")]),
        retry_strategy=m.RetryStrategy(
            limit=m.IntOrString(root=_STEP_RETRIES), retry_policy="Always", backoff=UNCOUNTED_BACKOFF
        ),
        # It always ends as Failed, as `argo retry` keeps everything that a succeeded step depends on.
        resource=m.ResourceTemplate(
            action="patch",
            merge_strategy="merge",
            failure_condition=f"spec.shutdown == {STOP}",
            manifest=dump_yaml(stop),
        ),
    )


def has_ended(task: str) -> str:
    return " || ".join(f"{dag_task(task)}.{result}" for result in ("Succeeded", "Failed", "Errored"))


def _give_up(expression: str) -> m.LifecycleHook:
    return m.LifecycleHook(template=keys.TEMPLATE_GIVE_UP, expression=expression)


def _retry(limit: int, expression: str) -> m.RetryStrategy:
    return m.RetryStrategy(limit=m.IntOrString(root=limit), expression=expression)


def _gives_up(job: DIJob, rules: Rules) -> bool:
    """Whether a replica whose failure is final stops the job itself. Of a preemptible job with a failure policy the
    allocator does that: a replica also fails because its peer was lost, which does not count."""
    return not (job.preemptible and job.scheduling == "gang" and rules.is_asked)


def _restarts_together(job: DIJob) -> bool:
    """Whether the round is retried, and not each replica."""
    return job.preemptible and job.backoff_limit > 0


def _replica_inputs(restarts_together: bool) -> tuple[str, ...]:
    return ("round", "index", "member", *(("attempt",) if restarts_together else ()))


def _pod_inputs(job: DIJob, rules: Rules) -> tuple[str, ...]:
    attempt, memory = ("attempt",) if job.backoff_limit else (), ("memory",) if rules.asks_for_memory else ()
    return ("round", "index", "member", *attempt, *memory)


def replica_name(task: str) -> str:
    # A capital letter, which no task's name has: the template of a task's pods is named as the task is.
    return f"replicaOf-{task}"


def inputs(*parameters: str) -> m.Inputs:
    return m.Inputs(parameters=[m.Parameter(name=name) for name in parameters])


def arguments(**values: str) -> m.Arguments:
    return m.Arguments(parameters=[m.Parameter(name=name, value=value) for name, value in values.items()])

"""DIJob → Argo Workflow: the DAG of rounds, tasks and replicas, and the steps around them.

    job (DAG)
    ├─ round   once for each entry of the parameter `rounds`
    │  ├─ <task>   one fan-out for each task, as many as `granted` says, named as `incarnations` says
    │  │  └─ replicaOf-<task> (DAG)   the counted retries: backoffLimit
    │  │     ├─ <task>              the pod, with the retries that are not counted
    │  │     └─ superseded          makes a replica that was stopped on purpose count as Succeeded
    │  └─ superseded   the same for a replaced round
    └─ pods-first, service   makes the headless Service, which the Workflow owns, shortly after the pods

A replica that failed finally makes Argo stop the others (`give-up`), so a job never hangs on pods that wait for a lost
peer. `clean-up` deletes the Service when the job has succeeded.
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast

from hera.workflows import Workflow
from hera.workflows import models as m

from diflow import bounds, keys, names
from diflow.errors import InvalidError
from diflow.job import DIJob, dump_yaml
from diflow.settings import RenderSettings, render_settings
from diflow.state.nodenames import dag_task
from diflow.state.patches import canonical_json
from diflow.version import __version__
from diflow.workflows import expressions as expr
from diflow.workflows.pods import dijob_annotation, pod_security, pod_template, roster_volume, token_volume

_FIRST_ROUND = "1"
# Attempts that are not counted are limited, too: each adds a node to the Workflow, whose size is limited.
_UNCOUNTED_LIMIT = 1000
_UNCOUNTED_BACKOFF = m.Backoff(duration="1s", factor=m.IntOrString(root=2), cap="60s")
_STEP_RETRIES = 5
_LONGEST_LINE = 65_536
# The step that makes the Service would delay the job's own pods, which have no address yet at that time.
_PODS_FIRST_SECONDS = "2"


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
    model = _model(job, settings if settings is not None else render_settings())
    data = model.model_dump(exclude_none=True, by_alias=True)
    size = len(canonical_json(data).encode())
    if size > bounds.MOST_WORKFLOW_BYTES:
        raise InvalidError(
            f"the Workflow of this job has {size} bytes, at most {bounds.MOST_WORKFLOW_BYTES} are allowed, as Argo "
            "keeps its state beside it: give the job fewer tasks or containers, or move long scripts into the image or "
            "into a ConfigMap",
            path="spec.tasks",
        )
    return data


def _model(job: DIJob, settings: RenderSettings) -> m.Workflow:
    tasks = [task.name for task in job.tasks]
    replicas = {task.name: task.replicas for task in job.tasks}
    parameters = {
        keys.PARAM_ROUNDS: canonical_json([_FIRST_ROUND]),
        keys.PARAM_CURRENT: _FIRST_ROUND,
        keys.PARAM_GRANTED: canonical_json({_FIRST_ROUND: replicas}),
        keys.PARAM_INCARNATIONS: "{}",
        keys.PARAM_RELEASED: "[]",
        keys.PARAM_TASKS: canonical_json(tasks),
        keys.PARAM_REPLICAS: canonical_json(replicas),
        keys.PARAM_PROFILINGS: "{}",
    }
    return m.Workflow(
        api_version="argoproj.io/v1alpha1",
        kind="Workflow",
        metadata=m.ObjectMeta(
            name=job.name, namespace=job.namespace, labels=_labels(job), annotations=_annotations(job)
        ),
        spec=m.WorkflowSpec(
            entrypoint=keys.TEMPLATE_JOB,
            # A failed job keeps its Service until its Workflow is deleted: `argo retry` starts pods again, but no step
            # that has succeeded. (Argo ignores the expression of the hook named `exit`, so this one has another name.)
            hooks={
                keys.TEMPLATE_CLEANUP: m.LifecycleHook(
                    template=keys.TEMPLATE_CLEANUP, expression="workflow.status == 'Succeeded'"
                )
            },
            service_account_name=keys.WORKER_ACCOUNT,
            pod_priority_class_name=keys.PRIORITY_CLASSES[job.priority],
            priority=keys.WORKFLOW_PRIORITIES[job.priority],
            security_context=m.PodSecurityContext.model_validate(pod_security({}, settings)),
            ttl_strategy=None
            if job.ttl_seconds_after_finished is None
            else m.TTLStrategy(seconds_after_completion=job.ttl_seconds_after_finished),
            pod_gc=m.PodGC(strategy="OnWorkflowCompletion") if job.clean_pod_policy == "All" else None,
            arguments=_arguments(**parameters),
            volumes=[m.Volume.model_validate(volume) for volume in (roster_volume(job), token_volume(job))],
            templates=[
                _job_dag(),
                _round_dag(job, tasks),
                *(_replica_dag(job, task) for task in tasks),
                *(_pods(job, index, settings) for index in range(len(tasks))),
                m.Template(name=keys.TEMPLATE_SUPERSEDED, suspend=m.SuspendTemplate(duration="0")),
                m.Template(name=keys.TEMPLATE_PODS_FIRST, suspend=m.SuspendTemplate(duration=_PODS_FIRST_SECONDS)),
                *_steps(),
            ],
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
    }
    return {**labels, keys.QUEUE: job.queue} if job.queue else labels


def _annotations(job: DIJob) -> dict[str, str]:
    roles = ", ".join(f"{task.replicas} × {task.name}" for task in job.tasks)
    mode = "preemptible" if job.preemptible else "not preemptible"
    return {
        keys.TITLE: f"DIJob {job.name}",
        keys.DESCRIPTION: f"{roles}; {job.priority} priority, {mode}, backoffLimit {job.backoff_limit}",
        **job.annotations,
        keys.DIJOB: dijob_annotation(job),
        keys.VERSION: __version__,
    }


def _job_dag() -> m.Template:
    return m.Template(
        name=keys.TEMPLATE_JOB,
        dag=m.DAGTemplate(
            tasks=[
                m.DAGTask(
                    name="round",
                    template=keys.TEMPLATE_ROUND,
                    arguments=_arguments(round="{{item}}"),
                    with_param=f"{{{{workflow.parameters.{keys.PARAM_ROUNDS}}}}}",
                ),
                m.DAGTask(name=keys.TEMPLATE_PODS_FIRST, template=keys.TEMPLATE_PODS_FIRST),
                m.DAGTask(
                    name="service",
                    template=keys.TEMPLATE_SERVICE,
                    depends=keys.TEMPLATE_PODS_FIRST,
                    hooks={"give-up": _give_up(expr.has_failed("service"))},
                ),
            ]
        ),
    )


def _round_dag(job: DIJob, tasks: list[str]) -> m.Template:
    restarts_together = _restarts_together(job)
    fanouts = [
        m.DAGTask(
            name=dag_task(task),
            template=_replica_name(task),
            arguments=_arguments(
                round="{{inputs.parameters.round}}",
                index=expr.template(expr.index_of_item()),
                member="{{item}}",
                **({"attempt": "{{retries}}"} if restarts_together else {}),
            ),
            with_param=expr.template(expr.members(task)),
        )
        for task in tasks
    ]
    ended = " && ".join(f"({_has_ended(task)})" for task in tasks)
    superseded = m.DAGTask(
        name=keys.TEMPLATE_SUPERSEDED,
        template=keys.TEMPLATE_SUPERSEDED,
        depends=ended,
        when=expr.is_current().replace("==", "!="),
    )
    return m.Template(
        name=keys.TEMPLATE_ROUND,
        inputs=_inputs("round"),
        retry_strategy=_retry(job.backoff_limit, expr.is_current()) if restarts_together else None,
        dag=m.DAGTemplate(fail_fast=False, tasks=[*fanouts, superseded]),
    )


def _replica_dag(job: DIJob, task: str) -> m.Template:
    retried_alone = not job.preemptible and job.backoff_limit > 0
    restarts_together = _restarts_together(job)
    attempt = "{{retries}}" if retried_alone else "{{inputs.parameters.attempt}}" if restarts_together else None
    last = f"'{attempt}' == '{job.backoff_limit}' && " if attempt else ""
    return m.Template(
        name=_replica_name(task),
        annotations={keys.DISPLAY_NAME: f"{task}-{{{{inputs.parameters.member}}}}"},
        inputs=_inputs(*_pod_inputs(job)),
        retry_strategy=_retry(job.backoff_limit, expr.is_wanted(task)) if retried_alone else None,
        dag=m.DAGTemplate(
            tasks=[
                m.DAGTask(
                    name=dag_task(task),
                    template=task,
                    arguments=_arguments(
                        **{name: f"{{{{inputs.parameters.{name}}}}}" for name in _pod_inputs(job)},
                    ),
                ),
                # In Argo a failed node fails every DAG above it, even after it was dropped from a fan-out. So a replica
                # that was stopped on purpose must count as Succeeded immediately.
                m.DAGTask(
                    name=keys.TEMPLATE_SUPERSEDED,
                    template=keys.TEMPLATE_SUPERSEDED,
                    depends=_has_ended(task),
                    when=expr.template(expr.is_unwanted(task)),
                    # On the leaf: Argo evaluates no other hooks once the DAG has ended.
                    hooks={"give-up": _give_up(f"{last}{expr.has_failed(dag_task(task))} && {expr.is_wanted(task)}")},
                ),
            ]
        ),
    )


def _pods(job: DIJob, index: int, settings: RenderSettings) -> m.Template:
    task = job.tasks[index].name
    fields = pod_template(job, index, settings)
    # A failed replica stops the others of its round; with backoffLimit 0 there is one attempt, without a number.
    restart = "" if not job.preemptible else "{{inputs.parameters.attempt}}" if _restarts_together(job) else "0"
    stopped = expr.is_stopped(deadline_seconds=fields.get("activeDeadlineSeconds"), restart=restart)
    return m.Template.model_validate(
        {
            "name": task,
            "annotations": {keys.DISPLAY_NAME: f"{task}-{{{{inputs.parameters.member}}}}"},
            "inputs": _inputs(*_pod_inputs(job)),
            "retryStrategy": m.RetryStrategy(
                limit=m.IntOrString(root=_UNCOUNTED_LIMIT),
                retry_policy="Always",
                backoff=_UNCOUNTED_BACKOFF,
                expression=f"{expr.is_wanted(task)} && ({expr.is_uncounted()} || {stopped})",
            ),
            **fields,
        }
    )


@cache
def _steps() -> tuple[m.Template, ...]:
    """The steps that act for the job, under a service account of their own."""
    service = names.service("{{workflow.name}}")
    make_service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": service,
            "namespace": "{{workflow.namespace}}",
            "labels": {keys.JOB: "{{workflow.name}}", keys.MANAGED_BY: keys.MANAGED_BY_VALUE},
        },
        "spec": {
            "clusterIP": "None",
            # Replicas resolve each other's names while they start.
            "publishNotReadyAddresses": True,
            "selector": {keys.JOB: "{{workflow.name}}"},
            "ports": [{"name": keys.PORT_NAME, "port": keys.PORT, "targetPort": keys.PORT}],
        },
    }
    stop = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"name": "{{workflow.name}}", "namespace": "{{workflow.namespace}}"},
        "spec": {"shutdown": "Stop"},
    }
    gone = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": service, "namespace": "{{workflow.namespace}}"}}
    return (
        _step(
            keys.TEMPLATE_SERVICE,
            # The manifest is ours: without validation kubectl does not fetch the OpenAPI schema first.
            m.ResourceTemplate(
                action="apply", set_owner_reference=True, flags=["--validate=false"], manifest=dump_yaml(make_service)
            ),
        ),
        _step(
            keys.TEMPLATE_GIVE_UP,
            # It always ends as Failed, as `argo retry` keeps everything that a succeeded step depends on.
            m.ResourceTemplate(
                action="patch",
                merge_strategy="merge",
                failure_condition="spec.shutdown == Stop",
                manifest=dump_yaml(stop),
            ),
        ),
        _step(
            keys.TEMPLATE_CLEANUP,
            m.ResourceTemplate(action="delete", flags=["--ignore-not-found"], manifest=dump_yaml(gone)),
        ),
    )


def _step(name: str, resource: m.ResourceTemplate) -> m.Template:
    return m.Template(
        name=name,
        service_account_name=keys.STEPS_ACCOUNT,
        retry_strategy=m.RetryStrategy(
            limit=m.IntOrString(root=_STEP_RETRIES), retry_policy="Always", backoff=_UNCOUNTED_BACKOFF
        ),
        resource=resource,
    )


def _has_ended(task: str) -> str:
    return " || ".join(f"{dag_task(task)}.{result}" for result in ("Succeeded", "Failed", "Errored"))


def _give_up(expression: str) -> m.LifecycleHook:
    return m.LifecycleHook(template=keys.TEMPLATE_GIVE_UP, expression=expression)


def _retry(limit: int, expression: str) -> m.RetryStrategy:
    return m.RetryStrategy(limit=m.IntOrString(root=limit), retry_policy="Always", expression=expression)


def _restarts_together(job: DIJob) -> bool:
    """Whether the round is retried, and not each replica."""
    return job.preemptible and job.backoff_limit > 0


def _pod_inputs(job: DIJob) -> tuple[str, ...]:
    return ("round", "index", "member", *(("attempt",) if _restarts_together(job) else ()))


def _replica_name(task: str) -> str:
    # A capital letter, which no task's name has: the template of a task's pods is named as the task is.
    return f"replicaOf-{task}"


def _inputs(*parameters: str) -> m.Inputs:
    return m.Inputs(parameters=[m.Parameter(name=name) for name in parameters])


def _arguments(**values: str) -> m.Arguments:
    return m.Arguments(parameters=[m.Parameter(name=name, value=value) for name, value in values.items()])

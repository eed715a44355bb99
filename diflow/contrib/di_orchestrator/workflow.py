"""v1alpha1 DIJob → Argo Workflow: a coordinator, and the replicas that it asks for by the REST API.

    job (DAG)
    └─ round   once for each entry of the parameter `rounds`, side by side
       ├─ coordinator   in round 1
       └─ <module>      one fan-out for each module, as many as the parameter `modules` says for this round
          └─ replicaOf-<module> (DAG)
             ├─ <module>        the pod; one that is asked for is made again whenever it ends with an error
             └─ superseded      makes a replica that is not wanted any more count as Succeeded

The fan-out of rounds stays open while the coordinator runs, so that each request can append to it. A round never
changes: Argo skips an empty fan-out for good, and the nodes of a fan-out are found by their index. docs/decisions/0020.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

from hera.workflows import models as m

from diflow.common import keys
from diflow.common.jsontext import canonical_json
from diflow.contrib.di_orchestrator import expressions as of_modules
from diflow.contrib.di_orchestrator.modules import (
    ADDED,
    AGGREGATOR,
    COLLECTOR,
    COORDINATOR,
    DDP_LEARNER,
    LEARNER,
    MASTER_PORT,
    PORTS,
)
from diflow.dijob.model import DIJob, Task
from diflow.dijob.settings import RenderSettings, render_settings
from diflow.record.argo.node_names import dag_task
from diflow.record.patches import FIRST_ROUND, initial
from diflow.version import __version__
from diflow.workflows import expressions as expr
from diflow.workflows.escape import Template
from diflow.workflows.job import (
    UNCOUNTED_BACKOFF,
    UNCOUNTED_LIMIT,
    arguments,
    checked,
    has_ended,
    inputs,
    job_dag,
    plain,
    replica_name,
    superseded,
    workflow_of,
)
from diflow.workflows.pods import Common, Variable, own_metadata, template_of, token_volume

Json = dict[str, Any]

_INPUTS: Final = ("round", "index", "member")
_PORT_VARIABLES: Final = {
    COORDINATOR: "COORDINATOR_PORT",
    COLLECTOR: "COLLECTOR_PORT",
    LEARNER: "LEARNER_PORT",
    DDP_LEARNER: "LEARNER_PORT",
    AGGREGATOR: "AGGREGATOR_PORT",
}
_DDP_VARIABLES: Final = {"WORLD_SIZE": "world", "LOCAL_WORLD_SIZE": "local", "START_RANK": "start"}


def render(job: DIJob, *, settings: RenderSettings | None = None) -> Json:
    """The Argo Workflow of a job whose tasks are modules, the coordinator first (`manifest`), as plain data.

    Raises InvalidError if it is too large.
    """
    settings = settings if settings is not None else render_settings()
    job = job.model_copy(update={"tasks": tuple(_with_port(task) for task in job.tasks)})
    modules = [task.name for task in job.tasks]
    alone = job.model_copy(update={"tasks": job.tasks[:1]})  # what all readers of jobs see
    data = workflow_of(
        alone,
        settings,
        parameters={**initial({COORDINATOR: 1}, is_gang=False), keys.PARAM_MODULES: "{}"},
        common=Common.with_env(job, settings, []),
        pods=None,
        volumes=[token_volume(job)],
        templates=[
            job_dag(),
            _round_dag(modules),
            *(_replica_dag(module) for module in modules),
            *(_pods(job, settings, index) for index in range(len(modules))),
            superseded(),
        ],
    )
    data["metadata"]["annotations"] |= {
        keys.DESCRIPTION: f"a coordinator, which asks for {' and '.join(modules[1:]) or 'nothing else'}",
        keys.MODULES: canonical_json({task.name: _port(task) for task in job.tasks}),
        keys.VERSION: __version__,
    }
    return checked(data)


def _port(task: Task) -> int:
    found = (
        port.get("containerPort") for port in task.work_container.get("ports", []) if port.get("name") == keys.PORT_NAME
    )
    return int(next(found, PORTS[task.name]))


def _with_port(task: Task) -> Task:
    """The task with a port of the name that clients look for."""
    work = task.work_container
    if any(port.get("name") == keys.PORT_NAME for port in work.get("ports", [])):
        return task
    port = {"name": keys.PORT_NAME, "containerPort": PORTS[task.name]}
    changed = {**work, "ports": [*work.get("ports", []), port]}
    spec = task.template["spec"]
    containers = [changed if one is work else one for one in spec["containers"]]
    return task.model_copy(update={"template": {**task.template, "spec": {**spec, "containers": containers}}})


def _round_dag(modules: list[str]) -> Json:
    lists = {module: of_modules.indices(module) for module in modules} | {COORDINATOR: of_modules.only_in(FIRST_ROUND)}
    tasks = [
        m.DAGTask(
            name=dag_task(module),
            template=replica_name(module),
            arguments=arguments(round="{{inputs.parameters.round}}", index="{{item}}", member="{{item}}"),
            with_param=expr.template(lists[module]),
        )
        for module in modules
    ]
    return plain(
        m.Template(name=keys.TEMPLATE_ROUND, inputs=inputs("round"), dag=m.DAGTemplate(fail_fast=False, tasks=tasks))
    )


def _replica_dag(module: str) -> Json:
    tasks = [
        m.DAGTask(
            name=dag_task(module),
            template=module,
            arguments=arguments(**{name: f"{{{{inputs.parameters.{name}}}}}" for name in _INPUTS}),
        )
    ]
    if module in ADDED:
        leaf = m.DAGTask(
            name=keys.TEMPLATE_SUPERSEDED,
            template=keys.TEMPLATE_SUPERSEDED,
            depends=has_ended(module),
            when=expr.template(expr.is_released(module)),
        )
        tasks.append(leaf)
    return plain(
        m.Template(
            name=replica_name(module),
            annotations={
                keys.DISPLAY_NAME: f"{module}-{{{{inputs.parameters.round}}}}-{{{{inputs.parameters.member}}}}"
            },
            inputs=inputs(*_INPUTS),
            dag=m.DAGTemplate(tasks=tasks),
        )
    )


def _pods(job: DIJob, settings: RenderSettings, index: int) -> Json:
    task = job.tasks[index]
    module, path = task.name, f"spec.tasks[{index}].template"
    end = _end_of_name(module)
    hostname = f"{{{{workflow.name}}}}-{end}"
    fields = template_of(
        Common.with_env(job, settings, _env(task, hostname, settings)),
        index,
        metadata=_metadata(task, path, hostname),
        ours={"hostname": hostname},
        gates=task.template["spec"].get("schedulingGates", ()),
        fields=None if module in (COORDINATOR, AGGREGATOR) else _requested(module),
    )
    frame = m.Template(
        name=module,
        annotations={keys.DISPLAY_NAME: _end_of_name(module, is_renamed=False)},
        inputs=inputs(*_INPUTS),
        retry_strategy=m.RetryStrategy(
            limit=m.IntOrString(root=UNCOUNTED_LIMIT), backoff=UNCOUNTED_BACKOFF, expression=expr.is_uncounted()
        )
        if module == COORDINATOR
        else m.RetryStrategy(backoff=UNCOUNTED_BACKOFF, expression=expr.is_kept(module)),
    )
    return {**plain(m.Template.model_validate(fields)), **plain(frame)}


def _end_of_name(module: str, *, is_renamed: bool = True) -> str:
    """What a host name has after that of the job. `is_renamed`: with the number of the pod, which Argo does not know
    when it sets the display name."""
    if module == COORDINATOR:
        return COORDINATOR
    # The ddp learners of a learner find the first of them by its name.
    return expr.template(of_modules.identity(module, is_renamed=is_renamed and module != DDP_LEARNER))


def _requested(module: str) -> Json:
    return {Template(expr.template(of_modules.requested(module, own=module == DDP_LEARNER))): None}


def _metadata(task: Task, path: str, hostname: str) -> Json:
    given = own_metadata(task, path)
    module = task.name
    labels = {
        **(given.get("labels") or {}),
        keys.JOB: "{{workflow.name}}",
        keys.OPERATOR: keys.OPERATOR_VALUE,
        keys.POD: hostname,
        keys.TASK_TYPE: module if module in (COLLECTOR, LEARNER) else "none",
        keys.TASK_NAME: module,
        keys.ROUND: "{{inputs.parameters.round}}",
        keys.GROUP_NAME: keys.API_GROUP,
        keys.DIJOB_NAME: "{{workflow.name}}",
        keys.CONTROLLER_NAME: keys.CONTROLLER_NAME_VALUE,
        keys.REPLICA_TYPE: module,
        keys.POD_NAME: hostname,
    }
    if module == DDP_LEARNER:
        kind = f"'{DDP_LEARNER}-' + ({of_modules.is_first()} ? 'master' : 'worker')"
        labels[keys.DDP_LEARNER_TYPE] = expr.template(f"{of_modules.count(module)} > 1 ? {kind} : ''")
    annotations = {**(given.get("annotations") or {}), keys.TASK_RANK: "{{inputs.parameters.index}}"}
    return {"labels": labels, "annotations": annotations}


def _env(task: Task, hostname: str, settings: RenderSettings) -> list[Variable]:
    module = task.name
    server = urlsplit(settings.server_url)
    values = {
        "DI_JOB_ID": "{{workflow.namespace}}/{{workflow.name}}",
        "DI_SERVER_URL": settings.server_url,
        "KUBERNETES_POD_NAMESPACE": "{{workflow.namespace}}",
        "KUBERNETES_POD_NAME": hostname,
        "KUBERNETES_SERVER_URL": server.netloc or settings.server_url,  # clients want `host:port`, without a scheme
        _PORT_VARIABLES[module]: str(_port(task)),
    }
    domain = f"{keys.SERVICE}.{{{{workflow.namespace}}}}"
    if module == COORDINATOR:
        values["KUBERNETES_COORDINATOR_URL"] = f"{hostname}.{domain}:{_port(task)}"
    if module == DDP_LEARNER:
        values |= {name: expr.template(of_modules.of_each(module, field)) for name, field in _DDP_VARIABLES.items()}
        first = of_modules.identity(module, index="0", is_renamed=False)
        host = f"workflow.name + '-' + {first} + '.{keys.SERVICE}.' + workflow.namespace"
        values["MASTER_ADDR"] = expr.template(f"{of_modules.is_first()} ? 'localhost' : {host}")
        values["MASTER_PORT"] = str(MASTER_PORT)
    return [{"name": name, "value": value} for name, value in values.items()]

"""A DIJob as a step of any larger Workflow: an Argo resource template, for Hera and as a WorkflowTemplate.

The step creates a DIJob object, waits until it has ended, and succeeds or fails with it. The controller makes the
Workflow of the job, and stops the job when the pod of the step has ended, for whatever reason (`keys.WAITED_BY`): after
`argo terminate` Argo runs nothing of a Workflow any more that could stop another one. The object belongs to the outer
Workflow, and is deleted with it.

Each try of the step has a job of its own. The name of the job is random, but the same for all requests of one pod, and
`kubectl apply` of the same object again changes nothing: a request that is sent twice makes one job.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from hera.workflows import Parameter, Resource
from hera.workflows import models as m

from diflow.common import keys
from diflow.common.errors import InvalidError
from diflow.dijob.model import DIJob
from diflow.dijob.settings import render_settings
from diflow.dijob.yamltext import dump_yaml
from diflow.kube.kinds import WORKFLOW
from diflow.workflows.escape import Template, patch_json
from diflow.workflows.pods import pod_security

Json = dict[str, Any]

TEMPLATE: Final = "dijob"
WORKFLOW_TEMPLATE: Final = "diflow"
RESULT: Final = "result"
"""The output with what the first replica of the job has written to /dev/termination-log."""
JOB: Final = "job"
"""The output with the name of the job."""

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OURS: Final = "DI_"
_RANDOM: Final = 6
# What is random has no capital letters in a name.
_SUFFIX: Final = f"-{{{{=sprig.lower(sprig.randAlphaNum({_RANDOM}))}}}}"
# Argo inserts the value into JSON text: as JSON without its quotes, and without the braces of another template.
_TEXT: Final = "{{{{=replace(toJson(inputs.parameters.{name})[1:-1],'{{','\\u007b')}}}}"
_ANNOTATIONS: Final = {keys.WAITED_BY: "{{pod.name}}"}
_SUCCEEDED: Final = "status.phase == Succeeded"
_FAILED: Final = "status.phase == Failed"
_DOCS: Final = {
    keys.TITLE: "A DIJob as a step",
    keys.DESCRIPTION: "Creates a DIJob from its spec, waits for its end, and returns its name and its result.",
}


def step(
    job: DIJob,
    *,
    parameters: Iterable[str] | Mapping[str, str | None] = (),
    name: str = "",
    **options: Any,
) -> Resource:
    """A template for Hera that runs `job`: call it in a DAG or in Steps, as any other template.

    `parameters` are inputs of the step, with their defaults if it is a mapping (None: there is none). Each is an
    environment variable in all containers of the job, in place of one with its name that the job has. The outputs are
    `job`, the name of the DIJob, and `result`, what its first replica has written to /dev/termination-log (4 KiB).
    `name` is that of the template, by default that of the job; `options` are those of `hera.workflows.Resource`, such
    as `retry_strategy` and `active_deadline_seconds`.

    Raises InvalidError for a job that has a namespace, as it runs in that of the Workflow, and for parameters that
    cannot be environment variables.
    """
    given = dict(parameters) if isinstance(parameters, Mapping) else dict.fromkeys(parameters)
    if job.namespace is not None:
        raise InvalidError("the job of a step runs in the namespace of its Workflow: remove it", path="namespace")
    for variable in given:
        if not _VARIABLE.fullmatch(variable):
            raise InvalidError(
                f"{variable!r} cannot be an environment variable: letters, digits and underscores", path="parameters"
            )
        if variable.startswith(_OURS):
            raise InvalidError(f"{variable}: variables {_OURS}... are set by diflow", path="parameters")
    _check(job, given)
    manifest = job.to_manifest()
    metadata = manifest["metadata"]
    ours = {
        "apiVersion": manifest["apiVersion"],
        "kind": manifest["kind"],
    }
    users = {
        "metadata": {
            **metadata,
            "name": Template(f"{job.name}{_SUFFIX}"),
            "annotations": {**metadata.get("annotations", {}), **{k: Template(v) for k, v in _ANNOTATIONS.items()}},
        },
        "spec": _with_variables(manifest["spec"], {v: Template(_TEXT.format(name=v)) for v in given}),
    }
    return Resource(
        name=name or job.name,
        inputs=[
            Parameter(name=variable, **({} if default is None else {"default": default}))
            for variable, default in given.items()
        ],
        **_common(patch_json(ours, users)),
        **options,
    )


def template_yaml() -> str:
    """The WorkflowTemplate whose template `dijob` runs any DIJob: its inputs are `name` and `spec`, as YAML."""
    text = json.dumps(_TEXT.format(name="name"))[1:-1]
    manifest = (
        f"apiVersion: {keys.API_VERSION}\n"
        f"kind: {keys.KIND}\n"
        "metadata:\n"
        f'  name: "{text}{_SUFFIX}"\n'
        "  annotations:\n"
        + "".join(f'    {key}: "{value}"\n' for key, value in _ANNOTATIONS.items())
        + "spec: {{=sprig.nindent(2, inputs.parameters.spec)}}\n"
    )
    resource = Resource(
        name=TEMPLATE,
        inputs=[Parameter(name="name", default=JOB), Parameter(name="spec")],
        **_common(manifest),
    )
    model = m.WorkflowTemplate(
        api_version=WORKFLOW.api_version,
        kind="WorkflowTemplate",
        metadata=m.ObjectMeta(
            name=WORKFLOW_TEMPLATE,
            labels={"app.kubernetes.io/part-of": keys.MANAGED_BY_VALUE},
            annotations=_DOCS,
        ),
        spec=m.WorkflowSpec(templates=[resource._build_template()]),
    )
    return dump_yaml(model.model_dump(exclude_none=True, by_alias=True))


def _common(manifest: str) -> Json:
    """What the templates of all steps have in common."""
    security = pod_security({}, render_settings())
    return {
        "action": "apply",
        "manifest": manifest,
        "set_owner_reference": True,
        "success_condition": _SUCCEEDED,
        "failure_condition": _FAILED,
        "outputs": [
            Parameter(name=JOB, value_from=m.ValueFrom(json_path="{.metadata.name}")),
            Parameter(name=RESULT, value_from=m.ValueFrom(json_path="{.status.result}")),
        ],
        "labels": {keys.STEP: "true"},
        "service_account_name": keys.SUBMIT_ACCOUNT,
        "pod_security_context": m.PodSecurityContext.model_validate(security),
    }


def _check(job: DIJob, variables: Iterable[str]) -> None:
    """Check the job as it will be created: with a longer name, and with the variables."""
    manifest = job.to_manifest()
    manifest["metadata"]["name"] += "-" + "x" * _RANDOM
    manifest["spec"] = _with_variables(manifest["spec"], dict.fromkeys(variables, ""))
    DIJob.from_manifest(manifest)


def _with_variables(spec: Json, values: Mapping[str, str]) -> Json:
    """The spec of a job with these environment variables in all containers."""
    return {**spec, "tasks": [{**task, "template": _pod_with(task["template"], values)} for task in spec["tasks"]]}


def _pod_with(template: Json, values: Mapping[str, str]) -> Json:
    if not values:
        return template
    pod = dict(template["spec"])
    for field in ("containers", "initContainers"):
        if field in pod:
            pod[field] = [_container_with(container, values) for container in pod[field]]
    return {**template, "spec": pod}


def _container_with(container: Json, values: Mapping[str, str]) -> Json:
    own = [item for item in container.get("env", []) if item.get("name") not in values]
    # First, so that the job's own variables can refer to them.
    return {**container, "env": [*({"name": name, "value": value} for name, value in values.items()), *own]}

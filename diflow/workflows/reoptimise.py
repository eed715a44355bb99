"""The scheduled re-optimisation: a CronWorkflow with one step, which plans the whole cluster once per run.

The step does what the allocator's daemon does at each change, under the same Lease, so the two never write
concurrently. Its plan is the step's output parameter `plan`, which the Argo UI shows.
"""

from __future__ import annotations

import re
from typing import Any, Final

from hera.workflows import models as m

from diflow.common import keys, names
from diflow.common.errors import InvalidError
from diflow.common.jsontext import canonical_json
from diflow.dijob.settings import RenderSettings, render_settings
from diflow.dijob.yamltext import dump_yaml
from diflow.kube.kinds import WORKFLOW
from diflow.version import __version__
from diflow.workflows.pods import ARGO_INIT, ARGO_WAIT, CONFINED, pod_security
from diflow.workflows.schedule import check_schedule, check_timezone

DEFAULT_IMAGE: Final = f"docker.io/diflow/diflow:{__version__}"
DEFAULT_NAMESPACE: Final = "diflow-system"  # where the allocator and the accounts are
DEFAULT_SCHEDULE: Final = "0 * * * *"
DEFAULT_TIMEZONE: Final = "UTC"

_NAME = "diflow-reoptimise"
_TEMPLATE = "reoptimise"
# `diflow allocator once` keeps it below 200 KiB: Argo stores an output parameter in the Workflow itself, twice with
# retries, and etcd limits the object to 1.5 MiB.
_PLAN = "/tmp/plan.txt"  # noqa: S108 (inside the container)
# A run takes seconds. These limits are for a run that hangs: on an image that cannot be pulled, or a full cluster.
_DEADLINE_SECONDS = 600
_STARTING_DEADLINE_SECONDS = 300
_KEPT_RUNS = 5
_RETRIES = 2

_RESTRICTED = {"initContainers": [ARGO_INIT], "containers": [ARGO_WAIT]}


def render_cron(
    *,
    schedule: str = DEFAULT_SCHEDULE,
    timezone: str = DEFAULT_TIMEZONE,
    image: str = DEFAULT_IMAGE,
    namespace: str = DEFAULT_NAMESPACE,
    settings: RenderSettings | None = None,
) -> dict[str, Any]:
    """The CronWorkflow as plain data.

    `schedule` is a cron expression of five fields, read in `timezone` (IANA, such as Europe/Berlin).
    Raises InvalidError for what Argo would reject, now or at its first run.
    """
    check_schedule(schedule)
    check_timezone(timezone)
    names.check_label(namespace, what="the namespace", path="namespace")
    if not image or re.search(r"\s|\{\{", image):
        raise InvalidError(f"{image!r} is not a valid name of an image", path="image")
    settings = settings if settings is not None else render_settings()
    model = m.CronWorkflow(
        api_version=WORKFLOW.api_version,
        kind="CronWorkflow",
        metadata=_metadata(name=_NAME, namespace=namespace),
        spec=m.CronWorkflowSpec(
            schedules=[" ".join(schedule.split())],
            timezone=timezone,
            concurrency_policy="Forbid",
            starting_deadline_seconds=_STARTING_DEADLINE_SECONDS,
            successful_jobs_history_limit=_KEPT_RUNS,
            failed_jobs_history_limit=_KEPT_RUNS,
            workflow_metadata=_metadata(),
            workflow_spec=m.WorkflowSpec(
                entrypoint=_TEMPLATE,
                service_account_name=_NAME,
                active_deadline_seconds=_DEADLINE_SECONDS,
                security_context=m.PodSecurityContext.model_validate(pod_security({}, settings)),
                arguments=m.Arguments(parameters=[m.Parameter(name="image", value=image)]),
                templates=[_step()],
                volumes=[m.Volume.model_validate({"name": "tmp", "emptyDir": {}})],
                pod_spec_patch=canonical_json(_RESTRICTED),
            ),
        ),
    )
    return model.model_dump(exclude_none=True, by_alias=True)


def cron_yaml(**options: Any) -> str:
    """The CronWorkflow as YAML; the options are those of `render_cron`."""
    return dump_yaml(render_cron(**options))


def _metadata(**named: str) -> m.ObjectMeta:
    return m.ObjectMeta(
        **named,
        labels={"app.kubernetes.io/part-of": keys.MANAGED_BY_VALUE},
        annotations={
            keys.TITLE: "diflow: re-optimisation",
            keys.DESCRIPTION: "Plans the whole cluster; the plan is the output of its step.",
        },
    )


def _step() -> m.Template:
    return m.Template.model_validate(
        {
            "name": _TEMPLATE,
            "retryStrategy": {"limit": _RETRIES, "retryPolicy": "Always", "backoff": {"duration": "10s", "factor": 2}},
            "container": {
                "image": "{{workflow.parameters.image}}",
                "command": ["diflow", "allocator", "once", "--output", _PLAN],
                "env": [{"name": "DIFLOW_ALLOCATOR_NAMESPACE", "value": "{{workflow.namespace}}"}],
                "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
                "securityContext": {**CONFINED, "readOnlyRootFilesystem": True},
                "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108
            },
            "outputs": {"parameters": [{"name": "plan", "valueFrom": {"path": _PLAN}}]},
        }
    )

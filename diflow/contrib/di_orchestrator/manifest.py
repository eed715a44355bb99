"""DIJobs of DI-orchestrator v0.x: a coordinator, which asks for collectors and learners by the REST API.

Such a manifest becomes a job whose tasks are its modules, the coordinator first; `workflow` renders it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from diflow.common import keys
from diflow.common.errors import InvalidError, NotFoundError, UnauthorizedError, UnavailableError
from diflow.contrib.di_orchestrator.modules import AGGREGATOR, COLLECTOR, COORDINATOR, DDP_LEARNER, LEARNER
from diflow.dijob import manifests
from diflow.jobs import dijobs
from diflow.kube.api import Cluster
from diflow.kube.kinds import Kind
from diflow.kube.refusals import UnknownKindError
from diflow.record import untrusted

if TYPE_CHECKING:
    from diflow.dijob.model import DIJob

Json = dict[str, Any]

AGGREGATOR_CONFIG: Final = Kind("AggregatorConfig", keys.API_GROUP, "v1alpha1", "aggregatorconfigs")
_OF_AGGREGATORS: Final = "the AggregatorConfig: spec.aggregator"
LONGEST_NAME: Final = 40
"""Of a job: the longest host name is `<job>-aggregator-<5 characters>-<number of the pod>`, of 63 characters."""


def is_one(obj: Mapping[str, Any]) -> bool:
    """Whether a DIJob object, of whatever version it was read as, has the form of v1alpha1."""
    spec = untrusted.sub(obj, "spec")
    return spec.get(COORDINATOR) is not None and not spec.get("tasks")


def job_of(obj: Mapping[str, Any], *, aggregator: Any = None) -> DIJob:
    """The job of a DIJob object of v1alpha1. `aggregator`: the PodTemplateSpec of aggregators, None if there is none.

    Raises InvalidError with the path in the manifest, and UnavailableError if that of aggregators is invalid: it is an
    administrator's, and jobs can wait until it is corrected.
    """
    spec = untrusted.sub(obj, "spec")
    name = untrusted.string(untrusted.sub(obj, "metadata").get("name"))
    if len(name) > LONGEST_NAME:
        raise InvalidError(
            f"has {len(name)} characters, and that of a job with a coordinator at most {LONGEST_NAME}: it is a part of "
            "host names",
            path="metadata.name",
        )
    templates = {COORDINATOR: _template(spec, COORDINATOR)}
    templates |= {module: _template(spec, module) for module in (COLLECTOR, LEARNER) if spec.get(module)}
    if LEARNER in templates and aggregator is not None:
        templates |= {AGGREGATOR: aggregator, DDP_LEARNER: templates[LEARNER]}
    if given := spec.get("priorityClassName"):
        templates[COORDINATOR] = _with_priority(templates[COORDINATOR], given)
    made = {
        "metadata": obj.get("metadata"),
        "spec": {
            **{name: spec[name] for name in ("cleanPodPolicy", "volumes") if name in spec},
            "backoffLimit": 0,
            "scheduling": "none",
            "tasks": [{"type": "none", "name": module, "template": found} for module, found in templates.items()],
        },
    }
    try:
        return dijobs.job_of(made)
    except InvalidError as error:
        path = _path(error.path, list(templates))
        if path.startswith(_OF_AGGREGATORS):
            raise UnavailableError(f"{path}: {error.message}") from None
        raise InvalidError(error.message, path=path) from None


def render(job: DIJob) -> Json:
    """The Workflow of such a job. Raises InvalidError."""
    from diflow.contrib.di_orchestrator import workflow  # noqa: PLC0415 (Hera takes half a second to import)

    try:
        return workflow.render(job)
    except InvalidError as error:
        raise InvalidError(error.message, path=path_in(error.path, job)) from None


def path_in(path: str, job: DIJob) -> str:
    """The path in the manifest of a field of its job."""
    return _path(path, [task.name for task in job.tasks])


def aggregator_of(cluster: Cluster, config: str) -> Any:
    """The PodTemplateSpec in the AggregatorConfig `namespace/name`; None if there is none, or nothing may be read."""
    namespace, _, name = config.partition("/")
    try:
        found = cluster.find(AGGREGATOR_CONFIG, name, namespace=namespace)
    except (UnknownKindError, UnauthorizedError, NotFoundError):
        return None
    return template_in(found) if found is not None else None


def aggregator_in(path: Path) -> Any:
    """The PodTemplateSpec in a file with an AggregatorConfig. Raises UnavailableError if there is none."""
    try:
        found = [document.data for document in manifests.read_file(path)]
    except InvalidError as error:
        raise UnavailableError(f"{path}: {error.message}") from None
    for data in found:
        if isinstance(data, Mapping) and data.get("kind") == AGGREGATOR_CONFIG.name:
            return template_in(data)
    raise UnavailableError(f"{path}: there is no {AGGREGATOR_CONFIG.name} in this file")


def template_in(config: Mapping[str, Any]) -> Any:
    """The PodTemplateSpec in an AggregatorConfig, None if it has none."""
    return untrusted.sub(config, "spec", "aggregator").get("template")


def _template(spec: Mapping[str, Any], module: str) -> Any:
    found = spec.get(module)
    if not isinstance(found, Mapping) or not isinstance(found.get("template"), Mapping):
        raise InvalidError("is missing: give the module a pod template", path=f"spec.{module}.template")
    return dict(found["template"])


def _with_priority(template: Any, name: Any) -> Json:
    spec = template.get("spec")
    return {**template, "spec": {"priorityClassName": name, **spec} if isinstance(spec, Mapping) else spec}


def _path(path: str, modules: list[str]) -> str:
    """The path of a field of a task, as the manifest has it."""
    for i, module in enumerate(modules):
        where = _OF_AGGREGATORS if module == AGGREGATOR else f"spec.{module}"
        path = path.replace(f"spec.tasks[{i}]", where)
    return path

"""The settings of Argo's workflow controller that decide whether diflow's jobs run, and how fast."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import yaml

from diflow.jobs.checks.argo_defaults import MAP, Remark
from diflow.jobs.checks.argo_defaults import remarks as of_config
from diflow.jobs.checks.deployments import Container, Deployed
from diflow.kube.kinds import CONFIG_MAP, DEPLOYMENT

if TYPE_CHECKING:
    from diflow.kube.api import Cluster

CONTROLLER: Final = "workflow-controller"
_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(h|ms|m|us|µs|ns|s)")
_MOST_CONFIG: Final = 100_000
"""Characters of one value of the ConfigMap that is parsed."""

GOOD_REQUEUE_SECONDS: Final = 2.0
"""Above this, what users wait for is mostly Argo's requeue time (docs/scale.md)."""
GOOD_QPS: Final = 50.0


@dataclass(frozen=True, slots=True)
class ArgoSettings:
    """The controller's settings, with Argo's defaults. 0 and "" mean: no limit, not set."""

    namespace: str
    """The controller's own."""
    requeue_seconds: float = 10.0
    """DEFAULT_REQUEUE_TIME: how long after a change Argo looks at a Workflow again."""
    qps: float = 20.0
    """Requests a second to the API server."""
    workers: int = 32
    instance_id: str = ""
    managed_namespace: str = ""
    """The only namespace whose Workflows it runs."""
    parallelism: int = 0
    """Workflows at a time, suspended ones included."""
    namespace_parallelism: int = 0
    restrictions: str = ""
    """workflowRestrictions: Strict and Secure run only Workflows that refer to a WorkflowTemplate."""
    config: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """All values of the ConfigMap."""


def read(cluster: Cluster) -> ArgoSettings | None:
    """The settings, from the controller's Deployment and its ConfigMap; None if there is no controller.

    Raises UnauthorizedError if the user may not read one of them.
    """
    found = controllers(cluster)
    if not found:
        return None
    namespace, container = found[0].namespace, next(iter(found[0].containers), Container.of({}))
    config = cluster.find(CONFIG_MAP, _flag(container.words, "configmap") or MAP, namespace=namespace)
    return parsed(namespace, container.words, container.environment, (config or {}).get("data") or {})


def controllers(cluster: Cluster) -> list[Deployed]:
    """The Deployments of Argo's workflow controller: one, mostly. Raises UnauthorizedError if the user may not list
    Deployments."""
    found = cluster.list_all(DEPLOYMENT, everywhere=True, fields=f"metadata.name={CONTROLLER}")
    return [Deployed.of(one) for one in found]


def parsed(
    namespace: str, words: Sequence[str], environment: Mapping[str, str], config: Mapping[str, str]
) -> ArgoSettings:
    """The settings from the command line, the environment and the data of the ConfigMap. Invalid values count as the
    defaults."""
    default = ArgoSettings(namespace)
    values = _config(config)
    restrictions = values.get("workflowRestrictions")
    managed = _flag(words, "managed-namespace") or (namespace if _is_set(words, "namespaced") else "")
    return ArgoSettings(
        namespace=namespace,
        requeue_seconds=seconds(environment.get("DEFAULT_REQUEUE_TIME", "")) or default.requeue_seconds,
        qps=_number(_flag(words, "qps")) or default.qps,
        workers=int(_number(_flag(words, "workflow-workers")) or default.workers),
        instance_id=str(values.get("instanceID") or ""),
        managed_namespace=managed,
        parallelism=int(_number(values.get("parallelism")) or 0),
        namespace_parallelism=int(_number(values.get("namespaceParallelism")) or 0),
        restrictions=str(restrictions.get("templateReferencing") or "") if isinstance(restrictions, Mapping) else "",
        config=values,
    )


def remarks(settings: ArgoSettings, *, namespace: str) -> list[Remark]:
    """What should be different for the jobs of a namespace."""
    there = f"-n {settings.namespace} deployment/{CONTROLLER}"
    out = []
    if settings.instance_id:
        out.append(
            Remark(
                f"it runs only Workflows with the instance id {settings.instance_id!r}, and diflow's have none",
                f"remove instanceID from ConfigMap {MAP}, or run a controller without it",
                is_fatal=True,
            )
        )
    if settings.managed_namespace and settings.managed_namespace != namespace:
        out.append(
            Remark(
                f"it runs only the Workflows of namespace {settings.managed_namespace}",
                f"submit there (-n {settings.managed_namespace}), or install Argo for the whole cluster",
                is_fatal=True,
            )
        )
    if settings.restrictions:
        out.append(
            Remark(
                f"workflowRestrictions are {settings.restrictions}: it fails Workflows without a workflowTemplateRef, "
                "as diflow's are",
                f"remove workflowRestrictions from ConfigMap {MAP}",
                is_fatal=True,
            )
        )
    if settings.requeue_seconds > GOOD_REQUEUE_SECONDS:
        out.append(
            Remark(
                f"it looks at a job that has changed after {settings.requeue_seconds:g} s: so long each start of a "
                "queued job, resize and end waits",
                f"kubectl set env {there} DEFAULT_REQUEUE_TIME=1s",
            )
        )
    if settings.qps < GOOD_QPS:
        out.append(
            Remark(
                f"it sends at most {settings.qps:g} requests a second, so a large job starts slowly",
                f"add --qps={GOOD_QPS:g} --burst={2 * GOOD_QPS:g} to the arguments of {there}",
            )
        )
    for name, limit in (
        ("parallelism", settings.parallelism),
        ("namespaceParallelism", settings.namespace_parallelism),
    ):
        if limit:
            out.append(
                Remark(
                    f"{name} is {limit}, and jobs that wait for capacity count: {limit} of them stop all others",
                    f"remove {name} from ConfigMap {MAP}: the allocator limits how many jobs run",
                )
            )
    return [*out, *of_config(settings.config, namespace=settings.namespace)]


def seconds(text: str) -> float:
    """The length of a Go duration (`1m30s`, `500ms`) in seconds; 0 if it is none."""
    if not text or len(text) > 40 or "".join(number + unit for number, unit in _PART.findall(text)) != text:
        return 0.0
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))


def _config(data: Mapping[str, str]) -> dict[str, Any]:
    """The values of the ConfigMap: each key is a field with its value in YAML, or `config` has all of them."""
    out: dict[str, Any] = {}
    for key, text in data.items():
        if not isinstance(text, str) or len(text) > _MOST_CONFIG:
            continue
        try:
            value = yaml.safe_load(text)
        except (yaml.YAMLError, RecursionError, ValueError):
            continue
        if key == "config" and isinstance(value, dict):
            out |= value
        else:
            out[key] = value
    return out


def _flag(words: Sequence[str], name: str) -> str:
    """The value of `--name=value` or `--name value`; "" if it is not there."""
    for i, word in enumerate(words):
        if word.startswith(f"--{name}="):
            return word.partition("=")[2]
        if word == f"--{name}" and i + 1 < len(words):
            return words[i + 1]
    return ""


def _is_set(words: Sequence[str], name: str) -> bool:
    return f"--{name}" in words or _flag(words, name) == "true"


def _number(value: object) -> float:
    """A positive number, bounded; 0 if it is none."""
    try:
        number = float(str(value))
    except ValueError:
        return 0.0
    return number if 0 < number < 1e9 else 0.0

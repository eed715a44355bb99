"""What `workflowDefaults` and other settings of Argo's controller do to jobs that do not set these fields themselves.

Argo merges the defaults into each Workflow where that says nothing. diflow's Workflows set most of what matters for
them; here is what they leave open. The keys are those of Argo's ConfigMap, 3.7 to 4.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from diflow.common.words import counted, named
from diflow.record import untrusted

MAP: Final = "workflow-controller-configmap"
_SHORT_SECONDS: Final = 3600
"""A job that ends in the evening should be there in the morning: what deletes it within so long is named."""


@dataclass(frozen=True, slots=True)
class Remark:
    """Something that should be different. `is_fatal`: jobs do not run with it."""

    what: str
    remedy: str
    is_fatal: bool = False


_PLACING: Final = "the allocator places jobs without knowing it, so pods are sent to nodes that do not take them"
# Fields of `workflowDefaults.spec` that stop or distort jobs, with what they do.
_HARMFUL: Final[Mapping[str, str]] = {
    "activeDeadlineSeconds": "Argo ends each job so long after it has first seen it, time in the queue included "
    "(spec.activeDeadlineSeconds of a job counts its run time alone)",
    "retryStrategy": "Argo retries each step of a job once more, beside backoffLimit: the same training runs again and "
    "again",
    "parallelism": "Argo starts only so many pods of a job: a gang that is larger never is complete",
    "suspend": "each job is suspended again as soon as the allocator has started it",
    "shutdown": "each job is stopped as soon as it begins",
    "synchronization": "a job holds its places while it waits for a lock of Argo",
    "workflowTemplateRef": "jobs cannot be resized, as Argo then reads none of their changes",
    "hostNetwork": "the pods of all jobs use the ports of their nodes, which the allocator does not count",
    "automountServiceAccountToken": "Argo's own container cannot report how a pod has ended",
    **dict.fromkeys(("nodeSelector", "affinity", "tolerations", "schedulerName"), _PLACING),
}
# The same of `workflowDefaults.spec.templateDefaults`, which apply to each template.
_HARMFUL_IN_TEMPLATES: Final[Mapping[str, str]] = {
    name: _HARMFUL[name]
    for name in ("retryStrategy", "parallelism", "synchronization", "nodeSelector", "affinity", "tolerations",
                 "schedulerName", "automountServiceAccountToken")
} | {
    "activeDeadlineSeconds": "the kubelet ends each pod of a job after so long",
    "timeout": "Argo ends each pod of a job after so long, the time in which it is pending included",
    "failFast": "a replica that fails ends the others, though it is started again",
}  # fmt: skip
_ADDED: Final[Mapping[str, str]] = {
    "onExit": "a step follows each job, whose pod no queue counts",
    "hooks": "steps run beside each job, whose pods no queue counts",
    "archiveLogs": "the pods of jobs need an artifact repository, and fail without one",
    "dnsPolicy": "names of replicas are resolved by it: other policies than ClusterFirst may not find them",
    "volumeClaimTemplates": "Argo makes a volume for each job, whose zone the allocator does not know",
}


def remarks(config: Mapping[str, Any], *, namespace: str) -> Iterator[Remark]:
    """What should be different in the values of Argo's ConfigMap, which is in `namespace`."""
    edit = f"kubectl edit configmap {MAP} -n {namespace}"
    spec = untrusted.sub(config, "workflowDefaults", "spec")
    for where, fields, table in (
        ("workflowDefaults.spec", spec, _HARMFUL),
        ("workflowDefaults.spec.templateDefaults", untrusted.sub(spec, "templateDefaults"), _HARMFUL_IN_TEMPLATES),
    ):
        for name, why in table.items():
            if _is_set(name, fields.get(name)):
                yield Remark(f"{where}.{name} is set: {why}", f"remove it: {edit}", is_fatal=True)
    for name, why in _ADDED.items():
        if spec.get(name):
            yield Remark(f"workflowDefaults.spec.{name} is set: {why}", f"remove it if that is not meant: {edit}")
    yield from _deleting(config, spec, edit)
    yield from _of_controller(config, edit)


def _is_set(name: str, value: Any) -> bool:
    if name == "automountServiceAccountToken":
        return value is False
    if name == "schedulerName":
        return value not in (None, "", "default-scheduler")
    return value not in (None, "", False, {}, [])


def _deleting(config: Mapping[str, Any], spec: Mapping[str, Any], edit: str) -> Iterator[Remark]:
    """What deletes pods and jobs earlier than their users expect."""
    strategy = untrusted.sub(spec, "podGC").get("strategy")
    if strategy in ("OnPodCompletion", "OnPodSuccess"):
        yield Remark(
            f"workflowDefaults.spec.podGC is {strategy}: the logs and exit codes of a pod are gone as soon as it ends, "
            "whatever the cleanPodPolicy of its job says",
            f"remove it, or take OnWorkflowCompletion: {edit}",
            is_fatal=True,
        )
    elif strategy:
        yield Remark(
            f"workflowDefaults.spec.podGC is {strategy}: the pods of a job are deleted with their logs when it ends, "
            "whatever its cleanPodPolicy says",
            f"remove it: {edit}",
        )
    given = untrusted.sub(spec, "ttlStrategy")
    each = {name: value for name, value in given.items() if untrusted.is_count(value, least=0, most=2**31 - 1)}
    if each:
        least = min(each.values())
        shown = named([f"{name} {value}" for name, value in each.items()], 3)
        yield Remark(
            f"workflowDefaults.spec.ttlStrategy deletes ended jobs with their pods and logs ({shown})"
            f"{', and those with another ttlSecondsAfterFinished' if each.keys() - {'secondsAfterCompletion'} else ''}",
            "remove it, and set ttlSecondsAfterFinished in the public ConfigMap of the allocator instead "
            f"(docs/allocator.md): {edit}",
            is_fatal=least < _SHORT_SECONDS,
        )
    kept = untrusted.sub(config, "retentionPolicy")
    if counts := [f"{value} {name}" for name, value in kept.items() if value]:
        yield Remark(
            f"retentionPolicy keeps {named(counts, 3)} Workflows: older jobs are deleted, with their pods and logs",
            f"remove it: {edit}",
        )


def _of_controller(config: Mapping[str, Any], edit: str) -> Iterator[Remark]:
    if untrusted.sub(config, "failedPodRestart").get("enabled") is True:
        yield Remark(
            "failedPodRestart is enabled: Argo itself makes a pod again that was evicted before it ran, on the same "
            "node and beside what the allocator does",
            f"remove it, as jobs are placed again without it: {edit}",
        )
    if untrusted.sub(config, "initlessPod").get("enabled") is True:
        yield Remark(
            "initlessPod is enabled: the pods of jobs have no containers `init` and `wait`, which diflow confines",
            f"remove it: {edit}",
            is_fatal=True,
        )
    rate = untrusted.sub(config, "resourceRateLimit").get("limit")
    if isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate < 10:
        yield Remark(
            f"resourceRateLimit is {counted(float(rate), 'pod')} a second, in the whole cluster: a large gang has lost "
            "its places before it is complete",
            f"raise it to 50 or more: {edit}",
        )


def lacking(hard: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """What Argo's own containers must state under a ResourceQuota with these limits, and do not, as
    `executor.resources.limits.cpu`: Kubernetes then refuses each pod of a job."""
    given = untrusted.sub(config, "executor", "resources")
    out = []
    for kind, resource in (("limits", "cpu"), ("limits", "memory"), ("requests", "cpu"), ("requests", "memory")):
        names = (f"{kind}.{resource}", *((resource,) if kind == "requests" else ()))
        stated = untrusted.sub(given, kind).get(resource) or (
            kind == "requests" and untrusted.sub(given, "limits").get(resource)
        )
        if any(name in hard for name in names) and not stated:
            out.append(f"executor.resources.{kind}.{resource}")
    return out

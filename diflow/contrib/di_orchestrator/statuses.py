"""The status of the object of a job with a coordinator, as DI-orchestrator v0.x has it."""

from __future__ import annotations

from typing import Any, Final

from diflow.contrib.di_orchestrator.modules import ADDED, Modules
from diflow.controller import statuses
from diflow.record.status.status import JobStatus

Json = dict[str, Any]

_OLD_PHASES: Final = {
    "Pending": "Created",
    "Starting": "Created",
    "Restarting": "Running",
    "Rescheduling": "Running",
}
_PODS: Final = {"Error": "Failed", "Skipped": "Succeeded", "Omitted": "Succeeded"}


def coordinated(status: JobStatus, known: Modules, *, requests: int, ttl_seconds: int | None) -> Json:
    """The status of a v1alpha1 job with a Workflow, with the replicas that its coordinator has asked for."""
    made = statuses.observed(status, requests=requests, ttl_seconds=ttl_seconds)
    for one in known.of(*ADDED):
        counts = made["taskStatus"].setdefault(one.module, {})
        phase = _PODS.get(one.phase, one.phase) or "Pending"
        counts[phase] = counts.get(phase, 0) + 1
        made["replicas"] += 1
        made["readyReplicas"] += 1 if phase == "Running" and not status.ended else 0
    return {**made, "reportedReplicas": made["replicas"]}


def with_old_phases(made: Json) -> Json:
    """The status with the phases of v1alpha1, which are fewer, instead of those of v2alpha1."""
    conditions: dict[str, Json] = {}
    for one in made["conditions"]:
        phase = _OLD_PHASES.get(one["type"], one["type"])
        before = conditions.pop(phase, {})
        since = before.get("lastTransitionTime") or one.get("lastTransitionTime")
        changed = {"type": phase, "reason": f"Job{phase}", **({"lastTransitionTime": since} if since else {})}
        conditions[phase] = {**one, **changed}
    phase = _OLD_PHASES.get(made["phase"], made["phase"])
    return {**made, "phase": phase, "reason": f"Job{phase}", "conditions": list(conditions.values())}

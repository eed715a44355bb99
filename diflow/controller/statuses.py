"""The `status` of a DIJob object: as its Workflow and pods show it, or why it has no Workflow. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from diflow.common.durations import timestamp
from diflow.common.errors import InvalidError
from diflow.common.limits import LEAST_TTL_SECONDS, MOST_TTL_SECONDS
from diflow.common.words import shortened
from diflow.controller.objects import DIJobRead
from diflow.record import untrusted
from diflow.record.modules import ADDED, Modules
from diflow.record.status.status import HEALTHY, PHASES, JobStatus

Json = dict[str, Any]

_LONGEST_MESSAGE: Final = 4096
_MOST_PATHS: Final = 5
_LONGEST_PATH: Final = 120
ADVICE: Final = "delete the job and create it again"
"""For what cannot change in a job that was created."""
_PAST: Final = frozenset(PHASES)
_OLD_PHASES: Final = {
    "Pending": "Created",
    "Starting": "Created",
    "Restarting": "Running",
    "Rescheduling": "Running",
}
_PODS: Final = {"Error": "Failed", "Skipped": "Succeeded", "Omitted": "Succeeded"}
# What the rules on the tasks of a job and on its clean-up say is complete, and known from DI-orchestrator.
_COMPLETE: Final = re.compile(r"spec\.(tasks(\[\d+\](\.name)?)?|cleanPodPolicy)")


def refusal(error: InvalidError) -> str:
    """Why a job cannot run, as its status says it."""
    return error.message if _COMPLETE.fullmatch(error.path) else str(error)


def unknown_fields(paths: Sequence[str]) -> str:
    """What an Event says of fields that are not known. Their names are the user's."""
    shown = [shortened(path, _LONGEST_PATH) for path in paths[:_MOST_PATHS]]
    more = f" and {len(paths) - len(shown)} more" if len(paths) > len(shown) else ""
    text = ", ".join(shown) + more
    return f"left out, as they are not known: {''.join(c if c.isprintable() else ' ' for c in text)}"


def observed(status: JobStatus, *, requests: int, ttl_seconds: int | None) -> Json:
    """The status of a job with a Workflow. `requests`: the answered writes of `status.replicas`."""
    made = status.to_dict()
    out: Json = {
        **made,
        "message": status.message[:_LONGEST_MESSAGE],
        "conditions": [_condition(one) for one in made["conditions"]],
        "restarts": status.restarts or 0,
        "reschedules": status.reschedules or 0,
        "reportedReplicas": status.replicas,
        "scaleRequests": requests,
    }
    if expires := _expires(status.completion_timestamp, ttl_seconds):
        out["expiresAt"] = expires
    return out


def keep_result(made: Json, obj: DIJobRead) -> Json:
    """The status with the result that was written before, if its pod does not exist any more."""
    before = untrusted.string(obj.status.get("result"), most=_LONGEST_MESSAGE)
    return {**made, "result": before} if before and made["phase"] != "Failed" and not made.get("result") else made


def keep_transition(made: Json, obj: DIJobRead) -> Json:
    """The status with the previous `lastTransitionTime` of the condition Healthy, if its status has not changed."""
    before = [one for one in untrusted.mappings(obj.status.get("conditions")) if one.get("type") == HEALTHY]
    for one in made["conditions"]:
        same = [known for known in before if one["type"] == HEALTHY and known.get("status") == one["status"]]
        if since := next((at for known in same if (at := untrusted.time(known.get("lastTransitionTime")))), ""):
            one["lastTransitionTime"] = since
    return made


def coordinated(status: JobStatus, known: Modules, *, requests: int, ttl_seconds: int | None) -> Json:
    """The status of a v1alpha1 job with a Workflow, with the replicas that its coordinator has asked for."""
    made = observed(status, requests=requests, ttl_seconds=ttl_seconds)
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


def observing(made: Json, obj: DIJobRead) -> Json:
    """The status with the generation of the object that it is of."""
    return {**made, "observedGeneration": obj.generation} if obj.generation else made


def waiting(obj: DIJobRead, why: str) -> Json:
    """The status of a job whose Workflow cannot be made yet."""
    replicas = sum(found[0] for found in obj.counts.values())
    return _without_workflow(obj, "Pending", why, since=obj.created, replicas=replicas)


def failed(obj: DIJobRead, why: str, *, now: str, ttl_seconds: int | None) -> Json:
    """The status of a job that has failed without a Workflow. The earlier phases are kept."""
    out = _without_workflow(obj, "Failed", why, since=now)
    out["completionTimestamp"] = now
    if obj.begun:
        out["conditions"] = [*_earlier(obj), *out["conditions"]]
        for name in ("restarts", "reschedules"):
            out[name] = obj.number(name) or 0
        started = untrusted.time(obj.status.get("startTime"))
        out |= {"startTime": started} if started else {}
    if expires := _expires(now, ttl_seconds):
        out["expiresAt"] = expires
    return out


def adopted(obj: DIJobRead, replicas: int, requests: int) -> Json:
    """The current status with `reportedReplicas` and `scaleRequests` added again, after another client has written the
    status without them."""
    return {**obj.status, "reportedReplicas": replicas, "scaleRequests": requests}


def ttl_seconds(value: Any) -> int | None:
    """How long an ended job is kept, as its spec or its Workflow has it; None if that is not said, or invalid."""
    return value if untrusted.is_count(value, least=LEAST_TTL_SECONDS, most=MOST_TTL_SECONDS) else None


def without_reports(status: Json) -> Json:
    """The status without what programs have reported, for an API server that refuses that."""
    return {**status, "profilings": {}}


def _without_workflow(obj: DIJobRead, phase: str, why: str, *, since: str, replicas: int = 0) -> Json:
    message = why[:_LONGEST_MESSAGE]
    condition = {
        "type": phase,
        "status": "True",
        "reason": f"Job{phase}",
        "message": message,
        "lastTransitionTime": since,
        "lastUpdateTime": since,
    }
    return {
        "phase": phase,
        "reason": f"Job{phase}",
        "message": message,
        "conditions": [_condition(condition)],
        "replicas": replicas,
        "readyReplicas": 0,
        "taskStatus": {},
        "allocation": {},
        "profilings": {},
        "restarts": 0,
        "reschedules": 0,
        "reportedReplicas": replicas,
        "scaleRequests": obj.number("scaleRequests") or 0,
    }


def _earlier(obj: DIJobRead) -> list[Json]:
    out: dict[str, Json] = {}
    for given in untrusted.mappings(obj.status.get("conditions")):
        name = given.get("type")
        if isinstance(name, str) and name in _PAST and name != "Failed":
            texts = {key: untrusted.string(given.get(key), most=_LONGEST_MESSAGE) for key in ("reason", "message")}
            times = {key: untrusted.time(given.get(key)) for key in ("lastTransitionTime", "lastUpdateTime")}
            out[name] = _condition({"type": name, "status": "False", **texts, **times})
    return list(out.values())


def _condition(given: Mapping[str, Any]) -> Json:
    """A condition without times that are unknown: the API server refuses an empty one."""
    out = {name: value for name, value in given.items() if value or not name.endswith("Time")}
    return {**out, "message": untrusted.string(out.get("message"), most=_LONGEST_MESSAGE)}


def _expires(completed: str, seconds: int | None) -> str:
    if not completed or seconds is None:
        return ""
    try:
        return timestamp(untrusted.seconds(completed) + seconds)
    except (ValueError, OverflowError):
        return ""

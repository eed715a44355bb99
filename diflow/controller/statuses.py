"""The `status` of a DIJob object: as its Workflow and pods show it, or why it has no Workflow. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from diflow.common.durations import timestamp
from diflow.common.errors import InvalidError
from diflow.common.limits import LEAST_TTL_SECONDS, MOST_TTL_SECONDS
from diflow.common.words import shortened
from diflow.dijob.model import UnknownFieldWarning
from diflow.record import untrusted
from diflow.record.dijob import DIJobRecord
from diflow.record.status.status import HEALTHY, JobStatus
from diflow.record.status.timeline import PHASES

Json = dict[str, Any]

_LONGEST_MESSAGE: Final = 4096
_MOST_PATHS: Final = 5
_LONGEST_PATH: Final = 120
ADVICE: Final = "delete the job and create it again"
"""For what cannot change in a job that was created."""
_PAST: Final = frozenset(PHASES)
# What the rules on the tasks of a job and on its clean-up say is complete, and known from DI-orchestrator.
_COMPLETE: Final = re.compile(r"spec\.(tasks(\[\d+\](\.name)?)?|cleanPodPolicy)")


def refusal(error: InvalidError) -> str:
    """Why a job cannot run, as its status says it."""
    return error.message if _COMPLETE.fullmatch(error.path) else str(error)


def unknown_fields(paths: Sequence[str]) -> str:
    """What the status says of a job with fields that are not known. Their names are the user's."""
    shown = [f"{shortened(path, _LONGEST_PATH)} {UnknownFieldWarning(path).said}" for path in paths[:_MOST_PATHS]]
    more = f"; and {len(paths) - len(shown)} more" if len(paths) > len(shown) else ""
    return "".join(c if c.isprintable() else " " for c in "; ".join(shown) + more)


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


def keep_result(made: Json, obj: DIJobRecord) -> Json:
    """The status with the result that was written before, if its pod does not exist any more."""
    before = untrusted.string(obj.status.get("result"), most=_LONGEST_MESSAGE)
    return {**made, "result": before} if before and made["phase"] != "Failed" and not made.get("result") else made


def keep_transition(made: Json, obj: DIJobRecord) -> Json:
    """The status with the previous `lastTransitionTime` of the condition Healthy, if its status has not changed."""
    before = {one.status: one.last_transition_time for one in obj.conditions if one.type == HEALTHY}
    for one in made["conditions"]:
        if one["type"] == HEALTHY and (since := before.get(one["status"])):
            one["lastTransitionTime"] = since
    return made


def observing(made: Json, obj: DIJobRecord) -> Json:
    """The status with the generation of the object that it is of."""
    return {**made, "observedGeneration": obj.generation} if obj.generation else made


def waiting(obj: DIJobRecord, why: str) -> Json:
    """The status of a job whose Workflow cannot be made yet."""
    replicas = sum(found[0] for found in obj.counts.values())
    return _without_workflow(obj, "Pending", why, since=obj.created, replicas=replicas)


def failed(obj: DIJobRecord, why: str, *, now: str, ttl_seconds: int | None) -> Json:
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


def is_foreign(obj: DIJobRecord) -> bool:
    """Others have written the status without our record: it is repaired first, then their number counts."""
    return obj.number("replicas") is not None and obj.number("reportedReplicas") is None


def adopted(obj: DIJobRecord, replicas: int, requests: int) -> Json:
    """The current status with `reportedReplicas` and `scaleRequests` added again, after another client has written the
    status without them."""
    return {**obj.status, "reportedReplicas": replicas, "scaleRequests": requests}


def ttl_seconds(value: Any) -> int | None:
    """How long an ended job is kept, as its spec or its Workflow has it; None if that is not said, or invalid."""
    return value if untrusted.is_count(value, least=LEAST_TTL_SECONDS, most=MOST_TTL_SECONDS) else None


def without_reports(status: Json) -> Json:
    """The status without what programs have reported, for an API server that refuses that."""
    return {**status, "profilings": {}}


def _without_workflow(obj: DIJobRecord, phase: str, why: str, *, since: str, replicas: int = 0) -> Json:
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


def _earlier(obj: DIJobRecord) -> list[Json]:
    past = {one.type: one for one in obj.conditions if one.type in _PAST and one.type != "Failed"}
    return [_condition(replace(one, status="False").to_dict()) for one in past.values()]


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

"""The status of a DIJob: a pure function of its Workflow and its pods.

It uses neither a clock nor stored state: the past phases of a job are derived each time from the timestamps of Argo and
Kubernetes. It does not access the cluster, and it imports neither Hera nor pydantic.

    phase           when
    Pending         submitted, no replica has a node yet
    Starting        replicas are created, and not all are ready
    Running         all replicas are ready (or have succeeded already)
    Restarting      a replica failed, and backoffLimit allows another try
    Rescheduling    the number of replicas or the allocation changed, and new pods are starting
    Succeeded       the Workflow succeeded
    Failed          the Workflow failed
    Unknown         the cluster is not reachable, or the Workflow was made unreadable (see the message)

The phase says how far the pods of a job are, or were; its stage (`record.stage`) where it is in its life. A job that
waits, is suspended, or is being stopped or deleted can have any phase but the last three.

A job ends when its Workflow ends, never before: `argo list` and `diflow list` agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from diflow.common import keys
from diflow.record import chain, reports, signals, untrusted
from diflow.record.job import JobRecord, record_of
from diflow.record.parameters import submitted_replicas
from diflow.record.run_time import DEADLINE_EXCEEDED
from diflow.record.stage import Stage, stage_of
from diflow.record.status import messages
from diflow.record.status.observe import Attempt, Object, Observation, observe
from diflow.record.status.timeline import PHASES, Phase, history

ENDED: Final[frozenset[str]] = frozenset({"Succeeded", "Failed"})
HEALTHY: Final = "Healthy"
"""The type of the condition that says what the job's `health` has found."""

ENDS: Final[Mapping[str, Phase]] = {"Succeeded": "Succeeded", "Failed": "Failed", "Error": "Failed"}
"""The phase of a job whose Workflow has ended, by Argo's phase."""
_PASSED: Final[Mapping[Phase, str]] = {
    "Pending": "the job was submitted",
    "Starting": "the replicas were created",
    "Running": "all replicas were ready",
    "Restarting": "a replica had failed and was started again",
    "Rescheduling": "pods were replaced, or their number changed",
}


@dataclass(frozen=True, slots=True)
class Condition:
    """One phase that the job has been in. `status` is "True" for the current phase, "False" for earlier ones.

    `JobStatus.healthy` is no phase: its `status` may be "Unknown" as well.

    `last_transition_time` is when the job last entered this phase, `last_update_time` when it left it (for the current
    phase: when something last changed).
    """

    type: str
    status: str
    reason: str
    message: str
    last_transition_time: str
    last_update_time: str

    def to_dict(self) -> dict[str, str]:
        """The condition as in a DIJob's manifest."""
        return {
            "type": self.type,
            "status": self.status,
            "reason": self.reason,
            "message": self.message,
            "lastTransitionTime": self.last_transition_time,
            "lastUpdateTime": self.last_update_time,
        }


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The status of a job. Times are RFC 3339 text, "" if there is none.

    `allocation` has the node of each replica, by task and in the order of the index ("" if it has none yet).
    `result` is what the first replica of the first task has written to /dev/termination-log, if it has succeeded.
    `healthy`: what the job's `health` has found of its replicas, once it has found something.
    `stage` is None if there is no Workflow, or if it cannot be seen.
    `restarts` and `reschedules` are None if only the Workflow's metadata was read (`derive_ended`).
    """

    phase: Phase
    reason: str
    message: str
    conditions: tuple[Condition, ...] = ()
    replicas: int = 0
    ready_replicas: int = 0
    task_status: dict[str, dict[str, int]] = field(default_factory=dict)
    allocation: dict[str, list[str]] = field(default_factory=dict)
    profilings: dict[str, Any] = field(default_factory=dict)
    restarts: int | None = 0
    reschedules: int | None = 0
    start_time: str = ""
    completion_timestamp: str = ""
    result: str = ""
    healthy: Condition | None = None
    stage: Stage | None = None

    @property
    def ended(self) -> bool:
        """The job has succeeded or failed."""
        return self.phase in ENDED

    def to_dict(self) -> dict[str, Any]:
        """The `status` of a DIJob's manifest."""
        out: dict[str, Any] = {
            "phase": self.phase,
            "reason": self.reason,
            "message": self.message,
            "conditions": [c.to_dict() for c in (*self.conditions, *([self.healthy] if self.healthy else []))],
            "replicas": self.replicas,
            "readyReplicas": self.ready_replicas,
            "taskStatus": self.task_status,
            "allocation": self.allocation,
            "profilings": self.profilings,
            "restarts": self.restarts,
            "reschedules": self.reschedules,
        }
        if self.start_time:
            out["startTime"] = self.start_time
        if self.completion_timestamp:
            out["completionTimestamp"] = self.completion_timestamp
        if self.result:
            out["result"] = self.result
        return out


def unknown(message: str) -> JobStatus:
    """The status of a job whose cluster is not reachable."""
    return JobStatus(phase="Unknown", reason=_reason("Unknown"), message=message)


def derive(workflow: Object, pods: Sequence[Object] = ()) -> JobStatus:
    """The status of the job that `workflow` runs.

    `pods` are the job's pods, if available: they show when a replica is ready and why one does not start. Without them
    a replica counts as ready when Argo saw it running.
    """
    return derive_seen(observe(workflow, pods))


def _unreadable(seen: Observation) -> JobStatus:
    """The status of a job whose Workflow is unreadable: Argo's phase, and the problem."""
    job = seen.job
    phase = ENDS.get(job.argo.phase) or "Unknown"
    since = job.course.finished or job.course.created
    return JobStatus(
        phase=phase,
        reason=_reason(phase),
        message=messages.explain(seen, phase, {}, ready=0),
        conditions=(Condition(phase, "True", _reason(phase), job.problem, since, since),),
        replicas=len(seen.kept),
        ready_replicas=seen.count({}).ready,
        restarts=job.notes.restarts_before,
        reschedules=job.notes.rounds_before,
        start_time=_started(job),
        completion_timestamp=job.course.finished if phase in ENDED else "",
        stage=seen.stage,
    )


def has_completed(head: Object) -> bool:
    """Whether a Workflow has ended, by its metadata alone."""
    return bool(untrusted.sub(head, "metadata", "labels").get(keys.ARGO_COMPLETED) == "true")


def derive_ended(workflow: Object) -> JobStatus | None:
    """The status of a job that has ended, from its Workflow's metadata alone; None for one that may still run.

    Argo writes the outcome into labels when a Workflow ends. They do not have the number of restarts.
    """
    labels = untrusted.sub(workflow, "metadata", "labels")
    phase = ENDS.get(untrusted.string(labels.get(keys.ARGO_PHASE)))
    if chain.continued_in(workflow):
        phase = phase and "Failed"
    if phase is None or not has_completed(workflow):
        return None
    return JobStatus(
        phase=phase,
        reason=_reason(phase),
        message="",
        replicas=sum(task.replicas for task in record_of(workflow).spec.tasks),
        restarts=None,
        reschedules=None,
        stage=Stage.ENDED,
    )


def derive_waiting(head: Object) -> JobStatus | None:
    """The status of a gang that waits for its first admission, from its Workflow's metadata alone and without the
    reason; None for one that has to be read as a whole."""
    metadata = untrusted.sub(head, "metadata")
    annotations = untrusted.sub(metadata, "annotations")
    replicas = submitted_replicas(head)
    if not replicas or keys.REQUESTED in annotations or keys.HISTORY_BEFORE in annotations:
        return None
    return JobStatus(
        phase="Pending",
        reason=_reason("Pending"),
        message="",
        replicas=sum(replicas.values()),
        restarts=untrusted.whole(annotations.get(keys.RESTARTS_BEFORE)) or 0,
        reschedules=untrusted.whole(annotations.get(keys.ROUNDS_BEFORE)) or 0,
        stage=stage_of(
            is_gang=True,
            has_places=False,
            is_held=False,
            is_suspended=annotations.get(keys.HELD) == "true",
            is_stopping=False,  # it is read as a whole
            is_being_deleted=untrusted.is_deleted_in_foreground(metadata),
        ),
    )


def derive_seen(seen: Observation) -> JobStatus:
    """As `derive`, from an existing observation."""
    job = seen.job
    if job.problem:
        return _unreadable(seen)
    latest, steps = seen.latest(), history(seen)
    ended = ENDS.get(job.argo.phase)
    if ended and job.chain.continued_in:
        ended = "Failed"  # while the next part exists, readers see that one instead
    if ended:
        steps.append((ended, job.course.finished))
    phase = steps[-1][0]
    count = seen.count(latest)
    message = messages.explain(seen, phase, latest, ready=count.ready)
    return JobStatus(
        phase=phase,
        reason=_reason(phase, message),
        message=message,
        conditions=_conditions(steps, message, updated=_last_time(seen), past=job.notes.history_before.phases),
        replicas=count.wanted,
        ready_replicas=count.ready,
        task_status=_task_status(seen, latest),
        allocation=_allocation(seen, latest),
        profilings={k: v for k, v in reports.fields(job.texts.profilings).items() if k != signals.NAME},
        restarts=job.restarts,
        reschedules=job.reschedules,
        start_time=_started(job),
        completion_timestamp=job.course.finished if ended else "",
        result=_result(seen, latest),
        healthy=_healthy(seen),
        stage=seen.stage,
    )


def _started(job: JobRecord) -> str:
    return job.notes.history_before.started or job.course.started


def is_job(workflow: Object) -> bool:
    """The Workflow was made by diflow."""
    labels = untrusted.sub(workflow, "metadata", "labels")
    return bool(labels.get(keys.MANAGED_BY) == keys.MANAGED_BY_VALUE)


def _conditions(
    steps: Sequence[tuple[Phase, str]], message: str, *, updated: str, past: Sequence[tuple[str, str, str]]
) -> tuple[Condition, ...]:
    spans: dict[Phase, tuple[str, str]] = {
        phase: (began, left) for phase in PHASES for name, began, left in past if name == phase
    }
    spans = dict(sorted(spans.items(), key=lambda item: item[1][0]))
    for i, (phase, began) in enumerate(steps):
        spans.pop(phase, None)
        spans[phase] = (began, steps[i + 1][1] if i + 1 < len(steps) else max(updated, began))
    present = steps[-1][0]
    return tuple(
        Condition(
            type=phase,
            status="True" if phase == present else "False",
            reason=_reason(phase, message) if phase == present else _reason(phase),
            message=message if phase == present else _PASSED[phase],
            last_transition_time=began,
            last_update_time=left,
        )
        for phase, (began, left) in spans.items()
    )


def _healthy(seen: Observation) -> Condition | None:
    """What the job's `health` has found of the replicas of a running job, None if it never found any that is not
    healthy."""
    found = seen.job.notes.health
    if found is None or seen.job.is_closing:
        return None
    if not seen.unhealthy:
        status, message = "True", found.last or "all replicas advance"
        reason = "ReplicasAdvance" if found.round == seen.live.current else "Restarted"
    elif found.is_unheard:
        status, reason, message = "Unknown", "NotJudged", found.why
    else:
        sets = {"ReplicasSilent": found.silent, "ReplicasStalled": found.stalled, "ReplicasSlow": found.slow}
        status, message = "False", found.why
        reason = next((name for name, ranks in sets.items() if ranks), "Restarted")
    return Condition(HEALTHY, status, reason, message, found.time, found.time)


def _last_time(seen: Observation) -> str:
    times = (time for a in seen.attempts for time in (a.created, a.placed, a.ready, a.finished))
    return max(seen.job.course.finished, *times) if seen.attempts else seen.job.course.finished


def _task_status(seen: Observation, latest: Mapping[tuple[str, int], Attempt]) -> dict[str, dict[str, int]]:
    out: dict[str, dict[str, int]] = {task: {} for task in seen.tasks}
    for attempt in latest.values():
        counts = out[attempt.task]
        counts[attempt.phase] = counts.get(attempt.phase, 0) + 1
    return out


def _allocation(seen: Observation, latest: Mapping[tuple[str, int], Attempt]) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for task in seen.tasks:
        hosts = [latest[task, i].host if (task, i) in latest else "" for i in range(seen.live.counts.get(task, 0))]
        if any(hosts):
            out[task] = hosts
    return out


def _result(seen: Observation, latest: Mapping[tuple[str, int], Attempt]) -> str:
    first = latest.get((seen.tasks[0], 0)) if seen.tasks else None
    return first.result if first is not None and first.phase == "Succeeded" else ""


def _reason(phase: Phase, message: str = "") -> str:
    """Why a job is in a phase, as a word. `message`: the sentence about it."""
    return DEADLINE_EXCEEDED if phase == "Failed" and message.startswith(DEADLINE_EXCEEDED) else f"Job{phase}"

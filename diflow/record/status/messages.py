"""What a job is doing, what it waits for, or why it failed: one sentence, which all that shows a job prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from diflow.common.words import STARTS, counted, named
from diflow.record import untrusted
from diflow.record.argo.nodes import Node
from diflow.record.job import JobRecord
from diflow.record.parameters import Decision
from diflow.record.patches import STOP
from diflow.record.run_time import exceeded
from diflow.record.stage import Stage
from diflow.record.status.advice import with_advice
from diflow.record.status.observe import Attempt, Observation, observe_ending

if TYPE_CHECKING:
    from diflow.record.status.timeline import Phase

Latest = Mapping[tuple[str, int], Attempt]

_LOST: Final = "waits for a new place"
_TAKE_BACK: Final = frozenset({"check", "restart"})
"""Actions of decisions that take places back. No plan has looked for others since."""
_FINALIZERS_NAMED: Final = 3
_LONGEST_FINALIZER: Final = 100


def explain(seen: Observation, phase: Phase, latest: Latest, *, ready: int) -> str:
    """The sentence. `phase` and `ready`: how far the pods are, by which an admitted job is described."""
    job, stage = seen.job, seen.stage
    if job.problem and (stage is Stage.ENDED or (stage is Stage.HELD and not job.is_gang)):
        return f"cannot be read: {job.problem}"
    if stage is Stage.SUPERSEDED:
        return f"goes on in the Workflow {job.chain.continued_in}"
    if stage is Stage.ENDED:
        return "the job succeeded" if phase == "Succeeded" else _failure(seen, latest)
    if stage in (Stage.STOPPING, Stage.DELETING):
        text = f"is being stopped: {_stopping(seen, latest)}" if stage is Stage.STOPPING else _deleting(seen)
        return f"{text}; it cannot be read: {job.problem}" if job.problem else text
    if stage is Stage.ADMITTED:
        return _admitted(phase, seen, latest, ready=ready)
    text = queued(stage, job.name, held=job.problem, decision=job.notes.decision, is_stuck=job.argo.tree.is_stuck)
    if stage is Stage.SUSPENDED and job.argo.phase and seen.has_places:
        text = f"{text}; {_admitted(phase, seen, latest, ready=ready)}"
    return text


def ending(job: JobRecord, nodes: Sequence[Node]) -> str:
    """What `explain` says of a job that is being stopped or deleted, by its nodes: its phases do not matter for it."""
    seen = observe_ending(job, nodes)
    return explain(seen, "Pending", seen.latest(), ready=0)


def queued(stage: Stage, name: str, *, held: str, decision: Decision, is_stuck: bool) -> str:
    """The sentence of a gang that is held, suspended or waits. `held`: why nothing is decided about it."""
    if stage is Stage.HELD:
        return f"held: {held}"
    if stage is Stage.SUSPENDED:
        return f"suspended (`diflow resume {name}` resumes it)"
    if is_stuck:
        return _stuck(name)
    if not decision or decision.action in ("keep", "stop"):
        return "waits for the allocator (`diflow doctor` checks whether one runs)"
    if decision.why.startswith(STARTS):  # it has lost its places since
        return _LOST
    return f"{_LOST}: {decision.why}" if decision.action in _TAKE_BACK else decision.why


def _failure(seen: Observation, latest: Latest) -> str:
    """Why a job failed: the allocator's reason, a replica with its exit code, a user's stop, or Argo's message."""
    job = seen.job
    if job.chain.continued_in:
        return f"went on in the Workflow {job.chain.continued_in}, which is gone"
    if seen.stopped:
        return seen.stopped
    if job.is_stopping and not seen.gave_up:
        if job.course.stopped_because:
            return f"stopped: {job.course.stopped_because}"
        return "stopped by a user" if job.argo.shutdown == STOP else "terminated by a user"
    culprit = _culprit(seen, latest)
    verdict = _deadline(job) or (_verdict(seen, culprit) if culprit is not None else job.course.message)
    return verdict or f"the Workflow failed: see `argo get {job.name}`"


def _deadline(job: JobRecord) -> str:
    """That a job has failed after the deadline which Argo had of it; "" if that is not the reason.

    A Workflow says only which of its nodes have failed. Until then no pod had failed for good: Argo ends the job then.
    """
    began, ended = untrusted.seconds(job.course.started), untrusted.seconds(job.course.finished)
    most, deadline = job.spec.active_deadline_seconds, job.argo.deadline_seconds
    if most is None or not deadline or not began or ended - began < deadline:
        return ""
    return exceeded("it", most)


def _stopping(seen: Observation, latest: Latest) -> str:
    """Why a job is being stopped: the allocator's reason, a replica that failed, or who asked for it."""
    if seen.stopped:
        return seen.stopped
    culprit = _culprit(seen, latest) if seen.gave_up else None
    return _verdict(seen, culprit) if culprit else seen.job.course.stopped_because or "a user asked for it"


def _deleting(seen: Observation) -> str:
    """That a job is being deleted, and what still holds it."""
    others = [name for name in seen.job.course.finalizers if name != untrusted.FOREGROUND]
    pods = sum(attempt.phase in ("Pending", "Running") for attempt in seen.attempts)
    held = [f"{counted(pods, 'pod')} of it {'has' if pods == 1 else 'have'} not ended"] if pods else []
    if others:
        names = named([shown[:_LONGEST_FINALIZER] for shown in others], _FINALIZERS_NAMED)
        held.append(f"the finalizer{'s' if len(others) > 1 else ''} {names} keep{'' if len(others) > 1 else 's'} it")
    return f"is being deleted; {', and '.join(held) or 'what belongs to it is deleted first'}"


def _stuck(name: str) -> str:
    return (
        "Argo creates no more pods, as argo retry has reset only a part of the job: "
        f"repair it with `diflow retry {name}`"
    )


def _admitted(phase: Phase, seen: Observation, latest: Latest, *, ready: int) -> str:
    """How far the pods of a job are, and what they wait for."""
    job = seen.job
    if job.argo.tree.is_stuck:
        return _stuck(job.name)
    if not job.argo.phase:
        return (job.argo.awaits_admission and seen.gated) or "waits for Argo's workflow controller to take it up"
    total = len(seen.wanted)
    text = f"{ready} of {counted(total, 'replica')} ready"
    if phase == "Pending":
        text = job.course.message or "no replica has a node yet"
    elif phase == "Restarting":
        text = _restarting(seen, latest) or text
    elif phase == "Rescheduling":
        text = f"{_moving(seen, latest)}: {text}"
    elif phase == "Running":
        text = _running(seen, latest, ready=ready, total=total)
    waits = _waits(seen, latest)
    if waits and phase != "Running":
        text = f"{text}; {waits}"
    if job.argo.tree.is_offloaded:
        text += "; Argo keeps this Workflow's nodes in its database (see `argo get`)"
    return text


def _culprit(seen: Observation, latest: Latest) -> Attempt | None:
    """The replica that made the job fail: the first that reached the backoffLimit, else the first that failed."""
    failed = [a for a in latest.values() if a.phase in ("Failed", "Unknown") and not seen.was_released(a)]
    most = seen.job.spec.backoff_limit
    failed.sort(key=lambda a: (a.was_stopped, a.tries < most, a.finished or "~", a.task, a.index))
    return failed[0] if failed else None


def _verdict(seen: Observation, attempt: Attempt) -> str:
    text = f"{attempt.replica} failed: {_ending(attempt)}"
    if attempt.restart:
        times = "once" if attempt.restart == 1 else f"{attempt.restart} times"
        return f"{text}, after the whole job was restarted {times}"
    if attempt.tries:
        return f"{text}, after {counted(attempt.tries, 'restart')}"
    return text if seen.job.spec.backoff_limit else f"{text}; backoffLimit 0 allows no restart"


def _ending(attempt: Attempt) -> str:
    text = " ".join(attempt.message.split()) or "Error"
    if attempt.exit_code is not None and "exit code" not in text:
        text += f" (exit code {attempt.exit_code})"
    return with_advice(text)


def _running(seen: Observation, latest: Latest, *, ready: int, total: int) -> str:
    attempts = [latest[key] for key in seen.wanted if key in latest]
    counts = {
        "ending": sum(a.is_ending for a in attempts),
        "succeeded": sum(a.phase == "Succeeded" for a in attempts),
        "failed": sum(a.phase == "Failed" for a in attempts),
    }
    if counts["succeeded"] == total:
        return f"{f'all {total} replicas' if total > 1 else 'the replica'} succeeded; Argo finishes the Workflow"
    if ready == total:
        return f"all {total} replicas ready" if total > 1 else "the replica is ready"
    parts = [
        f"{ready} of {counted(total, 'replica')} ready",
        *(f"{count} {what}" for what, count in counts.items() if count),
    ]
    return ", ".join(parts)


def _restarting(seen: Observation, latest: Latest) -> str:
    """Which replica failed last, and how much of the backoffLimit is used."""
    unready = {key for key, a in latest.items() if not (a.is_ready or a.phase == "Succeeded")}
    restart = max((a.restart for a in latest.values()), default=0)
    failed = [
        a
        for a in seen.attempts
        if a.round == seen.live.current
        and a.phase == "Failed"
        and not a.was_taken_away
        and ((a.task, a.index) in unready or a.restart < restart)
    ]
    if not failed:
        return ""
    last = max(failed, key=lambda a: (a.restart, a.finished, a.counted))
    what = "the whole job restarts" if restart else "it restarts"
    return f"{last.replica} failed: {_ending(last)}; {what} ({last.tries + 1} of {seen.job.spec.backoff_limit})"


def _moving(seen: Observation, latest: Latest) -> str:
    lost = [a.replica for a in latest.values() if not (a.is_ready or a.phase == "Succeeded") and a.uncounted]
    lost += [a.replica for a in latest.values() if (a.was_taken_away or a.is_lost) and a.replica not in lost]
    if lost:
        return f"{_names(lost)} {'gets a new pod' if len(lost) == 1 else 'get new pods'}"
    return (
        f"moves to round {seen.live.current}"
        if len(seen.live.rounds) > 1 or seen.job.notes.history_before.phases
        else "the number of replicas changed"
    )


def _waits(seen: Observation, latest: Latest) -> str:
    """Why replicas do not start or are not ready: the most frequent reason, once for all replicas that share it."""
    if seen.job.argo.awaits_admission:
        return seen.gated or "waits to be admitted"
    reasons: dict[str, list[str]] = {}
    wanted = seen.wanted
    for key, attempt in latest.items():
        if attempt.waiting and attempt.phase in ("Pending", "Running") and key in wanted:
            reasons.setdefault(attempt.waiting, []).append(attempt.replica)
    if not reasons:
        return ""
    reason, replicas = max(reasons.items(), key=lambda item: len(item[1]))
    # A decision about one replica begins with its name.
    return reason if reason.startswith(f"{replicas[0]} ") and len(replicas) == 1 else f"{_names(replicas)}: {reason}"


def _names(replicas: Sequence[str]) -> str:
    if len(replicas) <= 2:
        return " and ".join(replicas)
    return f"{replicas[0]} and {len(replicas) - 1} others"

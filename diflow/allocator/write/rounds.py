"""New rounds and changed places: the writes by which a job moves, and the text of a decision."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from typing import Any

from diflow.allocator.watch.job import Job
from diflow.allocator.write import patches
from diflow.allocator.write.patches import Note, Write
from diflow.common import keys
from diflow.common.durations import timestamp
from diflow.common.limits import MOST_PARTS
from diflow.common.words import counted
from diflow.record import chain
from diflow.record.allocation import Allocation
from diflow.record.exclusions import Exclusions
from diflow.record.job import JobRecord
from diflow.record.patches import live
from diflow.record.untrusted import whole_text

# The kubelet's message for a pod that it does not admit: an attempt that ends with it does not count as a failure, even
# if Argo evaluates it with a copy of the Workflow from before the decision.
REJECTED = "Pod was rejected"


def next_round(
    job: Job, counts: Mapping[str, int], nodes: Mapping[str, tuple[str, ...]], *, now: float, **note_and_decision: Any
) -> Write:
    """As `patches.new_round`; if the job's Workflow is full, in the next Workflow."""
    return patches.new_round(
        job.read, counts, nodes, now=now, names=next_names(job) if job.is_full else (), **note_and_decision
    )


def replacing_round(
    job: Job,
    counts: Mapping[str, int],
    nodes: Mapping[str, tuple[str, ...]],
    *,
    now: float,
    decision: Mapping[str, Any],
    note: Note,
    excluded: Exclusions | None = None,
    change: Callable[[Allocation], Allocation] = lambda at: at,
) -> Write:
    """As `next_round`, for a job that is moved whatever its replicas do. If one of them has failed so that it counts,
    and Argo has not started the round again, the failure is counted here: Argo counts none of a former round. It ends
    the job if that was the last restart.

    Of a suspended job Argo judges no failure, however long ago that was.
    """
    read = job.read
    is_certain = read.wishes.is_suspended or read.argo.tree.failed(read.live.current) or not job.current_pods
    failure = read.argo.tree.failure if is_certain else ""
    if not failure:
        return next_round(job, counts, nodes, now=now, decision=decision, note=note, excluded=excluded, change=change)
    if read.restarts >= read.spec.backoff_limit:
        return stop(read, after_the_last_restart(failure, read), now=now)
    # A next Workflow has the count that Argo has recorded in this one.
    annotations = {} if job.is_full else {keys.RESTARTS_BEFORE: whole_text(read.notes.restarts_before + 1)}
    return next_round(
        job,
        counts,
        nodes,
        now=now,
        decision=decision,
        note=note,
        annotations=annotations,
        excluded=excluded,
        change=change,
    )


def stop(read: JobRecord, why: str, *, now: float) -> Write:
    """End the job, with the reason in its decision and in an Event."""
    return patches.stop_job(read, decision=decision_of("stop", why, now), note=Note("Stopped", why, is_warning=True))


def after_the_last_restart(failure: str, read: JobRecord) -> str:
    """Why a job ends, of which this failure is the one after its last restart."""
    after = f" after {counted(read.restarts, 'restart')}" if read.restarts else ""
    return f"{failure}{after}; backoffLimit is {read.spec.backoff_limit}"


def place_again(
    job: Job,
    gone: Set[tuple[str, int]],
    *,
    now: float,
    excluded: Exclusions | None = None,
    memory: Mapping[str, int] | None = None,
    change: Callable[[Allocation], Allocation] = lambda at: at,
    **note_and_decision: Any,
) -> Write:
    """Take the places of the replicas `gone` (task, index) back, so that planning finds others, and record `excluded`
    and `memory`, the MiB of the next pods by task.

    A preemptible job moves as a whole: to a new round, which has no places yet. This uses none of its backoffLimit.
    `change`: applied to the allocation of another job. `note_and_decision`: as in `patches`.
    """
    read, at = job.read, job.read.current_allocation
    if read.terms.is_preemptible:
        counts = read.needs.least
        return next_round(job, counts, {}, now=now, excluded=excluded, memory=memory, **note_and_decision)
    moved = None
    if (gone or memory) and at is not None:
        nodes = {
            task: tuple("" if (task, index) in gone else node for index, node in enumerate(places))
            for task, places in at.nodes.items()
        }
        moved = patches.placed(read, nodes, now=now)
        # What is promised to the next pods of a task that gets more memory is what it asks for then.
        moved = replace(
            moved, requests={task: one for task, one in moved.requests.items() if task not in (memory or {})}
        )
        moved = change(moved)
    return patches.change_job(
        read, parameters=live(memory=memory), allocation=moved, excluded=excluded, **note_and_decision
    )


def next_names(job: Job) -> tuple[str, ...]:
    """Candidate names of the job's next Workflow, in order of preference; none if the tasks' names are too long."""
    read = job.read
    if read.chain.part >= MOST_PARTS:
        return ()
    longest = chain.longest_name({role.name: role.high for role in read.needs.roles})
    salt = hashlib.sha256(read.identity.uid.encode()).hexdigest()[:5]
    names = (
        chain.part_name(read.name, read.chain.part + 1, most_characters=longest, salt=given) for given in ("", salt)
    )
    return tuple(name for name in names if name)


def decision_of(action: str, why: str, now: float) -> dict[str, str]:
    """The content of the annotation `diflow/decision`."""
    return {"action": action, "why": why, "time": timestamp(now)}

"""Hands a job over to its next Workflow, when this one has grown too large."""

from __future__ import annotations

from diflow.allocator.watch.job import Job
from diflow.allocator.write import patches
from diflow.allocator.write.patches import Note, Write
from diflow.allocator.write.rounds import decision_of
from diflow.common import keys
from diflow.record.job import REQUESTS, JobRecord
from diflow.record.parameters import replicas_text
from diflow.record.patches import live
from diflow.record.untrusted import whole_text


def hand_over(job: Job, now: float) -> list[Write]:
    """Hand the job over to its next Workflow, if there is one.

    The last write makes the next Workflow the authoritative one, so changes to this one are copied to it first.
    """
    read, after = job.read, job.after
    if after is None or read.chain.continued_in:
        return []
    if read.has_ended or read.is_stopping:
        if after.has_ended or after.is_stopping:
            return []
        why = f"the job ended in {read.identity.name}, before it continued here"
        return [patches.stop_job(after, decision=decision_of("stop", why, now), of=read.key)]
    if read.problem and not read.texts.parameters:
        return []  # they are not known, and would be lost with a write
    if not read.problem and (update := _copy_changes(read, after)):
        return [update]
    note = Note("Continued", f"continues in {after.identity.name}: this Workflow has {read.argo.tree.count} nodes")
    return [
        patches.change_job(
            read,
            parameters=live(current=""),
            annotations={keys.CONTINUED_IN: after.identity.name},
            labels={keys.CHAIN: read.name, keys.PART: str(read.chain.part)},
            note=note,
        )
    ]


def _copy_changes(read: JobRecord, after: JobRecord) -> Write | None:
    """Copy what has changed in this Workflow since the next one was created; None if nothing has."""
    wanted = replicas_text(read.texts.parameters)
    restarts, rounds = whole_text(read.restarts), whole_text(read.reschedules + 1)
    here = (wanted, read.wishes.requests, read.wishes.is_suspended, restarts, rounds)
    there = (
        replicas_text(after.texts.parameters),
        after.wishes.requests,
        after.wishes.is_suspended,
        whole_text(after.notes.restarts_before),
        whole_text(after.notes.rounds_before),
    )
    if here == there or after.problem:
        return None
    return patches.change_job(
        after,
        parameters=live(replicas=wanted),
        annotations={
            **dict.fromkeys(REQUESTS),
            **dict(read.wishes.requests),
            keys.RESTARTS_BEFORE: restarts,
            keys.ROUNDS_BEFORE: rounds,
        },
        spec={"suspend": read.wishes.is_suspended or None},
        of=read.key,
    )

"""Gangs of a fixed size that have lost places and get no others: after a time all that they hold is free again, and
they go back to their queue as a whole. Their replicas wait for each other, and keep the rest from jobs that fit there.

Since when a gang lacks places is in its allocation: planning notes that when it finds no others.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from diflow.allocator.watch.free_capacity import FreeCapacity
from diflow.allocator.watch.job import Job
from diflow.allocator.write import patches
from diflow.allocator.write.patches import Note, Write
from diflow.allocator.write.rounds import decision_of
from diflow.common.durations import span
from diflow.common.words import counted, named

_MOST_NAMED: Final = 3


def incomplete_left(job: Job, capacity: FreeCapacity, *, seconds: float) -> float:
    """Seconds until the gang goes back to its queue, 0 or less when it does so now; infinite if nothing is noted.
    `seconds`: how long it may lack places, 0 for ever."""
    read, at = job.read, job.read.placed
    if not seconds or at is None or not at.short_since or read.terms.is_preemptible or job.is_over:
        return math.inf
    if read.wishes.is_suspended or not _missing(job, capacity):
        return math.inf
    return seconds - capacity.age(at.short_since)


def given_back(job: Job, capacity: FreeCapacity, now: float, *, seconds: float) -> list[Write]:
    """The write by which a gang that has lacked places for too long gives back all others, or by which one that has
    them all again is noted as whole."""
    read, at = job.read, job.read.placed
    if at is None or not at.short_since or read.terms.is_preemptible:
        return []
    missing = _missing(job, capacity)
    if not missing:
        is_whole = not job.lacks() and all(pod.host for pod in job.current_pods)
        return [patches.change_job(read, allocation=replace(at, short_since=0.0))] if is_whole else []
    # A gang of which a replica has finished would do that work again.
    if incomplete_left(job, capacity, seconds=seconds) > 0 or _has_finished(job):
        return []
    total = sum(read.running.values())
    why = (
        f"{named(missing, _MOST_NAMED)} of its {counted(total, 'replica')} had no place for {span(seconds)}: "
        "all others give theirs back, and it waits as a whole"
    )
    note, decision = Note("Waiting", why, is_warning=True), decision_of("wait", why, now)
    return [patches.change_job(read, allocation=patches.placed(read, {}, now=now), decision=decision, note=note)]


def _missing(job: Job, capacity: FreeCapacity) -> list[str]:
    """The replicas that have not finished and have no place, or one on a lost node ("worker-3")."""
    at, finished = job.read.placed, job.read.argo.tree.finished
    if at is None:
        return []
    return [
        f"{task}-{index}"
        for task, index, member in job.members()
        if not finished(member) and ((node := at.node(task, index)) == "" or capacity.is_lost(node))
    ]


def _has_finished(job: Job) -> bool:
    return any(job.read.argo.tree.finished(member) for _, _, member in job.members())

"""A gang of which a member has not begun yet, as its image is pulled. Its peers give up after a time: that says nothing
of the program.

A replica that has failed meanwhile starts again when all members have begun, and its failure does not count. A
preemptible job then begins a new round. Of a job without the allocator, and in Argo's own count of the attempts of one
replica, such a failure counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from diflow.allocator.watch.job import Job
from diflow.allocator.write import patches
from diflow.allocator.write.patches import Note, Write
from diflow.allocator.write.rounds import decision_of
from diflow.common.words import named

_MOST_NAMED: Final = 3


def failed_before(job: Job, times: Sequence[float]) -> int:
    """How many of the failures at these times (in seconds since 1970) were before the last member began."""
    if job.not_begun:
        return len(times)
    last = max((pod.began for pod in job.first_pods), default=0.0)
    return sum(0.0 < time < last for time in times)


def forgiven(job: Job, now: float) -> list[Write]:
    """The write that notes that failures of a job that is not preemptible do not count; none if nothing is new."""
    read, at = job.read, job.read.placed
    times = read.argo.tree.retried
    if not times or at is None or read.terms.is_preemptible:
        return []
    count = failed_before(job, times)
    if count <= at.forgiven:
        return []
    found = replace(at, forgiven=count)
    if not job.not_begun:
        return [patches.change_job(read, allocation=found)]
    why = told(job)
    return [
        patches.change_job(read, allocation=found, decision=decision_of("restart", why, now), note=Note("Waiting", why))
    ]


def told(job: Job) -> str:
    """What the failed replicas of the gang wait for."""
    waits = [
        f"{pod.task}-{pod.index} on {pod.host}" + (f" ({pod.waits_for})" if pod.waits_for else "")
        for pod in job.not_begun
    ]
    return f"{named(waits, _MOST_NAMED)} has not begun: replicas that fail meanwhile start again after it, not counted"

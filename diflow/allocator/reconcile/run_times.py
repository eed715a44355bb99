"""How long jobs with `activeDeadlineSeconds` run: it is noted in their Workflows, and a job that has run for too long
is stopped (`diflow.record.run_time`)."""

from __future__ import annotations

import math

from diflow.allocator.watch.job import Job
from diflow.allocator.write import patches
from diflow.allocator.write.patches import Write
from diflow.allocator.write.rounds import stop
from diflow.common import keys
from diflow.record import untrusted
from diflow.record.run_time import RunTime


def left(job: Job, *, now: float) -> float:
    """Seconds until the job has run for as long as it may; infinite if it has no limit, or nothing of it runs."""
    return job.read.notes.run_time.left(job.read.spec, now=now) if _is_limited(job) else math.inf


def exceeded(job: Job, *, now: float) -> list[Write]:
    """Stop a job that has run for longer than it may."""
    why = _run_time(job, now).excess(job.read.spec, now=now) if _is_limited(job) else ""
    return [stop(job.read, why, now=now)] if why else []


def noted(job: Job, *, now: float) -> list[Write]:
    """Note when a job has begun to run, or has ceased to."""
    if not _is_limited(job):
        return []
    found = _run_time(job, now)
    is_same = found == job.read.notes.run_time
    return (
        []
        if is_same
        else [patches.change_job(job.read, annotations={keys.RUN_TIME: found.text(of=job.read.submitted_seconds)})]
    )


def _is_limited(job: Job) -> bool:
    return bool(job.read.spec.run_times) and not job.is_over


def _run_time(job: Job, now: float) -> RunTime:
    running: dict[str, float] = {}
    for pod in (*job.pods, *job.old_pods):
        if pod.began and pod.is_live and pod.task:
            running[pod.task] = min(pod.began, running.get(pod.task, math.inf))
    ended = untrusted.seconds(job.read.argo.tree.ended)
    return job.read.notes.run_time.after(running, job.read.spec.run_times, ended=ended, now=now)

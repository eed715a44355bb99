"""Pods that have a node and do not start: an image that cannot be pulled, a volume that is not mounted.

After `limit` seconds, a job that may shrink goes on with the replicas that have started, and another one
gives its places back and waits for others. The nodes are left out for this job for a while, else the next plan would
be the same. Nothing of this uses backoffLimit.

A job whose image does not exist starts nowhere, and each try may take the capacity of others. So the second try is at
once, and from then on the job waits twice as long before each further one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from diflow.allocator.watch.free_capacity import FreeCapacity
from diflow.allocator.watch.job import Job
from diflow.allocator.write import patches
from diflow.allocator.write.patches import Note, Write
from diflow.allocator.write.rounds import REJECTED, decision_of, next_round, place_again
from diflow.common.durations import span, timestamp
from diflow.common.words import counted, named
from diflow.record.exclusions import MOST_EXCLUDED, PENDING, Exclusions
from diflow.record.job import JobRecord
from diflow.record.pod import PodRecord

_MOST_NAMED: Final = 4


def limit(read: JobRecord, usual: float) -> float | None:
    """How many seconds a bound pod of the job may be pending; None without a limit. `usual`: for jobs that do not say
    it, 0 for none. Only preemptible jobs may be stopped or resized without having asked for it."""
    if read.spec.pending_seconds is not None:
        return read.spec.pending_seconds
    return usual if usual and read.terms.is_preemptible else None


def pending_left(job: Job, capacity: FreeCapacity, *, usual: float) -> float:
    """Seconds until the next pod of the job has been pending for too long; infinite if there is none."""
    most = limit(job.read, usual)
    if most is None or not _is_running(job):
        return math.inf
    ages = [capacity.age(pod.pending_since) for pod in job.pods if _is_pending(job, pod, capacity)]
    return min((max(1.0, most - age) for age in ages), default=math.inf)


def not_started(job: Job, capacity: FreeCapacity, *, now: float, usual: float) -> list[Write]:
    """Go on without the pods that have been pending for too long, or give the places of the job back."""
    read, most = job.read, limit(job.read, usual)
    at = read.placed
    if most is None or not _is_running(job) or at is None:
        return []
    pods = job.latest_pods
    pending = [pod for pod in pods if _is_pending(job, pod, capacity)]
    # After a crash in between, their places are given back, and their pods are still there.
    left = [pod for pod in pending if at.node(*pod.replica) != pod.host]
    if left and not read.terms.is_preemptible:
        return _ended(job, left, now)
    if not any(capacity.age(pod.pending_since) > most for pod in pending):
        return []
    which = f"{_names(pending)} did not start within {span(most)}"
    excluded = _excluded(read.notes.excluded, pending, which, now)
    started = {pod.replica: at.node(*pod.replica) for pod in pods if pod.began}
    if read.terms.is_preemptible:
        fewer = smaller(job, started)
        if fewer is not None:
            counts = {task: len(nodes) for task, nodes in fewer.items()}
            why = f"{which}: it goes on with {counted(sum(counts.values()), 'replica')}"
            note = Note("NotStarted", why, is_warning=True)
            decision = decision_of("resize", why, now)
            return [next_round(job, counts, fewer, now=now, excluded=excluded, decision=decision, note=note)]
    began = [pod.began for pod in pods if pod.began]
    alone = not read.terms.is_preemptible and any(first < pod.created for first in began for pod in pending)
    pause = excluded.paused_until(now) - now
    later = f", for {span(pause)} at least" if pause > 0 else ""
    why = f"{which}: {'placed again' if alone else f'it goes back to the queue{later}'}"
    note, decision = Note("NotStarted", why, is_warning=True), decision_of("wait", why, now)
    if alone or read.terms.is_preemptible:
        gone = {pod.replica for pod in pending}
        again = place_again(job, gone, now=now, excluded=excluded, decision=decision, note=note)
        return [again, *(_ended(job, pending, now) if alone else ())]
    # A gang that has never run together waits as a whole.
    nowhere = patches.placed(read, {}, now=now)
    return [patches.change_job(read, allocation=nowhere, excluded=excluded, decision=decision, note=note)]


def _ended(job: Job, pods: Sequence[PodRecord], now: float) -> list[Write]:
    """End these pods, which is not counted. Argo makes them again, with gates."""
    why = f"{REJECTED}: it did not start"
    return [patches.stop(pod, job.key, why, timestamp(now)) for pod in pods]


def _is_running(job: Job) -> bool:
    read = job.read
    return not (
        job.is_over or read.wishes.is_suspended or read.argo.awaits_admission or read.restarts > read.spec.backoff_limit
    )


def _is_pending(job: Job, pod: PodRecord, capacity: FreeCapacity) -> bool:
    is_kept = job.is_wanted(pod) and not pod.is_ending
    return pod.pending_since > 0 and is_kept and not capacity.is_lost(pod.host)


def smaller(job: Job, started: Mapping[tuple[str, int], str]) -> dict[str, tuple[str, ...]] | None:
    """The nodes of the replicas that have started, by task, if the job may go on with these alone."""
    out: dict[str, tuple[str, ...]] = {}
    for role in job.read.needs.roles:
        nodes = [node for (task, _), node in sorted(started.items()) if task == role.name]
        count = len(nodes) - len(nodes) % role.unit
        if count < role.low or not count:
            return None
        out[role.name] = tuple(nodes[:count])
    return out


def _excluded(known: Exclusions, pending: Sequence[PodRecord], which: str, now: float) -> Exclusions:
    attempt = f"{PENDING}/{known.pending_tries(now) + 1}"
    for node in sorted({pod.host for pod in pending})[:MOST_EXCLUDED]:
        if known.is_full(now) and node not in known.at(now):
            # What failed on its node stays left out.
            oldest = next((entry for entry in known.entries if entry.source == PENDING), None)
            if oldest is None:
                break
            known = Exclusions(tuple(entry for entry in known.entries if entry is not oldest))
        known = known.without(node, reason=which, source=PENDING, now=now, attempts=[attempt])
    return known


def _names(pending: Sequence[PodRecord]) -> str:
    texts = [
        f"{pod.task}-{pod.index} on {pod.host}" + (f" ({pod.waits_for})" if pod.waits_for else "") for pod in pending
    ]
    return named(texts, _MOST_NAMED)

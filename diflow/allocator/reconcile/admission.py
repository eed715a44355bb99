"""Admission: lets a gang start on its nodes, as soon as all of its pods fit there.

The first admission of a job lets Argo create the pods; later ones remove the scheduling gates of pods.
"""

from __future__ import annotations

import math

from diflow.allocator.watch.free_capacity import FreeCapacity
from diflow.allocator.watch.job import Job
from diflow.allocator.watch.needs import allocated, former_pods, needs
from diflow.allocator.write import patches
from diflow.allocator.write.patches import Write
from diflow.record.allocation import Allocation
from diflow.record.job import JobRecord
from diflow.record.pod import PodRecord


def start_left(job: Job, capacity: FreeCapacity) -> float:
    """Seconds until the job must have got its places, 0 or less when it is too late; infinite if it has them or may
    wait."""
    read = job.read
    # A user who suspends a job that waits wants it to wait.
    if (
        read.spec.start_deadline_seconds is None
        or not read.argo.awaits_admission
        or read.wishes.is_suspended
        or read.placed
    ):
        return math.inf
    return read.spec.start_deadline_seconds - capacity.age(job.created_seconds)


def admissions(job: Job, capacity: FreeCapacity) -> list[Write]:
    """Remove the gates of pods whose place has enough free capacity now; those of a gang all at once."""
    read, at = job.read, job.read.placed
    if at is None or read.wishes.is_suspended or not job.may_begin:
        return []
    gated = [pod for pod in job.latest_pods if pod.is_gated and not pod.is_terminating and _is_known(read, pod)]
    gated = [pod for pod in gated if pod.replica not in job.waits_for_peers]
    if not gated or (read.terms.is_preemptible and former_pods(job, capacity)):
        return []
    together = [[pod] for pod in gated]
    if not job.has_started():
        present = {pod.member for pod in gated}
        if not all(member in present or read.argo.tree.finished(member) for _, _, member in job.members()):
            return []
        together = [gated]
    may_start = (pods for pods in together if not any(_is_kept_out(pod, at, capacity) for pod in pods))
    admitted = (pod for pods in may_start if capacity.reserve(needs(pods, at)) for pod in pods)
    return [patches.admit(pod, "" if at.unpinned else at.node(*pod.replica), job.key) for pod in admitted]


def _is_kept_out(pod: PodRecord, at: Allocation, capacity: FreeCapacity) -> bool:
    """Whether its node has got a taint that it does not tolerate: planning finds another one."""
    return bool(capacity.untolerated(at.node(*pod.replica), pod.tolerations))


def _is_known(read: JobRecord, pod: PodRecord) -> bool:
    """Whether the Workflow shows how the attempt before this pod ended: its replica may lose its node for that."""
    tree, place = read.argo.tree, pod.place
    if place is None or not (place.counted or place.uncounted) or tree.is_offloaded or not tree.count:
        return True
    return tree.newest.get(pod.member, (0, 0, 0, 0)) >= place.order


def first_admission(job: Job, capacity: FreeCapacity, now: float) -> list[Write]:
    """Let Argo create the pods of a job, on their nodes, as soon as these have enough free capacity."""
    read, at = job.read, job.read.placed
    if at is None or not job.may_begin:
        return []
    return [patches.admit_job(read, at, now=now)] if capacity.reserve(allocated(read, at)) else []

"""Admission: lets a gang start on its nodes, as soon as all of its pods fit there.

The first admission of a job lets Argo create the pods; later ones remove the scheduling gates of pods.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence, Set

from diflow.allocator.watch.free_capacity import FreeCapacity
from diflow.allocator.watch.job import Job
from diflow.allocator.write import patches
from diflow.allocator.write.patches import Write
from diflow.common import quantities
from diflow.record.allocation import Allocation
from diflow.record.job import JobRecord
from diflow.record.pod import PodRecord

Needs = dict[str, dict[str, int]]


def needs(pods: Sequence[PodRecord], allocation: Allocation) -> Needs | None:
    """Node → resource → amount that these pods need, None if one of them has no node."""
    out: Needs = {}
    for pod in pods:
        assert pod.place is not None
        node = allocation.node(pod.place.task, pod.place.index)
        if not node:
            return None
        quantities.add(out.setdefault(node, {}), pod.request)
    return out


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
    latest = job.latest_restart
    gated = [p for p in job.current_pods if p.is_gated and not p.is_terminating and p.place]
    gated = [p for p in gated if p.place and p.place.restart == latest and _is_known(read, p)]
    if not gated or (read.terms.is_preemptible and former_pods(job, capacity)):
        return []
    if not job.has_started():
        present = {pod.member for pod in gated}
        if not all(member in present or read.argo.tree.finished(member) for _, _, member in job.members()):
            return []
        need = needs(gated, at)
        if need is None or not capacity.fits(need):
            return []
        capacity.take(need)
        return [patches.admit(p, at.node(p.place.task, p.place.index), job.key) for p in gated if p.place]
    out = []
    for pod in gated:
        need = needs([pod], at)
        if need is not None and capacity.fits(need):
            capacity.take(need)
            assert pod.place is not None
            out.append(patches.admit(pod, at.node(pod.place.task, pod.place.index), job.key))
    return out


def _is_known(read: JobRecord, pod: PodRecord) -> bool:
    """Whether the Workflow shows how the attempt before this pod ended, if that matters: by the failure policy it may
    lose its node."""
    assert pod.place is not None
    if not read.spec.has_rules or not (pod.place.counted or pod.place.uncounted):
        return True
    return read.argo.tree.newest.get(pod.member, (0, 0, 0, 0)) >= pod.place.order


def first_admission(job: Job, capacity: FreeCapacity, now: float) -> list[Write]:
    """Let Argo create the pods of a job, on their nodes, as soon as these have enough free capacity."""
    read, at = job.read, job.read.placed
    if at is None or not job.may_begin:
        return []
    need = allocated(read, at)
    if need is None or not capacity.fits(need):
        return []
    capacity.take(need)
    return [patches.change_job(read, **patches.admission(read, at, now=now))]


def allocated(read: JobRecord, at: Allocation, *, but: Set[str] = frozenset()) -> Needs | None:
    """Node → resource → amount that the replicas of this allocation need, without those of the members `but`; None if
    one of them has no node."""
    out: Needs = {}
    requests = {role.name: role.request for role in read.needs.roles}
    for task, nodes in at.nodes.items():
        for index, node in enumerate(nodes):
            if task not in requests or read.live.key(task, index) in but:
                continue
            if not node:
                return None
            quantities.add(out.setdefault(node, {}), requests[task])
    return out


def not_created(job: Job, now: float) -> Needs:
    """What the pods need that Argo has not created yet of a job that was admitted: they have no gates."""
    read, at = job.read, job.read.current_allocation
    if at is None or now >= read.argo.places_until or not read.needs.roles or job.latest_restart:
        return {}
    seen = {pod.member for pod in job.current_pods} | {m for m in read.argo.tree.members if read.argo.tree.is_done(m)}
    return allocated(read, at, but=seen) or {}


def free_now(capacity: FreeCapacity, jobs: Iterable[Job], now: float) -> FreeCapacity:
    """`capacity` without that of admitted jobs whose pods do not exist yet."""
    for job in jobs:
        capacity.take(not_created(job, now))
    return capacity


def former_pods(job: Job, capacity: FreeCapacity) -> list[PodRecord]:
    """Bound pods of earlier rounds, restarts and Workflows, and those that Argo has forgotten. While one exists, a
    preemptible job is not admitted."""
    current, latest = job.read.live.current, job.latest_restart
    older = [
        pod
        for pod in job.pods
        if pod.place and (pod.place.round != current or pod.place.restart < latest or pod.identity.uid in job.forgotten)
    ]
    return [pod for pod in (*older, *job.old_pods) if pod.host and not capacity.is_lost(pod.host)]

"""What jobs need of the free capacity: by their pods, or by their allocation while these do not exist."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set

from diflow.allocator.watch.free_capacity import FreeCapacity
from diflow.allocator.watch.job import Job
from diflow.common import quantities
from diflow.record.allocation import Allocation
from diflow.record.job import JobRecord
from diflow.record.pod import PodRecord

Needs = dict[str, dict[str, int]]
"""Node → resource → amount."""


def needs(pods: Sequence[PodRecord], allocation: Allocation) -> Needs | None:
    """What these pods need on their nodes, None if one of them has no node."""
    out: Needs = {}
    for pod in pods:
        node = allocation.node(*pod.replica)
        if not node:
            return None
        quantities.add(out.setdefault(node, {}), pod.request)
    return out


def allocated(read: JobRecord, at: Allocation, *, but: Set[str] = frozenset()) -> Needs | None:
    """What the replicas of this allocation need on their nodes, without those of the members `but`; None if one of them
    has no node."""
    out: Needs = {}
    for role in read.needs.roles:
        nodes, asked = at.nodes.get(role.name, ()), at.requests.get(role.name, role.request)
        if but:
            nodes = tuple(node for i, node in enumerate(nodes) if read.live.key(role.name, i) not in but)
        if not all(nodes):
            return None
        for node, count in Counter(nodes).items():
            quantities.add(out.setdefault(node, {}), {name: count * each for name, each in asked.items()})
    return out


def not_created(job: Job, now: float) -> Needs:
    """What the pods need that Argo has not created yet of a job that was admitted: they have no gates. Argo creates no
    more of a job that is being stopped."""
    read, at = job.read, job.read.current_allocation
    is_on_hold = read.is_stopping or read.problem or not read.needs.roles
    if at is None or now >= read.argo.places_until or is_on_hold or job.latest_restart:
        return {}
    seen = {pod.member for pod in job.current_pods} | {m for m in read.argo.tree.members if read.argo.tree.is_done(m)}
    return allocated(read, at, but=seen) or {}


def former_pods(job: Job, capacity: FreeCapacity) -> list[PodRecord]:
    """Bound pods of earlier rounds, restarts and Workflows, and those that Argo has forgotten. While one exists, a
    preemptible job is not admitted."""
    current, latest = job.read.live.current, job.latest_restart
    older = [
        pod
        for pod in job.pods
        if pod.place and (pod.place.round != current or pod.place.restart < latest or pod.identity.uid in job.forgotten)
    ]
    return [pod for pod in (*older, *job.old_pods) if pod.host and not capacity.has_lost(pod)]

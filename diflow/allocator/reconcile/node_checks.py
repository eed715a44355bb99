"""The node check of a job (`spec.nodeCheck`): which of its nodes are left out, and which replicas are placed again.

The pods report to the server, which keeps the results in an annotation of the Workflow (`diflow.record.nodecheck`). A
result counts for the pod that it is of: not for another pod of the same replica.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diflow.allocator.watch.job import Job
from diflow.record import nodecheck
from diflow.record.exclusions import Exclusions
from diflow.record.job import JobRecord
from diflow.record.nodecheck import SOURCE, Fault, Judge
from diflow.record.pod import PodRecord

_JUDGE = Judge()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """`faults`: the nodes that are newly left out, `excluded`: the job's record with them, `pods`: those on them."""

    faults: tuple[Fault, ...]
    excluded: Exclusions
    pods: tuple[PodRecord, ...]

    @property
    def text(self) -> str:
        return nodecheck.summary(self.faults)


def left_out(job: Job, now: float) -> LeftOut | None:
    """What the check of the current round asks for; None if there is nothing to do."""
    read = job.read
    limits = read.spec.node_check
    if (
        limits is None
        or read.notes.checks.round != read.live.current
        or nodecheck.moves(read.notes.excluded) >= limits.max_moves
    ):
        return None
    pods = by_rank(read, job.current_pods)
    found = read.notes.checks.of({rank: pod.identity.uid for rank, pod in pods.items() if pod.host})
    wanted = sum(1 for _, _, member in job.members() if not read.argo.tree.finished(member))
    if not nodecheck.is_ready(read.notes.checks, len(found), wanted, now=now, timeout_seconds=limits.timeout_seconds):
        return None
    known = read.notes.excluded.at(now)
    placed = {rank: (pods[rank].task, pods[rank].host, pods[rank].identity.uid) for rank in found}
    faults = tuple(fault for fault in _JUDGE.faults(job.key, read.notes.checks, placed) if fault.node not in known)
    if not faults:
        return None
    attempt = nodecheck.move(nodecheck.moves(read.notes.excluded) + 1)
    excluded = read.notes.excluded
    for fault in faults:
        excluded = excluded.without(fault.node, reason=fault.text, source=SOURCE, now=now, attempts=[attempt])
    where = {fault.node for fault in faults}
    return LeftOut(faults, excluded, tuple(pod for pod in pods.values() if pod.host in where))


def partial_at(read: JobRecord) -> float:
    """When the results of the current round are judged without those that are missing, in seconds since 1970; infinite
    if there are none."""
    limits = read.spec.node_check
    if limits is None or read.notes.checks.round != read.live.current or not read.notes.checks.entries:
        return math.inf
    return nodecheck.partial_at(read.notes.checks, limits.timeout_seconds)


def misplaced(job: Job) -> list[PodRecord]:
    """Pods of a job that is not preemptible on nodes that its check found faulty, whose places were taken back."""
    read, at = job.read, job.read.current_allocation
    if read.spec.node_check is None or read.terms.is_preemptible or at is None:
        return []
    # Whether or not the exclusion still holds: the pod was to end when it was made.
    faulty = {entry.node for entry in read.notes.excluded.entries if nodecheck.numbers(entry)}
    return [pod for pod in job.current_pods if pod.host in faulty and at.node(*pod.replica) != pod.host]


def by_rank(read: JobRecord, pods: Sequence[PodRecord]) -> Mapping[int, PodRecord]:
    """The pods by their rank over the whole job."""
    first: dict[str, int] = {}
    total = 0
    for role in read.needs.roles:
        first[role.name] = total
        total += read.live.running(role.name)
    return {
        first[pod.task] + pod.index: pod
        for pod in pods
        if pod.task in first and pod.index < read.live.running(pod.task)
    }

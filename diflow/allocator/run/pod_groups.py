"""The PodGroups of gangs, on a cluster whose kube-scheduler knows them.

A pod that admission has put into the group of its Workflow (`manifests/podgroups`) waits until that group exists. Then
kube-scheduler binds as many pods of it as `minCount` says, or none. The allocator chooses nodes as without groups:
where kube-scheduler knows better, no part of the gang starts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import structlog

from diflow.allocator.watch.cluster_state import ClusterState
from diflow.allocator.watch.job import Job
from diflow.allocator.write.round_robin import in_turns
from diflow.common.clock import Clock
from diflow.common.errors import ConflictError, DiflowError, LostLeadershipError
from diflow.kube.api import Cluster
from diflow.kube.kinds import POD_GROUP, WORKFLOW
from diflow.kube.leader_election import Elector
from diflow.record.pod import PodRecord

MOST_WRITES: Final = 20
"""In one turn of the allocator; namespaces in turns."""
_AGAIN_SECONDS: Final = 30.0
_OLD_SECONDS: Final = 60.0
"""A pod that is unbound for so long may lack its group: somebody may have deleted it."""

log = structlog.get_logger("diflow.allocator")


class PodGroups:
    """Creates the group of a gang when the first of its pods names it, and keeps its `minCount` right."""

    def __init__(self, cluster: Cluster, elector: Elector, *, clock: Clock) -> None:
        self._cluster = cluster.without_retries()
        self._elector = elector
        self._clock = clock
        self._counts: dict[str, tuple[int, float]] = {}
        """Workflow (uid) → (its minCount as it was written, when)."""
        self._not_before: dict[str, float] = {}

    def run(self, state: ClusterState) -> bool:
        """Write what is missing. Returns whether more is left to be written. Raises LostLeadershipError."""
        now = self._clock.monotonic()
        due = [job for job in _gangs(state) if self._is_due(job, now)]
        for job in in_turns(due, lambda job: job.read.identity.namespace)[:MOST_WRITES]:
            self._write(job, now)
        if len(self._counts) > 2 * len(state.jobs) + MOST_WRITES:
            live = {job.read.identity.uid for job in state.jobs.values()}
            self._counts = {uid: known for uid, known in self._counts.items() if uid in live}
            self._not_before = {uid: end for uid, end in self._not_before.items() if uid in live}
        return len(due) > MOST_WRITES

    def _is_due(self, job: Job, now: float) -> bool:
        uid = job.read.identity.uid
        count, written = self._counts.get(uid, (0, -math.inf))
        if now < self._not_before.get(uid, -math.inf):
            return False
        return count != least_together(job) or (now - written > _OLD_SECONDS and any(map(_waits, job.pods)))

    def _write(self, job: Job, now: float) -> None:
        read, count = job.read.identity, least_together(job)
        self._elector.check()
        try:
            try:
                self._cluster.create(POD_GROUP, _group(job, count), namespace=read.namespace)
            except ConflictError:
                body = {"spec": {"schedulingPolicy": {"gang": {"minCount": count}}}}
                self._cluster.patch(POD_GROUP, read.name, body, namespace=read.namespace)
            self._counts[read.uid] = count, now
        except LostLeadershipError:
            raise
        except DiflowError as error:
            self._not_before[read.uid] = now + _AGAIN_SECONDS
            log.warning("the pods of a job wait for their PodGroup", job=job.key, why=str(error))


def least_together(job: Job) -> int:
    """How many pods kube-scheduler binds together: those that the job needs to run, without those that have ended."""
    live, is_done = job.read.live, job.read.argo.tree.is_done
    counts = (
        min(least, sum(not is_done(live.key(task, index)) for index in range(live.running(task))))
        for task, least in job.read.needs.least.items()
    )
    return max(1, sum(counts))


def _gangs(state: ClusterState) -> Iterator[Job]:
    for job in state.jobs.values():
        read = job.read
        if not read.has_ended and any(pod.group == read.identity.name for pod in job.pods):
            yield job


def _waits(pod: PodRecord) -> bool:
    return bool(pod.group) and not pod.host and not pod.gates


def _group(job: Job, count: int) -> dict[str, Any]:
    read = job.read.identity
    class_name = next(pod.priority_class for pod in job.pods if pod.group == read.name)
    owner = read.owner_reference(WORKFLOW.api_version, WORKFLOW.name)
    return {
        "apiVersion": POD_GROUP.api_version,
        "kind": POD_GROUP.name,
        "metadata": {"name": read.name, "ownerReferences": [owner]},
        "spec": {
            "schedulingPolicy": {"gang": {"minCount": count}},
            # kube-scheduler refuses pods of another priority than their group's.
            **({"priorityClassName": class_name} if class_name else {}),
        },
    }

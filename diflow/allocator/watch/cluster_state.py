"""The caches of the allocator, and the cluster state that they show at one moment."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Unpack

from diflow.allocator.model.views import QueueView
from diflow.allocator.settings import AllocatorSettings
from diflow.allocator.signature import Seal
from diflow.allocator.watch import records
from diflow.allocator.watch.job import Job
from diflow.allocator.watch.queues import QueueFile, read_file
from diflow.allocator.watch.selectors import LIVE, MANAGED
from diflow.allocator.watch.volumes import UNKNOWN, Volumes, trim_claim, trim_class, trim_limits, trim_volume
from diflow.common import keys
from diflow.common.clock import SYSTEM, Clock
from diflow.common.errors import InvalidError
from diflow.common.kept import KeptBytes
from diflow.common.memo import MIB
from diflow.common.queue_access import NamespaceRule
from diflow.kube.api import Cluster, Selection, within
from diflow.kube.kinds import (
    CONFIG_MAP,
    CSI_NODE,
    NODE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    STORAGE_CLASS,
    WORKFLOW,
    Kind,
)
from diflow.kube.reflector import PACE, Json, Key, Pace, Reflector, make_room
from diflow.kube.reflectors import Reflectors
from diflow.kube.sparing import Shares
from diflow.record.allocation import signed
from diflow.record.job import JobRecord
from diflow.record.node import NodeRecord
from diflow.record.pod import PodRecord

_NO_JOBS: Mapping[str, Job] = MappingProxyType({})

_SPARE = 1000
_BURST_SECONDS = 0.5
"""Of a processor, that the changes of one namespace may cost at once."""

OnChange = Callable[[Kind, str, Any, Any], None]
"""(kind, key, old record, new record): None where the object did not exist or does not exist any more."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The records of all objects at one moment. `queue_trouble`: why `queues.yaml` was rejected, or "". `rules`: which
    namespaces may use which queues."""

    jobs: Mapping[str, Job]
    nodes: Mapping[str, NodeRecord]
    pods: tuple[PodRecord, ...]
    queues: tuple[QueueView, ...] = ()
    queue_trouble: str = ""
    rules: tuple[NamespaceRule, ...] = ()
    volumes: Volumes = UNKNOWN


class Caches:
    """Local copies of the jobs' Workflows, all live pods, the nodes and the queues, kept by list and watch.

    `seal` verifies which allocations the allocator wrote; without it all are accepted, as read-only commands do.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: AllocatorSettings,
        *,
        on_change: OnChange,
        seal: Seal | None = None,
        clock: Clock = SYSTEM,
        pace: Pace = PACE,
    ) -> None:
        self._settings = settings
        self._seal, self._clock = seal, clock
        self._cluster, self._on_change, self._pace = cluster, on_change, pace
        # Both by the machine's own clock, as the processor's time is.
        self.shares = Shares(share=settings.reading_share, burst=_BURST_SECONDS)
        self.kept = KeptBytes(settings.kept_mib * MIB)
        space, reflector = within(settings.watched_namespace), self._reflector
        self.workflows = reflector(WORKFLOW, self._trim_workflow, shares=self.shares, labels=MANAGED, **space)
        self.pods = reflector(POD, records.trim_pod, shares=self.shares, everywhere=True, fields=LIVE)
        ending = frozenset(settings.ending_conditions)
        self.nodes = reflector(NODE, partial(records.trim_node, ending=ending), everywhere=True)
        self.queues = reflector(
            CONFIG_MAP,
            _trim_queues,
            namespace=settings.namespace,
            fields=f"metadata.name={settings.queues_config}",
        )
        self._all = Reflectors((self.nodes, self.queues, self.workflows, self.pods))
        self.claims = reflector(PERSISTENT_VOLUME_CLAIM, trim_claim, shares=self.shares, **space)
        self.volumes = reflector(PERSISTENT_VOLUME, trim_volume, everywhere=True)
        self.classes = reflector(STORAGE_CLASS, trim_class, everywhere=True)
        # Without the right to read them, gangs with claims are placed as if any node would do.
        self.limits = reflector(CSI_NODE, trim_limits, everywhere=True)
        self.optional = Reflectors((self.claims, self.volumes, self.classes, self.limits))
        self._shown: tuple[Sequence[Mapping[Key, Json]], Volumes] = (), UNKNOWN
        self._kept: Sequence[Mapping[Key, Json] | None] = (None,) * len(self._all.members)
        self._pods = Pods((), {}, {})
        self._lapse = math.inf  # when places of jobs that cannot be read count no more
        self._state = ClusterState({}, {}, ())
        self._good_queues: QueueFile | None = None

    def _reflector(
        self,
        kind: Kind,
        trim: Callable[[Json], Json | None],
        *,
        shares: Shares | None = None,
        **selection: Unpack[Selection],
    ) -> Reflector:
        def changed(_: str, key: Key, old: Json | None, new: Json | None) -> None:
            if kind is WORKFLOW:
                make_room(self.kept, self.workflows, key, new)
            self._on_change(kind, "/".join(key), old and old["read"], new and new["read"])

        return Reflector(
            self._cluster,
            kind,
            trim=trim,
            on_change=changed,
            on_gone=self.kept.forget,
            shares=shares,
            # Who uses which node must be known of all pods: what changes that is read at once.
            reads_late=kind is WORKFLOW or records.may_wait,
            clock=self._clock,
            pace=self._pace,
            **selection,
        )

    def start(self) -> None:
        if self._seal is not None:
            self._seal.load()
        self._all.start()
        self.optional.start()

    def stop(self) -> None:
        self._all.stop()
        self.optional.stop()

    def reopen(self) -> None:
        """Continue the watches on new connections. `trouble` is "" again when the server has accepted them."""
        self._all.reopen()
        self.optional.reopen()

    def wait_synced(self, timeout: float) -> bool:
        """Wait until every cache has been listed. False if one took longer than `timeout` seconds."""
        return self._all.wait_synced(timeout)

    def read(self, obj: Json) -> JobRecord:
        """The record of a Workflow that was requested, whose namespace pays for reading it."""
        with self.paid_by(obj["metadata"]["namespace"]):
            return records.planning_record_of(obj)

    def paid_by(self, namespace: str) -> AbstractContextManager[None]:
        """What this thread does in the block is paid by the namespace."""
        return self.shares.paid_by(namespace)

    def may_read(self, namespace: str) -> bool:
        """Whether the namespace has a part of its share left."""
        return self.shares.may(namespace)

    def _trim_workflow(self, obj: Json) -> Json | None:
        """The record of a Workflow as it is kept: without an allocation that the allocator did not write, with what was
        promised to a job that cannot be read any more, and only as far as its namespace has room."""
        found = self._sealed(records.planning_record_of(obj), obj)
        key = found.identity.namespace, found.identity.name
        former = self.workflows.get(*key)
        if found.problem and former is not None:
            found = records.with_promises(found, former["read"])
        if not self.kept.admits(key, found, (found.submitted, found.live)):
            found = records.without_room(found, self._settings.kept_mib)
        return {"read": found}

    def _sealed(self, read: JobRecord, obj: Json) -> JobRecord:
        if self._seal is None or read.notes.allocation is None:
            return read
        if self._seal.is_ours(read.identity.uid, *signed(obj)):
            return read
        complaint = f"the annotation {keys.ALLOCATION} was not written by the allocator as it stands, and is ignored"
        return replace(read, notes=replace(read.notes, allocation=None), complaints=read.complaints or (complaint,))

    def trouble(self) -> str:
        """Why no decision may be based on the caches now; "" when they are synced and fresh, and the queues are known.

        With a wrong text, the process that has read a correct one before goes on with that. Another one does not know
        whose limits it would ignore.
        """
        trouble = self._all.trouble(self._settings.stale_seconds)
        if trouble or self._good_queues is not None:
            return trouble
        _, wrong = self._queues()
        return f"the ConfigMap {self._settings.queues_config} has no correct text: {wrong}" if wrong else ""

    @property
    def age_seconds(self) -> float:
        """How old what is known of the cluster is; infinite while something was not listed yet."""
        return self._all.age_seconds

    def late(self) -> Mapping[str, float]:
        """For how many seconds a Workflow of each namespace has waited to be read that costs more than its share."""
        return self.workflows.late()

    def apply_write_response(self, kind: Kind, obj: Json) -> None:
        """Put the response to a write into the cache at once."""
        {WORKFLOW: self.workflows, POD: self.pods}[kind].apply_write(obj)

    def state(self) -> ClusterState:
        """What the caches show now. An unchanged job is the same object as in the last call, and so are the nodes and
        the pods if none of them has changed."""
        kept = nodes, _, workflows, pods = [reflector.items() for reflector in self._all.members]
        # A reflector returns the same mapping until one of its objects changes.
        is_new = [now is not then for now, then in zip(kept, self._kept, strict=True)]
        now, volumes = self._clock.wall(), self._volumes()
        if not any(is_new) and now < self._lapse and volumes is self._state.volumes:
            return self._state
        former, (queues, queue_trouble) = self._state, self._queues()
        reads: dict[str, JobRecord] = {item["read"].key: item["read"] for item in workflows.values()}
        owners = _owners(reads)
        if is_new[3] or owners != self._pods.owners:
            self._pods = Pods.of((item["read"] for item in pods.values()), owners)
        jobs = _jobs(reads, self._pods, most_nodes=self._settings.most_nodes, former=former.jobs)
        self._state = ClusterState(
            jobs,
            {item["read"].name: item["read"] for item in nodes.values()} if is_new[0] else former.nodes,
            self._counted(jobs, former, now),
            queues.queues,
            queue_trouble,
            queues.rules,
            volumes,
        )
        self._kept = kept
        self._lapse = min((end for job in jobs.values() if (end := job.promised_until) > now), default=math.inf)
        if self._seal is not None and len(self._seal) > 2 * len(reads) + _SPARE:
            self._seal.keep({read.identity.uid for read in reads.values()})
        return self._state

    def _volumes(self) -> Volumes:
        """What is known of claims and volumes, the same object until it changes."""
        items = [one.items() for one in self.optional.members]
        is_known = self.claims.synced and self.volumes.synced and self.classes.synced
        if (
            is_known is not self._shown[1].is_known
            or len(self._shown[0]) != len(items)
            or any(a is not b for a, b in zip(items, self._shown[0], strict=True))
        ):
            claims, volumes, classes, limits = items
            found = Volumes(
                {key: item["read"] for key, item in claims.items()},
                {name: item["read"] for (_, name), item in volumes.items()},
                {name: item["read"] for (_, name), item in classes.items()},
                {name: item["read"] for (_, name), item in limits.items()},
                is_known=is_known,
            )
            self._shown = items, found
        return self._shown[1]

    def _counted(self, jobs: Mapping[str, Job], former: ClusterState, now: float) -> tuple[PodRecord, ...]:
        """The pods, the same object as in the last state if they are the same."""
        pods = as_counted(self._pods.all, jobs, now)
        return former.pods if pods is not self._pods.all and pods == former.pods else pods

    def _queues(self) -> tuple[QueueFile, str]:
        for item in self.queues.items().values():
            try:
                self._good_queues = read_file(item["read"])
            except InvalidError as error:
                return self._good_queues or QueueFile(), str(error)
            return self._good_queues, ""
        self._good_queues = QueueFile()
        return self._good_queues, ""


@dataclass(frozen=True, slots=True)
class Pods:
    """Live pods: all, and by the key of their job. `owners`: the uid of each existing Workflow, by key."""

    all: tuple[PodRecord, ...]
    by_job: Mapping[str, tuple[PodRecord, ...]]
    owners: Mapping[str, str]

    @classmethod
    def of(cls, pods: Iterable[PodRecord], owners: Mapping[str, str]) -> Pods:
        seen: list[PodRecord] = []
        by_job: dict[str, list[PodRecord]] = {}
        for pod in pods:
            if pod.place is None:
                seen.append(pod)
            elif pod.job in owners and pod.owner != owners[pod.job]:
                # A pod of an earlier job of this name, or one that only has a job's labels, belongs to no job. It
                # still uses its node's capacity.
                seen.append(replace(pod, job="", place=None))
            else:
                seen.append(pod)
                by_job.setdefault(pod.job, []).append(pod)
        return cls(tuple(seen), {job: tuple(mine) for job, mine in by_job.items()}, owners)


def assemble(
    workflows: Iterable[JobRecord],
    nodes: Iterable[NodeRecord],
    pods: Iterable[PodRecord],
    queues: tuple[QueueView, ...] = (),
    queue_trouble: str = "",
    *,
    rules: tuple[NamespaceRule, ...] = (),
    most_nodes: int = 0,
) -> ClusterState:
    """The cluster state of these objects: each job with its own pods.

    A preemptible job whose Workflow has at least `most_nodes` of Argo's nodes is full (0: none is).
    """
    reads = {read.key: read for read in workflows}
    sorted_pods = Pods.of(pods, _owners(reads))
    jobs = _jobs(reads, sorted_pods, most_nodes=most_nodes, former=_NO_JOBS)
    counted = as_counted(sorted_pods.all, jobs, time.time())
    return ClusterState(jobs, {node.name: node for node in nodes}, counted, queues, queue_trouble, rules)


def as_counted(pods: tuple[PodRecord, ...], jobs: Mapping[str, Job], now: float) -> tuple[PodRecord, ...]:
    """The pods with the nodes that they use: kube-scheduler's, or that to which the allocator has sent them.

    Everybody can create pods that ask for a node, and that nobody binds: they use none.
    """
    claims = [pod for pod in pods if not pod.host and (pod.where or (pod.place is not None and not pod.gates))]
    counted = {pod.identity.uid: _as_counted(pod, jobs.get(pod.job), now) for pod in claims}
    if all(counted[pod.identity.uid] is pod for pod in claims):
        return pods
    return tuple(counted.get(pod.identity.uid, pod) for pod in pods)


def _as_counted(pod: PodRecord, job: Job | None, now: float) -> PodRecord:
    if job is None or not job.has_sent(pod, now):
        return replace(pod, pinned="") if pod.pinned else pod
    request, where = job.counted_request(pod), job.where_is(pod)
    is_same = request is pod.request and where == pod.pinned
    return pod if is_same else replace(pod, request=request, pinned=where)


def _owners(reads: Mapping[str, JobRecord]) -> dict[str, str]:
    return {key: read.identity.uid for key, read in reads.items()}


def _jobs(
    reads: Mapping[str, JobRecord], pods: Pods, *, most_nodes: int, former: Mapping[str, Job]
) -> Mapping[str, Job]:
    """The jobs of these objects. A job that consists of the same objects as in `former` is reused, with the values that
    it has cached."""
    chains = _Chains(reads, pods.by_job)
    after = chains.after
    jobs: dict[str, Job] = {}
    for key, read in reads.items():
        mine, old = pods.by_job.get(key, ()), former.get(key)
        # Fast path: most jobs are unchanged and have only one Workflow.
        alone = not read.before and read.name in ("", read.identity.name) and key not in after
        if alone and old is not None and old.read is read and old.pods is mine and old.after is None:
            jobs[key] = old
            continue
        job = Job(
            read,
            mine,
            before=chains.before.get(key),
            after=after.get(key),
            old_pods=chains.old_pods(read),
            is_full=bool(most_nodes) and read.terms.is_preemptible and read.argo.tree.count >= most_nodes,
            known_as=chains.known_as(read),
            submitted_seconds=chains.submitted(read),
        )
        jobs[key] = old if old is not None and old.is_made_of(job) else job
    return jobs


class _Chains:
    """Which Workflow continues which, and the names of the jobs.

    Users can edit the annotations that say so, so these may form cycles and forks. If several Workflows name the same
    predecessor, one of them is its successor. A chain is followed only from its newest Workflow and only where both
    ends name each other, so each Workflow is visited once whatever the annotations contain.
    """

    def __init__(self, reads: Mapping[str, JobRecord], pods: Mapping[str, Sequence[PodRecord]]) -> None:
        self._reads, self._pods = reads, pods
        self._detached: dict[str, dict[str, list[PodRecord]]] = {}
        self.before = {key: found for key, read in reads.items() if (found := _before(read, reads)) is not None}
        self.after = {
            found.key: reads[key]
            for key, found in sorted(self.before.items())
            if found.chain.continued_in in ("", reads[key].identity.name)
        }
        claims = sorted((read.before, read.chain.continues_uid, key) for key, read in reads.items() if read.before)
        self._heirs = {(continued, uid): key for continued, uid, key in claims if continued not in reads}
        current = [read for read in reads.values() if not self._is_superseded(read)]
        self._keys = {read.key for read in current}
        self._names = Counter(_named(read) for read in current)

    def old_pods(self, read: JobRecord) -> tuple[PodRecord, ...]:
        """Live pods of the Workflows before this one, if it is the newest of its job."""
        out: list[PodRecord] = []
        at = read
        while at.before and not read.chain.continued_in:
            before = self.before.get(at.key)
            if before is None:
                if self._heirs.get((at.before, at.chain.continues_uid)) == at.key:
                    out += self._detached_pods(at.before).get(at.chain.continues_uid, ())
                break
            if self.after.get(before.key) is not at:
                break
            out += self._pods.get(before.key, ())
            if before.chain.continued_in != at.identity.name:
                break
            at = before
        return tuple(out)

    def submitted(self, read: JobRecord) -> float | None:
        """When the first Workflow of this one's chain was created; None if that is this one.

        The annotation `diflow/submitted` does not count, as a user could write an early time to move ahead in the
        queue. Only an existing predecessor that names this Workflow proves an age.
        """
        at: JobRecord = read
        oldest: float | None = None
        seen = {read.key}
        while (
            not read.chain.continued_in and (before := self.before.get(at.key)) is not None and before.key not in seen
        ):
            if before.chain.continued_in != at.identity.name:
                break
            seen.add(before.key)
            at, oldest = before, before.argo.created_seconds
        return oldest

    def known_as(self, read: JobRecord) -> str:
        """The key of the job that continues in this Workflow; "" if it is this Workflow's own key, or if another job
        has that key now. It is unique among the Workflows that are current."""
        if read.name in ("", read.identity.name):
            return ""
        title = "/".join(_named(read))
        if self._is_superseded(read):
            return title
        return "" if title in self._keys or self._names[_named(read)] > 1 else title

    def _is_superseded(self, read: JobRecord) -> bool:
        return bool(read.chain.continued_in) or read.key in self.after

    def _detached_pods(self, key: str) -> Mapping[str, Sequence[PodRecord]]:
        """Live pods of a deleted Workflow, by its uid."""
        if key not in self._detached:
            by_owner = self._detached[key] = {}
            for pod in self._pods.get(key, ()):
                by_owner.setdefault(pod.owner, []).append(pod)
        return self._detached[key]


def _before(read: JobRecord, reads: Mapping[str, JobRecord]) -> JobRecord | None:
    """The Workflow that this one continues, if it exists with the same uid."""
    found = reads.get(read.before) if read.before and read.before != read.key else None
    return found if found is not None and found.identity.uid == read.chain.continues_uid else None


def _named(read: JobRecord) -> tuple[str, str]:
    return read.identity.namespace, read.name or read.identity.name


def _trim_queues(obj: Json) -> Json | None:
    return {"read": str((obj.get("data") or {}).get(keys.QUEUES_FILE) or "queues: []")}

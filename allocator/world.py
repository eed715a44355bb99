"""The caches of the daemon, and what they show at one moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from diflow import keys
from diflow.allocator import reading
from diflow.allocator.carrying import Job
from diflow.allocator.queues import read_queues
from diflow.allocator.reading import JobRead, NodeRead, PodRead
from diflow.allocator.service import AllocatorSettings
from diflow.allocator.views import QueueView
from diflow.errors import InvalidError
from diflow.kube.api import Cluster
from diflow.kube.kinds import CONFIG_MAP, NODE, POD, WORKFLOW, Kind
from diflow.kube.reflector import Json, Key, Reflector
from diflow.kube.reflectors import Reflectors

MANAGED = f"{keys.MANAGED_BY}={keys.MANAGED_BY_VALUE},{keys.SCHEDULING}=gang"
QUEUES_KEY = "queues.yaml"
LIVE = "status.phase!=Succeeded,status.phase!=Failed"
"""Field selector. Pods that have ended hold nothing; the server need not send them."""

_NO_JOBS: Mapping[str, Job] = MappingProxyType({})

Told = Callable[[Kind, str, Any, Any], None]
"""(kind, key, what was read before, what is read now): None where there was or is nothing."""


@dataclass(frozen=True, slots=True)
class World:
    """All that the allocator sees at one moment. `queue_trouble`: why the queues' text was not taken, or ""."""

    jobs: Mapping[str, Job]
    nodes: Mapping[str, NodeRead]
    pods: tuple[PodRead, ...]
    queues: tuple[QueueView, ...] = ()
    queue_trouble: str = ""


class Caches:
    """Local copies of the jobs' Workflows, all live pods, the nodes and the queues, kept by list and watch."""

    def __init__(self, cluster: Cluster, settings: AllocatorSettings, *, told: Told, **options: Any) -> None:
        self._settings = settings
        space: dict[str, Any] = (
            {"namespace": settings.watched_namespace} if settings.watched_namespace else {"everywhere": True}
        )

        def reflector(kind: Kind, trim: Callable[[Json], Json | None], **chosen: Any) -> Reflector:
            def on_change(_: str, key: Key, old: Json | None, new: Json | None) -> None:
                told(kind, "/".join(key), old and old["read"], new and new["read"])

            return Reflector(cluster, kind, trim=trim, on_change=on_change, **chosen, **options)

        self.workflows = reflector(WORKFLOW, reading.trim_workflow, labels=MANAGED, **space)
        self.pods = reflector(POD, reading.trim_pod, everywhere=True, fields=LIVE)
        self.nodes = reflector(NODE, reading.trim_node, everywhere=True)
        self.queues = reflector(
            CONFIG_MAP,
            _trim_queues,
            namespace=settings.namespace,
            fields=f"metadata.name={settings.queues_config}",
        )
        self._all = Reflectors((self.nodes, self.queues, self.workflows, self.pods))
        self._kept: Sequence[Mapping[Key, Json] | None] = (None,) * len(self._all.members)
        self._pods = Pods((), {}, {})
        self._world = World({}, {}, ())
        self._good_queues: tuple[QueueView, ...] = ()

    def start(self) -> None:
        self._all.start()

    def stop(self) -> None:
        self._all.stop()

    def wait_synced(self, timeout: float) -> bool:
        """Wait until all have been listed. False if that took longer than `timeout` seconds each."""
        return self._all.wait_synced(timeout)

    def trouble(self) -> str:
        """Why nothing may be decided now; "" when all caches are good."""
        return self._all.trouble(self._settings.stale_seconds)

    def observed(self, kind: Kind, obj: Json) -> None:
        """Take the answer to a write into the cache at once."""
        {WORKFLOW: self.workflows, POD: self.pods}[kind].observed(obj)

    def world(self) -> World:
        """What the caches show now. A job of which nothing has changed is the same object as the last time, and so are
        the nodes and the pods if none of them has."""
        kept = nodes, _, workflows, pods = [reflector.items() for reflector in self._all.members]
        # Each reflector gives the same mapping until something in it changes.
        is_new = [now is not then for now, then in zip(kept, self._kept, strict=True)]
        if not any(is_new):
            return self._world
        former, queues = self._world, self._queues()
        reads: dict[str, JobRead] = {item["read"].key: item["read"] for item in workflows.values()}
        owners = _owners(reads)
        if is_new[3] or owners != self._pods.owners:
            self._pods = Pods.of((item["read"] for item in pods.values()), owners)
        self._world = World(
            _jobs(reads, self._pods, most_nodes=self._settings.most_nodes, former=former.jobs),
            {item["read"].name: item["read"] for item in nodes.values()} if is_new[0] else former.nodes,
            self._pods.all,
            *queues,
        )
        self._kept = kept
        return self._world

    def _queues(self) -> tuple[tuple[QueueView, ...], str]:
        for item in self.queues.items().values():
            try:
                self._good_queues = tuple(read_queues(item["read"]))
            except InvalidError as error:
                return self._good_queues, str(error)
            return self._good_queues, ""
        self._good_queues = ()
        return (), ""


@dataclass(frozen=True, slots=True)
class Pods:
    """Live pods, and by the job (its key) that they are of. `owners`: the uid of each Workflow that was there then."""

    all: tuple[PodRead, ...]
    by_job: Mapping[str, tuple[PodRead, ...]]
    owners: Mapping[str, str]

    @classmethod
    def of(cls, pods: Iterable[PodRead], owners: Mapping[str, str]) -> Pods:
        seen: list[PodRead] = []
        by_job: dict[str, list[PodRead]] = {}
        for pod in pods:
            if pod.place is None:
                seen.append(pod)
            elif pod.job in owners and pod.owner not in ("", owners[pod.job]):
                # What is left of an earlier job of this name is nobody's any more, and holds its room all the same.
                seen.append(replace(pod, job="", place=None))
            else:
                seen.append(pod)
                by_job.setdefault(pod.job, []).append(pod)
        return cls(tuple(seen), {job: tuple(mine) for job, mine in by_job.items()}, owners)


def assemble(
    workflows: Iterable[JobRead],
    nodes: Iterable[NodeRead],
    pods: Iterable[PodRead],
    queues: tuple[QueueView, ...] = (),
    queue_trouble: str = "",
    *,
    most_nodes: int = 0,
    former: Mapping[str, Job] = _NO_JOBS,
) -> World:
    """The world of these objects: each job with its own pods.

    A preemptible job whose Workflow has `most_nodes` of Argo's nodes or more is full (0: none is). A job that is made
    of the same objects as in `former` is taken from there: what was derived from it holds on.
    """
    reads = {read.key: read for read in workflows}
    sorted_pods = Pods.of(pods, _owners(reads))
    jobs = _jobs(reads, sorted_pods, most_nodes=most_nodes, former=former)
    return World(jobs, {node.name: node for node in nodes}, sorted_pods.all, queues, queue_trouble)


def _owners(reads: Mapping[str, JobRead]) -> dict[str, str]:
    return {key: read.identity.uid for key, read in reads.items()}


def _jobs(reads: Mapping[str, JobRead], pods: Pods, *, most_nodes: int, former: Mapping[str, Job]) -> Mapping[str, Job]:
    before = {key: found for key, read in reads.items() if read.continues and (found := _before(read, reads))}
    after = {
        found.key: reads[key]
        for key, found in sorted(before.items())
        if found.continued_in in ("", reads[key].identity.name)
    }
    jobs: dict[str, Job] = {}
    for key, read in reads.items():
        mine, old = pods.by_job.get(key, ()), former.get(key)
        # Most jobs have changed in nothing, and have only ever been in one Workflow.
        alone = not read.continues and read.name in ("", read.identity.name) and key not in after
        if alone and old is not None and old.read is read and old.pods is mine and old.after is None:
            jobs[key] = old
            continue
        job = Job(
            read,
            mine,
            before=before.get(key),
            after=after.get(key),
            old_pods=_old_pods(read, reads, pods.by_job) if read.continues else (),
            is_full=bool(most_nodes) and read.is_preemptible and read.tree.count >= most_nodes,
            known_as=_known_as(read, reads, after),
        )
        jobs[key] = old if old is not None and old.is_made_of(job) else job
    return jobs


def _before(read: JobRead, reads: Mapping[str, JobRead]) -> JobRead | None:
    """The Workflow that this one continues, if it is there: the same, and not another one of its name."""
    found = reads.get(read.continues) if read.continues else None
    return found if found is not None and found.identity.uid == read.continues_uid else None


def _old_pods(
    read: JobRead, reads: Mapping[str, JobRead], of_job: Mapping[str, Sequence[PodRead]]
) -> tuple[PodRead, ...]:
    """Live pods of the Workflows before this one."""
    out: list[PodRead] = []
    at: JobRead | None = read
    for _ in range(read.part):
        if at is None or not at.continues:
            break
        out += (pod for pod in of_job.get(at.continues, ()) if pod.owner in ("", at.continues_uid))
        at = _before(at, reads)
    return tuple(out)


def _known_as(read: JobRead, reads: Mapping[str, JobRead], after: Mapping[str, JobRead]) -> str:
    """The key of the job that has gone on in this Workflow, or "": also when another job has that name by now."""
    if read.name in ("", read.identity.name):
        return ""
    title = f"{read.identity.namespace}/{read.name}"
    if read.continued_in or read.key in after:
        return title
    others = [
        other
        for other in reads.values()
        if other.identity.namespace == read.identity.namespace
        and other.name == read.name
        and other.key != read.key
        and not other.continued_in
        and other.key not in after
    ]
    return "" if others else title


def _trim_queues(obj: Json) -> Json | None:
    metadata = obj["metadata"]
    text = str((obj.get("data") or {}).get(QUEUES_KEY) or "queues: []")
    return {"metadata": metadata, "read": text}

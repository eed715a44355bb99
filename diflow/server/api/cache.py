"""The server's cache of jobs and their pods, indexed by the job's name.

Reads are answered from it, without a request to the API server, unless it is stale (`is_fresh`, `trouble`). A job that
continues in another Workflow is one job (`diflow.record.chain`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, Final

from diflow.common import keys
from diflow.common.clock import SYSTEM, Clock
from diflow.common.kept import KeptBytes
from diflow.common.memo import MIB
from diflow.kube.api import Cluster, within
from diflow.kube.kinds import POD, WORKFLOW
from diflow.kube.reflector import Json, Key, Reflector, drop, make_room
from diflow.kube.reflectors import Reflectors
from diflow.kube.sparing import Shares
from diflow.record import chain, untrusted
from diflow.record.job import JobRecord, record_of
from diflow.record.pod import PodRecord, serving_record_of
from diflow.server.api.reading import address, served, without_room
from diflow.server.http import envelope

PODS: Final = f"{keys.OPERATOR}={keys.OPERATOR_VALUE}"
LIVE: Final = "status.phase!=Succeeded,status.phase!=Failed"

_BURST_SECONDS: Final = 0.5
"""Of a processor, that the changes of one namespace may cost at once."""

JobKey = tuple[str, str]
"""(namespace, name of the job)."""


@dataclass(frozen=True)
class ServedJob:
    """A snapshot of a job: its current Workflow, and the pods of its current round.

    `members` has an entry for each wanted replica, by rank (tasks in their order, then by index); None without a pod.
    """

    namespace: str
    name: str
    workflow: JobRecord
    members: tuple[PodRecord | None, ...]
    pods: tuple[PodRecord, ...]
    """All pods of the current round, including those that are being replaced."""
    earlier: frozenset[tuple[str, str]] = frozenset()
    """(name, uid) of the job's earlier Workflows."""

    @cached_property
    def counts(self) -> dict[str, int]:
        """How many replicas of each task should run now, in the tasks' order."""
        return self.workflow.running

    @cached_property
    def addresses(self) -> list[str]:
        """`podIP:port` by rank, "" where a pod has no address yet."""
        return [
            address(pod.endpoint.address, pod.endpoint.port) if pod and pod.endpoint.address else ""
            for pod in self.members
        ]

    @cached_property
    def replicas_answer(self) -> bytes:
        """The body of the response to GET replicas: it is requested far more often than it changes."""
        return envelope.success("successfully get replicas", self.addresses)

    @cached_property
    def discover_answer(self) -> bytes | None:
        """The body of the response to /discover, None while a replica has no address: hundreds may wait for it."""
        found = [pod.endpoint.address if pod is not None else "" for pod in self.members]
        return envelope.bare(found) if found and all(found) else None

    def rank_of(self, pod: PodRecord) -> int | None:
        """The rank over the whole job of a pod of the current round, None if its index is above the task's count."""
        first = 0
        for task, count in self.counts.items():
            if task == pod.task:
                return first + pod.index if 0 <= pod.index < count else None
            first += count
        return None

    def task_of(self, rank: int) -> str:
        """The task of the replica with this rank, "" if there is none."""
        for task, count in self.counts.items():
            if rank < count:
                return task
            rank -= count
        return ""

    def has(self, pod: PodRecord) -> bool:
        """The pod belongs to this job's current round (and not to another Workflow of the same name)."""
        return (
            pod.namespace == self.namespace
            and pod.workflow == self.workflow.identity.name
            and pod.owner == self.workflow.identity.uid
            and (self._lives(pod) is True if self._is_beside(pod) else pod.round == self.workflow.round)
            and bool(pod.round)
        )

    def _is_beside(self, pod: PodRecord) -> bool:
        """It is in another round of a job whose rounds run side by side; the job itself is the first one."""
        return self.workflow.argo.side_by_side is not None and pod.round != self.workflow.round

    def _lives(self, pod: PodRecord) -> bool | None:
        """Whether the replica of this pod is wanted; None if the job has no such one yet."""
        known = self.workflow.argo.side_by_side
        return known.lives(pod.round, pod.task, pod.index) if known is not None else None

    def had(self, pod: PodRecord) -> bool:
        """The pod belongs to an earlier round of this job."""
        if pod.namespace != self.namespace:
            return False
        if pod.workflow != self.workflow.identity.name or pod.owner != self.workflow.identity.uid:
            return (pod.workflow, pod.owner) in self.earlier
        if self._is_beside(pod):
            return self._lives(pod) is False
        was, now = _rounds(pod, self.workflow)
        return 1 <= was < now

    def will_have(self, pod: PodRecord) -> bool:
        """The pod's labels name a later round of this job than the cache has: pods and Workflows have separate watches,
        and that of Workflows may be behind."""
        if self._is_beside(pod) and self._lives(pod) is not None:
            return False
        was, now = _rounds(pod, self.workflow)
        return pod.namespace == self.namespace and pod.endpoint.job == self.name and was > now >= 1


Beside = Callable[[Json, Any, Any], Any]
"""Returns what to keep beside the record of an object, None for nothing. It is called with each whole object, its
record, and as much of this as is kept."""


class Cache:
    """The cache. `namespace` "" means all.

    What `beside` returns is kept with the records, for others (`workflows` and `pods`, under "beside").
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        namespace: str = "",
        stale_seconds: float,
        reading_share: float = 0.25,
        kept_mib: int = 128,
        beside: Beside = lambda *_: None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._stale_seconds = stale_seconds
        self._beside = beside
        self._shares = Shares(share=reading_share, burst=_BURST_SECONDS)
        self._kept, self._kept_mib = KeptBytes(kept_mib * MIB), kept_mib
        space = within(namespace)
        self._lock = threading.Lock()
        self._parts: dict[JobKey, dict[str, JobRecord]] = {}
        self._job_of: dict[Key, str] = {}
        self._pods: dict[Key, dict[str, PodRecord]] = {}
        self._by_address: dict[str, dict[Key, PodRecord]] = {}
        self._views: dict[JobKey, ServedJob] = {}
        self._subscribers: tuple[Callable[[JobKey], None], ...] = ()
        trim, told = self._trim_workflow, self._workflow
        given: dict[str, Any] = {"shares": self._shares, "clock": clock, **space}
        self.workflows = Reflector(
            cluster, WORKFLOW, labels=keys.MANAGED, trim=trim, on_change=told, on_gone=self._kept.forget, **given
        )
        self.pods = Reflector(
            cluster, POD, labels=PODS, fields=LIVE, trim=self._trim_pod, on_change=self._pod, reads_late=False, **given
        )
        self._all = Reflectors((self.workflows, self.pods))

    def start(self) -> None:
        """Start to list and watch, in threads of its own."""
        self._all.start()

    def stop(self) -> None:
        """Stop the threads. The cached objects stay readable, and become stale."""
        self._all.stop()

    def wait_synced(self, timeout: float) -> bool:
        """Wait until jobs and pods have been listed. False if one took longer than `timeout` seconds."""
        return self._all.wait_synced(timeout)

    # --- age ----------------------------------------------------------------------------------------------------------

    def is_fresh(self) -> bool:
        """Whether jobs and pods have been listed, and are not stale."""
        limit = self._stale_seconds
        pods, workflows = self.pods, self.workflows
        return (
            pods.synced and workflows.synced and pods.age_seconds <= limit and workflows.age_seconds <= limit
        )  # fmt: skip

    @property
    def age_seconds(self) -> float:
        """The age of the older of jobs and pods; infinite before the first list."""
        return max(self.pods.age_seconds, self.workflows.age_seconds)

    def trouble(self) -> str:
        """Why the cache cannot be used now, or "". For administrators, not for callers."""
        return self._all.trouble(self._stale_seconds)

    # --- reading ------------------------------------------------------------------------------------------------------

    def job(self, namespace: str, name: str) -> ServedJob | None:
        """A job by its name, or None."""
        key = (namespace, name)
        view = self._views.get(key)
        if view is not None:
            return view
        with self._lock:
            view = self._view(key)
            if view is not None:
                self._views[key] = view
            return view

    def living(self, namespace: str, name: str) -> frozenset[str]:
        """The uids of all pods of a job that have not ended, of whichever round."""
        with self._lock:
            parts = (self._parts.get((namespace, name)) or {}).values()
            return frozenset(
                pod.uid
                for part in parts
                for pod in self._pods.get((namespace, part.identity.name), {}).values()
                if pod.owner == part.identity.uid
            )

    def jobs(self) -> list[ServedJob]:
        """All jobs, in no order."""
        with self._lock:
            found = list(self._parts)
        views = (self.job(*key) for key in found)
        return [view for view in views if view is not None]

    def pod(self, namespace: str, name: str) -> PodRecord | None:
        """A pod of a job by its own name."""
        kept = self.pods.get(namespace, name)
        return kept["read"] if kept is not None else None

    def pod_at(self, host: str) -> PodRecord | None:
        """The pod with this address; None if there is none or several, or if it is the node's address (hostNetwork)."""
        with self._lock:
            found = list(self._by_address.get(host, {}).values())
        return found[0] if len(found) == 1 and not found[0].endpoint.on_host_network else None

    def subscribe(self, on_change: Callable[[JobKey], None]) -> Callable[[], None]:
        """Call `on_change`, in a reflector's thread, when a job has changed. Returns the function that unsubscribes."""
        self._subscribers = (*self._subscribers, on_change)

        def unsubscribe() -> None:
            self._subscribers = tuple(one for one in self._subscribers if one is not on_change)

        return unsubscribe

    def observed(self, obj: Json) -> None:
        """Apply the Workflow in the response to a write, ahead of the watch."""
        self.workflows.apply_write(obj)

    # --- indexing -----------------------------------------------------------------------------------------------------

    def _trim_workflow(self, obj: Json) -> Json:
        read = record_of(obj)
        kept = served(read, obj)
        found = {"read": kept, "beside": self._beside(obj, read, kept)}
        key = kept.identity.namespace, kept.identity.name
        if self._kept.admits(key, found, (kept.submitted, kept.live)):
            return found
        return {"read": without_room(kept, self._kept_mib), "beside": None}

    def _trim_pod(self, obj: Json) -> Json:
        read = serving_record_of(obj)
        return {"read": read, "beside": self._beside(obj, read, read)}

    def _workflow(self, _: str, key: Key, old: Json | None, new: Json | None) -> None:
        make_room(self._kept, self.workflows, key, new)
        before, after = _read(old), _read(new)
        changed: set[JobKey] = set()
        with self._lock:
            if before is not None and (after is None or after.name != before.name):
                parts = self._parts.get((key[0], before.name), {})
                parts.pop(key[1], None)
                if not parts:
                    self._parts.pop((key[0], before.name), None)
                changed.add((key[0], before.name))
                self._job_of.pop(key, None)
            if after is not None:
                self._parts.setdefault((key[0], after.name), {})[key[1]] = after
                self._job_of[key] = after.name
                changed.add((key[0], after.name))
            for job in changed:
                self._views.pop(job, None)
        self._notify(changed)

    def _pod(self, _: str, key: Key, old: Json | None, new: Json | None) -> None:
        before, after = _read(old), _read(new)
        changed: set[JobKey] = set()
        with self._lock:
            for pod in (before, after):
                if pod is None:
                    continue
                home = (key[0], pod.workflow)
                if pod is before:
                    drop(self._pods, home, key[1])
                    drop(self._by_address, pod.endpoint.address, key)
                else:
                    self._pods.setdefault(home, {})[key[1]] = pod
                    if pod.endpoint.address:
                        self._by_address.setdefault(pod.endpoint.address, {})[key] = pod
                if home in self._job_of:
                    changed.add((key[0], self._job_of[home]))
            for job in changed:
                self._views.pop(job, None)
        self._notify(changed)

    def _notify(self, changed: Iterable[JobKey]) -> None:
        for key in changed:
            for subscriber in self._subscribers:
                subscriber(key)

    def _view(self, key: JobKey) -> ServedJob | None:
        parts = self._parts.get(key)
        if not parts:
            return None
        workflow = chain.current(key[1], parts.values(), part=attrgetter("part"))
        if workflow is None:
            return None
        current = [
            pod
            for pod in self._pods.get((key[0], workflow.identity.name), {}).values()
            if pod.owner == workflow.identity.uid and pod.round == workflow.round
        ]
        # Of several pods of one replica, the newest that is not terminating.
        best: dict[tuple[str, int], PodRecord] = {}
        for pod in sorted(current, key=lambda p: (not p.is_terminating, p.created, p.name)):
            best[pod.task, pod.index] = pod
        members = tuple(best.get((task, i)) for task, count in workflow.running.items() for i in range(count))
        before = (part.identity for part in parts.values() if part.chain.part < workflow.chain.part)
        earlier = frozenset((identity.name, identity.uid) for identity in before)
        return ServedJob(key[0], key[1], workflow, members, tuple(current), earlier)


def _rounds(pod: PodRecord, workflow: JobRecord) -> tuple[int, int]:
    """(the pod's round, the job's current round); 0 for what is no number."""
    was, now = untrusted.whole(pod.round), untrusted.whole(workflow.round)
    return was if was is not None and pod.round == str(was) else 0, now or 0


def _read(kept: Json | None) -> Any:
    return kept["read"] if kept is not None else None

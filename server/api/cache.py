"""A local copy of the jobs and of their pods, indexed by what people call a job.

Answers to reads come from here, and the API server is not asked. The copy says how old it is (`trouble`): from one that
is too old nobody is answered. A job that has gone on in another Workflow is one job (`diflow.state.chain`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from diflow import keys
from diflow.kube.api import Cluster
from diflow.kube.kinds import POD, WORKFLOW, Kind
from diflow.kube.reflector import Json, Key, Reflector
from diflow.kube.reflectors import Reflectors
from diflow.server.api.reading import PodRead, WorkflowRead, address, read_pod, read_workflow
from diflow.server.http import envelope
from diflow.state import chain, untrusted

MANAGED: Final = f"{keys.MANAGED_BY}={keys.MANAGED_BY_VALUE}"
PODS: Final = f"{keys.OPERATOR}={keys.OPERATOR_VALUE}"
LIVE: Final = "status.phase!=Succeeded,status.phase!=Failed"

JobKey = tuple[str, str]
"""(namespace, name of the job)."""


@dataclass(frozen=True)
class JobView:
    """A job as of one moment: the Workflow in which it is now, and the pods of its current round by rank.

    `members` has a place for each replica that is meant to run: the tasks in their order, each by its index.
    """

    namespace: str
    name: str
    workflow: WorkflowRead
    members: tuple[PodRead | None, ...]
    pods: tuple[PodRead, ...]
    """All pods of the current round, those that are being replaced too."""
    earlier: frozenset[tuple[str, str]] = frozenset()
    """(name, uid) of the Workflows in which the job was before."""

    @cached_property
    def addresses(self) -> list[str]:
        """`podIP:port` by rank, "" where a pod has no address yet."""
        return [address(pod.address, pod.port) if pod and pod.address else "" for pod in self.members]

    @cached_property
    def replicas_answer(self) -> bytes:
        """The whole body of the answer to GET replicas: it is asked for far more often than it changes."""
        return envelope.success("successfully get replicas", self.addresses)

    @cached_property
    def discover_answer(self) -> bytes | None:
        """The whole body of the answer to /discover, None while a replica has no address: hundreds may wait for it."""
        found = [pod.address if pod is not None else "" for pod in self.members]
        return envelope.bare(found) if found and all(found) else None

    def rank_of(self, pod: PodRead) -> int | None:
        """The rank over the whole job of a pod of the current round, None if it is none of its members."""
        first = 0
        for task, count in self.workflow.counts.items():
            if task == pod.task:
                return first + pod.index if 0 <= pod.index < count else None
            first += count
        return None

    def task_of(self, rank: int) -> str:
        """The task of the replica with this rank, "" if there is none."""
        for task, count in self.workflow.counts.items():
            if rank < count:
                return task
            rank -= count
        return ""

    def has(self, pod: PodRead) -> bool:
        """This pod is of this job's current round (and not of another object of that name)."""
        return (
            pod.namespace == self.namespace
            and pod.workflow == self.workflow.name
            and pod.owner == self.workflow.uid
            and pod.round == self.workflow.current
            and bool(pod.round)
        )

    def had(self, pod: PodRead) -> bool:
        """This pod is of an earlier round of this job."""
        if pod.namespace != self.namespace:
            return False
        if pod.workflow != self.workflow.name or pod.owner != self.workflow.uid:
            return (pod.workflow, pod.owner) in self.earlier
        was, now = _rounds(pod, self.workflow)
        return 1 <= was < now

    def will_have(self, pod: PodRead) -> bool:
        """This pod says that it is of a round of this job which is not known here yet: pods and Workflows come by
        watches of their own, and the one of Workflows may be behind."""
        was, now = _rounds(pod, self.workflow)
        return pod.namespace == self.namespace and pod.job == self.name and was > now >= 1


@dataclass(frozen=True, slots=True)
class More:
    """What else is to be kept. `workflow` and `pod` are given each whole object once and give what `more` is to hold;
    objects of `kinds` are kept as their function cuts them down (`Cache.objects`)."""

    workflow: Callable[[Json], Any] = lambda _: None
    pod: Callable[[Json], Any] = lambda _: None
    kinds: Mapping[Kind, Callable[[Json], Json | None]] = field(default_factory=dict)


class Cache:
    """The copy. `namespace` "" means all. `options` are passed on to the reflectors (see there)."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        namespace: str = "",
        stale_seconds: float,
        more: More | None = None,
        clock: Callable[[], float] = time.monotonic,
        **options: Any,
    ) -> None:
        self._stale_seconds = stale_seconds
        self._more = more or More()
        space: dict[str, Any] = {"namespace": namespace} if namespace else {"everywhere": True}
        given: dict[str, Any] = {"clock": clock, **options}
        self._lock = threading.Lock()
        self._parts: dict[JobKey, dict[str, WorkflowRead]] = {}
        self._job_of: dict[Key, str] = {}
        self._pods: dict[Key, dict[str, PodRead]] = {}
        self._by_address: dict[str, dict[Key, PodRead]] = {}
        self._views: dict[JobKey, JobView] = {}
        self._told: tuple[Callable[[JobKey], None], ...] = ()
        self.workflows = Reflector(
            cluster, WORKFLOW, labels=MANAGED, trim=self._trim_workflow, on_change=self._workflow, **space, **given
        )
        self.pods = Reflector(
            cluster, POD, labels=PODS, fields=LIVE, trim=self._trim_pod, on_change=self._pod, **space, **given
        )
        self._others = {
            kind: Reflector(cluster, kind, trim=trim, **(space if kind.namespaced else {"everywhere": True}), **given)
            for kind, trim in self._more.kinds.items()
        }
        self._jobs = Reflectors((self.workflows, self.pods))
        self._all = Reflectors((self.workflows, self.pods, *self._others.values()))

    def start(self) -> None:
        """Begin to list and to watch, in threads of its own."""
        self._all.start()

    def stop(self) -> None:
        """End the threads. What was read stays readable, and becomes stale."""
        self._all.stop()

    def wait_synced(self, timeout: float) -> bool:
        """Wait until all have been listed. False if that took longer than `timeout` seconds each."""
        return self._all.wait_synced(timeout)

    # --- how old it is ------------------------------------------------------------------------------------------------

    def is_fresh(self) -> bool:
        """Jobs and pods are known, as of a moment that is not too long ago."""
        limit = self._stale_seconds
        pods, workflows = self.pods, self.workflows
        return (
            pods.synced and workflows.synced and pods.age_seconds <= limit and workflows.age_seconds <= limit
        )  # fmt: skip

    @property
    def age_seconds(self) -> float:
        """How old the older of the two copies is; infinite before the first list."""
        return max(self.pods.age_seconds, self.workflows.age_seconds)

    def trouble(self) -> str:
        """Why nothing may be answered now; "" when all is well. It is for administrators, not for callers."""
        return self._jobs.trouble(self._stale_seconds)

    # --- what is in it ------------------------------------------------------------------------------------------------

    def job(self, namespace: str, name: str) -> JobView | None:
        """A job by the name that people know it by, None if there is none."""
        key = (namespace, name)
        view = self._views.get(key)
        if view is not None:
            return view
        with self._lock:
            view = self._view(key)
            if view is not None:
                self._views[key] = view
            return view

    def jobs(self) -> list[JobView]:
        """All jobs, in no order."""
        with self._lock:
            found = list(self._parts)
        views = (self.job(*key) for key in found)
        return [view for view in views if view is not None]

    def pod(self, namespace: str, name: str) -> PodRead | None:
        """A pod of a job by its own name."""
        kept = self.pods.get(namespace, name)
        return kept["read"] if kept is not None else None

    def pod_at(self, host: str) -> PodRead | None:
        """The one pod with this address; None if there is none, or if it is not its own (host network)."""
        with self._lock:
            found = list(self._by_address.get(host, {}).values())
        return found[0] if len(found) == 1 and not found[0].on_host_network else None

    def objects(self, kind: Kind) -> Mapping[Key, Json]:
        """All kept objects of one of the further kinds."""
        return self._others[kind].items()

    def reflector(self, kind: Kind) -> Reflector:
        """The reflector of one of the further kinds: its age and its trouble are asked there."""
        return self._others[kind]

    def subscribe(self, told: Callable[[JobKey], None]) -> Callable[[], None]:
        """Have `told` called, in a reflector's thread, whenever something of a job has changed. Gives the way out."""
        self._told = (*self._told, told)

        def leave() -> None:
            self._told = tuple(one for one in self._told if one is not told)

        return leave

    def observed(self, obj: Json) -> None:
        """Take the whole Workflow that answered a write in at once."""
        self.workflows.apply_write(obj)

    # --- keeping it ---------------------------------------------------------------------------------------------------

    def _trim_workflow(self, obj: Json) -> Json:
        return {"read": read_workflow(obj, more=self._more.workflow(obj))}

    def _trim_pod(self, obj: Json) -> Json:
        return {"read": read_pod(obj, more=self._more.pod(obj))}

    def _workflow(self, _: str, key: Key, old: Json | None, new: Json | None) -> None:
        before, after = _read(old), _read(new)
        changed: set[JobKey] = set()
        with self._lock:
            if before is not None and (after is None or after.job != before.job):
                parts = self._parts.get((key[0], before.job), {})
                parts.pop(key[1], None)
                if not parts:
                    self._parts.pop((key[0], before.job), None)
                changed.add((key[0], before.job))
                self._job_of.pop(key, None)
            if after is not None:
                self._parts.setdefault((key[0], after.job), {})[key[1]] = after
                self._job_of[key] = after.job
                changed.add((key[0], after.job))
            for job in changed:
                self._views.pop(job, None)
        self._tell(changed)

    def _pod(self, _: str, key: Key, old: Json | None, new: Json | None) -> None:
        before, after = _read(old), _read(new)
        changed: set[JobKey] = set()
        with self._lock:
            for pod in (before, after):
                if pod is None:
                    continue
                home = (key[0], pod.workflow)
                if pod is before:
                    _drop(self._pods, home, key[1])
                    _drop(self._by_address, pod.address, key)
                else:
                    self._pods.setdefault(home, {})[key[1]] = pod
                    if pod.address:
                        self._by_address.setdefault(pod.address, {})[key] = pod
                if home in self._job_of:
                    changed.add((key[0], self._job_of[home]))
            for job in changed:
                self._views.pop(job, None)
        self._tell(changed)

    def _tell(self, changed: Iterable[JobKey]) -> None:
        for key in changed:
            for told in self._told:
                told(key)

    def _view(self, key: JobKey) -> JobView | None:
        parts = self._parts.get(key)
        if not parts:
            return None
        workflow = _present(parts, key[1])
        if workflow is None:
            return None
        current = [
            pod
            for pod in self._pods.get((key[0], workflow.name), {}).values()
            if pod.owner == workflow.uid and pod.round == workflow.current
        ]
        # Of several pods of one replica the newest is meant, and one that is not on its way out.
        best: dict[tuple[str, int], PodRead] = {}
        for pod in sorted(current, key=lambda p: (not p.is_ending, p.created, p.name)):
            best[pod.task, pod.index] = pod
        members = tuple(best.get((task, i)) for task, count in workflow.counts.items() for i in range(count))
        at = chain.part(workflow.link)
        earlier = frozenset((part.name, part.uid) for part in parts.values() if chain.part(part.link) < at)
        return JobView(key[0], key[1], workflow, members, tuple(current), earlier)


def _present(parts: Mapping[str, WorkflowRead], job: str) -> WorkflowRead | None:
    """The Workflow in which the job is now: the one that has its name, or the last of those that follow it.

    A label is enough to be among `parts`, so one counts only where both ends of the link name each other. Where the
    first Workflow is gone, it is the newest of the others.
    """
    at = parts.get(job)
    if at is None:
        newest = {w["metadata"]["name"] for w in chain.newest([part.link for part in parts.values()])}
        left = (part for name, part in parts.items() if name in newest or len(parts) == 1)
        return max(left, key=lambda part: chain.part(part.link), default=None)
    for _ in parts:
        after = parts.get(chain.continued_in(at.link))
        if after is None or after is at or chain.continues(after.link) != (at.name, at.uid):
            break
        at = after
    return at


def _rounds(pod: PodRead, workflow: WorkflowRead) -> tuple[int, int]:
    """The number of a pod's round, and of that in which the job is; 0 for what is none."""
    was, now = untrusted.whole(pod.round), untrusted.whole(workflow.current)
    return was if was is not None and pod.round == str(was) else 0, now or 0


def _read(kept: Json | None) -> Any:
    return kept["read"] if kept is not None else None


def _drop(index: dict[Any, dict[Any, PodRead]], home: Any, name: Any) -> None:
    inside = index.get(home)
    if inside is not None:
        inside.pop(name, None)
        if not inside:
            del index[home]

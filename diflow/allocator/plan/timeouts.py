"""Timeouts of allocated places that no pod uses: after a time they are taken back, and the job is placed again.

A place reserves capacity from the decision on. It may stay unused: Argo does not create the pods (a ResourceQuota, a
suspended Workflow), or the pods that should leave do not, be they other jobs' or those of the job's previous round. The
times are kept in memory only: a new leader starts them again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

from diflow.allocator.plan.holding import Lapsed, Standing, named_troubles
from diflow.allocator.reconcile.admission import allocated, former_pods, needs
from diflow.allocator.watch.free_capacity import FreeCapacity
from diflow.allocator.watch.job import Job
from diflow.common.durations import backoff
from diflow.common.words import counted, named
from diflow.record.job import Role
from diflow.record.pod import PodRecord

# Back-off of a job whose place stayed unused for an unknown reason: (first, longest), doubled each time.
_PAUSE_SECONDS: Final = (60.0, 1800.0)
# How long a job of which only some pods were created is limited to that number: trying more restarts all replicas.
_CAP_SECONDS: Final = (1800.0, 21600.0)
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Expired:
    """A job that did not use its places in time. `most`: the replicas by task with which it is to wait, None for those
    that it has."""

    standing: Standing
    why: str
    most: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class _Bar:
    """A job that gets nothing until the time `until` and, with `needs_pods`, until its pods exist."""

    uid: str
    roles: tuple[Role, ...]
    until: float
    needs_pods: bool


@dataclass(frozen=True, slots=True)
class _Cap:
    uid: str
    roles: tuple[Role, ...]
    until: float
    most: Mapping[str, int]


_Place = tuple[str, str, int]
"""(uid of the Workflow, task, index)."""


class Promises:
    """Since when places are unused, and the restrictions on the jobs that did not use theirs."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: dict[_Place, float] = {}
        self._next = math.inf
        self._tries: dict[str, int] = {}
        self._bars: dict[str, _Bar] = {}
        self._caps: dict[str, _Cap] = {}
        self._stuck: frozenset[str] = frozenset()
        self._places: dict[str, frozenset[tuple[str, int]]] = {}

    @property
    def barred(self) -> Set[str]:
        """The keys of the jobs that get nothing for now."""
        return self._bars.keys()

    def due(self) -> float:
        """When the next place times out or the next back-off ends, on the clock."""
        return min([self._next, *(bar.until for bar in self._bars.values() if not bar.needs_pods)])

    def expire(
        self, standings: Iterable[Standing], pods: Sequence[PodRecord], capacity: FreeCapacity, *, now: float
    ) -> list[Expired]:
        """The jobs that did not use their places in time (`now`: on the clock)."""
        standings = list(standings)
        since: dict[_Place, float] = {}
        late: list[tuple[Standing, frozenset[tuple[str, int]]]] = []
        for standing in standings:
            uid = standing.job.read.identity.uid
            old = set()
            for task, places in standing.unused.items():
                for index in places:
                    began = since[uid, task, index] = self._since.get((uid, task, index), now)
                    if now - began >= self._seconds:
                        old.add((task, index))
            if old:
                late.append((standing, frozenset(old)))
            elif standing.is_placed and not standing.unused:
                self._tries.pop(uid, None)
        self._since = since
        self._next = min((at for at in since.values() if now - at < self._seconds), default=math.inf) + self._seconds
        self._places = {s.job.key: old for s, old in late if any(s.done.values())}
        live = {pod.identity.uid for pod in pods}
        self._stuck &= live
        if not late:
            return []
        in_place: set[str] = set().union(*(standing.pods_in_place for standing in standings))
        return [self._expired(standing, pods, in_place, capacity, now) for standing, _ in late]

    def lapsed(self, jobs: Mapping[str, Job], capacity: FreeCapacity, *, now: float) -> Lapsed:
        """The restrictions on the next plan. `jobs`: all existing jobs by key; those of other jobs are dropped."""
        uids = {job.read.identity.uid for job in jobs.values()}
        self._tries = {uid: tries for uid, tries in self._tries.items() if uid in uids}
        self._bars = {
            key: bar
            for key, bar in self._bars.items()
            if key in jobs and _is_of(bar, jobs[key]) and not _is_over(bar, jobs[key], capacity, now)
        }
        self._caps = {
            key: cap for key, cap in self._caps.items() if key in jobs and _is_of(cap, jobs[key]) and now < cap.until
        }
        most = {key: cap.most for key, cap in self._caps.items()}
        return Lapsed(frozenset(self._bars), most, self._stuck, self._places)

    def _expired(
        self, standing: Standing, pods: Sequence[PodRecord], in_place: Set[str], capacity: FreeCapacity, now: float
    ) -> Expired:
        job, read = standing.job, standing.job.read
        uid = read.identity.uid
        tries = self._tries[uid] = self._tries.get(uid, 0) + 1
        seconds = f"within {self._seconds:g} s"
        lacking = [] if read.argo.awaits_admission else job.lacks()
        former = former_pods(job, capacity) if read.terms.is_preemptible else []
        until, most, needs_pods = now, None, bool(lacking or former)
        if lacking:
            most = _made(job)
            missing = counted(len(lacking), "pod was", plural="pods were")
            why = f"{missing} not created {seconds}: {named(lacking, _NAMED)}"
            why += (
                f" ({read.argo.tree.says})"
                if read.argo.tree.says
                else "; a ResourceQuota may be used up, or Argo is behind"
            )
            if most is not None:
                self._caps[job.key] = _Cap(uid, read.needs.roles, now + backoff(_CAP_SECONDS, tries - 1), most)
        elif former:
            why = (
                f"its replicas of the round before do not end {seconds}: {named([_at(pod) for pod in former], _NAMED)}"
            )
        elif culprits := _culprits(standing, pods, in_place, capacity):
            self._stuck |= {pod.identity.uid for pod in culprits}
            why = f"pods that were to leave do not {seconds}: {named([_at(pod) for pod in culprits], _NAMED)}"
        else:
            nodes = {node for places in standing.unused.values() for node in places.values()}
            closed = named_troubles({node: capacity.trouble(node) for node in nodes})
            why = closed or f"no use was made of it {seconds}"
            until = now + backoff(_PAUSE_SECONDS, tries - 1)
        self._bars[job.key] = _Bar(uid, read.needs.roles, until, needs_pods)
        return Expired(standing, f"its place was given back: {why}", most)


def _is_of(what: _Bar | _Cap, job: Job) -> bool:
    """The same job, and it does not ask for less: asking for less lifts the restriction. Asking for more or for
    something else does not, or a job could get a new place with each change."""
    return what.uid == job.read.identity.uid and not _asks_for_less(what.roles, job.read.needs.roles)


def _asks_for_less(before: Sequence[Role], now: Sequence[Role]) -> bool:
    """Some task asks for less, and none for more or for other nodes."""
    known = {role.name: role for role in before}
    if any(role.name not in known or not _is_within(role, known[role.name]) for role in now):
        return False
    return tuple(now) != tuple(before)


def _is_within(role: Role, other: Role) -> bool:
    mine, its = (role.low, role.high, role.desired), (other.low, other.high, other.desired)
    return (
        role.where == other.where
        and set(role.host_ports) <= set(other.host_ports)
        and all(a <= b for a, b in zip(mine, its, strict=True))
        and all(amount <= other.request.get(name, 0) for name, amount in role.request.items())
    )


def _is_over(bar: _Bar, job: Job, capacity: FreeCapacity, now: float) -> bool:
    if bar.needs_pods and (job.lacks() or (job.read.terms.is_preemptible and former_pods(job, capacity))):
        return False
    return now >= bar.until


def _made(job: Job) -> dict[str, int] | None:
    """The number of pods of each task, if a preemptible job could run with these alone."""
    read = job.read
    if not read.terms.is_preemptible:
        return None
    there: dict[str, int] = {}
    for pod in job.current_pods:
        if pod.place:
            there[pod.place.task] = there.get(pod.place.task, 0) + 1
    most = {role.name: min(role.high, there.get(role.name, 0)) for role in read.needs.roles}
    granted = read.running
    return most if most != granted and all(most[role.name] >= role.low for role in read.needs.roles) else None


def _culprits(
    standing: Standing, pods: Sequence[PodRecord], in_place: Set[str], capacity: FreeCapacity
) -> list[PodRecord]:
    """The pods that should leave the nodes on which the job's places do not fit yet."""
    job, at = standing.job, standing.job.read.notes.allocation
    if at is None:
        return []
    unused = {(task, index) for task, places in standing.unused.items() for index in places}
    gated = [pod for pod in job.current_pods if pod.place and (pod.place.task, pod.place.index) in unused]
    wanted = (allocated(job.read, at) if job.read.argo.awaits_admission else needs(gated, at)) or {}
    short = {node for node, need in wanted.items() if not capacity.fits({node: need})}
    return [
        pod
        for pod in pods
        if pod.where in short and pod.identity.uid not in in_place and (pod.is_terminating or pod.place is not None)
    ]


def _at(pod: PodRecord) -> str:
    return f"{pod.identity.key} on {pod.host or pod.where}"

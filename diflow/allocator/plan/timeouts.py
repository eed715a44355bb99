"""Timeouts of allocated places that no pod uses: after a time they are taken back, and the job is placed again.

A place reserves capacity from the decision on. It may stay unused: Argo does not create the pods (a ResourceQuota, a
suspended Workflow), or the pods that should leave do not, be they other jobs' or those of the job's previous round. The
times are kept in memory only: a new leader starts them again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

from diflow.allocator.plan.holding import Lapsed, Standing, named_troubles
from diflow.allocator.plan.suspicion import LAPSED, SAID, Suspicions, promised, unused
from diflow.allocator.watch.free_capacity import FreeCapacity
from diflow.allocator.watch.job import Job
from diflow.allocator.watch.needs import allocated, former_pods, needs
from diflow.common.durations import backoff
from diflow.common.words import counted, named
from diflow.record.job import Role
from diflow.record.pod import PodRecord

# Back-off of a job whose place stayed unused for an unknown reason: (first, longest), doubled each time.
_PAUSE_SECONDS: Final = (60.0, 1800.0)
# How long a job of which only some pods were created is limited to that number: trying more restarts all replicas.
_CAP_SECONDS: Final = (1800.0, 21600.0)
_NAMED: Final = 3
_SOON_SECONDS: Final = 60.0
"""A job that is deleted, or has ended, sooner than this says nothing of its namespace: users change their minds, and
short jobs may end before their pods are seen here."""


@dataclass(frozen=True, slots=True)
class Expired:
    """A job that did not use its places in time. `most`: the replicas by task with which it is to wait, None for those
    that it has. `is_unproven`: as pods were not created, which is nobody else's fault."""

    standing: Standing
    why: str
    most: Mapping[str, int] | None = None
    is_unproven: bool = False


@dataclass(frozen=True, slots=True)
class _Limit:
    """A job that gets nothing more, or at most `most` replicas by task, until the time `until` and, with `needs_pods`,
    until its pods exist. `roles`: what it asked for then."""

    uid: str
    roles: tuple[Role, ...]
    until: float
    needs_pods: bool = False
    most: Mapping[str, int] = field(default_factory=dict)


_Place = tuple[str, str, int]
"""(uid of the Workflow, task, index)."""


class Promises:
    """Since when places are unused, and the restrictions on the jobs that did not use theirs."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: dict[_Place, float] = {}
        self._next = math.inf
        self._tries: dict[str, int] = {}
        self._bars: dict[str, _Limit] = {}
        self._caps: dict[str, _Limit] = {}
        self._stuck: frozenset[str] = frozenset()
        self._places: dict[str, frozenset[tuple[str, int]]] = {}
        self._suspicions = Suspicions()
        self._modest: Set[str] = frozenset()
        self._without_pods: dict[str, tuple[Job, float]] = {}
        """The jobs that have places, and pods in none of them, by key; each with the time when that was first seen."""

    @property
    def barred(self) -> Set[str]:
        """The keys of the jobs that get nothing for now."""
        return self._bars.keys()

    @property
    def suspected(self) -> Set[str]:
        """The namespaces whose jobs take nothing from others, as places were promised there that were not used."""
        return self._suspicions.namespaces

    @property
    def texts(self) -> Mapping[str, str]:
        """Why jobs get no place now, by key."""
        return dict.fromkeys(self._modest, SAID)

    def due(self) -> float:
        """When the next place times out or the next back-off ends, on the clock."""
        return min(
            [self._next, self._suspicions.due(), *(bar.until for bar in self._bars.values() if not bar.needs_pods)]
        )

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
            if standing.is_placed and standing.unused and standing.job.lacks() and not standing.job.current_pods:
                self._note_without_pods(standing.job, now)
        self._since = since
        self._suspicions.end(standings, now=now)
        self._next = min((at for at in since.values() if now - at < self._seconds), default=math.inf) + self._seconds
        self._places = {s.job.key: old for s, old in late if any(s.done.values())}
        live = {pod.identity.uid for pod in pods}
        self._stuck &= live
        if not late:
            return []
        in_place: set[str] = set().union(*(standing.pods_in_place for standing in standings))
        expired = [self._expired(standing, pods, in_place, capacity, now) for standing, _ in late]
        lapses = [
            (one.standing.job, unused(one.standing.job, one.standing.unused)) for one in expired if one.is_unproven
        ]
        for job, _ in lapses:
            self._without_pods.pop(job.key, None)  # that it is deleted is no second promise
        self._suspicions.add(lapses, now=now)
        return expired

    def look(self, jobs: Mapping[str, Job], *, now: float) -> None:
        """Notice which jobs were deleted or ended when none of their pods had been seen for a time."""
        gone = []
        for key, (before, since) in [*self._without_pods.items()]:
            job = jobs.get(key)
            if job is not None and job.read.identity.uid != before.read.identity.uid:
                job = None  # another one of this name
            goes_on = job is not None and not job.is_over
            if (
                job is not None
                and goes_on
                and (job.read.argo.awaits_admission or (not job.current_pods and job.lacks()))
            ):
                continue
            del self._without_pods[key]
            has_gone = not goes_on and (job is None or not job.read.argo.tree.members)
            if has_gone and now - since >= _SOON_SECONDS:
                gone.append(before)
        if gone:
            self._suspicions.add([(before, promised(before)) for before in gone], now=now)

    def _note_without_pods(self, job: Job, now: float) -> None:
        """The job has places and no pods. The time of another Workflow of its name does not count."""
        known = self._without_pods.get(job.key)
        is_known = known is not None and known[0].read.identity.uid == job.read.identity.uid
        self._without_pods[job.key] = job, known[1] if known is not None and is_known else now

    def lapsed(self, jobs: Mapping[str, Job], capacity: FreeCapacity, *, now: float, wall: float) -> Lapsed:
        """The restrictions on the next plan. `jobs`: all existing jobs by key; those of other jobs are dropped.
        `wall`: as `now`, in seconds since 1970."""
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
        barred, self._modest = self._suspicions.restrict(jobs, barred=self._bars.keys(), now=now, wall=wall)
        return Lapsed(self._bars.keys() | barred, most, self._stuck, self._places, self._modest)

    def _expired(
        self, standing: Standing, pods: Sequence[PodRecord], in_place: Set[str], capacity: FreeCapacity, now: float
    ) -> Expired:
        job, read = standing.job, standing.job.read
        uid = read.identity.uid
        tries = self._tries[uid] = self._tries.get(uid, 0) + 1
        seconds = f"within {self._seconds:g} s"
        lacking = [] if read.argo.awaits_admission else job.lacks()
        former = former_pods(job, capacity) if read.terms.is_preemptible else []
        until, most, needs_pods, closed = now, None, bool(lacking or former), ""
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
                ends = now + backoff(_CAP_SECONDS, tries - 1)
                self._caps[job.key] = _Limit(uid, read.needs.roles, ends, most=most)
        elif former:
            why = (
                f"its replicas of the round before do not end {seconds}: {named([_at(pod) for pod in former], _NAMED)}"
            )
        elif culprits := _culprits(standing, pods, in_place, capacity):
            self._stuck |= {pod.identity.uid for pod in culprits}
            why = f"pods that were to leave do not {seconds}: {_named(culprits, read.identity.namespace)}"
        else:
            nodes = {node for places in standing.unused.values() for node in places.values()}
            closed = named_troubles({node: capacity.trouble(node) for node in nodes})
            why = closed or f"no use was made of it {seconds}"
            until = now + backoff(_PAUSE_SECONDS, tries - 1)
        self._bars[job.key] = _Limit(uid, read.needs.roles, until, needs_pods)
        is_unproven = bool(lacking) or (until > now and not closed and bool(job.lacks()))
        return Expired(standing, f"{LAPSED}{why}", most, is_unproven=is_unproven)


def _is_of(what: _Limit, job: Job) -> bool:
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


def _is_over(bar: _Limit, job: Job, capacity: FreeCapacity, now: float) -> bool:
    if bar.needs_pods and (job.lacks() or (job.read.terms.is_preemptible and former_pods(job, capacity))):
        return False
    return now >= bar.until


def _made(job: Job) -> dict[str, int] | None:
    """The number of pods of each task, if a preemptible job could run with these alone."""
    read = job.read
    if not read.terms.is_preemptible:
        return None
    there = Counter(pod.task for pod in job.current_pods)
    most = {role.name: min(role.high, there[role.name]) for role in read.needs.roles}
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
    gated = [pod for pod in job.current_pods if pod.replica in unused]
    wanted = (allocated(job.read, at) if job.read.argo.awaits_admission else needs(gated, at)) or {}
    short = {node for node, need in wanted.items() if not capacity.fits({node: need})}
    return [
        pod
        for pod in pods
        if pod.where in short and pod.identity.uid not in in_place and (pod.is_terminating or pod.place is not None)
    ]


def _named(pods: Sequence[PodRecord], namespace: str) -> str:
    """These pods, to those who may see the pods of this namespace."""
    own = [_at(pod) for pod in pods if pod.namespace == namespace]
    others = len(pods) - len(own)
    some = counted(others, "pod of another namespace", plural="pods of other namespaces") if others else ""
    return " and ".join(filter(None, [named(own, _NAMED), some]))


def _at(pod: PodRecord) -> str:
    return f"{pod.identity.key} on {pod.host or pod.where}"

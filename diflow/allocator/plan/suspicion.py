"""Namespaces whose promised places were not used, as the pods were not created: what is promised to them next.

The bounds of a job are none for a user who makes another job. So a place that lapsed without pods is remembered of the
namespace. Then, for its jobs whose pods do not exist,

* there is one promise at a time; which job may get it changes each minute;
* it takes nothing from other jobs, and nothing is reserved for it: it is made where there is free capacity;
* after a promise that lapses there is none for ten seconds, after the next ones a minute, two ... half an hour.

A job that is deleted after a minute without pods counts as well. All this ends when pods of the namespace run that did
not before, and that request together as much as was promised and not used, or half an hour after the first such place,
an hour after the second, two ... six. That it was so is forgotten after six hours. Another leader reads it from the
decisions in the Workflows of the jobs whose places lapsed, as long as these exist.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Final

from diflow.allocator.plan.holding import Standing
from diflow.allocator.watch.job import Job
from diflow.common import quantities
from diflow.common.durations import backoff
from diflow.record.pod import PodRecord

LAPSED: Final = "its place was given back: "
"""What the decision on a job whose place has lapsed begins with."""
SAID: Final = (
    "it gets a place in its turn, and only where there is free capacity: places that jobs of its namespace had were "
    "not used, as their pods were not created; a ResourceQuota may be used up"
)
_PAUSE_SECONDS: Final = (60.0, 1800.0)
_FIRST_SECONDS: Final = 10.0
"""The pause after the first promise that lapsed: those who were stopped for it come first."""
_TURN_SECONDS: Final = 60.0
_LASTS_SECONDS: Final = (1800.0, 6 * 3600.0)
"""How long a suspicion lasts without another such place, doubled each time; and for how long the times are counted."""

Lapse = tuple[Job, Mapping[str, int]]
"""A job, and what it was promised and did not use."""


@dataclass(frozen=True, slots=True)
class _Suspicion:
    """`times`: promises in a row that lapsed; `since`: when the last one did; `unused`: the most of each resource that
    one held; `ran`: the uids of the pods that ran by then, None if that was not looked at yet."""

    times: int
    since: float
    unused: Mapping[str, int]
    ran: frozenset[str] | None = None

    @property
    def ends(self) -> float:
        return self.since + backoff(_LASTS_SECONDS, self.times - 1)

    @property
    def until(self) -> float:
        return self.since + (backoff(_PAUSE_SECONDS, self.times - 2) if self.times > 1 else _FIRST_SECONDS)


class Suspicions:
    """The namespaces that are suspected. All times are on the clock."""

    def __init__(self) -> None:
        self._of: dict[str, _Suspicion] = {}
        self._before: dict[str, _Suspicion] = {}
        """The last suspicion of each namespace that has ended with time alone."""
        self._is_new = True
        self._due = math.inf

    @property
    def namespaces(self) -> Set[str]:
        return self._of.keys()

    def due(self) -> float:
        """When a waiting job may be promised something next: a pause ends, or it is the turn of another one. What the
        last plan could decide already is not due."""
        return self._due

    def add(self, lapses: Iterable[Lapse], *, now: float) -> None:
        """Places of these jobs have lapsed without pods: those of one namespace count as one promise."""
        unused: dict[str, list[Mapping[str, int]]] = {}
        for job, amount in lapses:
            unused.setdefault(job.read.identity.namespace, []).append(amount)
        for namespace, amounts in unused.items():
            before = self._of.get(namespace)
            most = quantities.total(amounts)
            if before is not None:
                most = {name: max(most.get(name, 0), before.unused.get(name, 0)) for name in {**most, **before.unused}}
            last = before or self._before.pop(namespace, None)
            one = self._of[namespace] = _Suspicion(last.times + 1 if last else 1, now, most)
            self._due = min(self._due, one.until)

    def end(self, standings: Iterable[Standing], *, now: float) -> None:
        """End what is old, and what jobs disprove all pods of which are bound."""
        self._before |= {name: one for name, one in self._of.items() if now >= one.ends}
        self._before = {name: one for name, one in self._before.items() if now - one.since < _LASTS_SECONDS[1]}
        self._of = {name: one for name, one in self._of.items() if now < one.ends}
        pods: dict[str, list[PodRecord]] = {name: [] for name in self._of}
        for standing in standings if self._of else ():
            job = standing.job
            found = pods.get(job.read.identity.namespace)
            if found is not None and standing.is_placed and not standing.unused and _runs(job):
                found += job.current_pods
        for name, running in pods.items():
            one = self._of[name]
            if one.ran is None:
                self._of[name] = replace(one, ran=frozenset(pod.identity.uid for pod in running))
            elif _covers(quantities.total(p.request for p in running if p.identity.uid not in one.ran), one.unused):
                del self._of[name]

    def restrict(
        self, jobs: Mapping[str, Job], *, barred: Set[str], now: float, wall: float
    ) -> tuple[Set[str], Set[str]]:
        """(the keys of jobs that are promised nothing now, of those that take nothing from others). `barred`: jobs that
        are promised nothing in any case."""
        if self._is_new:
            self._is_new = False
            self._read(jobs.values(), now=now, wall=wall)
        waits, modest, busy = set[str](), set[str](), set[str]()
        self._due = math.inf
        if not self._of:
            return waits, modest
        unproven: dict[str, list[Job]] = {}
        for job in jobs.values():
            namespace = job.read.identity.namespace
            if namespace not in self._of or job.is_over or not job.lacks():
                continue
            if _has_promise(job):
                busy.add(namespace)
            else:
                unproven.setdefault(namespace, []).append(job)
        for namespace, waiting in unproven.items():
            keys = [job.key for job in sorted(waiting, key=lambda job: job.order)]
            modest.update(keys)
            may = [key for key in keys if key not in barred]
            if may and namespace not in busy:
                until, turn = self._of[namespace].until, now // _TURN_SECONDS
                if now >= until:
                    keys.remove(may[int(turn) % len(may)])
                    until = (turn + 1) * _TURN_SECONDS if len(may) > 1 else math.inf
                self._due = min(self._due, until)
            self._due = min(self._due, self._of[namespace].ends)
            waits.update(keys)
        return waits, modest

    def _read(self, jobs: Iterable[Job], *, now: float, wall: float) -> None:
        """Find what an earlier leader has decided."""
        for job in jobs:
            at, said = job.read.notes.allocation, job.read.notes.decision
            if at is None or at.has_node or not at.first or not said.why.startswith(LAPSED) or not job.lacks():
                continue
            age = max(0.0, wall - at.since)
            if age < _LASTS_SECONDS[0] and job.read.identity.namespace not in self._of:
                self._of[job.read.identity.namespace] = _Suspicion(1, now - age, _asked(job), frozenset())


def _has_promise(job: Job) -> bool:
    """Whether a replica of the job has a place, and no pod."""
    at = job.read.current_allocation
    there, finished = {pod.member for pod in job.current_pods}, job.read.argo.tree.finished
    return at is not None and any(
        at.node(task, index) and member not in there and not finished(member) for task, index, member in job.members()
    )


def _runs(job: Job) -> bool:
    """Whether all pods of the job are bound."""
    return not job.lacks() and all(pod.host for pod in job.current_pods)


def _asked(job: Job) -> Mapping[str, int]:
    """What the smallest gang of the job asks for."""
    read = job.read
    least = [{name: role.low * each for name, each in role.request.items()} for role in read.needs.roles]
    return quantities.total(least)


def promised(job: Job) -> Mapping[str, int]:
    """What the places of a job hold, by its signed allocation: what it asks for can be edited."""
    at = job.read.notes.allocation
    if at is None:
        return {}
    return unused(job, {task: dict(enumerate(filter(None, nodes))) for task, nodes in at.nodes.items()})


def unused(job: Job, places: Mapping[str, Mapping[int, str]]) -> Mapping[str, int]:
    """What these places of a job hold: task → index → node."""
    at, roles = job.read.notes.allocation, {role.name: role for role in job.read.needs.roles}
    out = []
    for task, nodes in places.items():
        each = at.requests.get(task) if at is not None else None
        if each is None and task in roles:
            each = roles[task].request
        out.append({name: len(nodes) * value for name, value in (each or {}).items()})
    return quantities.total(out)


def _covers(amount: Mapping[str, int], other: Mapping[str, int]) -> bool:
    return all(amount.get(name, 0) >= value for name, value in other.items())

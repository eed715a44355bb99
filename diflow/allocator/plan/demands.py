"""Demands: which replicas lack nodes that an autoscaler could add, and for how long that is shown to it.

A gang that waits has no pods, and its pods are sent to nodes: an autoscaler sees nothing of it. So pods stand for what
it lacks (`diflow/allocator/reconcile/demand_pods.py`). Only nodes may be missing: what a queue is capped at, or lends,
is no demand. The times are kept in memory only: a new leader starts them again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from diflow.allocator.model.plan import Action, Plan
from diflow.allocator.model.reasons import TakesTooLong
from diflow.allocator.model.views import QueueView
from diflow.allocator.plan.holding import Standing
from diflow.allocator.plan.inputs import Picture
from diflow.allocator.settings import AllocatorSettings
from diflow.allocator.watch.cluster_state import ClusterState
from diflow.allocator.watch.job import Job
from diflow.common import quantities
from diflow.common.durations import backoff, span
from diflow.common.queue_access import refusal
from diflow.common.words import DEFAULT_QUEUE
from diflow.record.job import Role
from diflow.record.node import NodeRecord

_FIRST_PAUSE_SECONDS: Final = 60.0
REPLACED_BY_ITSELF: Final = "karpenter.sh/disrupted"
"""The taint of nodes for whose pods the autoscaler adds nodes by itself: a demand would count them twice."""

Counts = Mapping[str, int]
"""Replicas by task."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The replicas of a job, by task, for which nodes are missing."""

    job: Job
    lacks: Counts

    @property
    def text(self) -> str:
        return ", ".join(f"{count} × {task}" for task, count in self.lacks.items())

    @property
    def pods(self) -> int:
        return sum(self.lacks.values())


@dataclass(slots=True)
class _Course:
    """Since when a job's demand is shown, until when it pauses (0: it does not), how often no nodes came, and why its
    pods were refused."""

    since: float
    paused_until: float = 0.0
    withdrawn: int = 0


class Demands:
    """What is asked for now. Times are on the monotonic clock."""

    def __init__(self, settings: AllocatorSettings) -> None:
        self._settings = settings
        self._courses: dict[str, _Course] = {}
        self.wanted: Mapping[str, Demand] = {}
        """By the uid of a Workflow."""
        self.refused: Mapping[str, str] = {}
        """By the uid of a Workflow: why its pods could not be made."""
        self.texts: Mapping[str, str] = {}
        """By the key of a job: what its user is told."""
        self.news: frozenset[str] = frozenset()
        """The keys of the jobs whose users were told something else before."""

    def due(self) -> float:
        """When the first demand, or pause, ends; infinite without one."""
        seconds = self._settings.demand_seconds
        return min((one.paused_until or one.since + seconds for one in self._courses.values()), default=math.inf)

    def clear(self) -> None:
        """Nothing is asked for any more."""
        self._courses, self.wanted, self.texts = {}, {}, {}

    def look(self, shown: Picture, plan: Plan, state: ClusterState, *, now: float) -> None:
        """Find what this plan lacks, in the order in which jobs start. Jobs that do not fit into the caps of their
        queues beside what others hold and ask for, or for which no pods may be made, ask for nothing."""
        if not self._settings.autoscaled:
            return
        found = _lacking(shown, plan, state, keeps_guarantees=self._settings.policy.startswith("fair"))
        unplanned = {
            standing.job.read.identity.uid
            for j, standing in enumerate(shown.standings)
            if isinstance(plan.reasons[j], TakesTooLong)
        }
        wanted = {uid: demand for uid, demand in self.wanted.items() if uid in unplanned}
        texts = {demand.job.key: self.texts.get(demand.job.key, "") for demand in wanted.values()}
        spaces: dict[str, int] = {}
        for demand in found:
            read = demand.job.read
            taken = spaces.get(read.identity.namespace, 0) + demand.pods
            is_asked, texts[demand.job.key] = self._ask(demand, now)
            if is_asked and taken > self._settings.demand_pods:
                texts[demand.job.key] = (
                    f"no nodes are asked for: {taken} pods would stand for what jobs of its namespace lack, and "
                    f"{self._settings.demand_pods} may (DIFLOW_ALLOCATOR_DEMAND_PODS)"
                )
            elif is_asked:
                spaces[read.identity.namespace] = taken
                wanted[read.identity.uid] = demand
        known = {demand.job.read.identity.uid for demand in found} | unplanned
        self._courses = {uid: course for uid, course in self._courses.items() if uid in known}
        self.news = frozenset(key for key, text in texts.items() if self.texts.get(key) != text)
        self.wanted, self.texts = wanted, texts

    def _ask(self, demand: Demand, now: float) -> tuple[bool, str]:
        """Whether this demand is shown now, and what its user is told."""
        uid, longest = demand.job.read.identity.uid, self._settings.demand_seconds
        course = self._courses.setdefault(uid, _Course(now))
        if course.paused_until and now >= course.paused_until:
            course.since, course.paused_until = now, 0.0
        if not course.paused_until and now >= course.since + longest:
            pause = backoff((_FIRST_PAUSE_SECONDS, self._settings.longest_pause_seconds), course.withdrawn)
            course.paused_until, course.withdrawn = now + pause, course.withdrawn + 1
        if course.paused_until:
            after = f" (for the {course.withdrawn}. time)" if course.withdrawn > 1 else ""
            return False, (
                f"no nodes came within {span(longest)} for {demand.text}{after}: they are not asked for now, and are "
                "asked for again after a pause"
            )
        if why := self.refused.get(uid):
            return True, f"the pods that ask an autoscaler for nodes for {demand.text} cannot be made: {why}"
        return True, f"an autoscaler is asked for nodes for {demand.text}, for {span(longest)} at most"


def _lacking(shown: Picture, plan: Plan, state: ClusterState, *, keeps_guarantees: bool) -> list[Demand]:
    """What each job lacks that its queue allows, in the order in which jobs start. `keeps_guarantees`: whether the
    policy keeps what other queues are guaranteed free of jobs that are not preemptible."""
    snapshot, starts = shown.snapshot, shown.snapshot.role_starts()
    given: dict[int, int] = {}
    for role, count in zip(plan.role.tolist(), plan.count.tolist(), strict=True):
        given[role] = given.get(role, 0) + count
    held = [
        {snapshot.role_names[g]: given.get(g, 0) for g in range(int(starts[j]), int(starts[j + 1]))}
        for j in range(len(shown.standings))
    ]
    rooms = _Rooms(state.queues)
    for standing, counts in zip(shown.standings, held, strict=True):
        for role in standing.job.read.needs.roles:
            rooms.take(_queue_of(standing.job), role.request, counts.get(role.name, 0))
    guaranteed = _guaranteed(state) if keeps_guarantees else {}
    out = []
    for j in sorted(range(len(shown.standings)), key=lambda j: shown.standings[j].job.order):
        job = shown.standings[j].job
        least = _least(shown, plan, j, held[j], state)
        is_kept_free = not (any(held[j].values()) or job.read.terms.is_preemptible) and guaranteed.get(
            _queue_of(job), frozenset()
        ) & _asked(job.read.needs.roles)
        if least is None or is_kept_free:
            continue
        lacks = rooms.take_demand(job, least, held[j])
        if lacks:
            out.append(Demand(job, lacks))
    return out


def _least(shown: Picture, plan: Plan, j: int, held: Counts, state: ClusterState) -> Counts | None:
    """The replicas without which a job does not start, or go on as it is; None if nodes are not what it waits for."""
    standing = shown.standings[j]
    read, action = standing.job.read, Action(int(plan.action[j]))
    # An autoscaler does not know what kube-scheduler alone knows of a node.
    if standing.is_fixed or read.wishes.is_suspended or any(role.rules.beyond for role in read.needs.roles):
        return None
    if any(held.values()):
        return _lost(standing, state.nodes) if action is Action.KEEP else _unplaced(standing, held)
    if action is not Action.WAIT or not plan.reasons[j].wants_nodes:
        return None
    asked = {"namespace": read.identity.namespace, "queue": _queue_of(standing.job)}
    return None if refusal(state.rules, **asked, priority=read.terms.priority_number) else _gang(standing)


def _queue_of(job: Job) -> str:
    return job.read.wishes.queue or DEFAULT_QUEUE


def _gang(standing: Standing) -> Counts:
    """The replicas that have to start together."""
    return {
        role.name: max(0, role.low - len(standing.done.get(role.name, ()))) for role in standing.job.read.needs.roles
    }


def _lost(standing: Standing, nodes: Mapping[str, NodeRecord]) -> Counts:
    """The replicas of a job that goes on which have lost their nodes, or lose them soon; without those for whose pods
    the autoscaler itself adds nodes."""
    job, read = standing.job, standing.job.read
    there = {pod.replica: pod.host for pod in job.current_pods if not pod.is_ending}
    out = {}
    for role in read.needs.roles:
        places, done = standing.places.get(role.name, {}), standing.done.get(role.name, frozenset())
        count = 0
        for index in range(read.running.get(role.name, 0)):
            node = nodes.get(there.get((role.name, index)) or places.get(index, ""))
            if index in done or (node is not None and node.ends == REPLACED_BY_ITSELF):
                continue
            is_lost = index not in places and not read.terms.is_preemptible
            count += is_lost or (node is not None and bool(node.ends))
        out[role.name] = count
    return out


def _unplaced(standing: Standing, held: Counts) -> Counts:
    """The replicas of a job to which a plan gives places that get none; a preemptible one has what it needs."""
    read = standing.job.read
    return {
        role.name: 0
        if read.terms.is_preemptible
        else max(0, read.running.get(role.name, 0) - len(standing.done.get(role.name, ())) - held.get(role.name, 0))
        for role in read.needs.roles
    }


def _asked(roles: Sequence[Role]) -> frozenset[str]:
    return frozenset(name for role in roles for name, value in role.request.items() if value)


def _guaranteed(state: ClusterState) -> Mapping[str, frozenset[str]]:
    """The resources of which other queues are guaranteed all that there is, by queue: further nodes would be kept free
    for those, and a job that is not preemptible would wait on."""
    total: quantities.Amounts = {}
    for node in state.nodes.values():
        quantities.add(total, node.allocatable)
    out = {}
    for queue in state.queues:
        others: quantities.Amounts = {}
        for other in state.queues:
            if other.parent is None and not other.lends and other.name not in (queue.name, queue.parent):
                quantities.add(others, other.guarantee)
        out[queue.name] = frozenset(
            name
            for name, value in others.items()
            if value and value >= total.get(name, 0) and not queue.guarantee.get(name)
        )
    return out


@dataclass
class _Rooms:
    """What is left of the caps of the queues."""

    queues: Sequence[QueueView]
    left: dict[str, dict[str, int]] = field(init=False)

    def __post_init__(self) -> None:
        self.left = {queue.name: dict(queue.cap) for queue in self.queues}
        self._known = {queue.name: queue for queue in self.queues}

    def asks_for_desired(self, queue: str) -> bool:
        found = self._known.get(queue)
        return found is not None and found.demand == "desired"

    def _chain(self, queue: str) -> Iterable[str]:
        name: str | None = queue
        while name in self._known:
            yield name
            name = self._known[name].parent

    def take(self, queue: str, request: Mapping[str, int], count: int) -> None:
        for name in self._chain(queue):
            for resource in self.left[name]:
                self.left[name][resource] -= count * request.get(resource, 0)

    def most(self, queue: str, request: Mapping[str, int]) -> int:
        """The most replicas of this request that the queue may still have."""
        found = [
            left // request[resource]
            for name in self._chain(queue)
            for resource, left in self.left[name].items()
            if request.get(resource)
        ]
        return max(0, min(found, default=2**31))

    def fits(self, queue: str, roles: Sequence[Role], counts: Counts) -> bool:
        """Whether so many replicas fit into the caps together."""
        asked: quantities.Amounts = {}
        for role in roles:
            quantities.add(asked, {name: counts[role.name] * value for name, value in role.request.items()})
        return not any(
            asked.get(resource, 0) > max(0, left)
            for name in self._chain(queue)
            for resource, left in self.left[name].items()
        )

    def take_demand(self, job: Job, least: Counts, held: Counts) -> Counts:
        """Take what these replicas need, and by the queue's setting those that a preemptible job desires beside what it
        holds, as far as the caps allow it. Returns how many they are; none if the first ones do not fit."""
        roles, queue = job.read.needs.roles, _queue_of(job)
        if not self.fits(queue, roles, least):
            return {}
        lacks = dict(least)
        for role in roles:
            self.take(queue, role.request, least[role.name])
        if job.read.terms.is_preemptible and self.asks_for_desired(queue):
            for role in roles:
                more = role.desired - held.get(role.name, 0) - lacks[role.name]
                more = max(0, min(more, self.most(queue, role.request)) // role.unit * role.unit)
                self.take(queue, role.request, more)
                lacks[role.name] += more
        return {task: count for task, count in lacks.items() if count > 0}

"""The rows of the field cases, and short forms to write them.

A row is a small cluster at one moment, the outcome of the scheduler that it was taken from, and the expected outcome of
our policies. One pod there is one replica here; a group of n pods with a minimum of m is a job with minimum m, maximum
n and n desired. Every pod requests cpu, memory and one of a node's `pods`, as on a real cluster, unless the original
requests none on purpose. Amounts are millicores and MB (10^6 bytes).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from diflow.allocator.model.profile import Profile
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.views import PODS, JobView, NodeView, QueueView, RoleView, build
from diflow.common.predicates import Taint, Where

G = 1000
"""MB."""
GI = 1074
"""MB: 2^30 bytes, rounded up for nodes and pods alike, so that exact fits stay exact."""
MANY_PODS = 110
"""The kubelet's default, unless the original makes pods scarce."""
ROLE = "w"
"""The role of a job with a single one."""
NOW_SECONDS = 100.0
"""Below the wait after which capacity is reserved: the originals have no reservations."""

Count = int | range
"""Replicas; a range if several numbers are correct."""
NO_AMOUNTS: Mapping[str, int] = MappingProxyType({})
NO_COUNTS: Mapping[str, int] = MappingProxyType({})
ANYWHERE = Where()


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a row."""

    project: str
    file: str
    case: str


@dataclass(frozen=True, slots=True)
class End:
    """Replicas held in the end: by job, by `job.role`, or by `@queue` for all jobs of a queue.

    `on`: the nodes that a job's replicas may be on. `evicts`: evicted replicas, if not the difference of `holds` to
    those that run.
    """

    holds: Mapping[str, Count]
    on: Mapping[str, frozenset[str]] = field(default_factory=dict)
    evicts: int | None = None


Ends = tuple[End, ...]
"""Any of these."""


@dataclass(frozen=True, slots=True)
class Same:
    """The policy should do what `fair` does."""


@dataclass(frozen=True, slots=True)
class Other:
    """The policy should do something other than `fair`, and why."""

    ends: Ends
    why: str


@dataclass(frozen=True, slots=True)
class NotAsked:
    """The case does not apply to the policy, and why."""

    why: str


Answer = Same | Other | NotAsked
SAME = Same()


@dataclass(frozen=True, slots=True)
class Case:
    """One row. `theirs`: the original's outcome. `ours`: that of `fair`, if different or stricter, with the reason
    `differs`."""

    name: str
    source: Source
    nodes: tuple[NodeView, ...]
    queues: tuple[QueueView, ...]
    jobs: tuple[JobView, ...]
    theirs: Ends
    ours: Ends = ()
    differs: str = ""
    fit: Answer = SAME
    together: Answer = SAME
    settings: Mapping[str, Any] = field(default_factory=dict)
    now_seconds: float = NOW_SECONDS

    @property
    def fair(self) -> Ends:
        return self.ours or self.theirs

    @property
    def agrees(self) -> bool:
        """Whether the expected outcome of `fair` is one that the original accepts."""
        return all(any(self._is_within(mine, end) for end in self.theirs) for mine in self.fair)

    @property
    def evicts_fewer(self) -> bool:
        """Whether `fair` should evict fewer replicas than the original."""
        there, here = ([self.evicted(end) or 0 for end in ends] for ends in (self.theirs, self.fair))
        return max(here) < min(there)

    def snapshot(self) -> Snapshot:
        """The cluster of the row. Jobs are created in the order in which they are written, a second apart."""
        jobs = [
            replace(job, created_seconds=float(at), started_seconds=float(at) if job.placed else None)
            for at, job in enumerate(self.jobs)
        ]
        return build(self.nodes, jobs, self.queues, now_seconds=self.now_seconds)

    def evicted(self, end: End) -> int | None:
        """Replicas that are evicted in this outcome; None if it does not say exactly what each job holds."""
        if end.evicts is not None:
            return end.evicts
        lost = 0
        for job in self.jobs:
            for role, nodes in job.placed.items():
                count = end.holds.get(f"{job.name}.{role}", end.holds.get(job.name))
                if not isinstance(count, int):
                    return None
                lost += max(0, sum(nodes.values()) - count)
        return lost

    def _is_within(self, mine: End, theirs: End) -> bool:
        counts = all(_allows(count, mine.holds.get(name, -1)) for name, count in theirs.holds.items())
        nodes = all(mine.on.get(job, nodes | {"any other"}) <= nodes for job, nodes in theirs.on.items())
        most, evicted = self.evicted(theirs), self.evicted(mine)
        return counts and nodes and (most is None or evicted is None or evicted <= most)


def _allows(count: Count, mine: Count) -> bool:
    if isinstance(count, int):
        return mine == count
    return mine in count if isinstance(mine, int) else set(mine) <= set(count)


def case(  # noqa: PLR0917 (the columns of a table)
    name: str,
    source: Source,
    nodes: Iterable[NodeView],
    queues: Iterable[QueueView],
    jobs: Iterable[JobView],
    theirs: Ends,
    **other: Any,
) -> Case:
    return Case(name, source, tuple(nodes), tuple(queues), tuple(jobs), theirs, **other)


def ends(*holds: Mapping[str, Count], on: Mapping[str, Iterable[str]] | None = None, evicts: int | None = None) -> Ends:
    where = {name: frozenset(nodes) for name, nodes in (on or {}).items()}
    return tuple(End(one, where, evicts) for one in holds)


def amounts(*, cpu: float = 0, memory: int = 0, **devices: int) -> dict[str, int]:
    """`cpu` in cores, `memory` in MB; amounts of 0 are left out, except devices, of which a node may offer none."""
    plain = {"cpu": round(1000 * cpu), "memory": memory}
    return {name: amount for name, amount in plain.items() if amount} | devices


def node(
    name: str,
    *,
    cpu: float,
    memory: int,
    pods: int = MANY_PODS,
    foreign: int = 0,
    labels: Mapping[str, str] | None = None,
    taints: tuple[Taint, ...] = (),
    **devices: int,
) -> NodeView:
    """`foreign`: foreign pods on the node, of one core and 1G each."""
    allocatable = amounts(cpu=cpu, memory=memory, **devices) | {PODS: pods}
    taken = amounts(cpu=foreign, memory=foreign * G) | {PODS: foreign} if foreign else {}
    return NodeView(name, allocatable, foreign=taken, labels=labels or {}, taints=taints)


def queue(
    name: str,
    *,
    weight: float = 1,
    guarantee: Mapping[str, int] = NO_AMOUNTS,
    cap: Mapping[str, int] = NO_AMOUNTS,
    parent: str | None = None,
) -> QueueView:
    return QueueView(name, weight=weight, guarantee=guarantee, cap=cap, parent=parent)


def role(
    name: str,
    low: int,
    most: int,
    *,
    cpu: float = 0,
    memory: int = 0,
    where: Where = ANYWHERE,
    ports: tuple[int, ...] = (),
    **devices: int,
) -> RoleView:
    request = amounts(cpu=cpu, memory=memory, **devices)
    return RoleView(name, request, low, most, most, where=where, host_ports=ports)


def roles(
    name: str,
    queue: str,
    *parts: RoleView,
    on: Mapping[str, Mapping[str, int]] | None = None,
    priority: int = 0,
    preemptible: bool = True,
) -> JobView:
    """A job of several roles. `on`: role → node → running replicas."""
    most = max(part.most for part in parts)
    return JobView(
        name, parts, queue=queue, priority=priority, preemptible=preemptible, placed=on or {}, profile=linear(most)
    )


def job(
    name: str,
    queue: str,
    low: int = 1,
    most: int | None = None,
    *,
    on: Mapping[str, int] = NO_COUNTS,
    priority: int = 0,
    preemptible: bool = True,
    **asks: Any,
) -> JobView:
    """A job of one role, of `low` to `most` replicas. `on`: node → running replicas."""
    part = role(ROLE, low, most or low, **asks)
    return roles(name, queue, part, on={ROLE: on} if on else None, priority=priority, preemptible=preemptible)


def linear(most: int) -> Profile:
    """What a job reports that gains as much by every replica, up to `most`, as by its first: a policy that goes by
    speed then wants for it what its user asked for. `fair` and `fit` read none of it."""
    seconds = 1e-8  # of what does not shrink with more replicas: as good as none
    parameters = np.array([seconds, 0.1, seconds, seconds, seconds, seconds, 1.0])
    return Profile(
        version=most,
        observations_version=most,
        parameters=parameters,
        observations=np.array([[1, n, 1, 0.1, 0.1, 0] for n in range(1, most + 1)], dtype=np.float64),
        profiled_replicas=most,
        initial_batch=1,
        max_batch=most,
        max_local_batch=1,
    )

"""The immutable view of the cluster that a policy reads, as arrays.

Rows are in a canonical order (jobs, nodes and queues by name) whatever the order of the input, so a policy returns the
same plan for the same cluster. Amounts are integers in base units chosen by the builder (millicores, MiB, devices), so
sums are exact. This module does not import Kubernetes; `views.build` makes snapshots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from operator import is_
from typing import Any, TypeVar

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray, frozen
from diflow.allocator.model.conditions import Conditions
from diflow.allocator.model.profile import Profile
from diflow.allocator.model.rules import NO_RULES, Rules
from diflow.allocator.model.work import Work

UNLIMITED = 2**62
"""A cap of this amount means no cap."""

_T = TypeVar("_T")


class Memo:
    """Values derived from a snapshot's arrays; each is valid while the arrays it was derived from are the same objects.

    The snapshots of one cycle differ only in the allocation, and `replace` passes the memo on.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[object, tuple[tuple[object, ...], Any]] = {}

    def get(self, name: object, sources: tuple[object, ...], make: Callable[[], _T]) -> _T:
        """The result of `make` for these sources, cached. Read-only."""
        known = self._known.get(name)
        if known is not None and all(map(is_, known[0], sources)):
            found: _T = known[1]
            return found
        value = make()
        self._known[name] = sources, value
        return value


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The cluster at one moment. J jobs, G roles (tasks of jobs, sorted by job), N nodes, Q queues, R resources.

    | field | shape | meaning |
    |---|---|---|
    | now_seconds | | time of the snapshot |
    | resources | R | names, `pods` among them when nodes limit their number |
    | node_allocatable | N×R | as in the node's status |
    | node_foreign | N×R | used by pods that the allocator does not manage and that will stay |
    | node_releasing | N×R | used by pods that are terminating |
    | node_open | N | ready and schedulable |
    | node_pool | N | index of the node's pool (GPU type) |
    | pool_names, pool_speed | P | of the pools; speeds relative to each other, as an administrator has set them |
    | queue_parent | Q | index of the parent, -1 at the top |
    | queue_weight, queue_guarantee, queue_cap | Q, Q×R, Q×R | |
    | queue_lends | Q | whether it lends its guarantee to jobs that are not preemptible too; empty: none does |
    | keeps_guarantees | | whether a policy keeps what other queues could claim free of such jobs |
    | job_queue | J | -1: the named queue does not exist |
    | job_priority, job_preemptible, job_pinned | J | pinned: cannot leave its nodes |
    | job_created_seconds, job_started_seconds, job_changed_seconds | J | -1: never; stopping counts as a change |
    | job_restarts, job_service_seconds | J | moves and replica-seconds so far |
    | job_profile | J | what the job has reported, and its application's record; None: nothing |
    | role_job, role_request, role_min, role_max, role_desired | G.. | a gang is min..max replicas of each role |
    | role_unit | G | only multiples of it run |
    | role_class | G | row of class_nodes and class_preference |
    | class_nodes, class_preference | K×N | where pods of a class may run; preference for each node (0: none) |
    | job_refusal | J | why a job may not be placed even on an empty cluster, or "" |
    | level_names | L | levels of the topology, the widest first; () if there is none |
    | node_domain | L×N | index of the node's domain at each level, or -1; domain_names (D) beside it |
    | job_required | J | the level of which one domain must hold the whole job, or -1 |
    | job_modest | J | takes nothing from other jobs, and nothing is reserved for it |
    | spared | P×3 | (number of a namespace, job, how often its jobs have taken from this one lately) |
    | rules | | about domains that hold several nodes, and the pods there (`rules.py`) |
    | held_role, held_node, held_count | A | the current allocation, sorted by role, then node |

    Only the policies that optimise goodput choose by `job_profile`, `node_pool`, `pool_names` and `pool_speed`.
    """

    now_seconds: float
    resources: tuple[str, ...]
    node_names: tuple[str, ...]
    node_allocatable: IntArray
    node_foreign: IntArray
    node_releasing: IntArray
    node_open: BoolArray
    node_pool: IntArray
    pool_names: tuple[str, ...]
    pool_speed: FloatArray
    queue_names: tuple[str, ...]
    queue_parent: IntArray
    queue_weight: FloatArray
    queue_guarantee: IntArray
    queue_cap: IntArray
    job_names: tuple[str, ...]
    job_queue: IntArray
    job_queue_name: tuple[str, ...]
    job_priority: IntArray
    job_preemptible: BoolArray
    job_pinned: BoolArray
    job_created_seconds: FloatArray
    job_started_seconds: FloatArray
    job_changed_seconds: FloatArray
    job_restarts: IntArray
    job_service_seconds: FloatArray
    job_profile: tuple[Profile | None, ...]
    role_names: tuple[str, ...]
    role_job: IntArray
    role_request: IntArray
    role_min: IntArray
    role_max: IntArray
    role_desired: IntArray
    role_class: IntArray
    class_nodes: BoolArray
    class_preference: IntArray
    held_role: IntArray
    held_node: IntArray
    held_count: IntArray
    job_refusal: tuple[str, ...]
    level_names: tuple[str, ...]
    domain_names: tuple[str, ...]
    node_domain: IntArray
    job_required: IntArray
    role_unit: IntArray
    job_modest: BoolArray = field(default_factory=lambda: frozen(np.zeros(0, dtype=np.bool_)))
    spared: IntArray = field(default_factory=lambda: frozen(np.zeros((0, 3), dtype=np.int64)))
    queue_lends: BoolArray = field(default_factory=lambda: frozen(np.zeros(0, dtype=np.bool_)))
    keeps_guarantees: bool = False
    rules: Rules = NO_RULES
    conditions: Conditions | None = field(default=None, repr=False)
    """What the classes were made of, for texts; None in a snapshot that was read from a journal."""
    memo: Memo = field(default_factory=Memo, repr=False)

    @property
    def jobs(self) -> int:
        return len(self.job_names)

    @property
    def nodes(self) -> int:
        return len(self.node_names)

    @property
    def roles(self) -> int:
        return len(self.role_job)

    @property
    def queues(self) -> int:
        return len(self.queue_names)

    @property
    def facts(self) -> Facts:
        """What does not depend on the allocation."""
        sources = (
            self.role_job,
            self.role_request,
            self.role_min,
            self.role_max,
            self.role_desired,
            self.role_class,
            self.class_nodes,
            self.class_preference,
            self.job_queue,
            self.job_priority,
            self.job_pinned,
            self.queue_parent,
            self.queue_cap,
            self.node_allocatable,
            self.node_open,
            self.node_domain,
            self.job_required,
            self.rules,
            *((self.job_preemptible, self.queue_guarantee, self.queue_lends) if self.keeps_guarantees else ()),
        )
        return self.memo.get("facts", sources, lambda: Facts(self))

    @property
    def modest(self) -> BoolArray:
        """`job_modest`, of a snapshot without it that of jobs of which none is (J). Read-only."""
        if len(self.job_modest) == self.jobs:
            return self.job_modest
        return self.memo.get("modest", (self.job_names,), lambda: frozen(np.zeros(self.jobs, dtype=np.bool_)))

    def takes_from(self, job: int, least: int = 0) -> BoolArray | None:
        """The jobs (J) from which something may be taken for this one, as far as that depends on their namespaces: all
        but the spared ones from which they have taken at least so often; None: all."""
        if self.modest[job]:
            return np.zeros(self.jobs, dtype=np.bool_)
        if not len(self.spared):
            return None
        mine = self.spared[(self.spared[:, 0] == self.owners[job]) & (self.spared[:, 2] >= least), 1]
        if not len(mine):
            return None
        out = np.ones(self.jobs, dtype=np.bool_)
        out[mine] = False
        return out

    @property
    def owners(self) -> IntArray:
        """The number of each job's namespace (J): a job is named "namespace/name". Read-only."""
        return self.memo.get("owners", (self.job_names,), lambda: frozen(owners_of(self.job_names)))

    @property
    def work(self) -> Work:
        """The operations of the plan that is being made, of all the snapshots that it goes through."""
        return self.memo.get("work", (self.job_names,), lambda: Work(self.owners.tolist()))

    def apart(self) -> Memo:
        """A memo for the same jobs in other queues. The operations are those of the same plan."""
        memo = Memo()
        memo.get("work", (self.job_names,), lambda: self.work)
        return memo

    def role_starts(self) -> IntArray:
        """First role of each job (J+1): job j owns roles starts[j]:starts[j+1]. Read-only."""
        return self.facts.starts

    def held_by_role(self) -> IntArray:
        """Current replicas of each role (G). Read-only."""
        return self.memo.get("held by role", (self.held_role, self.held_count, self.role_job), self._held_by_role)

    def replicas_of_jobs(self, count: IntArray, role: IntArray | None = None) -> IntArray:
        """Replicas by job (J). `count`: of each role (G), or of each of the roles in `role`."""
        owner = self.role_job if role is None else self.role_job[role]
        return np.bincount(owner, weights=count, minlength=self.jobs).astype(np.int64)

    def usage(self, role: IntArray, node: IntArray, count: IntArray) -> IntArray:
        """N×R used by an allocation of (role, node, count) triples."""
        return node_usage(self.role_request, role, node, count, self.nodes)

    def capacity(self) -> IntArray:
        """N×R available to the allocator's pods (may be negative). Read-only."""
        sources = (self.node_allocatable, self.node_foreign)
        return self.memo.get("capacity", sources, lambda: frozen(self.node_allocatable - self.node_foreign))

    def free_after_termination(self) -> IntArray:
        """N×R free after all terminating pods are gone (negative on a node that shrank). Read-only."""
        held = (self.held_role, self.held_node, self.held_count)
        sources = (*held, self.role_request, self.node_allocatable, self.node_foreign)
        return self.memo.get("free after termination", sources, lambda: frozen(self.capacity() - self.usage(*held)))

    def idle(self) -> IntArray:
        """N×R free now: `free_after_termination` less what terminating pods still use."""
        return self.free_after_termination() - self.node_releasing

    def eligible(self, role: int) -> BoolArray:
        """Nodes where a new pod of `role` may run (N). Read-only."""
        return self.facts.eligible(self.facts.shape[role])

    def suits(self, role: int) -> BoolArray:
        """Nodes where a pod of `role` might run if they were open (N)."""
        suits: BoolArray = self.class_nodes[self.role_class[role]]
        level = int(self.job_required[self.role_job[role]])
        return suits if level < 0 else suits & (self.node_domain[level] >= 0)

    def jobs_of(self, roles: BoolArray | IntArray) -> BoolArray:
        """Mask of the jobs that own any of these roles (J). `roles`: a mask (G) or indices."""
        out = np.zeros(self.jobs, dtype=np.bool_)
        out[self.role_job[roles]] = True
        return out

    def _held_by_role(self) -> IntArray:
        held = np.bincount(self.held_role, weights=self.held_count, minlength=self.roles)
        return frozen(held.astype(np.int64))

    def demand_by_job(self, count: IntArray) -> IntArray:
        """J×R used by each job with `count` replicas of each role (G)."""
        by_role: IntArray = self.role_request * count[:, None]
        if self.facts.single:
            return by_role
        out = np.zeros((self.jobs, len(self.resources)), dtype=np.int64)
        for r in range(len(self.resources)):
            np.add.at(out[:, r], self.role_job, by_role[:, r])
        return out


def namespace_of(job_name: str) -> str:
    """The namespace of a job "namespace/name"; "" without one."""
    return job_name.partition("/")[0] if "/" in job_name else ""


def owners_of(job_names: Iterable[str]) -> IntArray:
    """The numbers of the jobs' namespaces, which begin at 0 (J)."""
    known: dict[str, int] = {}
    return np.array([known.setdefault(namespace_of(name), len(known)) for name in job_names], dtype=np.int64)


def node_usage(request: IntArray, role: IntArray, node: IntArray, count: IntArray, nodes: int) -> IntArray:
    """N×R used by (role, node, count) triples; `request` (G×R) is what one replica asks for. Integer arithmetic."""
    out = np.zeros((nodes, request.shape[1]), dtype=np.int64)
    if len(role):
        amount = request[role] * count[:, None]
        for r in range(request.shape[1]):
            np.add.at(out[:, r], node, amount[:, r])
    return out


class Facts:
    """Gangs, queues and shapes of a snapshot, as plain lists: computed once and shared by derived snapshots. Nothing
    here depends on the allocation or the time.

    A policy reads limits and requests of single roles hundreds of thousands of times in a cycle, and an element of a
    numpy array is several times slower to read than one of a list.

    | field | of each | meaning |
    |---|---|---|
    | starts, start_list | job, and one more | its first role |
    | role_min, role_max, role_desired, request | role | as in the snapshot |
    | shape | role | index of its request, node conditions, level and rules: roles of one shape fit on the same nodes |
    | level | shape | the level of the topology of which one domain must hold the job, or -1 |
    | asks | shape | (resource, amount) pairs of one replica's request |
    | weight | shape | dominant share of one replica: its largest fraction of any resource of the cluster |
    | preference | shape | preference for each node (N), at most 1; None if there is none |
    | job_queue, priority, pinned | job | as in the snapshot |
    | required | job | the level of which one domain must hold the job, or -1 |
    | domains | L×N | as the snapshot's `node_domain`; `has_topology`: whether there are levels |
    | chains, caps | queue | the queue and its ancestors; as in the snapshot |
    | total, whole | resource | allocatable of all nodes, at least 1, as a list and as an array |
    """

    def __init__(self, snapshot: Snapshot) -> None:
        s = snapshot
        self.starts: IntArray = np.searchsorted(s.role_job, np.arange(s.jobs + 1)).astype(np.int64)
        self.start_list: list[int] = self.starts.tolist()
        self.roles_of = [range(low, high) for low, high in pairwise(self.start_list)]
        self.single = len(self.roles_of) == s.roles and bool((s.role_job == np.arange(s.roles)).all())
        """Whether each job has one role."""
        self.role_min: list[int] = s.role_min.tolist()
        self.role_max: list[int] = s.role_max.tolist()
        self.role_desired: list[int] = s.role_desired.tolist()
        self.request: list[list[int]] = s.role_request.tolist()
        self.job_queue: list[int] = s.job_queue.tolist()
        self.priority: list[int] = s.job_priority.tolist()
        self.pinned: list[bool] = s.job_pinned.tolist()
        self.chains = ancestors(s.queue_parent)
        self.caps: list[list[int]] = s.queue_cap.tolist()
        self.kept = kept_guarantees(s) if s.keeps_guarantees else None
        """What each queue could claim of jobs that are not preemptible (queue × resource); None: nobody asks."""
        self.preemptible: list[bool] = s.job_preemptible.tolist()
        self.siblings = siblings(self.chains) if self.kept else []
        self.capped = bool((s.queue_cap < UNLIMITED).any()) or self.kept is not None
        """Whether queues limit what their jobs get, by caps or by what others could claim."""
        self.has_topology = len(s.level_names) > 0
        self.domains = s.node_domain
        self.required: list[int] = s.job_required.tolist()
        shapes: dict[tuple[int, ...], int] = {}
        self.ruled = s.rules.of_role
        """The rules of each role that has some."""
        self.bound_jobs = {int(s.role_job[role]) for role in self.ruled}
        """The jobs of these roles."""
        alike = s.rules.alike()
        self.shape = [
            shapes.setdefault((alike.get(role, 0), where, self.required[job], *request), len(shapes))
            for role, (where, job, request) in enumerate(
                zip(s.role_class.tolist(), s.role_job.tolist(), self.request, strict=True)
            )
        ]
        self.whole: IntArray = frozen(np.maximum(s.node_allocatable.sum(axis=0), 1))
        self.total: list[int] = self.whole.tolist()
        plain: dict[tuple[int, ...], int] = {}
        self.plain = [plain.setdefault(shape[1:], number) for number, shape in enumerate(shapes)]
        """For each shape, the first one that differs in rules alone: as many fit on each node by itself."""
        self.asks = [tuple((r, amount) for r, amount in enumerate(shape[3:]) if amount) for shape in shapes]
        self.weight = [
            max((amount / total for amount, total in zip(shape[3:], self.total, strict=True)), default=0.0)
            for shape in shapes
        ]
        self._masks = frozen(s.class_nodes & s.node_open)
        self._classes = [shape[1] for shape in shapes]
        self.level = [shape[2] for shape in shapes]
        likes = [_part_of_most(row) for row in s.class_preference * self._masks]
        self.preference = [likes[where] for where in self._classes]

    def is_fixed(self, job: int) -> bool:
        """Whether what other queues could claim limits the job."""
        return self.kept is not None and not self.preemptible[job]

    def eligible(self, shape: int) -> BoolArray:
        """Nodes where a new pod of this shape may run (N). Read-only."""
        mask: BoolArray = self._masks[self._classes[shape]]
        level = self.level[shape]
        return mask if level < 0 else mask & (self.domains[level] >= 0)

    @cached_property
    def kinds(self) -> list[int]:
        """Index of each job's kind: jobs of one kind have equal requests, one queue and equal limits."""
        known: dict[tuple[object, ...], int] = {}
        out = []
        for job, (queue, roles) in enumerate(zip(self.job_queue, self.roles_of, strict=True)):
            gang = tuple((self.shape[r], self.role_min[r], self.role_desired[r]) for r in roles)
            out.append(known.setdefault((queue, self.is_fixed(job), gang), len(known)))
        return out

    @cached_property
    def kind_of(self) -> IntArray:
        """`kinds` as an array (J)."""
        return np.array(self.kinds, dtype=np.int64)

    @cached_property
    def first_of_kind(self) -> list[int]:
        """The first job of each kind."""
        first: dict[int, int] = {}
        for job, kind in enumerate(self.kinds):
            first.setdefault(kind, job)
        return list(first.values())


def _part_of_most(preference: IntArray) -> FloatArray | None:
    most = preference.max(initial=0)
    return frozen(preference / most) if most > 0 else None


def kept_guarantees(snapshot: Snapshot) -> list[list[int]] | None:
    """What each queue is guaranteed and lends to preemptible jobs alone, or the queues below it together (queue ×
    resource); None: nothing, or no job is concerned."""
    s = snapshot
    lends = s.queue_lends if len(s.queue_lends) else np.zeros(s.queues, dtype=np.bool_)
    kept = np.where(lends[:, None], 0, s.queue_guarantee)
    if s.queues < 2 or not kept.any() or s.job_preemptible.all():
        return None
    chains = ancestors(s.queue_parent)
    below = np.zeros_like(kept)
    for q in sorted(range(s.queues), key=lambda q: -len(chains[q])):
        kept[q] = np.maximum(kept[q], below[q])
        if len(chains[q]) > 1:
            below[chains[q][1]] += kept[q]
    rows: list[list[int]] = kept.tolist()
    return rows


def siblings(chains: list[list[int]]) -> list[list[int]]:
    """For each queue, the siblings of it and of its ancestors."""
    above = [chain[1] if len(chain) > 1 else -1 for chain in chains]
    return [
        [q for q in range(len(chains)) if any(q != at and above[q] == above[at] for at in chain) and q not in chain]
        for chain in chains
    ]


def ancestors(parent: IntArray) -> list[list[int]]:
    """For each queue: the queue and its ancestors. A cycle ends before it repeats."""
    above: list[int] = parent.tolist()
    out: list[list[int]] = []
    for queue in range(len(above)):
        chain = [queue]
        while above[chain[-1]] >= 0 and above[chain[-1]] not in chain:
            chain.append(above[chain[-1]])
        out.append(chain)
    return out

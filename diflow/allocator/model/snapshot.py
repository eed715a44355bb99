"""The immutable view of the cluster that a policy reads, as arrays.

Rows are in a canonical order (jobs, nodes and queues by name) whatever the order of the input, so a policy returns the
same plan for the same cluster. Amounts are integers in base units chosen by the builder (millicores, MiB, devices), so
sums are exact. This module does not import Kubernetes; `views.build` makes snapshots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import is_
from typing import Any, TypeVar

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray, frozen
from diflow.allocator.model.facts import UNLIMITED, Facts
from diflow.allocator.model.profile import Profile

__all__ = ["UNLIMITED", "Memo", "Snapshot", "node_usage"]


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
        )
        return self.memo.get("facts", sources, lambda: Facts(self))

    def role_starts(self) -> IntArray:
        """First role of each job (J+1): job j owns roles starts[j]:starts[j+1]. Read-only."""
        return self.facts.starts

    def held_by_role(self) -> IntArray:
        """Current replicas of each role (G). Read-only."""
        return self.memo.get("held by role", (self.held_role, self.held_count, self.role_job), self._held_by_role)

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


def node_usage(request: IntArray, role: IntArray, node: IntArray, count: IntArray, nodes: int) -> IntArray:
    """N×R used by (role, node, count) triples; `request` (G×R) is what one replica asks for. Integer arithmetic."""
    out = np.zeros((nodes, request.shape[1]), dtype=np.int64)
    if len(role):
        amount = request[role] * count[:, None]
        for r in range(request.shape[1]):
            np.add.at(out[:, r], node, amount[:, r])
    return out

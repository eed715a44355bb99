"""The immutable view of the cluster that a policy reads, as arrays.

Rows are in one canonical order (jobs, nodes and queues by name), whatever order they came in, so that a policy which
looks at nothing else gives the same answer for the same cluster. Amounts are whole numbers in base units chosen by
the builder (millicores, MiB, devices): sums are exact. It knows nothing of Kubernetes; `views.build` makes it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diflow.allocator.arrays import BoolArray, FloatArray, IntArray
from diflow.allocator.profile import Profile

UNLIMITED = 2**62
"""A cap that is none."""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The cluster at one moment. J jobs, G roles (tasks of jobs, sorted by job), N nodes, Q queues, R resources.

    | field | shape | meaning |
    |---|---|---|
    | now_seconds | | time of the snapshot |
    | resources | R | names, `pods` among them when nodes limit their number |
    | node_allocatable | N×R | what pods may use in all |
    | node_foreign | N×R | used by pods that are not the allocator's, and will stay |
    | node_releasing | N×R | used by pods that are terminating |
    | node_open | N | ready and schedulable: new pods may come |
    | node_pool | N | index of the node's pool (GPU type); pool_names, pool_speed beside it |
    | queue_parent | Q | index of the parent, -1 at the top |
    | queue_weight, queue_guarantee, queue_cap | Q, Q×R, Q×R | |
    | job_queue | J | -1: the queue named does not exist |
    | job_priority, job_preemptible, job_pinned | J | pinned: cannot leave the nodes that it is on |
    | job_created_seconds, job_started_seconds, job_changed_seconds | J | -1: never; changed: also when stopped |
    | job_restarts, job_service_seconds | J | moves so far; replica-seconds held so far |
    | role_job, role_request, role_min, role_max, role_desired | G.. | a gang is min..max replicas of each role |
    | role_class | G | row of class_nodes: where its pods may run |
    | held_role, held_node, held_count | A | the present allocation, sorted by role, then node |
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
    held_role: IntArray
    held_node: IntArray
    held_count: IntArray

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

    def role_starts(self) -> IntArray:
        """First role of each job, J+1 long: job j owns roles starts[j]:starts[j+1]."""
        return np.searchsorted(self.role_job, np.arange(self.jobs + 1)).astype(np.int64)

    def held_by_role(self) -> IntArray:
        """Replicas that each role holds now."""
        return np.bincount(self.held_role, weights=self.held_count, minlength=self.roles).astype(np.int64)

    def usage(self, role: IntArray, node: IntArray, count: IntArray) -> IntArray:
        """N×R use of an allocation given as (role, node, count) triples."""
        return node_usage(self.role_request, role, node, count, self.nodes)

    def settled(self) -> IntArray:
        """N×R left when everything that is terminating has gone (may be negative on a node that shrank)."""
        held = self.usage(self.held_role, self.held_node, self.held_count)
        return self.node_allocatable - self.node_foreign - held

    def idle(self) -> IntArray:
        """N×R free at this instant: `settled` less what terminating pods still use."""
        return self.settled() - self.node_releasing

    def eligible(self, role: int) -> BoolArray:
        """Nodes where a new pod of `role` may go."""
        mask: BoolArray = self.class_nodes[self.role_class[role]] & self.node_open
        return mask

    def demand_by_job(self, count: IntArray) -> IntArray:
        """J×R: what each job uses with `count` replicas of each role."""
        out = np.zeros((self.jobs, len(self.resources)), dtype=np.int64)
        np.add.at(out, self.role_job, self.role_request * count[:, None])
        return out


def node_usage(request: IntArray, role: IntArray, node: IntArray, count: IntArray, nodes: int) -> IntArray:
    """N×R use of (role, node, count) triples with `request` a replica of each role. Exact: no float is involved."""
    resources = request.shape[1]
    out = np.zeros((nodes, resources), dtype=np.int64)
    if len(role):
        order = np.argsort(node, kind="stable")
        where = node[order]
        amount = request[role[order]] * count[order, None]
        first = np.flatnonzero(np.concatenate(([True], where[1:] != where[:-1])))
        out[where[first]] = np.add.reduceat(amount, first, axis=0)
    return out

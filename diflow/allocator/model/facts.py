"""What in a snapshot does not depend on the allocation, as plain lists: computed once and shared by derived snapshots.

A policy reads limits and requests of single roles hundreds of thousands of times in a cycle, and an element of a numpy
array is several times slower to read than one of a list.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray, frozen

if TYPE_CHECKING:
    from diflow.allocator.model.snapshot import Snapshot

UNLIMITED = 2**62
"""A cap of this amount means no cap."""


class Facts:
    """Gangs, queues and shapes of a snapshot. Nothing here depends on the allocation or the time.

    | field | of each | meaning |
    |---|---|---|
    | starts, start_list | job, and one more | its first role |
    | role_min, role_max, role_desired, request | role | as in the snapshot |
    | shape | role | index of its request, node conditions and level: roles of one shape fit on the same nodes |
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
        self.capped = bool((s.queue_cap < UNLIMITED).any())
        self.has_topology = len(s.level_names) > 0
        self.domains = s.node_domain
        self.required: list[int] = s.job_required.tolist()
        shapes: dict[tuple[int, ...], int] = {}
        self.shape = [
            shapes.setdefault((where, self.required[job], *request), len(shapes))
            for where, job, request in zip(s.role_class.tolist(), s.role_job.tolist(), self.request, strict=True)
        ]
        self.whole: IntArray = frozen(np.maximum(s.node_allocatable.sum(axis=0), 1))
        self.total: list[int] = self.whole.tolist()
        self.asks = [tuple((r, amount) for r, amount in enumerate(shape[2:]) if amount) for shape in shapes]
        self.weight = [
            max((amount / total for amount, total in zip(shape[2:], self.total, strict=True)), default=0.0)
            for shape in shapes
        ]
        self._masks = frozen(s.class_nodes & s.node_open)
        self._classes = [shape[0] for shape in shapes]
        self.level = [shape[1] for shape in shapes]
        likes = [_part_of_most(row) for row in s.class_preference * self._masks]
        self.preference = [likes[where] for where in self._classes]

    def eligible(self, shape: int) -> BoolArray:
        """Nodes where a new pod of this shape may run (N). Read-only."""
        mask: BoolArray = self._masks[self._classes[shape]]
        level = self.level[shape]
        return mask if level < 0 else mask & (self.domains[level] >= 0)

    @cached_property
    def kinds(self) -> list[int]:
        """Index of each job's kind: jobs of one kind have equal requests and are in the same queue."""
        known: dict[tuple[object, ...], int] = {}
        out = []
        for queue, roles in zip(self.job_queue, self.roles_of, strict=True):
            gang = tuple((self.shape[r], self.role_min[r], self.role_desired[r]) for r in roles)
            out.append(known.setdefault((queue, gang), len(known)))
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

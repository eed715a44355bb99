"""What follows from a snapshot whoever holds what: made once, as plain numbers, and shared by all that a plan leads to.

A policy asks for the limits and requests of single roles hundreds of thousands of times in a cycle; an element of a
numpy array is several times dearer to read than one of a list.
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
"""A cap that is none."""


class Facts:
    """Gangs, queues and shapes of a snapshot. Nothing here depends on who holds what, or on the time.

    | field | of each | meaning |
    |---|---|---|
    | starts, start_list | job, one more | first role of each job |
    | role_min, role_max, role_desired, request | role | as in the snapshot |
    | shape | role | index of its request and node conditions: roles of one shape fit in the same places |
    | asks | shape | (resource, amount) of what one replica asks for |
    | weight | shape | the largest part of any resource of the cluster that one replica takes |
    | preference | shape | how much its pods prefer each node (N), 1 the most; None if they prefer none |
    | job_queue, priority, pinned | job | as in the snapshot |
    | chains, caps | queue | itself and the queues above it; as in the snapshot |
    | total, whole | resource | what all nodes have together, at least 1 |
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
        shapes: dict[tuple[int, ...], int] = {}
        self.shape = [
            shapes.setdefault((where, *request), len(shapes))
            for where, request in zip(s.role_class.tolist(), self.request, strict=True)
        ]
        self.whole: IntArray = frozen(np.maximum(s.node_allocatable.sum(axis=0), 1))
        self.total: list[int] = self.whole.tolist()
        self.asks = [tuple((r, amount) for r, amount in enumerate(shape[1:]) if amount) for shape in shapes]
        self.weight = [
            max((amount / total for amount, total in zip(shape[1:], self.total, strict=True)), default=0.0)
            for shape in shapes
        ]
        self._masks = frozen(s.class_nodes & s.node_open)
        self._classes = [shape[0] for shape in shapes]
        likes = [_part_of_most(row) for row in s.class_preference * self._masks]
        self.preference = [likes[where] for where in self._classes]

    def eligible(self, shape: int) -> BoolArray:
        """Nodes where a new pod of this shape may go (N). Not to be written to."""
        mask: BoolArray = self._masks[self._classes[shape]]
        return mask

    @cached_property
    def kinds(self) -> list[int]:
        """For each job the index of its kind: jobs of one kind ask for the same, in the same queue."""
        known: dict[tuple[object, ...], int] = {}
        out = []
        for queue, roles in zip(self.job_queue, self.roles_of, strict=True):
            gang = tuple((self.shape[r], self.role_min[r], self.role_desired[r]) for r in roles)
            out.append(known.setdefault((queue, gang), len(known)))
        return out

    @cached_property
    def kind_of(self) -> IntArray:
        """The same as an array (J)."""
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
    """For each queue: itself and the queues above it. A circle is cut where it closes."""
    above: list[int] = parent.tolist()
    out: list[list[int]] = []
    for queue in range(len(above)):
        chain = [queue]
        while above[chain[-1]] >= 0 and above[chain[-1]] not in chain:
            chain.append(above[chain[-1]])
        out.append(chain)
    return out

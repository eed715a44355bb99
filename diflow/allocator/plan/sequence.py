"""The order of a plan's writes, and which of them wait after others were refused.

Some jobs of a plan get capacity that others free in the same plan, so the writes that free capacity come first. A job
whose write was refused keeps its capacity, and only the writes that need it wait: all others fit without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from diflow.allocator.model.arrays import IntArray
from diflow.allocator.model.plan import Plan
from diflow.allocator.model.snapshot import Snapshot, node_usage
from diflow.allocator.write.patches import Write

Apply = Callable[[Sequence[Write]], Sequence[Write]]
"""Sends writes, and returns the refused ones."""


class Holdings:
    """The free capacity of the nodes while a plan is written job by job.

    `rows`: the row in the snapshot of each job, by key. A job holds its previous allocation until its write succeeds.
    """

    def __init__(self, snapshot: Snapshot, plan: Plan, rows: Mapping[str, int]) -> None:
        self._snapshot, self._plan, self._rows = snapshot, plan, rows
        self._free: IntArray = snapshot.free_after_termination().copy()
        self._changes: dict[str, tuple[IntArray, IntArray]] = {}
        starts = snapshot.role_starts()
        self._held = np.searchsorted(snapshot.held_role, starts)
        self._next = np.searchsorted(plan.role, starts)

    def fits(self, job: str) -> bool:
        """Whether the additional capacity of the job is free now."""
        nodes, change = self._change(job)
        return not bool(((change > self._free[nodes]) & (change > 0)).any())

    def take(self, job: str) -> None:
        """Reserve the additional capacity of the job."""
        nodes, change = self._change(job)
        self._free[nodes] -= np.maximum(change, 0)

    def made(self, job: str) -> None:
        """The job's write succeeded: free what it gives up."""
        nodes, change = self._change(job)
        self._free[nodes] -= np.minimum(change, 0)

    def refused(self, job: str) -> None:
        """The job's write was refused: end its reservation."""
        nodes, change = self._change(job)
        self._free[nodes] += np.maximum(change, 0)

    def _change(self, job: str) -> tuple[IntArray, IntArray]:
        """(nodes, N×R): the changes of the job's usage by the plan."""
        if job not in self._changes:
            self._changes[job] = self._changed(self._rows[job])
        return self._changes[job]

    def _changed(self, row: int) -> tuple[IntArray, IntArray]:
        s, plan = self._snapshot, self._plan
        before, after = (slice(int(at[row]), int(at[row + 1])) for at in (self._held, self._next))
        nodes: IntArray = np.union1d(s.held_node[before], plan.node[after])
        was = (s.held_role[before], nodes.searchsorted(s.held_node[before]), s.held_count[before])
        comes = (plan.role[after], nodes.searchsorted(plan.node[after]), plan.count[after])
        of_nodes = len(nodes)
        return nodes, node_usage(s.role_request, *comes, of_nodes) - node_usage(s.role_request, *was, of_nodes)


@dataclass(frozen=True, slots=True)
class Written:
    """The result of writing a plan: the number of writes tried, those refused, and those that wait for them."""

    tried: int
    refused: tuple[Write, ...] = ()
    waiting: tuple[Write, ...] = ()


def write_in_order(free: Sequence[Write], use: Sequence[Write], holdings: Holdings, apply: Apply) -> Written:
    """Send the writes that free capacity, then those that use it: `use` in the order in which they get it.

    A write that moves a job both frees and uses capacity: it is sent when what it uses is free. Writes that need each
    other's capacity are sent together, as the plan is valid as a whole, unless one was refused.
    """
    refused: list[Write] = []
    tried = 0

    def step(writes: Sequence[Write]) -> None:
        nonlocal tried
        tried += len(writes)
        bad = apply(writes)
        refused.extend(bad)
        jobs = {write.job for write in bad}
        for write in writes:
            (holdings.refused if write.job in jobs else holdings.made)(write.job)

    left = list(free)
    while left:
        ready = _reserved(left, holdings)
        if not ready and not refused:
            for write in left:
                holdings.take(write.job)
            ready = left
        if not ready:
            break
        step(ready)
        left = _without(left, ready)
    ready = _reserved(use, holdings) if refused else list(use)
    if ready:
        tried += len(ready)
        refused.extend(apply(ready))
    return Written(tried, tuple(refused), (*left, *_without(use, ready)))


def _reserved(writes: Sequence[Write], holdings: Holdings) -> list[Write]:
    """The writes whose additional capacity is free, reserving it one after the other."""
    out = []
    for write in writes:
        if holdings.fits(write.job):
            holdings.take(write.job)
            out.append(write)
    return out


def _without(writes: Sequence[Write], some: Sequence[Write]) -> list[Write]:
    made = {id(write) for write in some}
    return [write for write in writes if id(write) not in made]

"""In which order the writes of a plan are made, and which of them wait when others were refused.

Some jobs of a plan get room that others give up in the same plan. What gives room up is written first. What was refused
keeps its room, so only those wait that need just that room: all others fit into what is free without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from diflow.allocator.engine.patches import Write
from diflow.allocator.model.arrays import IntArray
from diflow.allocator.model.plan import Plan
from diflow.allocator.model.snapshot import Snapshot, node_usage

Apply = Callable[[Sequence[Write]], Sequence[Write]]
"""Makes writes, and returns those that were refused."""


class Holdings:
    """What is free on the nodes beside all that the jobs hold, while a plan is written job by job.

    `rows` is the row in the snapshot of each job, by its key. A job holds what it held before until its write was made.
    """

    def __init__(self, snapshot: Snapshot, plan: Plan, rows: Mapping[str, int]) -> None:
        self._snapshot, self._plan, self._rows = snapshot, plan, rows
        self._free: IntArray = snapshot.free_after_termination().copy()
        self._changes: dict[str, tuple[IntArray, IntArray]] = {}
        starts = snapshot.role_starts()
        self._held = np.searchsorted(snapshot.held_role, starts)
        self._next = np.searchsorted(plan.role, starts)

    def fits(self, job: str) -> bool:
        """Whether what the job would get in addition is free now."""
        nodes, change = self._change(job)
        return not bool(((change > self._free[nodes]) & (change > 0)).any())

    def take(self, job: str) -> None:
        """Keep what the job gets in addition, so that no other write of the same step gets it."""
        nodes, change = self._change(job)
        self._free[nodes] -= np.maximum(change, 0)

    def made(self, job: str) -> None:
        """The job's write was made: what it gives up is free."""
        nodes, change = self._change(job)
        self._free[nodes] -= np.minimum(change, 0)

    def refused(self, job: str) -> None:
        """The job's write was refused: it gets nothing."""
        nodes, change = self._change(job)
        self._free[nodes] += np.maximum(change, 0)

    def _change(self, job: str) -> tuple[IntArray, IntArray]:
        """(nodes, nodes × resources): what the plan changes of the job's use."""
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
    """What became of a plan: how many writes were tried, which were refused, and which had to wait for those."""

    tried: int
    refused: tuple[Write, ...] = ()
    waiting: tuple[Write, ...] = ()


def write_in_order(free: Sequence[Write], use: Sequence[Write], holdings: Holdings, apply: Apply) -> Written:
    """Make the writes that free room, then those that use it: `use` in the order in which they are to get it.

    A write that changes where a job is may both free room and use some: it is made when what it uses is free. Those
    that need each other's room are made together, as the plan has them, unless something was refused.
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
    """Those of which all that they use is free, one after the other."""
    out = []
    for write in writes:
        if holdings.fits(write.job):
            holdings.take(write.job)
            out.append(write)
    return out


def _without(writes: Sequence[Write], some: Sequence[Write]) -> list[Write]:
    made = {id(write) for write in some}
    return [write for write in writes if id(write) not in made]

"""What `goodput` derives from one snapshot before it decides anything."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from diflow.allocator.model.arrays import BoolArray, IntArray
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.goodput.gangs import gangs_of, has_pools, view_of
from diflow.allocator.policies.goodput.pool_table import PoolTables
from diflow.allocator.policies.goodput.pool_values import PoolValues
from diflow.allocator.policies.goodput.quota import Quota
from diflow.allocator.policies.goodput.starvation import longest_waiting, overdue
from diflow.allocator.policies.goodput.table import Table
from diflow.allocator.policies.goodput.values import Values
from diflow.allocator.policies.settings import PolicySettings
from diflow.allocator.policies.waiting import Feasibility

SILENT_PERIODS = 5
"""Periods after which a running job without reports is assumed never to report."""


class Case:
    """One snapshot as the policy sees it.

    `considered` (J): the only jobs that may change; None: all. `quota` (Q×R): the most that the jobs of each queue may
    hold together. `moved` (J): jobs that start or restart in any case, for which resizing is free. `before`: the case
    of a snapshot from which this one follows by carrying out a plan; its weights are used again. `starved`: the job
    that is placed before all others, or -1.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        settings: PolicySettings,
        tables: PoolTables,
        considered: BoolArray | None = None,
        quota: IntArray | None = None,
        *,
        before: Case | None = None,
        moved: BoolArray | None = None,
    ) -> None:
        self.snapshot, self.settings = snapshot, settings
        self.considered = np.ones(snapshot.jobs, dtype=np.bool_) if considered is None else considered
        self.quota = Quota(snapshot.facts, quota)
        self.gangs = gangs = gangs_of(snapshot, settings)
        self.view = view = view_of(snapshot, gangs, considered)
        self.feasible = Feasibility(snapshot)
        waits, lately = overdue(snapshot, view, settings.reserve_after_seconds)
        self.starved = longest_waiting(snapshot, waits, self.quota)
        self.pooled: PoolValues | None = None
        patience = SILENT_PERIODS * settings.period_seconds
        if has_pools(snapshot):
            self.pooled = PoolValues(
                snapshot,
                settings,
                gangs,
                view,
                tables.make_pools(snapshot, gangs, view, settings, patience_seconds=patience),
                served=waits | lately,
                starved=self.starved,
                moved=moved,
                before=None if before is None else before.values,
            )
            self.view = view = replace(view, pool=self.pooled.chosen)
            self.table: Table = self.pooled.table.of(np.maximum(view.pool, 0))
        else:
            self.table = tables.make(
                snapshot,
                low=gangs.low,
                high=gangs.high,
                desired=gangs.desired,
                per_node=gangs.per_node,
                held=view.held,
                held_nodes=view.held_nodes,
                growth=settings.largest_growth,
                start=settings.largest_start,
                between_nodes=settings.between_nodes,
                patience_seconds=patience,
            )
        # A job keeps the bonus for some time after its start: otherwise the next cycle would stop it again. All these
        # jobs have the same bonus: otherwise they would only replace each other.
        self.values: Values = Values(
            snapshot,
            settings,
            gangs,
            view,
            self.table,
            served=waits | lately,
            moved=moved,
            before=None if before is None else before.values,
            pooled=self.pooled,
        )

    def changes(self, target: IntArray) -> BoolArray:
        """The jobs of which the replicas or the pool would change with these targets (J)."""
        out: BoolArray = self.view.free_to_move & ((target != self.view.held) | (self.view.changes_pool & (target > 0)))
        return out

    def pools_of(self, job: int) -> list[int]:
        """The pools in which the job's minimum fits if they are empty, the chosen one first, then the fastest."""
        if self.pooled is None:
            return []
        able = self.pooled.table.able[job].nonzero()[0].tolist()
        first = int(self.view.pool[job])
        return sorted(able, key=lambda pool: (pool != first, -self.pooled_speed(job, pool), pool))

    def pooled_speed(self, job: int, pool: int) -> float:
        """The job's speed in its smallest configuration there."""
        return float(self.pooled.speed[job, pool, 0]) if self.pooled is not None else 0.0

"""What `goodput` derives from one snapshot before it decides anything."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray
from diflow.allocator.model.plan import KEEP, RESIZE, Plan
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.goodput import pool_choice
from diflow.allocator.policies.goodput.gangs import gangs_of, pools_of, view_of
from diflow.allocator.policies.goodput.quota import Quota
from diflow.allocator.policies.goodput.starvation import longest_waiting, overdue
from diflow.allocator.policies.goodput.table import Table, Tables, column_of
from diflow.allocator.policies.goodput.values import Values, values_of
from diflow.allocator.policies.settings import PolicySettings
from diflow.allocator.policies.waiting import Feasibility

SETTLED_JOBS = 200
"""Jobs up to which a choice of pools is improved job by job: above that single jobs matter little."""
ANEW_JOBS = 16
"""Jobs up to which each step of a plan chooses pools anew, as the next plan will do: so that one has nothing to change.
On larger clusters that takes twice the time, and the pools of the step before are only improved."""


class Case:
    """One snapshot as the policy sees it.

    `considered` (J): the only jobs that may change; None: all. `quota` (Q×R): the most that the jobs of each queue may
    hold together. `moved` (J): jobs that start or restart in any case, for which resizing is free. `before`: the case
    of a snapshot from which this one follows by carrying out a plan; its weights are used again. `starved`: the job
    that is placed before all others, or -1.

    `pool_table`, `pool_values`: of all pools; `table`, `values`: of the pool that was chosen for each job. `column`
    (J): the configurations that were chosen together with the pools, -1 for nothing; None: there is one pool, or there
    are too many jobs.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        settings: PolicySettings,
        tables: Tables,
        considered: BoolArray | None = None,
        quota: IntArray | None = None,
        *,
        before: Case | None = None,
        moved: BoolArray | None = None,
    ) -> None:
        self.snapshot, self.settings = snapshot, settings
        self.considered = np.ones(snapshot.jobs, dtype=np.bool_) if considered is None else considered
        self.quota = Quota(snapshot.facts, quota)
        self.pools = pools_of(snapshot)
        self.gangs = gangs = gangs_of(snapshot, settings)
        self.view = view = view_of(snapshot, gangs, considered)
        self.feasible = Feasibility(snapshot)
        waits, lately = overdue(snapshot, view, settings.reserve_after_seconds)
        self.starved = longest_waiting(snapshot, waits, self.quota)
        self.pool_table: Table = tables.make(snapshot, gangs, view, settings)
        # A job keeps the bonus for some time after its start: otherwise the next cycle would stop it again. All these
        # jobs have the same bonus: otherwise they would only replace each other.
        self.pool_values: Values = values_of(
            snapshot,
            settings,
            gangs,
            view,
            self.pool_table,
            served=waits | lately,
            moved=moved,
            before=None if before is None else before.pool_values,
        )
        self.column: IntArray | None = None
        if self.pools.count > 1:
            self.view = replace(view, pool=self._chosen_pools(anew=before is None or snapshot.jobs <= ANEW_JOBS))
        at = np.maximum(self.view.pool, 0)
        self.table, self.values = self.pool_table.of(at), self.pool_values.of(at)

    def changes(self, target: IntArray) -> BoolArray:
        """The jobs of which the replicas or the pool would change with these targets (J)."""
        out: BoolArray = self.view.free_to_move & ((target != self.view.held) | (self.view.changes_pool & (target > 0)))
        return out

    def pools_for(self, job: int) -> list[int]:
        """The pools in which the job's minimum fits if they are empty, the chosen one first, then the fastest."""
        able = self.pool_table.able[job].nonzero()[0].tolist()
        first, speed = int(self.view.pool[job]), self.pool_values.speed[job, :, 0].tolist()
        return sorted(able, key=lambda pool: (pool != first, -speed[pool], pool))

    @cached_property
    def free(self) -> IntArray:
        """N×R that the jobs which may change can use, if they all stop."""
        s = self.snapshot
        free, stays = s.capacity(), ~self.view.free_to_move[s.role_job[s.held_role]]
        if stays.any():
            free = free - s.usage(s.held_role[stays], s.held_node[stays], s.held_count[stays])
        return np.maximum(free, 0) * s.node_open[:, None]

    @cached_property
    def worth(self) -> FloatArray:
        """The value of each configuration in each pool with bonuses and restart costs (J×P×C), not finite where it may
        not be chosen."""
        s, table, values, view = self.snapshot, self.pool_table, self.pool_values, self.view
        running, movable, rigid = (one[:, None, None] for one in (view.running, view.free_to_move, ~s.job_preemptible))
        here = (view.present_pool[:, None] == np.arange(self.pools.count)) | ~table.confined[:, None]
        speed = np.where(running, values.speed * values.penalty, values.speed)
        same = here[:, :, None] & (table.replicas == view.held[:, None, None]) & running
        speed = np.where(same, values.present_speed[:, None, None], speed)
        usable = (table.replicas > 0) & (speed > 0) & movable
        # A job that cannot be resized later starts at its desired size or its minimum.
        for bound in (self.gangs.desired, self.gangs.low):
            rigid = rigid & (table.replicas != bound[:, None, None])
        return np.where(usable & ~rigid, values.with_bonus(speed), -np.inf)

    def _chosen_pools(self, *, anew: bool) -> IntArray:
        """The pool for which a plan is made for each job (J), or -1 if it is not confined to one; sets `column`.
        `anew`: not only improve the pools where the jobs run."""
        view, table, starved = self.view, self.pool_table, self.starved
        there = self.pools.sums(self.free)
        amounts = self.pool_values.amounts
        share = (amounts / np.maximum(there, 1)[:, None, :]).max(axis=3)
        value = np.where(table.able[:, :, None] & (share <= 1.0), self.worth, -np.inf)
        present = view.present_pool
        waits = view.free_to_move & (present < 0)
        found = pool_choice.choose(value, share) if anew or waits.any() else present
        stay = np.where(present >= 0, present, found)
        if self.snapshot.jobs <= SETTLED_JOBS:
            starts = {choice.tobytes(): choice for choice in ((found, stay) if anew else (stay,))}
            settled = [pool_choice.settle(value, amounts, share, there, choice) for choice in starts.values()]
            found, self.column, _ = max(settled, key=lambda one: one[2])
            if starved >= 0 and self.column[starved] >= 0:
                starved = -1  # it has a place
        if starved >= 0 and table.confined[starved]:
            found = found.copy()
            found[starved] = self._nearest(starved)
        found = np.where(view.free_to_move, found, np.maximum(present, 0))
        return np.where(table.confined, found, -1)

    def _nearest(self, job: int) -> int:
        """The pool in which least of the job's minimum is missing now; the fastest of equal ones."""
        s, role = self.snapshot, self.gangs.elastic_list[job]
        request = s.role_request[role]
        asked = request > 0
        free = np.maximum(s.free_after_termination(), 0)[:, asked] // request[asked]
        fits = np.where(s.eligible(role), free.min(axis=1, initial=2**31), 0)
        now = np.bincount(self.pools.of_node, weights=fits, minlength=self.pools.count)
        score = np.where(self.pool_table.able[job], np.minimum(now, self.gangs.low_list[job]), -1.0)
        return int(np.where(score == score.max(), self.pool_values.speed[job, :, 0], -1.0).argmax())

    def total(self, plan: Plan) -> float:
        """Value of a plan: the sum of the jobs' values, restart costs included."""
        s, gangs, table, values = self.snapshot, self.gangs, self.pool_table, self.pool_values
        if s.jobs == 0:
            return 0.0
        count = np.bincount(plan.role, weights=plan.count, minlength=s.roles)[gangs.elastic].astype(np.int64)
        nodes = np.bincount(plan.role, minlength=s.roles)[gangs.elastic]
        first = np.minimum(np.searchsorted(plan.role, gangs.elastic), max(len(plan.role) - 1, 0))
        pool = self.pools.of_node[plan.node[first]] if len(plan.role) else np.zeros(s.jobs, dtype=np.int64)
        there = np.arange(s.jobs), pool
        at = *there, column_of(table.replicas[there], count)
        speed = np.where(count > 0, values.speed[at], 0.0)
        spread = (count == gangs.low) & (nodes > 1) & (count <= table.per_node[there])
        speed = np.where(spread, values.spread_speed[there], speed)
        resized = plan.action == RESIZE
        paid = np.where(resized & s.job_preemptible, values.penalty[at], 1.0)
        speed = np.where(plan.action == KEEP, values.present_speed, speed * paid)
        # Growth of a job that is not preemptible was asked for by its user: it never counts as a loss.
        asked = resized & ~s.job_preemptible
        return values.total(np.where(asked, np.maximum(speed, values.present_speed), speed))

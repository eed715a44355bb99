"""What each job's configurations are worth in each pool of nodes, and the pool that is chosen for each job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray
from diflow.allocator.model.plan import Plan
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.goodput import pool_choice
from diflow.allocator.policies.goodput.gangs import Gangs, View
from diflow.allocator.policies.goodput.pool_table import PoolTable
from diflow.allocator.policies.goodput.price import seconds_left, weighted
from diflow.allocator.policies.goodput.values import bonus_of, penalty_of, value_of
from diflow.allocator.policies.settings import PolicySettings
from diflow.allocator.policies.waiting import broken_gangs

if TYPE_CHECKING:
    from diflow.allocator.policies.goodput.values import Values


SETTLED_JOBS = 200
"""Jobs up to which a choice of pools is improved job by job: above that single jobs matter little."""
ANEW_JOBS = 16
"""Jobs up to which each step of a plan chooses pools anew, as the next plan will do: so that one has nothing to change.
On larger clusters that takes twice the time, and the pools of the step before are only improved."""


class PoolValues:
    """As `Values`, with a second axis for the pool: `speed` and `penalty` are J×P×C, `spread_speed` J×P.

    Speeds are relative to the smallest configuration on an average pool. `chosen` (J): the pool for which a plan of the
    snapshot is made, or -1 for a job that no pool holds alone. `column` (J): the configurations that were chosen with
    the pools, or -1 for nothing; None on large clusters.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        settings: PolicySettings,
        gangs: Gangs,
        view: View,
        table: PoolTable,
        *,
        served: BoolArray,
        starved: int,
        moved: BoolArray | None,
        before: Values | None,
    ) -> None:
        self._snapshot, self.table = snapshot, table
        base = table.base[:, None, None]
        self.speed: FloatArray = table.goodput / base
        self.spread_speed: FloatArray = table.spread / table.base[:, None]
        self.present_speed: FloatArray = np.where(broken_gangs(snapshot), 0.0, table.present / table.base)
        hopeless = table.goodput.max(axis=(1, 2), initial=0.0) <= 0
        if hopeless.any():
            self.speed[hopeless, :, 0] = table.able[hopeless]
            self.spread_speed[hopeless] = table.able[hopeless]
            self.present_speed[hopeless & (view.held > 0)] = 1.0
        amounts = table.replicas[..., None] * gangs.request[:, None, None, :] + gangs.others[:, None, None, :]
        pools = _pools_of(snapshot)
        if before is None:
            whole = _by_pool(np.maximum(snapshot.capacity(), 0) * snapshot.node_open[:, None], pools)
            share = (amounts / np.maximum(whole, 1)[None, :, None, :]).max(axis=3)
            usable = table.anyway & (snapshot.job_queue >= 0)[:, None, None]
            cost, pace = pool_choice.unit_costs(self.speed, share, usable)
            self.left = seconds_left(snapshot, table.left_seconds)
            self.weight = weighted(snapshot, settings, self.left, cost, pace)
        else:
            self.weight, self.left = before.weight, before.left
        self.penalty: FloatArray = penalty_of(
            snapshot, settings, self.speed, self.left, table.restart_seconds, moved=moved
        )
        self.bonus: FloatArray = bonus_of(
            snapshot, settings, self.present_speed,
            weight=self.weight, left=self.left, restart_seconds=table.restart_seconds,
            moved=moved, may_stop=view.free_to_move, served=served,
        )  # fmt: skip
        self.column: IntArray | None = None
        anew = before is None or snapshot.jobs <= ANEW_JOBS
        self.chosen: IntArray = self._choose(settings, gangs, view, amounts, starved=starved, anew=anew)

    def _choose(
        self,
        settings: PolicySettings,
        gangs: Gangs,
        view: View,
        amounts: IntArray,
        *,
        starved: int,
        anew: bool,
    ) -> IntArray:
        """`starved`: the job that is placed before all others, or -1. `anew`: not only improve the pools where the jobs
        run."""
        s, table = self._snapshot, self.table
        pools = _pools_of(s)
        stays = ~view.free_to_move[s.role_job[s.held_role]]
        free = s.capacity()
        if stays.any():
            free = free - s.usage(s.held_role[stays], s.held_node[stays], s.held_count[stays])
        there = _by_pool(np.maximum(free, 0) * s.node_open[:, None], pools)
        share = (amounts / np.maximum(there, 1)[None, :, None, :]).max(axis=3)
        running = view.running[:, None, None]
        speed = np.where(running, self.speed * self.penalty, self.speed)
        here = (view.present_pool[:, None] == np.arange(len(pools))) | table.homeless[:, None]
        same = here[:, :, None] & (table.replicas == view.held[:, None, None]) & running
        speed = np.where(same, self.present_speed[:, None, None], speed)
        value = value_of(speed, self.weight[:, None, None], settings.concavity) + self.bonus[:, None, None]
        usable = (table.replicas > 0) & (speed > 0) & table.able[:, :, None] & view.free_to_move[:, None, None]
        rigid = ~s.job_preemptible[:, None, None] & (table.replicas != gangs.desired[:, None, None])
        usable &= ~(rigid & (table.replicas != gangs.low[:, None, None])) & (share <= 1.0)
        value = np.where(usable, value, -np.inf)
        waits = view.free_to_move & (view.present_pool < 0)
        found = pool_choice.choose(value, share) if anew or waits.any() else view.present_pool
        stay = np.where(view.present_pool >= 0, view.present_pool, found)
        if s.jobs <= SETTLED_JOBS:
            capacity = np.maximum(there, 0)
            starts = {choice.tobytes(): choice for choice in ((found, stay) if anew else (stay,))}
            settled = [pool_choice.settle(value, amounts, share, capacity, choice) for choice in starts.values()]
            found, self.column, _ = max(settled, key=lambda one: one[2])
            if starved >= 0 and self.column[starved] >= 0:
                starved = -1  # it has a place
        if starved >= 0 and not table.homeless[starved]:
            found = found.copy()
            found[starved] = self._nearest(gangs, starved)
        found = np.where(view.free_to_move, found, np.maximum(view.present_pool, 0))
        return np.where(table.homeless, -1, found)

    def _nearest(self, gangs: Gangs, job: int) -> int:
        """The pool in which least of the job's minimum is missing now; the fastest of equal ones."""
        s = self._snapshot
        request = s.role_request[gangs.elastic_list[job]]
        asked = request > 0
        free = np.maximum(s.free_after_termination(), 0)[:, asked] // request[asked]
        fits = np.where(s.eligible(gangs.elastic_list[job]), free.min(axis=1, initial=2**31), 0)
        now = np.bincount(s.node_pool, weights=fits, minlength=len(s.pool_names))
        able = self.table.able[job]
        score = np.where(able, np.minimum(now, gangs.low_list[job]), -1.0)
        best = score == score.max()
        return int(np.where(best, self.speed[job, :, 0], -1.0).argmax())

    def under(self, plan: Plan, gangs: Gangs, count: IntArray) -> tuple[FloatArray, FloatArray, FloatArray, IntArray]:
        """(speed, penalty, speed of the first configuration on several nodes, replicas that one node holds) of each
        job in the pool where the plan has it, with `count` replicas (J each)."""
        s, rows = self._snapshot, np.arange(self._snapshot.jobs)
        at = np.minimum(np.searchsorted(plan.role, gangs.elastic), max(len(plan.role) - 1, 0))
        pool = s.node_pool[plan.node[at]] if len(plan.role) else np.zeros(s.jobs, dtype=np.int64)
        replicas = self.table.replicas[rows, pool]
        column = np.maximum(((replicas <= count[:, None]) & (replicas > 0)).sum(axis=1) - 1, 0)
        return (
            self.speed[rows, pool, column],
            self.penalty[rows, pool, column],
            self.spread_speed[rows, pool],
            self.table.per_node[rows, pool],
        )


def _pools_of(snapshot: Snapshot) -> BoolArray:
    """The nodes of each pool (P×N)."""
    out: BoolArray = snapshot.node_pool == np.arange(len(snapshot.pool_names))[:, None]
    return out


def _by_pool(amount: IntArray, pools: BoolArray) -> IntArray:
    """The sum of these amounts (N×R) over the nodes of each pool (P×R). `pools`: P×N."""
    out: IntArray = pools.astype(np.int64) @ amount
    return out

"""What each job's configurations are worth, and what a plan is worth as a whole.

The value of a job is w·s^p. s is its speedup, at the batch size with the best goodput, over its smallest configuration;
w the value of a second of its work (`price.py`). A move multiplies s by the fraction of the horizon left after the
restart cost. A stop costs what a move of the job to its present configuration would cost: it has to start again later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray
from diflow.allocator.model.plan import KEEP, RESIZE, Plan
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.goodput.gangs import Gangs, View
from diflow.allocator.policies.goodput.price import weights
from diflow.allocator.policies.goodput.table import Table
from diflow.allocator.policies.settings import PolicySettings
from diflow.allocator.policies.waiting import broken_gangs

if TYPE_CHECKING:
    from diflow.allocator.policies.goodput.pool_values import PoolValues

SERVED_FACTOR = 1e3
"""Bonus for running the job that waited longest, in multiples of the largest weight: more than any other value."""
LONGEST_HORIZON = 7200.0
"""Longest horizon of a move, in seconds."""
LEAST_AHEAD = 60.0
"""Least time that a job is expected to work after a restart, in seconds: one period."""


def value_of(speed: FloatArray, weight: FloatArray, concavity: float) -> FloatArray:
    """The values of these speeds, without bonuses."""
    if concavity == 1.0:
        return weight * np.maximum(speed, 0.0)
    out: FloatArray = weight * np.power(np.maximum(speed, 0.0), concavity)
    return out


def penalty_of(
    snapshot: Snapshot,
    settings: PolicySettings,
    speed: FloatArray,
    left: FloatArray,
    restart_seconds: FloatArray,
    *,
    moved: BoolArray | None,
) -> FloatArray:
    """The fraction of the horizon that is left after the restart cost of a move to configurations of these speeds
    (J×...). `left`, `restart_seconds` (J); `moved` (J): as in `Values`."""
    # The horizon ends with the job or with its next change, which is expected after as much time as has passed since
    # the last one. The restart takes its part of that time: a job whose restart takes most of it would hardly work.
    changed = snapshot.job_changed_seconds
    still = np.where(changed >= 0, snapshot.now_seconds - changed, 0.0)
    lasts = np.maximum(np.minimum(still, LONGEST_HORIZON), settings.horizon_seconds)
    restart = np.where(np.isfinite(restart_seconds), restart_seconds, settings.restart_seconds)
    horizon = np.maximum(lasts - restart, LEAST_AHEAD)
    shape = (-1, *[1] * (speed.ndim - 1))
    ahead = np.minimum(left.reshape(shape) / np.maximum(speed, 1e-9), horizon.reshape(shape))
    out: FloatArray = ahead / (ahead + restart.reshape(shape))
    if moved is not None:
        out[moved] = 1.0
    return out


def bonus_of(
    snapshot: Snapshot,
    settings: PolicySettings,
    present: FloatArray,
    *,
    weight: FloatArray,
    left: FloatArray,
    restart_seconds: FloatArray,
    moved: BoolArray | None,
    may_stop: BoolArray,
    served: BoolArray,
) -> FloatArray:
    """The value of running at all, whatever the speed (J): of jobs that waited too long (`served`), and of running jobs
    what the restart after a stop would cost. So two jobs of nearly equal value do not replace each other.

    `present` (J): speeds of the current placements; the others as in `penalty_of`.
    """
    paid = penalty_of(snapshot, settings, present, left, restart_seconds, moved=moved)
    concavity = settings.concavity
    restart = value_of(present, weight, concavity) - value_of(present * paid, weight, concavity)
    waited = np.where(served, SERVED_FACTOR * weight.max(initial=0.0), 0.0)
    out: FloatArray = np.where(may_stop, restart, 0.0) + waited
    return out


class Values:
    """The values of one snapshot.

    | field | shape | meaning |
    |---|---|---|
    | speed | J×C | speedup of each configuration |
    | present_speed, spread_speed | J | of the current placement; of the first configuration on several nodes |
    | amounts | J×C×R | resources of each configuration |
    | weight, left | J | value of a second of the job's work; its seconds left in the smallest configuration |
    | bonus | J | value of running at all, whatever the speed |
    | penalty | J×C | fraction of the horizon left after the restart cost of a move |
    """

    def __init__(
        self,
        snapshot: Snapshot,
        settings: PolicySettings,
        gangs: Gangs,
        view: View,
        table: Table,
        *,
        served: BoolArray,
        moved: BoolArray | None,
        before: Values | None,
        pooled: PoolValues | None = None,
    ) -> None:
        """`pooled`: the values in each pool, if there are several. `served` (J): jobs that get the bonus. `moved` (J):
        jobs for which resizing is free. `before`: the values of a snapshot from which this one follows by carrying out
        a plan; their weights are used again."""
        self._snapshot, self._gangs, self._table, self._concavity = snapshot, gangs, table, settings.concavity
        self._pooled = pooled
        self.amounts: IntArray = table.replicas[:, :, None] * gangs.request[:, None, :] + gangs.others[:, None, :]
        self.weight: FloatArray
        self.left: FloatArray
        self.bonus: FloatArray
        self.penalty: FloatArray
        if pooled is not None:
            rows, pool = np.arange(snapshot.jobs), np.maximum(view.pool, 0)
            self.speed, self.penalty = pooled.speed[rows, pool], pooled.penalty[rows, pool]
            self.present_speed, self.spread_speed = pooled.present_speed, pooled.spread_speed[rows, pool]
            self.weight, self.left, self.bonus = pooled.weight, pooled.left, pooled.bonus
            return
        base = np.where(table.goodput[:, 0] > 0, table.goodput[:, 0], 1.0)
        self.speed = table.goodput / base[:, None]
        # A broken gang does no work.
        self.present_speed = np.where(broken_gangs(snapshot), 0.0, table.present / base)
        self.spread_speed = table.spread / base
        # A job whose reports allow no configuration at all is still worth starting.
        hopeless = table.goodput.max(axis=1, initial=0.0) <= 0
        self.speed[hopeless, 0] = 1.0
        self.spread_speed[hopeless] = 1.0
        self.present_speed[hopeless & (view.held > 0)] = 1.0
        if before is None:
            self.weight, self.left = weights(snapshot, settings, table, self.speed, self.amounts)
        else:
            self.weight, self.left = before.weight, before.left
        self.penalty = penalty_of(snapshot, settings, self.speed, self.left, table.restart_seconds, moved=moved)
        self.bonus = bonus_of(
            snapshot, settings, self.present_speed,
            weight=self.weight, left=self.left, restart_seconds=table.restart_seconds,
            moved=moved, may_stop=view.free_to_move, served=served,
        )  # fmt: skip

    def of(self, speed: FloatArray, weight: FloatArray) -> FloatArray:
        """The values of these speeds, without bonuses."""
        return value_of(speed, weight, self._concavity)

    def present(self) -> FloatArray:
        """Value of the current allocation of each job, without bonuses (J)."""
        return self.of(self.present_speed, self.weight)

    def present_total(self) -> float:
        """Value of the current allocation."""
        return float((self.present() + np.where(self.present_speed > 0, self.bonus, 0.0)).sum())

    def column_of(self, count: IntArray | FloatArray, jobs: IntArray) -> IntArray:
        """The largest configuration of each of `jobs` with at most so many elastic replicas; 0 if there is none."""
        replicas = self._table.replicas[jobs]
        out: IntArray = np.maximum(((replicas <= count[:, None]) & (replicas > 0)).sum(axis=1) - 1, 0)
        return out

    def total(self, plan: Plan) -> float:
        """Value of a plan: the sum of the jobs' values, restart costs included."""
        snapshot, gangs = self._snapshot, self._gangs
        if snapshot.jobs == 0:
            return 0.0
        rows, roles = np.arange(snapshot.jobs), snapshot.roles
        count = np.bincount(plan.role, weights=plan.count, minlength=roles)[gangs.elastic].astype(np.int64)
        nodes = np.bincount(plan.role, minlength=roles)[gangs.elastic]
        if self._pooled is None:
            at = self.column_of(count, rows)
            made, penalty = self.speed[rows, at], self.penalty[rows, at]
            spread_speed, per_node = self.spread_speed, gangs.per_node
        else:
            made, penalty, spread_speed, per_node = self._pooled.under(plan, gangs, count)
        speed = np.where(count > 0, made, 0.0)
        spread = (count == gangs.low) & (nodes > 1) & (count <= per_node)
        speed = np.where(spread, spread_speed, speed)
        resized = plan.action == RESIZE
        paid = np.where(resized & snapshot.job_preemptible, penalty, 1.0)
        speed = np.where(plan.action == KEEP, self.present_speed, speed * paid)
        # Growth of a job that is not preemptible was asked for by its user: it never counts as a loss.
        asked = resized & ~snapshot.job_preemptible
        speed = np.where(asked, np.maximum(speed, self.present_speed), speed)
        return float((self.of(speed, self.weight) + np.where(speed > 0, self.bonus, 0.0)).sum())

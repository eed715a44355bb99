"""What each job's configurations are worth.

The value of a job is w·s^p. s is its speedup, at the batch size with the best goodput, over its smallest configuration
in an average pool; w the value of a second of its work (`price.py`). A move multiplies s by the fraction of the horizon
left after the restart cost. A stop costs what a move of the job to its present configuration would cost: it has to
start again later.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.goodput.gangs import Gangs, View, pools_of
from diflow.allocator.policies.goodput.price import seconds_left, unit_costs, weighted
from diflow.allocator.policies.goodput.table import Table
from diflow.allocator.policies.settings import PolicySettings
from diflow.allocator.policies.waiting import broken_gangs

SERVED_FACTOR = 1e3
"""Bonus for running the job that waited longest, in multiples of the largest weight: more than any other value."""
LONGEST_HORIZON = 7200.0
"""Longest horizon of a move, in seconds."""
LEAST_AHEAD = 60.0
"""Least time that a job is expected to work after a restart, in seconds: one period."""


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """The values of one snapshot.

    | field | shape | meaning |
    |---|---|---|
    | speed | J×P×C | speedup of each configuration |
    | amounts | J×P×C×R | resources of each configuration |
    | penalty | J×P×C | fraction of the horizon left after the restart cost of a move |
    | spread_speed | J×P | speedup of the first configuration on several nodes |
    | present_speed | J | speedup of the current placement |
    | weight, left | J | value of a second of the job's work; its seconds left in the smallest configuration |
    | bonus | J | value of running at all, whatever the speed |
    | concavity | | the exponent p |
    """

    speed: FloatArray
    amounts: IntArray
    penalty: FloatArray
    spread_speed: FloatArray
    present_speed: FloatArray
    weight: FloatArray
    left: FloatArray
    bonus: FloatArray
    concavity: float

    def of(self, pool: IntArray) -> Values:
        """The values of each job in one of the pools (J): the arrays lack the axis P."""
        at = np.arange(len(pool)), pool
        return replace(
            self,
            speed=self.speed[at],
            amounts=self.amounts[at],
            penalty=self.penalty[at],
            spread_speed=self.spread_speed[at],
        )

    def without_bonus(self, speed: FloatArray) -> FloatArray:
        """The values of these speeds (J×...), without bonuses."""
        return _value(speed, self.weight, self.concavity)

    def with_bonus(self, speed: FloatArray) -> FloatArray:
        """The values of these speeds (J×...), with the bonuses of running at all."""
        return self.without_bonus(speed) + _beside(self.bonus, speed)

    def present(self) -> FloatArray:
        """Value of the current allocation of each job, without bonuses (J)."""
        return self.without_bonus(self.present_speed)

    def present_total(self) -> float:
        """Value of the current allocation."""
        return self.total(self.present_speed)

    def total(self, speed: FloatArray) -> float:
        """The value of jobs with these speeds (J); 0: it does not run."""
        return float((self.without_bonus(speed) + np.where(speed > 0, self.bonus, 0.0)).sum())


def values_of(
    snapshot: Snapshot,
    settings: PolicySettings,
    gangs: Gangs,
    view: View,
    table: Table,
    *,
    served: BoolArray,
    moved: BoolArray | None,
    before: Values | None,
) -> Values:
    """`served` (J): jobs that get the bonus for waiting too long. `moved` (J): jobs for which resizing is free.
    `before`: the values of a snapshot from which this one follows by carrying out a plan; their weights are used
    again."""
    speed = table.goodput / table.base[:, None, None]
    spread_speed = table.spread / table.base[:, None]
    # A broken gang does no work.
    present_speed = np.where(broken_gangs(snapshot), 0.0, table.present / table.base)
    # A job whose reports allow no configuration at all is still worth starting.
    hopeless = table.goodput.max(axis=(1, 2), initial=0.0) <= 0
    speed[hopeless, :, 0] = spread_speed[hopeless] = table.able[hopeless]
    present_speed[hopeless & (view.held > 0)] = 1.0
    amounts = table.replicas[..., None] * gangs.request[:, None, None, :] + gangs.others[:, None, None, :]
    if before is None:
        left = seconds_left(snapshot, table.left_seconds)
        weight = _weights(snapshot, settings, table, speed=speed, amounts=amounts, left=left)
    else:
        weight, left = before.weight, before.left
    # Of running jobs what the restart after a stop would cost, so that two jobs of nearly equal value do not replace
    # each other.
    penalty = partial(_penalty, left=left, restart_seconds=table.restart_seconds, moved=moved)
    paid = penalty(snapshot, settings, present_speed)
    restart = _value(present_speed, weight, settings.concavity)
    restart -= _value(present_speed * paid, weight, settings.concavity)
    waited = np.where(served, SERVED_FACTOR * weight.max(initial=0.0), 0.0)
    return Values(
        speed=speed,
        amounts=amounts,
        penalty=penalty(snapshot, settings, speed),
        spread_speed=spread_speed,
        present_speed=present_speed,
        weight=weight,
        left=left,
        bonus=np.where(view.free_to_move, restart, 0.0) + waited,
        concavity=settings.concavity,
    )


def _weights(
    snapshot: Snapshot,
    settings: PolicySettings,
    table: Table,
    *,
    speed: FloatArray,
    amounts: IntArray,
    left: FloatArray,
) -> FloatArray:
    """The value of a second of each job's work (J). It depends only on what carrying out a plan does not change;
    otherwise each plan would cause the next."""
    pools = pools_of(snapshot)
    whole = pools.sums(np.maximum(snapshot.capacity(), 0) * snapshot.node_open[:, None])
    share = (amounts / np.maximum(whole, 1)[:, None, :]).max(axis=3)
    usable = table.anyway & (snapshot.job_queue >= 0)[:, None, None]
    flat = snapshot.jobs, speed.shape[1] * speed.shape[2]
    cost, pace = unit_costs(speed.reshape(flat), share.reshape(flat), usable.reshape(flat), pools=pools.count)
    return weighted(snapshot, settings, left, cost, pace)


def _penalty(
    snapshot: Snapshot,
    settings: PolicySettings,
    speed: FloatArray,
    *,
    left: FloatArray,
    restart_seconds: FloatArray,
    moved: BoolArray | None,
) -> FloatArray:
    """The fraction of the horizon that is left after the restart cost of a move to configurations of these speeds
    (J×...). The others (J) as in `Values`, `Table` and `values_of`."""
    # The horizon ends with the job or with its next change, which is expected after as much time as has passed since
    # the last one. The restart takes its part of that time: a job whose restart takes most of it would hardly work.
    changed = snapshot.job_changed_seconds
    still = np.where(changed >= 0, snapshot.now_seconds - changed, 0.0)
    lasts = np.maximum(np.minimum(still, LONGEST_HORIZON), settings.horizon_seconds)
    restart = np.where(np.isfinite(restart_seconds), restart_seconds, settings.restart_seconds)
    horizon = np.maximum(lasts - restart, LEAST_AHEAD)
    ahead = np.minimum(_beside(left, speed) / np.maximum(speed, 1e-9), _beside(horizon, speed))
    out: FloatArray = ahead / (ahead + _beside(restart, speed))
    if moved is not None:
        out[moved] = 1.0
    return out


def _value(speed: FloatArray, weight: FloatArray, concavity: float) -> FloatArray:
    """The values of these speeds (J×...), without bonuses."""
    faster = np.maximum(speed, 0.0)
    out: FloatArray = _beside(weight, speed) * (faster if concavity == 1.0 else np.power(faster, concavity))
    return out


def _beside(by_job: FloatArray, other: FloatArray) -> FloatArray:
    """An array of the jobs (J) with as many axes as the other one (J×...)."""
    return by_job.reshape(-1, *[1] * (other.ndim - 1))

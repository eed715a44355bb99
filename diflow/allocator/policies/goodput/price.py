"""The value of a second of a job's work, from the price at which the jobs together demand exactly the whole cluster.

Each second that a job is in the system costs 1, and each second of the whole cluster costs `price`. A job that holds
the fraction c of the cluster and runs s times as fast as in its smallest configuration then pays (1 + price·c)/s per
unit of work, and takes the configuration where that is least: a small one at a high price, a large one at a low price.
At the clearing price, demand equals capacity. The cost of a job's unit of work at that price is the value of its work:
less for a job that scales well, which is cheap to finish, than for one that does not.
"""

from __future__ import annotations

import math

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.goodput.table import Table
from diflow.allocator.policies.settings import PolicySettings

ITERATIONS = 14
"""Bisections of the range of prices: to within a thousandth."""
LOWEST = 1e-2
MOST_A_JOB = 8.0
"""The highest price per job: with speedups k^p the clearing price is p/(1-p) per job."""
YOUNG_SECONDS = 60.0
"""Least time that any job is assumed to have left: one period."""
_NEVER = 1e-30
MOST_PRIORITIES = 32
"""Steps of priority that a weight distinguishes."""
WIDEST_STEP = 8
"""Most steps between neighbouring priorities, if their range exceeds MOST_PRIORITIES."""


def weights(
    snapshot: Snapshot, settings: PolicySettings, table: Table, speed: FloatArray, amounts: IntArray
) -> tuple[FloatArray, FloatArray]:
    """(value of a second of each job's work (J), seconds left in its smallest configuration (J)).

    `speed` (J×C): of each configuration of the table; `amounts` (J×C×R): its resources. The values depend only on what
    carrying out a plan does not change; otherwise each plan would cause the next.
    """
    left = seconds_left(snapshot, table.left_seconds)
    total = np.maximum(snapshot.capacity(), 0)[snapshot.node_open].sum(axis=0)
    share = (amounts / np.maximum(total, 1)).max(axis=2)
    cost, pace = unit_costs(speed, share, table.anyway & (snapshot.job_queue >= 0)[:, None])
    return weighted(snapshot, settings, left, cost, pace), left


def weighted(
    snapshot: Snapshot, settings: PolicySettings, left: FloatArray, cost: FloatArray, pace: FloatArray
) -> FloatArray:
    """The value of a second of each job's work (J). `cost`, `pace` (J): of a unit of it, and the speed of the cheapest
    configuration; `left` (J): seconds left in the smallest one."""
    weight = cost * ahead_of(np.maximum(left / pace, YOUNG_SECONDS), snapshot, settings.queue_ahead)
    if settings.patience > 0:
        age = np.maximum(snapshot.now_seconds - snapshot.job_created_seconds, 0.0)
        weight = weight * np.exp2(settings.patience * age / (age + left))
    priority = snapshot.job_priority - snapshot.job_priority.min(initial=0)
    if priority.max(initial=0) > MOST_PRIORITIES:
        # PriorityClasses are often hundreds apart, and clipping would merge most of them.
        levels, at = np.unique(priority, return_inverse=True)
        steps = np.minimum(np.diff(levels, prepend=levels[:1]), WIDEST_STEP)
        priority = np.minimum(np.cumsum(steps)[at], MOST_PRIORITIES)
    out: FloatArray = weight * np.power(settings.priority_factor, priority)
    return out


def unit_costs(speed: FloatArray, share: FloatArray, usable: BoolArray) -> tuple[FloatArray, FloatArray]:
    """(cost of a unit of each job's work (J), speed of its cheapest configuration (J)) at the clearing price.

    `speed`, `share`, `usable`: J×C; `share` is a configuration's fraction of the cluster. A job without a usable
    configuration has cost 1 and speed 1.
    """
    jobs, width = speed.shape
    some = usable & (speed > 0)
    pace = np.where(some, speed, _NEVER)
    first = np.arange(jobs) * width
    low, high = LOWEST, max(MOST_A_JOB * jobs, 2 * LOWEST)
    asks: BoolArray = np.any(some, axis=1)
    asking = share * asks[:, None]
    for _ in range(ITERATIONS):
        middle = math.sqrt(low * high)
        if asking.take(first + _cheapest(pace, share, middle)).sum() > 1.0:
            low = middle
        else:
            high = middle
    at = first + _cheapest(pace, share, high)
    found = pace.take(at)
    cost = (1.0 + high * share.take(at)) / found
    return np.where(asks, cost, 1.0), np.where(asks, found, 1.0)


def _cheapest(pace: FloatArray, share: FloatArray, price: float) -> IntArray:
    out: IntArray = ((1.0 + price * share) / pace).argmin(axis=1)
    return out


def seconds_left(snapshot: Snapshot, known: FloatArray) -> FloatArray:
    """Seconds left of each job in its smallest configuration (J), at least one period. `known` (J): as far as they are
    known, else NaN."""
    # Without progress reports: as much again as its service so far, as for heavy-tailed durations. In steps of a factor
    # of four, or ranks would change each cycle, and each change costs a restart.
    unknown = np.maximum(snapshot.job_service_seconds, YOUNG_SECONDS)
    unknown = YOUNG_SECONDS * np.power(4.0, np.floor(np.log(unknown / YOUNG_SECONDS) / np.log(4.0)))
    out: FloatArray = np.where(np.isfinite(known), np.maximum(known, YOUNG_SECONDS), unknown)
    return out


def ahead_of(left: FloatArray, snapshot: Snapshot, exponent: float) -> FloatArray:
    """Factor for the jobs behind each job (J): [i^q - (i-1)^q]^(1/q) for the job with the i-th most seconds left.

    The derivative of the optimal total completion time with respect to a job's size if all speedups are k^(1-1/q)
    (heSRPT, Berg et al. 2020). `exponent` is q.
    """
    order = np.lexsort((np.arange(snapshot.jobs), -snapshot.job_created_seconds, -left))
    place = np.empty(snapshot.jobs)
    place[order] = np.arange(1, snapshot.jobs + 1)
    out: FloatArray = np.power(np.power(place, exponent) - np.power(place - 1, exponent), 1.0 / exponent)
    return out

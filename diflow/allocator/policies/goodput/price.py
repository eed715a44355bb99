"""The value of a second of a job's work, from the prices at which the jobs together demand exactly the whole cluster.

Each second that a job is in the system costs 1, and each second of a whole pool of nodes its price; with one pool, that
is the whole cluster. A job that holds the fraction c of a pool and runs s times as fast as in its smallest
configuration then pays (1 + price·c)/s per unit of work, and takes the configuration where that is least: a small one
at a high price, a large one at a low price. At the clearing price, demand equals capacity. The cost of a job's unit of
work at that price is the value of its work: less for a job that scales well, which is cheap to finish, than for one
that does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.settings import PolicySettings

ITERATIONS = 14
"""Bisections of the range of prices of a single pool: to within a thousandth."""
ROUNDS = 30
"""Steps in which the prices of several pools approach the clearing ones: then they change by less than 3 % a step."""
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


def unit_costs(
    speed: FloatArray, share: FloatArray, usable: BoolArray, *, pools: int = 1
) -> tuple[FloatArray, FloatArray]:
    """(cost of a unit of each job's work (J), speed of its cheapest configuration (J)) at the clearing prices.

    `speed`, `share`, `usable`: J×(P·C), the configurations in one pool after those in another; `share` is a
    configuration's fraction of its pool. A job without a usable configuration has cost 1 and speed 1.
    """
    jobs, width = speed.shape
    some = usable & (speed > 0)
    asks: BoolArray = np.any(some, axis=1)
    pace, asked = np.where(some, speed, _NEVER), np.where(some, share, 0.0)
    first, pool_of = np.arange(jobs) * width, np.repeat(np.arange(pools), width // pools)

    def cheapest(price: FloatArray) -> IntArray:
        out: IntArray = ((1.0 + price[pool_of] * asked) / pace).argmin(axis=1)
        return out

    def demand(price: FloatArray) -> FloatArray:
        at = cheapest(price)
        return sums(pool_of[at], asked.take(first + at), pools)

    high = max(MOST_A_JOB * jobs, 2 * LOWEST)
    price = _bisected(demand, high) if pools == 1 else _approached(demand, high, pools)
    at = cheapest(price)
    found = pace.take(first + at)
    cost = (1.0 + price[pool_of[at]] * asked.take(first + at)) / found
    return np.where(asks, cost, 1.0), np.where(asks, found, 1.0)


Demand = Callable[[FloatArray], FloatArray]
"""The fraction of each pool that is asked for at these prices (P each)."""


def _bisected(demand: Demand, high: float) -> FloatArray:
    """The lowest price of a single pool at which no more is asked for than it has."""
    low = LOWEST
    for _ in range(ITERATIONS):
        middle = math.sqrt(low * high)
        if demand(np.array([middle]))[0] > 1.0:
            low = middle
        else:
            high = middle
    return np.array([high])


def _approached(demand: Demand, high: float, pools: int) -> FloatArray:
    """Prices of several pools, each at most `high`, near those at which as much is asked for of each as it has."""
    price = np.full(pools, np.sqrt(LOWEST * high))
    for turn in range(ROUNDS):
        price = next_price(price, demand(price), turn)
        price = np.clip(price * min(1.0, high / price.max()), LOWEST / 10, None)
    return price


def next_price(price: FloatArray, demand: FloatArray, turn: int) -> FloatArray:
    """The prices after this demand, in fractions of each pool: higher where more than the whole pool is asked for."""
    step = 0.8 / (1.0 + turn / 4.0)
    out: FloatArray = price * np.power(np.clip((demand + 0.05) / 1.05, 0.1, 10.0), step)
    return out


def sums(pool: IntArray, share: FloatArray, pools: int) -> FloatArray:
    """The sum of the shares in each pool (P)."""
    return np.bincount(pool, weights=share, minlength=pools).astype(np.float64)


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

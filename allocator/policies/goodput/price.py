"""What a second of a job's work is worth, from the price at which all jobs together ask for just the whole cluster.

Each job that is there costs its owner a second a second. Let the whole cluster cost `price` a second as well: then a
job that holds the part c of it and runs s times as fast as at its smallest has its work done for (1 + price·c)/s a
unit, and takes the configuration where that is least. At a high price that is a small one, at a low price a large one;
at the clearing price the jobs ask for as much as there is. What its unit of work costs there is what the work of a job
is worth to all: less for one that scales well, which will be cheap to finish, than for one that hardly does.
"""

from __future__ import annotations

import math

import numpy as np

from diflow.allocator.model.arrays import BoolArray, FloatArray, IntArray
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.goodput.table import Table

ITERATIONS = 14
"""Halvings of the range of prices: to within a thousandth."""
LOWEST = 1e-2
MOST_A_JOB = 8.0
"""The highest price, in seconds a second for each job: with speedups k^p the clearing price is p/(1-p) a job."""
YOUNG_SECONDS = 60.0
"""What a job of which nothing is known is taken to have left, at least: one period."""
_NEVER = 1e-30


def unit_costs(speed: FloatArray, share: FloatArray, usable: BoolArray) -> tuple[FloatArray, FloatArray]:
    """(cost of a unit of each job's work (J), speed at which it would run (J)) at the clearing price.

    `speed`, `share`, `usable`: J×C; `share` is the part of the cluster that a configuration takes. A job without a
    usable configuration counts as one that always runs at speed 1.
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


def seconds_left(snapshot: Snapshot, table: Table) -> FloatArray:
    """Seconds that each job has left in its smallest configuration, at least one period."""
    # Nothing known of the end: as much again as it has had so far, which is what heavy tails say.
    # In steps of four, or ranks would change each cycle, and each change costs a restart.
    unknown = np.maximum(snapshot.job_service_seconds, YOUNG_SECONDS)
    unknown = YOUNG_SECONDS * np.power(4.0, np.floor(np.log(unknown / YOUNG_SECONDS) / np.log(4.0)))
    out: FloatArray = np.where(np.isfinite(table.left_seconds), np.maximum(table.left_seconds, YOUNG_SECONDS), unknown)
    return out


def ahead_of(left: FloatArray, snapshot: Snapshot, exponent: float) -> FloatArray:
    """How much later everybody ends for each second that a job has left: [i^q - (i-1)^q]^(1/q), i from the longest.

    That is the derivative of the optimal total completion time when all speedups are k^(1-1/q) (heSRPT).
    """
    order = np.lexsort((np.arange(snapshot.jobs), -snapshot.job_created_seconds, -left))
    place = np.empty(snapshot.jobs)
    place[order] = np.arange(1, snapshot.jobs + 1)
    out: FloatArray = np.power(np.power(place, exponent) - np.power(place - 1, exponent), 1.0 / exponent)
    return out

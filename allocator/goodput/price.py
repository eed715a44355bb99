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

from diflow.allocator.arrays import BoolArray, FloatArray, IntArray

ITERATIONS = 14
"""Halvings of the range of prices: to within a thousandth."""
LOWEST = 1e-2
MOST_A_JOB = 8.0
"""The highest price, in seconds a second for each job: with speedups k^p the clearing price is p/(1-p) a job."""
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

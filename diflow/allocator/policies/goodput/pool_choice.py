"""Which pool of nodes each job uses in a plan.

It follows from a price for each pool, in multiples of the whole pool: at the clearing prices, what all jobs choose
together is what the pools have. A job chooses the pool and the number of replicas together, so a fast pool goes to the
jobs that gain most from it, and the others use the slow ones.
"""

from __future__ import annotations

import numpy as np

from diflow.allocator.model.arrays import FloatArray, IntArray
from diflow.allocator.policies.goodput.knapsack import exact_columns
from diflow.allocator.policies.goodput.optimise import Problem, greedy, in_use
from diflow.allocator.policies.goodput.price import ROUNDS, next_price, sums

MOST_WORK = 1500
"""Jobs × configurations up to which the counts are solved exactly, as in `targets.py`."""
MOST_MOVES = 16
"""Changes of single jobs after that: 0.1 ms each."""
MOST_OUTSIDE = 4
"""Jobs without a place for which an exchange is looked for at a time, those of the largest value."""
LEAST_GAIN = 1e-9
"""Of the value of the whole, below which a change is rounding."""


def choose(value: FloatArray, share: FloatArray) -> IntArray:
    """A pool for each job (J) at prices at which the jobs ask for what the pools have.

    `value` (J×P×C): of each configuration, not finite where impossible; `share` (J×P×C): its fraction of what is there
    in the pool.
    """
    jobs, pools, width = value.shape
    worth = np.where(np.isfinite(value), value, -np.inf).reshape(jobs, pools * width)
    part = share.reshape(jobs, pools * width)
    pool_of = np.repeat(np.arange(pools), width)
    first = np.arange(jobs) * (pools * width)
    total = float(np.maximum(worth.max(axis=1, initial=0.0), 0.0).sum())
    if total <= 0:
        return np.zeros(jobs, dtype=np.int64)
    price = np.full(pools, total / pools)
    at = np.zeros(jobs, dtype=np.int64)
    for turn in range(ROUNDS):
        at = (worth - price[pool_of] * part).argmax(axis=1)
        gains = worth.take(first + at) - price[pool_of[at]] * part.take(first + at)
        taken = gains > 0
        demand = sums(pool_of[at[taken]], part.take((first + at)[taken]), pools)
        price = next_price(price, demand, turn)
    return pool_of[at]


def settle(
    value: FloatArray, amount: IntArray, share: FloatArray, capacity: IntArray, pool: IntArray
) -> tuple[IntArray, IntArray, float]:
    """(a choice of pools at least as good as `pool` (J), the configuration of each job or -1 (J), their value).

    Counts are chosen for `pool` as in a plan. Then, one after the other, the job that gains most takes another
    configuration that fits in what is left, in any pool: prices leave gaps, since jobs are not divisible. If there is
    none, a job without a place takes that of another one which is worth less, or a part of it.
    `value`, `share`: as for `choose`; `amount` (J×P×C×R), `capacity` (P×R).
    """
    rows = np.arange(len(pool))
    problem = Problem(
        value[rows, pool],
        amount[rows, pool],
        np.maximum(share[rows, pool], 1e-12 * np.arange(1, value.shape[2] + 1)),
        capacity,
        pool[:, None],
        np.zeros(len(pool)),
    )
    column, _ = exact_columns(problem, most_work=MOST_WORK)
    if column is None:
        column = greedy(problem)
    pool, column = pool.copy(), column.copy()
    left = capacity - in_use(problem, column)
    jobs, pools, width = value.shape
    needed = amount > 0
    for _ in range(MOST_MOVES):
        at = np.maximum(column, 0)
        now = np.where(column >= 0, value[rows, pool, at], 0.0)
        held = np.where(column[:, None] >= 0, amount[rows, pool, at], 0)
        room = np.broadcast_to(left[None], (jobs, pools, left.shape[1])).copy()
        room[rows, pool] += held
        fits = np.all((amount <= room[:, :, None, :]) | ~needed, axis=3)
        gain = np.where(fits & np.isfinite(value), value - now[:, None, None], -np.inf)
        best = int(gain.argmax())
        job, there, col = best // (pools * width), best // width % pools, best % width
        if not gain[job, there, col] > LEAST_GAIN * abs(float(now.sum())):
            found = _exchange(value, amount, left, pool, column)
            if found is None:
                break
            victim, column[victim], job, there, col = found
            left[pool[victim]] += held[victim]
            if column[victim] >= 0:
                left[pool[victim]] -= amount[victim, pool[victim], column[victim]]
            held[job] = 0
        left[pool[job]] += held[job]
        left[there] -= amount[job, there, col]
        pool[job], column[job] = there, col
    return pool, column, float(np.where(column >= 0, value[rows, pool, np.maximum(column, 0)], 0.0).sum())


def _exchange(
    value: FloatArray, amount: IntArray, left: IntArray, pool: IntArray, column: IntArray
) -> tuple[int, int, int, int, int] | None:
    """The best exchange by which a job without a place gets its smallest configuration, and one other job gives up some
    of its replicas or all: (that job, its new configuration or -1, the job without a place, its pool, its
    configuration). None if no exchange is a gain."""
    rows = np.arange(len(pool))
    at = np.maximum(column, 0)
    holds = column >= 0
    now = np.where(holds, value[rows, pool, at], 0.0)
    held = np.where(holds[:, None], amount[rows, pool, at], 0)
    # Of each job with a place: nothing, and each of its configurations in its pool.
    kept = np.concatenate([np.zeros((len(pool), 1, held.shape[1]), dtype=np.int64), amount[rows, pool]], axis=1)
    worth = np.concatenate([np.zeros((len(pool), 1)), value[rows, pool]], axis=1)
    loss = np.where(holds[:, None] & np.isfinite(worth), now[:, None] - worth, np.inf)
    free = held[:, None, :] - kept + left[pool][:, None, :]
    outside = np.flatnonzero(~holds & np.isfinite(value).any(axis=(1, 2)))
    top = outside[
        np.argsort(-np.where(np.isfinite(value[outside]), value[outside], 0.0).max(axis=(1, 2)), kind="stable")
    ]
    best, out = LEAST_GAIN * abs(float(now.sum())), None
    for job in top[:MOST_OUTSIDE].tolist():
        for there in range(value.shape[1]):
            some = np.flatnonzero(np.isfinite(value[job, there]))
            if not len(some):
                continue
            need = amount[job, there, some[0]]
            enough = np.all((free >= need) | (need == 0), axis=2) & (pool == there)[:, None]
            cost = np.where(enough, loss, np.inf)
            cheapest = int(cost.argmin())
            gain = float(value[job, there, some[0]]) - float(cost.ravel()[cheapest])
            if gain > best:
                victim, new = divmod(cheapest, cost.shape[1])
                best, out = gain, (victim, new - 1, job, there, int(some[0]))
    return out

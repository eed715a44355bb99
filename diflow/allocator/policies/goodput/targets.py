"""The target replicas of each job: the optimisation problem of a case, and its solution."""

from __future__ import annotations

import numpy as np

from diflow.allocator.model.arrays import IntArray
from diflow.allocator.policies.goodput.case import Case
from diflow.allocator.policies.goodput.knapsack import exact_columns
from diflow.allocator.policies.goodput.optimise import Problem, greedy, improve, in_use

EXACT_WORK = 1500
"""Jobs × configurations up to which the counts are solved exactly: about 1 ms."""


def problem_of(case: Case) -> Problem:
    """The values and resources of all configurations, and the groups of capacity that they draw on."""
    snapshot, pool, values = case.snapshot, case.view.pool, case.values
    # Groups of capacity: the pools if there are several, the queues if they have quotas, and last the cluster.
    capacity = [case.free.sum(axis=0)[None, :]]
    groups = [np.zeros(snapshot.jobs, dtype=np.int64)]
    if case.quota.most is not None:
        used = snapshot.demand_by_job(snapshot.held_by_role())
        left = case.quota.most.copy()
        fixed = ~case.view.free_to_move & (snapshot.job_queue >= 0)
        np.subtract.at(left, snapshot.job_queue[fixed], used[fixed])
        capacity.insert(0, np.maximum(left, 0))
        groups.append(snapshot.job_queue)
        groups[0] = groups[0] + snapshot.queues
    if (pool >= 0).any():
        capacity.insert(0, case.pools.sums(case.free))
        groups = [np.where(group >= 0, group + case.pools.count, -1) for group in groups]
        groups[0] = np.where(pool >= 0, pool, groups[0])
    share = values.amounts / np.maximum(capacity[-1][0], 1)
    cost = np.maximum(share.max(axis=2), 1e-12 * np.maximum(case.table.replicas, 1))
    value = case.worth[np.arange(snapshot.jobs), np.maximum(pool, 0)]
    return Problem(
        value, values.amounts, cost, np.concatenate(capacity), np.column_stack(groups), np.zeros(snapshot.jobs)
    )


def targets(case: Case, problem: Problem) -> tuple[IntArray, float]:
    """(target replicas of each job's elastic role (J), an upper bound of the value of every choice)."""
    if case.column is not None and case.quota.most is None:
        return replicas_of(case, case.column), np.inf
    column, bound = exact_columns(problem, most_work=EXACT_WORK)
    if (case.view.pool >= 0).any():
        bound = np.inf  # a job may be worth more in another pool
    if column is None:
        column = greedy(problem)
        left = problem.capacity - in_use(problem, column)
        rounds = 12 if case.snapshot.jobs <= 1000 else 2
        column = improve(problem, column, left, movable=case.view.free_to_move, rounds=rounds)
    return replicas_of(case, column), bound


def replicas_of(case: Case, column: IntArray) -> IntArray:
    """Replicas of these columns (J); jobs without one get nothing, or keep what they hold if they may not change."""
    picked = case.table.replicas[np.arange(len(column)), np.maximum(column, 0)]
    return np.where(column >= 0, picked, np.where(case.view.free_to_move, 0, case.view.held))

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
    snapshot, view, table, gangs, values = case.snapshot, case.view, case.table, case.gangs, case.values
    free = snapshot.capacity()
    stays = ~view.free_to_move[snapshot.role_job[snapshot.held_role]]
    if stays.any():
        held = (snapshot.held_role[stays], snapshot.held_node[stays], snapshot.held_count[stays])
        free = free - snapshot.usage(*held)
    free = np.maximum(free, 0)
    free = free * snapshot.node_open[:, None]
    # Groups of capacity: the pools if there are several, the queues if they have quotas, and last the cluster.
    capacity = [free.sum(axis=0)[None, :]]
    groups = [np.zeros(snapshot.jobs, dtype=np.int64)]
    if case.quota.most is not None:
        used = snapshot.demand_by_job(snapshot.held_by_role())
        left = case.quota.most.copy()
        fixed = ~view.free_to_move & (snapshot.job_queue >= 0)
        np.subtract.at(left, snapshot.job_queue[fixed], used[fixed])
        capacity.insert(0, np.maximum(left, 0))
        groups.append(snapshot.job_queue)
        groups[0] = groups[0] + snapshot.queues
    if (view.pool >= 0).any():
        pools = len(snapshot.pool_names)
        of_pool = snapshot.node_pool == np.arange(pools)[:, None]
        capacity.insert(0, np.stack([free[mine].sum(axis=0) for mine in of_pool]))
        groups = [np.where(group >= 0, group + pools, -1) for group in groups]
        groups[0] = np.where(view.pool >= 0, view.pool, groups[0])
    share = values.amounts / np.maximum(capacity[-1][0], 1)
    cost = np.maximum(share.max(axis=2), 1e-12 * np.maximum(table.replicas, 1))
    running = view.running[:, None]
    speed = np.where(running, values.speed * values.penalty, values.speed)
    same = (table.replicas == view.held[:, None]) & running & ~view.changes_pool[:, None]
    speed = np.where(same, values.present_speed[:, None], speed)
    value = values.of(speed, values.weight[:, None]) + values.bonus[:, None]
    usable = (table.replicas > 0) & (speed > 0) & view.free_to_move[:, None]
    # A job that cannot be resized later starts at its desired size or its minimum.
    rigid = ~snapshot.job_preemptible[:, None] & (table.replicas != gangs.desired[:, None])
    usable &= ~(rigid & (table.replicas != gangs.low[:, None]))
    value = np.where(usable, value, -np.inf)
    return Problem(
        value, values.amounts, cost, np.concatenate(capacity), np.column_stack(groups), np.zeros(snapshot.jobs)
    )


def targets(case: Case, problem: Problem) -> tuple[IntArray, float]:
    """(target replicas of each job's elastic role (J), an upper bound of the value of every choice)."""
    if case.pooled is not None and case.pooled.column is not None and case.quota.most is None:
        return replicas_of(case, case.pooled.column), np.inf
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

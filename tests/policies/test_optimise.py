"""Replica counts: the greedy over hulls, the exact knapsack, and fixed points."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from diflow.allocator.model.arrays import IntArray
from diflow.allocator.policies.goodput.case import Case
from diflow.allocator.policies.goodput.knapsack import exact_columns
from diflow.allocator.policies.goodput.optimise import Problem, greedy
from diflow.allocator.policies.goodput.solver import Solver
from diflow.allocator.policies.goodput.table import Tables
from diflow.allocator.policies.settings import PolicySettings
from tests.policies.generators import snapshots


def worth(problem: Problem, column: IntArray) -> float:
    """Sum of the values of these columns."""
    rows = np.arange(len(column))
    return float(np.where(column >= 0, problem.value[rows, np.maximum(column, 0)], problem.floor).sum())


def random_problem(rng: np.random.Generator) -> Problem:
    jobs, width, resources, kinds = (int(n) for n in rng.integers(1, (40, 8, 3, 4)))
    value = np.sort(rng.random((jobs, width)), axis=1) * rng.random((jobs, 1))
    value[rng.random((jobs, width)) < 0.1] = -np.inf
    groups = np.column_stack(
        [np.where(rng.random(jobs) < 0.8, rng.integers(0, 4, jobs) + 4 * k, -1) for k in range(kinds)]
    )
    return Problem(
        value,
        np.cumsum(rng.integers(0, 3, (jobs, width, resources)), axis=1),
        np.cumsum(rng.random((jobs, width)) + 0.01, axis=1),
        rng.integers(0, 30, (4 * kinds, resources)),
        groups,
        np.zeros(jobs),
    )


@pytest.mark.parametrize("seed", range(10))
def test_the_greedy_stays_within_the_capacity_of_every_group(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(30):
        problem = random_problem(rng)
        column = greedy(problem)
        for k in range(problem.groups.shape[1]):
            for group in range(len(problem.capacity)):
                mine = (problem.groups[:, k] == group) & (column >= 0)
                used = problem.amount[mine, column[mine]].sum(axis=0)
                assert ((used <= problem.capacity[group]) | (used == 0)).all()


def test_a_job_whose_largest_configuration_fits_nowhere_has_the_smaller_ones() -> None:
    replicas = np.array([[1, 2, 4]])
    problem = Problem(
        value=np.array([[1.0, 1.8, 3.0]]),
        amount=replicas[:, :, None],
        cost=replicas.astype(np.float64),
        capacity=np.array([[3]]),
        groups=np.zeros((1, 1), dtype=np.int64),
        floor=np.zeros(1),
    )
    assert greedy(problem).tolist() == [1]


@pytest.mark.parametrize("seed", range(5))
def test_the_knapsack_finds_what_trying_everything_finds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(20):
        jobs, width = int(rng.integers(1, 6)), int(rng.integers(1, 4))
        value = np.where(rng.random((jobs, width)) < 0.15, -np.inf, rng.random((jobs, width)).cumsum(axis=1))
        amount = rng.integers(1, 4, (jobs, width)).cumsum(axis=1)[:, :, None]
        capacity, floor = np.array([[int(rng.integers(0, 12))]]), rng.random(jobs) * 0.2
        problem = Problem(value, amount, amount[:, :, 0].astype(float), capacity, np.zeros((jobs, 1), dtype=int), floor)
        every = (np.array(columns) for columns in itertools.product(range(-1, width), repeat=jobs))
        fit = (c for c in every if np.where(c >= 0, amount[np.arange(jobs), c, 0], 0).sum() <= capacity[0, 0])
        best = max(worth(problem, column) for column in fit)
        column, bound = exact_columns(problem, most_work=1000)
        if not np.isfinite(value).any():
            assert column is None
            continue
        assert column is not None
        assert worth(problem, column) == pytest.approx(best) == pytest.approx(bound)
        assert np.where(column >= 0, amount[np.arange(jobs), column, 0], 0).sum() <= capacity[0, 0]


@pytest.mark.parametrize("seed", range(5))
def test_knapsacks_side_by_side_find_what_each_finds_alone(seed: int) -> None:
    rng = np.random.default_rng(seed)
    applies = 0
    for _ in range(60):
        jobs, width, groups = int(rng.integers(1, 12)), int(rng.integers(1, 4)), int(rng.integers(1, 5))
        value = np.where(rng.random((jobs, width)) < 0.15, -np.inf, rng.random((jobs, width)).cumsum(axis=1))
        amount = rng.integers(1, 4, (jobs, width)).cumsum(axis=1)[:, :, None]
        own, floor = rng.integers(0, groups, jobs), rng.random(jobs) * 0.2
        capacity = rng.integers(0, 12, (groups + 1, 1))
        everybody = np.full(jobs, groups)
        problem = Problem(value, amount, amount[:, :, 0] * 1.0, capacity, np.column_stack([everybody, own]), floor)
        column, bound = exact_columns(problem, most_work=1000)
        expected, alone = np.full(jobs, -1), 0.0
        for g in range(groups):
            mine = (own == g).nonzero()[0]
            part = Problem(
                value[mine],
                amount[mine],
                amount[mine, :, 0] * 1.0,
                capacity[[g]],
                np.zeros((len(mine), 1), int),
                floor[mine],
            )
            found, _ = exact_columns(part, most_work=1000)
            if found is not None:
                expected[mine] = found
            alone += worth(part, expected[mine])
        used = np.where(expected >= 0, amount[np.arange(jobs), expected, 0], 0).sum()
        if not np.isfinite(value).any():
            assert column is None
        elif used > capacity[groups, 0]:
            # Each fits in its own group, but not all of them in the whole.
            assert column is None
            assert bound == pytest.approx(alone)
        else:
            applies += 1
            assert column is not None
            assert column.tolist() == expected.tolist()
            assert bound == pytest.approx(alone)
    assert 10 < applies < 60


def test_a_job_that_cannot_be_moved_grows_within_its_queues_quota() -> None:
    grown = short = 0
    for snapshot in snapshots(23, 200, jobs=8, nodes=4):
        held = snapshot.held_by_role()
        capacity = np.maximum(snapshot.capacity(), 0).sum(axis=0)
        quota = np.tile((0.4 * capacity).astype(np.int64), (snapshot.queues, 1))
        plan = Solver(Case(snapshot, PolicySettings(), Tables(), None, quota), "fair+goodput").solve()
        after = np.bincount(plan.role, weights=plan.count, minlength=snapshot.roles).astype(np.int64)
        more = (after > held) & (held >= snapshot.role_min) & ~snapshot.job_preemptible[snapshot.role_job]
        use = np.zeros_like(quota)
        queue = snapshot.job_queue[snapshot.role_job]
        np.add.at(use, queue[queue >= 0], (snapshot.role_request * after[:, None])[queue >= 0])
        for role in more.nonzero()[0].tolist():
            grown += 1
            assert (use[queue[role]] <= quota[queue[role]])[snapshot.role_request[role] > 0].all()
        short += int(
            ((after < snapshot.role_desired) & ~snapshot.job_preemptible[snapshot.role_job] & (held > 0)).sum()
        )
    assert grown
    assert short

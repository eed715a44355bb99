"""The greedy over hulls: two ways through the segments, and jobs whose largest wish fits nowhere."""

from __future__ import annotations

import numpy as np
import pytest

from diflow.allocator.goodput import optimise
from diflow.allocator.goodput.optimise import Problem, greedy


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
def test_segments_one_by_one_and_over_whole_arrays_come_to_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(30):
        problem = random_problem(rng)
        one_by_one = greedy(problem)
        monkeypatch.setattr(optimise, "FEW_SEGMENTS", 0)
        in_rounds = greedy(problem)
        monkeypatch.undo()
        assert one_by_one.tolist() == in_rounds.tolist()
        for k in range(problem.groups.shape[1]):
            for group in range(len(problem.room)):
                mine = (problem.groups[:, k] == group) & (one_by_one >= 0)
                used = problem.amount[mine, one_by_one[mine]].sum(axis=0)
                assert ((used <= problem.room[group]) | (used == 0)).all()


@pytest.mark.parametrize("few", [0, 2000])
def test_a_job_whose_largest_configuration_fits_nowhere_has_the_smaller_ones(
    few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimise, "FEW_SEGMENTS", few)
    replicas = np.array([[1, 2, 4]])
    problem = Problem(
        value=np.array([[1.0, 1.8, 3.0]]),
        amount=replicas[:, :, None],
        cost=replicas.astype(np.float64),
        room=np.array([[3]]),
        groups=np.zeros((1, 1), dtype=np.int64),
        floor=np.zeros(1),
    )
    assert greedy(problem).tolist() == [1]

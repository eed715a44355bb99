"""The fit of the performance model: it matches observations, and unknown configurations look good and are tried."""

from __future__ import annotations

import numpy as np
import pytest

from diflow.allocator.model.arrays import FloatArray
from diflow.allocator.policies.goodput.fitting import fit_all
from diflow.allocator.policies.goodput.model import BETA_N, network_seconds, step_seconds

TRUE = np.array([0.02, 0.002, 0.12, 0.004, 0.01, 0.002, 1.5])
"""A job whose synchronisation takes six times as long over several nodes as inside one."""


def seconds(params: FloatArray, nodes: int, replicas: int, batch: float) -> float:
    one = np.ones(1)
    found = step_seconds(params[None], one * nodes > 1, one * replicas, one * batch, np.zeros(1))
    return float(found[0])


def observed(*configurations: tuple[int, int]) -> FloatArray:
    """Observations of a job with these parameters at these (nodes, replicas), with three batch sizes each."""
    rows = [
        (nodes, replicas, batch, TRUE[0] + TRUE[1] * batch, seconds(TRUE, nodes, replicas, batch), 0.0)
        for nodes, replicas in configurations
        for batch in (16.0, 32.0, 64.0)
    ]
    return np.array(rows)


@pytest.mark.parametrize("warm", [False, True])
def test_one_count_over_several_nodes_tells_nothing_of_how_the_cost_grows(warm: bool) -> None:
    """It is the constant: twice the replicas are assumed to cost the same until they are observed."""
    inside = [(1, 1), (1, 2), (1, 4)]
    start = fit_all([observed(*inside)]) if warm else None
    fit = fit_all([observed(*inside, (2, 8))], start)[0]
    assert seconds(fit, 2, 8, 32.0) == pytest.approx(seconds(TRUE, 2, 8, 32.0), rel=0.02)
    assert fit[BETA_N] < 1e-6
    assert seconds(fit, 4, 16, 32.0) == pytest.approx(seconds(fit, 2, 8, 32.0), rel=1e-3)


def test_two_counts_over_several_nodes_show_the_slope() -> None:
    fit = fit_all([observed((1, 1), (1, 2), (1, 4), (2, 8), (4, 16))])[0]
    for nodes, replicas in ((2, 8), (4, 16), (8, 32)):
        assert seconds(fit, nodes, replicas, 32.0) == pytest.approx(seconds(TRUE, nodes, replicas, 32.0), rel=0.05)


def test_until_it_was_on_several_nodes_they_are_taken_for_one() -> None:
    fit = fit_all([observed((1, 1), (1, 2), (1, 4))])[0]
    one, eight = np.array([False]), np.full(1, 8.0)
    assert network_seconds(fit[None], ~one, eight) == pytest.approx(network_seconds(fit[None], one, eight))

"""The value of a second of a job's work: the price at which the jobs demand exactly the whole cluster."""

from __future__ import annotations

import numpy as np
import pytest

from diflow.allocator.model.arrays import FloatArray
from diflow.allocator.policies.goodput.price import unit_costs

GPUS = np.arange(1, 65, dtype=np.float64)


def costs(*speeds: FloatArray) -> tuple[FloatArray, FloatArray]:
    """For jobs with these speeds at 1, 2, ... 64 of 64 GPUs."""
    speed = np.array(speeds)
    return unit_costs(speed, np.tile(GPUS / 64, (len(speed), 1)), np.ones_like(speed, dtype=np.bool_))


@pytest.mark.parametrize("power", [0.5, 0.8])
def test_equal_jobs_demand_equal_parts_at_the_clearing_price(power: float) -> None:
    """Four jobs with speedups k^p: 16 GPUs each, at a price of p/(1-p) per job."""
    cost, pace = costs(*[GPUS**power] * 4)
    assert pace == pytest.approx(np.full(4, 16**power))
    price = 4 * power / (1 - power)
    assert cost == pytest.approx(np.full(4, (1 + price / 4) / 16**power), rel=0.1)


def test_work_that_does_not_scale_is_worth_more_than_work_that_does() -> None:
    cost, pace = costs(np.ones(64), GPUS**0.5, GPUS**0.9)
    assert cost[0] > cost[1] > cost[2]
    assert pace[0] == 1.0


def test_alone_a_job_runs_as_fast_as_it_can() -> None:
    speed = np.minimum(GPUS, 10.0) - 0.01 * GPUS
    cost, pace = costs(speed)
    assert pace[0] == pytest.approx(speed.max())
    assert cost[0] == pytest.approx(1 / speed.max(), rel=0.01)


def test_values_are_finite_with_more_jobs_than_capacity_and_for_jobs_without_reports() -> None:
    cost, _ = costs(*[GPUS**0.7] * 200)
    assert np.isfinite(cost).all()
    assert (cost > 0).all()
    none = np.zeros((3, 4))
    cost, pace = unit_costs(none, none, none > 0)
    assert cost.tolist() == pace.tolist() == [1.0, 1.0, 1.0]
    assert len(unit_costs(none[:0], none[:0], none[:0] > 0)[0]) == 0

"""The replica ranges of tasks whose replicas come in units."""

from __future__ import annotations

import pytest

from diflow import DIJob, InvalidError, Task
from diflow.dijob.stored import StoredSpec
from diflow.record.job import record_of
from diflow.record.requests.changes import Draft
from diflow.record.requests.ranges import asked
from diflow.workflows import render
from tests.builders import job, stored, template


def units(*, preemptible: bool = True, **fields: int) -> StoredSpec:
    return stored(made(preemptible=preemptible, **fields)).spec


def made(*, preemptible: bool = True, **fields: int) -> DIJob:
    return job(Task(name="w", replicas=4, node_unit=2, template=template(), **fields), preemptible=preemptible)


def draft(*, preemptible: bool = True) -> Draft:
    return Draft.of(record_of(render(made(preemptible=preemptible))))


def test_the_only_task_of_a_preemptible_job_scales_from_one_unit() -> None:
    found = asked(units(), 0, desired={}, bounds={})
    assert (found.low, found.high, found.desired) == (2, 4, 4)


@pytest.mark.parametrize("preemptible", [True, False])
def test_another_number_is_refused_and_a_multiple_is_not(preemptible: bool) -> None:
    now = draft(preemptible=preemptible)
    with pytest.raises(InvalidError, match="task w: 3 is not a multiple of its nodeUnit 2"):
        now.with_number(0, 3)
    assert now.with_number(0, 6).range_of(0).high == 6


def test_bounds_that_are_no_multiples_are_refused() -> None:
    for low, high in ((1, 4), (2, 5)):
        with pytest.raises(InvalidError, match="not a multiple"):
            draft().with_bounds(0, low, high)
    found = draft().with_bounds(0, 2, 8).range_of(0)
    assert (found.low, found.high) == (2, 8)


@pytest.mark.parametrize(
    ("desired", "bounds", "range_"),
    [
        ({"w": 7}, {}, (2, 6)),
        ({"w": 1}, {}, (2, 2)),
        ({}, {"w": (3, 7)}, (4, 6)),
        ({}, {"w": (1, 1)}, (2, 2)),
    ],
)
def test_what_somebody_wrote_into_the_workflow_is_rounded_to_multiples(
    desired: dict[str, int], bounds: dict[str, tuple[int, int]], range_: tuple[int, int]
) -> None:
    found = asked(units(), 0, desired=desired, bounds=bounds)
    assert (found.low, found.high) == range_
    assert found.desired % 2 == 0

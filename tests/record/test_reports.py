"""The speed of a job is one number for the allocator, `diflow top` and the page."""

from __future__ import annotations

import json
from typing import Any

import pytest

from diflow.allocator.watch import reports as allocators
from diflow.record import reports

ROW = [1, 4, 32, 0.1, 0.5]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"speed": 10, "observed": [ROW], "ranks": {"0": {"speed": 3}}}, 10),
        ({"observed": [ROW], "ranks": {"0": {"speed": 3}}}, 256),
        ({"observed": [ROW, [1, 2, 32, 0.1, 0.5]]}, 128),
        ({"observed": [ROW, [2, 1, 32, 0.1, 0.5]], "speed": -1}, 256),
        ({"ranks": {"0": {"speed": 3}, "1": {"speed": 4.5}, "2": 7, "3": {"speed": "x"}}}, 7.5),
        ({"ranks": {"0": {"speed": 1e308}, "1": {"speed": 1e308}}}, None),
        ({"speed": True, "observed": 7, "ranks": []}, None),
        ({"observed": [[1, 2, 3]], "ranks": {"0": {}}}, None),
        ({"observed": [[*ROW, 0], [1, 2, 32, 0.1, 0.5, 0, 7], [1, "2", 32, 0.1, 0.5], 7]}, 256),
        ({}, None),
    ],
)
def test_the_first_thing_that_can_be_true_is_the_speed_for_all_readers(said: dict[str, Any], expected: float) -> None:
    assert reports.read(json.dumps(said)).speed == expected
    assert allocators.speed(json.dumps(said)) == expected


def test_progress_is_a_part_of_the_whole() -> None:
    said = (0, 0.5, 1, 1.1, -1, "0.5", None)
    found = [reports.read(json.dumps({"progress": value})).progress for value in said]
    assert found == [0, 0.5, 1, *[None] * 4]

"""Numbers in texts for people."""

from __future__ import annotations

import pytest

from diflow.common.words import counted, numbers


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 replicas"), (1, "1 replica"), (1.0, "1 replica"), (2, "2 replicas"), (1_500_000, "1500000 replicas"),
     ("1", "1 replica"), ("1 to 4", "1 to 4 replicas")],
)  # fmt: skip
def test_one_is_singular_and_all_else_is_not(number: float | str, text: str) -> None:
    assert counted(number, "replica") == text


def test_a_format_chooses_between_its_words() -> None:
    one, two = numbers([1.0, 2.5])
    assert f"{one:replica is|replicas are} here" == "1 replica is here"
    assert f"{two:replica is|replicas are} here" == "2.5 replicas are here"
    assert f"{two:cpu|} and {one:.2f}" == "2.5 cpus and 1.00"

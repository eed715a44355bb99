"""Numbers in texts for people."""

from __future__ import annotations

import pytest

from diflow.common.words import counted


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 replicas"), (1, "1 replica"), (1.0, "1 replica"), (2, "2 replicas"), (1_500_000, "1500000 replicas"),
     ("1", "1 replica"), ("1 to 4", "1 to 4 replicas")],
)  # fmt: skip
def test_one_is_singular_and_all_else_is_not(number: float | str, text: str) -> None:
    assert counted(number, "replica") == text

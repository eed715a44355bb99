"""How ages and tables are written."""

from __future__ import annotations

from datetime import datetime

import pytest

from diflow.cli.output import clock, moment
from diflow.common.durations import age
from diflow.common.tables import table
from tests.record.seen import at


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"), (45, "45s"), (59, "59s"), (60, "1m"), (90, "1m30s"), (599, "9m59s"), (660, "11m"), (3600, "1h"),
        (5400, "1h30m"), (36000, "10h"), (86400, "1d"), (97200, "1d3h"), (1000000, "11d"), (-5, "0s"),
    ],
)  # fmt: skip
def test_an_age_is_told_as_kubectl_does(seconds: int, text: str) -> None:
    assert age(at(0), now=datetime.fromisoformat(at(seconds))) == text


def test_an_age_ends_when_the_thing_has_ended_and_an_unknown_one_is_a_dash() -> None:
    now = datetime.fromisoformat(at(1000))
    assert age(at(0), now=now, until=at(30)) == "30s"
    assert age("", now=now) == "-"
    assert (clock(""), moment("")) == ("-", "-")


def test_columns_are_as_wide_as_they_must_be_and_colours_take_no_room() -> None:
    text = table(("A", "B"), [("long cell", "x"), ("\x1b[32mok\x1b[0m", "y")])
    assert text.splitlines() == ["A           B", "long cell   x", "\x1b[32mok\x1b[0m          y"]

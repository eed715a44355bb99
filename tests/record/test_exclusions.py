"""The record of the nodes that are left out for a job: bounded, it ends by itself, and any text can be read."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diflow.record.exclusions import FIRST_SECONDS, LONGEST_SECONDS, MOST_ATTEMPTS, MOST_EXCLUDED, Exclusion, Exclusions

NOW = 1_800_000_000.0


def left_out(*nodes: str, now: float = NOW, attempts: tuple[str, ...] = ()) -> Exclusions:
    record = Exclusions()
    for node in nodes:
        record = record.without(node, reason="exit code 201", source="failure", now=now, attempts=attempts)
    return record


def test_an_exclusion_ends_by_itself() -> None:
    record = left_out("a", "b")
    assert record.at(NOW) == {"a", "b"}
    assert record.at(NOW + FIRST_SECONDS - 1) == {"a", "b"}
    assert record.at(NOW + FIRST_SECONDS) == frozenset()


def test_each_further_one_of_a_node_lasts_longer_up_to_a_day() -> None:
    record, now, lengths = Exclusions(), NOW, []
    for _ in range(8):
        record = record.without("a", reason="x", source="failure", now=now)
        (entry,) = record.entries
        lengths.append(entry.until - now)
        now = entry.until + 60
    assert lengths[:3] == [FIRST_SECONDS, 2 * FIRST_SECONDS, 4 * FIRST_SECONDS]
    assert lengths[-1] == LONGEST_SECONDS


def test_the_same_fault_seen_twice_is_one_exclusion() -> None:
    once = left_out("a", attempts=("1/w/0/0/0",))
    again = once.without("a", reason="exit code 202", source="failure", now=NOW + 5, attempts=["1/w/1/0/0"])
    (entry,) = again.entries
    assert entry.until - NOW < FIRST_SECONDS + 10
    assert again.knows("1/w/0/0/0")
    assert again.knows("1/w/1/0/0")
    assert not again.knows("1/w/2/0/0")


def test_what_it_is_the_consequence_of_is_known_after_its_end_too() -> None:
    record = Exclusions.parse(left_out("a", attempts=("1/w/0/0/0",)).to_json())
    assert record.at(NOW + FIRST_SECONDS) == frozenset()
    assert record.knows("1/w/0/0/0")


def test_the_record_is_bounded() -> None:
    record = left_out(*(f"n{i}" for i in range(3 * MOST_EXCLUDED)))
    assert len(record.entries) == MOST_EXCLUDED
    assert record.is_full(NOW)
    assert not record.is_full(NOW + FIRST_SECONDS)
    assert record.entries[-1].node == f"n{3 * MOST_EXCLUDED - 1}"
    many = left_out("a", attempts=tuple(f"1/w/{i}/0/0" for i in range(100)))
    assert len(many.entries[0].attempts) == MOST_ATTEMPTS
    long = Exclusions().without("n" * 10_000, reason="r" * 10_000, source="s" * 10_000, now=NOW)
    assert len(long.to_json()) < 1000


def test_it_comes_back_from_its_text() -> None:
    record = left_out("a", "b", attempts=("1/w/0/0/0",))
    assert Exclusions.parse(record.to_json()) == record
    assert Exclusions.parse("") == Exclusions()


def test_its_text_names_the_last_nodes_and_the_time_that_is_left() -> None:
    assert left_out("a").text(NOW) == "left out for this job for up to 60 minutes: a (exit code 201)"
    assert left_out("a", "b", "c", "d", "e").text(NOW).endswith("c (exit code 201), d (exit code 201), "
                                                               "e (exit code 201), 2 more")  # fmt: skip
    assert left_out("a").text(NOW + FIRST_SECONDS) == ""


def test_an_edited_record_does_not_hold_for_ever() -> None:
    entry = {"node": "a", "reason": "x", "source": "y", "since": NOW, "until": 9e10}
    record = Exclusions.parse(json.dumps([entry]))
    assert record.at(NOW) == {"a"}
    assert record.at(NOW + LONGEST_SECONDS) == frozenset()


ENTRY = {"node": "a", "reason": "x", "source": "y", "since": NOW, "until": NOW + 60}


@pytest.mark.parametrize(
    "text",
    [
        "null",
        "{}",
        "[",
        "[1, null, [], {}]",
        json.dumps([{**ENTRY, "node": 3}]),
        json.dumps([{**ENTRY, "node": ""}]),
        json.dumps([{**ENTRY, "since": "now"}]),
        json.dumps([{**ENTRY, "until": True}]),
        '[{"node":"a","since":NaN,"until":Infinity}]',
        json.dumps([{**ENTRY, "since": -1}]),
        "[" * 100_000,
        json.dumps([{**ENTRY, "node": f"n{i}"} for i in range(5000)]),
    ],
)
def test_invalid_entries_are_left_out(text: str) -> None:
    assert Exclusions.parse(text) == Exclusions()


def test_an_entry_with_invalid_attempts_is_left_out_alone() -> None:
    for attempts in (3, "x", [1, None, "a" * 1000], {"a": 1}):
        record = Exclusions.parse(json.dumps([{**ENTRY, "node": "other", "attempts": attempts}, ENTRY]))
        assert [entry.node for entry in record.entries] == [ENTRY["node"]]


def test_a_long_attempt_is_cut_to_what_the_reader_accepts_and_is_still_known() -> None:
    record = left_out("a", attempts=("x" * 1000,))
    assert Exclusions.parse(record.to_json()) == record
    assert record.knows("x" * 1000)
    assert not record.knows("x" * 100)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*ENTRY, "attempts"]), inner),
    max_leaves=20,
)


@given(values)
def test_any_value_can_be_read(value: object) -> None:
    record = Exclusions.parse(json.dumps([value, ENTRY]))
    assert len(record.entries) <= 2
    assert all(isinstance(entry, Exclusion) for entry in record.entries)
    assert Exclusions.parse(record.to_json()).at(NOW) == record.at(NOW)

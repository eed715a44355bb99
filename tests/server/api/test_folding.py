"""The text into which reports are merged: what the allocator reads, how it grows, and that it stays bounded."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diflow import DIJob, Task
from diflow.allocator.watch import reports
from diflow.common import keys
from diflow.common.limits import MOST_REPLICAS
from diflow.common.names import pool_number
from diflow.record import reports as state_reports
from diflow.record import untrusted
from diflow.server.api.folding import HINTS, LONGEST, RANKS_KEPT, ROWS_KEPT, Report, Shape, fold, written_at
from diflow.server.api.models import Hints, Profiling, validate
from diflow.server.api.reading import served_record_of
from diflow.workflows.job import render


def shape(replicas: int = 4, nodes: int = 2, *, round_: str = "1", others: int = 0) -> Shape:
    tasks = {"learner": others} if others else {}
    return Shape(round_, "worker", nodes, {**tasks, "worker": replicas})


def report(task: str = "worker", **values: Any) -> Report:
    body, faults = validate(Profiling, values)
    assert body is not None, faults
    return Report(task, body)


def folded(before: str, told: dict[int, Report], seen: Shape, *, now: float = 100.0) -> tuple[str, dict[str, Any]]:
    text = fold(before, told, seen, now=now)
    return text, json.loads(text)


@pytest.mark.parametrize(
    "before",
    [
        {"round": "1", "ranks": {"0": {"task": "worker", "speed": 1e308}}},
        {"round": "1", "ranks": {"0": {"task": "worker", "speed": 1e308}, "1": {"task": "worker", "speed": 1e308}}},
        {"round": "1", "ranks": {"0": {"task": "worker", "batch": 1e18, "stepSeconds": 5e-324}}},
        {"round": "1", "ranks": {"0": {"task": "x" * 60_000, "speed": 1}}},
        {"round": "1", "ranks": {"0": {"task": "worker", "step": 1, "more": "x" * 60_000}}},
        {"gradParams": {"norm": "x" * 60_000}},
        {"initBatchSize": "x" * 60_000},
        {"perfParams": [[[1]] * 20_000]},
        {"round": "1", "observed": [[1e308] * 5] * 3},
        {"progress": -1e300},
    ],
    ids=range(10),
)
def test_what_somebody_wrote_beside_the_server_neither_breaks_nor_fills_the_text(before: dict[str, Any]) -> None:
    text, told = folded(json.dumps(before), {1: report(step=3)}, shape())
    assert len(text) < 1000
    assert told["ranks"]["1"] == {"task": "worker", "step": 3}
    assert not {"gradParams", "initBatchSize", "perfParams", "progress"} & told.keys()


def test_the_speeds_of_all_replicas_are_added_up() -> None:
    text, told = folded("", {n: report(speed=10.0 + n, batch=32) for n in range(4)}, shape())
    assert told["speed"] == 46
    assert reports.speed(text) == 46
    assert told["observed"] == [[2, 4, 32, pytest.approx(128 / 46, rel=1e-5), pytest.approx(128 / 46, rel=1e-5)]]


def test_replicas_that_are_silent_count_as_fast_as_the_others() -> None:
    text, _ = folded("", {2: report(speed=10.0)}, shape())
    assert reports.speed(text) == 40


def test_a_report_about_several_replicas_together_is_taken_as_it_is() -> None:
    text, told = folded("", {0: report(speed=90.0, replicas=3, nodes=2, batch=16)}, shape())
    assert reports.speed(text) == 90
    assert (told["replicas"], told["nodes"], told["batch"]) == (3, 2, 16)
    assert told["ranks"] == {}


def test_seconds_of_a_step_are_as_good_as_a_speed() -> None:
    text, told = folded("", {0: report(batch=32, stepSeconds=0.5, syncSeconds=0.1)}, shape())
    assert told["speed"] == 256
    assert told["observed"] == [[2, 4, 32, 0.4, 0.5]]
    profile = reports.profile(text)
    assert profile is not None
    assert profile.observations[0].tolist() == [2, 4, 32, 0.4, 0.5, 0]


def test_the_elastic_task_speaks_for_the_job_and_else_the_one_of_the_lowest_rank() -> None:
    learner, worker = report("learner", speed=7.0), report(speed=100.0)
    assert folded("", {0: learner, 1: worker}, shape(others=1))[1]["speed"] == 400
    _, told = folded("", {0: learner}, shape(others=1))
    assert (told["speed"], told["replicas"]) == (7, 4)


def test_rows_of_a_replica_that_counts_the_whole_job_are_those_of_the_elastic_task() -> None:
    """`diflow.client` measures with all replicas of its job, and knows no nodes."""
    rows = [[1, 5, 32, 0.4, 0.5], [1, 3, 32, 0.3, 0.4]]
    _, told = folded("", {1: report(rank=1, replicas=5, speed=64.0, batch=32, observed=rows)}, shape(others=1))
    assert told["observed"] == [[2, 4, 32, 0.4, 0.5], [1, 2, 32, 0.3, 0.4]]


def test_the_newest_measurement_of_a_configuration_takes_the_place_of_the_one_before() -> None:
    text, _ = folded("", {0: report(speed=10.0, batch=32)}, shape())
    text, _ = folded(text, {0: report(speed=20.0, batch=32)}, shape())
    text, told = folded(text, {0: report(speed=30.0, batch=32)}, shape(8))
    assert [(row[1], row[4]) for row in told["observed"]] == [(4, 1.6), (8, pytest.approx(256 / 240, rel=1e-5))]
    assert reports.is_news(text, folded(text, {0: report(speed=60.0, batch=32)}, shape(8))[0], fraction=0.1)


def test_a_new_round_forgets_its_ranks_and_keeps_its_measurements_and_hints() -> None:
    text, _ = folded("", {n: report(speed=10.0, initBatchSize=64) for n in range(4)}, shape())
    text, told = folded(text, {0: report(speed=12.0)}, shape(2, round_="2"))
    assert told["round"] == "2"
    assert set(told["ranks"]) == {"0"}
    assert told["initBatchSize"] == 64
    assert [row[1] for row in told["observed"]] == [4, 2]
    assert reports.speed(text) == 24


def test_progress_and_hints_stay_until_somebody_says_otherwise() -> None:
    text, _ = folded("", {0: report(progress=0.5, gradParams={"norm": 1, "var": 2})}, shape())
    text, told = folded(text, {1: report(speed=1.0)}, shape())
    assert told["progress"] == 0.5
    assert told["gradParams"] == {"norm": 1, "var": 2}
    hints, faults = validate(Hints, {"maxBatchSize": 512, "gradientAccumulation": False})
    assert hints is not None, faults
    text, told = folded(text, {0: Report("", hints)}, shape())
    assert (told["maxBatchSize"], told["gradientAccumulation"], told["speed"]) == (512, False, 4)
    profile = reports.profile(text)
    assert profile is not None
    assert profile.accumulation is False


def test_folding_the_same_reports_again_changes_nothing() -> None:
    told = {n: report(speed=10.0, batch=3, observed=[[1, 2, 3, 0.1, 0.2]]) for n in range(3)}
    once, _ = folded("", told, shape())
    assert folded(once, told, shape())[0] == once


def test_when_it_was_written_can_be_read() -> None:
    assert written_at(folded("", {0: report(speed=1.0)}, shape(), now=123.4)[0]) == 123.4
    assert written_at("[[[") == written_at("") == written_at('{"at":"x"}') == 0.0
    assert written_at('{"at":5' + " " * 500_000 + "}") == 0.0, (
        "no server has written so long a text, so it is not parsed"
    )


def test_ranks_and_rows_are_bounded() -> None:
    text = ""
    told = {n: report(speed=1.5, step=10**15, batch=n + 1.5) for n in range(300)}
    for replicas in range(1, 100):
        text, _ = folded(text, told if replicas > 97 else {0: told[0]}, shape(replicas))
    result = json.loads(text)
    assert len(result["observed"]) == ROWS_KEPT
    assert [row[1] for row in result["observed"]] == list(range(100 - ROWS_KEPT, 100))
    assert list(result["ranks"]) == [str(n) for n in range(RANKS_KEPT)]
    assert len(text) <= LONGEST


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=8), inner, max_size=6),
    max_leaves=20,
)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-10, 10**12)
PERHAPS = NUMBERS | ANYTHING
RANK = st.fixed_dictionaries(
    {},
    optional={
        "task": st.just("worker") | ANYTHING,
        "speed": PERHAPS,
        "batch": PERHAPS,
        "stepSeconds": PERHAPS,
        "syncSeconds": PERHAPS,
    },
)
KNOWN = st.fixed_dictionaries(
    {},
    optional={
        "round": st.just("1") | ANYTHING,
        "at": ANYTHING,
        "ranks": st.dictionaries(st.integers(0, 5).map(str) | st.text(max_size=3), RANK | ANYTHING, max_size=4)
        | ANYTHING,
        "observed": st.lists(st.lists(NUMBERS, min_size=4, max_size=7) | ANYTHING, max_size=4) | ANYTHING,
        "progress": ANYTHING,
        "gradParams": ANYTHING,
    },
)


@given(before=(KNOWN | ANYTHING).map(json.dumps) | st.text(max_size=20))
@settings(max_examples=50, derandomize=True, database=None)
def test_whatever_stands_there_a_good_report_comes_through(before: str) -> None:
    text = fold(before, {0: report(speed=10.0, batch=32)}, shape(), now=1.0)
    assert len(text) <= LONGEST
    assert reports.profile(text) is not None
    json.loads(text, parse_constant=pytest.fail)


def _good(values: dict[str, Any]) -> bool:
    return validate(Profiling, values)[0] is not None


REPORTS = st.fixed_dictionaries(
    {},
    optional={
        "speed": st.floats(1e-300, 1e15),
        "batch": st.floats(1e-300, 1e9),
        "stepSeconds": st.floats(1e-6, 9e5),
        "syncSeconds": st.floats(0, 9e5),
        "replicas": st.integers(1, MOST_REPLICAS),
        "nodes": st.integers(1, MOST_REPLICAS),
        "rank": st.integers(0, 10),
        "step": st.integers(0, 10**15),
        "progress": st.floats(0, 1),
        "observed": st.lists(
            st.tuples(
                st.integers(1, 3), st.integers(3, 9), st.floats(1e-3, 1e6), st.floats(0, 1e5), st.floats(1e-6, 9e5)
            ).map(list),
            max_size=5,
        ),
    },
).filter(_good)


@given(given_reports=st.lists(REPORTS, min_size=1, max_size=5), replicas=st.integers(1, 2000), nodes=st.integers(1, 9))
@settings(max_examples=50, derandomize=True, database=None)
def test_whatever_may_be_reported_the_text_is_json_that_the_allocator_bears(
    given_reports: list[dict[str, Any]], replicas: int, nodes: int
) -> None:
    text = ""
    for values in given_reports:
        text = fold(text, {3: report(**values)}, shape(replicas, nodes), now=1.0)
        json.loads(text, parse_constant=pytest.fail)
        reports.profile(text)
        said = reports.speed(text)
        assert said is None or said > 0
    assert len(text) <= LONGEST


def test_a_number_that_no_float_can_hold_is_no_number() -> None:
    assert untrusted.number(10**400) is None
    others: tuple[Any, ...] = (True, "1", None, float("nan"), float("inf"), [])
    assert [untrusted.number(value) for value in others] == [None] * 6
    assert (untrusted.number(3), untrusted.number(0.5)) == (3.0, 0.5)
    assert untrusted.mapping('{"progress": 1' + "0" * 400 + "}")
    assert [untrusted.mapping(text) for text in ("", "[1]", "{", "[" * 100_000)] == [{}] * 4


MODEL = {"alpha_c": 0.1, "beta_c": 0.001, "alpha_n": 0.4, "beta_n": 0.0, "alpha_r": 0.2, "beta_r": 0.0, "gamma": 1.0}


def test_a_speed_follows_from_the_model_that_adaptdl_reports_for_the_place_that_the_job_has() -> None:
    body, faults = validate(Hints, {"perfParams": MODEL, "initBatchSize": 400})
    assert body is not None, faults
    text, told = folded("", {HINTS: Report("", body)}, shape(4, 2))
    assert (told["replicas"], told["nodes"], told["observed"]) == (4, 2, []), "no step was measured"
    expected = 400 / (0.1 + 0.001 * 100 + 0.4)
    assert reports.speed(text) == pytest.approx(expected)
    assert state_reports.read(json.dumps(told)).speed == pytest.approx(expected)
    later, _ = folded(text, {}, shape(2, 1))
    assert reports.speed(later) == pytest.approx(400 / (0.1 + 0.001 * 200 + 0.2)), "as it runs now"
    measured, _ = folded(later, {0: report(speed=5.0), 1: report(speed=5.0)}, shape(2, 1))
    assert reports.speed(measured) == 10


def test_rows_say_in_which_pool_they_were_measured_if_there_are_several() -> None:
    there = replace(shape(), pool=pool_number("a100"))
    text, told = folded("", {n: report(speed=10.0, batch=32) for n in range(4)}, there)
    assert [row[5] for row in told["observed"]] == [pool_number("a100")]
    # The same configuration in another pool is another row, and so is one that a user has given a pool.
    other = replace(shape(), pool=pool_number("t4"))
    rows = [[1, 4, 64, 0.1, 0.2], [1, 2, 64, 0.1, 0.2, 7]]
    text, told = folded(text, {0: report(speed=5.0, batch=32, observed=rows, replicas=4)}, other)
    assert {(row[1], row[2], row[5]) for row in told["observed"]} == {
        (4, 32, pool_number("a100")),
        (4, 32, pool_number("t4")),
        (4, 64, pool_number("t4")),
        (2, 64, 7),
    }
    seen = reports.profile(text)
    assert seen is not None
    assert set(seen.observations[:, 5]) == {pool_number("a100"), pool_number("t4"), 7.0}


def test_without_pools_rows_are_as_before() -> None:
    _, told = folded("", {n: report(speed=10.0, batch=32) for n in range(4)}, shape())
    assert [len(row) for row in told["observed"]] == [5]


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [("a100", pool_number("a100")), ("", pool_number("")), (None, 0), (7, 0), (["a"], 0), ("x" * 64, 0)],
)
def test_the_pool_of_a_workflow_is_read_as_far_as_it_is_one(annotation: Any, expected: int) -> None:
    made = render(
        DIJob(
            name="j",
            tasks=(Task(name="w", template={"spec": {"containers": [{"name": "di-container", "image": "i"}]}}),),
        )
    )
    made["metadata"] |= {"namespace": "default", "uid": "1", "resourceVersion": "1"}
    made["metadata"]["annotations"] = {**made["metadata"]["annotations"], keys.POOL: annotation}
    assert served_record_of(made).notes.pool == expected

"""The signs of life of a job's replicas: what a server writes of them, and what is read of a text that users edit."""

from __future__ import annotations

import json
import math
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diflow import DIJob, Task
from diflow.allocator.watch.records import planning_record_of
from diflow.common.deadlines import Deadlines
from diflow.common.limits import MOST_REPLICAS
from diflow.dijob import stored
from diflow.dijob.model import Health
from diflow.record import signals
from diflow.record.job import record_of
from diflow.record.parameters import LONGEST_PROFILINGS
from diflow.record.signals import (
    BEAT_SECONDS,
    BREAK_SECONDS,
    IDLE_SECONDS,
    LONGEST,
    NEVER,
    Sign,
    Signals,
    folded,
    next_write,
)
from diflow.server.api.folding import Report, Shape, fold
from diflow.server.api.models import Profiling
from diflow.workflows import render
from tests.builders import template

NOW = 1_800_000_000


def read(found: Signals) -> Signals | None:
    """What is read of what was written."""
    return signals.of(json.dumps({"signals": found.text()}))


def after(signs: dict[int, Sign], *, now: float = NOW, before: Signals | None = None, replicas: int = 2) -> Signals:
    return folded(before, signs, round_="1", replicas=replicas, now=now)


def test_a_step_that_rises_moves_a_rank_and_a_repeated_one_shows_only_that_it_lives() -> None:
    first = after({0: Sign(NOW, step=7)})
    assert (first.heard, first.moved, first.steps) == ((NOW, NEVER), (NOW, NEVER), (7, 0))
    second = after({0: Sign(NOW + 5, step=7), 1: Sign(NOW + 5)}, now=NOW + 5, before=read(first))
    assert (second.heard, second.moved) == ((NOW + 5, NOW + 5), (NOW, NEVER))
    third = after({0: Sign(NOW + 9, step=8)}, now=NOW + 9, before=read(second))
    assert (third.heard[0], third.moved[0], third.steps[0], third.since) == (NOW + 9, NOW + 9, 8, NOW)


def test_a_program_that_begins_again_at_a_lower_step_has_moved() -> None:
    before = after({0: Sign(NOW, step=700)})
    assert after({0: Sign(NOW + 5, step=600)}, now=NOW + 5, before=before).moved[0] == NOW + 5


def test_a_monitor_that_has_seen_nothing_move_is_no_sign_of_life_of_its_replica() -> None:
    before = after({0: Sign(NOW, step=1)})
    idle = after({0: Sign(NOW + 5, is_alive=False)}, now=NOW + 5, before=before)
    assert idle.heard[0] == NOW
    assert after({0: Sign(NOW + 6, step=2, is_alive=False)}, now=NOW + 6, before=idle).heard[0] == NOW + 6


def test_times_do_not_drift_however_often_they_are_written() -> None:
    found = after({0: Sign(NOW + 0.9, step=1)}, now=NOW + 0.9)
    for second in range(1, 3000):
        found = after({1: Sign(NOW + second + 0.7, step=second)}, now=NOW + second + 0.7, before=read(found))
    assert (found.heard[0], found.moved[0], found.since) == (NOW, NOW, NOW)


def test_a_break_in_which_no_server_wrote_begins_the_listening_again() -> None:
    before = after({0: Sign(NOW, step=1)})
    assert after({}, now=NOW + BREAK_SECONDS, before=before).since == NOW
    again = after({}, now=NOW + BREAK_SECONDS + 1, before=before)
    assert (again.since, again.heard[0]) == (NOW + BREAK_SECONDS + 1, NOW)
    ahead = after({}, now=NOW - 5, before=before)
    assert (ahead.at, ahead.since) == (NOW, NOW), "another server's clock is ahead"
    assert after({}, now=NOW - 1000, before=before).since == NOW - 1000


def test_a_server_that_has_listened_all_the_time_knows_that_there_was_nothing_to_write() -> None:
    before = after({0: Sign(NOW, step=1)})
    late = NOW + 10 * BREAK_SECONDS
    written = partial(folded, before, {}, round_="1", replicas=2, now=late)
    assert written(listening=NOW + BREAK_SECONDS).since == NOW
    assert written(listening=NOW + BREAK_SECONDS + 0.5).since == NOW + BREAK_SECONDS + 1
    assert written(listening=late + 5).since == written().since == late


@pytest.mark.parametrize(
    "health",
    [
        Health(),
        Health(heartbeat_seconds=75, progress_seconds=0),
        Health(first_progress_seconds=0, heartbeat_seconds=60),
    ],
)
def test_the_server_reads_the_deadlines_that_the_allocator_judges_by(health: Health) -> None:
    made = render(DIJob(name="job", tasks=(Task(name="worker", template=template()),), health=health))
    given = (health.heartbeat_seconds, health.progress_seconds, health.first_progress_seconds)
    expected = Deadlines(*(seconds or math.inf for seconds in given))
    judged = planning_record_of(made).spec.health
    assert judged is not None
    assert record_of(made).spec.deadlines == judged.deadlines == expected
    assert stored.Health().deadlines == Deadlines()


def due(found: Signals | None, *began: float, **seconds: float) -> float:
    return next_write(found, Deadlines(**seconds), round_="1", began=began)


def test_when_it_is_due_that_a_server_listens() -> None:
    found = Signals("1", NOW, NOW - 1000, (NOW - 30, NEVER), (NOW - 80, NEVER), (7, 0))
    assert due(None) == 0
    assert due(found) == NOW + IDLE_SECONDS
    assert next_write(found, Deadlines(), round_="2", began=()) == NOW + BEAT_SECONDS
    assert due(found, heartbeat=65) == NOW + 36
    assert due(found, progress=100) == NOW + 21
    assert due(found, NOW - 50, first_progress=105) == NOW + 56
    assert due(found, heartbeat=31) == due(found, heartbeat=20) == NOW + BEAT_SECONDS, "it is over, or nearly"
    infinite = dict.fromkeys(("heartbeat", "progress", "first_progress"), math.inf)
    assert due(found, NOW - 50, **infinite) == NOW + IDLE_SECONDS
    old = Signals("1", NOW, NOW - 1000, (NOW - 900,), (NOW - 900,), (7,))
    assert due(old, heartbeat=60, progress=60) == NOW + IDLE_SECONDS, "found long ago"
    assert due(Signals("1", NOW, NOW - 5, (NOW - 900,), (NEVER,), (0,)), heartbeat=60) == NOW + 56, (
        "it has listened since"
    )


def test_another_round_has_other_replicas() -> None:
    before = after({0: Sign(NOW, step=5), 1: Sign(NOW, step=5)})
    found = folded(before, {0: Sign(NOW + 1, step=2)}, round_="2", replicas=3, now=NOW + 1)
    assert (found.round, found.heard, found.steps) == ("2", (NOW + 1, NEVER, NEVER), (2, 0, 0))
    assert found.since == NOW, "the server listens all the same"


@pytest.mark.parametrize("replicas", [1000, MOST_REPLICAS])
def test_the_ranks_of_the_largest_jobs_fit_beside_their_reports(replicas: int) -> None:
    shape = Shape("1", "worker", 100, {"worker": replicas}, has_health=True)
    body = {"speed": 123.456, "batch": 32, "stepSeconds": 0.25, "syncSeconds": 0.03}
    text = ""
    for second in range(3):
        reports = {
            rank: Report(
                "worker", Profiling.model_validate({**body, "step": 10**6 + second + rank % 3}), rank, NOW + second
            )
            for rank in range(replicas)
        }
        text = fold(text, reports, shape, now=NOW + second)
    assert len(text) <= LONGEST_PROFILINGS
    found = signals.of(text)
    assert found is not None
    assert len(found.heard) == replicas
    assert found.steps[replicas - 1] == 10**6 + 2 + (replicas - 1) % 3
    assert found.work[0] == 0.22


def test_steps_that_are_chosen_to_be_long_leave_out_the_highest_ranks() -> None:
    signs = {rank: Sign(NOW, step=10**15 * (rank % 2), work=1.23e-7) for rank in range(MOST_REPLICAS)}
    found = after(signs, replicas=MOST_REPLICAS)
    assert len(json.dumps(found.text(), separators=(",", ":"))) <= LONGEST
    kept = read(found)
    assert kept is not None
    assert 500 < len(kept.heard) < MOST_REPLICAS
    assert kept.steps == found.steps[: len(kept.steps)]


def test_the_reports_of_a_job_without_health_are_as_before() -> None:
    report = {0: Report("worker", Profiling(step=7, speed=1.5), 0, NOW)}
    shape = Shape("1", "worker", 1, {"worker": 1})
    assert json.loads(fold("", report, shape, now=NOW)) == {
        "round": "1", "at": NOW, "ranks": {"0": {"task": "worker", "speed": 1.5, "step": 7}}, "speed": 1.5,
        "replicas": 1, "nodes": 1, "observed": [[1, 1, 1.0, 0.666667, 0.666667]],
    }  # fmt: skip


GOOD: dict[str, Any] = {
    "round": "1",
    "at": NOW,
    "since": NOW - 9,
    "heard": [1, -1],
    "moved": [2, -1],
    "steps": [7, -7],
    "work": [0.5, 0],
}


def test_what_a_server_writes_is_read() -> None:
    assert signals.of(json.dumps({"signals": GOOD})) == Signals(
        "1", NOW, NOW - 9, (NOW - 1, NEVER), (NOW - 2, NEVER), (7, 0), (0.5, 0.0)
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"round": "01"}, {"round": 1}, {"at": "x"}, {"at": 10**30}, {"at": True}, {"at": -1}, {"since": NOW + 1},
        {"since": None}, {"heard": [1]}, {"heard": {}}, {"heard": [1, 1.5]}, {"heard": [1, -2]},
        {"heard": [1, NOW + 1]}, {"moved": ["1", 2]},
        {"moved": [1] * (MOST_REPLICAS + 1)}, {"steps": [7, -8]}, {"steps": [10**16, 0]},
        {"steps": [10**15, 1]}, {"work": [1]}, {"work": [1, -1]}, {"work": [1, 1e7]}, {"work": "ab"},
    ],
)  # fmt: skip
def test_anything_else_is_no_signals(wrong: dict[str, Any]) -> None:
    assert signals.of(json.dumps({"signals": {**GOOD, **wrong}})) is None


_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(wrong=st.dictionaries(st.sampled_from(sorted(GOOD)), _ANYTHING, max_size=7), whole=_ANYTHING)
def test_no_text_makes_a_reader_fail_and_what_is_read_can_be_written_again(wrong: dict[str, Any], whole: Any) -> None:
    signals.of(json.dumps({"signals": whole}))
    found = signals.of(json.dumps({"signals": {**GOOD, **wrong}}))
    if found is not None:
        folded(found, {0: Sign(NOW, step=1)}, round_="1", replicas=3, now=NOW).text()


_TIMES = st.integers(NOW - 10_000, NOW) | st.just(NEVER)


@given(
    ranks=st.lists(
        st.tuples(_TIMES, _TIMES, st.integers(0, 10**15), st.sampled_from([0.0, 0.25, 1e-6, 3.5])),
        min_size=1,
        max_size=20,
    )
)
def test_what_was_written_is_what_is_read(ranks: list[tuple[int, int, int, float]]) -> None:
    heard, moved, steps, work = zip(*ranks, strict=True)
    found = Signals("3", NOW, NOW - 100, heard, moved, steps, work if any(work) else ())
    assert read(found) == found

"""The annotation `diflow/health`: written by the allocator, and edited by anybody."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diflow.common.jsontext import canonical_json
from diflow.common.limits import MOST_HEALTH_RESTARTS, MOST_REPLICAS
from diflow.record import health
from diflow.record.health import LONGEST_WHY, HealthState, Stop, numbers, ranges
from diflow.record.status.status import derive
from tests.record.seen import SeenJob

_RANKS = st.frozensets(st.integers(0, MOST_REPLICAS - 1), max_size=30)


@given(
    silent=_RANKS,
    stalled=_RANKS,
    behind=_RANKS,
    slow=st.dictionaries(st.integers(0, MOST_REPLICAS - 1), st.sampled_from([2.0, 3.25, 1e6]), max_size=64),
    restarts=st.integers(0, MOST_HEALTH_RESTARTS),
    is_unheard=st.booleans(),
    stop=st.none() | st.builds(Stop, st.just(1.8e9), st.dictionaries(st.just("worker"), _RANKS.filter(bool))),
)
def test_what_was_written_is_what_is_read(**fields: Any) -> None:
    found = HealthState("3", "2026-11-21T09:40:44Z", "why", last="earlier", last_time="2026-11-21T08:00:00Z", **fields)
    assert HealthState.parse(found.text()) == found


def test_the_ranks_of_the_largest_job_are_short() -> None:
    everyone, every_other = frozenset(range(MOST_REPLICAS)), frozenset(range(0, MOST_REPLICAS, 2))
    stop = Stop(1.8e9, {"worker": every_other})
    found = HealthState("1", why="x" * 9999, silent=every_other, stalled=everyone, behind=every_other, stop=stop)
    slow = dict.fromkeys(range(MOST_REPLICAS), float("inf"))
    text = HealthState("1", why="x" * 9999, silent=every_other, slow=slow, stop=stop).text()
    assert len(text) < 20_000
    assert len(found.text()) < 20_000
    parsed = HealthState.parse(found.text())
    assert parsed is not None
    assert (parsed.stalled, parsed.behind, len(parsed.why)) == (everyone, every_other, LONGEST_WHY)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"round":1}',
        '{"round":"1","restarts":-1}',
        '{"round":"1","restarts":1e9}',
        "x" * 100_000,
        None,
        7,
    ],
)
def test_anything_else_is_missing(text: Any) -> None:
    assert HealthState.parse(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "3-1",
        "-1",
        "1,",
        "0-999999",
        f"{MOST_REPLICAS}",
        "1" * 7,
        "0-1," * 5000,
        "0-9,0-9",
        "0-9,9",
        "5,4",
        3,
        None,
        ["1"],
    ],
)
def test_ranks_that_no_job_has_are_none(text: Any) -> None:
    assert numbers(text) == frozenset()


def test_ranges_are_read_as_they_are_written() -> None:
    assert ranges([9, 0, 1, 2, 5, 2]) == "0-2,5,9"
    assert numbers("0-2,5,9") == {0, 1, 2, 5, 9}


def test_ranges_that_repeat_are_not_counted_up_to(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []

    def counting(low: int, high: int) -> range:
        counted.append(high - low)
        return range(low, high)

    monkeypatch.setattr(health, "range", counting, raising=False)
    every = f"0-{MOST_REPLICAS - 1}"
    assert numbers(",".join([every] * 2000)) == frozenset()
    assert numbers(",".join(f"1-{MOST_REPLICAS - 1}" for _ in range(2000)) + f",{every}") == frozenset()
    assert sum(counted) < 3 * MOST_REPLICAS


_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(
    fields=st.dictionaries(
        st.sampled_from(["time", "why", "silent", "stalled", "behind", "slow", "restarts", "last", "stop"]), _ANYTHING
    )
)
def test_no_text_makes_a_reader_fail(fields: dict[str, Any]) -> None:
    found = HealthState.parse(canonical_json({"round": "1", **fields}))
    if found is not None:
        HealthState.parse(found.text())


def test_a_pod_that_was_made_later_is_not_the_one_to_be_ended() -> None:
    stop = Stop(100.0, {"worker": frozenset({1})})
    assert stop.has("worker", 1, 100.0)
    assert not stop.has("worker", 1, 101.0)
    assert not stop.has("worker", 2, 50.0)
    assert not stop.has("head", 1, 50.0)


def condition(found: HealthState, *, rounds: tuple[str, ...] = ("1",), phase: str = "Running") -> Any:
    job = SeenJob("job", preemptible=True, worker=2).all_ready()
    for round_ in rounds[1:]:
        job.moves_to(round_, worker=2)
    job.annotations["diflow/health"] = found.text()
    status = derive((job if phase == "Running" else job.ended(90, phase)).workflow(), job.all_pods())
    last = status.to_dict()["conditions"][-1]
    assert status.conditions[-1].type == status.phase, "the phases are as without it"
    return last if last["type"] == "Healthy" else None


WHEN = "2026-11-21T09:40:44Z"


@pytest.mark.parametrize(
    ("fields", "status", "reason"),
    [
        ({"why": "w", "silent": frozenset({1}), "stalled": frozenset({0, 1})}, "False", "ReplicasSilent"),
        ({"why": "w", "stalled": frozenset({0, 1})}, "False", "ReplicasStalled"),
        ({"why": "w", "slow": {1: 3.0}}, "False", "ReplicasSlow"),
        ({"why": "w"}, "False", "Restarted"),
        ({"why": "w", "is_unheard": True}, "Unknown", "NotJudged"),
        ({}, "True", "ReplicasAdvance"),
    ],
)
def test_what_was_found_is_a_condition_beside_those_of_the_phases(fields: Any, status: str, reason: str) -> None:
    found = condition(HealthState("1", WHEN, **fields))
    assert (found["status"], found["reason"], found["lastTransitionTime"]) == (status, reason, WHEN)
    assert found["message"] == fields.get("why", "all replicas advance")


def test_what_was_found_in_an_earlier_round_was_mended_by_a_restart() -> None:
    found = condition(HealthState("1", WHEN, why="w", last="no step; restarted"), rounds=("1", "2"))
    assert (found["status"], found["reason"], found["message"]) == ("True", "Restarted", "no step; restarted")


def test_a_job_that_has_ended_is_not_called_healthy() -> None:
    assert condition(HealthState("1", WHEN), phase="Succeeded") is None
    assert condition(HealthState("1", WHEN, why="w", silent=frozenset({1})), phase="Failed") is None

"""The results of node checks: what is kept of them, and which nodes they find faulty."""

from __future__ import annotations

import json
import random
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diflow.common import limits
from diflow.common.limits import MOST_REPLICAS
from diflow.record import nodecheck
from diflow.record.exclusions import Exclusions
from diflow.record.nodecheck import FIGURES, LONGEST, MOST_FAILED, Checked, Entry, Judge, Record, fold, is_ready, judge

NOW = 1_800_000_000.0


def results(
    *values: float, figure: str = "product", task: str = "worker", on: str = "", **over: Any
) -> dict[int, Checked]:
    """One replica on each node a, b, c, ... (or those of `on`), with these values of a figure."""
    nodes = on or "abcdefghijklmnop"
    return {
        rank: Checked(task, nodes[rank], Entry(f"{rank:08d}", {figure: value}, **over))
        for rank, value in enumerate(values)
    }


def found(given: dict[int, Checked]) -> list[str]:
    return [fault.node for fault in judge(given)]


@pytest.mark.parametrize(
    ("values", "nodes"),
    [
        ((1.0, 1.0, 1.0, 1.0), []),
        ((1.0, 1.0, 1.0, 2.01), ["d"]),
        ((1.0, 1.0, 1.0, 2.0), []),  # twice is not over twice
        ((1.0, 3.0), ["b"]),  # of two nodes one can be slow, as its own figure is not in the median
        ((1.0, 1.0, 5.0, 9.0), ["c", "d"]),
        ((1.0, 5.0, 5.0, 5.0), []),
        ((1.0, 1.0, 1.0, 5.0, 9.0), ["d", "e"]),
        ((7.0,), []),  # nobody to compare with
        ((0.0, 1.0), []),
    ],
)
def test_a_node_is_slow_above_twice_the_median_of_the_others(values: tuple[float, ...], nodes: list[str]) -> None:
    assert found(results(*values)) == nodes


def test_the_text_has_the_figure_and_the_median() -> None:
    (fault,) = judge(results(0.1, 0.1, 0.31))
    assert fault.text == "product 0.31 s, 3.1 times the others' median 0.1 s"
    assert (fault.figure, fault.value, fault.median) == ("product", 0.31, 0.1)
    assert nodecheck.summary([fault] * 5) == "; ".join([f"node c: {fault.text}"] * 3) + "; 2 more"


def test_a_difference_that_no_training_feels_is_none() -> None:
    assert found(results(0.0001, 0.0001, 0.0005, figure="latency")) == []
    assert found(results(0.0001, 0.0001, 0.005, figure="latency")) == ["c"]
    assert found(results(0.001, 0.001, 0.008, figure="disk")) == []


def test_a_node_counts_by_the_median_of_its_replicas() -> None:
    given = results(1.0, 1.0, 9.0, 1.0, 1.0, 1.0, 1.0, on="aaabbbc")
    assert found(given) == []
    assert found(results(9.0, 9.0, 1.0, 1.0, 1.0, 1.0, 1.0, on="aaabbbc")) == ["a"]


def test_tasks_with_other_limits_are_not_compared_but_their_networks_are() -> None:
    workers, servers = results(1.0, 1.0), {7: Checked("server", "g", Entry("00000007", {"product": 9.0}))}
    assert found({**workers, **servers}) == []
    slow = {7: Checked("server", "g", Entry("00000007", {"transfer": 9.0}))}
    assert found({**results(1.0, 1.0, figure="transfer"), **slow}) == ["g"]


def test_a_check_that_has_failed_is_a_fault_of_its_node() -> None:
    given = results(1.0, 1.0, 1.0)
    given[1] = Checked("worker", "b", Entry("00000001", {}, "the matrix product is wrong"))
    assert [(fault.node, fault.text) for fault in judge(given)] == [("b", "the matrix product is wrong")]


def test_when_most_nodes_fail_it_is_not_the_nodes() -> None:
    assert found(results(1.0, 1.0, 1.0, failed="no disk")) == []


def unmet(**missed: tuple[int, ...]) -> dict[int, Checked]:
    """Replicas 0 to 3 on nodes a to d, and the peers that each has not met."""
    return {
        rank: Checked("worker", node, Entry(f"{rank:08d}", {}, unmet=missed.get(node, ())))
        for rank, node in enumerate("abcd")
    }


def test_a_node_that_most_peers_miss_is_faulty() -> None:
    (fault,) = judge(unmet(a=(3,), b=(3,), c=(3,), d=(0, 1, 2)))
    assert (fault.node, fault.text) == ("d", "does not reach 3 of its peers' nodes")


def test_one_link_alone_accuses_nobody() -> None:
    assert found(unmet(c=(3,), d=(2,))) == []


def test_a_peer_that_one_side_alone_misses_came_late() -> None:
    assert found(unmet(a=(3,), b=(3,), c=(3,))) == []
    assert found(unmet(d=(0, 1, 2))) == []


def test_of_two_nodes_that_miss_each_other_none_is_accused() -> None:
    both = unmet(a=(1,), b=(0,))
    assert found({rank: both[rank] for rank in (0, 1)}) == []


def test_healthy_nodes_with_noise_are_never_left_out_and_a_slow_one_always_is() -> None:
    for seed in range(1000):
        chance = random.Random(seed)
        healthy = [chance.gauss(1.0, 0.1) for _ in range(8)]
        assert found(results(*healthy)) == [], seed
        at = chance.randrange(8)
        healthy[at] *= 3
        assert found(results(*healthy)) == ["abcdefgh"[at]], seed


def test_a_record_survives_its_text() -> None:
    entries = {
        0: Entry("aaaaaaaa", dict.fromkeys(FIGURES, 0.125)),
        12: Entry("bbbbbbbb", {"memory": 0.5}, "no 'disk'", (1, 2)),
    }
    pods = {0: "aaaaaaaa-1", 12: "bbbbbbbb-1"}
    record = Record.parse(fold("", "3", entries, pods, since=NOW))
    assert record == Record("3", NOW, entries)


def test_results_of_another_round_or_of_pods_that_are_gone_are_dropped() -> None:
    one = {0: Entry("aaaaaaaa", {"memory": 1.0})}
    two = {1: Entry("bbbbbbbb", {"memory": 2.0})}
    pods = {0: "aaaaaaaa-1", 1: "bbbbbbbb-1"}
    text = fold("", "1", one, pods, since=NOW)
    assert Record.parse(fold(text, "1", two, pods, since=NOW + 5)) == Record("1", NOW, {**one, **two})
    assert Record.parse(fold(text, "1", two, pods, since=NOW - 5)) == Record("1", NOW - 5, {**one, **two})
    assert Record.parse(fold(text, "2", two, pods, since=NOW + 5)) == Record("2", NOW + 5, two)
    assert Record.parse(fold(text, "1", two, {**pods, 0: "cccccccc"}, since=NOW + 5)) == Record("1", NOW + 5, two)


def test_the_record_of_the_largest_gang_fits() -> None:
    figures = dict.fromkeys(FIGURES, 0.00012345)
    entries = {rank: Entry(f"{rank:08x}", figures) for rank in range(MOST_REPLICAS)}
    text = Record("1", NOW, entries).to_json()
    assert len(Record.parse(text).entries) > 0.5 * MOST_REPLICAS
    assert len(text) <= LONGEST


def test_the_record_is_bounded() -> None:
    entries = {
        rank: Entry(f"{rank:08x}", dict.fromkeys(FIGURES, 1.2345e-5), "x" * 200, tuple(range(16)))
        for rank in range(MOST_REPLICAS)
    }
    text = Record("1", NOW, entries).to_json()
    assert len(text) <= LONGEST
    assert len(json.loads(text)["failed"]) <= MOST_FAILED


def test_results_count_for_their_pods_alone() -> None:
    record = Record("1", NOW, {0: Entry("aaaaaaaa"), 1: Entry("bbbbbbbb")})
    assert set(record.of({0: "aaaaaaaa-1111", 1: "cccccccc-1111", 2: "dddddddd"})) == {0}


def test_results_are_judged_when_all_are_there_or_most_of_the_time_is_over() -> None:
    record = Record("1", NOW, {0: Entry("aaaaaaaa")})
    assert is_ready(record, 3, 3, now=NOW, timeout_seconds=100)
    assert not is_ready(record, 2, 3, now=NOW + 74, timeout_seconds=100)
    assert is_ready(record, 2, 3, now=NOW + 75, timeout_seconds=100)
    assert not is_ready(record, 0, 3, now=NOW + 76, timeout_seconds=100)


HOSTILE = [
    "",
    "null",
    "[]",
    "{",
    '{"round": 1}',
    '{"round": "1", "since": 1e400}',
    '{"round": "1", "since": -1, "ranks": {}}',
    '{"round": "01", "since": 1, "ranks": {}}',
    "x" * (LONGEST + 1),
    "[" * 100_000,
]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_text_that_is_none_of_diflows_is_an_empty_record(text: str) -> None:
    assert Record.parse(text) == Record()


def test_entries_that_are_none_are_left_out() -> None:
    ranks = {
        "0": ["aaaaaaaa", 1, None, "x", -1, True, 1e300],
        "01": ["aaaaaaaa", 1],
        "-1": ["aaaaaaaa", 1],
        "2000": ["aaaaaaaa", 1],
        "1": ["short", 1],
        "2": [],
        "3": {"a": 1},
        "4": [7],
    }
    text = json.dumps({"round": "1", "since": 1, "ranks": ranks, "failed": {"0": "a\nb\x1b" * 300}, "unmet": {"0": 7}})
    record = Record.parse(text)
    assert set(record.entries) == {0}
    assert record.entries[0].figures == {"product": 1}
    assert record.entries[0].failed.isprintable()
    assert len(record.entries[0].failed) <= limits.LONGEST_FAILURE
    assert record.entries[0].unmet == ()


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=9),
        lambda x: st.lists(x) | st.dictionaries(st.text(max_size=3), x),
    )
)
def test_no_text_makes_it_raise(data: Any) -> None:
    for value in (data, {"round": "1", "since": 1, "ranks": data, "failed": data, "unmet": data}):
        judge({rank: Checked("w", "n", entry) for rank, entry in Record.parse(json.dumps(value)).entries.items()})


def test_the_moves_are_counted_in_the_record_of_exclusions() -> None:
    record = Exclusions()
    assert nodecheck.moves(record) == 0
    for number, node in ((1, "a"), (1, "b"), (2, "c")):
        record = record.without(
            node, reason="slow", source=nodecheck.SOURCE, now=NOW, attempts=[nodecheck.move(number)]
        )
    record = record.without("d", reason="exit code 201", source="failure", now=NOW, attempts=["7/worker/0"])
    assert nodecheck.moves(Exclusions.parse(record.to_json())) == 2


def test_the_median_of_the_others_is_not_of_all() -> None:
    values = [1.0, 1.0, 4.0, 4.5]
    assert statistics.median(values) * 2 > 4.5
    assert found(results(*values)) == ["c", "d"]


@given(st.lists(st.floats(1e-6, 1e6), min_size=2, max_size=12))
def test_the_median_without_one_value_is_that_of_the_others(values: list[float]) -> None:
    """It is found in the sorted values: a median for each of two thousand nodes took eleven seconds."""
    for at, value in enumerate(values):
        others = values[:at] + values[at + 1 :]
        assert nodecheck._median_without(sorted(values), value) == pytest.approx(statistics.median(others))


def test_results_are_judged_again_only_when_they_or_the_pods_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each replica of a gang asks once a second, and the allocator looks at each job in each cycle."""
    judged: list[int] = []

    def counted(given: Any) -> Any:
        judged.append(len(given))
        return judge(given)

    monkeypatch.setattr(nodecheck, "judge", counted)
    entries = {rank: Entry(f"{rank:08d}", {"product": 9.0 if rank == 3 else 1.0}) for rank in range(4)}
    text = Record("1", NOW, entries).to_json()
    pods = {rank: ("worker", "abcd"[rank], f"{rank:08d}-of-a-pod") for rank in range(4)}
    made = Judge(most_jobs=2)
    for _ in range(5):
        assert [fault.node for fault in made.faults("x/job", Record.parse(text), dict(pods))] == ["d"]
    assert judged == [4]

    made.faults("x/job", Record.parse(text), {**pods, 3: ("worker", "d", "another-pod")})
    assert judged == [4, 3], "the result is of another pod"
    entries[3] = Entry("00000003", {"product": 1.0})
    assert made.faults("x/job", Record.parse(Record("1", NOW, entries).to_json()), pods) == ()
    for job in ("x/other", "x/third"):
        made.faults(job, Record.parse(text), pods)
    assert len(judged) == 5
    made.faults("x/job", Record.parse(text), pods)
    assert len(judged) == 6, "it keeps the last jobs alone"

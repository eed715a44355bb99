"""What was measured is kept, whatever happens afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import __main__ as bench
from benchmarks.figures import Figure
from benchmarks.parts import Record


def figure(name: str) -> Figure:
    return Figure("part", name, 1.0, "s")


def written(out: Path) -> list[str]:
    return [each["name"] for each in json.loads(out.read_text())]


def test_figures_are_written_part_by_part_and_a_part_that_fails_loses_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out" / "bench.json"
    seen: list[list[str]] = []

    def fails() -> list[Figure]:
        seen.append(written(out))
        raise ConnectionError("no answer")

    def last() -> list[Figure]:
        seen.append(written(out))
        return [figure("third")]

    with Record(out) as record:
        record.run({"one": lambda: [figure("first"), figure("second")], "two": fails, "three": last})
    assert seen == [["first", "second"], ["first", "second"]]
    assert written(out) == ["first", "second", "third"]
    assert record.failed == ["two"]
    said = capsys.readouterr()
    assert "two: failed" in said.out
    assert "ConnectionError: no answer" in said.err


def test_an_interrupted_run_keeps_and_prints_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> list[Figure]:
        raise KeyboardInterrupt

    out = tmp_path / "bench.json"
    with pytest.raises(KeyboardInterrupt), Record(out) as record:
        record.run({"one": lambda: [figure("first")], "two": interrupted})
    assert written(out) == ["first"]
    assert "first" in capsys.readouterr().out


def test_the_figures_of_an_earlier_run_are_not_taken_for_those_of_this_one(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    for parts in ({"one": lambda: [figure("first")]}, {}):
        with Record(out) as record:
            record.run(parts)
    assert written(out) == []


def test_each_part_of_make_bench_is_known_to_need_a_cluster_or_none() -> None:
    assert tuple(bench.parts_of(1, [100])) == bench.PARTS
    assert not set(bench.ALONE) & set(bench.LIVE)

"""The simulator: from made-up applications that need no download, and, where the measured data is, from that."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from diflow.allocator import journal
from diflow.allocator.policies.goodput import GoodputPolicy
from diflow.allocator.policy import load_policy
from diflow.allocator.simulator import report
from diflow.allocator.simulator.cli import app, queue_rows
from diflow.allocator.simulator.metrics import metrics
from diflow.allocator.simulator.replay import Replay, World, replay
from diflow.allocator.simulator.truth import Application, Arrival, load, read_workload
from diflow.errors import InvalidError, NotFoundError
from tests.policies.generators import snapshots

DATA = Path(os.environ.get("DIFLOW_POLLUX_DATA", Path(__file__).parents[3] / "shared" / "data" / "pollux"))


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An application of 4 epochs that scales well inside a node and less beyond it."""
    folder = tmp_path_factory.mktemp("profiles")
    made = folder / "toy"
    made.mkdir()

    def times(nodes: int, replicas: int, batch: int) -> tuple[float, float]:
        sync = 0.0 if replicas == 1 else (0.01 if nodes == 1 else 0.05) + 0.001 * replicas
        return 0.02 + 0.002 * batch + sync, sync

    def write(name: str, head: list[str], rows: list[list[object]]) -> None:
        with (made / name).open("w", newline="") as file:
            csv.writer(file).writerows([head, *rows])

    batches = (8, 16, 32, 64)
    shapes = ["1", "2", "3", "4", "14", "24", "34", "44", "444", "4444"]
    write(
        "placements.csv",
        ["placement", "local_bsz", "step_time", "sync_time"],
        [[s, b, *times(len(s), sum(map(int, s)), b)] for s in shapes for b in batches],
    )
    write(
        "scalability.csv",
        ["num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time"],
        [[n, r, b, *times(n, r, b)] for n, r in ((1, 1), (2, 2), (4, 4), (8, 16), (16, 64)) for b in batches],
    )
    for total in (32, 128, 512):
        write(
            f"validation-{total}.csv",
            ["progress", "iteration", "metric", "grad_sqr", "grad_var"],
            [[2000.0 * (e + 1), 0, 0, 1.0, 200.0] for e in range(4)],
        )
    return folder


def arrivals(count: int = 8, every: float = 120.0) -> list[Arrival]:
    return [Arrival(f"toy-{i}", i * every, "toy", 1 + i % 3, 64) for i in range(count)]


@pytest.fixture(scope="module")
def apps(profiles: Path) -> dict[str, Application]:
    return load(profiles)


@pytest.mark.parametrize("name", ["fit", "fair", "goodput", "fair+goodput", "tiresias", "optimus"])
def test_every_policy_brings_every_job_to_its_end(apps: dict[str, Application], name: str) -> None:
    result = replay(arrivals(), apps, load_policy(name), World(nodes=4))
    assert [o.name for o in result.outcomes] == [f"toy-{i}" for i in range(8)]
    assert all(o.finished > o.started >= o.created for o in result.outcomes)
    held = sum(span.gpus * (span.end - span.begin) for span in result.spans)
    # The chart and the accounts are kept apart; they agree but for the last period of each job.
    assert held == pytest.approx(sum(o.gpu_seconds for o in result.outcomes), rel=0.05)


def test_the_same_run_gives_the_same_numbers(apps: dict[str, Application]) -> None:
    def run(seed: int) -> Replay:
        return replay(arrivals(), apps, GoodputPolicy(), World(nodes=4, noise=0.2, seed=seed))

    first, second, other = run(1), run(1), run(2)
    assert first.outcomes == second.outcomes
    assert first.spans == second.spans
    assert first.outcomes != other.outcomes


def test_a_job_alone_takes_what_its_measured_times_say(apps: dict[str, Application]) -> None:
    """One GPU, one batch size: 8,000 iterations, by hand."""
    result = replay([Arrival("toy-0", 0.0, "toy", 1, 32)], apps, load_policy("fit"), World(nodes=1))
    step = 0.02 + 0.002 * 32
    assert result.outcomes[0].completion == pytest.approx(30.0 + 8000 * step, rel=1e-6)


def test_a_move_costs_what_the_world_says(apps: dict[str, Application]) -> None:
    short, long = (
        metrics(replay(arrivals(), apps, GoodputPolicy(), World(nodes=4, restart_seconds=seconds))).mean
        for seconds in (0.0, 55.0)
    )
    assert long > short + 50


def test_half_the_load_spaces_the_arrivals(apps: dict[str, Application]) -> None:
    result = replay(arrivals(), apps, load_policy("fit"), World(nodes=4, load=0.5))
    assert [o.created for o in result.outcomes] == [i * 240.0 for i in range(8)]


def test_an_unknown_application_is_named(apps: dict[str, Application]) -> None:
    with pytest.raises(InvalidError, match="job x: no profile of 'nothing'; there are toy"):
        replay([Arrival("x", 0.0, "nothing", 1, 1)], apps, load_policy("fit"))


def test_tables_and_pictures_are_written(apps: dict[str, Application], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = replay(arrivals(), apps, load_policy("fit"), World(nodes=4))
    rows = [metrics(result)]
    written = report.write(tmp_path, [result], rows, gpus=4, nodes=4)
    names = {"summary.json", "summary.csv", "jobs-fit.csv", "utilisation.png", "completion.png", "gantt-fit.png"}
    assert {path.name for path in written} == names
    assert all(path.stat().st_size > 100 for path in written)
    assert json.loads((tmp_path / "summary.json").read_text())[0]["jobs"] == 8
    assert len((tmp_path / "jobs-fit.csv").read_text().splitlines()) == 9


def test_the_command_compares_policies_and_names_what_is_missing(profiles: Path, tmp_path: Path) -> None:
    workload = tmp_path / "w.csv"
    workload.write_text("name,time,application,num_replicas,batch_size\na,5,toy,1,32\nb,9,toy,2,64\n")
    runner = CliRunner()
    done = runner.invoke(
        app,
        [
            "simulate",
            "--workload",
            str(workload),
            "--profiles",
            str(profiles),
            "--policy",
            "fit",
            "--policy",
            "goodput",
        ],
    )
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[1].startswith("fit")
    assert done.stdout.splitlines()[2].startswith("goodput")
    missing = runner.invoke(app, ["simulate", "--workload", "nowhere.csv", "--profiles", str(profiles)])
    assert isinstance(missing.exception, NotFoundError)
    workload.write_text("name,when\na,5\n")
    with pytest.raises(InvalidError, match="is no workload"):
        read_workload(workload)


def test_a_journal_is_replayed_and_explained(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    policy = load_policy("fair")
    kept = list(snapshots(5, 20))
    path.write_text("".join(journal.line(s, policy.optimize(s)) + "\n" for s in kept) + '{"snapshot": {')
    entries = list(journal.read(path))
    assert len(entries) == 20, "the half-written last line is left out"
    for entry, snapshot in zip(entries, kept, strict=True):
        assert entry.snapshot.job_names == snapshot.job_names
        assert np.array_equal(entry.snapshot.held_count, snapshot.held_count)
    assert list(journal.differences(iter(entries), policy)) == []
    assert list(journal.differences(iter(entries), load_policy("fit")))
    runner = CliRunner()
    told = runner.invoke(app, ["explain", "--journal", str(path)])
    assert told.exit_code == 0, told.output
    assert len(told.stdout.splitlines()) == kept[-1].jobs
    shown = runner.invoke(app, ["queue", "--journal", str(path)])
    assert shown.stdout.startswith("QUEUE")
    assert len(queue_rows(kept[-1])) == kept[-1].queues * 2


@pytest.mark.skipif(not DATA.is_dir(), reason="no measured workloads (DIFLOW_POLLUX_DATA)")
@pytest.mark.parametrize(("workload", "most"), [("1", 2089.0), ("2", 3323.0)])
def test_measured_workloads_end_sooner_than_under_pollux(workload: str, most: float) -> None:
    row = metrics(
        replay(read_workload(DATA / f"workloads/workload-{workload}.csv"), load(DATA / "traces"), GoodputPolicy())
    )
    assert row.jobs == 160
    assert row.mean < most
    assert row.restarts <= 5
    assert row.very_unfair_share <= 0.01

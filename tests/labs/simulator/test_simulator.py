"""The simulator, with synthetic applications, and with the measured data where it is available."""

from __future__ import annotations

import csv
import json
import os
import shutil
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from diflow.allocator.model.plan import Plan
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.base import load_policy
from diflow.allocator.policies.goodput.policy import GoodputPolicy
from diflow.allocator.policies.settings import PolicySettings
from diflow.allocator.run import journal
from diflow.common.errors import DiflowError, InvalidError
from diflow.labs.simulator import report
from diflow.labs.simulator.cli import app
from diflow.labs.simulator.journal_commands import queue_rows
from diflow.labs.simulator.memory import Memory
from diflow.labs.simulator.metrics import metrics
from diflow.labs.simulator.replay import Pool, Replay, Scenario, replay
from diflow.labs.simulator.truth import Application, Arrival, load, load_pools, read_workload
from tests.policies.generators import snapshots

DATA = Path(os.environ.get("DIFLOW_POLLUX_DATA", Path(__file__).parents[4] / "shared" / "data" / "pollux"))


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
    result = replay(arrivals(), apps, load_policy(name), Scenario(nodes=4))
    assert [o.name for o in result.outcomes] == [f"toy-{i}" for i in range(8)]
    assert all(o.finished > o.started >= o.created for o in result.outcomes)
    held = sum(span.gpus * (span.end - span.begin) for span in result.spans)
    # The chart and the sums are computed separately; they agree except for the last period of each job.
    assert held == pytest.approx(sum(o.gpu_seconds for o in result.outcomes), rel=0.05)


def test_the_same_run_gives_the_same_numbers(apps: dict[str, Application]) -> None:
    slow = PolicySettings(largest_start=1)  # so that jobs grow by what they report

    def run(seed: int) -> Replay:
        return replay(arrivals(), apps, GoodputPolicy(slow), Scenario(nodes=4, noise=0.2, seed=seed))

    first, second, other = run(1), run(1), run(2)
    assert first.outcomes == second.outcomes
    assert first.spans == second.spans
    assert first.outcomes != other.outcomes


def test_a_job_alone_takes_what_its_measured_times_say(apps: dict[str, Application]) -> None:
    """One GPU, one batch size: 8,000 iterations, by hand."""
    result = replay([Arrival("toy-0", 0.0, "toy", 1, 32)], apps, load_policy("fit"), Scenario(nodes=1))
    step = 0.02 + 0.002 * 32
    assert result.outcomes[0].completion == pytest.approx(30.0 + 8000 * step, rel=1e-6)


def test_a_move_costs_what_the_world_says(apps: dict[str, Application]) -> None:
    short, long = (
        metrics(replay(arrivals(), apps, GoodputPolicy(), Scenario(nodes=4, restart_seconds=seconds))).mean
        for seconds in (0.0, 55.0)
    )
    assert long > short + 50


@pytest.mark.parametrize("name", ["fit", "fair", "goodput", "fair+goodput"])
def test_jobs_that_require_a_rack_run_in_one(apps: dict[str, Application], name: str) -> None:
    """4 racks of 4 nodes with 8 GPUs each; jobs of up to 24 GPUs."""
    many = [Arrival(f"toy-{i}", i * 20.0, "toy", (1, 3, 8, 17, 24)[i % 5], 256) for i in range(20)]
    racks = {"nodes": 16, "gpus": 8, "rack_nodes": 4, "block_racks": 2}
    spread: list[int] = []

    def check(snapshot: Snapshot, plan: Plan) -> None:
        assert snapshot.level_names == ("block", "rack")
        for job in range(snapshot.jobs):
            at = snapshot.node_domain[1, plan.node[snapshot.role_job[plan.role] == job]]
            spread.append(len(set(at.tolist())))

    result = replay(many, apps, load_policy(name), Scenario(**racks, required="rack"), on_plan=check)  # type: ignore[arg-type]
    assert len(result.outcomes) == 20
    assert set(spread) <= {0, 1}
    assert 1 in spread


def test_a_required_level_needs_a_topology(apps: dict[str, Application]) -> None:
    for scenario in (Scenario(required="rack"), Scenario(block_racks=2), Scenario(rack_nodes=2, required="block")):
        with pytest.raises(InvalidError, match="a required level needs that level"):
            replay(arrivals(), apps, load_policy("fit"), scenario)


def test_half_the_load_spaces_the_arrivals(apps: dict[str, Application]) -> None:
    result = replay(arrivals(), apps, load_policy("fit"), Scenario(nodes=4, load=0.5))
    assert [o.created for o in result.outcomes] == [i * 240.0 for i in range(8)]


def test_an_unknown_application_is_named(apps: dict[str, Application]) -> None:
    with pytest.raises(InvalidError, match="job x: no profile of 'nothing'; there are toy"):
        replay([Arrival("x", 0.0, "nothing", 1, 1)], apps, load_policy("fit"))


def test_tables_and_pictures_are_written(apps: dict[str, Application], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = replay(arrivals(), apps, load_policy("fit"), Scenario(nodes=4))
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


HEAD = "name,time,application,num_replicas,batch_size\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "is no workload: it needs the columns name, .*, and lacks name, time, application"),
        (b"name,when\na,5\n", "and lacks time, application, num_replicas, batch_size"),
        (HEAD.encode(), "is empty: no job is in it"),
        (b"\xff\xfe\x00junk\n\n\x80", "it is no CSV text"),
        (f"{HEAD}a,5,toy\n", r"line 2: num_replicas must be a whole number from 1 to 1,000,000,000, not ''"),
        (f"{HEAD}a,soon,toy,1,32\n", "line 2: time must be a number, not 'soon'"),
        (f"{HEAD}a,nan,toy,1,32\n", "line 2: time must be a number, not 'nan'"),
        (f"{HEAD}a,0,toy,1,32\nb,-5,toy,1,32\n", "line 3: time must be seconds from 0 to 1e.09, not -5"),
        (f"{HEAD}a,1e12,toy,1,32\n", "line 2: time must be seconds"),
        (f"{HEAD}a,5,toy,0,32\n", "line 2: num_replicas must be a whole number"),
        (f"{HEAD}a,5,toy,1,-32\n", "line 2: batch_size must be a whole number"),
        (f"{HEAD}a,5,toy,1,{'9' * 5000}\n", "line 2: batch_size must be a whole number"),
        (f"{HEAD},5,toy,1,32\n", "line 2: a job needs a name and an application"),
        (f"{HEAD}a,5,toy,1,32\na,6,toy,1,32\n", "line 3: the job 'a' is there twice"),
    ],
)
def test_a_broken_workload_is_named_with_its_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = tmp_path / "w.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(InvalidError, match=message):
        read_workload(path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("placements.csv", "placement,local_bsz\n1,8\n", "and lacks step_time, sync_time"),
        ("placements.csv", "placement,local_bsz,step_time,sync_time\n0,8,1,0\n", "all is above 0"),
        ("placements.csv", "placement,local_bsz,step_time,sync_time\n1,8,1,2\n", "no sync_time is longer"),
        ("scalability.csv", "", "and lacks num_nodes"),
        ("scalability.csv", "num_nodes,num_replicas,local_bsz,step_time,sync_time\n1,1,8,x,0\n", "line 2: step_time"),
        ("validation-32.csv", "progress,grad_sqr,grad_var\n9,1,1\n8,1,1\n", "progress grows from epoch to epoch"),
        ("validation-32.csv", "progress,grad_sqr,grad_var\n9,0,0\n", "are 0 in the same epoch"),
        ("validation-32.csv", None, "two batch sizes B at least"),
    ],
)
def test_a_broken_profile_is_named_with_its_file(
    profiles: Path, tmp_path: Path, name: str, text: str | None, message: str
) -> None:
    made = tmp_path / "toy"
    shutil.copytree(profiles / "toy", made)
    if text is None:
        for path in (made / "validation-128.csv", made / "validation-512.csv"):
            path.unlink()
    else:
        (made / name).write_text(text)
    with pytest.raises(InvalidError, match=message):
        load(tmp_path)


def test_profiles_that_lie_in_a_plane_are_named(profiles: Path, tmp_path: Path) -> None:
    made = tmp_path / "toy"
    shutil.copytree(profiles / "toy", made)
    (made / "placements.csv").write_text("placement,local_bsz,step_time,sync_time\n1,8,1,0\n")
    (made / "scalability.csv").write_text("num_nodes,num_replicas,local_bsz,step_time,sync_time\n1,1,16,1,0\n")
    with pytest.raises(InvalidError, match="must vary in nodes, replicas and local_bsz"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (["--workload", "nowhere.csv"], InvalidError("nowhere.csv cannot be read: No such file")),
        (["--workload", "."], InvalidError("cannot be read: Is a directory")),
        (["--profiles", "nowhere"], InvalidError("there is no folder nowhere")),
        (["--profiles", "."], InvalidError("holds no APP/placements.csv")),
        (["--policy", "fit", "--policy", "nothing"], InvalidError("there is no policy 'nothing'")),
        (["--out", "w.csv"], InvalidError("--out w.csv is a file: give a folder")),
        (["--out", "w.csv/below", "--no-pictures"], DiflowError("w.csv/below cannot be written: Not a directory")),
        (["--restart-seconds", "inf"], InvalidError("--restart-seconds must be at most 86400, not inf")),
        (["--load", "inf"], InvalidError("--load must be a number, not inf")),
        (["--assumed-restart-seconds", "1e9"], InvalidError("--assumed-restart-seconds must be at most 86400")),
        (["--set", "queue_ahead"], InvalidError("--set takes NAME=VALUE with a setting of the policies (ageing_sec")),
        (["--poison", "1"], InvalidError("--poison changes what the jobs of --past have left")),
        (["--past", "nowhere.csv"], InvalidError("nowhere.csv cannot be read")),
        (["--set", "nothing=1"], InvalidError("not 'nothing=1'")),
        (["--set", "queue_ahead=NaN"], InvalidError("DIFLOW_POLICY_QUEUE_AHEAD")),
        (["--set", "steps=allocate"], InvalidError("DIFLOW_POLICY_STEPS")),
        (["-o", "yaml"], InvalidError("--output is text or json")),
        (["--journal", "j"], InvalidError("--journal goes with --policy and -o")),
    ],
)
def test_a_mistake_is_told_and_nothing_is_written(
    profiles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], wrong: DiflowError
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("w.csv").write_text(f"{HEAD}a,5,toy,1,32\n")
    given = {"--workload": ["w.csv"], "--profiles": [str(profiles)], "--policy": ["fit"], "--nodes": ["1"]}
    given["--out"] = ["out"]
    rest = [x for name, value in given.items() if name not in options for x in (name, *value)]
    told = CliRunner().invoke(app, ["simulate", *rest, *options])
    assert type(told.exception) is type(wrong), told.output
    assert str(wrong) in str(told.exception)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["w.csv"]


@pytest.mark.parametrize(
    "options",
    [
        ["--nodes", "0"],
        ["--gpus", "-1"],
        ["--restart-seconds", "nan"],
        ["--load", "0"],
        ["--seed", "-1"],
        ["--noise", "nan"],
        ["--growth", "nan"],
        ["--start", "0"],
    ],
)
def test_numbers_out_of_range_are_a_mistake_in_the_call(options: list[str]) -> None:
    told = CliRunner().invoke(app, ["simulate", *options])
    assert told.exit_code == 2
    assert f"Invalid value for '{options[0]}'" in told.output


def test_without_matplotlib_the_tables_are_written_and_the_lack_of_pictures_is_told(
    profiles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = tmp_path / "w.csv"
    workload.write_text(f"{HEAD}a,5,toy,1,32\n")
    asked = ["simulate", "--workload", str(workload), "--profiles", str(profiles), "--out", str(tmp_path / "out")]
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    tables = ["jobs-fit.csv", "summary.csv", "summary.json"]
    done = CliRunner().invoke(app, [*asked, "--policy", "fit"])
    assert done.exit_code == 0, done.output
    extra = done.stderr.partition("pictures are left out")[2].partition("diflow[")[2].partition("]")[0]
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert any(line.startswith("matplotlib") for line in project["optional-dependencies"][extra])
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == tables
    again = CliRunner().invoke(app, [*asked, "--policy", "fit", "--no-pictures"])
    assert again.exit_code == 0, again.output
    assert "left out" not in again.stderr


def simulated(profiles: Path, folder: Path, *options: str) -> dict[str, float]:
    """The figures of `simulate` with these options, on three jobs."""
    workload = folder / "w.csv"
    workload.write_text(f"{HEAD}a,0,toy,1,32\nb,30,toy,2,64\nc,60,toy,2,64\n")
    asked = ["simulate", "--workload", str(workload), "--profiles", str(profiles), "--nodes", "4", "-o", "json"]
    done = CliRunner().invoke(app, [*asked, *options])
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)
    return {name: value for name, value in row.items() if name not in ("policy", "decision_ms", "decision_cpu_ms")}


@pytest.mark.parametrize(
    "options",
    [
        ["--no-progress"],
        ["--progress-share", "0.5"],
        ["--assumed-restart-seconds", "600"],
        ["--growth", "1"],
        ["--start", "1"],
        ["--set", "most_replicas=1"],
    ],
)
def test_options_of_the_scenario_and_the_policy_change_the_outcome(
    profiles: Path, tmp_path: Path, options: list[str]
) -> None:
    assert simulated(profiles, tmp_path, *options) != simulated(profiles, tmp_path)


def test_jobs_inherit_from_a_workload_that_is_replayed_first(profiles: Path, tmp_path: Path) -> None:
    before = tmp_path / "before.csv"
    before.write_text(HEAD + "".join(f"old-{i},{60 * i},toy,2,64\n" for i in range(4)))
    plain = simulated(profiles, tmp_path)
    inherited = simulated(profiles, tmp_path, "--past", str(before))
    assert inherited["mean"] < plain["mean"]
    assert inherited["restarts"] < plain["restarts"]
    assert simulated(profiles, tmp_path, "--past", str(before), "--poison", "2") != inherited
    assert simulated(profiles, tmp_path, "--past", str(before), "--policy", "fair") == simulated(
        profiles, tmp_path, "--policy", "fair"
    ), "memory does not change whom fair serves"


def test_a_number_that_is_none_is_named() -> None:
    told = CliRunner().invoke(app, ["simulate", "--noise", "nan"])
    assert "must be a number from 0 to 0.9, not 'nan'" in " ".join(told.output.replace("│", " ").split())


def test_no_progress_is_a_share_of_none(profiles: Path, tmp_path: Path) -> None:
    assert simulated(profiles, tmp_path, "--progress-share", "0") == simulated(profiles, tmp_path, "--no-progress")


def test_jobs_that_tell_their_progress_do_not_starve_those_that_do_not(apps: dict[str, Application]) -> None:
    """With a memory, what a silent job has left is known from the jobs before it, so telling gains little."""
    past, many = Memory(), arrivals(24, every=40.0)
    replay(arrivals(6), apps, load_policy("goodput"), Scenario(nodes=4), memory=past)
    half = Scenario(nodes=2, progress_share=0.5)
    result = replay(many, apps, load_policy("goodput"), half, memory=Memory(dict(past.records)))
    tell, silent = (np.mean([o.completion for o in result.outcomes[first::2]]) for first in (1, 0))
    assert silent < 1.25 * tell


def test_any_setting_of_the_policies_can_be_given(profiles: Path, tmp_path: Path) -> None:
    assert simulated(profiles, tmp_path, "--set", "largest_growth=4") == simulated(profiles, tmp_path, "--growth", "4")
    assert simulated(profiles, tmp_path, "--set", "largest_start=4") == simulated(profiles, tmp_path, "--start", "4")
    lists = ["--policy", "fair", "--set", 'steps=["allocate"]', "--set", 'victims=["drf"]']
    assert simulated(profiles, tmp_path, *lists)["jobs"] == 3


def test_figures_have_the_cpu_time_of_calls_beside_their_wall_time(apps: dict[str, Application]) -> None:
    row = metrics(replay(arrivals(2), apps, load_policy("fit"), Scenario(nodes=1)))
    assert row.decision_cpu_ms > 0
    assert "CPU ms" in report.as_text([row])


def test_nights_without_jobs_take_no_time(apps: dict[str, Application]) -> None:
    """A job ten years later: no cycles are spent waiting for it, and it takes as long as the first one."""
    late = 315_360_000.0
    result = replay([Arrival("a", 0.0, "toy", 1, 32), Arrival("b", late, "toy", 1, 32)], apps, load_policy("fit"))
    first, second = result.outcomes
    assert second.completion == pytest.approx(first.completion)
    assert len(result.utilisation) < 100


def test_a_replay_that_does_not_end_is_given_up(apps: dict[str, Application]) -> None:
    with pytest.raises(DiflowError, match="policy fit: the replay did not end within .* days .* still there: toy-0"):
        replay(arrivals(1), apps, load_policy("fit"), Scenario(nodes=1, longest_seconds=60.0))


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
    same, other = journal.compare(path), journal.compare(path, ["fair", "fit"])
    assert same == journal.Comparison(20, {"fair": []})
    assert (other.cycles, other.differences["fair"]) == (20, [])
    assert other.differences["fit"]
    runner = CliRunner()
    told = runner.invoke(app, ["explain", "--journal", str(path)])
    assert told.exit_code == 0, told.output
    assert len(told.stdout.splitlines()) == kept[-1].jobs
    whole = "".join(journal.line(s, policy.optimize(s)) + "\n" for s in kept)
    path.write_text(whole)
    asked = ["simulate", "--journal", str(path), "--policy", "fit", "--policy", "fair", "-o", "json"]
    differ = runner.invoke(app, asked)
    assert differ.exit_code == 0, differ.output
    assert {row["policy"] for row in json.loads(differ.stdout)} == {"fit"}, "fair decided it"
    path.write_text(whole + "\x00\x01 no entry\n")
    broken = runner.invoke(app, asked)
    assert isinstance(broken.exception, InvalidError)
    assert broken.stdout == "", "nothing is shown of a journal that is broken further down"
    path.write_text(whole)
    shown = runner.invoke(app, ["queue", "--journal", str(path)])
    assert shown.stdout.startswith("QUEUE")
    assert len(queue_rows(kept[-1])) == kept[-1].queues * 2


def test_optimus_starves_no_short_job_behind_a_long_one(apps: dict[str, Application]) -> None:
    """A job whose time left any replica reduces most gets none of them before every job has its first."""
    many = [Arrival("long", 0.0, "long", 4, 512), *(Arrival(f"toy-{i}", 60.0 + i, "toy", 1, 32) for i in range(6))]
    long = replace(apps["toy"], name="long", progress=1000 * apps["toy"].progress)

    def check(snapshot: Snapshot, plan: Plan) -> None:
        held = np.bincount(snapshot.role_job[plan.role], weights=plan.count, minlength=snapshot.jobs)
        assert held.min() >= 1
        assert held.sum() == 16, "nothing is left idle that reduces somebody's time left"

    with pytest.raises(DiflowError, match="did not end"):  # the long job is cut off
        replay(
            many,
            {**apps, "long": long},
            load_policy("optimus"),
            Scenario(nodes=4, longest_seconds=1200.0),
            on_plan=check,
        )


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason="no measured workloads (DIFLOW_POLLUX_DATA)")
@pytest.mark.parametrize(("workload", "published"), [("1", 4087.0), ("2", 6914.0), ("3", 3944.0), ("4", 5968.0)])
def test_optimus_takes_as_long_as_in_the_runs_of_the_artifact(workload: str, published: float) -> None:
    arrivals = read_workload(DATA / f"workloads/workload-{workload}.csv")
    row = metrics(replay(arrivals, load(DATA / "traces"), load_policy("optimus")))
    assert row.mean == pytest.approx(published, rel=0.06)


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason="no measured workloads (DIFLOW_POLLUX_DATA)")
@pytest.mark.parametrize(("workload", "most"), [("1", 2089.0), ("2", 3323.0)])
def test_measured_workloads_end_sooner_than_under_pollux(workload: str, most: float) -> None:
    row = metrics(
        replay(read_workload(DATA / f"workloads/workload-{workload}.csv"), load(DATA / "traces"), GoodputPolicy())
    )
    assert row.jobs == 160
    assert row.mean < most
    assert row.restarts <= 5.2
    assert row.very_unfair_share <= 0.01


# -- pools of nodes --


@pytest.fixture(scope="module")
def of_pools(profiles: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The application in two pools: in `fast` all takes a quarter of the time. `slow` alone has the statistics."""
    folder = tmp_path_factory.mktemp("pools")
    shutil.copytree(profiles, folder / "slow")
    (folder / "fast" / "toy").mkdir(parents=True)
    for name in ("placements.csv", "scalability.csv"):
        with (profiles / "toy" / name).open(newline="") as file:
            head, *rows = csv.reader(file)
        made = [[*row[:-2], *(float(cell) / 4 for cell in row[-2:])] for row in rows]
        with (folder / "fast" / "toy" / name).open("w", newline="") as file:
            csv.writer(file).writerows([head, *made])
    return folder


POOLS = (Pool("fast", 1, 4), Pool("slow", 3, 4))


@pytest.fixture(scope="module")
def pooled(of_pools: Path) -> dict[str, Application]:
    return load_pools(of_pools, ["fast", "slow"])


def _of_pool(snapshot: Snapshot, plan: Plan) -> dict[str, set[str]]:
    out: dict[str, set[str]] = {}
    for role, node in zip(plan.role.tolist(), plan.node.tolist(), strict=True):
        name = snapshot.job_names[snapshot.role_job[role]]
        out.setdefault(name, set()).add(snapshot.pool_names[snapshot.node_pool[node]])
    return out


@pytest.mark.parametrize("profiled", [True, False])
def test_jobs_of_several_pools_run_in_one_each_and_come_to_their_end(
    pooled: dict[str, Application], profiled: bool
) -> None:
    seen: list[dict[str, set[str]]] = []
    scenario = Scenario(pools=POOLS, profiled=profiled)
    found = replay(
        arrivals(every=10.0),
        pooled,
        load_policy("goodput"),
        scenario,
        on_plan=lambda s, plan: seen.append(_of_pool(s, plan)),
    )
    assert len(found.outcomes) == 8
    assert all(len(pools) == 1 for plan in seen for pools in plan.values())
    assert {pool for plan in seen for pools in plan.values() for pool in pools} == {"fast", "slow"}


def test_a_job_that_knows_its_times_in_each_pool_uses_the_fast_one(pooled: dict[str, Application]) -> None:
    one = [Arrival("toy-0", 0.0, "toy", 1, 64)]
    seconds = {
        profiled: replay(
            one, pooled, load_policy("goodput"), Scenario(pools=POOLS, profiled=profiled, pool_speed={"slow": 2.0})
        ).outcomes[0].completion
        for profiled in (True, False)
    }  # fmt: skip
    assert seconds[True] < 0.7 * seconds[False], "the setting is wrong, and one is not told better"


def test_a_restart_costs_what_the_application_costs(pooled: dict[str, Application]) -> None:
    one = [Arrival("toy-0", 0.0, "toy", 1, 64)]
    seconds = [
        replay(one, pooled, load_policy("goodput"), Scenario(pools=POOLS, restart_by_application=costs)).outcomes[0]
        for costs in ({}, {"toy": 600.0}, {"other": 600.0})
    ]
    assert seconds[1].completion > seconds[0].completion + 500.0
    assert seconds[2] == seconds[0]


def test_the_largest_batch_of_a_replica_can_be_that_of_a_pool(of_pools: Path) -> None:
    bounded = load_pools(of_pools, ["fast", "slow"], {("fast", "toy"): 16})["toy"].pools
    assert (bounded["fast"].max_local, bounded["slow"].max_local) == (16, 64)
    assert bounded["fast"].local_batches.tolist() == [8, 16]
    with pytest.raises(InvalidError, match="no application 'none' in the pool 'fast'"):
        load_pools(of_pools, ["fast", "slow"], {("fast", "none"): 16})


def test_the_command_has_pools(of_pools: Path, tmp_path: Path) -> None:
    options = ("--pool", "fast=1x4", "--pool", "slow=2x4", "--profiled", "--restart-of", "toy=15", "--no-progress")
    plain = simulated(of_pools, tmp_path, *options)
    assert simulated(of_pools, tmp_path, *options, "--restart-of", "toy=300")["mean"] > plain["mean"]
    assert simulated(of_pools, tmp_path, *options, "--most-local", "fast/toy=8")["mean"] != plain["mean"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--pool", "fast"), "NAME=NODESxGPUS"),
        (("--pool", "fast=0x4"), "NAME=NODESxGPUS"),
        (("--pool", "../x=1x4"), "NAME=NODESxGPUS"),
        (("--pool", "fast=1x4", "--pool", "fast=2x4"), "twice"),
        (("--profiled",), "give them with --pool"),
        (("--pool-speed", "fast=2"), "give them with --pool"),
        (("--pool", "fast=1x4", "--pool-speed", "fast=0"), "NAME=NUMBER"),
        (("--pool", "fast=1x4", "--pool-speed", "slow=2"), "no --pool has"),
        (("--pool", "fast=1x4", "--pool", "none=1x4"), "no folder"),
        (("--pool", "fast=1x4", "--pool", "slow=1x4", "--most-local", "fast=2"), "POOL/APP=SAMPLES"),
        (("--pool", "fast=1x4", "--pool", "slow=1x4", "--restart-of", "none=2"), "no profile"),
        (("--pool", "slow=1x4", "--rack-nodes", "2"), "do not go with --pool"),
    ],
)
def test_a_mistake_in_the_options_of_pools_is_named(
    of_pools: Path, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    workload = tmp_path / "w.csv"
    workload.write_text("name,time,application,num_replicas,batch_size\ntoy-0,0,toy,1,64\n")
    found = CliRunner().invoke(
        app, ["simulate", "--workload", str(workload), "--profiles", str(of_pools), *options], catch_exceptions=True
    )
    assert isinstance(found.exception, InvalidError)
    assert message in str(found.exception)

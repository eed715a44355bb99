"""The CartPole job as real processes on this machine: it solves the environment, and it survives kills."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cartpole.history import Evaluated, History, Played
from cartpole.plot import draw
from cartpole.store import Store

EXAMPLES = Path(__file__).parents[2] / "examples"
LIMIT_SECONDS = 600.0
# They use a whole processor, on a machine that may be busy.
pytestmark = pytest.mark.timeout(1500)
PNG = b"\x89PNG\r\n\x1a\n"


class Run:
    """A run of `cartpole.local`, with its log."""

    def __init__(self, folder: Path, **settings: str) -> None:
        environ = dict(os.environ) | {"PYTHONPATH": str(EXAMPLES), "CARTPOLE_SEED": "1"} | settings
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cartpole.local", "--dir", str(folder), "--collectors", "2"],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.log = ""
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.log += line
                self._changed.notify_all()

    def until(self, pattern: str) -> re.Match[str]:
        """Wait for a line of the log."""
        with self._changed:
            assert self._changed.wait_for(lambda: re.search(pattern, self.log), LIMIT_SECONDS), self.log
            found = re.search(pattern, self.log)
        assert found is not None
        return found

    def pid(self, name: str) -> int:
        """The process id of a replica's first try."""
        return int(self.until(rf"{name} started, pid (\d+)")[1])

    def end(self) -> int:
        """Wait for the end of the job; its exit code."""
        return self.process.wait(LIMIT_SECONDS)

    def close(self) -> None:
        """Stop what still runs, and read the log to its end."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)
        self._reader.join(60)
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def running(folder: Path, **settings: str) -> Iterator[Run]:
    run = Run(folder, **settings)
    try:
        yield run
    finally:
        run.close()


@pytest.mark.slow
def test_the_job_solves_the_environment_and_leaves_a_plot(tmp_path: Path) -> None:
    with running(tmp_path, CARTPOLE_LEARNING_RATE="3e-4") as run:
        assert run.end() == 0, run.log
    solved = run.until(r"solved: mean return ([0-9.]+) over 100 episodes after \d+ s, \d+ updates; plot: (\S+)")
    assert float(solved[1]) >= 475
    assert Path(solved[2]).read_bytes().startswith(PNG)
    assert run.log.count("the job is solved") == 3
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert sum('"episode"' in line for line in lines) > 100
    assert "resumed" not in run.log


@pytest.mark.slow
def test_a_killed_collector_and_a_killed_learner_come_back_and_the_job_ends_well(tmp_path: Path) -> None:
    # Slow enough that it is not solved before the last kill, and fast enough to end soon after it.
    with running(tmp_path, CARTPOLE_LEARNING_RATE="1e-4", CARTPOLE_TARGET="150") as run:
        run.until(r"collector-1 +learner found")
        os.kill(run.pid("collector-1"), signal.SIGKILL)
        run.until(r"collector-1 ended with exit code -9: try 2 of 4")
        run.until(r"(?s)try 2 of 4.*collector-1 +learner found")
        os.kill(run.pid("learner-0"), signal.SIGTERM)
        run.until(r"learner-0 +told to stop: saved at update \d+")
        run.until(r"learner-0 ended with exit code 143: try 2 of 4")
        run.until(r"learner-0 +resumed from a checkpoint: \d+ updates")
        assert run.end() == 0, run.log
    assert "Traceback" not in run.log
    assert run.log.count("the job is solved") == 3


@pytest.mark.slow
def test_a_learner_killed_after_the_end_was_saved_still_tells_its_peers(tmp_path: Path) -> None:
    with running(tmp_path, CARTPOLE_TARGET="40", CARTPOLE_LEARNING_RATE="3e-4") as run:
        assert run.end() == 0, run.log
    # The state after a kill between `saved` and the notice to all peers.
    store = Store(tmp_path)
    store.final.replace(store.newest)
    with running(tmp_path, CARTPOLE_TARGET="40") as run:
        assert run.end() == 0, run.log
    assert re.search(r"resumed from a checkpoint: .*, solved", run.log)
    assert "weights" not in run.log.replace("resumed", "")
    # A run after one that has succeeded starts from the beginning.
    with running(tmp_path, CARTPOLE_TARGET="30", CARTPOLE_LEARNING_RATE="3e-4") as run:
        assert run.end() == 0, run.log
    assert "resumed" not in run.log


@pytest.mark.parametrize("role", ["learner", "collector", "evaluator"])
def test_a_role_without_its_settings_says_so_in_one_line(role: str) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("DI_")}
    done = subprocess.run(
        [sys.executable, "-m", f"cartpole.{role}"],
        env=environ | {"PYTHONPATH": str(EXAMPLES)},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert re.fullmatch(r"error: no learner to talk to: .*\n", done.stderr)


@pytest.mark.parametrize("role", ["collector", "evaluator"])
def test_a_role_that_waits_for_the_learner_ends_at_once_on_sigterm(role: str) -> None:
    environ = dict(os.environ) | {"PYTHONPATH": str(EXAMPLES), "DI_NODES": "127.0.0.1:9", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", f"cartpole.{role}"], env=environ, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert "looking for the learner" in process.stdout.readline()
        process.terminate()
        assert process.wait(LIMIT_SECONDS) == 143


@pytest.mark.parametrize("events", [0, 3])
def test_a_plot_can_be_drawn_of_any_history(tmp_path: Path, events: int) -> None:
    history = History(
        [Played(float(i), 10 * i, float(i)) for i in range(events)],
        [Evaluated(float(i), i, 100, 480.0) for i in range(events)],
    )
    draw(history, tmp_path / "plot.png", target=475)
    assert (tmp_path / "plot.png").read_bytes().startswith(PNG)
    assert [path.name for path in tmp_path.iterdir()] == ["plot.png"]

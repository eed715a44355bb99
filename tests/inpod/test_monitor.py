"""The monitor: it reports for the work, ends when the work has ended, and never fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from diflow.client.wire import GoneError
from diflow.common.clock import SYSTEM, Clock
from diflow.common.errors import UnavailableError
from diflow.inpod import usage
from diflow.inpod.checkpoints import MARKER
from diflow.inpod.monitor import Monitor, Progress, main
from diflow.inpod.usage import Usage

NO_USAGE = Usage()


class Watched:
    """A monitor with the files that it reads, in simulated time."""

    def __init__(self, folder: Path) -> None:
        self.at = 1000.0
        self.sent: list[Mapping[str, Any]] = []
        self.error: Exception | None = None
        self.usage = NO_USAGE
        self.gpu: float | None = None
        self.metrics = folder / "runtime_metrics.json"
        self.exit_code = folder / "exitcode"
        self.source = folder / "memory"
        self.target = folder / "volume"
        self.monitor = Monitor(
            stop=threading.Event(),
            send=self._send,
            metrics=self.metrics,
            source=self.source,
            target=self.target,
            exit_code=self.exit_code,
            grace_seconds=0.5,
            clock=Clock(monotonic=lambda: self.at),
            measure=lambda: self.usage,
            gpus=lambda: self.gpu,
        )

    def _send(self, body: Mapping[str, Any]) -> None:
        if self.error is not None:
            raise self.error
        self.sent.append(body)

    def write(self, step: int, at: float) -> None:
        self.metrics.write_text(json.dumps({"step": step, "timestamp": at}))

    def turns(self, seconds: int) -> None:
        for _ in range(seconds):
            self.monitor.turn()
            self.at += 1

    def checkpoint(self) -> None:
        (self.source / "7").mkdir(parents=True)
        (self.source / "7" / "model").write_text("weights")
        (self.source / "7" / MARKER).touch()


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_steps_are_reported_with_the_time_of_one(watched: Watched) -> None:
    watched.write(10, 100.0)
    watched.turns(1)
    watched.write(30, 110.0)
    watched.turns(20)
    assert watched.sent == [{"step": 10}, {"step": 30, "stepSeconds": 0.5}]


def test_many_steps_make_few_reports(watched: Watched) -> None:
    for second in range(60):
        watched.write(second * 7, float(second))
        watched.turns(1)
    assert len(watched.sent) <= 13


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"step": 5',
        "[1]",
        '{"step": "5", "timestamp": 1}',
        '{"step": -1, "timestamp": 1}',
        '{"step": 1.5, "timestamp": 1}',
        '{"step": 1e400, "timestamp": 1}',
        '{"step": true, "timestamp": 1}',
        '{"step": 5, "timestamp": NaN}',
        '{"step": 5}',
        '{"step": 10000000000000000, "timestamp": 1}',
        "[" * 60_000,
        " " * 100_000 + '{"step": 5, "timestamp": 1}',
    ],
)
def test_what_is_no_step_is_none(watched: Watched, text: str) -> None:
    watched.metrics.write_text(text)
    watched.turns(20)
    assert watched.sent == []


def test_steps_that_go_back_have_no_time() -> None:
    progress = Progress()
    for step, at in ((10, 5.0), (4, 6.0), (5, 6.0), (6, 1e300)):
        assert progress.read(json.dumps({"step": step, "timestamp": at}))
        assert progress.report() == {"step": step}


def test_a_pipe_in_place_of_the_file_does_not_block(watched: Watched) -> None:
    os.mkfifo(watched.metrics)
    watched.turns(3)
    assert watched.sent == []


def test_what_the_work_uses_is_reported_a_few_times_a_minute(watched: Watched) -> None:
    watched.usage, watched.gpu = Usage(12.5, 2**30), 0.75
    watched.turns(60)
    assert watched.sent == [{"cpuSeconds": 12.5, "memoryBytes": 2**30, "gpuUtilization": 0.75}] * 4


def test_without_the_cpu_time_of_the_work_the_monitor_alone_is_no_sign_of_life(watched: Watched) -> None:
    watched.gpu = 0.5
    watched.turns(300)
    assert watched.sent == []
    watched.write(1, 1.0)
    watched.turns(30)
    assert watched.sent == [{"step": 1, "gpuUtilization": 0.5}]


def test_a_server_that_is_away_costs_reports_alone(watched: Watched) -> None:
    watched.usage, watched.error = Usage(1.0, 1), UnavailableError("down")
    watched.turns(20)
    watched.error = None
    watched.turns(15)
    assert len(watched.sent) == 1


def test_when_the_round_is_over_it_reports_no_more(watched: Watched) -> None:
    watched.usage, watched.error = Usage(1.0, 1), GoneError("another round")
    watched.turns(20)
    watched.error = None
    watched.turns(60)
    assert watched.sent == []


def run(watched: Watched) -> threading.Thread:
    thread = threading.Thread(target=watched.monitor.run)
    thread.start()
    return thread


def test_it_ends_with_the_work_and_reports_the_last_step(watched: Watched) -> None:
    watched.write(99, 1.0)
    watched.exit_code.write_text("0")
    thread = run(watched)
    thread.join(20)
    assert not thread.is_alive()
    assert watched.sent == [{"step": 99}]


@pytest.mark.parametrize(("code", "is_saved"), [("0", False), ("1", True), ("137", True), ("143", True)])
def test_a_checkpoint_is_saved_if_the_work_has_not_succeeded(watched: Watched, code: str, is_saved: bool) -> None:
    watched.checkpoint()
    watched.exit_code.write_text(code)
    run(watched).join(20)
    assert (watched.target / "7" / "model").exists() is is_saved


def test_when_the_pod_is_stopped_the_work_may_save_first(watched: Watched) -> None:
    watched.monitor.clock = SYSTEM
    watched.monitor.grace_seconds = 20
    watched.monitor.stop.set()
    thread = run(watched)
    watched.checkpoint()
    watched.exit_code.write_text("143")
    thread.join(20)
    assert (watched.target / "7" / "model").read_text() == "weights"


def test_a_work_that_does_not_end_holds_it_up_for_a_part_of_the_grace_period(watched: Watched) -> None:
    watched.monitor.clock = SYSTEM
    watched.checkpoint()
    watched.monitor.stop.set()
    thread = run(watched)
    thread.join(20)
    assert not thread.is_alive()
    assert (watched.target / "7").exists()  # what is complete now


def test_a_checkpoint_that_cannot_be_saved_fails_nothing(watched: Watched) -> None:
    watched.checkpoint()
    watched.target.write_text("a file")
    watched.exit_code.write_text("1")
    run(watched).join(20)
    assert watched.target.read_text() == "a file"


def test_its_exit_code_is_0_on_a_signal_and_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {**os.environ, "DI_GRACE_SECONDS": "0"}
    with subprocess.Popen([sys.executable, "-m", "diflow.inpod.monitor"], env=environ) as program:
        time.sleep(1.5)
        program.send_signal(signal.SIGTERM)
        assert program.wait(30) == 0

    def broken(_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Monitor, "run", broken)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert main({}) == 0


@pytest.mark.parametrize("grace", ["", "x", "-1", "nan", "1e300"])
def test_a_grace_period_that_is_none_is_kubernetes_own(grace: str) -> None:
    assert Monitor.of({"DI_GRACE_SECONDS": grace}, threading.Event()).grace_seconds == 30


def test_checkpoints_of_each_rank_have_a_folder_of_their_own() -> None:
    environ = {"DI_CHECKPOINT_FOLDER": "/dev/shm/x", "DI_CHECKPOINT_TARGET": "/checkpoints/a", "DI_RANK": "3"}
    made = Monitor.of(environ, threading.Event())
    assert made.target == Path("/checkpoints/a/rank-3")
    assert Monitor.of({}, threading.Event()).target is None


# --- what can be seen of the work -------------------------------------------------------------------------------------


def group_v2(root: Path, *, micros: int, memory: int) -> None:
    folder = root / "sys/fs/cgroup"
    folder.mkdir(parents=True)
    (folder / "cpu.stat").write_text(f"usage_usec {micros}\nuser_usec 1\nsystem_usec 2\n")
    (folder / "memory.current").write_text(f"{memory}\n")


def process(proc: Path, number: str, group: str, command: str, **used: int) -> Path:
    folder = proc / number
    folder.mkdir(parents=True)
    (folder / "cgroup").write_text(f"0::/{group}\n")
    (folder / "cmdline").write_text(command.replace(" ", "\0"))
    if used:
        group_v2(folder / "root", **used)
    return folder


def test_of_a_shared_process_namespace_the_group_of_the_work_is_read(tmp_path: Path) -> None:
    process(tmp_path, "1", "../pause", "/pause")
    process(tmp_path, "7", "../wait", "/bin/argoexec wait", micros=9_000_000, memory=9)
    process(tmp_path, "20", "../work", "/var/run/argo/argoexec emissary -- python", micros=2_500_000, memory=2**30)
    process(tmp_path, "21", "../work", "python train.py", micros=2_500_000, memory=2**30)
    process(tmp_path, "30", "", "python3 -m diflow.inpod.monitor", micros=1, memory=1)
    (tmp_path / "self").symlink_to(tmp_path / "30")
    assert usage.of_work(tmp_path) == Usage(2.5, 2**30)


def test_alone_in_its_namespace_it_sees_nothing_of_the_work(tmp_path: Path) -> None:
    process(tmp_path, "1", "", "argoexec emissary", micros=1, memory=1)
    process(tmp_path, "8", "", "python3 -m diflow.inpod.monitor", micros=1, memory=1)
    (tmp_path / "self").symlink_to(tmp_path / "8")
    assert usage.of_work(tmp_path) == Usage()
    assert usage.of_work(tmp_path / "missing") == Usage()


def test_a_control_group_of_version_1(tmp_path: Path) -> None:
    for name, value in (("cpuacct/cpuacct.usage", 1_500_000_000), ("memory/memory.usage_in_bytes", 4096)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(f"{value}\n")
    assert usage.of_group(tmp_path) == Usage(1.5, 4096)


def test_a_control_group_with_anything_else(tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("usage_usec -5 user")
    (tmp_path / "memory.current").write_text("max")
    assert usage.of_group(tmp_path) == Usage()


def test_gpus_are_seen_by_the_tool_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nprintf '80, 100\\n40, 200\\n[N/A], 1\\n'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert usage.Gpus()() == 0.6
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert usage.Gpus()() is None
    tool.write_text("#!/bin/sh\nprintf '80, 100\\n'; exec >&-; sleep 0.2\n")
    assert usage.Gpus()() == 0.8
    assert usage.Gpus(("no-such-tool",))() is None


@pytest.mark.parametrize("script", ["exec sleep 30", "sleep 30 & exit 0", "yes", "cat /dev/zero", "exec >&-; sleep 30"])
def test_a_tool_that_hangs_or_does_not_stop_printing_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    ended: list[int] = []
    kill = os.killpg

    def killed(group: int, number: int) -> None:
        ended.append(group)
        kill(group, number)

    monkeypatch.setattr(os, "killpg", killed)
    assert usage.Gpus(seconds=0.3)() is None
    assert len(ended) == 1


def test_beside_a_tool_that_nothing_ends_no_other_one_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\necho x >> {tmp_path}/started\nexec sleep 30\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(usage, "_END_SECONDS", 0.1)
    gpus, kill = usage.Gpus(seconds=1.0), os.killpg
    groups: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, _: groups.append(group))  # its driver hangs
    assert [gpus(), gpus(), gpus()] == [None] * 3
    assert (tmp_path / "started").read_text() == "x\n"
    kill(groups[0], signal.SIGKILL)
    assert gpus._hung is not None
    gpus._hung.wait(10)
    monkeypatch.setattr(os, "killpg", kill)
    tool.write_text("#!/bin/sh\necho 50\n")
    assert gpus() == 0.5


def test_of_a_pipe_that_somebody_has_open_nothing_is_read(watched: Watched) -> None:
    os.mkfifo(watched.metrics)
    os.mkfifo(watched.exit_code)
    files = [os.open(path, os.O_RDWR) for path in (watched.metrics, watched.exit_code)]
    try:
        watched.turns(3)
        assert watched.monitor.ended() is None
        os.write(files[0], b'{"step": 5, "timestamp": 1}')
        watched.turns(20)
    finally:
        for file in files:
            os.close(file)
    assert watched.sent == []


@pytest.mark.parametrize("to", ["/dev/zero", "/dev/tty", "/dev/full", "/proc/kmsg", "/proc/self/mem", "/", "missing"])
def test_a_link_in_place_of_the_file_shows_nothing(watched: Watched, to: str) -> None:
    watched.metrics.symlink_to(to)
    watched.turns(3)
    assert watched.sent == []


def test_a_pipe_in_place_of_a_control_group_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "cpu.stat")
    assert usage.of_group(tmp_path) == Usage()

"""The supervisor in a separate process, with small programs instead of the servers."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.components import Component
from cluster.paths import REPOSITORY
from cluster.plan import Plan

_SCRIPT = """
import sys
from cluster import supervisor
from cluster.components import Component
from cluster.plan import Plan
supervisor.components = lambda plan: {components}
supervisor.Supervisor(Plan.from_json(open(sys.argv[1]).read())).run()
"""
_SERVER = (
    "import os, socket, sys, time\n"
    "server = socket.socket(socket.AF_UNIX)\n"
    "path = sys.argv[1]\n"
    "if os.path.exists(path): os.unlink(path)\n"
    "server.bind(path)\n"
    "server.listen(100)\n"
    "time.sleep(float(sys.argv[2]))\n"
)


def server(name: str, folder: Path, *, seconds: float = 1000, after: tuple[str, ...] = ()) -> Component:
    """A component that is healthy as soon as its socket listens, and ends after a while."""
    socket = str(folder / f"{name}.sock")
    return Component(name, (sys.executable, "-c", _SERVER, socket, str(seconds)), f"unix:{socket}", after=after)


class Supervised:
    """A running supervisor."""

    def __init__(self, folder: Path, components: tuple[Component, ...]) -> None:
        for name in ("logs", "wanted", "volumes"):
            (folder / name).mkdir(exist_ok=True)
        (folder / "state.json").write_text(Plan("x", str(folder), "10.230.0.0/16", "none", {}).to_json())
        self._status = folder / "status.json"
        script = _SCRIPT.format(components=repr(components))
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, str(folder / "state.json")], cwd=REPOSITORY, stderr=subprocess.PIPE
        )

    def wait_for(self, test: Callable[[dict[str, Any]], bool], seconds: float = 100) -> dict[str, Any]:
        """Wait for a status that `test` accepts."""
        deadline = time.monotonic() + seconds
        status: dict[str, Any] = {}
        while time.monotonic() < deadline:
            if self._status.exists():
                status = json.loads(self._status.read_text())["components"]
                if test(status):
                    return status
            time.sleep(0.02)
        raise AssertionError(f"not within {seconds} s; the last status was {status}")


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[..., Supervised]]:
    """Starts supervisors, and ends them with all their processes."""
    started: list[Supervised] = []

    def start(*components: Component) -> Supervised:
        started.append(Supervised(tmp_path, components))
        return started[-1]

    yield start
    for each in started:
        children = Path(f"/proc/{each.process.pid}/task/{each.process.pid}/children").read_text().split()
        each.process.terminate()
        each.process.communicate(timeout=60)
        for child in children:
            subprocess.run(["kill", "-9", child], check=False, capture_output=True)


def test_a_component_starts_only_when_what_it_needs_is_well(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    never = Component("never", (sys.executable, "-c", "import time; time.sleep(1000)"), f"unix:{tmp_path}/no.sock")
    running = supervise(server("first", tmp_path), never, server("second", tmp_path, after=("first", "never")))
    status = running.wait_for(lambda s: bool(s["first"]["healthy"] and s["never"]["starts"]))
    assert status["second"]["starts"] == 0
    assert not status["never"]["healthy"]


def test_a_component_that_dies_is_started_again(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    running = supervise(server("short", tmp_path, seconds=0.7))
    status = running.wait_for(lambda s: bool(s["short"]["starts"] >= 2))
    assert status["short"]["lastExit"] == 0
    assert status["short"]["problem"] == ""


def test_a_component_that_cannot_start_is_reported_with_its_exit_code_and_its_words_are_in_its_log(
    supervise: Callable[..., Supervised],
) -> None:
    bad = Component("bad", (sys.executable, "-c", "import sys; print('no such flag'); sys.exit(7)"), "unix:/nowhere")
    status = supervise(bad).wait_for(lambda s: bool(s["bad"]["problem"]))
    assert "with code 7" in status["bad"]["problem"]
    assert "no such flag" in Path(status["bad"]["log"]).read_text()


def test_a_component_whose_program_is_missing_is_reported(supervise: Callable[..., Supervised]) -> None:
    status = supervise(Component("gone", ("/nowhere/gone",), "unix:/nowhere")).wait_for(
        lambda s: bool(s["gone"]["problem"])
    )
    assert "/nowhere/gone" in Path(status["gone"]["log"]).read_text()


def test_a_component_that_never_answers_is_reported_when_its_time_is_up(
    supervise: Callable[..., Supervised],
) -> None:
    mute = Component(
        "mute", (sys.executable, "-c", "import time; time.sleep(1000)"), "unix:/nowhere", ready_seconds=0.3
    )
    status = supervise(mute).wait_for(lambda s: bool(s["mute"]["problem"]))
    assert "no good answer at unix:/nowhere" in status["mute"]["problem"]


def test_an_optional_component_runs_when_it_is_asked_for(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    socket = str(tmp_path / "extra.sock")
    command = (sys.executable, "-c", _SERVER, socket, "1000")
    running = supervise(server("base", tmp_path), Component("extra", command, f"unix:{socket}", optional=True))
    assert "extra" not in running.wait_for(lambda s: bool(s["base"]["healthy"]))
    (tmp_path / "wanted" / "extra").touch()
    running.wait_for(lambda s: "extra" in s and bool(s["extra"]["healthy"]))


def test_a_fresh_volume_is_opened_to_every_user(supervise: Callable[..., Supervised], tmp_path: Path) -> None:
    running = supervise(server("base", tmp_path))
    running.wait_for(lambda s: bool(s["base"]["healthy"]))
    volume = tmp_path / "volumes" / "claim"
    volume.mkdir(mode=0o750)
    deadline = time.monotonic() + 100
    while volume.stat().st_mode & 0o777 != 0o777:
        assert time.monotonic() < deadline
        time.sleep(0.02)

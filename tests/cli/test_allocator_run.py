"""`diflow allocator run`: the process, its signals, its leadership, its pages."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from diflow.allocator.run.daemon import Cycle
from diflow.allocator.run.telemetry import STILL_SECONDS, STUCK_SECONDS, Telemetry
from diflow.allocator.settings import AllocatorSettings
from diflow.common.clock import Clock
from diflow.daemon.logs import configure_log
from diflow.daemon.process import Tenure
from diflow.kube.kinds import LEASE
from tests.cli.runner import Cli, run

_ROOT = Path(__file__).parents[2]
_SYSTEM = "diflow-system"
_PATIENCE_SECONDS = 60.0


class Daemon:
    """The allocator, or another daemon, as a process, and its log."""

    def __init__(self, diflow: Cli, *args: str, group: str = "allocator") -> None:
        self.log = diflow.folder / "log"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "diflow", group, "run", "--kubeconfig", str(diflow.kubeconfig), *args],
                stderr=out,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": str(_ROOT)},
                cwd=diflow.folder,
            )

    def lines(self) -> list[dict[str, Any]]:
        """The log so far."""
        return [json.loads(line) for line in self.log.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def said(self, event: str) -> dict[str, Any]:
        """Wait for a log line."""
        found: dict[str, Any] = until(lambda: next((line for line in self.lines() if line["event"] == event), None))
        return found

    def ended(self) -> int:
        return self.process.wait(timeout=_PATIENCE_SECONDS)


def until(ask: Callable[[], Any]) -> Any:
    """Call until the value is true, and return it."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        answer = ask()
        if answer:
            return answer
        assert time.monotonic() < deadline, "nothing came"
        time.sleep(0.05)


@pytest.fixture
def daemon(diflow: Cli) -> Iterator[Callable[..., Daemon]]:
    """Starts the allocator; ends it with the test."""
    started: list[Daemon] = []

    def start(*args: str) -> Daemon:
        started.append(Daemon(diflow, *args))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()
        assert one.process.stdout is not None
        one.process.stdout.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def page(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


def release(diflow: Cli) -> None:
    """A Lease that was released: any process may take it at once."""
    diflow.api.add(
        LEASE,
        {"metadata": {"name": "diflow-allocator"}, "spec": {"holderIdentity": "", "leaseTransitions": 3}},
        namespace=_SYSTEM,
    )


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_it_leads_serves_its_pages_and_gives_the_lease_back_when_told_to_end(
    diflow: Cli, daemon: Callable[..., Daemon]
) -> None:
    release(diflow)
    port = free_port()
    one = daemon("--metrics-port", str(port), "--journal", str(diflow.folder / "journal"))
    assert one.said("leading")["epoch"] == 4
    assert until(lambda: page(port, "/readyz") == (200, "leading\n"))
    assert page(port, "/healthz") == (200, "ok\n")
    assert page(port, "/nothing")[0] == 404
    text = until(lambda: (found := page(port, "/metrics")[1]) and 'cycles_total{planned="yes"} 1' in found and found)
    assert "diflow_allocator_leader 1.0" in text
    assert "process_resident_memory_bytes" in text
    assert lease(diflow)["spec"]["holderIdentity"] == one.said("started")["identity"]
    one.process.terminate()
    assert one.ended() == 0
    assert lease(diflow)["spec"]["holderIdentity"] == ""
    assert one.lines()[-1]["event"] == "ended"


def meanwhile(diflow: Cli, step: Callable[[], object]) -> threading.Thread:
    """Do this once the allocator leads."""

    def run() -> None:
        until(lambda: lease(diflow)["spec"]["leaseTransitions"] == 4)
        step()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def lease(diflow: Cli) -> dict[str, Any]:
    found: dict[str, Any] = diflow.api.objects[LEASE.path(_SYSTEM)]["diflow-allocator"]
    return found


def test_it_ends_with_5_when_another_process_took_the_lead(diflow: Cli) -> None:
    release(diflow)
    taken = {"metadata": {"name": "diflow-allocator"}, "spec": {"holderIdentity": "another", "leaseTransitions": 9}}
    thread = meanwhile(diflow, lambda: diflow.api.add(LEASE, taken, namespace=_SYSTEM))
    result = diflow("allocator", "run", "--log-format", "json")
    thread.join(20)
    assert result.code == 5
    assert "another holds the Lease now" in next(line for line in result.err.splitlines() if "the lead is lost" in line)
    assert json.loads(result.err.splitlines()[-1]) | {"timestamp": ""} == {
        "event": "ended", "code": 5, "level": "info", "timestamp": "",
    }  # fmt: skip
    assert lease(diflow)["spec"]["holderIdentity"] == "another"


def test_ctrl_c_ends_it_as_term_does_and_signals_are_as_before_afterwards(diflow: Cli) -> None:
    release(diflow)
    before = signal.getsignal(signal.SIGINT)
    thread = meanwhile(diflow, lambda: os.kill(os.getpid(), signal.SIGINT))
    result = diflow("allocator", "run", "--log-format", "text")
    thread.join(20)
    assert result.code == 0, result.err
    assert "leading" in result.err
    assert lease(diflow)["spec"]["holderIdentity"] == ""
    assert signal.getsignal(signal.SIGINT) is before


def test_a_port_that_is_taken_and_an_unknown_policy_end_it_at_once(diflow: Cli) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        result = diflow("allocator", "run", "--metrics-port", str(taken.getsockname()[1]))
    assert result.code == 2
    assert "for metrics cannot be used: Address already in use" in result.err
    assert diflow("allocator", "run", "--policy", "best").code == 2
    assert diflow.api.objects == {}


def test_a_setting_that_is_wrong_is_named(diflow: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIFLOW_ALLOCATOR_PERIOD_SECONDS", "0")
    result = diflow("allocator", "run")
    assert result.code == 2
    assert "DIFLOW_ALLOCATOR_PERIOD_SECONDS: must be a number of more than 0 and at most 3,600, not '0'" in result.err


def test_without_the_packages_of_the_allocator_it_says_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in ("numpy", "scipy") else name)
    result = run("plan")
    assert result.code == 5
    assert "needs the Python packages numpy, scipy: pip install 'diflow[allocator]'" in result.err


class StillElector:
    """An elector that leads, or does not."""

    def __init__(self, *, leads: bool = True, leading_seconds: float = 1e9) -> None:
        self.leads, self.trouble, self.holder = leads, "", "another"
        self.leading_seconds = leading_seconds

    def is_leader(self) -> bool:
        return self.leads


class StillAllocator:
    """An allocator whose loop last turned at `woke`, with caches that have this trouble."""

    def __init__(self, *, woke: float = 0.0, trouble: str = "", last_trouble: str = "", stuck: float = 0.0) -> None:
        self.woke, self.last, self.last_trouble, self.stuck_seconds = woke, None, last_trouble, stuck
        self.failing_seconds = 7.0 if last_trouble else 0.0
        self.settings = AllocatorSettings()
        self.caches = SimpleNamespace(trouble=lambda: trouble, late=dict, age_seconds=0.0)
        self.executor = SimpleNamespace(refusals=lambda: {"default/job": "no"})
        self.health = SimpleNamespace(counts={"silent": 2}, restarts=1, slow_nodes={"node-1": (("x", "a"), ("x", "b"))})

    def paused(self) -> str:
        return "jane"


def told(elector: Any, allocator: Any, now: float = 0.0) -> Telemetry:
    telemetry = Telemetry(elector, clock=Clock(monotonic=lambda: now))
    telemetry.watch(allocator)
    return telemetry


def test_a_loop_that_stands_still_is_ill_but_not_while_another_process_leads() -> None:
    longest = STILL_SECONDS + AllocatorSettings().policy_seconds
    assert told(StillElector(), StillAllocator(), now=longest - 1).health() == ""
    assert told(StillElector(), StillAllocator(), now=longest + 20).health() == "the loop has stood still for 60 s"
    assert told(StillElector(leads=False), StillAllocator(), now=1e6).health() == ""


def test_the_time_of_a_standby_process_is_no_hang_of_the_leader_that_it_becomes() -> None:
    assert told(StillElector(leading_seconds=3.0), StillAllocator(), now=1e6).health() == ""
    assert told(StillElector(leading_seconds=60.0), StillAllocator(), now=1e6).health() == (
        "the loop has stood still for 60 s"
    )


def test_a_policy_that_never_comes_back_needs_another_process() -> None:
    assert told(StillElector(), StillAllocator(stuck=STUCK_SECONDS - 1)).health() == ""
    assert "has not returned for 61 s" in told(StillElector(), StillAllocator(stuck=STUCK_SECONDS + 1)).health()


def test_a_leader_of_which_no_plan_succeeds_is_not_ready_at_once_and_says_for_how_long() -> None:
    telemetry = told(StillElector(), StillAllocator(last_trouble="policy bad failed"))
    assert telemetry.readiness() == (False, "policy bad failed")
    assert telemetry.health() == "", "another process would fare no better"
    assert telemetry.registry.get_sample_value("diflow_allocator_failing_seconds") == 7.0


def test_a_leader_that_hangs_gives_its_lead_up() -> None:
    elector = StillElector()
    given_up: list[str] = []
    telemetry = Telemetry(elector, clock=Clock(monotonic=lambda: 500.0))  # type: ignore[arg-type]
    telemetry.watch(StillAllocator())  # type: ignore[arg-type]
    tenure = Tenure("diflow.allocator")
    tenure.watch(telemetry, given_up.append, every_seconds=0.01)
    try:
        assert until(lambda: given_up)[0] == "the loop has stood still for 500 s"
    finally:
        tenure.end()


def test_a_leader_that_sees_nothing_is_not_ready_and_neither_is_one_that_cannot_reach_its_lease() -> None:
    assert told(StillElector(), StillAllocator(trouble="a silent watch")).readiness() == (False, "a silent watch")
    assert told(StillElector(), StillAllocator()).readiness() == (True, "leading")
    elector = StillElector(leads=False)
    elector.trouble = "no cluster answers"
    assert told(elector, StillAllocator()).readiness() == (False, "no cluster answers")


def test_cycles_are_counted_with_their_times_and_their_writes() -> None:
    telemetry = told(StillElector(), StillAllocator())
    telemetry.cycle(Cycle(planned="start", seconds=0.2, policy_seconds=0.1, writes=3, jobs=4))
    telemetry.cycle(Cycle(planned="", seconds=0.02, policy_seconds=0.0, writes=1, jobs=5))
    telemetry.cycle(Cycle(planned="", seconds=0.01, policy_seconds=0.0, writes=0, jobs=0, trouble="a silent watch"))
    value = telemetry.registry.get_sample_value
    assert value("diflow_allocator_cycles_total", {"planned": "yes"}) == 1
    assert value("diflow_allocator_cycles_total", {"planned": "no"}) == 2
    assert value("diflow_allocator_policy_seconds_count") == 1
    assert value("diflow_allocator_writes_total") == 4
    assert value("diflow_allocator_blind_cycles_total") == 1
    assert value("diflow_allocator_jobs") == 5
    assert value("diflow_allocator_refused_jobs") == 1
    assert value("diflow_allocator_unhealthy_jobs", {"state": "silent"}) == 2
    assert (value("diflow_allocator_leader"), value("diflow_allocator_paused")) == (1, 1)


def text_of_log(capsys: pytest.CaptureFixture[str], word: str) -> str:
    """What was logged since the last call, if `word` is in it."""
    err = capsys.readouterr().err
    return err if word in err else ""


def test_troubles_are_logged_once_each_and_their_end_too(capsys: pytest.CaptureFixture[str]) -> None:
    elector = StillElector(leads=False)
    telemetry = Telemetry(elector)  # type: ignore[arg-type]
    configure_log("json")
    tenure = Tenure("diflow.allocator")
    try:
        tenure.watch(telemetry, lambda _: None, every_seconds=0.01)
        said = ""
        for trouble, text in (("no cluster answers", "no cluster answers"), ("", "standing by; another leads")):
            elector.trouble = trouble
            said += until(partial(text_of_log, capsys, text))
    finally:
        tenure.end()
        structlog.reset_defaults()
    assert said.count("no cluster answers") == 1
    assert said.count("standing by") <= 2

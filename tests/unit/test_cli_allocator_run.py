"""`diflow allocator run`: the process, its signals, its lead, its pages."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from diflow.client.kinds import LEASE
from tests.unit.cli import Cli

_ROOT = Path(__file__).parents[2]
_SYSTEM = "diflow-system"
_PATIENCE_SECONDS = 60.0


class Daemon:
    """The allocator as a process, and what it says."""

    def __init__(self, diflow: Cli, *args: str) -> None:
        self.log = diflow.folder / "log"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "diflow", "allocator", "run", "--kubeconfig", str(diflow.kubeconfig), *args],
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
        return until(lambda: next((line for line in self.lines() if line["event"] == event), None))

    def ended(self) -> int:
        return self.process.wait(timeout=_PATIENCE_SECONDS)


def until(ask: Callable[[], Any]) -> Any:
    """Ask until there is an answer."""
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
    """A Lease that was held once and given up: whoever comes may take it at once."""
    diflow.api.add(
        LEASE,
        {"metadata": {"name": "diflow-allocator"}, "spec": {"holderIdentity": "", "leaseTransitions": 3}},
        namespace=_SYSTEM,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_leads_serves_its_pages_and_gives_the_lease_back_when_told_to_end(
    diflow: Cli, daemon: Callable[..., Daemon], number: signal.Signals
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
    lease = diflow.api.objects[LEASE.path(_SYSTEM)]["diflow-allocator"]
    assert lease["spec"]["holderIdentity"] == one.said("started")["identity"]
    one.process.send_signal(number)
    assert one.ended() == 0
    assert diflow.api.objects[LEASE.path(_SYSTEM)]["diflow-allocator"]["spec"]["holderIdentity"] == ""
    assert one.lines()[-1]["event"] == "ended"


def test_it_ends_with_5_when_another_process_took_the_lead(diflow: Cli, daemon: Callable[..., Daemon]) -> None:
    release(diflow)
    one = daemon()
    one.said("leading")
    diflow.api.add(
        LEASE,
        {"metadata": {"name": "diflow-allocator"}, "spec": {"holderIdentity": "another", "leaseTransitions": 9}},
        namespace=_SYSTEM,
    )
    assert one.ended() == 5
    assert "another holds the Lease now" in one.said("the lead is lost")["why"]
    assert diflow.api.objects[LEASE.path(_SYSTEM)]["diflow-allocator"]["spec"]["holderIdentity"] == "another"

"""A server in a process of its own, to test its memory, signals and shutdown."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import measuring
from tests.server.wire import get

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 60.0
SERVED_APP = ("-m", "tests.server.servedapp")


@dataclass
class Served:
    """A running server."""

    process: subprocess.Popen[str]
    log: Path
    port: int = 0
    metrics_port: int = 0
    said: list[Any] = field(default_factory=list)

    def peak_mib(self) -> float:
        """Its peak memory."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) / 1024

    def lines(self) -> list[dict[str, Any]]:
        """Its log."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's series that have these labels."""
        page = get(self.metrics_port, "/metrics").body.decode()
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        rows = [line for line in page.splitlines() if line.split("{")[0].split()[0] == name]
        return sum(float(line.split()[-1]) for line in rows if all(one in line for one in wanted))

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def ended(self) -> int:
        """Its exit code."""
        return self.process.wait(PATIENCE_SECONDS)


@contextmanager
def served(command: Sequence[str] = SERVED_APP, *, on: set[int] | None = None, **settings: object) -> Iterator[Served]:
    """Start `python COMMAND` with these DIFLOW_SERVER_ settings on free ports; it is killed at the end.

    `on`: the processors that it may run on.
    """
    given = {"host": "127.0.0.1", "port": 0, "metrics_port": 0, "drain_seconds": 0.2, **settings}
    variables = {f"DIFLOW_SERVER_{name.upper()}": str(value) for name, value in given.items()}
    with tempfile.TemporaryDirectory(prefix="diflow-server-") as folder:
        log = Path(folder) / "log"
        with log.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, *command],
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                cwd=ROOT,
                env={**os.environ, **variables, **measuring.variables()},
            )
        if on:
            os.sched_setaffinity(process.pid, on)
        found = Served(process, log)
        try:
            until(lambda: process.poll() is not None or _started(found), "it has started")
            if process.poll() is not None:
                raise AssertionError(f"the server has ended: {log.read_text()}")
            yield found
        finally:
            if measuring.variables():
                # What is killed does not write what it measured.
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(PATIENCE_SECONDS)
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _started(found: Served) -> bool:
    for line in found.lines():
        if line["event"] == "started":
            found.port, found.metrics_port = line["port"], line["metrics_port"]
            return True
    return False


def until(true: Callable[[], object], what: str) -> None:
    """Wait until it is true; fail after a long time."""
    ends = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < ends, f"this never came about: {what}"
        time.sleep(0.01)

"""`python3 -m diflow.inpod.monitor`: the monitor, a container beside the work of a pod.

It reads the file in which DLRover's trainers write their step (RUNTIME_METRICS_PATH), and what the work uses, and
reports both. When the work has ended without success, it saves the checkpoint that it left in memory. It never fails
and ends by itself: Argo fails a pod because of a container beside the work that fails, and waits for those that run.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from diflow.client.place import Place, find
from diflow.client.wire import GoneError, Wire
from diflow.common.clock import SYSTEM, Clock
from diflow.common.errors import DiflowError
from diflow.inpod import checkpoints, usage
from diflow.inpod.checkpoints import CheckpointError
from diflow.inpod.files import head
from diflow.inpod.usage import Usage
from diflow.record import untrusted

EXIT_CODE: Final = Path("/var/run/argo/ctr/main/exitcode")
"""Argo's executor in the work's container writes the exit code of the work here, in a volume of all containers."""
_READ_SECONDS: Final = 1.0
_STEP_SECONDS: Final = 5.0  # the shortest time between two reports of new steps
_USAGE_SECONDS: Final = 15.0  # a quarter of the shortest deadline of a job's health
_ANSWER_SECONDS: Final = 5.0
_MOST_BYTES: Final = 64 * 1024
_MOST_STEPS: Final = 10**15
_SHORTEST, _LONGEST = 1e-7, 1e6  # seconds of a step that the server accepts
_GRACE_SECONDS: Final = 30.0
_SAVING_SHARE: Final = 0.3  # of the grace period, for the checkpoint

log = logging.getLogger("diflow.monitor")

Send = Callable[[Mapping[str, Any]], object]
"""Sends a report. Raises DiflowError."""


def main(environ: Mapping[str, str] | None = None) -> int:
    """Run beside the work until it has ended. Always returns 0."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    environ = os.environ if environ is None else environ
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        Monitor.of(environ, stop).run()
    except Exception:  # of the monitor, and not of the work
        log.exception("the monitor has ended")
    return 0


@dataclass
class Progress:
    """The steps that the trainer has written, and the time of one between the last two reports."""

    step: int | None = None
    at: float = 0.0
    reported: tuple[int, float] | None = None

    def read(self, text: str) -> bool:
        """Take the content of the file. Whether it has a new step; half a file, or anything else, has none."""
        data = untrusted.mapping(text)
        step, at = data.get("step"), untrusted.number(data.get("timestamp"))
        if not untrusted.is_count(step, least=0, most=_MOST_STEPS) or at is None or step == self.step:
            return False
        self.step, self.at = step, at
        return True

    def report(self) -> dict[str, Any]:
        """The fields of a report."""
        if self.step is None:
            return {}
        out: dict[str, Any] = {"step": self.step}
        if self.reported is not None:
            steps, seconds = self.step - self.reported[0], self.at - self.reported[1]
            if steps > 0 and _SHORTEST < seconds / steps < _LONGEST:
                out["stepSeconds"] = float(f"{seconds / steps:.6g}")
        self.reported = (self.step, self.at)
        return out


@dataclass
class Monitor:
    """The monitor of one pod. `target`: the folder for checkpoints, None if they are not saved."""

    stop: threading.Event
    send: Send | None = None
    metrics: Path | None = None
    source: Path | None = None
    target: Path | None = None
    exit_code: Path = EXIT_CODE
    grace_seconds: float = _GRACE_SECONDS
    clock: Clock = SYSTEM
    measure: Callable[[], Usage] = usage.of_work
    gpus: Callable[[], float | None] = field(default_factory=usage.Gpus)
    progress: Progress = field(default_factory=Progress)
    _step_due: float = 0.0
    _usage_due: float = 0.0
    _is_new: bool = False

    @classmethod
    def of(cls, environ: Mapping[str, str], stop: threading.Event) -> Monitor:
        """From the environment of the container."""
        place = find(environ)
        metrics, source, target = (
            environ.get(name, "") for name in ("RUNTIME_METRICS_PATH", "DI_CHECKPOINT_FOLDER", "DI_CHECKPOINT_TARGET")
        )
        try:
            grace = float(environ.get("DI_GRACE_SECONDS", ""))
        except ValueError:
            grace = _GRACE_SECONDS
        rank = untrusted.whole(environ.get("DI_RANK"), digits=6)
        return cls(
            stop=stop,
            send=None if place is None else _sender(place),
            metrics=Path(metrics) if metrics else None,
            source=Path(source) if source else None,
            target=Path(target) / f"rank-{rank or 0}" if target else None,
            grace_seconds=grace if 0 <= grace < 1e9 else _GRACE_SECONDS,
        )

    def run(self) -> None:
        """Watch until the work has ended, or this container gets SIGTERM."""
        while not self.stop.wait(_READ_SECONDS) and self.ended() is None:
            self.turn()
        if self.ended() is None:
            # The pod is being stopped: the work has the same time to end, and saves in it what it can.
            until = self.clock.monotonic() + (1 - _SAVING_SHARE) * self.grace_seconds
            while self.ended() is None and self.clock.monotonic() < until:
                time.sleep(0.1)
        self.last()

    def turn(self) -> None:
        """Read, and report what is due."""
        now = self.clock.monotonic()
        self._is_new = self.progress.read(_text(self.metrics)) or self._is_new
        if now >= self._usage_due:
            self._usage_due = now + _USAGE_SECONDS
            found = self.measure()
            body: dict[str, Any] = {}
            if found.cpu_seconds is not None:
                body["cpuSeconds"] = found.cpu_seconds
            if found.memory_bytes is not None:
                body["memoryBytes"] = found.memory_bytes
            if (gpu := self.gpus()) is not None:
                body["gpuUtilization"] = gpu
            # Without CPU time and new steps, a report would count as a sign of life of the work without showing one.
            if found.cpu_seconds is not None or self._is_new:
                self._report(body)
        elif self._is_new and now >= self._step_due:
            self._report({})

    def last(self) -> None:
        """The work has ended: report its last step, and save its checkpoint if it has not succeeded."""
        self._is_new = self.progress.read(_text(self.metrics)) or self._is_new
        if self.source is not None and self.target is not None and self.ended() != 0:
            try:
                saved = checkpoints.save(self.source, self.target)
                log.info("saved %s", saved) if saved else log.info("no complete checkpoint to save")
            except CheckpointError as error:
                log.error("the checkpoint is not saved: %s", error)
        if self._is_new:
            self._report({})

    def ended(self) -> int | None:
        """The exit code of the work, None while it runs or is not known."""
        return untrusted.whole(_text(self.exit_code).strip(), digits=4)

    def _report(self, body: dict[str, Any]) -> None:
        if self._is_new:
            self._step_due = self.clock.monotonic() + _STEP_SECONDS
            self._is_new = False
            body = {**body, **self.progress.report()}
        if self.send is None or not body:
            return
        try:
            self.send(body)
        except GoneError:
            self.send = None
        except DiflowError as error:
            log.warning("a report is lost: %s", error)


def _sender(place: Place) -> Send:
    wire = Wire(place)
    return lambda body: wire.ask(
        "POST", f"/v2alpha1/job/{place.job}/profilings", body, key=None, timeout_seconds=_ANSWER_SECONDS
    )


def _text(path: Path | None) -> str:
    return "" if path is None else head(path, _MOST_BYTES).decode("utf-8", "replace")


if __name__ == "__main__":
    sys.exit(main())

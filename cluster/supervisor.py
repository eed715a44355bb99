"""The first process of a cluster's namespaces: starts the servers in order, probes them, restarts those that exit.

Its input is state.json, its output status.json; when it ends, the kernel kills all other processes.
Run by lifecycle.py as `python3 -m cluster.supervisor FOLDER`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from cluster import cgroups, namespace
from cluster.components import Component, components, healthy, log_file
from cluster.errors import ClusterError
from cluster.plan import Plan

# Probes are frequent while a component is not healthy, and rare afterwards, to save CPU.
_EAGER_TICK_SECONDS = 0.05
_CALM_TICK_SECONDS = 0.25
_EAGER_PROBE_SECONDS = 0.05
_CALM_PROBE_SECONDS = 3.0
_RESTART_SECONDS = (0.5, 1, 2, 5, 10)
_STATUS_SECONDS = 2.0
# A component that exits this often before it was ever healthy is given up.
_HOPELESS_STARTS = 4


@dataclass(slots=True)
class Running:
    """The supervisor's state of one component."""

    component: Component
    process: subprocess.Popen[bytes] | None = None
    healthy: bool = False
    was_healthy: bool = False
    starts: int = 0
    started_at: float = 0.0
    start_not_before: float = 0.0
    last_exit: int | None = None
    problem: str = ""


class Supervisor:
    """The loop. Time is monotonic throughout."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._all = {c.name: Running(c) for c in components(plan)}
        self._stopping = False
        self._status_text = ""
        self._status_at = 0.0

    def run(self) -> None:
        """Runs until a signal to stop."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        for name in self._all:
            threading.Thread(target=self._probe_forever, args=(name,), daemon=True).start()
        while not self._stopping:
            self._reap()
            self._start_what_may_start()
            self._open_volumes()
            self._write_status()
            time.sleep(_CALM_TICK_SECONDS if self._all_well() else _EAGER_TICK_SECONDS)

    def _all_well(self) -> bool:
        return all(running.healthy for running in self._all.values() if self._wanted(running.component))

    def _stop(self, _signal: int, _frame: FrameType | None) -> None:
        self._stopping = True

    def _wanted(self, component: Component) -> bool:
        return not component.optional or (self._plan.paths.wanted / component.name).exists()

    def _start_what_may_start(self) -> None:
        now = time.monotonic()
        for running in self._all.values():
            component = running.component
            if running.process is not None or now < running.start_not_before or not self._wanted(component):
                continue
            if all(self._all[name].healthy for name in component.after):
                self._start(running)

    def _start(self, running: Running) -> None:
        component = running.component
        running.starts += 1
        running.started_at = time.monotonic()
        with log_file(self._plan, component.name).open("ab") as log:
            try:
                running.process = subprocess.Popen(
                    component.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=os.environ | component.environment,
                )
            except OSError as error:
                log.write(f"{component.command[0]}: {error}\n".encode())
                self._died(running, 127)

    def _reap(self) -> None:
        """Reaps all exited children: our servers, and the orphans that the first process of a namespace inherits."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for running in self._all.values():
                if running.process is not None and running.process.pid == pid:
                    running.process.returncode = os.waitstatus_to_exitcode(status)
                    self._died(running, running.process.returncode)

    def _died(self, running: Running, code: int) -> None:
        running.process = None
        running.healthy = False
        running.last_exit = code
        if not running.was_healthy and running.starts >= _HOPELESS_STARTS:
            running.problem = f"exited {running.starts} times at its start, with code {code}"
        wait = _RESTART_SECONDS[min(running.starts, len(_RESTART_SECONDS)) - 1]
        running.start_not_before = time.monotonic() + wait

    def _probe_forever(self, name: str) -> None:
        running = self._all[name]
        component = running.component
        while True:
            process = running.process
            good = process is not None and healthy(component.probe)
            # The process may have exited during the probe: a result counts only for the process that was probed.
            if process is running.process:
                running.healthy = good
                running.was_healthy = running.was_healthy or good
                if good:
                    running.problem = ""
                elif process is not None and not running.was_healthy:
                    waited = time.monotonic() - running.started_at
                    if waited > component.ready_seconds:
                        running.problem = f"gave no good answer at {component.probe} within {waited:.0f} s"
            if process is None:
                time.sleep(_CALM_TICK_SECONDS if component.optional else _EAGER_PROBE_SECONDS)
            else:
                time.sleep(_CALM_PROBE_SECONDS if good else _EAGER_PROBE_SECONDS)

    def _open_volumes(self) -> None:
        """Lets containers of any user write to a new volume, which the provisioner creates for root only."""
        for folder in self._plan.paths.volumes.iterdir():
            if folder.stat().st_mode & 0o777 != 0o777:
                folder.chmod(0o777)

    def _write_status(self) -> None:
        status = {
            running.component.name: {
                "healthy": running.healthy,
                "starts": running.starts,
                "lastExit": running.last_exit,
                "problem": running.problem,
                "log": str(log_file(self._plan, running.component.name)),
            }
            for running in self._all.values()
            if self._wanted(running.component)
        }
        text = json.dumps(status, indent=2)
        now = time.monotonic()
        if text == self._status_text and now - self._status_at < _STATUS_SECONDS:
            return
        self._status_text, self._status_at = text, now
        write_atomically(
            self._plan.paths.status, json.dumps({"at": time.time(), "components": status}, indent=2) + "\n"
        )


def write_atomically(path: Path, text: str) -> None:
    """Writes a file so that readers see the old text or the new one, never a part."""
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    staged.write_text(text)
    staged.rename(path)


def main(folder: str) -> int:
    """Prepares the namespaces, then supervises."""
    plan = Plan.from_json((Path(folder) / "state.json").read_text())
    groups = [cgroups.Hierarchy(Path(mount), options) for mount, options in json.loads(sys.stdin.read())]
    try:
        namespace.prepare(plan, groups)
    except ClusterError as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    Supervisor(plan).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

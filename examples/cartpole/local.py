"""Run the whole job on this machine, with no cluster: `python3 -m cartpole.local`.

It does what the cluster does for a DIJob: tells each process of the others, runs them side by side, starts one that
failed again up to three times, and succeeds when every one of them has.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cartpole.faults import CartpoleError, run, say

BACKOFF_LIMIT = 3  # the default of a DIJob
GRACE_SECONDS = 10.0


@dataclass(slots=True)
class Replica:
    """One process of the job."""

    task: str
    index: int
    environ: dict[str, str]
    process: subprocess.Popen[str] | None = None
    pump: threading.Thread | None = None
    restarts: int = 0

    @property
    def name(self) -> str:
        return f"{self.task}-{self.index}"

    def start(self) -> None:
        """Start it, with its log lines on our stdout under its name."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"cartpole.{self.task}"],
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        say(f"{self.name} started, pid {self.process.pid}")
        if self.process.stdout is not None:
            self.pump = threading.Thread(target=_pump, args=(self.name, self.process.stdout), daemon=True)
            self.pump.start()


def _pump(name: str, lines: IO[str]) -> None:
    for line in lines:
        say(f"{name:<12} {line.rstrip()}")


def _free_ports(count: int) -> list[int]:
    with_port = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(server.getsockname()[1]) for server in with_port]
    finally:
        for server in with_port:
            server.close()


def replicas(tasks: Sequence[tuple[str, int]], folder: Path) -> list[Replica]:
    """The processes of a job, each with the environment that diflow would give it."""
    ports = iter(_free_ports(sum(count for _, count in tasks)))
    nodes = {task: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for task, count in tasks}
    shared = dict(os.environ) | {f"DI_{task.upper()}_NODES": ",".join(names) for task, names in nodes.items()}
    shared["DI_NODES"] = ",".join(name for names in nodes.values() for name in names)
    shared["CARTPOLE_DIR"] = str(folder)
    shared.pop("DI_JOB_ID", None)
    shared["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    out: list[Replica] = []
    for task, count in tasks:
        out += [Replica(task, index, shared | {"DI_RANK": str(len(out) + index)}) for index in range(count)]
    return out


def supervise(members: Sequence[Replica], stopping: threading.Event) -> bool:
    """Run them until all have succeeded, or one has failed too often; whether they succeeded."""
    for member in members:
        member.start()
    running = list(members)
    while running and not stopping.wait(0.1):
        for member in list(running):
            code = member.process.poll() if member.process else None
            if code is None:
                continue
            if code == 0:
                running.remove(member)
            elif member.restarts < BACKOFF_LIMIT:
                member.restarts += 1
                say(f"{member.name} ended with exit code {code}: try {member.restarts + 1} of {BACKOFF_LIMIT + 1}")
                member.start()
            else:
                say(f"{member.name} ended with exit code {code} and was tried {BACKOFF_LIMIT + 1} times")
                running = []
                break
    succeeded = all(member.process is not None and member.process.poll() == 0 for member in members)
    _end(members)
    return succeeded


def _end(members: Sequence[Replica]) -> None:
    alive = [member.process for member in members if member.process is not None and member.process.poll() is None]
    for process in alive:
        process.terminate()
    end = time.monotonic() + GRACE_SECONDS
    for process in alive:
        try:
            process.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
    for member in members:
        if member.pump is not None:
            member.pump.join(GRACE_SECONDS)


def main() -> int:
    """Parse the command line and run the job."""
    parser = argparse.ArgumentParser(prog="cartpole.local", description="Run the CartPole job on this machine.")
    parser.add_argument("--dir", type=Path, default=Path("out/cartpole"), help="checkpoints and plot (%(default)s)")
    parser.add_argument("--collectors", type=int, default=3, metavar="N", help="how many collectors (%(default)s)")
    arguments = parser.parse_args()
    if arguments.collectors < 1:
        raise CartpoleError("--collectors must be 1 or more: nobody else plays the training episodes")
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stopping.set())
    members = replicas(
        [("learner", 1), ("collector", arguments.collectors), ("evaluator", 1)], arguments.dir.absolute()
    )
    if supervise(members, stopping):
        say("the job succeeded")
        return 0
    say("the job was stopped" if stopping.is_set() else "the job failed")
    return 1


if __name__ == "__main__":
    run(main)

"""The troubles: processes of the cluster that are killed or stopped, and a node that is slow. Only on this machine."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
_LOOK_SECONDS = 0.2
_PERIOD = 20_000  # microseconds; the kernel allows no quota below 1,000


def processes(cluster: str, *words: str, variable: str = "") -> list[int]:
    """The cluster's processes whose command has these words (of paths their last parts), and which have this variable
    (`NAME=value`)."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with suppress(OSError):  # it has ended
            if not is_of(folder, cluster):
                continue
            command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            environment = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            names = {Path(word).name for word in command}
            if names.issuperset(words) and (not variable or variable in environment):
                found.append(int(folder.name))
    return found


def is_of(folder: Path, cluster: str) -> bool:
    """Whether a process (its folder in /proc) is one of the cluster's, by its control group."""
    words = (folder / "cgroup").read_text().replace("\n", "/").split("/")
    return ("diflow-cluster", cluster) in pairwise(words)


def send(number: signal.Signals, pids: list[int]) -> int:
    """Send a signal to all of them. Returns to how many."""
    sent = 0
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            sent += 1
    return sent


@contextmanager
def slowed_node(cluster: str, *, share: float) -> Iterator[None]:
    """Each container of the second node gets this share of one processor, while the block runs."""
    over, containers = threading.Event(), second_containers(cluster)

    def watch() -> None:
        while not over.wait(_LOOK_SECONDS):
            for container in os.listdir(containers) if containers.is_dir() else ():
                for mount in (GROUPS / "cpu", GROUPS):
                    with suppress(OSError):  # it has ended
                        _slow(mount / "diflow-cluster" / cluster / "k8s.io" / container, share)

    thread = threading.Thread(target=watch, name="slow node", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def second_containers(cluster: str) -> Path:
    """The folder in which the second node's containerd has one for each container, by id."""
    (pid, *_) = processes(cluster, "containerd", "containerd-2.toml")
    return Path(f"/proc/{pid}/root/run/containerd-2/io.containerd.runtime.v2.task/k8s.io")


def _slow(group: Path, share: float) -> None:
    quota = int(_PERIOD * share)
    if (group / "cpu.max").exists():
        (group / "cpu.max").write_text(f"{quota} {_PERIOD}")
    elif (group / "cpu.cfs_quota_us").exists():
        # The kernel refuses what would be more than before for an instant: first the share, then the period.
        (group / "cpu.cfs_quota_us").write_text(str(quota))
        (group / "cpu.cfs_period_us").write_text(str(_PERIOD))

"""Gives each cluster a control group of its own, on cgroup v1 and v2.

The supervisor enters the group before it gets a cgroup namespace, so that all groups of the cluster, including those of
containers, are below one folder of each hierarchy and can be removed with it.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError

_PARENT = "diflow-cluster"
_ROOT = Path("/sys/fs/cgroup")
_V2_CONTROLLERS = ("cpuset", "cpu", "io", "memory", "hugetlb", "pids")


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted hierarchy."""

    mount: Path
    # The mount options that identify it, such as "cpu,cpuacct" or "none,name=systemd"; empty for cgroup v2.
    options: str

    @property
    def is_v2(self) -> bool:
        return not self.options


def parse_hierarchies(mountinfo: str) -> list[Hierarchy]:
    """The hierarchies of a /proc/self/mountinfo. v2 beside v1 ("hybrid") has no limits."""
    first, second = [], []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, super_options = after.split(" ", 2)
        mount = Path(before.split(" ")[4])
        if not mount.is_relative_to(_ROOT):
            continue
        if kind == "cgroup":
            named = [o for o in super_options.split(",") if o not in ("rw", "ro", "xattr", "clone_children")]
            named = [o for o in named if not o.startswith("release_agent=")]
            first.append(Hierarchy(mount, ",".join(["none", *named] if named[0].startswith("name=") else named)))
        elif kind == "cgroup2" and mount == _ROOT:
            second.append(Hierarchy(mount, ""))
    return first or second


def hierarchies() -> list[Hierarchy]:
    """The hierarchies of this machine."""
    found = parse_hierarchies(Path("/proc/self/mountinfo").read_text())
    if not found:
        raise ClusterError("no control groups are mounted below /sys/fs/cgroup: the kubelet needs them")
    return found


def create(name: str) -> list[Path]:
    """Makes the cluster's group in each hierarchy and returns their folders."""
    folders = []
    for hierarchy in hierarchies():
        parent = hierarchy.mount / _PARENT
        folder = parent / name
        folder.mkdir(parents=True, exist_ok=True)
        if hierarchy.is_v2:
            for group in (hierarchy.mount, parent):
                _delegate(group)
        elif "cpuset" in hierarchy.options.split(","):
            # A new v1 cpuset accepts no processes until it has processors and memory nodes.
            for group in (parent, folder):
                for file in ("cpuset.cpus", "cpuset.mems"):
                    (group / file).write_text((group.parent / file).read_text())
            (folder / "cgroup.clone_children").write_text("1")
        folders.append(folder)
    return folders


def delegate_own_root() -> None:
    """On cgroup v2, inside the namespace: moves into a leaf, so that the root may have children with limits."""
    leaf = _ROOT / "supervisor"
    leaf.mkdir(exist_ok=True)
    for pid in (_ROOT / "cgroup.procs").read_text().split():
        (leaf / "cgroup.procs").write_text(pid)
    _delegate(_ROOT)


def processes(name: str) -> set[int]:
    """All processes of the cluster, even if the first one is unknown."""
    found: set[int] = set()
    for hierarchy in hierarchies():
        for listing in (hierarchy.mount / _PARENT / name).rglob("cgroup.procs"):
            with suppress(OSError):
                found.update(int(pid) for pid in listing.read_text().split())
    return found - {0, os.getpid()}


def remove(name: str, timeout_seconds: float = 60.0) -> list[Path]:
    """Removes the cluster's groups from the leaves up; returns those that are still in use."""
    deadline = time.monotonic() + timeout_seconds
    left: list[Path] = []
    for hierarchy in hierarchies():
        folder = hierarchy.mount / _PARENT / name
        while folder.exists() and not _remove_tree(folder):
            if time.monotonic() > deadline:
                left.append(folder)
                break
            time.sleep(0.05)
        with suppress(OSError):
            (hierarchy.mount / _PARENT).rmdir()  # It may not exist, or another cluster uses it.
    return left


def _remove_tree(folder: Path) -> bool:
    for path, _, _ in os.walk(folder, topdown=False):
        try:
            os.rmdir(path)
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True


def _delegate(group: Path) -> None:
    offered = (group / "cgroup.controllers").read_text().split()
    wanted = " ".join(f"+{c}" for c in _V2_CONTROLLERS if c in offered)
    (group / "cgroup.subtree_control").write_text(wanted)

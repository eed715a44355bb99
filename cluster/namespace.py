"""Prepares the private mounts and network of a cluster; runs as the first process inside its namespaces.

A kubelet assumes that it owns the machine: fixed folders in /var and /run, kernel settings, iptables. Each of these is
replaced by the cluster's own here, so that the host is never changed, and all of it disappears with the namespaces.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from cluster import cgroups, network
from cluster.config import KERNEL_SETTINGS
from cluster.errors import ClusterError
from cluster.plan import Plan

# Empty folders of the host as mount points, which must exist outside. They remain after the last cluster: removing a
# folder detaches what is mounted on it in all namespaces, including another cluster's.
# The first is the CNI library's fixed cache, the second that of Kubernetes' host-path provisioner.
MOUNT_POINTS = (Path("/var/lib/cni"), Path("/tmp/hostpath_pv"))

_JOIN_SECONDS = 100.0


def prepare(plan: Plan, groups: list[cgroups.Hierarchy]) -> None:
    """Makes the private mounts, then waits for the link to the host."""
    root = plan.paths.root
    # The kubelet shares mounts with its containers; none propagate to the host, as unshare made them private.
    _mount("--make-rshared", "/")
    _mount("-t", "sysfs", "sysfs", "/sys")
    _mount_groups(groups)
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    Path("/run/lock").mkdir()
    _bind(root / "varlog", Path("/var/log"))
    for source, target in zip((root / "cni-cache", plan.paths.volumes), MOUNT_POINTS, strict=True):
        _bind(source, target)
    for setting in KERNEL_SETTINGS:
        target = Path("/proc/sys") / setting
        if target.exists():
            _bind(plan.paths.config / setting.replace("/", "."), target)
    deadline = time.monotonic() + _JOIN_SECONDS
    while not network.interface_exists("node0"):
        if time.monotonic() > deadline:
            raise ClusterError(f"no wire from the host within {_JOIN_SECONDS:.0f} s: was `up` stopped half-way?")
        time.sleep(0.02)
    network.setup_inside(plan.addresses)
    # Per network namespace, so this does not make the host a router.
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def _mount_groups(groups: list[cgroups.Hierarchy]) -> None:
    if groups[0].is_v2:
        _mount("-t", "cgroup2", "cgroup2", "/sys/fs/cgroup")
        cgroups.delegate_own_root()
        return
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/sys/fs/cgroup")
    for group in groups:
        group.mount.mkdir()
        _mount("-t", "cgroup", "-o", group.options, "cgroup", str(group.mount))


def _bind(source: Path, target: Path) -> None:
    _mount("--bind", str(source), str(target))


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"`mount {' '.join(arguments)}` failed: {done.stderr.strip()}")

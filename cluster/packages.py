"""The Debian packages that a cluster needs, and their installation if apt and root are available."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from cluster.build import locked
from cluster.errors import ClusterError
from cluster.paths import cache_root
from cluster.progress import Progress

_SBIN = "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"

# Program → Debian package, for running a cluster.
RUN: dict[str, str] = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "/usr/lib/cni/ptp": "containernetworking-plugins",
    "/usr/lib/cni/host-local": "containernetworking-plugins",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "socat": "socat",
    "openssl": "openssl",
    "unshare": "util-linux",
    "mount": "mount",
}
# For building images, and the C program in one of them.
BUILD: dict[str, str] = {
    "gcc": "gcc",
    "/usr/lib/x86_64-linux-gnu/libc.a": "libc6-dev",
    "/bin/busybox": "busybox-static",
    "mmdebstrap": "mmdebstrap",
    "tar": "tar",
}


def missing(tools: Iterable[str], exists: Callable[[str], bool] | None = None) -> list[str]:
    """The programs that are not installed."""
    return [tool for tool in tools if not (exists or _exists)(tool)]


def require(tools: dict[str, str], progress: Progress) -> None:
    """Installs missing programs with apt; if that is not possible, the error says what to install."""
    absent = missing(tools)
    if not absent:
        return
    packages = sorted({tools[tool] for tool in absent})
    advice = f"{', '.join(absent)} missing: apt-get install {' '.join(packages)}"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ClusterError(advice)
    with locked("apt", progress):  # apt itself fails if another one is at work
        absent = missing(absent)
        if absent:
            _install({tools[tool] for tool in absent}, absent, progress)


def _install(wanted: set[str], tools: list[str], progress: Progress) -> None:
    packages = sorted(wanted)
    log = cache_root() / "logs" / "apt.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    progress(f"installing {' '.join(packages)} with apt, log {log}")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    with log.open("w") as out:
        for command in (["update", "-q"], ["install", "-y", "-q", "--no-install-recommends", *packages]):
            done = subprocess.run(
                ["apt-get", "-o", "DPkg::Lock::Timeout=300", *command],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
                check=False,
            )
    if done.returncode != 0 or missing(tools):
        raise ClusterError(f"apt could not install {' '.join(packages)}: see {log}, then run the command again")


def pip(progress: Progress) -> list[str]:
    """A pip command, of this interpreter or of any other, as it downloads for the image's Python."""
    for python in (sys.executable, shutil.which("python3"), "/usr/bin/python3"):
        if python is not None and _has_pip(python):
            return [python, "-m", "pip"]
    require({"pip3": "python3-pip"}, progress)
    return ["/usr/bin/python3", "-m", "pip"]


def _has_pip(python: str) -> bool:
    try:
        return subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _exists(tool: str) -> bool:
    return Path(tool).exists() if tool.startswith("/") else shutil.which(tool, path=_SBIN) is not None

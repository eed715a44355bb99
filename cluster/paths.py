"""The paths of the cache that all clusters share, and of the folder of one cluster.

Nothing is written into the checkout or to ~/.kube.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import UsageError

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = Path(__file__).resolve().parent

DEFAULT_NAME = "diflow"

# A name becomes part of a node name and of a socket path (at most 108 characters), so it must be short.
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,18}[a-z0-9])?")

# A cluster hides these folders of the host behind private mounts, so they cannot have its own state.
_HIDDEN = ("/proc", "/run", "/sys", "/var/run", "/var/log", "/dev")


def cache_root() -> Path:
    """The folder of built binaries and images: ${DIFLOW_CACHE:-~/.cache/diflow}."""
    configured = os.environ.get("DIFLOW_CACHE")
    return Path(configured).absolute() if configured else Path.home() / ".cache" / "diflow"


def state_root() -> Path:
    """The parent folder of all clusters: ${DIFLOW_CLUSTER_DIR:-/var/lib/diflow-cluster}."""
    root = Path(os.environ.get("DIFLOW_CLUSTER_DIR") or "/var/lib/diflow-cluster").absolute()
    for hidden in _HIDDEN:
        if root.is_relative_to(hidden):
            raise UsageError(f"DIFLOW_CLUSTER_DIR={root} lies in {hidden}, which a cluster hides: name another folder")
    return root


@dataclass(frozen=True, slots=True)
class ClusterPaths:
    """The files of one cluster."""

    root: Path

    @property
    def state(self) -> Path:
        """The plan made by `up`: addresses, versions, the supervisor's process."""
        return self.root / "state.json"

    @property
    def status(self) -> Path:
        """The supervisor's last status."""
        return self.root / "status.json"

    @property
    def kubeconfig(self) -> Path:
        return self.root / "kubeconfig"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def config(self) -> Path:
        return self.root / "config"

    @property
    def wanted(self) -> Path:
        """A file here, named like an optional component, makes the supervisor run it."""
        return self.root / "wanted"

    @property
    def containerd_socket(self) -> Path:
        return self.root / "containerd.sock"

    @property
    def second_socket(self) -> Path:
        """That of the second node's containerd."""
        return self.root / "containerd-2.sock"

    @property
    def volumes(self) -> Path:
        return self.root / "volumes"


def cluster_paths(name: str) -> ClusterPaths:
    """The paths of the cluster of that name, which need not exist."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"cluster name {name!r}: use 1 to 20 lower-case letters, digits and '-', a letter first, no '-' at the end"
        )
    root = state_root() / name
    if len(str(root / "containerd-2.sock")) > 100:
        raise UsageError(f"{root} is too long a path for a socket in it: set DIFLOW_CLUSTER_DIR to a shorter one")
    return ClusterPaths(root=root)

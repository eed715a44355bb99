"""Runs kubectl with an explicit kubeconfig, never the user's default one."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError


@dataclass(frozen=True, slots=True)
class Kubectl:
    """A kubectl and its cluster."""

    program: Path
    kubeconfig: Path

    def __call__(self, *arguments: str, stdin: str | None = None, timeout_seconds: float = 180.0) -> str:
        """Runs it and returns its stdout; an error has its stderr."""
        command = [str(self.program), f"--kubeconfig={self.kubeconfig}", *arguments]
        environment = {k: v for k, v in os.environ.items() if k != "KUBECONFIG"}
        try:
            done = subprocess.run(
                command,
                input=stdin,
                capture_output=True,
                text=True,
                check=False,
                timeout=timeout_seconds,
                env=environment,
            )
        except subprocess.TimeoutExpired:
            shown = " ".join(arguments)
            raise ClusterError(f"`kubectl {shown}` gave no answer within {timeout_seconds:.0f} s") from None
        if done.returncode != 0:
            raise ClusterError(f"`kubectl {' '.join(arguments)}` failed: {done.stderr.strip()}")
        return done.stdout

"""Where a demo runs: the cluster of the present kubeconfig, or one of our own; and the programs it is worked with."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diflow import DiflowError

ROOT = Path(__file__).resolve().parents[1]
ARGO_VERSION = "4.0.7"


@dataclass(frozen=True)
class Target:
    """The cluster that a demo runs on. `name` is what `python3 -m cluster` calls it, "" if it did not make it."""

    kubeconfig: Path
    kubectl: str
    is_ours: bool
    name: str = ""

    def run_kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl on it; returns what it printed. Raises DemoError."""
        command = [self.kubectl, "--kubeconfig", str(self.kubeconfig), *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise DemoError(f"kubectl {' '.join(arguments)} failed: {done.stderr.strip()}")
        return done.stdout


_HIGH = "diflow-high"
_CLASSES = ROOT / "manifests" / "cluster" / "priorityclasses.yaml"


def apply(target: Target, folder: str, *where: str) -> None:
    """Apply a folder of the checkout, with further arguments of kubectl."""
    policy = ("get", "priorityclass", _HIGH, "--ignore-not-found", "-o", "jsonpath={.preemptionPolicy}")
    if target.run_kubectl(*policy) not in ("", "Never"):  # of an earlier release: it cannot be changed
        target.run_kubectl("replace", "--force", "-f", str(_CLASSES))
    target.run_kubectl("apply", *where, "-k", str(ROOT / folder))


class DemoError(Exception):
    """The demo cannot go on; the message says why and what to do."""


def present_kubeconfig() -> Path | None:
    """The kubeconfig that kubectl would use, or None."""
    named = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    if named and not Path(named).is_file():
        raise DemoError(
            f"KUBECONFIG names {named}, which is not there: mend it, or unset it to use a cluster of our own"
        )
    path = Path(named) if named else Path.home() / ".kube" / "config"
    return path if path.is_file() else None


def present(kubeconfig: Path) -> Target:
    """The cluster of a kubeconfig; one of our own is started again if it ended. Raises DemoError without kubectl."""
    made = made_here(kubeconfig)
    if made and made["phase"] == "Broken":
        cluster("up", "--name", made["name"])
    kubectl = made["programs"]["kubectl"] if made else shutil.which("kubectl")
    if kubectl is None:
        raise DemoError("kubectl is not on the PATH: install it, or unset KUBECONFIG to use a cluster of our own")
    return Target(kubeconfig=kubeconfig, kubectl=kubectl, is_ours=False, name=made["name"] if made else "")


def made_here(kubeconfig: Path) -> dict[str, Any] | None:
    """What `python3 -m cluster` knows of the cluster of a kubeconfig, None if it did not make it."""
    return next((c for c in _known_clusters() if c["kubeconfig"] == str(kubeconfig)), None)


def our_own() -> Target:
    """The one-machine cluster, started if it is not up, with this checkout's image in it."""
    cluster("up", "--argo", ARGO_VERSION)
    cluster("load-image")
    made = next(c for c in _known_clusters() if c["name"] == "diflow")
    return Target(
        kubeconfig=Path(made["kubeconfig"]), kubectl=made["programs"]["kubectl"], is_ours=True, name=made["name"]
    )


def cluster(*arguments: str) -> str:
    """Run `python3 -m cluster`. Raises DemoError."""
    done = subprocess.run(
        [sys.executable, "-m", "cluster", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0:
        raise DemoError(f"python3 -m cluster {' '.join(arguments)} ended with {done.returncode}; see above")
    return done.stdout


def exit_code(play: Callable[[], int], *, left: str) -> int:
    """Run a demo; returns its exit code. `left`: what stays when somebody ends it with Ctrl-C."""
    try:
        return play()
    except (DemoError, DiflowError) as error:
        say(f"error: {error}")
        return getattr(error, "exit_code", 5)
    except KeyboardInterrupt:
        say(f"ended; {left}")
        return 130


def _known_clusters() -> list[dict[str, Any]]:
    """Those that `python3 -m cluster` has made on this machine."""
    found: list[dict[str, Any]] = json.loads(cluster("status", "-o", "json"))
    return found


def ask(question: str) -> None:
    """Go on only if somebody agrees. Raises DemoError."""
    if os.environ.get("YES") == "1":
        return
    if not sys.stdin.isatty():
        raise DemoError(f"{question} Nobody can answer here: run it again with YES=1 to agree.")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise DemoError("nothing was installed")


def say(text: str) -> None:
    """Tell how it goes, on stderr."""
    print(text, file=sys.stderr, flush=True)

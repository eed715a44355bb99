"""`make demo`: from nothing to a finished reinforcement-learning job, its return and its plot.

It uses the cluster of the present kubeconfig when there is one, and asks before it installs anything there (YES=1
answers). Otherwise it starts the one-machine cluster of `cluster/`, which needs root.

    IMAGE=registry.example.com/diflow:0.1.0   the image to use instead of docker.io/diflow/diflow (needed on a cluster
                                              that does not have that one)
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from diflow import DiflowError, DIJob
from diflow.client.argo import check_ready, controller_version
from diflow.client.kube import Cluster

ROOT = Path(__file__).resolve().parents[1]
JOB = ROOT / "examples" / "cartpole" / "job.yaml"
NAMESPACE = "default"
DATA = Path("/var/lib/diflow-demo")  # the volume of examples/cartpole/job.yaml
ARGO_VERSION = "4.0.2"


@dataclass(frozen=True)
class Target:
    """The cluster that the demo runs on."""

    kubeconfig: Path
    kubectl: str
    is_ours: bool


class DemoError(Exception):
    """The demo cannot go on; the message says why and what to do."""


def main() -> int:
    """Run the demo; returns the exit code of the job's last command."""
    started = time.monotonic()
    try:
        target = _target()
        _install(target)
        name = f"cartpole-{time.strftime('%H%M%S')}"
        job = _job(name)
        _say(f"submitting {JOB.relative_to(ROOT)} as {name}, {time.monotonic() - started:.0f} s after the start")
        return _run(job, target)
    except (DemoError, DiflowError) as error:
        _say(f"error: {error}")
        return getattr(error, "exit_code", 5)
    except KeyboardInterrupt:
        _say("detached; a job that was submitted goes on: diflow list")
        return 130


def _target() -> Target:
    given = _present_kubeconfig()
    if given is not None:
        kubectl = shutil.which("kubectl")
        if kubectl is None:
            raise DemoError("kubectl is not on the PATH: install it, or unset KUBECONFIG to use a cluster of our own")
        return Target(kubeconfig=given, kubectl=kubectl, is_ours=False)
    _cluster("up", "--argo", ARGO_VERSION)
    _cluster("load-image")
    found = json.loads(_cluster("status", "--name", "diflow", "-o", "json"))[0]
    DATA.mkdir(parents=True, exist_ok=True)
    DATA.chmod(0o1777)  # the pods are not root
    return Target(kubeconfig=Path(found["kubeconfig"]), kubectl=found["programs"]["kubectl"], is_ours=True)


def _present_kubeconfig() -> Path | None:
    """The kubeconfig that kubectl would use, or None."""
    named = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    if named and not Path(named).is_file():
        raise DemoError(
            f"KUBECONFIG names {named}, which is not there: mend it, or unset it to use a cluster of our own"
        )
    path = Path(named) if named else Path.home() / ".kube" / "config"
    return path if path.is_file() else None


def _install(target: Target) -> None:
    """Argo and diflow's manifests, where they are missing."""
    os.environ["KUBECONFIG"] = str(target.kubeconfig)
    cluster = Cluster.connect()
    if not target.is_ours:
        _say(f"using the cluster of {target.kubeconfig}: {_kubectl(target, 'config', 'current-context').strip()}")
    if not target.is_ours and controller_version(cluster) is None:
        _ask(f"Argo Workflows is not installed there. Install {ARGO_VERSION} into the namespace argo?")
        _cluster("argo-install", "--kubeconfig", str(target.kubeconfig), "--version", ARGO_VERSION)
    try:
        check_ready(cluster, namespace=NAMESPACE, priority="normal")
    except DiflowError:
        if not target.is_ours:
            _ask(f"Apply manifests/ (service accounts, roles, priority classes) to the namespace {NAMESPACE}?")
        _kubectl(target, "apply", "-n", NAMESPACE, "-k", str(ROOT / "manifests"))
        check_ready(cluster, namespace=NAMESPACE, priority="normal")
    if target.is_ours:
        columns = ROOT / "manifests" / "argo" / "workflow-controller-configmap.yaml"
        _kubectl(
            target, "patch", "configmap", "workflow-controller-configmap", "-n", "argo", "--patch-file", str(columns)
        )


def _job(name: str) -> DIJob:
    job = DIJob.from_yaml(JOB)
    manifest = job.to_manifest()
    manifest["metadata"] |= {"name": name, "namespace": NAMESPACE}
    image = os.environ.get("IMAGE")
    if image:
        for task in manifest["spec"]["tasks"]:
            task["template"]["spec"]["containers"][0]["image"] = image
    return DIJob.from_manifest(manifest)


def _run(job: DIJob, target: Target) -> int:
    out = ROOT / "out"
    out.mkdir(exist_ok=True)
    manifest = out / f"{job.name}.yaml"
    manifest.write_text(job.to_yaml(), encoding="utf-8")
    code = subprocess.run([sys.executable, "-m", "diflow", "submit", str(manifest), "--watch"], cwd=ROOT, check=False)
    if code.returncode == 130:
        return 130
    status = json.loads(_diflow("get", job.name, "-n", NAMESPACE, "-o", "json"))["status"]
    log = _diflow("logs", job.name, "-n", NAMESPACE, "--task", "learner", check=False)
    solved = next((line for line in reversed(log.splitlines()) if "solved: mean return" in line), "")
    value = re.search(r"mean return ([\d.]+)", solved)
    plot = DATA / f"{NAMESPACE}.{job.name}" / "cartpole.png"
    print(f"job      {NAMESPACE}/{job.name}")
    print(f"phase    {status['phase']}")
    print(f"return   {value.group(1) if value else 'not solved'} (mean of 100 episodes; the bar is 475)")
    if target.is_ours:
        print(f"plot     {plot if plot.is_file() else 'none'}")
    else:
        print(f"plot     {plot} on the learner's node")
    return code.returncode


def _ask(question: str) -> None:
    if os.environ.get("YES") == "1":
        return
    if not sys.stdin.isatty():
        raise DemoError(f"{question} Nobody can answer here: run it again with YES=1 to agree.")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise DemoError("nothing was installed")


def _cluster(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "cluster", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0:
        raise DemoError(f"python3 -m cluster {' '.join(arguments)} ended with {done.returncode}; see above")
    return done.stdout


def _kubectl(target: Target, *arguments: str) -> str:
    command = [target.kubectl, "--kubeconfig", str(target.kubeconfig), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DemoError(f"kubectl {' '.join(arguments)} failed: {done.stderr.strip()}")
    return done.stdout


def _diflow(*arguments: str, check: bool = True) -> str:
    command = [sys.executable, "-m", "diflow", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise DemoError(done.stderr.strip())
    return done.stdout


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

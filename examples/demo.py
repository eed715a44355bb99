"""`make demo`: from nothing to a finished reinforcement-learning job, its return and its plot.

It uses the cluster of the present kubeconfig when there is one, and asks before it installs anything there (YES=1
answers). Otherwise it starts the one-machine cluster of `cluster/`, which needs root.

    IMAGE=registry.example.com/diflow:0.2.0   the image to use instead of docker.io/diflow/diflow (needed on a cluster
                                              that does not have that one)
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from diflow import DiflowError, DIJob
from diflow.jobs.checks.prerequisites import check_ready, controller_version
from diflow.kube.api import Cluster
from stage import (
    ARGO_VERSION,
    ROOT,
    DemoError,
    Target,
    apply,
    ask,
    cluster,
    exit_code,
    our_own,
    present,
    present_kubeconfig,
    say,
)

JOB = ROOT / "examples" / "cartpole" / "job.yaml"
NAMESPACE = "default"
DATA = Path("/var/lib/diflow-demo")  # the volume of examples/cartpole/job.yaml


def main() -> int:
    """Run the demo; returns the exit code of the job's last command."""
    return exit_code(_play, left="a submitted job continues: diflow list")


def _play() -> int:
    started = time.monotonic()
    target = _target()
    _install(target)
    name = f"cartpole-{time.strftime('%H%M%S')}"
    job = _job(name)
    say(f"submitting {JOB.relative_to(ROOT)} as {name}, {time.monotonic() - started:.0f} s after the start")
    return _run(job, target)


def _target() -> Target:
    given = present_kubeconfig()
    if given is not None:
        return present(given)
    target = our_own()
    DATA.mkdir(parents=True, exist_ok=True)
    DATA.chmod(0o1777)  # the pods are not root
    return target


def _install(target: Target) -> None:
    """Argo and diflow's manifests, where they are missing."""
    os.environ["KUBECONFIG"] = str(target.kubeconfig)
    connected = Cluster.connect()
    if not target.is_ours:
        say(f"using the cluster of {target.kubeconfig}: {target.run_kubectl('config', 'current-context').strip()}")
    if not target.is_ours and controller_version(connected) is None:
        ask(f"Argo Workflows is not installed there. Install {ARGO_VERSION} into the namespace argo?")
        cluster("argo-install", "--kubeconfig", str(target.kubeconfig), "--version", ARGO_VERSION)
    try:
        check_ready(connected, namespace=NAMESPACE, priority="normal")
    except DiflowError:
        if not target.is_ours:
            ask(f"Apply manifests/ (service accounts, roles, priority classes) to the namespace {NAMESPACE}?")
        apply(target, "manifests", "-n", NAMESPACE)
        check_ready(connected, namespace=NAMESPACE, priority="normal")
    if target.is_ours:
        columns = ROOT / "manifests" / "argo" / "workflow-controller-configmap.yaml"
        target.run_kubectl(
            "patch", "configmap", "workflow-controller-configmap", "-n", "argo", "--patch-file", str(columns)
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


def _diflow(*arguments: str, check: bool = True) -> str:
    command = [sys.executable, "-m", "diflow", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise DemoError(done.stderr.strip())
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())

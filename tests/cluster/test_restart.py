"""A cluster after its machine was restarted: its processes are gone, with mounts, networks and control groups."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cluster import cgroups, network
from cluster.paths import REPOSITORY
from tests.clusters import wait_until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.extended,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0, reason="a cluster needs root"),
]
NAME = f"restart-{os.getpid()}"  # control groups and links of one name would be shared by two runs
WORKFLOW = """
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: %s}
spec:
  entrypoint: main
  serviceAccountName: diflow-worker
  templates:
  - name: main
    container: {image: busybox:local, command: [sh, -c, %s]}
"""


class Own:
    """A cluster in a state folder of its own, with a short path for its sockets."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.root = state / NAME

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "cluster", *arguments, "--name", NAME],
            cwd=REPOSITORY, env=os.environ | {"DIFLOW_CLUSTER_DIR": str(self.state)},
            capture_output=True, text=True, check=False, timeout=900,
        )  # fmt: skip

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        program = json.loads((self.root / "state.json").read_text())["programs"]["kubectl"]
        done = subprocess.run(
            [program, f"--kubeconfig={self.root / 'kubeconfig'}", *arguments],
            input=stdin, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def restart_the_machine(self) -> None:
        """End its processes, from the first one on, and remove what a restart removes. Its folder stays."""
        pid, *rest = (self.root / "init").read_text().split()
        for each in sorted(cgroups.processes(NAME) | {int(pid)}):
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        wait_until("all its processes have ended", lambda: not cgroups.processes(NAME), every=0.1)
        network.unjoin(NAME)
        assert cgroups.remove(NAME) == []
        (self.root / "init").write_text(" ".join([pid, rest[0], "another-boot", rest[2]]) + "\n")


@pytest.fixture
def own() -> Iterator[Own]:
    folder = Path(tempfile.mkdtemp(prefix="dfr", dir="/var/tmp"))
    made = Own(folder)
    yield made
    assert made.run("down").returncode == 0
    shutil.rmtree(folder, ignore_errors=True)


def up(own: Own, *arguments: str) -> str:
    done = own.run("up", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_after_a_restart_up_continues_with_what_the_cluster_held(own: Own) -> None:
    up(own)
    own.kubectl("apply", "-k", str(REPOSITORY / "manifests" / "jobs"))
    own.kubectl("create", "configmap", "kept", "--from-literal=key=value")
    own.kubectl("create", "-f", "-", stdin=WORKFLOW % ("early", "'sleep 600'"))
    running = ("get", "pods", "-l", "workflows.argoproj.io/workflow", "-o", "jsonpath={..phase}")
    wait_until("its pod runs", lambda: own.kubectl(*running) == "Running")
    own.restart_the_machine()

    told = own.run("status").stdout
    assert "Broken" in told
    assert "its processes are gone (the machine was restarted)" in told
    said = up(own)
    assert "started again, with all that it held" in said
    assert own.kubectl("get", "configmap", "kept", "-o", "jsonpath={.data.key}") == "value"
    phase = ("get", "workflows", "-o", "jsonpath={..status.phase}")
    wait_until("Argo has seen that the pod ended", lambda: own.kubectl(*phase, "early") in ("Failed", "Error"))
    own.kubectl("create", "-f", "-", stdin=WORKFLOW % ("late", "'true'"))
    wait_until("another Workflow succeeds", lambda: own.kubectl(*phase, "late") == "Succeeded")


def test_a_cluster_whose_data_is_lost_is_made_anew_unless_volumes_hold_files(own: Own) -> None:
    up(own, "--argo", "none")
    own.restart_the_machine()
    for file in (own.root / "etcd" / "member" / "wal").iterdir():
        file.write_bytes(b"not a log")
    kept = own.root / "volumes" / "claim" / "model.pt"
    kept.parent.mkdir()
    kept.touch()
    refused = own.run("up")
    assert refused.returncode == 1
    assert f"hold files, such as {kept}" in refused.stderr

    kept.unlink()
    own.restart_the_machine()
    said = up(own)
    assert "MADE ANEW" in said
    assert own.kubectl("get", "nodes", "-o", "name").strip() == f"node/{NAME}-node"

"""Two whole clusters at once, each with pods that answer, and nothing left of either afterwards."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cluster.network import link_name
from cluster.paths import REPOSITORY
from tests.clusters import wait_until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.extended,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0, reason="a cluster needs root"),
]
NAMES = ("left", "right")


@pytest.fixture
def state() -> Iterator[Path]:
    """A separate state folder, with a short path for its sockets."""
    folder = Path(tempfile.mkdtemp(prefix="dfc", dir="/var/tmp"))
    yield folder
    for name in NAMES:
        run(folder, "down", "--name", name)
    shutil.rmtree(folder, ignore_errors=True)


def run(state: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cluster", *arguments],
        cwd=REPOSITORY,
        env=os.environ | {"DIFLOW_CLUSTER_DIR": str(state)},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


def rows(state: Path) -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in json.loads(run(state, "status", "-o", "json").stdout)}


def traces(state: Path, name: str) -> list[str]:
    """Mounts, processes, control groups, network links and files of the cluster."""
    found = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f"{state}/{name}" in line]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if f"{state}/{name}".encode() in path.read_bytes():
                found.append(str(path))
        except OSError:
            continue
    found += [str(path) for path in Path("/sys/fs/cgroup").glob(f"**/diflow-cluster/{name}")]
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    found += [line for line in links.splitlines() if link_name(name) in line]
    return found + [str(path) for path in state.glob(f"*{name}*")]


def kernel_settings() -> dict[str, str]:
    names = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward")
    return {name: (Path("/proc/sys") / name).read_text() for name in names}


def firewall(block: str) -> list[str]:
    """The machine's rules about one block of addresses; other clusters may come and go meanwhile."""
    rules = subprocess.run(["iptables-save"], capture_output=True, text=True, check=True).stdout
    return [line for line in rules.splitlines() if block.removesuffix("0.0/16") in line]


def test_two_clusters_come_up_side_by_side_and_leave_nothing(state: Path) -> None:
    settings = kernel_settings()
    with ThreadPoolExecutor() as pool:
        left = pool.submit(run, state, "up", "--name", "left")
        right = pool.submit(run, state, "up", "--name", "right", "--argo", "none")
        for done in (left.result(), right.result()):
            assert done.returncode == 0, done.stderr

    found = rows(state)
    assert {row["phase"] for row in found.values()} == {"Running"}
    assert found["left"]["block"] != found["right"]["block"]
    for name in NAMES:
        again = run(state, "up", "--name", name)
        assert again.returncode == 0, again.stderr
        assert again.stdout.strip() == found[name]["kubeconfig"]
        said = in_a_pod(found[name], "nslookup kubernetes.default.svc.cluster.local && id -u")
        assert said.splitlines()[-1] == "65532"
    with urllib.request.urlopen(f"{found['left']['argoServer']}/api/v1/version", timeout=120) as answer:
        assert json.load(answer)["version"] == "v4.0.7"
    refused = run(state, "up", "--name", "left", "--argo", "3.7.3")
    assert refused.returncode == 2
    assert "runs Kubernetes 1.37.2 and Argo 4.0.7, not Kubernetes 1.37.2 and Argo 3.7.3" in refused.stderr

    fake = run(state, "fake-nodes", "--name", "right", "--count", "20")
    assert fake.returncode == 0, fake.stderr
    assert kubectl(found["right"], "get", "nodes", "-o", "name").count("node/fake-") == 20

    assert run(state, "down", "--name", "left").returncode == 0
    assert traces(state, "left") == []
    # The other cluster still works, with its volumes, which containers of any user may write to.
    assert in_a_pod(found["right"], "echo kept > /data/file && echo still here").strip() == "still here"
    assert [path.read_text() for path in state.glob("right/volumes/*/file")] == ["kept\n"]
    assert run(state, "down", "--name", "right").returncode == 0
    assert traces(state, "right") == []
    assert kernel_settings() == settings
    assert [rule for row in found.values() for rule in firewall(row["block"])] == []


def kubectl(row: dict[str, str], *arguments: str) -> str:
    programs: dict[str, str] = dict(row["programs"])  # type: ignore[arg-type]
    command = [programs["kubectl"], f"--kubeconfig={row['kubeconfig']}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def in_a_pod(row: dict[str, str], script: str) -> str:
    """The output of the script, run by a user without rights in a pod of the cluster."""
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Mi"}}},
    }
    security = {"runAsUser": 65532, "runAsNonRoot": True}
    container = {
        "name": "main",
        "image": "busybox:local",
        "command": ["sh", "-c", script],
        "securityContext": security,
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe"},
        "spec": {"restartPolicy": "Never", "containers": [container], "volumes": [volume]},
    }
    # Kubernetes creates it a moment after the namespace; without it no pod is created.
    wait_until("the default account", lambda: "default" in kubectl(row, "get", "serviceaccounts", "-o", "name"))
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"apiVersion": "v1", "kind": "List", "items": [claim, pod]}, file)
        file.flush()
        kubectl(row, "apply", "-f", file.name)
    kubectl(row, "wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/probe", "--timeout=280s")
    said = kubectl(row, "logs", "probe")
    kubectl(row, "delete", "pod", "probe", "--grace-period=1")
    return said

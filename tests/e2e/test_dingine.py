"""A job of DI-orchestrator v0.x as its users have it: `kubectl apply`, and DI-engine's own `CommCoordinator` in the
coordinator's pod, which asks the server in the cluster for collectors and learners, and connects to them by name.

The programs come from DI-engine's wheel, by a volume of this machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from diflow.common import keys
from tests.clusters import ROOT, TestCluster, wait_until
from tests.contrib.di_orchestrator import oldjobs
from tests.e2e import installing
from tests.e2e.live import Live, pod_name
from tests.e2e.test_crd import install
from tests.e2e.test_dijobs import controller, nothing_left, phase
from tests.e2e.test_v1alpha1 import running, touch
from tests.server import dingine

pytestmark = [pytest.mark.extended, pytest.mark.xdist_group("server")]

Json = dict[str, Any]
_IMAGE = "docker.io/diflow/diflow:0.2.0"
_PROGRAM = Path(__file__).with_name("dingine_pod.py")
_CLIENT = "/client"


@pytest.fixture
def space(argo40: TestCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    """A namespace with the kinds, a controller, and a server in the cluster that lets clients in without a token."""
    if argo40.name is None:
        pytest.skip("the volume with DI-engine's code is on this machine")
    argo40.run("python3", "-m", "cluster", "load-image", "--name", argo40.name, timeout=600)
    with argo40.namespace("ding") as namespace:
        live, home = Live(argo40, namespace), Live(argo40, f"{namespace}-system")
        install(live)
        setting = "DIFLOW_SERVER_WATCHED_NAMESPACE"
        with installing.installed(argo40, "server", home=home.namespace, watched=namespace, setting=setting):
            home.kubectl("set", "env", "deployment/diflow-server", "DIFLOW_SERVER_UNPROVEN_PODS=true")
            home.kubectl("rollout", "status", "deployment/diflow-server", "--timeout=280s")
            (alias,) = (
                one
                for one in yaml.safe_load_all(argo40.kubectl("kustomize", str(ROOT / "manifests" / "di-orchestrator")))
                if one["kind"] == "Service"
            )
            alias["metadata"]["namespace"] = home.namespace
            alias["spec"]["externalName"] = alias["spec"]["externalName"].replace("diflow-system", home.namespace)
            home.kubectl("apply", "-f", "-", stdin=json.dumps(alias))
            monkeypatch.setenv("DIFLOW_SERVER_URL", f"http://diflow-server.{home.namespace}.svc.cluster.local:8081")
            with controller(live, tmp_path / "controller.log"):
                try:
                    yield live
                finally:
                    live.kubectl("delete", "dijobs", "--all", "--wait=false", check=False)


def manifest(name: str, *, home: str) -> Json:
    """A job as in DI-orchestrator's examples: its coordinator has the address of the server in its configuration.
    `home` is in the place of the namespace di-system."""
    folder = dingine.prepared()
    (packages,) = (folder / "venv" / "lib").glob("python3*/site-packages")
    volumes: list[Json] = [
        {"name": "code", "hostPath": {"path": str(folder / "code"), "type": "Directory"}},
        {"name": "packages", "hostPath": {"path": str(packages), "type": "Directory"}},
        {"name": "program", "configMap": {"name": "program"}},
    ]
    mounts = [{"name": one["name"], "mountPath": f"{_CLIENT}/{one['name']}", "readOnly": True} for one in volumes]

    def module(what: str) -> Json:
        container = {
            "name": "di-container",
            "image": _IMAGE,
            "command": ["python3", "-u", f"{_CLIENT}/program/{_PROGRAM.name}", f"{_CLIENT}/code", what],
            "env": [
                {"name": "PYTHONPATH", "value": f"{_CLIENT}/packages"},
                {"name": "SYSTEM_ADDR", "value": f"di-server.{home}:8080"},
            ],
            "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}},
            "volumeMounts": mounts,
        }
        return {"template": {"spec": {"containers": [container]}}}

    made = oldjobs.manifest(
        name,
        volumes=volumes,
        coordinator=module("coordinator"),
        collector=module("replica"),
        learner=module("replica"),
    )
    del made["metadata"]["namespace"]
    return made


def connected(live: Live, coordinator: str) -> list[list[str]]:
    """The host names of the collectors and of the learners to which the coordinator is connected."""
    lines = [line for line in live.logs(coordinator).splitlines() if line.startswith("[[")]
    found: list[list[str]] = json.loads(lines[-1]) if lines else [[], []]
    return [sorted(url.split(".")[0] for url in some) for some in found]


def is_started(live: Live, coordinator: str) -> list[list[str]] | None:
    """Those to which it is connected, once they are as many as it has asked for."""
    found = connected(live, coordinator)
    return found if [len(some) for some in found] == [2, 2] else None


def test_di_engines_coordinator_runs_a_job_from_apply_to_succeeded(space: Live) -> None:
    space.kubectl("create", "configmap", "program", f"--from-file={_PROGRAM}")
    space.kubectl("apply", "-f", "-", stdin=json.dumps(manifest("old", home=f"{space.namespace}-system")))
    wait_until("its coordinator runs", lambda: phase(space, "old") == "Running")
    (coordinator,) = (pod_name(pod) for pod in space.pods("old", "coordinator"))
    collectors, learners = wait_until("its pipeline has started", lambda: is_started(space, coordinator))
    assert collectors == running(space, "old", "collector")
    assert learners == running(space, "old", "learner")
    # It deletes one, and disconnects from it while it still runs.
    touch(space, "old", "old-coordinator", "fewer")
    wait_until("one collector is left", lambda: len(connected(space, coordinator)[0]) == 1)
    wait_until("one runs", lambda: running(space, "old", "collector") == connected(space, coordinator)[0])
    # It asks for one more.
    touch(space, "old", "old-coordinator", "more")
    collectors, left = wait_until("it is connected, too", lambda: is_started(space, coordinator))
    assert (running(space, "old", "collector"), running(space, "old", "learner")) == (collectors, learners)
    assert left == learners, "these were left alone"
    # One is killed: another takes its place. (DI-engine 0.5.3 does not connect to it: docs/decisions/0020.)
    killed = collectors[0]
    touch(space, "old", killed, "crash")
    wait_until("it has a new name", lambda: f"{killed}-1" in running(space, "old", "collector"))
    assert collectors[1] in running(space, "old", "collector")
    touch(space, "old", "old-coordinator", "done")
    space.ends("old", "Succeeded")
    wait_until("the object says so", lambda: phase(space, "old") == "Succeeded")
    pods = [pod for pod in space.pods("old") if pod["status"]["phase"] in ("Running", "Pending")]
    assert pods == []
    assert all(pod["metadata"]["labels"][keys.DIJOB_NAME] == "old" for pod in space.pods("old"))
    space.kubectl("delete", "dijob", "old")
    wait_until("nothing is left", lambda: nothing_left(space, "old"), timeout=120)

"""A job of DI-orchestrator v0.x on a real cluster: `kubectl apply`, the REST API, and its end.

The controller and the server are processes beside the cluster, and the replicas are shells.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from diflow.common import keys
from tests.builders import template
from tests.clusters import ROOT, TestCluster, wait_until
from tests.contrib.di_orchestrator import oldjobs
from tests.e2e.allocators import zone
from tests.e2e.live import FAKE, Live
from tests.e2e.test_crd import install
from tests.e2e.test_dijobs import Controller, controller, nothing_left, phase

pytestmark = [pytest.mark.extended, pytest.mark.xdist_group("node")]

Json = dict[str, Any]
_PATIENT = "trap 'exit 143' TERM; until [ -e /tmp/done ]; do [ ! -e /tmp/crash ] || exit 3; sleep 0.3; done"
_KILLS = 8
"""How often the server is killed while it answers a request."""
_AGGREGATOR = f"""
apiVersion: {keys.API_VERSION_1}
kind: AggregatorConfig
metadata: {{name: aggregator-config}}
spec:
  aggregator:
    template: {json.dumps(template(_PATIENT))}
"""


@pytest.fixture
def controlling(argo40: TestCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Controller]:
    """The controller of a namespace with the kinds and an AggregatorConfig."""
    with argo40.namespace("old") as namespace:
        live = Live(argo40, namespace)
        install(live)
        wait_until("aggregators are served", lambda: live.kubectl("get", "agconfig") is not None)
        live.kubectl("apply", "-f", "-", stdin=_AGGREGATOR)
        monkeypatch.setenv("DIFLOW_CONTROLLER_AGGREGATOR_CONFIG", f"{namespace}/aggregator-config")
        with controller(live, tmp_path / "controller.log") as process:
            try:
                yield process
            finally:
                live.kubectl("delete", "dijobs", "--all", "--wait=false", check=False)


@pytest.fixture
def space(controlling: Controller) -> Live:
    """The namespace of the controller."""
    return controlling.live


class Rest:
    """The REST API as a user with rights on Workflows calls it."""

    def __init__(self, live: Live, port: int, job: str) -> None:
        self._url = f"http://127.0.0.1:{port}/v1alpha1/replicas"
        self._who = {"namespace": live.namespace, "coordinator": f"{job}-coordinator"}
        live.kubectl("create", "serviceaccount", "tester")
        live.kubectl("create", "role", "tester", "--verb=get,list,patch", "--resource=workflows.argoproj.io")
        live.kubectl("create", "rolebinding", "tester", "--role=tester", f"--serviceaccount={live.namespace}:tester")
        self.head = {"Authorization": f"Bearer {live.kubectl('create', 'token', 'tester').strip()}"}

    def ask(self, method: str, path: str = "", /, **body: Any) -> Json:
        found = requests.request(
            method,
            self._url + path,
            params={**(self._who if "aggregator" not in body else {"namespace": self._who["namespace"]}), **body}
            if method == "GET"
            else {},
            data=json.dumps({**self._who, **body}),
            headers=self.head,
            timeout=30,
        )
        assert found.status_code == 200, found.text
        return dict(found.json()["data"])

    def hosts(self, module: str) -> list[str]:
        """The host names that GET answers."""
        return sorted(url.split(".")[0] for url in self.ask("GET")[module])


class Server:
    """`diflow server run` for one namespace, on a port that stays the same."""

    def __init__(self, live: Live, log: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        given = {"PORT": str(self.port), "HOST": "127.0.0.1", "METRICS_PORT": "-1", "WATCHED_NAMESPACE": live.namespace}
        self._environment = {
            **live.cluster.environment, **{f"DIFLOW_SERVER_{name}": value for name, value in given.items()},
        }  # fmt: skip
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as out:
            command = [sys.executable, "-m", "diflow", "server", "run", "--log-format", "json"]
            self._process = subprocess.Popen(command, env=self._environment, stdout=out, stderr=out, cwd=ROOT)
        wait_until("it serves", lambda: _is_ready(self.port), timeout=120, every=0.2)

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(60)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)


@contextmanager
def server(live: Live, log: Path) -> Iterator[int]:
    """A server that runs. Yields its port."""
    made = Server(live, log)
    try:
        made.start()
        yield made.port
    finally:
        made.stop()


def _is_ready(port: int) -> bool:
    try:
        return requests.get(f"http://127.0.0.1:{port}/readyz", timeout=5).status_code == 200
    except requests.RequestException:
        return False


def running(live: Live, job: str, module: str) -> list[str]:
    """The host names of the module's pods that run."""
    pods = [pod for pod in live.pods(job, module) if pod["status"]["phase"] == "Running"]
    return sorted(pod["metadata"]["labels"][keys.POD] for pod in pods if "deletionTimestamp" not in pod["metadata"])


def start(live: Live, name: str, **modules: Json) -> None:
    """`kubectl apply` of a job with these templates; its coordinator runs."""
    templates = {"coordinator": template(_PATIENT), **modules}
    made = oldjobs.manifest(name, **{module: {"template": each} for module, each in templates.items()})
    del made["metadata"]["namespace"]
    live.kubectl("apply", "-f", "-", stdin=json.dumps(made))
    wait_until("its coordinator runs", lambda: phase(live, name) == "Running")


def on_fake_nodes() -> Json:
    """The template of a replica that runs on a fake node until it is removed."""
    tolerations = [{"key": FAKE, "operator": "Exists"}]
    made = template(_PATIENT, nodeSelector={FAKE: "fake"}, tolerations=tolerations, terminationGracePeriodSeconds=1)
    made["metadata"] = {"annotations": {"kwok.x-k8s.io/duration": "600s"}}
    return made


def touch(live: Live, job: str, host: str, file: str) -> None:
    (name,) = (p["metadata"]["name"] for p in live.pods(job) if p["metadata"]["labels"][keys.POD] == host)
    live.exec(name, "touch", f"/tmp/{file}")


def test_replicas_come_and_go_and_the_job_ends_with_its_coordinator(space: Live, tmp_path: Path) -> None:
    start(space, "old", collector=template(_PATIENT), learner=template(_PATIENT))
    with server(space, tmp_path / "server.log") as port:
        rest = Rest(space, port, "old")
        # Two collectors and a learner, with what each is asked for.
        asked: Json = {"collectors": {"replicas": 2, "cpus": "30m"}, "learners": {"replicas": 1, "memory": "40Mi"}}
        first = rest.ask("POST", **asked)
        wait_until("they run", lambda: len(running(space, "old", "collector")) == 2)
        wait_until("the learner runs", lambda: len(running(space, "old", "learner")) == 1)
        assert rest.hosts("collectors") == running(space, "old", "collector")
        (pod, _) = space.pods("old", "collector")
        main = next(one for one in pod["spec"]["containers"] if one["name"] == "main")
        assert main["resources"]["limits"]["cpu"] == main["resources"]["requests"]["cpu"] == "30m"
        # The coordinator finds a collector by the name in the answer.
        (coordinator,) = (p["metadata"]["name"] for p in space.pods("old", "coordinator"))
        host = first["collectors"][0].split(":")[0]
        assert space.exec(coordinator, "nslookup", f"{host}.svc.cluster.local").count("Address") >= 2
        # One fails: another takes its place, with a new name, and the others stay.
        kept, lost = rest.hosts("collectors")
        touch(space, "old", lost, "crash")
        wait_until("it has a new name", lambda: rest.hosts("collectors") == sorted([kept, f"{lost}-1"]))
        wait_until("it runs", lambda: running(space, "old", "collector") == sorted([kept, f"{lost}-1"]))
        # One is reported as failed, and one is removed.
        rest.ask("POST", "/failed", collectors=[f"{kept}.di"])
        wait_until("it is replaced", lambda: kept not in running(space, "old", "collector"))
        wait_until("two run", lambda: len(running(space, "old", "collector")) == 2)
        rest.ask("DELETE", learners={"replicas": 5})
        wait_until("no learner is left", lambda: not space.pods("old", "learner"))
        status = space.get("dijob", "old")["status"]
        assert status["taskStatus"]["collector"] == {"Running": 2}
        assert status["phase"] == "Running"
        assert status["observedGeneration"] == space.get("dijob", "old")["metadata"]["generation"]
    # The coordinator succeeds, and the job with it.
    touch(space, "old", "old-coordinator", "done")
    space.ends("old", "Succeeded")
    wait_until("the object says so", lambda: phase(space, "old") == "Succeeded")
    assert [one["type"] for one in space.get("dijob", "old")["status"]["conditions"]] == [
        "Created", "Running", "Succeeded",
    ]  # fmt: skip
    assert [p for p in space.pods("old") if p["status"]["phase"] in ("Running", "Pending")] == []
    space.kubectl("delete", "dijob", "old")
    wait_until("nothing is left", lambda: nothing_left(space, "old"), timeout=120)


def test_what_was_answered_holds_although_the_server_and_the_controller_are_killed_at_any_time(
    controlling: Controller, tmp_path: Path
) -> None:
    space, job = controlling.live, "killed"
    # Its collectors run on fake nodes: nothing but the answers and the pods is of interest.
    start(space, job, collector=on_fake_nodes())
    answered: list[str] = []
    deleted: list[str] = []
    unknown = {"POST": 0, "DELETE": 0}
    serving = Server(space, tmp_path / "server.log")
    with zone(space, "old"):  # kwok runs
        try:
            serving.start()
            rest = Rest(space, serving.port, job)
            began = time.monotonic()
            answered += _host_names(rest.ask("POST", collectors={"replicas": 2}))
            usual = time.monotonic() - began
            for turn in range(_KILLS):
                # From before the request arrives until after its answer.
                killer = threading.Timer(1.5 * usual * turn / (_KILLS - 1), serving.kill)
                method = "DELETE" if turn % 4 == 3 else "POST"
                killer.start()
                if turn % 3 == 1:
                    controlling.kill()
                try:
                    found = _host_names(rest.ask(method, collectors={"replicas": 1}))
                    (deleted if method == "DELETE" else answered).extend(found)
                except requests.RequestException:
                    unknown[method] += 1
                killer.join()
                serving.start()
                if turn % 3 == 1:
                    controlling.start()
            listed = rest.hosts("collectors")
            wait_until("they run", lambda: running(space, job, "collector") == rest.hosts("collectors"))
            assert rest.hosts("collectors") == listed
        finally:
            serving.stop()
        assert unknown["POST"] > 0, "some were killed before their answer"
        assert len(set(answered)) == len(answered), "nothing was made twice"
        at_least = len(answered) - len(deleted) - unknown["DELETE"]
        assert at_least <= len(listed) <= len(answered) - len(deleted) + unknown["POST"]
        gone = set(answered) - set(listed)
        assert len(gone) <= len(deleted) + unknown["DELETE"], "what was answered is there, unless it was deleted"
        assert not set(deleted) & set(listed)
        touch(space, job, f"{job}-coordinator", "done")
        space.ends(job, "Succeeded")
        wait_until("the object says so", lambda: phase(space, job) == "Succeeded")
        space.kubectl("delete", "dijob", job)
        wait_until("nothing is left", lambda: nothing_left(space, job), timeout=120)


def _host_names(answer: Json) -> list[str]:
    return [url.split(".")[0] for url in answer["collectors"]]


def test_a_learner_of_ten_gpus_runs_as_two_pods_on_nodes_with_8_8_0_and_4(space: Live, tmp_path: Path) -> None:
    start(space, "gpus", learner=on_fake_nodes())
    with server(space, tmp_path / "server.log") as port, gpu_nodes(space, 8, 8, 0, 4) as nodes:
        rest = Rest(space, port, "gpus")
        aggregator = rest.ask("POST", learners={"replicas": 1, "gpus": 10})["learners"][0].split(".")[0]
        wait_until("its learners run", lambda: len(running(space, "gpus", "ddp-learner")) == 2)
        wait_until("its aggregator runs", lambda: running(space, "gpus", "aggregator") == [aggregator])
        ddp = sorted(space.pods("gpus", "ddp-learner"), key=lambda pod: int(_env(pod)["START_RANK"]))
        names = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "START_RANK", "MASTER_PORT")
        assert [[_env(pod)[name] for name in names] for pod in ddp] == [
            ["10", "8", "0", "10314"], ["10", "2", "8", "10314"],
        ]  # fmt: skip
        assert [_main(pod)["resources"]["limits"]["nvidia.com/gpu"] for pod in ddp] == ["8", "2"]
        places = [pod["spec"]["nodeName"] for pod in ddp]
        assert places[0] in nodes[:2]
        assert places[1] in (*nodes[:2], nodes[3])
        assert len(set(places)) == 2
        first_host, second_host = (pod["metadata"]["labels"][keys.POD] for pod in ddp)
        assert _env(ddp[0])["MASTER_ADDR"] == "localhost"
        assert _env(ddp[1])["MASTER_ADDR"].split(".")[0] == first_host
        listed = rest.ask("GET", aggregator=aggregator)["learners"]
        assert [url.split(".")[0] for url in listed] == [first_host] * 8 + [second_host] * 2
        assert {kind["metadata"]["labels"][keys.DDP_LEARNER_TYPE] for kind in ddp} == {
            "ddp-learner-master", "ddp-learner-worker",
        }  # fmt: skip
        rest.ask("DELETE", learners={"replicas": 1})
        wait_until("none of them is left", lambda: not space.pods("gpus", "ddp-learner"))
        wait_until("no aggregator is left", lambda: not space.pods("gpus", "aggregator"))
    touch(space, "gpus", "gpus-coordinator", "done")
    space.ends("gpus", "Succeeded")


@contextmanager
def gpu_nodes(live: Live, *gpus: int) -> Iterator[list[str]]:
    """Fake nodes that have so many GPUs each. Yields their names."""
    names = [f"{live.namespace}-gpu-{index}" for index in range(len(gpus))]
    nodes = []
    for name, count in zip(names, gpus, strict=True):
        resources = {"cpu": "8", "memory": "8Gi", "pods": "10", **({"nvidia.com/gpu": str(count)} if count else {})}
        labels = {FAKE: "fake", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
        taint = {"key": FAKE, "value": "fake", "effect": "NoSchedule"}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        status = {"capacity": resources, "allocatable": resources}
        nodes.append({**node, "spec": {"taints": [taint]}, "status": status})
    with zone(live, "gpus"):  # kwok runs
        live.cluster.create(*nodes)
        try:
            yield names
        finally:
            live.cluster.kubectl("delete", "node", *names, "--wait=false", check=False)


def _env(pod: Json) -> dict[str, Any]:
    return {one["name"]: one.get("value") for one in _main(pod)["env"]}


def _main(pod: Json) -> Json:
    found: Json = next(one for one in pod["spec"]["containers"] if one["name"] == "main")
    return found

"""DIJob objects on a real cluster: `kubectl apply`, the phases in `kubectl get dijob`, `kubectl delete`."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from diflow.common import keys
from tests.builders import job, task, template
from tests.clusters import ROOT, TestCluster, wait_until
from tests.e2e import installing
from tests.e2e.live import Live, pod_name
from tests.e2e.test_cartpole import DATA, image
from tests.e2e.test_crd import EXAMPLE, install

pytestmark = pytest.mark.xdist_group("node")

__all__ = ["image"]
Json = dict[str, Any]


class Controller:
    """`diflow controller run` for one namespace, as a process of its own."""

    def __init__(self, live: Live, log: Path) -> None:
        self.live, self.log = live, log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        space = self.live.namespace
        command = [sys.executable, "-m", "diflow", "controller", "run", "--log-format", "json"]
        command += ["--namespace", space, "--watch-namespace", space]
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                command, env=self.live.cluster.environment, stdout=out, stderr=out, cwd=ROOT
            )

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(60)


@contextmanager
def controller(live: Live, log: Path) -> Iterator[Controller]:
    made = Controller(live, log)
    made.start()
    try:
        yield made
    finally:
        assert made.process is not None
        if made.process.poll() is None:
            made.kill(signal.SIGTERM)


class Watched:
    """The lines of `kubectl get dijob -w`."""

    def __init__(self, live: Live, name: str) -> None:
        command = ["kubectl", "-n", live.namespace, "get", "dijob", name, "-w", "--no-headers"]
        self._process = subprocess.Popen(command, env=live.cluster.environment, stdout=subprocess.PIPE, text=True)
        self.rows: list[list[str]] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.rows.append(line.split())

    def phases(self) -> list[str]:
        """The phases so far, without repetitions."""
        return [phase for phase, _ in itertools.groupby(row[1] for row in self.rows if len(row) == 7)]

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def watched(live: Live, name: str) -> Iterator[Watched]:
    made = Watched(live, name)
    try:
        yield made
    finally:
        made.stop()


def phase(live: Live, name: str) -> str:
    return str((live.get("dijob", name).get("status") or {}).get("phase", ""))


def nothing_left(live: Live, name: str) -> bool:
    return not live.get("workflows")["items"] and not live.pods(name) and not live.get("dijobs")["items"]


@pytest.fixture
def space(argo40: TestCluster) -> Iterator[Live]:
    """A namespace for each test."""
    with argo40.namespace("dijob") as namespace:
        live = Live(argo40, namespace)
        install(live)
        try:
            yield live
        finally:
            live.kubectl("delete", "dijobs", "--all", "--wait=false", check=False)


@pytest.mark.usefixtures("image")
def test_the_demo_runs_as_an_object_although_the_controller_is_killed_again_and_again(
    space: Live, tmp_path: Path
) -> None:
    with controller(space, tmp_path / "controller.log") as process:
        space.kubectl("apply", "-f", str(EXAMPLE))
        with watched(space, "cartpole") as seen:
            wait_until("it has a Workflow", lambda: space.get("workflows")["items"], timeout=120)
            # Killed before it has written the first phase, it would begin with the one that the job has by then.
            wait_until("the beginning is seen", seen.phases, timeout=60)
            process.kill()
            uid = space.workflow("cartpole")["metadata"]["uid"]
            process.start()
            # On a slow machine it may have ended before the new process leads.
            wait_until("it runs", lambda: phase(space, "cartpole") in ("Running", "Succeeded"), timeout=300)
            process.kill()
            process.start()
            wait_until("it has succeeded", lambda: phase(space, "cartpole") == "Succeeded", timeout=600)
            wait_until("the end is seen", lambda: seen.phases()[-1:] == ["Succeeded"], timeout=60)
            phases = seen.phases()
    assert space.workflow("cartpole")["metadata"]["uid"] == uid, "it was made once"
    assert (phases[0], phases[-1]) == ("Pending", "Succeeded")
    assert set(phases) <= {"Pending", "Starting", "Running", "Restarting", "Rescheduling", "Succeeded"}
    status = space.get("dijob", "cartpole")["status"]
    assert (status["replicas"], status["restarts"]) == (5, 0)
    # Also what happened while no controller ran.
    assert [c["type"] for c in status["conditions"]][-3:] == ["Starting", "Running", "Succeeded"]
    assert status["taskStatus"]["evaluator"] == {"Succeeded": 1}
    space.kubectl("delete", "dijob", "cartpole")
    wait_until("nothing is left", lambda: nothing_left(space, "cartpole"), timeout=120)
    assert (DATA / f"{space.namespace}.cartpole" / "cartpole.png").exists()


def test_the_controller_of_the_manifests_runs_jobs_with_its_own_rights(argo40: TestCluster, space: Live) -> None:
    home = Live(argo40, f"{space.namespace}-system")
    setting = "DIFLOW_CONTROLLER_WATCHED_NAMESPACE"
    with installing.installed(argo40, "controller", home=home.namespace, watched=space.namespace, setting=setting):
        home.kubectl("rollout", "status", f"deployment/{keys.CONTROLLER}", "--timeout=280s")
        space.kubectl("apply", "-f", "-", stdin=job(task("learner", "sleep 5"), task("collector", "sleep 5")).to_yaml())
        wait_until("it runs", lambda: phase(space, "job") == "Running", timeout=240)
        leader = home.get("lease", keys.CONTROLLER)["spec"]["holderIdentity"]
        pods = [pod_name(pod) for pod in home.get("pods", labels=f"app.kubernetes.io/name={keys.CONTROLLER}")["items"]]
        (leads,) = [name for name in pods if leader.startswith(name)]
        home.kubectl("delete", "pod", leads, "--grace-period=0", "--force", "--wait=false")
        wait_until("it has succeeded", lambda: phase(space, "job") == "Succeeded", timeout=240)
        # What the API server lets pass and the model does not, as with an older CRD.
        bad = json.loads(json.dumps(job(task("learner"), name="bad").to_manifest()))
        bad["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["ports"] = [{"containerPort": 70000}]
        space.kubectl("apply", "-f", "-", stdin=json.dumps(bad))
        wait_until("it has failed", lambda: phase(space, "bad") == "Failed", timeout=60)
        assert not space.pods("bad")
        log = home.kubectl("logs", "-l", f"app.kubernetes.io/name={keys.CONTROLLER}", "--tail=-1")
        assert "Traceback" not in log
        assert "lacks the right" not in log
        space.kubectl("delete", "dijobs", "--all")
        wait_until("nothing is left", lambda: nothing_left(space, "job"), timeout=120)


def test_a_job_with_one_template_has_the_arguments_of_ditask(space: Live, tmp_path: Path) -> None:
    names = ("PARALLEL_WORKERS", "PORTS", "NODE_IDS", "ATTACHED_NODES")
    command = f"echo {' '.join(f'$DI_{name}_ARG' for name in names)}; {space.until_open('end')}"
    engine = {"topology": "mesh", "parallelWorkers": 2}
    spec = {"minReplicas": 3, "maxReplicas": 5, "engineFields": engine, "template": template(command)}
    made = {"apiVersion": keys.API_VERSION, "kind": keys.KIND, "metadata": {"name": "one"}, "spec": spec}
    with controller(space, tmp_path / "controller.log"):
        space.kubectl("apply", "-f", "-", stdin=json.dumps(made))
        pods = space.running("one", 3)
        wait_until("it says so", lambda: phase(space, "one") == "Running")
        assert [logged_arguments(space, pod) for pod in pods] == [arguments(space, i) for i in range(3)]
        space.kubectl("delete", "dijob", "one", "--cascade=foreground", "--timeout=120s")
        assert nothing_left(space, "one"), "it waited for its Workflow and pods"


def test_a_copy_by_argo_resubmit_does_not_end_a_job_and_outlives_it(space: Live, tmp_path: Path) -> None:
    def owners(name: str) -> list[str]:
        return [one["name"] for one in space.workflow(name)["metadata"].get("ownerReferences", [])]

    with controller(space, tmp_path / "controller.log"):
        space.kubectl("apply", "-f", "-", stdin=job(task("learner", space.until_open("end"))).to_yaml())
        wait_until("it runs", lambda: phase(space, "job") == "Running", timeout=240)
        copy = json.loads(space.argo("resubmit", "job", "-o", "json"))["metadata"]["name"]
        wait_until("the object has given it up", lambda: not owners(copy), timeout=60)
        space.argo("stop", copy)
        space.ends(copy, "Failed")
        assert (phase(space, "job"), owners("job")) == ("Running", ["job"])
        space.kubectl("delete", "dijob", "job", "--cascade=foreground", "--timeout=120s")
        assert [one["metadata"]["name"] for one in space.get("workflows")["items"]] == [copy]


def test_a_job_that_replaces_one_of_its_name_does_not_inherit_its_pods(space: Live, tmp_path: Path) -> None:
    def message() -> str:
        return str((space.get("dijob", "job").get("status") or {}).get("message", ""))

    slow = job(task("learner", "trap 'sleep 8; exit 1' TERM; sleep 600 & wait"), backoff_limit=0)
    with controller(space, tmp_path / "controller.log"):
        space.kubectl("apply", "-f", "-", stdin=slow.to_yaml())
        wait_until("it runs", lambda: phase(space, "job") == "Running", timeout=240)
        (pod,) = space.running("job", 1)
        space.kubectl("delete", "dijob", "job")
        space.kubectl("apply", "-f", "-", stdin=job(task("learner", "sleep 1"), backoff_limit=0).to_yaml())
        wait_until("it names the pod", lambda: f"{pod_name(pod)} (is being deleted)" in message(), timeout=60)
        wait_until("it ends", lambda: phase(space, "job") in ("Succeeded", "Failed"), timeout=240)
        status = space.get("dijob", "job")["status"]
        assert (status["phase"], status["restarts"], status["reschedules"]) == ("Succeeded", 0, 0), message()


def logged_arguments(space: Live, pod: Json) -> str:
    return next(line for line in space.logs(pod_name(pod)).splitlines() if line.startswith("--"))


def arguments(space: Live, index: int) -> str:
    """What a replica of a mesh of two workers each has."""

    def urls(other: int) -> str:
        host = f"one-worker-{other}.di.{space.namespace}.svc.cluster.local"
        return f"tcp://{host}:22270,tcp://{host}:22271"

    fixed = f"--parallel-workers=2 --ports=22270,22271 --node-ids={2 * index},{2 * index + 1}"
    return fixed + (f" --attach-to={','.join(map(urls, range(index)))}" if index else "")

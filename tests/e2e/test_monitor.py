"""The monitor beside real work: what it reports and saves, and that Argo ends the pods as it would without it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from diflow import DIJob, Task
from diflow.common import keys
from diflow.dijob.model import Monitor
from tests.clusters import TestCluster, wait_until
from tests.e2e import installing
from tests.e2e.allocators import status, submit
from tests.e2e.live import Live, pod_name
from tests.e2e.test_failures import kill_the_work

pytestmark = [pytest.mark.extended, pytest.mark.xdist_group("monitor")]

_IMAGE = "docker.io/diflow/diflow:0.2.0"
# A checkpoint of step 7 that is complete, and one of step 8 that is not.
_SAVES = """
import json, os, pathlib, sys, time
folder = pathlib.Path("/dev/shm/diflow-checkpoint")
saved = [path for path in pathlib.Path("/data/runs").glob("rank-*/*/model")]
print("found", *[path.read_text() for path in saved], flush=True)
for step in (7, 8):
    (folder / str(step)).mkdir()
    (folder / str(step) / "model").write_text(f"weights of step {step}")
    if step == 7:
        (folder / str(step) / ".complete").touch()
for step in range(1, 5):
    with open(os.environ["RUNTIME_METRICS_PATH"], "w") as file:
        json.dump({"step": step, "timestamp": time.time()}, file)
    time.sleep(2)
"""


@pytest.fixture(scope="module")
def live(argo40: TestCluster) -> Iterator[Live]:
    """A namespace for jobs, with a server for it."""
    with installing.served_namespace(argo40, "monitor") as found:
        yield found


def job(name: str, program: str, *, shared: bool = False, backoff_limit: int = 1) -> DIJob:
    container = {
        "name": "di-container",
        "image": _IMAGE,
        "command": ["python3", "-c", program],
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    spec: dict[str, Any] = {"containers": [container], "terminationGracePeriodSeconds": 10}
    if shared:
        spec["shareProcessNamespace"] = True
    data = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    return DIJob(
        name=name,
        tasks=(Task(name="worker", template={"spec": spec}),),
        volumes=(data,),
        monitor=Monitor(checkpoint_volume="data", checkpoint_path="runs"),
        backoff_limit=backoff_limit,
        scheduling="none",
    )


def standing(live: Live, name: str) -> dict[str, Any]:
    """What the server has stored of the reports of rank 0."""
    given = live.workflow(name)["spec"]["arguments"]["parameters"]
    text = next(one["value"] for one in given if one["name"] == keys.PARAM_PROFILINGS)
    return dict(json.loads(text).get("ranks", {}).get("0", {}))


@pytest.fixture(scope="module", autouse=True)
def _volume(live: Live) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    live.kubectl("create", "-f", "-", stdin=json.dumps(claim))


def test_the_steps_of_the_trainers_file_are_reported_and_a_failed_work_leaves_its_checkpoint(live: Live) -> None:
    name = submit(live, job("fails", f"{_SAVES}\nsys.exit(0 if saved else 3)"))
    # The first attempt fails after it has left a complete checkpoint; the second one finds that, and succeeds.
    live.ends(name, "Succeeded")
    assert status(live, name).restarts == 1
    first, second = live.pods(name)
    assert live.printed(pod_name(first)) == ["found"]
    assert live.printed(pod_name(second)) == ["found weights of step 7"]
    assert "saved /checkpoints/runs/rank-0/7" in live.kubectl("logs", pod_name(first), "-c", "diflow-monitor")
    assert standing(live, name)["step"] == 4
    for pod in (first, second):
        ended = {c["name"]: c["state"]["terminated"]["exitCode"] for c in pod["status"]["containerStatuses"]}
        assert ended["diflow-monitor"] == 0


def test_work_that_is_killed_leaves_its_checkpoint_and_the_monitor_does_not_hold_the_pod_up(live: Live) -> None:
    name = submit(live, job("killed", f"{_SAVES}\ntime.sleep(3600)", backoff_limit=0))
    (pod,) = live.running(name, 1)
    wait_until("it has written its last step", lambda: standing(live, name).get("step") == 4)
    kill_the_work(live, pod_name(pod))
    wait_until("the pod has ended", lambda: live.pods(name)[0]["status"]["phase"] == "Failed")
    said = live.kubectl("logs", pod_name(pod), "-c", "diflow-monitor")
    # That of an earlier job with the same folder is complete already.
    assert "saved /checkpoints/runs/rank-0/7" in said or "no complete checkpoint to save" in said
    live.delete(name)


def test_in_a_shared_process_namespace_the_use_of_the_work_is_reported(live: Live) -> None:
    program = (
        "import time\nblock = bytearray(50_000_000)\nend = time.time() + 30\nwhile time.time() < end: time.sleep(0.01)"
    )
    name = submit(live, job("shared", program, shared=True))
    found = wait_until("its memory is reported", lambda: standing(live, name).get("memoryBytes"))
    assert found > 50_000_000
    live.ends(name, "Succeeded")

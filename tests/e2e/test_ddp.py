"""examples/ddp on real pods, and real torchrun: no sample is lost or counted twice, whatever is stopped and killed.

The image has Debian's torch; on a cluster that is not of `python3 -m cluster` it must be there already.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diflow import DIJob, Task
from diflow.common import keys
from diflow.dijob.model import NodeCheck
from tests.clusters import ROOT, TestCluster, wait_until
from tests.e2e import installing
from tests.e2e.allocators import Daemon, daemon, status, submit
from tests.e2e.live import Live, pod_name
from tests.e2e.test_failures import kill_the_work
from tests.e2e.test_node_check import record

pytestmark = [pytest.mark.extended, pytest.mark.xdist_group("ddp")]

DATA = Path("/var/lib/diflow-ddp")  # the volume of examples/ddp/job.yaml
IMAGE = "docker.io/diflow/diflow-ddp:0.2.0"
# Debian's torch on Python 3.11 fails with torchrun's default settings for output (see examples/torchrun).
_OUTPUT = [{"name": "PET_REDIRECTS", "value": "1"}, {"name": "PET_TEE", "value": "1"}]


@pytest.fixture(scope="module")
def live(argo40: TestCluster) -> Iterator[Live]:
    """A namespace with a server, and the image with torch."""
    if argo40.name is not None:
        command = [sys.executable, "-m", "cluster", "load-image", "--name", argo40.name, "--training"]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    DATA.mkdir(parents=True, exist_ok=True)
    DATA.chmod(0o1777)  # the pods are not root
    with installing.served_namespace(argo40, "ddp", "shards") as found:
        yield found


@pytest.fixture(scope="module")
def running(live: Live, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with daemon(live, tmp_path_factory.mktemp("ddp") / "allocator.log") as made:
        yield made


def test_a_training_is_resized_and_loses_its_allocator_its_server_and_a_rank_but_no_sample(
    live: Live, running: Daemon
) -> None:
    name = submit(live, _training())
    wait_until("four ranks train", lambda: _steps(live, name, 4) > 8)

    # 4 -> 2: all ranks save together on SIGTERM, so the next ones go on where these were.
    _diflow(live, "scale", name, "--max", "2")
    wait_until("two ranks train", lambda: _steps(live, name, 2) > 8)

    # The allocator, the server and a rank are killed at once. The other rank stops, as its peer is gone.
    running.kill()
    system = Live(live.cluster, f"{live.namespace}-system")
    system.kubectl("delete", "pods", "--all", "--grace-period=0", "--force", "--wait=false")
    kill_the_work(live, pod_name(live.running(name, 2)[1]))
    running.start()
    wait_until("two others train", lambda: len(_parts(live, name)) == 3 and _steps(live, name, 2) > 8)

    # 2 -> 4
    _diflow(live, "scale", name, "--max", "4")
    live.ends(name, "Succeeded")
    assert status(live, name).restarts == 0, "nothing of it was the program's fault"

    parts = _parts(live, name)
    assert [part[0]["world"] for part in parts] == [4, 2, 2, 4]
    starts, ends = [part[0]["step"] for part in parts[1:]], [part[-1]["step"] for part in parts]
    assert (starts[0], starts[2]) == (ends[0], ends[2]), "a resize repeats no step"
    assert ends[1] - _CHECKPOINT_STEPS <= starts[1] <= ends[1], "a kill those since the last checkpoint"
    assert parts[-1][-1]["seen"] == _SAMPLES * _EPOCHS
    said = [live.logs(pod_name(pod)) for pod in live.pods(name) if pod["status"]["phase"] == "Succeeded"]
    assert len(said) == 4
    assert all(f"{_UNITS} shards learned; not exactly once: none" in log for log in said)
    shutil.rmtree(_folder(live, name))


@pytest.mark.usefixtures("running")
def test_torchrun_meets_the_agents_of_its_own_round_and_attempt(live: Live) -> None:
    name = submit(live, _torchrun())
    first = _met(live, name, 3)
    _diflow(live, "scale", name, "--max", "2")
    second = _met(live, name, 2)
    live.exec(pod_name(live.running(name, 2)[1]), "touch", "/tmp/crash")
    third = wait_until("all agents are new", lambda: _met_other(live, name, 2, than=second))
    assert len({first, second, third}) == 3, "each has an id of its own"
    live.open("torchrun")
    live.ends(name, "Succeeded")
    assert status(live, name).restarts == 1


@pytest.mark.usefixtures("running")
def test_a_node_check_with_torch_measures_an_all_reduce_of_the_gang(live: Live) -> None:
    small = {"requests": {"cpu": "20m", "memory": "64Mi"}}
    container = {"name": "di-container", "image": IMAGE, "command": ["true"], "resources": small}
    task = Task(name="worker", replicas=2, template={"spec": {"containers": [container]}})
    name = submit(live, DIJob(name="check", tasks=(task,), scheduling="gang", node_check=NodeCheck(image=IMAGE)))
    live.ends(name, "Succeeded")
    found = record(live, name)
    assert [found.entries[rank].figures["allreduce"] > 0 for rank in range(2)] == [True, True]


_BATCH, _SAMPLES, _EPOCHS, _CHECKPOINT_STEPS = 8, 1600, 2, 20
_UNITS = _SAMPLES * _EPOCHS // _BATCH


def _training() -> DIJob:
    manifest = DIJob.from_yaml(ROOT / "examples" / "ddp" / "job.yaml").to_manifest()
    manifest["spec"]["scheduling"] = "gang"
    container = manifest["spec"]["tasks"][0]["template"]["spec"]["containers"][0]
    sizes = {"BATCH": _BATCH, "SAMPLES": _SAMPLES, "EPOCHS": _EPOCHS, "CHECKPOINT_STEPS": _CHECKPOINT_STEPS}
    container["env"] = [{"name": k, "value": str(v)} for k, v in {**sizes, "STEP_SECONDS": 0.25}.items()]
    container["resources"]["requests"]["cpu"] = "20m"
    return DIJob.from_manifest(manifest)


def _parts(live: Live, name: str) -> list[list[dict[str, Any]]]:
    """The history of rank 0, cut at its starts."""
    path = _folder(live, name) / "history.jsonl"
    parts: list[list[dict[str, Any]]] = []
    for line in path.read_text().splitlines() if path.exists() else ():
        row = json.loads(line)
        if row["loss"] is None:
            parts.append([])
        parts[-1].append(row)
    return parts


def _steps(live: Live, name: str, world: int) -> int:
    """Steps since the last start, if that was of so many ranks."""
    parts = _parts(live, name)
    return len(parts[-1]) - 1 if parts and parts[-1][0]["world"] == world else 0


def _folder(live: Live, name: str) -> Path:
    return DATA / f"{live.namespace}.{name}"


def _diflow(live: Live, *arguments: str) -> None:
    done = live.diflow(*arguments)
    assert done.code == 0, done.err


# Each rank adds its rank to those of the others, and stays until the test is over.
_RANK = """
import os, socket, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank())])
dist.all_reduce(total)
print("met", dist.get_world_size(), int(total), os.environ["TORCHELASTIC_RUN_ID"], flush=True)
is_over = torch.tensor([0.0])
while not is_over:  # in step: an agent that fails waits for the others
    time.sleep(0.5)
    if os.path.exists("/tmp/crash"):
        sys.exit(3)
    try:
        is_over[0] = bool(socket.gethostbyname("go-torchrun"))
    except OSError:
        pass
    dist.all_reduce(is_over)
"""


def _torchrun() -> DIJob:
    container = {
        "name": "di-container",
        "image": IMAGE,
        "command": ["sh", "-c", 'echo "$RANK_PY" > /tmp/rank.py; exec python3 -m torch.distributed.run /tmp/rank.py'],
        "env": [{"name": "RANK_PY", "value": _RANK}, *_OUTPUT],
        "resources": {"requests": {"cpu": "20m", "memory": "200Mi"}},
    }
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 5}}
    workers = Task(name="worker", replicas=3, min_replicas=2, max_replicas=3, template=template)
    return DIJob(
        name="torchrun", tasks=(workers,), preemptible=True, scheduling="gang", annotations={keys.RENDEZVOUS: "c10d"}
    )


def _met(live: Live, name: str, world: int) -> str:
    """Wait until so many ranks have met. Returns the id under which they did."""
    return wait_until(f"{world} ranks have met", lambda: _met_other(live, name, world, than=""))


def _met_other(live: Live, name: str, world: int, *, than: str) -> str:
    pods = [pod for pod in live.pods(name) if pod["status"]["phase"] == "Running"]
    lines = [
        line.split("met ")[1].split()
        for pod in pods
        for line in live.logs(pod_name(pod)).splitlines()
        if "met " in line
    ]
    ids = {each[2] for each in lines}
    good = [str(world), str(world * (world - 1) // 2)]
    if len(pods) == len(lines) == world and len(ids) == 1 and all(each[:2] == good for each in lines):
        return "" if ids == {than} else ids.pop()
    return ""

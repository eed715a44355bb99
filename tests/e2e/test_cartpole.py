"""The job on real input: it solves CartPole, survives a kill, and leaves its plot."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from diflow import DIJob
from tests.clusters import ROOT
from tests.e2e.live import Live, pod_name
from tests.e2e.test_failures import kill_the_work

pytestmark = pytest.mark.xdist_group("node")
DATA = Path("/var/lib/diflow-demo")


@pytest.fixture
def image(live: Live) -> None:
    """The image with this checkout's code, where the cluster is ours; its volume is writable for the pods."""
    if live.cluster.name is not None:
        live.cluster.run("python3", "-m", "cluster", "load-image", "--name", live.cluster.name, timeout=600)
    DATA.mkdir(parents=True, exist_ok=True)
    DATA.chmod(0o1777)


@pytest.mark.usefixtures("image")
def test_cartpole_is_solved_although_a_collector_is_killed(live: Live) -> None:
    job = DIJob.from_yaml(ROOT / "examples" / "cartpole" / "job.yaml")
    name = live.submit(job)
    pods = live.running(name, 5)
    killed = next(pod for pod in pods if pod["metadata"]["labels"]["diengine/task-name"] == "collector")
    kill_the_work(live, pod_name(killed))
    live.ends(name, "Succeeded", timeout=600)
    collectors = [node for node in live.nodes(name) if node["type"] == "Pod" and node["templateName"] == "collector"]
    assert any(node.get("outputs", {}).get("exitCode") == "137" for node in collectors), "the kill was seen"
    assert len(collectors) > 3, "and made good"

    learner = next(pod for pod in live.pods(name, "learner") if pod["status"]["phase"] == "Succeeded")
    solved = next(line for line in live.logs(pod_name(learner)).splitlines() if line.startswith("solved:"))
    assert float(solved.split()[3]) >= 475
    folder = DATA / f"{live.namespace}.{name}"
    assert (folder / "cartpole.png").read_bytes().startswith(b"\x89PNG")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) > 10
    # The test itself deletes the demo's data: the volume is on this machine.
    shutil.rmtree(folder)

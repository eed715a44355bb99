"""Real pods that hang: the allocator finds them by what they report, names them, and starts them again.

The server runs in pods, and the programs report with `diflow.client` and the tokens that they find.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from diflow import DIJob, Task
from diflow.dijob.model import Health
from diflow.record import signals
from diflow.record.health import HealthState
from diflow.record.job import record_of
from diflow.record.signals import Signals
from tests.clusters import TestCluster, wait_until
from tests.e2e import installing
from tests.e2e.allocators import Daemon, daemon, kept_alive, status, submit, until_running
from tests.e2e.live import Live, pod_name

pytestmark = [pytest.mark.extended, pytest.mark.xdist_group("health"), pytest.mark.usefixtures("running")]

_IMAGE = "docker.io/diflow/diflow:0.2.0"
# One rank of a collective: a step for all that happens while no rank is held up. Rank 0 of this test stands in for the
# others, which wait: it is told so by the file.
_PROGRAM = """
import os, time
from diflow import client
open("/tmp/pid", "w").write(str(os.getpid()))
step = 0
while not os.path.exists("/tmp/done"):
    if not os.path.exists("/tmp/wait"):
        step += 1
        client.report(step=step)
    time.sleep(0.2)
"""


@pytest.fixture(scope="module")
def live(argo40: TestCluster) -> Iterator[Live]:
    """A namespace for jobs, with a server and an allocator for it."""
    with installing.served_namespace(argo40, "health") as found:
        yield found


@pytest.fixture(scope="module")
def running(live: Live, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    log = tmp_path_factory.mktemp("health") / "allocator.log"
    with daemon(live, log) as made, kept_alive(made):
        yield made


def test_a_pod_that_hangs_is_found_named_and_restarted_and_backofflimit_is_not_used(live: Live) -> None:
    name = submit(live, _job())
    first = {pod["metadata"]["labels"]["diengine/pod"]: pod for pod in until_running(live, name, 2)}
    wait_until("both advance", lambda: min(_steps(live, name)) > 5)
    # The process of rank 1 stops, threads and all; rank 0 waits for it, and lives.
    hosts = sorted(first)
    live.exec(pod_name(first[hosts[1]]), "sh", "-c", "kill -STOP $(cat /tmp/pid)")
    live.exec(pod_name(first[hosts[0]]), "touch", "/tmp/wait")
    found = wait_until("it is restarted", lambda: _found(live, name), timeout=200)
    assert found.restarts == 1
    assert found.silent == {1}
    node = live.node()["metadata"]["name"]
    assert found.last.startswith(f"no sign of life for 1m: worker-1 on {node}")
    assert f"the others wait for worker-1 on {node}" in found.last
    second = wait_until("both are new", lambda: _new(live, name, {p["metadata"]["uid"] for p in first.values()}))
    assert len(second) == 2
    wait_until("both advance again", lambda: min(_steps(live, name)) > 5)
    wait_until("it is well again", lambda: _state(live, name).why == "")
    events = live.get("events", fields=f"involvedObject.name={name}")["items"]
    assert {"Restarted", "Healthy"} <= {event["reason"] for event in events}
    for pod in second:
        live.exec(pod_name(pod), "touch", "/tmp/done")
    live.ends(name, "Succeeded")
    assert status(live, name).restarts == 0
    assert status(live, name).reschedules == 2


def _job() -> DIJob:
    container = {
        "name": "di-container",
        "image": _IMAGE,
        "command": ["python3", "-c", _PROGRAM],
        "resources": {"requests": {"cpu": "20m", "memory": "48Mi"}},
    }
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 3}}
    health = Health(heartbeat_seconds=60, progress_seconds=300, action="restart", max_restarts=1)
    worker = Task(name="worker", replicas=2, template=template)
    return DIJob(name="hangs", tasks=(worker,), scheduling="gang", backoff_limit=0, health=health)


def _signals(live: Live, name: str) -> Signals | None:
    return signals.of(record_of(live.workflow(name)).texts.profilings)


def _steps(live: Live, name: str) -> tuple[int, ...]:
    found = _signals(live, name)
    return found.steps if found is not None and len(found.steps) == 2 else (0,)


def _state(live: Live, name: str) -> HealthState:
    return record_of(live.workflow(name)).notes.health or HealthState()


def _found(live: Live, name: str) -> HealthState | None:
    found = _state(live, name)
    return found if found.restarts else None


def _new(live: Live, name: str, old: set[str]) -> list[dict[str, object]] | None:
    pods = [pod for pod in live.pods(name) if pod["status"]["phase"] == "Running"]
    return pods if len(pods) == 2 and not old & {pod["metadata"]["uid"] for pod in pods} else None

"""Programs that ignore SIGTERM: their pods end after their grace period, with their logs, whoever has ended the job.

Argo forgets the pods of a job that it ends before its SIGKILL is due, as the first of these tests shows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diflow import DIJob, Task
from tests.builders import job, task, template
from tests.clusters import TestCluster, wait_until
from tests.e2e.allocators import Daemon, ask, daemon, events, status, submit, until_running
from tests.e2e.live import Live, pod_name
from tests.e2e.test_crd import install
from tests.e2e.test_dijobs import controller

pytestmark = pytest.mark.xdist_group("stopping")

_DEAF = "trap '' TERM; echo works; while true; do sleep 0.5; done"
_GRACE_SECONDS = 4
_AT_MOST_SECONDS = 60
"""They ran for ever. On a machine with other work the kubelet and the controller take their time."""


def deaf(name: str, **fields: Any) -> DIJob:
    made = task("learner", _DEAF, replicas=2, terminationGracePeriodSeconds=_GRACE_SECONDS)
    return job(made, name=name, **fields)


def living(live: Live, name: str) -> set[str]:
    return {pod_name(pod) for pod in live.pods(name) if pod["status"]["phase"] == "Running"}


def end_late(live: Live, name: str, pods: set[str], since: float) -> None:
    """The pods end by SIGKILL and not before their grace period, and keep their logs."""
    wait_until("its pods have ended", lambda: not living(live, name), timeout=_AT_MOST_SECONDS)
    assert time.monotonic() - since > _GRACE_SECONDS
    for pod in live.pods(name):
        (main,) = [one for one in pod["status"]["containerStatuses"] if one["name"] == "main"]
        assert main["state"]["terminated"]["exitCode"] == 137
        assert "works" in live.kubectl("logs", pod_name(pod), "-c", "main")
    assert {pod_name(pod) for pod in live.pods(name)} == pods
    assert status(live, name).restarts == 0


def test_argo_alone_leaves_them_and_a_stop_of_the_ended_job_ends_them(live: Live) -> None:
    name = live.submit(deaf("left"))
    pods = {pod_name(pod) for pod in live.running(name, 2)}
    live.argo("stop", name)
    live.ends(name, "Failed")
    time.sleep(2 * _GRACE_SECONDS)
    assert living(live, name) == pods, "Argo's SIGKILL is due, and was not sent: this Argo needs less help"
    since = time.monotonic()
    assert "has ended already; 2 pods of it still run and are stopped by the kubelet" in live.diflow("stop", name).err
    end_late(live, name, pods, since)
    assert live.diflow("stop", name).code != 0, "nothing of it runs any more"


def test_the_command_ends_them_where_argo_alone_runs_the_job(live: Live) -> None:
    name = live.submit(deaf("alone"))
    pods = {pod_name(pod) for pod in live.running(name, 2)}
    since = time.monotonic()
    assert live.diflow("stop", name).code == 0
    live.ends(name, "Failed")
    end_late(live, name, pods, since)


@pytest.fixture(scope="module")
def placed(argo40: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Live, Daemon]]:
    """A namespace with an allocator."""
    with argo40.namespace("stopping") as namespace:
        place = Live(argo40, namespace)
        with daemon(place, tmp_path_factory.mktemp("allocator") / "log") as made:
            yield place, made


@pytest.mark.parametrize("scheduling", ["gang", "none"])
@pytest.mark.parametrize("how", ["stop", "terminate"])
def test_the_allocator_ends_them_also_of_jobs_that_it_does_not_place(
    placed: tuple[Live, Daemon], scheduling: str, how: str
) -> None:
    live, _ = placed
    made = deaf(f"{scheduling}-{how}", scheduling=scheduling)
    name = submit(live, made) if scheduling == "gang" else live.submit(made)
    pods = {pod_name(pod) for pod in live.running(name, 2)}
    since = time.monotonic()
    live.argo(how, name)
    live.ends(name, "Failed")
    end_late(live, name, pods, since)
    if scheduling == "gang":
        assert "StoppedLate" in dict(events(live, name))


def test_the_others_of_a_gang_that_fails_end_too(placed: tuple[Live, Daemon]) -> None:
    live, _ = placed
    script = f'if [ "$RANK" = 1 ]; then until {live.is_open("fail")}; do sleep 0.5; done; exit 3; fi; {_DEAF}'
    made = task("learner", script, replicas=2, terminationGracePeriodSeconds=_GRACE_SECONDS)
    name = submit(live, job(made, name="fails", scheduling="gang", backoff_limit=0))
    live.running(name, 2)
    live.open("fail")
    live.ends(name, "Failed")
    wait_until("the other one has ended", lambda: not living(live, name), timeout=_AT_MOST_SECONDS)


def test_a_replica_that_is_released_ends_after_its_grace_period_alone(placed: tuple[Live, Daemon]) -> None:
    live, _ = placed
    made = template(_DEAF, terminationGracePeriodSeconds=_GRACE_SECONDS)
    workers = Task(name="worker", replicas=2, min_replicas=1, max_replicas=2, template=made)
    name = submit(live, DIJob(name="shrinks", tasks=(workers,), scheduling="gang", backoff_limit=0))
    until_running(live, name, 2)
    ask(live, name, worker=1)
    wait_until("one is left", lambda: len(living(live, name)) == 1, timeout=_GRACE_SECONDS + 20)
    live.argo("delete", name)
    wait_until("nothing is left", lambda: not live.pods(name), timeout=_GRACE_SECONDS + 20)


def test_the_controller_ends_them_of_a_dijob_object(live: Live, tmp_path: Path) -> None:
    install(live)
    with controller(live, tmp_path / "log"):
        live.kubectl("apply", "-f", "-", stdin=deaf("object", scheduling="none").to_yaml())
        pods = {pod_name(pod) for pod in live.running("object", 2)}
        since = time.monotonic()
        live.argo("stop", "object")
        live.ends("object", "Failed")
        end_late(live, "object", pods, since)
        live.kubectl("delete", "dijob", "object")

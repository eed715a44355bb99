"""`diflow controller run`: the process, its signals, its leadership, its pages."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from diflow.common import keys
from diflow.common.errors import InvalidError, LostLeadershipError
from diflow.controller.process import lead
from diflow.controller.settings import controller_settings
from diflow.controller.telemetry import STILL_SECONDS, Telemetry
from diflow.jobs.dijobs import DIJOB
from diflow.kube.kinds import LEASE, WORKFLOW
from tests.builders import manifest
from tests.cli.runner import Cli, cli
from tests.cli.test_allocator_run import Daemon, free_port, page, until
from tests.controller.lab import SYSTEM, lab


@pytest.fixture
def diflow(tmp_path: Path) -> Iterator[Cli]:
    with cli(tmp_path) as found:
        found.prepare()
        yield found


@pytest.fixture
def process(diflow: Cli) -> Iterator[tuple[Daemon, int]]:
    """A controller that may lead at once."""
    released = {"holderIdentity": "", "leaseTransitions": 3}
    diflow.api.add(LEASE, {"metadata": {"name": keys.CONTROLLER}, "spec": released}, namespace=SYSTEM)
    port = free_port()
    made = Daemon(diflow, "--metrics-port", str(port), group="controller")
    yield made, port
    made.process.kill()
    made.process.wait()
    assert made.process.stdout is not None
    made.process.stdout.close()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_it_leads_runs_jobs_serves_its_pages_and_gives_the_lease_back(diflow: Cli, process: tuple[Daemon, int]) -> None:
    one, port = process
    assert one.said("leading")["epoch"] == 4
    assert until(lambda: page(port, "/readyz") == (200, "leading\n"))
    assert page(port, "/healthz") == (200, "ok\n")
    diflow.api.add(DIJOB, manifest())
    until(lambda: diflow.api.objects.get(WORKFLOW.path("default"), {}).get("job"))
    until(lambda: (diflow.api.objects[DIJOB.path("default")]["job"].get("status") or {}).get("phase") == "Pending")
    text = page(port, "/metrics")[1]
    assert "diflow_controller_leader 1.0" in text
    assert "diflow_controller_jobs 1.0" in text
    assert 'diflow_controller_writes_total{object="workflow"} 1.0' in text
    one.process.terminate()
    assert one.ended() == 0
    assert diflow.api.objects[LEASE.path(SYSTEM)][keys.CONTROLLER]["spec"]["holderIdentity"] == ""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_it_ends_when_another_process_has_become_the_leader(diflow: Cli, process: tuple[Daemon, int]) -> None:
    one, _ = process
    one.said("leading")
    lease = diflow.api.objects[LEASE.path(SYSTEM)][keys.CONTROLLER]
    taken = {**lease["spec"], "holderIdentity": "other", "leaseTransitions": 9}
    diflow.api.add(LEASE, {**lease, "spec": taken}, namespace=SYSTEM)
    assert one.ended() == LostLeadershipError.exit_code
    assert any(line["event"] == "the lead is lost" for line in one.lines())


def test_a_wrong_setting_ends_it_at_its_start(diflow: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DI_JOB_DEFAULT_RESOURCES", "x")
    result = diflow("controller", "run")
    assert (result.code, "DI_JOB_DEFAULT_RESOURCES must look like" in result.err) == (2, True)
    monkeypatch.setenv("DIFLOW_CONTROLLER_WORKERS", "0")
    with pytest.raises(InvalidError, match="DIFLOW_CONTROLLER_WORKERS"):
        controller_settings()


def test_a_process_that_does_not_lead_writes_nothing() -> None:
    with lab() as at:
        assert at.process is not None
        at.apply()
        at.pass_time()
        at.process.catch_up()
        at.process.elector.abandon("for this test")
        with pytest.raises(LostLeadershipError):
            at.process.look()
        assert at.workflows() == {}
        assert at.status() == {}
        assert len(at.process.controller.queue) == 1, "the job is not forgotten"
        at.process.controller.caches.all.reopen = lambda: None  # type: ignore[method-assign]
        with pytest.raises(LostLeadershipError):
            at.process.controller.run(threading.Event())


def test_the_lease_is_released_when_the_work_fails() -> None:
    """The next process would wait until it has expired."""
    done: list[str] = []

    def fail(_: threading.Event) -> None:
        raise RuntimeError("a fault")

    elector = SimpleNamespace(acquire=lambda _: True, epoch=1, release=lambda: done.append("released"))
    caches = SimpleNamespace(all=SimpleNamespace(start=lambda: None, stop=lambda: done.append("stopped")))
    with pytest.raises(RuntimeError, match="a fault"):
        lead(SimpleNamespace(elector=elector, caches=caches, run=fail), threading.Event())  # type: ignore[arg-type]
    assert done == ["released", "stopped"]


def test_health_and_readiness_say_what_is_wrong() -> None:
    telemetry = Telemetry()
    assert telemetry.readiness() == (False, "starting")
    state: dict[str, Any] = {"leads": True, "trouble": "", "look": 0.0}
    telemetry.watch(
        SimpleNamespace(  # type: ignore[arg-type]
            elector=SimpleNamespace(is_leader=lambda: state["leads"], trouble="", holder="other"),
            caches=SimpleNamespace(all=SimpleNamespace(trouble=lambda _: state["trouble"])),
            settings=SimpleNamespace(stale_seconds=90.0),
            longest_look_seconds=0.0,
        )
    )
    assert telemetry.readiness() == (True, "leading")
    state["leads"] = False
    assert telemetry.readiness() == (True, "standing by; other leads")
    state |= {"leads": True, "trouble": "no dijobs"}
    assert telemetry.readiness() == (False, "no dijobs")
    telemetry._controller.longest_look_seconds = STILL_SECONDS + 1  # type: ignore[union-attr,misc]
    assert "a look at a job has lasted for 301 s" in telemetry.health()

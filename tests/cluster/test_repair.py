"""What `up` does with a cluster whose processes are gone; test_restart.py does it to a real one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cluster import commands, lifecycle
from cluster.cli import main
from cluster.errors import ClusterError
from cluster.parts import Versions
from cluster.plan import Plan
from cluster.progress import Progress

BOOT, MACHINE = lifecycle._boot(), lifecycle._machine()


class Steps:
    """The steps of `up` that need a real machine, noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, state: Path) -> None:
        self.done: list[str] = []
        self.trouble = ""
        self._state = state
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        monkeypatch.setattr(lifecycle, "resume", self._resume)
        monkeypatch.setattr(lifecycle, "stop", self._stop)
        monkeypatch.setattr(commands, "_made", self._made)
        monkeypatch.setattr(commands, "_furnish", lambda plan, _: self.done.append(f"furnished {plan.name}"))
        monkeypatch.setattr("cluster.argo.restart", lambda *_, **__: self.done.append("argo restarted"))

    def _resume(self, plan: Plan, _: Progress) -> None:
        self.done.append(f"resumed {plan.name}")
        if self.trouble:
            raise ClusterError(self.trouble)

    def _stop(self, name: str, _: Progress) -> None:
        self.done.append(f"removed {name}")

    def _made(self, name: str, versions: Versions, _: Progress) -> Plan:
        self.done.append(f"made {name} with {versions}")
        return plan_of(self._state)


def plan_of(state: Path) -> Plan:
    return Plan("broken", str(state / "broken"), "10.230.0.0/16", "3.7.3", {"kubectl": "/nowhere/kubectl"})


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DIFLOW_CLUSTER_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, state: Path) -> Steps:
    return Steps(monkeypatch, state)


def stopped(state: Path, *, init: str | None = f"999999999 1 another-boot {MACHINE}", plan: bool = True) -> Path:
    """A furnished cluster without processes."""
    folder = state / "broken"
    folder.mkdir()
    (folder / "furnished").touch()
    if plan:
        (folder / "state.json").write_text(plan_of(state).to_json())
    if init is not None:
        (folder / "init").write_text(init + "\n")
    return folder


def test_after_a_restart_of_the_machine_up_starts_the_cluster_again_and_says_so(
    state: Path, steps: Steps, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped(state)
    assert lifecycle.health("broken").phase == "Broken"
    assert main(["up", "--name", "broken"]) == 0
    assert steps.done == ["resumed broken", "argo restarted", "furnished broken"]
    said = capsys.readouterr().err
    assert "its processes are gone (the machine was restarted): it is started again" in said
    assert "started again, with all that it held" in said


@pytest.mark.parametrize(
    ("init", "why"),
    [
        (f"999999999 1 {BOOT} {MACHINE}", "they were ended"),
        ("999999999 1", "they were ended"),  # by an older version, which did not note the boot
    ],
)
def test_a_cluster_whose_processes_were_killed_is_started_again_too(
    init: str, why: str, state: Path, steps: Steps, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped(state, init=init)
    assert main(["up", "--name", "broken"]) == 0
    assert steps.done[0] == "resumed broken"
    assert f"its processes are gone ({why})" in capsys.readouterr().err


def test_a_cluster_that_cannot_be_started_again_is_made_anew_and_the_loss_is_told(
    state: Path, steps: Steps, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped(state)
    steps.trouble = "etcd exited 4 times at its start, with code 1"
    assert main(["up", "--name", "broken"]) == 0
    made = "made broken with Kubernetes 1.34.4 and Argo 3.7.3"
    assert steps.done == ["resumed broken", "removed broken", made, "furnished broken"]
    said = capsys.readouterr().err
    assert "could not be started again: etcd exited 4 times" in said
    assert "MADE ANEW: the jobs, images and settings of the former cluster are gone" in said


def test_volumes_with_files_are_never_removed_by_a_repair(
    state: Path, steps: Steps, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = stopped(state) / "volumes" / "claim" / "checkpoint"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    steps.trouble = "etcd exited"
    assert main(["up", "--name", "broken"]) == 1
    assert steps.done == ["resumed broken"]
    said = capsys.readouterr().err
    assert str(checkpoint) in said
    assert "python3 -m cluster down --name broken" in said


def test_the_cluster_of_another_machine_is_left_alone(
    state: Path, steps: Steps, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its processes may run there, on the same files."""
    stopped(state, init=f"{os.getpid()} {lifecycle._start_time(os.getpid())} {BOOT} another-machine")
    assert main(["up", "--name", "broken"]) == 1
    assert steps.done == []
    assert "started by another machine" in capsys.readouterr().err


def test_another_version_of_argo_is_refused_before_anything_is_repaired(state: Path, steps: Steps) -> None:
    stopped(state)
    assert main(["up", "--name", "broken", "--argo", "4.0.7"]) == 2
    assert steps.done == []


def test_a_start_that_did_not_get_far_begins_anew(state: Path, steps: Steps) -> None:
    stopped(state, init=None, plan=False)
    assert main(["up", "--name", "broken", "--argo", "4.0.7"]) == 0
    assert steps.done == ["removed broken", "made broken with Kubernetes 1.37.2 and Argo 4.0.7", "furnished broken"]


@pytest.mark.parametrize(("boot", "machine", "runs"), [(BOOT, MACHINE, True), ("another", MACHINE, False)])
def test_a_process_of_before_the_restart_is_not_taken_for_one_of_now(
    boot: str, machine: str, runs: bool, state: Path
) -> None:
    stopped(state, init=f"{os.getpid()} {lifecycle._start_time(os.getpid())} {boot} {machine}")
    assert lifecycle.is_stopped("broken") is not runs
    assert (lifecycle.health("broken").phase == "Starting") is runs


def test_a_cluster_whose_programs_left_the_cache_is_not_started_again(state: Path) -> None:
    stopped(state)
    with pytest.raises(ClusterError, match="/nowhere/kubectl is not in the cache any more"):
        lifecycle.resume(plan_of(state), lambda _: None)

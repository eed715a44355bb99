"""Errors for users: one sentence, the object's name, the next step, and an exit code."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from cluster import commands, config, lifecycle, packages
from cluster.argo import kustomization
from cluster.cli import main
from cluster.errors import ClusterError
from cluster.fakenodes import KEY, Size, node
from cluster.plan import Plan


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate state folder. Its path must be short, as it contains sockets."""
    monkeypatch.setenv("DIFLOW_CLUSTER_DIR", str(tmp_path))
    monkeypatch.setenv("DIFLOW_CACHE", str(tmp_path / ".cache"))
    return tmp_path


def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


@pytest.mark.parametrize("command", [["up"], ["down"], ["build"], ["images"], ["fake-nodes", "--count", "1"]])
def test_without_root_it_says_so_and_ends_with_2(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(command) == 2
    assert "needs root" in capsys.readouterr().err


def test_an_unknown_cluster_ends_with_3_and_says_how_to_make_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kubeconfig", "--name", "nobody"]) == 3
    assert "python3 -m cluster up --name nobody" in capsys.readouterr().err


def test_the_eval_of_env_fails_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "--name", "nobody"]) == 3
    assert capsys.readouterr().out == "false\n"
    with pytest.raises(SystemExit, match="2"):
        main(["env", "--nmae", "two"])
    assert capsys.readouterr().out == "false\n"


def test_the_line_that_selects_a_cluster_names_one_of_another_name() -> None:
    assert commands.select_line("diflow") == 'eval "$(python3 -m cluster env)"'
    assert commands.select_line("two") == 'eval "$(python3 -m cluster env --name two)"'


@pytest.mark.parametrize("name", ["Upper", "1digit", "-dash", "dash-", "under_score", "../x", "a" * 21, ""])
def test_a_name_that_cannot_be_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kubeconfig", f"--name={name}"]) == 2
    assert "lower-case letters" in capsys.readouterr().err


def test_a_state_folder_that_a_cluster_would_hide_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DIFLOW_CLUSTER_DIR", "/run/clusters")
    assert main(["status"]) == 2
    assert "DIFLOW_CLUSTER_DIR=/run/clusters" in capsys.readouterr().err


def a_cluster(state: Path, *, init: str | None, components: Mapping[str, object] | None, age: float = 0) -> str:
    folder = state / "broken"
    folder.mkdir()
    (folder / "state.json").write_text(Plan("broken", str(folder), "10.230.0.0/16", "4.0.7", {}).to_json())
    if init is not None:
        (folder / "init").write_text(init)
    if components is not None:
        (folder / "status.json").write_text(json.dumps({"at": time.time() - age, "components": components}))
    return "broken"


def ourselves() -> str:
    return f"{os.getpid()} {lifecycle._start_time(os.getpid())}\n"


def part(*, healthy: bool, problem: str = "") -> dict[str, object]:
    return {"healthy": healthy, "problem": problem, "log": "/logs/etcd.log"}


def test_a_cluster_with_a_problem_is_not_touched_and_up_says_how_to_remove_it(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    as_root(monkeypatch)
    a_cluster(state, init=ourselves(), components={"etcd": part(healthy=False, problem="exited 4 times")})
    assert main(["up", "--name", "broken"]) == 1
    said = capsys.readouterr().err
    assert "etcd exited 4 times" in said
    assert "python3 -m cluster down --name broken" in said


def test_a_process_with_the_number_of_a_dead_one_is_not_taken_for_it(state: Path) -> None:
    name = a_cluster(state, init=f"{os.getpid()} 1", components={"etcd": part(healthy=True)})
    assert lifecycle.health(name).phase == "Broken"


def test_a_component_with_a_problem_is_named_with_its_log(state: Path) -> None:
    components = {"etcd": part(healthy=False, problem="exited 4 times at its start, with code 1")}
    name = a_cluster(state, init=ourselves(), components=components)
    health = lifecycle.health(name)
    assert health.phase == "Broken"
    assert health.problems == ("etcd exited 4 times at its start, with code 1; see /logs/etcd.log",)


def test_a_supervisor_that_has_been_silent_makes_a_cluster_broken(state: Path) -> None:
    name = a_cluster(state, init=ourselves(), components={"etcd": part(healthy=True)}, age=120)
    assert lifecycle.health(name).phase == "Broken"


def test_a_cluster_with_all_components_well_is_running(state: Path) -> None:
    name = a_cluster(state, init=ourselves(), components={"etcd": part(healthy=True)})
    assert lifecycle.health(name) == lifecycle.Health("Running")


def test_status_has_the_same_fields_for_a_cluster_without_a_plan(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (state / "half").mkdir()
    assert main(["status", "-o", "json"]) == 0
    row = json.loads(capsys.readouterr().out)[0]
    assert (row["name"], row["phase"], row["kubeconfig"], row["programs"]) == ("half", "Broken", None, {})


def test_what_is_missing_is_named_with_its_package_where_it_cannot_be_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ClusterError, match="frobnicate missing: apt-get install frobnicator"):
        packages.require({"frobnicate": "frobnicator", "tar": "tar"}, lambda _: None)


def test_argo_on_a_foreign_cluster_keeps_its_own_safe_settings() -> None:
    ours, foreign = (kustomization("4.0.7", "m", ours=flag) for flag in (True, False))
    assert "patches" in ours
    assert "patches" not in foreign
    assert foreign["images"] == ours["images"]


def test_a_fake_node_keeps_ordinary_pods_away() -> None:
    made = json.dumps(node(7, Size(gpus=8)))
    assert f'"taints": [{{"key": "{KEY}", "value": "fake", "effect": "NoSchedule"}}]' in made
    assert '"nvidia.com/gpu": "8"' in made


@pytest.mark.parametrize("name", ["y", "no", "on", "null", "true"])
def test_a_cluster_may_have_a_name_that_yaml_takes_for_something_else(name: str) -> None:
    text = config.kubeconfig(Plan(name, "/nowhere", "10.230.0.0/16", "none", {}), "admin")
    found = yaml.safe_load(text)
    assert found["current-context"] == name
    assert [found[kind][0]["name"] for kind in ("clusters", "contexts")] == [name, name]
    assert found["contexts"][0]["context"]["cluster"] == name
    # Python's YAML takes `y` for a text, kubectl's does not.
    assert f'current-context: "{name}"' in text

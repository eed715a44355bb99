"""The film of `make demo-training`, its picture, and the troubles that it makes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from diflow.common import keys
from diflow.kube.kinds import POD
from tests.allocator.faults import client, eventually
from tests.kube.fakeapi import serving, status
from training import trouble
from training.film import Film, Recorder, Step, jumps, read_history
from training.picture import draw


def begin(step: int, world: int = 4) -> Step:
    return Step(float(step), step, None, world, 0)


def steps(first: int, last: int) -> list[Step]:
    return [Step(float(step), step, 1 / step, 4, step) for step in range(first, last + 1)]


def film(*parts: list[Step]) -> Film:
    return Film(0.0, [(0.0, 0), (5.0, 4), (9.0, 2)], [], [step for part in parts for step in part])


def test_a_training_goes_back_by_the_steps_that_it_makes_again() -> None:
    made = film([begin(0), *steps(1, 9)], [begin(9), *steps(10, 30)], [begin(20), *steps(21, 40)])
    assert [len(part) for part in made.parts] == [10, 22, 21]
    assert jumps(made.parts) == [0, 10]
    assert jumps([]) == []


def test_a_line_that_is_half_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    assert read_history(path, began=10.0) == []
    line = '{"time": 12.5, "step": 3, "loss": 0.5, "world": 4, "seen": 96}'
    path.write_text(f"{line}\n{line[:20]}")
    assert read_history(path, began=10.0) == [Step(2.5, 3, 0.5, 4, 96)]


def test_the_recorder_counts_what_runs_also_after_the_api_server_was_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.film.EVERY_SECONDS", 0.01)
    with serving() as api:
        labels = {keys.TASK_NAME: "worker", keys.OPERATOR: keys.OPERATOR_VALUE}
        for name, phase, spec in (
            ("a", "Running", {}),
            ("b", "Pending", {}),
            ("c", "Running", {"activeDeadlineSeconds": 1}),
        ):
            body: dict[str, Any] = {
                "metadata": {"name": name, "labels": labels},
                "spec": spec,
                "status": {"phase": phase},
            }
            api.add(POD, body)
        api.fail(status(503, "away", reason="ServiceUnavailable"), path="/pods", times=2)
        made = Film()
        recorder = Recorder(client(api), made, namespace="default")
        recorder.start()
        eventually(lambda: bool(made.replicas), "it has looked")
        recorder.stop()
    assert {count for _, count in made.replicas} == {1}


def test_the_picture_is_drawn_of_any_film(tmp_path: Path) -> None:
    made = film([begin(0), *steps(1, 30)], [begin(20), *steps(21, 40)])
    made.mark("rank 1 takes memory", done_here=True, at=4.0)
    for at in (5.0, 5.1, 5.2):
        made.mark("all begin again: " + "because of a long reason " * 20, done_here=False, at=at)
    for each in (made, Film()):
        draw(each, tmp_path / "picture.png", title="A training")
        assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["picture.png"]


def test_no_process_of_another_cluster_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)", "a-word-of-its-own"]
    with subprocess.Popen(command, env={**os.environ, "DI_RANK": "2"}) as process:
        try:
            assert trouble.processes("no-such-cluster", "a-word-of-its-own") == []
            monkeypatch.setattr(trouble, "is_of", lambda *_: True)
            assert trouble.processes("any", "a-word-of-its-own", variable="DI_RANK=1") == []
            eventually(
                lambda: trouble.processes("any", "a-word-of-its-own", variable="DI_RANK=2") == [process.pid], "it runs"
            )
            assert trouble.send(signal.SIGKILL, [process.pid]) == 1
        finally:
            process.kill()


@pytest.mark.parametrize("file", ["cpu.max", "cpu.cfs_quota_us"])
def test_each_container_of_the_second_node_is_slowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    monkeypatch.setattr(trouble, "GROUPS", tmp_path)
    monkeypatch.setattr(trouble, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(trouble, "second_containers", lambda _: tmp_path / "second")
    mount = tmp_path if file == "cpu.max" else tmp_path / "cpu"
    groups = mount / "diflow-cluster" / "mine" / "k8s.io"
    (tmp_path / "second" / "a").mkdir(parents=True)
    for container in ("a", "of-the-first-node"):
        (groups / container).mkdir(parents=True)
        (groups / container / file).write_text("-1")
    with trouble.slowed_node("mine", share=0.15):
        eventually(lambda: (groups / "a" / file).read_text().startswith("3000"), "it is slow")
    assert (groups / "of-the-first-node" / file).read_text() == "-1"

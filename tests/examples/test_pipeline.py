"""The programs of examples/pipeline: workers that come and go fit the line, over HTTP."""

from __future__ import annotations

import json
import threading

import pytest

from pipeline import stages


def test_the_learner_fits_the_line_with_two_workers() -> None:
    model, points = stages.Model(400), stages.prepare()
    server = stages.serve(model, port=0)
    url = f"http://127.0.0.1:{server.server_address[1]}/"
    workers = [
        threading.Thread(target=stages.work, args=(url, points), kwargs={"pause_seconds": 0.0}) for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    server.shutdown()
    server.server_close()
    found = model.weights()
    assert found["done"]
    assert stages.loss(points, found["a"], found["b"]) < 0.1
    assert (found["a"], found["b"]) == (pytest.approx(3, abs=0.3), pytest.approx(-2, abs=0.3))


def test_a_worker_gives_up_when_no_learner_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "_PATIENCE_SECONDS", 0.0)
    with pytest.raises(OSError, match="refused"):
        stages.work("http://127.0.0.1:9/", [(0.0, 0.0)], pause_seconds=0.0)


def test_the_data_is_small_enough_for_a_parameter() -> None:
    assert len(json.dumps(stages.prepare())) < 4096


def test_an_unknown_stage_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA", "[]")
    with pytest.raises(SystemExit, match="no stage"):
        stages.main("other")

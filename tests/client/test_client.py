"""The client of a training process: it reports, requests and stops whatever the server does, and never blocks."""

from __future__ import annotations

import datetime
import json
import logging
import math
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diflow.client import Client
from diflow.client.courier import Courier
from diflow.client.place import Membership, find
from diflow.client.readings import Readings
from diflow.client.wire import Wire
from diflow.common.clock import Clock
from diflow.common.errors import (
    ConflictError,
    DiflowError,
    InvalidError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
)
from tests.certificates import server_context
from tests.client.fakeserver import PATIENCE_SECONDS, Answer, FakeServer, envelope, failed, serving

REPLICAS = "/v2alpha1/job/ml.vision/replicas"
PROFILINGS = "/v2alpha1/job/ml.vision/profilings"
_NOWHERE = Membership(rank=None, round=None, replicas=None)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with serving() as found:
        yield found


@pytest.fixture
def environ(server: FakeServer, tmp_path: Path) -> dict[str, str]:
    """The environment of a container of job `vision` in namespace `ml`, as rank 1 of 2."""
    (tmp_path / "token").write_text("first\n")
    return {
        "DI_JOB_ID": "ml/vision",
        "DI_SERVER_URL": server.url,
        "DI_TOKEN_FILE": str(tmp_path / "token"),
        "DI_RANK": "1",
        "DI_NODES": "vision-worker-0.di-vision.ml.svc.cluster.local,vision-worker-1.di-vision.ml.svc.cluster.local",
    }


@pytest.fixture
def client(environ: dict[str, str]) -> Iterator[Client]:
    with Client(environ) as made:
        yield made


class FakeTime:
    """A clock that only the test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Lane:
    """A courier without its thread, called by the test, with a simulated clock."""

    def __init__(self, environ: dict[str, str], *, chance: float = 1.0) -> None:
        place = find(environ)
        assert place is not None
        self.clock = FakeTime()
        self.courier = Courier(
            Wire(place),
            report_path=PROFILINGS,
            clock=Clock(monotonic=self.clock, jitter=lambda low, high: low + chance * (high - low)),
            threaded=False,
            heartbeat_seconds=place.heartbeat_seconds,
        )

    def report(self, **body: Any) -> None:
        self.courier.report(lambda: body)

    def turn(self) -> float | None:
        return self.courier.turn()

    def turn_and_wait(self) -> float | None:
        """Do what is due, and advance the clock to the next due time. Returns the seconds between."""
        wait = self.courier.turn()
        self.clock.now += wait or 0.0
        return wait

    def ask(self, method: str = "GET", *, body: Any = None, key: str | None = None, seconds: float = 15.0) -> Any:
        call = self.courier.begin(method, REPLICAS, body, key=key, seconds=seconds)
        while not call.done.is_set():
            self.turn_and_wait()
        return self.courier.wait(call, seconds=0.0)


@pytest.fixture
def lane(environ: dict[str, str]) -> Lane:
    return Lane(environ)


# --- questions -------------------------------------------------------------------------------------------------------


def test_replicas_are_asked_of_the_jobs_server_with_the_pods_token(server: FakeServer, client: Client) -> None:
    server.data = ["10.0.0.1:22270", ""]
    assert client.in_job
    assert client.replicas(timeout_seconds=PATIENCE_SECONDS) == ["10.0.0.1:22270", ""]
    (seen,) = server.seen
    assert (seen.method, seen.path, seen.body) == ("GET", REPLICAS, None)
    assert seen.headers["authorization"] == "Bearer first"
    assert "idempotency-key" not in seen.headers


def test_replicas_are_added_and_deleted_each_wish_with_a_key_of_its_own(server: FakeServer, client: Client) -> None:
    client.add_replicas(2, timeout_seconds=PATIENCE_SECONDS)
    client.add_replicas(np.int64(1), task="collector", timeout_seconds=PATIENCE_SECONDS)  # type: ignore[arg-type]
    client.delete_replicas(1, "collector", timeout_seconds=PATIENCE_SECONDS)
    assert [(s.method, s.path, s.body) for s in server.seen] == [
        ("POST", REPLICAS, {"replicas": 2}),
        ("POST", REPLICAS, {"replicas": 1, "task": "collector"}),
        ("DELETE", REPLICAS, {"replicas": 1, "task": "collector"}),
    ]
    keys = [s.headers["idempotency-key"] for s in server.seen]
    assert len(set(keys)) == 3
    assert all(len(key) == 36 for key in keys)


@pytest.mark.parametrize("number", [-1, 1.5, "2", None])
def test_a_number_of_replicas_that_cannot_be_is_not_sent(server: FakeServer, client: Client, number: Any) -> None:
    with pytest.raises(InvalidError, match="number of replicas"):
        client.add_replicas(number)
    assert server.seen == []


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, InvalidError),
        (403, UnauthorizedError),
        (404, NotFoundError),
        (405, InvalidError),
        (409, ConflictError),
        (410, ConflictError),
        (413, InvalidError),
        (422, InvalidError),
    ],
)
def test_a_refusal_is_told_by_what_the_caller_can_do(
    server: FakeServer, lane: Lane, status: int, error: type[DiflowError]
) -> None:
    server.will(failed(status, "replicas is above the maximum", {"errors": [{"path": "replicas", "message": "x"}]}))
    with pytest.raises(error, match=rf"replicas is above the maximum \(replicas\) \(status {status}\)"):
        lane.ask("POST", body={"replicas": 9}, key="k")
    assert len(server.seen) == 1, "what is refused for good is not asked again"


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_wish_is_sent_again_with_its_key_until_the_server_can(server: FakeServer, lane: Lane, status: int) -> None:
    server.will(failed(status), failed(status, retry_after="3"))
    began = lane.clock.now
    lane.ask("POST", body={"replicas": 1}, key="k")
    assert [s.headers["idempotency-key"] for s in server.seen] == ["k"] * 3
    assert lane.clock.now - began == pytest.approx(0.5 + 3.3)


def test_a_wish_ends_with_the_servers_own_words_when_its_time_is_over(server: FakeServer, lane: Lane) -> None:
    server.will(*[failed(503, "the cache is too old", retry_after="4")] * 9)
    with pytest.raises(UnavailableError, match="the cache is too old") as raised:
        lane.ask("POST", body={"replicas": 1}, key="k", seconds=10.0)
    assert raised.value.retry_after_seconds == 4.0
    assert len(server.seen) == 3
    assert lane.turn() is None


@pytest.mark.parametrize(
    "answer",
    [
        Answer(body=b"<html>welcome</html>"),
        Answer(body=b""),
        Answer(body=b"[1]"),
        Answer(body=b'{"success": 1}'),
        Answer(body=b"[" * 100_000),
        Answer(body=b"\xff\xfe"),
        Answer(body=envelope(success=False, message="")),
        Answer(body=envelope([]), cut=10),
        Answer(body=b"x" * (4 * 1024 * 1024 + 1)),
        Answer(302, b"", {"Location": "/elsewhere"}),
        Answer(418, b""),
    ],
    ids=["html", "empty", "list", "bare", "deep", "bytes", "unsaid", "cut", "long", "redirect", "teapot"],
)
def test_an_answer_that_is_none_is_an_error_and_is_asked_for_again(
    server: FakeServer, lane: Lane, answer: Answer
) -> None:
    server.will(answer, Answer(body=envelope(["a:1"])))
    assert lane.ask() == ["a:1"]
    assert [s.path for s in server.seen] == [REPLICAS] * 2, "and no redirect is followed"
    server.will(answer)
    with pytest.raises(UnavailableError, match="no answer that diflow's server would give|cannot be reached"):
        lane.ask(seconds=0.4)


@pytest.mark.parametrize("data", [None, {"a": 1}, ["a:1", 3]])
def test_something_else_than_a_list_of_replicas_is_an_error(server: FakeServer, client: Client, data: Any) -> None:
    server.data = data
    with pytest.raises(UnavailableError, match="something else than a list of replicas"):
        client.replicas(timeout_seconds=PATIENCE_SECONDS)


def test_a_server_that_is_not_there_is_named(environ: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    lane = Lane(environ | {"DI_SERVER_URL": f"127.0.0.1:{port}"})
    with pytest.raises(UnavailableError, match=rf"http://127.0.0.1:{port} cannot be reached: Connection refused"):
        lane.ask()


def test_nobody_waits_longer_than_it_said_for_a_slow_server(server: FakeServer, client: Client) -> None:
    answered = threading.Event()
    server.will(Answer(before=lambda: answered.wait(PATIENCE_SECONDS)))
    try:
        with pytest.raises(UnavailableError, match=r"no answer to POST .* within 0.2 s; it may have been done"):
            client.add_replicas(1, timeout_seconds=0.2)
    finally:
        answered.set()


def test_a_call_that_nobody_waits_for_any_more_is_not_sent(server: FakeServer, lane: Lane) -> None:
    call = lane.courier.begin("POST", REPLICAS, {"replicas": 1}, key="k", seconds=15.0)
    with pytest.raises(UnavailableError, match="no answer"):
        lane.courier.wait(call, seconds=0.0)
    assert lane.turn() is None
    assert server.seen == []


def test_calls_without_end_are_refused(lane: Lane) -> None:
    for _ in range(64):
        lane.courier.begin("GET", REPLICAS, None, key=None, seconds=15.0)
    with pytest.raises(UnavailableError, match="64 calls wait"):
        lane.courier.begin("GET", REPLICAS, None, key=None, seconds=15.0)


# --- who asks --------------------------------------------------------------------------------------------------------


def test_the_token_is_read_for_each_request(server: FakeServer, lane: Lane, tmp_path: Path) -> None:
    lane.ask()
    (tmp_path / "token").write_text("second")
    lane.ask()
    (tmp_path / "token").unlink()
    lane.ask()
    assert [s.headers.get("authorization") for s in server.seen] == ["Bearer first", "Bearer second", None]


def test_a_token_that_was_replaced_in_between_is_tried(server: FakeServer, lane: Lane, tmp_path: Path) -> None:
    server.will(Answer(401, envelope(success=False), before=lambda: (tmp_path / "token").write_text("second")))
    lane.ask("POST", body={"replicas": 1}, key="k")
    assert [s.headers["authorization"] for s in server.seen] == ["Bearer first", "Bearer second"]
    assert {s.headers["idempotency-key"] for s in server.seen} == {"k"}


def test_a_token_that_is_refused_is_not_tried_again(server: FakeServer, lane: Lane, tmp_path: Path) -> None:
    server.will(failed(401, "who is it"))
    with pytest.raises(UnauthorizedError, match=r"who is it \(status 401\)$"):
        lane.ask()
    (tmp_path / "token").unlink()
    server.will(failed(401, "who is it"))
    with pytest.raises(UnauthorizedError, match="this container has no token"):
        lane.ask()
    assert len(server.seen) == 2


def test_neither_a_proxy_nor_a_netrc_comes_between(
    server: FakeServer, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login mine password mine")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    server.data = []
    assert client.replicas(timeout_seconds=PATIENCE_SECONDS) == []
    assert server.seen[0].headers["authorization"] == "Bearer first"


def test_a_server_of_https_is_checked_against_the_named_certificates(environ: dict[str, str], tmp_path: Path) -> None:
    with serving(server_context(tmp_path)) as server:
        environ |= {"DI_SERVER_URL": f"{server.url}/"}
        with pytest.raises(UnavailableError, match="(?i)certificate"):
            Lane(environ).ask(seconds=0.4)
        assert Lane(environ | {"DI_SERVER_CA_FILE": str(tmp_path / "certificate")}).ask() is None


# --- reports ---------------------------------------------------------------------------------------------------------


def test_a_report_says_who_says_it(server: FakeServer, environ: dict[str, str], tmp_path: Path) -> None:
    with Client(environ) as client:
        client.report(speed=1200.5, step=10, batch=64, progress=0.25)
        (seen,) = server.until(len)
    assert (seen.method, seen.path) == ("POST", PROFILINGS)
    assert seen.headers["content-type"] == "application/json"
    assert seen.body == {"rank": 1, "replicas": 2, "speed": 1200.5, "step": 10, "batch": 64, "progress": 0.25}

    for name, text in {"nodes": "a,b,c", "rank": "2", "replicas": "3\n", "round": "7"}.items():
        (tmp_path / name).write_text(text)
    with Client(environ | {"DI_NODES_FILE": str(tmp_path / "nodes")}) as client:
        client.report(speed=1)
        seen = server.until(lambda all_seen: len(all_seen) == 2)[1]
    assert seen.body == {"rank": 2, "round": 7, "replicas": 3, "speed": 1.0}, "the files know it better"


def test_everything_that_the_policies_read_has_a_name(server: FakeServer, client: Client) -> None:
    client.report(
        batch=32,
        step_seconds=0.4,
        compute_seconds=0.3,
        grad_norm=np.float32(1.5),  # type: ignore[arg-type]
        grad_var=2,
        init_batch_size=128,
        max_batch_size=1024,
        local_batch_bounds=(32, 256),
        gradient_accumulation=True,
        memory_bytes=10**10,
        replicas=4,
        nodes=2,
    )
    (seen,) = server.until(len)
    assert seen.body == {
        "replicas": 4,
        "nodes": 2,
        "batch": 32,
        "stepSeconds": 0.4,
        "syncSeconds": pytest.approx(0.1),
        "memoryBytes": 10**10,
        "observed": [[2, 4, 32, 0.3, 0.4]],
        "gradParams": {"norm": 1.5, "var": 2.0},
        "initBatchSize": 128,
        "maxBatchSize": 1024,
        "localBszBounds": [32, 256],
        "gradientAccumulation": True,
    }
    from diflow.allocator.watch.reports import profile

    read = profile(json.dumps(seen.body))
    assert read is not None
    assert read.observations.tolist() == [[2, 4, 32, 0.3, 0.4, 0]]
    assert (read.grad_sqr, read.grad_var, read.initial_batch, read.max_batch) == (1.5, 2.0, 128, 1024)
    assert (read.min_local_batch, read.max_local_batch, read.accumulation) == (32, 256, True)


def test_times_of_steps_are_means_for_each_way_the_job_ran() -> None:
    readings = Readings()
    readings.take({"batch": 8, "step_seconds": 1.0}, replicas=2)
    readings.take({"step_seconds": 3.0, "compute_seconds": 2.0}, replicas=2)
    assert _body(readings)["observed"] == [[1, 2, 8, 1.5, 2.0]]
    assert (_body(readings)["stepSeconds"], _body(readings)["syncSeconds"]) == (3.0, 1.0)
    readings.take({"step_seconds": 5.0, "compute_seconds": 9.0}, replicas=4)
    assert _body(readings)["observed"] == [[1, 2, 8, 1.5, 2.0], [1, 4, 8, 5.0, 5.0]]
    assert _body(readings)["syncSeconds"] == 0.0
    readings.take({"step_seconds": 2.0, "compute_seconds": 1.5}, replicas=2)
    assert [row[1] for row in _body(readings)["observed"]] == [4, 2], "the present one is last"
    for batch in range(1, 40):
        readings.take({"batch": batch, "step_seconds": 1.0}, replicas=2)
    assert [row[2] for row in _body(readings)["observed"]] == list(range(24, 40))
    assert "syncSeconds" not in _body(readings), "it is not known of the newest step"


def test_who_speaks_for_several_has_no_rank_and_says_on_how_many_nodes_they_are() -> None:
    readings = Readings()
    readings.take({"batch": 8, "step_seconds": 1.0, "nodes": 3}, replicas=2)
    mine = _body(readings, Membership(rank=1, round=4, replicas=2))
    assert (mine["rank"], mine["round"], mine["replicas"]) == (1, 4, 2)
    assert "nodes" not in mine, "more than there are replicas"
    assert "observed" in mine
    readings.take({"replicas": 8}, replicas=2)
    whole = _body(readings, Membership(rank=1, round=4, replicas=2))
    assert "rank" not in whole
    assert (whole["round"], whole["replicas"], whole["nodes"]) == (4, 8, 3)


def test_half_of_the_gradients_noise_says_nothing() -> None:
    readings = Readings()
    readings.take({"grad_norm": 1.0}, replicas=None)
    assert _body(readings) == {}
    readings.take({"grad_var": 2.0}, replicas=None)
    assert _body(readings) == {"gradParams": {"norm": 1.0, "var": 2.0}}


def _body(readings: Readings, now: Membership = _NOWHERE) -> dict[str, Any]:
    """What is sent, as the server reads it."""
    from diflow.server.api.models import Profiling, validate

    made = readings.body(now)
    assert validate(Profiling, made)[1] == []
    return made


@pytest.mark.parametrize("bounds", [(None, 256), (32, None), (None, None)])
def test_a_bound_of_a_replicas_batch_may_be_open(bounds: tuple[int | None, int | None]) -> None:
    readings = Readings()
    assert readings.take({"local_batch_bounds": bounds}, replicas=None) == []
    assert _body(readings) == {"localBszBounds": list(bounds)}


def test_a_replica_whose_round_is_over_reports_no_more_and_warns_of_nothing(
    server: FakeServer, lane: Lane, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="diflow.client")
    server.will(failed(410, "this pod is of an earlier round: the job is in round 2"))
    for step in range(3):
        lane.report(step=step)
        lane.turn_and_wait()
        lane.clock.now += 3600
    assert len(server.seen) == 1
    assert lane.turn() is None
    [record] = caplog.records
    assert (record.levelname, "earlier round" in record.getMessage()) == ("INFO", True)
    server.will(failed(410, "job ml.vision has ended"))
    with pytest.raises(ConflictError, match="has ended"):
        lane.ask()


def test_a_reported_value_stays_until_the_next_one() -> None:
    readings = Readings()
    readings.take({"speed": 10.0, "progress": 0.5}, replicas=None)
    readings.take({"speed": 20.0, "step": None}, replicas=None)
    assert _body(readings) == {"speed": 20.0, "progress": 0.5}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("speed", math.nan),
        ("speed", math.inf),
        ("speed", -1.0),
        ("speed", 0),
        ("speed", 1e308),
        ("speed", "fast"),
        ("speed", object()),
        ("step", -1),
        ("step", 1.5),
        ("step", 10**400),
        ("batch", 0),
        ("progress", 1.01),
        ("step_seconds", 1e-8),
        ("step_seconds", 1e7),
        ("memory_bytes", -1),
        ("local_batch_bounds", (2, 1)),
        ("local_batch_bounds", 3),
        ("local_batch_bounds", (None, 0)),
        ("local_batch_bounds", (1, 2, 3)),
        ("grad_var", -1),
        ("grad_norm", np.zeros(2)),
    ],
)
def test_what_cannot_be_is_left_out_and_told_once(
    server: FakeServer, client: Client, caplog: pytest.LogCaptureFixture, name: str, value: Any
) -> None:
    given: dict[str, Any] = {"speed": 5.0, "step": 1} | {name: value}
    client.report(**given)
    client.report(**given)
    client.close(PATIENCE_SECONDS)
    right = {"rank": 1, "replicas": 2, "speed": 5.0, "step": 1}
    assert server.seen[-1].body == {key: right[key] for key in right if key != name}
    assert [r.getMessage() for r in caplog.records if "cannot be reported" in r.getMessage()] == [
        f"{name}={value!r:.100} cannot be reported: it is left out, now and whenever it is so"
    ]


def test_numbers_of_numpy_are_numbers(server: FakeServer, client: Client) -> None:
    client.report(speed=np.float32(2.5), step=np.int64(3), batch=np.array(4))  # type: ignore[arg-type]
    (seen,) = server.until(len)
    assert (seen.body["speed"], seen.body["step"], seen.body["batch"]) == (2.5, 3, 4)


def test_at_most_one_report_a_second_is_sent_and_it_is_the_newest(server: FakeServer, lane: Lane) -> None:
    lane.report(step=1)
    assert lane.turn() is None
    lane.report(step=2)
    lane.clock.now += 0.25
    assert lane.turn() == pytest.approx(0.75)
    lane.report(step=3)
    lane.clock.now += 0.75
    assert lane.turn() is None
    assert [s.body for s in server.seen] == [{"step": 1}, {"step": 3}]
    lane.clock.now += 100
    assert lane.turn() is None, "nothing is said twice"


def test_reports_that_fail_are_tried_after_growing_pauses(server: FakeServer, lane: Lane) -> None:
    server.will(*[failed(503)] * 9)
    lane.report(step=1)
    assert [lane.turn_and_wait() for _ in range(9)] == [1, 1, 2, 4, 8, 16, 32, 60, 60]
    lane.report(step=2)
    assert lane.turn_and_wait() is None
    assert [s.body["step"] for s in server.seen] == [1] * 9 + [2]
    lane.report(step=3)
    assert lane.turn_and_wait() == pytest.approx(1.0), "and then all is as before"


def test_pauses_differ_from_process_to_process(server: FakeServer, environ: dict[str, str]) -> None:
    waits: list[float | None] = []
    for chance in (0.0, 0.5):
        lane = Lane(environ, chance=chance)
        server.will(*[failed(500)] * 4)
        lane.report(step=1)
        waits.append([lane.turn_and_wait() for _ in range(4)][-1])
    assert waits == [2.0, 3.0]


def test_a_newer_report_does_not_come_before_the_servers_retry_after(server: FakeServer, lane: Lane) -> None:
    server.will(failed(429, retry_after="7"))
    lane.report(step=1)
    assert lane.turn() == pytest.approx(7.7)
    lane.clock.now += 7
    lane.report(step=2)
    assert lane.turn() == pytest.approx(0.7)
    lane.clock.now += 0.7
    assert lane.turn() is None
    assert [s.body["step"] for s in server.seen] == [1, 2]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("7", 7.0), ("0", 0.0), ("-3", 0.0), ("1e9", 3600.0), ("inf", 3600.0), ("nan", None), ("soon", None), ("", None)],
)
def test_a_retry_after_is_believed_as_far_as_it_makes_sense(
    server: FakeServer, environ: dict[str, str], text: str, seconds: float | None
) -> None:
    server.will(failed(503, retry_after=text))
    assert _after(environ, now=0.0) == seconds


def test_a_retry_after_may_be_a_time_of_day(server: FakeServer, environ: dict[str, str]) -> None:
    noon = datetime.datetime(2031, 1, 1, 12, tzinfo=datetime.UTC)
    server.will(failed(503, retry_after=format_datetime(noon, usegmt=True)))
    assert _after(environ, now=noon.timestamp() - 30) == 30.0


def _after(environ: dict[str, str], *, now: float) -> float | None:
    """The Retry-After of the server's next answer."""
    place = find(environ)
    assert place is not None
    wire = Wire(place, clock=Clock(wall=lambda: now))
    with pytest.raises(UnavailableError) as raised:
        wire.ask("GET", REPLICAS, None, key=None, timeout_seconds=PATIENCE_SECONDS)
    wire.close()
    return raised.value.retry_after_seconds


def test_a_report_that_is_refused_is_dropped_and_the_next_one_goes(server: FakeServer, lane: Lane) -> None:
    server.will(failed(422, "cannot be"))
    lane.report(step=1)
    assert lane.turn() is None
    lane.report(step=2)
    assert lane.turn_and_wait() == 1.0
    assert lane.turn() is None
    assert [s.body["step"] for s in server.seen] == [1, 2]


def test_trouble_is_told_once_for_each_change(server: FakeServer, lane: Lane, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "diflow.client")
    server.will(*[failed(503, "too old")] * 3, *[failed(403, "not yours")] * 2)
    for step in range(6):
        lane.report(step=step)
        lane.turn()
        lane.clock.now += 100
    assert [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "diflow.client"] == [
        ("WARNING", "reports do not arrive, and the training continues without them: too old (status 503)"),
        ("WARNING", "reports do not arrive, and the training continues without them: not yours (status 403)"),
        ("INFO", "reports arrive again"),
    ]


def test_a_server_that_says_when_to_come_again_is_no_trouble_unless_it_lasts(
    server: FakeServer, lane: Lane, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "diflow.client")
    server.will(*[failed(503, "round 2 of the job is not known here yet", retry_after="1")] * 5)
    for step in range(6):
        lane.report(step=step)
        lane.turn()
        lane.clock.now += 2
    assert len(server.seen) == 6, "each report goes again when the server said"
    assert [r.getMessage() for r in caplog.records if r.name == "diflow.client"] == []
    server.will(*[failed(503, "too old", retry_after="4")] * 5)
    for step in range(6):
        lane.report(step=step)
        lane.turn()
        lane.clock.now += 5
    assert [r.getMessage() for r in caplog.records if r.name == "diflow.client"] == [
        "reports do not arrive, and the training continues without them: too old (status 503)",
        "reports arrive again",
    ]


def test_in_a_job_with_health_the_last_report_is_repeated_while_the_training_makes_none(
    server: FakeServer, environ: dict[str, str]
) -> None:
    lane = Lane({**environ, "DI_HEARTBEAT_SECONDS": "30"})
    assert lane.turn() is None, "nothing is known of the training yet"
    lane.report(step=1)
    assert [lane.turn_and_wait() for _ in range(3)] == [30.0, 30.0, 30.0]
    lane.report(step=2)
    lane.turn_and_wait()
    lane.clock.now -= 20  # the next one comes earlier
    lane.report(step=3)
    assert lane.turn_and_wait() == 30.0
    assert [s.body["step"] for s in server.seen] == [1, 1, 1, 2, 3]
    lane.courier.close(seconds=0)
    assert lane.turn() is None
    assert len(server.seen) == 5, "a process that ends is not said to live"


def test_a_heartbeat_that_fails_is_repeated_as_a_report_and_ends_with_the_round(
    server: FakeServer, environ: dict[str, str]
) -> None:
    lane = Lane({**environ, "DI_HEARTBEAT_SECONDS": "30"})
    lane.report(step=1)
    assert lane.turn_and_wait() == 30.0
    server.will(failed(503, "busy"), failed(410, "over"))
    assert lane.turn_and_wait() == 1.0
    assert lane.turn_and_wait() is None
    lane.clock.now += 100
    assert lane.turn() is None
    assert len(server.seen) == 3


@pytest.mark.parametrize("text", ["", "0", "x", "-1", "1e3", "9999999999"])
def test_without_a_number_there_are_no_heartbeats(environ: dict[str, str], text: str) -> None:
    place = find({**environ, "DI_HEARTBEAT_SECONDS": text})
    assert place is not None
    assert place.heartbeat_seconds is None


def test_an_error_that_nobody_expected_ends_no_later_report(server: FakeServer, lane: Lane) -> None:
    def broken() -> dict[str, Any]:
        raise ZeroDivisionError("broken")

    lane.courier.report(broken)
    lane.turn()
    lane.report(step=2)
    lane.clock.now += 1
    lane.turn()
    assert [s.body for s in server.seen] == [{"step": 2}]


def test_the_training_does_not_wait_while_the_server_is_slow(server: FakeServer, client: Client) -> None:
    answered = threading.Event()
    server.will(Answer(before=lambda: answered.wait(PATIENCE_SECONDS)))
    client.report(step=0)
    server.until(len)
    for step in range(1, 1001):
        client.report(step=step)
    assert len(server.seen) == 1
    answered.set()
    seen = server.until(lambda all_seen: len(all_seen) == 2)
    assert [s.body["step"] for s in seen] == [0, 1000]
    threads = [t for t in threading.enumerate() if t.name == "diflow-client"]
    assert len(threads) == 1
    assert threads[0].daemon


def test_closing_sends_what_still_waits(server: FakeServer, client: Client) -> None:
    client.report(step=1)
    server.until(len)
    client.report(step=2)
    client.close(PATIENCE_SECONDS)
    assert [s.body["step"] for s in server.seen] == [1, 2]
    client.report(step=3)
    client.close(PATIENCE_SECONDS)
    assert len(server.seen) == 2
    with pytest.raises(UnavailableError, match="closed"):
        client.replicas()


def test_a_client_may_be_closed_before_it_has_said_anything(server: FakeServer, client: Client) -> None:
    client.close(PATIENCE_SECONDS)
    client.report(step=1)
    client.close(PATIENCE_SECONDS)
    assert server.seen == []


def test_closing_tries_once_and_respects_the_servers_pause(server: FakeServer, environ: dict[str, str]) -> None:
    lane = Lane(environ)
    server.will(failed(503))
    lane.report(step=1)
    lane.courier.close(seconds=0.0)
    assert lane.turn() is None
    assert len(server.seen) == 1

    lane = Lane(environ)
    server.will(failed(429, retry_after="9"))
    lane.report(step=2)
    assert lane.turn() == pytest.approx(9.9)
    lane.courier.close(seconds=0.0)
    assert lane.turn() is None
    assert [s.body["step"] for s in server.seen] == [1, 2]


def test_closing_lets_nobody_wait(server: FakeServer, lane: Lane) -> None:
    call = lane.courier.begin("GET", REPLICAS, None, key=None, seconds=15.0)
    lane.courier.close(seconds=0.0)
    assert lane.turn() is None
    with pytest.raises(UnavailableError, match="closed"):
        lane.courier.wait(call, seconds=0.0)
    assert server.seen == []


def test_the_trainings_own_random_numbers_are_left_alone(server: FakeServer, client: Client) -> None:
    random.seed(3)
    before = random.getstate()
    server.will(failed(503, retry_after="0"))
    client.report(step=1)
    client.add_replicas(1, timeout_seconds=PATIENCE_SECONDS)
    server.until(lambda seen: len(seen) >= 2)
    assert random.getstate() == before


# --- no job ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("environ", [{}, {"DI_JOB_ID": "ml/vision"}, {"DI_SERVER_URL": "http://127.0.0.1:1"}])
def test_outside_a_job_reports_go_nowhere_and_questions_say_so(environ: dict[str, str]) -> None:
    with Client(environ) as client:
        assert not client.in_job
        client.report(speed=1.0, step=3)
        for ask in (client.replicas, lambda: client.add_replicas(1), lambda: client.delete_replicas(1)):
            with pytest.raises(UnavailableError, match="in no job of diflow: DI_JOB_ID and DI_SERVER_URL"):
                ask()
    assert not [t for t in threading.enumerate() if t.name == "diflow-client"]


def test_the_module_has_the_functions_of_one_client_and_needs_only_requests(environ: dict[str, str]) -> None:
    script = """
import sys
before = set(sys.modules)
from diflow import client
ours = sorted(m for m in set(sys.modules) - before if m.partition(".")[0] == "diflow")
others = {m.partition(".")[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names) - {"diflow"}
print(ours, sorted(others))
assert client.in_job()
client.add_replicas(1, timeout_seconds=60)
client.report(step=1)
print("requests" in sys.modules, sorted({"hera", "kubernetes", "pydantic", "typer", "yaml"} & set(sys.modules)))
"""
    done = _python(script, environ)
    first, second = done.splitlines()
    modules = ["", ".courier", ".place", ".process", ".readings", ".shards", ".stop", ".wire"]
    others = ["common", "common.clock", "common.errors", "shards", "shards.dataset", "version"]
    expected = ["diflow", *(f"diflow.client{name}" for name in modules), *(f"diflow.{name}" for name in others)]
    assert first == f"{expected} []"
    assert second == "True []"


def test_a_report_that_waits_when_the_process_ends_is_sent(server: FakeServer, environ: dict[str, str]) -> None:
    script = """
from diflow import client
client._LAST_SECONDS = 60
for step in range(100):
    client.report(step=step)
"""
    _python(script, environ)
    assert server.seen[-1].body["step"] == 99


# --- other processes -------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_has_a_line_of_its_own_and_says_nothing_of_its_parents(
    server: FakeServer, environ: dict[str, str]
) -> None:
    script = """
import os
from diflow import client
client.report(speed=1, step=1)
client.add_replicas(1, timeout_seconds=60)
child = os.fork()
if child == 0:
    client.report(step=2)
    client.close(60)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
client.close(60)
"""
    _python(script, environ)
    reports = sorted((s.body for s in server.seen if s.path == PROFILINGS), key=lambda body: body["step"])
    assert reports == [{"rank": 1, "replicas": 2, "speed": 1, "step": 1}, {"rank": 1, "replicas": 2, "step": 2}]


def test_a_client_goes_over_into_a_spawned_process(server: FakeServer, client: Client) -> None:
    server.data = ["a:1"]
    assert client.replicas(timeout_seconds=PATIENCE_SECONDS) == ["a:1"]
    with pickle.loads(pickle.dumps(client)) as other:
        assert other is not client
        assert other.replicas(timeout_seconds=PATIENCE_SECONDS) == ["a:1"]


# --- the end ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def terminated() -> Iterator[list[int]]:
    """An earlier handler for SIGTERM, and its calls."""
    told: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: told.append(number))
    yield told
    signal.signal(signal.SIGTERM, before)


def _terminate(has_come: Callable[[], object]) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    end = time.monotonic() + PATIENCE_SECONDS
    while not has_come():
        assert time.monotonic() < end


def test_a_coming_stop_is_told_to_all_who_asked_and_to_who_was_there_before(
    terminated: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    client, told = Client({}), list[str]()

    def broken() -> None:
        told.append("broken")
        raise OSError("disk full")

    client.on_stop(broken)
    client.on_stop(lambda: told.append(f"second, stopping {client.stopping()}"))
    assert not client.stopping()
    _terminate(lambda: terminated)
    assert told == ["broken", "second, stopping True"]
    assert terminated == [signal.SIGTERM]
    assert "of on_stop failed" in caplog.text
    assert client.stopping()

    _terminate(lambda: len(terminated) == 2)
    assert len(told) == 2, "each is reported once"
    client.on_stop(lambda: told.append("late"))
    assert told[-1] == "late", "a late listener is called at once"


def test_a_callback_may_end_the_process_when_the_others_were_told(terminated: list[int]) -> None:
    client, told = Client({}), list[str]()
    client.on_stop(lambda: sys.exit(143))
    client.on_stop(lambda: told.append("saved"))
    with pytest.raises(SystemExit, match="143"):
        _terminate(lambda: False)
    assert told == ["saved"]
    assert terminated == [signal.SIGTERM]


def test_asking_whether_to_stop_is_enough(terminated: list[int]) -> None:
    client = Client({})
    assert not client.stopping()
    _terminate(client.stopping)
    assert terminated == [signal.SIGTERM]


def test_on_stop_says_that_it_belongs_into_the_main_thread(terminated: list[int]) -> None:
    client, raised = Client({}), list[Exception]()

    def elsewhere() -> None:
        assert not client.stopping()
        try:
            client.on_stop(lambda: None)
        except InvalidError as error:
            raised.append(error)

    for _ in range(2):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(PATIENCE_SECONDS)
        if len(raised) == 1:
            client.on_stop()
    assert len(raised) == 1, "once the main thread has asked, everybody may"
    assert "only from the main thread" in str(raised[0])
    assert terminated == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_ends_on_the_signal_as_if_nobody_had_asked() -> None:
    script = """
import os, signal
from diflow import client
client.on_stop(lambda: print("saved by", "parent" if os.getpid() == parent else "child", flush=True))
parent = os.getpid()
ready, tell = os.pipe()
child = os.fork()
if child == 0:
    os.write(tell, b"!")
    signal.pause()
    os._exit(0)
os.read(ready, 1)
os.kill(child, signal.SIGTERM)
_, status = os.waitpid(child, 0)
print(os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM, flush=True)
os.kill(parent, signal.SIGTERM)
print(client.stopping())
"""
    assert _python(script, {}).splitlines() == ["True", "saved by parent", "True"]


def _python(script: str, environ: dict[str, str]) -> str:
    """The output of a script in a separate process."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DI_", "COV_"))}
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script],
        env=kept | environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS * 2,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout

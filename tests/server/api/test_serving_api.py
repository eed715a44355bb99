"""The whole server as a process, over a fake API server: hostile input, outages, and what a kill leaves."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from diflow.common import keys
from tests.allocator.manifests import granted, granted_in, needed
from tests.allocator.run.test_rbac import idle, refused
from tests.cli.runner import kubeconfig
from tests.kube.fakeapi import Answer as ApiAnswer
from tests.kube.fakeapi import FakeApi, Request, serving, status
from tests.server.http.test_serving_flood import flood, outcome
from tests.server.place import Place, elastic, mixed
from tests.server.processes import Served, served, until
from tests.server.test_serving_manifests import FOLDER, SHARDS
from tests.server.wire import Answer, connect, one, request, talk

PATIENT = dict.fromkeys(("header_seconds", "body_seconds", "answer_seconds", "idle_seconds", "linger_seconds"), 60)
MIXED, ELASTIC = "/v2alpha1/default.mixed/replicas", "/v2alpha1/default.elastic/replicas"


@dataclass
class Whole:
    """A server with a cluster behind it: one job with its pods, and one that may be resized."""

    server: Served
    place: Place
    token: str
    elastic_token: str

    def ask(
        self, method: str, path: str, body: bytes | None = None, *, token: str | None = None, **kind: Any
    ) -> Answer:
        """One request on a connection of its own, by a pod of the job that the path names."""
        shown = token if token is not None else self.elastic_token if "elastic" in path else self.token
        fields = [f"Authorization: Bearer {shown}"] if shown else []
        return talk(self.server.port, request(method, path, body, fields=fields, close=True), **kind).only


@contextmanager
def whole(api: FakeApi, folder: Path, **settings: Any) -> Iterator[Whole]:
    place = Place(api)
    place.running(mixed())
    place.running(elastic())
    config = folder / "kubeconfig"
    config.write_text(kubeconfig(api.url))
    command = ("-m", "diflow", "server", "run", "--log-format", "json", "--kubeconfig", str(config))
    with served(command, **{**PATIENT, "job_rate": 1e6, "job_burst": 1e6, **settings}) as server:
        token = place.authority.pod_token("mixed-learner-1-0", job="mixed")
        elastic_token = place.authority.pod_token("elastic-worker-1-0", job="elastic")
        found = Whole(server, place, token, elastic_token)
        until(lambda: found.ask("GET", MIXED).status == 200, "it serves")
        yield found


@pytest.fixture(scope="module", name="found")
def _found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    with serving() as api, whole(api, tmp_path_factory.mktemp("api")) as found:
        yield found
        assert found.server.peak_mib() < 200, "throughout"


# --- hostile input ----------------------------------------------------------------------------------------------


def test_a_job_asks_for_its_replicas(found: Whole) -> None:
    answer = found.ask("GET", MIXED)
    assert answer.json == {
        "success": True,
        "code": 0,
        "message": "successfully get replicas",
        "data": ["10.0.0.1:22270", "10.0.0.2:22270", "10.0.0.3:22270"],
    }
    assert answer.fields["x-request-id"]


def test_tokens_of_all_kinds(found: Whole) -> None:
    place = found.place
    tokens: dict[str, tuple[str, int]] = {
        "none": ("", 401),
        "made up": ("abc", 401),
        "of another job": (found.elastic_token, 403),
        "expired": (place.authority.pod_token("mixed-learner-1-0", job="mixed", expires=time.time() - 10), 401),
        "of a pod that is gone": (place.authority.pod_token("mixed-learner-1-9", job="mixed"), 403),
        "of a pod of that name before": (
            place.authority.pod_token("mixed-learner-1-0", job="mixed", pod_uid="before", jti="1"),
            403,
        ),
        "for the API server": (
            place.authority.pod_token("mixed-learner-1-0", job="mixed", audience="https://kubernetes"),
            403,
        ),
        "of a person who may": (place.authority.person("ann", ("get", "default", "mixed")), 200),
        "of a person who may not": (place.authority.person("ben"), 403),
        "good": (found.token, 200),
        "too long": ("x" * 9000, 401),
    }
    for name, (token, expected) in tokens.items():
        assert found.ask("GET", MIXED, token=token).status == expected, name
    before = place.authority.reviews
    for _ in range(20):
        assert found.ask("GET", MIXED).status == 200
        assert found.ask("GET", MIXED, token="abc").status == 401
    assert place.authority.reviews == before, "each is reviewed once, and used again from memory"
    log = found.server.log.read_text()
    assert not any(token and token in log for token, _ in tokens.values()), "no token is in the log"


def test_what_is_not_yours_and_what_does_not_exist_look_the_same(found: Whole) -> None:
    foreign = found.ask("GET", MIXED, token=found.elastic_token)
    missing = found.ask("GET", MIXED.replace("mixed", "missing"), token=found.elastic_token)
    assert (foreign.status, foreign.body) == (missing.status, missing.body)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{", id="half"),
        pytest.param(b"[" * 60_000, id="deep and open"),
        pytest.param(b'{"replicas": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_001, id="deep"),
        pytest.param(b'{"replicas": "\xff\xfe"}', id="not UTF-8"),
        pytest.param(b'{"replicas": 1, "replicas": 2}', id="twice the same key"),
        pytest.param(b'{"replicas": 1e999}', id="infinite"),
        pytest.param(b'{"replicas": -1}', id="negative"),
        pytest.param(b'{"replicas": 1, "task": "none-such"}', id="no such task"),
        pytest.param(b"\x00" * 1000, id="zeros"),
    ],
)
def test_bodies_that_cannot_be_understood(found: Whole, body: bytes) -> None:
    before = found.place.workflow("elastic")["metadata"]["resourceVersion"]
    answer = found.ask("POST", ELASTIC, body)
    assert (answer.status, answer.json["success"]) == (400, False)
    assert "'" not in answer.json["message"]
    assert found.place.workflow("elastic")["metadata"]["resourceVersion"] == before


def test_a_gibibyte_declared_and_one_streamed(found: Whole) -> None:
    head = request("POST", ELASTIC, fields=[f"Authorization: Bearer {found.elastic_token}"])[:-2]
    declared = talk(found.server.port, head + b"Content-Length: 1073741824\r\n\r\n")
    assert declared.only.status == 413
    streamed = talk(
        found.server.port, head + b"Transfer-Encoding: chunked\r\n\r\n", *[b"8000\r\n" + b"[" * 0x8000 + b"\r\n"] * 6
    )
    assert streamed.only.status == 413


def test_a_disconnect_in_the_middle_is_as_if_nothing_was_sent(found: Whole) -> None:
    before = found.place.workflow("elastic")["metadata"]["resourceVersion"]
    with connect(found.server.port) as sock:
        fields = [f"Authorization: Bearer {found.elastic_token}"]
        sock.sendall(request("POST", ELASTIC, b'{"replicas": 1}', fields=fields)[:-3])
    until(lambda: found.server.metric("diflow_server_busy_connections") == 0, "it is over")
    assert found.ask("GET", MIXED).status == 200
    assert found.place.workflow("elastic")["metadata"]["resourceVersion"] == before


def test_the_metrics_hold_nothing_of_what_was_sent(found: Whole) -> None:
    found.ask("GET", "/made-up-by-a-user", token="")
    found.ask("PROPFIND", MIXED)
    found.ask("GET", MIXED)
    server = found.server
    page = talk(server.metrics_port, request("GET", "/metrics", close=True)).only.body.decode()
    assert "made-up" not in page
    assert "default.mixed" not in page
    route = "/v2alpha1/{id}/replicas"
    assert server.metric("diflow_server_requests_total", route=route, method="GET", code="200") > 0
    assert server.metric("diflow_server_requests_total", route="(none)", code="404") > 0
    assert server.metric("diflow_server_requests_total", method="other") > 0
    assert server.metric("diflow_server_request_seconds_count", route=route) > 0
    assert server.metric("diflow_server_cluster_requests_total", kind="tokenreviews", outcome="done") > 0
    assert 0 <= server.metric("diflow_server_cache_age_seconds", kind="workflows") < 90
    assert found.ask("GET", "/metrics", token="").status == 404, "they are on the other port alone"
    for port in (server.port, server.metrics_port):
        for path in ("/healthz", "/readyz"):
            assert talk(port, request("GET", path, close=True)).only.status == 200


@pytest.mark.slow
def test_rbac_allows_it_what_it_asks_for_and_nothing_else(found: Whole) -> None:
    person = found.place.authority.person("eve", ("patch", "default", "elastic"), ("get", "default", "mixed"))
    assert found.ask("GET", MIXED, token=person).status == 200
    for method in ("POST", "DELETE"):
        assert found.ask(method, ELASTIC, b'{"replicas": 1}').status == 200
    report = ELASTIC.replace("replicas", "profilings")
    assert found.ask("POST", report, b'{"step": 1}', token=person).status == 200
    api = found.place.api
    until(lambda: any(isinstance(asked.body, list) for asked in api.seen("PATCH")), "the report is written")
    shards = ELASTIC.replace("replicas", "shards")
    for want in (1, 2):
        body = json.dumps({"dataset": "train", "size": 100, "shard": 10, "want": want}).encode()
        assert found.ask("POST", shards, body).status == 200
    used = {needed(asked) for asked in api.requests if "Authorization" in asked.headers}
    rules = granted("diflow-server", FOLDER) | granted_in("default", SHARDS)
    assert refused(used, rules) == []
    assert idle(used, rules) == []


# --- outages, and what a kill leaves -----------------------------------------------------------------------------


@pytest.mark.slow
def test_with_the_api_server_away_reads_go_on_until_the_cache_is_too_old_and_it_recovers(tmp_path: Path) -> None:
    away, over = threading.Event(), threading.Event()

    def rule(asked: Request) -> ApiAnswer | None:
        if not away.is_set():
            return None
        if asked.query.get("watch"):
            return ApiAnswer(lines=[])
        return status(503, "the server is away", reason="ServiceUnavailable")

    def beat() -> None:
        """Bookmarks, as a real server sends them each minute."""
        while not over.wait(0.2):
            if not away.is_set():
                api.bookmark()

    told: list[Answer] = []

    def look() -> None:
        while not over.wait(0.05):
            told.append(found.ask("GET", MIXED))

    with serving() as api, ThreadPoolExecutor(2) as pool:
        api.rule(rule)
        threads = [pool.submit(beat)]
        try:
            with whole(api, tmp_path, stale_seconds=3) as found:
                threads.append(pool.submit(look))
                until(lambda: told and told[-1].status == 200, "it serves")
                away.set()
                api.closing = True  # the watches that are open end
                until(lambda: told[-1].status == 503, "what it knows becomes too old")
                api.closing = False
                away.clear()
                until(lambda: told[-1].status == 200, "it recovers")
                over.set()
                for thread in threads:
                    thread.result()
        finally:
            over.set()
    assert {answer.status for answer in told} == {200, 503}
    late = [answer for answer in told if answer.status == 503]
    assert all(int(answer.fields["retry-after"]) > 0 for answer in late)
    assert all(answer.json["data"] is None for answer in late), "no old answer is sent"


@pytest.mark.slow
def test_ten_thousand_connections_cost_little_memory_and_a_kill_loses_no_desire(tmp_path: Path) -> None:
    with serving() as api, whole(api, tmp_path, header_seconds=8) as found:
        with flood(found.server, 10_000, addresses=50) as process:
            until(lambda: found.server.metric("diflow_server_connections") == 0, "they have had their time")
            assert found.ask("GET", MIXED).status == 200
            ends = outcome(process)
        assert ends["open"] == 0
        assert found.server.metric("diflow_server_ready") == 1
        assert found.server.peak_mib() < 200
        for number in (5, 6, 7, 8):
            assert found.ask("POST", ELASTIC, b'{"replicas": 1}').status == 200
            if number == 8:
                found.server.process.send_signal(signal.SIGKILL)
            assert json.loads(found.place.parameter("elastic", keys.PARAM_REPLICAS))["worker"] == number


@pytest.mark.slow
def test_a_term_while_a_desire_is_written_loses_neither_that_nor_what_was_reported(tmp_path: Path) -> None:
    with serving() as api, whole(api, tmp_path, drain_seconds=600, write_seconds=60) as found:
        path = ELASTIC.replace("replicas", "profilings")
        for step in (1, 2, 3):  # the first is written at once, the others would be in a minute
            assert found.ask("POST", path, json.dumps({"step": step, "speed": 1.5}).encode()).status == 200
        writing, go_on = threading.Event(), threading.Event()

        def rule(asked: Request) -> ApiAnswer | None:
            if asked.method == "PATCH" and not go_on.is_set() and isinstance(asked.body, dict):
                writing.set()
                assert go_on.wait(60)
            return None

        api.rule(rule)
        with connect(found.server.port) as sock:
            fields = [f"Authorization: Bearer {found.elastic_token}"]
            sock.sendall(request("POST", ELASTIC, b'{"replicas": 1}', fields=fields))
            until(writing.is_set, "the write is under way")
            found.server.terminate()
            for port in (found.server.port, found.server.metrics_port):
                ready = request("GET", "/readyz", close=True)
                until(lambda p=port, r=ready: talk(p, r).only.status == 503, "it says that it ends")  # type: ignore[misc]
            found.server.terminate()  # it need not wait for others to notice
            until(lambda: _is_closed(found.server.port), "nobody new is let in")
            go_on.set()
            assert one(sock).status == 200
        assert found.server.ended() == 0
        assert json.loads(found.place.parameter("elastic", keys.PARAM_REPLICAS))["worker"] == 5
        assert '"step":3' in found.place.parameter("elastic", keys.PARAM_PROFILINGS).replace(" ", "")


def _is_closed(port: int) -> bool:
    try:
        connect(port).close()
    except ConnectionRefusedError:
        return True
    return False

"""More connections than the limit: each is answered or reset, memory stays bounded, and the server recovers."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.server.processes import ROOT, Served, served, until
from tests.server.wire import connect, get, heard, one, request


@pytest.fixture(scope="module", name="server")
def _server() -> Iterator[Served]:
    with served(connections=600, connections_per_address=100, refusals=100, header_seconds=6, idle_seconds=60) as found:
        yield found


@pytest.fixture(scope="module", name="roomy")
def _roomy() -> Iterator[Served]:
    """No client is refused for being slow."""
    with served(connections=103, connections_per_address=100, header_seconds=600, idle_seconds=600) as found:
        yield found


@contextmanager
def flood(server: Served, count: int, *, addresses: int) -> Iterator[subprocess.Popen[str]]:
    """So many silent connections, all tried when the block begins."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.server.flood", str(server.port), str(count), str(addresses)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    with process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline()) == {"tried": count}
            yield process
        finally:
            process.kill()


def outcome(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The outcome of each connection."""
    out, _ = process.communicate("\n", timeout=150)
    return dict(json.loads(out))


@pytest.mark.slow
def test_three_thousand_connections_from_everywhere_are_refused_and_it_recovers(server: Served) -> None:
    with flood(server, 3_000, addresses=30) as process:
        until(lambda: server.metric("diflow_server_connections") == 0, "the silent ones have had their time")
        assert get(server.port, "/hello").status == 200, "it serves again, with all those sockets still held"
        found = outcome(process)
    assert found["open"] == 0, "each was ended"
    assert found["503"] > 100, "those beyond the limit were told so"
    assert found["503"] + found["408"] + found.get("reset", 0) + found.get("refused", 0) == 3_000
    assert server.metric("diflow_server_refusals_total", limit="no_room_or_time") >= found["503"]
    assert server.peak_mib() < 200


def test_one_address_cannot_take_the_room_of_others(roomy: Served) -> None:
    with flood(roomy, 2_000, addresses=1):
        assert get(roomy.port, "/hello", source="127.0.0.99").status == 200
        assert roomy.metric("diflow_server_connections") == 100
        refused = get(roomy.port, "/hello", source="127.0.0.2")
    assert (refused.status, refused.fields["retry-after"]) == (503, "1")
    assert refused.json["message"] == "more than 100 connections from one address"
    until(lambda: roomy.metric("diflow_server_connections") == 0, "they are gone")


def test_one_network_cannot_take_the_room_of_others() -> None:
    with served(connections=100, connections_per_address=20, header_seconds=600) as small, contextlib.ExitStack() as s:
        for number in range(60):
            s.enter_context(connect(small.port, source=f"127.0.5.{2 + number % 6}"))
        refused = get(small.port, "/hello", source="127.0.5.99")
        assert refused.status == 503
        assert refused.json["message"] == "more than 40 connections from the network 127.0.5.0/24"
        assert small.metric("diflow_server_connections") == 40
        assert get(small.port, "/hello", source="127.0.6.2").status == 200


@pytest.mark.parametrize(
    "begun",
    [b"", b"GET /hello HTTP/1.1\r\nHo", request("POST", "/echo", b"0123456789")[:-5]],
    ids=["nothing", "half a head", "half a body"],
)
def test_requests_that_do_not_come_whole_make_room_for_who_asks(begun: bytes) -> None:
    """Five addresses are enough to hold all connections, each within its own limit; they hold nobody up."""
    limits: dict[str, Any] = {
        "connections": 100,
        "connections_per_address": 20,
        "header_seconds": 600,
        "body_seconds": 600,
    }
    with served(**limits) as small, contextlib.ExitStack() as sockets:
        slow = [sockets.enter_context(connect(small.port, source=f"127.0.{5 + n % 5}.2")) for n in range(100)]
        for sock in slow:
            sock.sendall(begun)
        until(lambda: small.metric("diflow_server_connections") == 100, "all are taken")
        time.sleep(1.2)  # GRACE_SECONDS: from now on an incomplete request is dropped first
        for number in range(10):
            honest = sockets.enter_context(connect(small.port, source="127.0.99.2"))
            honest.sendall(request("GET", "/hello"))
            assert one(honest).status == 200
            ended = heard(slow[number]).only  # the oldest
            assert (ended.status, ended.fields["retry-after"]) == (503, "1")
        assert small.metric("diflow_server_connections") == 100


def test_who_has_just_come_is_not_sent_away_for_who_comes_then() -> None:
    """Of connections that are all new none has been slow: those that ask for nothing go first."""
    with served(connections=4, connections_per_address=4, header_seconds=600) as small, contextlib.ExitStack() as s:
        idle = [s.enter_context(connect(small.port, source="127.0.5.2")) for _ in range(2)]
        for sock in idle:
            sock.sendall(request("GET", "/hello"))
            assert one(sock).status == 200
        new = [s.enter_context(connect(small.port, source="127.0.6.2")) for _ in range(3)]
        assert heard(idle[0]).end == "closed"
        for sock in new:
            sock.sendall(request("GET", "/hello", close=True))
            assert heard(sock).only.status == 200


def test_who_is_answered_is_not_sent_away_for_what_comes_behind() -> None:
    """A second request on a connection has begun while the first is answered: nobody loses an answer."""
    with served(connections=2, header_seconds=600) as small, contextlib.ExitStack() as sockets:
        asked = [sockets.enter_context(connect(small.port, source=f"127.0.{5 + n}.2")) for n in range(2)]
        for sock in asked:
            sock.sendall(request("GET", "/slow?seconds=4") + b"GET /hel")
        time.sleep(1.5)
        assert get(small.port, "/hello", source="127.0.9.2").status == 503, "all connections are in use"
        for sock in asked:
            assert one(sock).status == 200


def test_who_waits_on_purpose_makes_room_for_who_asks() -> None:
    """One tenant's long polls, from a few of its pods, must not hold every connection: they are answered early."""
    with served(connections=3, poll_seconds=600) as small, contextlib.ExitStack() as sockets:
        polls = []
        for number in range(3):
            polls.append(sockets.enter_context(connect(small.port)))
            polls[-1].sendall(request("GET", "/discover/me"))
            until(lambda n=number: small.metric("diflow_server_busy_connections") == n + 1, "it waits")  # type: ignore[misc]
        for _ in range(2):
            assert get(small.port, "/hello").status == 200
        ended = heard(polls[0])
        assert (ended.only.status, ended.end) == (408, "closed"), "it had waited for longest"
        assert small.metric("diflow_server_busy_connections") == 2, "the others wait on"


def test_who_is_idle_makes_room_for_who_asks(roomy: Served) -> None:
    with contextlib.ExitStack() as sockets:
        idle = [sockets.enter_context(connect(roomy.port, source=f"127.0.0.{2 + i % 2}")) for i in range(103)]
        for sock in [*idle, idle[0]]:
            sock.sendall(request("GET", "/hello"))
            assert one(sock).status == 200
        assert get(roomy.port, "/hello", source="127.0.0.99").status == 200
        assert heard(idle[1]).end == "closed", "it had been idle for longest"
        for sock in (idle[0], idle[2], idle[102]):
            sock.sendall(request("GET", "/hello"))
            assert one(sock).status == 200

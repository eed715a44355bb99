"""More connections than there is room for: each is answered or reset, the memory stays small, and it passes."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
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
    """Nobody is sent away for being slow."""
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
    """What became of each connection."""
    out, _ = process.communicate("\n", timeout=150)
    return dict(json.loads(out))


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

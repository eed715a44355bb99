"""The daemon's pages are served whatever other clients do, with few threads and a deadline for each connection."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from diflow.common.errors import InvalidError
from diflow.daemon import probes
from diflow.daemon.probes import CONNECTION_SECONDS, MOST_CONNECTIONS, serving
from tests.allocator.faults import Time, eventually


def app(_: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
    start("200 OK", [("Content-Type", "text/plain")])
    return [b"well\n"]


@contextmanager
def served() -> Iterator[tuple[int, probes._Server]]:
    with ExitStack() as stack:
        for tries_left in (4, 3, 2, 1, 0):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            try:
                server = stack.enter_context(serving(port, app))
                break
            except InvalidError:  # another test's process took the port meanwhile
                if not tries_left:
                    raise
        assert isinstance(server, probes._Server)
        yield port, server


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def ask(port: int) -> bytes:
    with connect(port) as made:
        made.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        return b"".join(iter(lambda: made.recv(4096), b""))


def test_beside_hundreds_of_connections_that_say_nothing_pages_are_answered_with_few_threads() -> None:
    with served() as (port, server), ExitStack() as idle:
        before = threading.active_count()
        for _ in range(16 * MOST_CONNECTIONS):
            idle.enter_context(connect(port))
        assert ask(port).endswith(b"well\n")
        assert threading.active_count() - before <= MOST_CONNECTIONS
        assert len(server._open) <= MOST_CONNECTIONS


def test_a_client_that_sends_one_byte_now_and_then_is_disconnected_after_some_seconds() -> None:
    clock = Time()
    with served() as (port, server):
        server._clock = clock.clock
        with connect(port) as slow:
            slow.sendall(b"GET /me")
            eventually(lambda: server._open, "it is there")
            clock.move(CONNECTION_SECONDS - 1)
            slow.sendall(b"t")
            assert server._open
            clock.move(2.0)
            assert slow.recv(10) == b""
        eventually(lambda: not server._open, "it is gone")
        assert ask(port).endswith(b"well\n")


def test_a_port_that_is_taken_is_named() -> None:
    with served() as (port, _), pytest.raises(InvalidError, match=f"port {port} for metrics"), serving(port, app):
        pass


def test_shutdown_waits_for_no_connection() -> None:
    with ExitStack() as idle:
        with served() as (port, server):
            idle.enter_context(connect(port))
            eventually(lambda: server._open, "it is there")
        # The clock of its limits was not moved: it would wait for ever.
        assert not server._open

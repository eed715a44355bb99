"""Graceful shutdown: SIGTERM under load loses no accepted request, and the shutdown takes a bounded time."""

from __future__ import annotations

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.server.processes import served, until
from tests.server.wire import connect, get, one, request, talk


class Caller:
    """A client of the field: keeps its connection, and makes a new one when the server closed the old one between two
    requests. What it counts as lost: a request that was sent on a connection of which the server did not say that it
    ends, and that got no answer."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.answered = 0
        self.lost: list[str] = []
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                sock = connect(self.port)
            except OSError:
                return  # the listening socket is closed: not accepted
            with sock:
                self._use(sock)

    def _use(self, sock: socket.socket) -> None:
        while not self.stop.is_set():
            if _ended(sock):
                return
            try:
                sock.sendall(request("POST", "/echo", b"{}"))
                answer = one(sock)
            except OSError as error:
                self.lost.append(repr(error))
                return
            if answer.status != 200:
                self.lost.append(str(answer))
            self.answered += 1
            if answer.fields.get("connection") == "close":
                return


def _ended(sock: socket.socket) -> bool:
    """Whether the server has closed the connection while nothing was asked."""
    sock.setblocking(False)
    try:
        return not sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        sock.settimeout(60)


@pytest.mark.slow
def test_under_load_no_request_that_was_accepted_is_lost() -> None:
    with served(drain_seconds=1.0) as server:
        callers = [Caller(server.port) for _ in range(8)]
        with ThreadPoolExecutor(len(callers) + 2) as pool:
            running = [pool.submit(caller.run) for caller in callers]
            slow = pool.submit(talk, server.port, request("GET", "/slow?seconds=2"))
            half = connect(server.port)
            half.sendall(request("POST", "/echo", b"0123456789")[:-5])
            until(lambda: min(caller.answered for caller in callers) > 20, "all are at work")
            until(lambda: server.metric("diflow_server_busy_connections") >= 2, "the slow ones are, too")
            server.terminate()
            until(lambda: get(server.metrics_port, "/readyz").status == 503, "it says that it is not ready")
            assert get(server.metrics_port, "/healthz").status == 200
            half.sendall(b"56789")
            assert one(half).json["bytes"] == 10
            half.close()
            assert slow.result().only.body == b"slow"
            assert server.ended() == 0
            for caller in callers:
                caller.stop.set()
            for one_run in running:
                one_run.result()
        assert [caller.lost for caller in callers] == [[]] * len(callers)
        assert server.process.stdout is not None
        assert json.loads(server.process.stdout.read()) == {"code": 0, "flushed": ["flushed"]}
        assert server.lines()[-1]["in_time"] is True


def test_while_it_drains_new_connections_are_served_and_each_answer_is_the_last_on_its_own() -> None:
    with served(drain_seconds=60) as server, connect(server.port) as idle:
        idle.sendall(request("GET", "/hello"))
        assert "connection" not in one(idle).fields
        server.terminate()
        until(lambda: server.lines()[-1]["event"] == "ending", "it ends")
        for sock in (idle, connect(server.port)):
            with sock:
                sock.sendall(request("GET", "/hello"))
                answer = one(sock)
                assert (answer.status, answer.fields["connection"]) == (200, "close")
        server.terminate()  # a second signal
        assert server.ended() == 0


def test_who_polls_is_told_to_ask_again_elsewhere() -> None:
    with served() as server, connect(server.port) as sock:
        sock.sendall(request("GET", "/discover/me"))
        until(lambda: server.metric("diflow_server_busy_connections") == 1, "it waits")
        server.terminate()
        assert one(sock).status == 408
        assert server.ended() == 0


def test_a_request_that_never_ends_does_not_hold_the_end_up() -> None:
    with served(ending_seconds=2, answer_seconds=3600) as server, connect(server.port) as sock:
        sock.sendall(request("GET", "/slow"))
        until(lambda: server.metric("diflow_server_busy_connections") == 1, "it waits")
        server.terminate()
        assert server.ended() == 1
        assert [line["event"] for line in server.lines()][-2:] == ["requests are left unanswered", "ended"]
        assert server.process.stdout is not None
        assert json.loads(server.process.stdout.read())["flushed"] == ["flushed"], "the application ends all the same"


def test_a_second_signal_hurries_it() -> None:
    with served(drain_seconds=3600, ending_seconds=3600) as server, connect(server.port) as sock:
        sock.sendall(request("GET", "/discover/me"))
        until(lambda: server.metric("diflow_server_busy_connections") == 1, "it waits")
        server.terminate()
        until(lambda: server.lines()[-1]["event"] == "ending", "it has heard")
        server.terminate()
        assert server.ended() == 0

"""Limits of one client: each abuse on a real socket is answered as documented, and other clients do not wait.

The application behind is a small one (servedapp): the limits are the same for all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.server.processes import Served, served, until
from tests.server.wire import Answer, Talk, connect, get, heard, one, request, talk

SHORT_SECONDS = 2.0
MIB = 1 << 20


@pytest.fixture(scope="module", name="server")
def _server() -> Iterator[Served]:
    """With times so long that no machine is too slow for them."""
    times: dict[str, Any] = dict.fromkeys(
        ("header_seconds", "body_seconds", "answer_seconds", "idle_seconds", "linger_seconds"), 60
    )
    with served(**times) as found:
        yield found
        assert found.peak_mib() < 200


@pytest.fixture(scope="module", name="hasty")
def _hasty() -> Iterator[Served]:
    """With times so short that a test can wait for them."""
    names = ("header_seconds", "body_seconds", "answer_seconds", "idle_seconds", "linger_seconds", "poll_seconds")
    times: dict[str, Any] = dict.fromkeys(names, SHORT_SECONDS)
    with served(requests_per_connection=5, **times) as found:
        yield found


def refusal(answer: Answer, status: int, words: str) -> None:
    """It is a refusal in the API's envelope, which ends the connection."""
    assert (answer.status, answer.json["success"], answer.json["code"], answer.json["data"]) == (status, False, 1, None)
    assert words in answer.json["message"]
    assert "'" not in answer.json["message"]
    assert answer.fields["connection"] == "close"
    assert answer.fields["x-request-id"]


# --- time -------------------------------------------------------------------------------------------------------------


def test_each_slow_client_is_told_so(hasty: Served) -> None:
    head = request("POST", "/echo", b"0123456789")

    def trickle(first: bytes) -> Talk:
        """A byte now and then: no single wait is long."""
        with connect(hasty.port) as sock:
            stop = threading.Event()

            def go() -> None:
                sock.sendall(first)
                while not stop.wait(0.1):
                    try:
                        sock.sendall(b"x")
                    except OSError:
                        return

            sender = threading.Thread(target=go)
            sender.start()
            found = heard(sock)
            stop.set()
            sender.join()
            return found

    cases: dict[str, tuple[Callable[[], Talk], int, str]] = {
        "nothing": (lambda: talk(hasty.port), 408, "the head of the request did not come within 2 s"),
        "half a head": (lambda: talk(hasty.port, b"GET /hello HTTP/1.1\r\nHo"), 408, "the head of the request"),
        "a head in drops": (lambda: trickle(b"GET /hello HTTP/1.1\r\nX: "), 408, "the head of the request"),
        "half a body": (lambda: talk(hasty.port, head[:-5]), 408, "the body of the request did not come within 2 s"),
        "a body in drops": (
            lambda: trickle(request("POST", "/echo", b"")[:-4].replace(b"Length: 0", b"Length: 9999") + b"\r\n\r\n"),
            408,
            "the body of the request",
        ),
        "a handler that hangs": (lambda: talk(hasty.port, request("GET", "/slow")), 503, "no answer in time"),
        "a poll without an event": (lambda: talk(hasty.port, request("GET", "/discover/me")), 408, "ask again"),
    }
    with ThreadPoolExecutor(len(cases)) as pool:
        talks = {name: pool.submit(case) for name, (case, _, _) in cases.items()}
    for name, (_, status, words) in cases.items():
        assert talks[name].result().answers, name
        refusal(talks[name].result().only, status, words)
    assert talks["a handler that hangs"].result().only.fields["retry-after"] == "1"
    until(lambda: hasty.metric("diflow_server_busy_connections") == 0, "nothing is left of them")
    assert hasty.metric("diflow_server_refusals_total", limit="slow") == 5


def test_a_connection_that_asks_nothing_more_is_closed_without_a_word(hasty: Served) -> None:
    with connect(hasty.port) as sock:
        sock.sendall(request("GET", "/hello"))
        found = heard(sock)
    assert (found.only.status, found.end) == (200, "closed")


def test_a_request_that_is_answered_early_must_end_as_well(hasty: Served) -> None:
    found = talk(hasty.port, request("POST", "/early", b"0123456789")[:-5])
    assert found.only.status == 401
    assert found.end in ("closed", "reset")


def test_a_client_that_does_not_take_its_answer_is_let_go(hasty: Served) -> None:
    with connect(hasty.port) as sock:
        for _ in range(4):
            sock.sendall(request("GET", "/large"))
        until(lambda: hasty.metric("diflow_server_connections") == 0, "it is gone")
        found = heard(sock)
    assert len(found.answers) < 4


# --- size -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("declared", [65_537, 1 << 30, 1 << 62])
def test_a_body_that_is_said_to_be_too_long_is_not_read(server: Served, declared: int) -> None:
    found = talk(server.port, f"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: {declared}\r\n\r\n".encode())
    refusal(found.only, 413, "the body is longer than 65536 bytes")


def test_a_gibibyte_that_is_streamed_is_not_read(server: Served) -> None:
    sent = 0
    with connect(server.port) as sock:
        sock.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        sock.settimeout(1)  # then the server reads nothing more
        answer = None
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        try:
            while sent < 1 << 30:
                sock.sendall(chunk)
                sent += 0x10000
                if answer is None and sent > 4 * 65_536:
                    sock.settimeout(60)
                    answer = one(sock)
                    sock.settimeout(1)
        except OSError:
            pass
    assert answer is not None
    refusal(answer, 413, "the body is longer than 65536 bytes")
    assert sent < 64 * MIB, "it took it all"


def test_what_stands_around_the_chunks_counts_too(server: Served) -> None:
    found = talk(
        server.port,
        b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;",
        *[b"y" * 65_536] * 40,
    )
    refusal(found.only, 413, "the body is longer")


def test_the_longest_body_is_read(server: Served) -> None:
    with connect(server.port) as sock:
        for _ in range(2):
            sock.sendall(request("POST", "/echo", b"x" * 65_536))
            assert one(sock).json["bytes"] == 65_536
        sock.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        sock.sendall(b"1\r\nx\r\n" * 5_000 + b"0\r\n\r\n")
        assert one(sock).json["bytes"] == 5_000


def test_a_head_that_is_too_long_is_refused(server: Served) -> None:
    cases = [
        b"GET /hello HTTP/1.1\r\nX: " + b"y" * 20_000 + b"\r\n\r\n",
        b"GET /" + b"y" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /hello HTTP/1.1\r\n" + b"X: y\r\n" * 101 + b"\r\n",
        b"GET /hello HTTP/1.1\r\nX: " + b"y" * 20_000,
        b"GET /hello HTTP/1.1\r\nX: " + b"y" * 2_000_000,
    ]
    for case in cases:
        refusal(talk(server.port, case).only, 431, "the head is longer than 16384 bytes")


def test_fields_behind_a_body_are_counted_and_dropped(server: Served) -> None:
    body = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"
    with connect(server.port) as sock:
        sock.sendall(body + b"X: y\r\n\r\n")
        assert one(sock).status == 200
    assert talk(server.port, body, *[b"X: " + b"y" * 60_000 + b"\r\n"] * 20).end in ("closed", "reset")


# --- malformed and unusual HTTP -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /hello HTTP/9.9\r\n\r\n",
        b"GET /h\xe4llo HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http://else/where HTTP/1.1\r\nHost\r\n\r\n",
        b"CONNECT else:1 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"POST /echo HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"GET /hello HTTP/1.1\r\nX: a\x00b\r\n\r\n",
    ],
)
def test_what_is_no_http_is_told_so(server: Served, sent: bytes) -> None:
    refusal(talk(server.port, sent).only, 400, "this is not an HTTP request")


@pytest.mark.parametrize("method", [b"FOO", b"GETX", b"get", b"VERSION-CONTROL"])
def test_a_method_that_nobody_knows_is_one_that_is_not_allowed(server: Served, method: bytes) -> None:
    found = talk(server.port, method + b" /hello HTTP/1.1\r\nHost: x\r\n\r\n")
    refusal(found.only, 405, "this method is not supported")
    assert found.only.fields["allow"] == "DELETE, GET, HEAD, POST, PUT"


@pytest.mark.parametrize("hosts", [b"", b"Host: x\r\nHost: y\r\n", b"Host: x\r\nhost: x\r\n"])
def test_a_request_without_one_host_is_told_so(server: Served, hosts: bytes) -> None:
    found = talk(server.port, b"POST /echo HTTP/1.1\r\n" + hosts + b"Content-Length: 3\r\n\r\nabc")
    refusal(found.only, 400, "one Host field")


def test_a_request_of_http_1_0_needs_no_host(server: Served) -> None:
    assert talk(server.port, b"GET /hello HTTP/1.0\r\n\r\n").only.body == b"hello"


def test_a_fault_of_a_handler_is_in_the_log_and_not_in_the_answer(server: Served) -> None:
    found = talk(server.port, request("GET", "/broken", close=True))
    assert found.only.status == 500
    assert b"secret" not in found.raw
    assert b"Traceback" not in found.raw
    until(lambda: any("secret" in line.get("exception", "") for line in server.lines()), "it is logged")


def test_an_upgrade_is_answered_in_plain_http(server: Served) -> None:
    fields = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
    assert talk(server.port, request("GET", "/hello", fields=fields)).only.body == b"hello"


def test_a_body_is_asked_for_where_the_client_waits_for_that(server: Served) -> None:
    with connect(server.port) as sock:
        sock.sendall(request("POST", "/echo", b"abc", fields=("Expect: 100-continue",))[:-3])
        assert sock.recv(100).startswith(b"HTTP/1.1 100")
        sock.sendall(b"abc")
        assert one(sock).json["bytes"] == 3


def test_requests_that_come_together_are_answered_in_their_order(server: Served) -> None:
    last = request("GET", "/hello", close=True)
    found = talk(server.port, request("POST", "/echo", b"ab") + request("GET", "/hello") + last)
    assert [answer.status for answer in found.answers] == [200, 200, 200]
    assert [answer.body for answer in found.answers[1:]] == [b"hello", b"hello"]


def test_rubbish_behind_a_request_does_not_cost_it_its_answer(server: Served) -> None:
    found = talk(server.port, request("GET", "/slow?seconds=0.1") + b"rubbish\r\n\r\n")
    assert (found.only.status, found.only.body) == (200, b"slow")


def test_too_many_requests_at_once_end_the_connection_after_those_that_were_taken(server: Served) -> None:
    found = talk(server.port, request("GET", "/slow?seconds=0.01") * 50)
    assert [answer.status for answer in found.answers] == [200] * 9
    assert found.answers[-1].fields["connection"] == "close"


def test_a_connection_is_not_used_for_ever(hasty: Served) -> None:
    answers = talk(hasty.port, request("GET", "/hello") * 6).answers
    assert [answer.fields.get("connection") for answer in answers] == [None, None, None, None, "close"]


@pytest.mark.slow
def test_a_client_that_leaves_in_the_middle_costs_nothing(server: Served) -> None:
    before = server.metric("diflow_server_connections")
    for sent in (b"GET /hel", request("POST", "/echo", b"0123456789")[:-5], request("GET", "/slow?seconds=0.2")):
        connect_and_leave(server, sent)
    until(lambda: server.metric("diflow_server_connections") <= before, "they are gone")
    until(lambda: server.metric("diflow_server_busy_connections") == 0, "and their handlers have ended")
    assert get(server.port, "/hello").status == 200


def connect_and_leave(server: Served, sent: bytes) -> None:
    with connect(server.port) as sock:
        sock.sendall(sent)
        time.sleep(0.05)

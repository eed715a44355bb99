"""TLS: its versions, its handshakes, and a certificate that is renewed under load."""

from __future__ import annotations

import contextlib
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from diflow.common.errors import InvalidError
from diflow.server.http.tls import Certificates
from tests.certificates import make_pair
from tests.server.processes import Served, served, until
from tests.server.wire import connect, heard, one, request, talk


def trusting(*_: object) -> ssl.SSLContext:
    """A client that takes any certificate: which one it was is asked afterwards."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def shown(server: Served) -> str:
    """The name in the certificate that a new connection is shown."""
    with connect(server.port, tls=trusting()) as sock:
        assert isinstance(sock, ssl.SSLSocket)
        der = sock.getpeercert(binary_form=True)
        assert der is not None
        return str(x509.load_der_x509_certificate(der).subject.rdns[0].rfc4514_string())


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module", name="server")
def _server(folder: Path) -> Iterator[Served]:
    certificate, key = make_pair(folder, "first")
    times: dict[str, Any] = dict.fromkeys(("header_seconds", "body_seconds", "answer_seconds", "idle_seconds"), 60)
    with served(tls_certificate=certificate, tls_key=key, tls_check_seconds=0.05, **times) as found:
        yield found


@pytest.fixture(scope="module", name="hasty")
def _hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    certificate, key = make_pair(tmp_path_factory.mktemp("hasty"), "first")
    with served(
        tls_certificate=certificate, tls_key=key, connections=40, refusals=20, header_seconds=3, body_seconds=3
    ) as found:
        yield found


@pytest.mark.slow
def test_a_renewed_certificate_serves_new_connections_and_ends_no_old_one(server: Served, folder: Path) -> None:
    stop = threading.Event()
    faults: list[str] = []
    counts = [0] * 4

    def call(number: int) -> None:
        try:
            with connect(server.port, tls=trusting()) as kept:
                while not stop.is_set():
                    kept.sendall(request("GET", "/hello"))
                    if one(kept).body != b"hello":
                        faults.append("no answer")
                    if talk(server.port, request("GET", "/hello", close=True), tls=trusting()).only.status != 200:
                        faults.append("no answer on a new connection")
                    counts[number] += 1
        except Exception as error:
            faults.append(repr(error))

    with ThreadPoolExecutor(len(counts)) as pool:
        calls = [pool.submit(call, number) for number in range(len(counts))]
        try:
            until(lambda: min(counts) > 3, "all are at work")
            assert shown(server) == "CN=first"
            make_pair(folder, "second")
            until(lambda: shown(server) == "CN=second", "the new certificate is shown")
            (folder / "certificate").write_text("half a certificate")
            until(lambda: any("cannot be used" in line["event"] for line in server.lines()), "it is said")
            assert shown(server) == "CN=second"
            make_pair(folder, "third")
            until(lambda: shown(server) == "CN=third", "and the next one again")
            before = min(counts)
            until(lambda: min(counts) > before + 3 or faults, "the old connections go on")
        finally:
            stop.set()
        for done in calls:
            done.result()
    assert faults == []


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_new_versions_are_spoken(server: Served, version: ssl.TLSVersion) -> None:
    context = trusting()
    context.minimum_version = context.maximum_version = version
    assert talk(server.port, request("GET", "/hello", close=True), tls=context).only.body == b"hello"


def test_old_versions_are_not(server: Served) -> None:
    context = trusting()
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1 is deprecated"):
        context.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        connect(server.port, tls=context)


@pytest.mark.slow
def test_the_limits_hold_under_tls_as_well(server: Served, hasty: Served) -> None:
    body = request("POST", "/echo", b"")[:-4].replace(b"Length: 0", b"Length: 99999999") + b"\r\n\r\n"
    assert talk(server.port, body, tls=trusting()).only.status == 413
    slow = talk(hasty.port, request("POST", "/echo", b"0123456789")[:-5], tls=trusting())
    assert slow.only.status == 408


def test_who_does_not_shake_hands_is_let_go_and_holds_nobody_up(hasty: Served) -> None:
    silent = [connect(hasty.port, source=f"127.0.0.{2 + number % 50}") for number in range(300)]
    ends = [heard(sock) for sock in silent]
    assert {talked.end for talked in ends} <= {"closed", "reset"}
    assert all(not talked.raw for talked in ends)
    assert talk(hasty.port, b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n").answers == (), "no plain HTTP"
    assert talk(hasty.port, request("GET", "/hello", close=True), tls=trusting()).only.status == 200
    for sock in silent:
        sock.close()
    assert hasty.peak_mib() < 200


@pytest.mark.slow
def test_handshakes_that_take_long_make_room_for_others(tmp_path: Path) -> None:
    certificate, key = make_pair(tmp_path, "one")
    limits: dict[str, Any] = {"connections": 20, "connections_per_address": 10, "refusals": 10, "header_seconds": 600}
    with served(tls_certificate=certificate, tls_key=key, **limits) as found, contextlib.ExitStack() as sockets:
        silent = [sockets.enter_context(connect(found.port, source=f"127.0.{5 + n % 3}.2")) for n in range(33)]
        assert [heard(sock).end in ("closed", "reset") for sock in silent[30:]] == [True] * 3, "11 of one address"
        time.sleep(1.2)  # GRACE_SECONDS: from now on an unfinished handshake is dropped first
        for number in range(10):
            answer = talk(found.port, request("GET", "/hello", close=True), source="127.0.99.2", tls=trusting()).only
            assert answer.status == 200, f"request {number}"
        assert heard(silent[0]).end in ("closed", "reset")


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    certificate, key = make_pair(tmp_path, "one")
    for wrong in (tmp_path / "none", tmp_path):
        with pytest.raises(InvalidError, match="cannot be used"):
            Certificates(certificate, wrong)
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(InvalidError, match="KEY_VALUES_MISMATCH|key values mismatch"):
        Certificates(certificate, make_pair(other, "two")[1])
    assert Certificates(certificate, key).reload() is False

"""Connections that are not trusted, handshakes that are broken off, and files that change while a program runs."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import urllib3

from diflow.common.clock import Clock
from diflow.common.errors import UnauthorizedError, UnavailableError
from diflow.kube.api import Cluster
from diflow.kube.kinds import WORKFLOW
from diflow.kube.refusals import PassingError, Target, unreachable
from tests.certificates import make_pair, server_context
from tests.kube.fakeapi import Answer, FakeApi, Request, serving, status


def write_kubeconfig(folder: Path, api: FakeApi, *, token: str = "first", current: str = "a") -> str:
    """A kubeconfig with the context `a` of this server, and another context."""
    path = folder / "kubeconfig"
    new = folder / ".kubeconfig"
    cluster = {"server": api.url, "certificate-authority": str(folder / "certificate")}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": current,
        "clusters": [
            {"name": "a", "cluster": cluster},
            {"name": "b", "cluster": {"server": "https://b.example"}},
        ],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": "u"}} for name in "ab"],
    }
    new.write_text(json.dumps(content))
    new.rename(path)
    return str(path)


@pytest.fixture(name="context")
def _context(tmp_path: Path) -> ssl.SSLContext:
    return server_context(tmp_path)


@pytest.fixture(name="api")
def _api(context: ssl.SSLContext) -> Iterator[FakeApi]:
    with serving(context) as found:
        yield found


def test_a_certificate_that_is_made_anew_is_read_again(api: FakeApi, context: ssl.SSLContext, tmp_path: Path) -> None:
    cluster = Cluster.connect(kubeconfig=write_kubeconfig(tmp_path, api))
    cluster.version()
    elsewhere = tmp_path / "new"
    elsewhere.mkdir()
    context.load_cert_chain(*make_pair(elsewhere, "renewed"))
    cluster._transport._pool.clear()  # as connections that are open go on with the old one
    with pytest.raises(UnavailableError, match="no trusted connection"):
        cluster.version()

    (elsewhere / "certificate").rename(tmp_path / "certificate")
    assert cluster.create(WORKFLOW, {"metadata": {"name": "a"}, "spec": {}})["metadata"]["name"] == "a"
    assert len(api.seen("POST")) == 1


def test_a_login_that_is_written_anew_is_read_again(api: FakeApi, tmp_path: Path) -> None:
    def knows(request: Request) -> Answer | None:
        return None if request.headers.get("Authorization") == "Bearer second" else status(401, "who is it")

    api.rule(knows)
    cluster = Cluster.connect(kubeconfig=write_kubeconfig(tmp_path, api))
    for _ in range(2):
        with pytest.raises(UnauthorizedError, match="log in again"):
            cluster.version()
    assert len(api.requests) == 2  # the file is the same: not sent again

    write_kubeconfig(tmp_path, api, token="second", current="b")
    cluster.version()
    assert (cluster.context, cluster.target.server) == ("a", api.url)


def test_a_file_that_is_half_written_or_names_another_server_changes_nothing(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_kubeconfig(tmp_path, api)
    api.rule(lambda _: status(401, "who is it"))
    cluster = Cluster.connect(kubeconfig=path)
    Path(path).write_text("clusters: [")
    with pytest.raises(UnauthorizedError):
        cluster.version()
    monkeypatch.setattr(api, "url", "https://127.0.0.1:1")
    write_kubeconfig(tmp_path, api, token="second")
    with pytest.raises(UnauthorizedError):
        cluster.version()
    assert {request.headers["Authorization"] for request in api.requests} == {"Bearer first"}


@contextmanager
def breaking_off(end: Callable[[socket.socket], object]) -> Iterator[tuple[str, list[int]]]:
    """(address, connections so far) of a server that breaks off each handshake."""
    met: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def run() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    met.append(1)
                    connection.recv(65536)
                    end(connection)

        threading.Thread(target=run, daemon=True).start()
        try:
            yield f"https://127.0.0.1:{listening.getsockname()[1]}", met
        finally:
            listening.shutdown(socket.SHUT_RDWR)


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


_ENDS = {
    "closed": lambda _: None,
    "reset": reset,
    "internal error": lambda connection: connection.sendall(bytes([21, 3, 3, 0, 2, 2, 80])),
    "in the middle of a record": lambda connection: connection.sendall(bytes([22, 3, 3, 0, 200, 2])),
}


@pytest.mark.parametrize("end", _ENDS.values(), ids=_ENDS)
def test_a_handshake_that_is_broken_off_is_a_passing_fault(end: Callable[[socket.socket], object]) -> None:
    with breaking_off(end) as (address, met):
        cluster = Cluster(
            Target(address, "/k"),
            transport=urllib3.PoolManager(cert_reqs="CERT_NONE"),
            clock=Clock(sleep=lambda _: None),
        )
        with pytest.raises(PassingError) as caught:
            cluster.version()
        assert "certificate-authority-data" not in str(caught.value)
        assert len(met) == 3
        with pytest.raises(PassingError):
            cluster.create(WORKFLOW, {"metadata": {"name": "a"}})
        assert len(met) == 4


def of_urllib3(text: str) -> Exception:
    return urllib3.exceptions.SSLError(ssl.SSLError(1, text))


@pytest.mark.parametrize(
    "text",
    [
        "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate (_ssl.c:1006)",
        "[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca (_ssl.c:2580)",
        "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required (_ssl.c:2580)",
        "[SSL: SSLV3_ALERT_BAD_CERTIFICATE] sslv3 alert bad certificate (_ssl.c:2580)",
        "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)",
        "[SSL: TLSV1_ALERT_PROTOCOL_VERSION] tlsv1 alert protocol version (_ssl.c:1006)",
    ],
)
def test_what_only_a_change_mends_is_not_tried_again(text: str) -> None:
    error = unreachable(Target("https://a", "/k"), of_urllib3(text))
    assert not isinstance(error, PassingError)
    assert str(error).startswith("no trusted connection to https://a (")


class BreakingPool:
    """Connections that break off in the middle of each request."""

    def __init__(self, folder: Path, api: FakeApi) -> None:
        self.folder, self.api, self.methods = folder, api, list[str]()

    def request(self, method: str, *_: object, **__: object) -> object:
        self.methods.append(method)
        write_kubeconfig(self.folder, self.api, token="second")  # as by chance at this moment
        raise of_urllib3("[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol (_ssl.c:1006)")


def test_a_write_that_may_have_been_carried_out_is_not_sent_again(api: FakeApi, tmp_path: Path) -> None:
    cluster = Cluster.connect(kubeconfig=write_kubeconfig(tmp_path, api))
    pool = cluster._transport._pool = BreakingPool(tmp_path, api)
    with pytest.raises(PassingError):
        cluster.create(WORKFLOW, {"metadata": {"name": "a"}, "spec": {}})
    assert (pool.methods, api.seen("POST")) == (["POST"], [])
    cluster._transport._pool = pool
    cluster.version()
    assert pool.methods == ["POST", "GET"]

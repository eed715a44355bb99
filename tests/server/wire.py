"""Raw sockets for tests from outside: bytes are sent as given, and responses are parsed."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One response. `fields` has the names in lower case."""

    status: int
    fields: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Talk:
    """All bytes received on a connection, and how it ended: "closed", "reset", or "open" (timed out)."""

    answers: tuple[Answer, ...]
    end: str
    raw: bytes = b""

    @property
    def only(self) -> Answer:
        (answer,) = self.answers
        return answer


def request(
    method: str, path: str, body: bytes | None = None, *, fields: Sequence[str] = (), close: bool = False
) -> bytes:
    """A request as bytes."""
    lines = [f"{method} {path} HTTP/1.1", "Host: test", *fields]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    if close:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


def connect(port: int, *, source: str = "", tls: ssl.SSLContext | None = None) -> socket.socket:
    """A connection to this machine."""
    sock = socket.create_connection(
        ("127.0.0.1", port), timeout=PATIENCE_SECONDS, source_address=(source, 0) if source else None
    )
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return tls.wrap_socket(sock, server_hostname="localhost") if tls else sock


def talk(port: int, *parts: bytes, source: str = "", tls: ssl.SSLContext | None = None) -> Talk:
    """Send these parts, and read until the server ends the connection."""
    with connect(port, source=source, tls=tls) as sock:
        try:
            for part in parts:
                sock.sendall(part)
        except OSError:
            pass  # it may refuse before all is sent
        return heard(sock)


def heard(sock: socket.socket) -> Talk:
    """Read until the end."""
    raw, end = b"", "closed"
    try:
        while data := sock.recv(1 << 16):
            raw += data
    except TimeoutError:
        end = "open"
    except OSError:
        end = "reset"
    return Talk(tuple(_answers(raw)), end, raw)


def one(sock: socket.socket) -> Answer:
    """The next response on a connection that stays open."""
    raw = b""
    while True:
        found = _answers(raw)
        if found:
            return found[0]
        data = sock.recv(1 << 16)
        if not data:
            raise ConnectionError(f"the connection ended after {raw!r}")
        raw += data


def get(port: int, path: str, *, source: str = "", fields: Sequence[str] = ()) -> Answer:
    """One GET on a connection of its own."""
    return talk(port, request("GET", path, fields=fields, close=True), source=source).only


def _answers(raw: bytes) -> list[Answer]:
    """The complete responses in these bytes."""
    out: list[Answer] = []
    while raw:
        head, found, rest = raw.partition(b"\r\n\r\n")
        if not found:
            break
        line, *lines = head.decode("latin-1").split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (text.partition(":") for text in lines)}
        status = int(line.split()[1])
        if "transfer-encoding" in fields:
            body, rest = _unchunked(rest)
            if rest is None:
                break
        else:
            length = int(fields.get("content-length", 0))
            if len(rest) < length:
                break
            body, rest = rest[:length], rest[length:]
        raw = rest
        if status != 100:
            out.append(Answer(status, fields, body))
    return out


def _unchunked(raw: bytes) -> tuple[bytes, Any]:
    body = b""
    while True:
        line, found, raw = raw.partition(b"\r\n")
        if not found:
            return b"", None
        size = int(line, 16)
        if len(raw) < size + 2:
            return b"", None
        body, raw = body + raw[:size], raw[size + 2 :]
        if not size:
            return body, raw

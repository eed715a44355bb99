"""The response of a request that is refused on the connection, before any handler runs."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from http import HTTPStatus
from typing import Final

_RETRY_AFTER_SECONDS: Final = 1
_METHODS: Final = b"DELETE, GET, HEAD, POST, PUT"


def refusal(status: int, why: str, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A whole response in the envelope of the API, with a request id and the server's `headers`. It closes the
    connection.
    """
    body = json.dumps({"success": False, "code": 1, "message": why, "data": None}).encode()
    fields = [
        *headers,
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-request-id", secrets.token_hex(8).encode()),
        *([(b"retry-after", str(_RETRY_AFTER_SECONDS).encode())] if status == 503 else []),
        *([(b"allow", _METHODS)] if status == 405 else []),
        (b"connection", b"close"),
    ]
    head = b"".join(b"%s: %s\r\n" % field for field in fields)
    line = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
    return line + head + b"\r\n" + body

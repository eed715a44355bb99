"""A small HTTP server with scripted answers, in place of diflow's, for tests of the client."""

from __future__ import annotations

import json
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

PATIENCE_SECONDS = 60.0


class Seen(NamedTuple):
    """A received request."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True)
class Answer:
    """The answer to one request. `before` is called first; `cut` more bytes are promised and not sent."""

    status: int = 200
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    before: Callable[[], object] | None = None
    cut: int = 0


def envelope(data: Any = None, *, success: bool = True, message: str = "done") -> bytes:
    """A body as diflow's server makes them."""
    return json.dumps({"success": success, "code": 0 if success else 1, "message": message, "data": data}).encode()


def failed(status: int, message: str = "not now", data: Any = None, **headers: str) -> Answer:
    """An error in an envelope; `retry_after` becomes Retry-After."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, envelope(data, success=False, message=message), named)


class FakeServer:
    """Answers from `answers` in their order, and then with success and `data`."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.seen: list[Seen] = []
        self.answers: deque[Answer] = deque()
        self.data: Any = None
        self.url = ""

    def will(self, *answers: Answer) -> None:
        with self.changed:
            self.answers.extend(answers)

    def until(self, ready: Callable[[list[Seen]], object]) -> list[Seen]:
        """Wait until the received requests meet the condition."""
        with self.changed:
            assert self.changed.wait_for(lambda: ready(self.seen), PATIENCE_SECONDS), self.seen
            return list(self.seen)

    def take(self, seen: Seen) -> Answer:
        with self.changed:
            self.seen.append(seen)
            self.changed.notify_all()
            return self.answers.popleft() if self.answers else Answer(body=envelope(self.data))


@contextmanager
def serving(context: ssl.SSLContext | None = None, *, fake: FakeServer | None = None) -> Iterator[FakeServer]:
    """A server on a free port of this machine, with TLS if there is a context for it."""
    answering = fake or FakeServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_arguments: Any) -> None:
            """Requests are seen by the tests."""

        def _serve(self) -> None:
            text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = answering.take(Seen(self.command, self.path, headers, json.loads(text) if text else None))
            if answer.before is not None:
                answer.before()
            body = envelope() if answer.body is None else answer.body
            try:
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body) + answer.cut))
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                self.close_connection = True  # it has disconnected
            if answer.cut:
                self.close_connection = True

        do_GET = do_POST = do_DELETE = _serve  # noqa: N815

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    answering.url = f"{'https' if context else 'http'}://127.0.0.1:{server.server_address[1]}"
    try:
        yield answering
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE_SECONDS)

"""The status page alone, over objects that a test makes up: behind a client, or on a real socket for a browser."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import uvicorn
from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send

from diflow.common.clock import Clock
from diflow.common.errors import UnavailableError
from diflow.server.page import CacheSnapshot, Freshness, Permissions, Visitor, routes
from tests.server.page_scene import NOW, scene

PATIENCE_SECONDS = 60.0


def token(name: str, *, expires: float = NOW + 3600) -> str:
    """A token as Kubernetes writes them, with a signature that is not checked here."""

    def part(data: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(data).encode()).decode().rstrip("=")

    return f"{part({'alg': 'RS256'})}.{part({'sub': name, 'exp': int(expires)})}.c2lnbmVk"


GOOD = token("maria")
NARROW = token("rl-only")


@dataclass
class Stage:
    """The page's inputs. `down`: every request is answered with 500; `unsure`: tokens cannot be reviewed."""

    cluster: CacheSnapshot = field(default_factory=scene)
    freshness: Freshness = field(default_factory=Freshness)
    now: float = NOW
    moment: float = 0.0
    down: bool = False
    unsure: bool = False
    visitors: dict[str, Visitor] = field(
        default_factory=lambda: {
            GOOD: Visitor("system:serviceaccount:vision:maria", Permissions(None, nodes=True)),
            NARROW: Visitor("rl-only", Permissions(frozenset({"rl"}))),
        }
    )
    requests: list[str] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    async def visitor(self, given: str, _: str) -> Visitor | None:
        if self.unsure:
            raise UnavailableError("no answer")
        return self.visitors.get(given)

    def clock(self) -> float:
        """Each call is a second later, so that no page is reused."""
        self.moment += 1.0
        return self.moment

    def app(self) -> Starlette:
        """The page's routes, and nothing else."""
        return Starlette(
            routes=routes(
                visitor_of=self.visitor,
                state=lambda: self.cluster,
                freshness=lambda: self.freshness,
                clock=Clock(monotonic=self.clock, wall=lambda: self.now),
                every_seconds=0.4,
            )
        )

    async def asgi(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The page as an ASGI application."""
        if scope["type"] == "http":
            self.requests.append(f"{scope['method']} {scope['path']}")
            if self.down:
                await send({"type": "http.response.start", "status": 500, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
        await self._app(scope, receive, send)

    def __post_init__(self) -> None:
        self._app = self.app()


@contextmanager
def on_a_socket(stage: Stage) -> Iterator[Stage]:
    """The page on a free port of this machine."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    stage.port = listening.getsockname()[1]
    config = uvicorn.Config(
        stage.asgi, interface="asgi3", loop="asyncio", ws="none", lifespan="off", log_level="error", access_log=False,
        timeout_graceful_shutdown=2,
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        until = time.monotonic() + PATIENCE_SECONDS
        while not server.started:
            assert time.monotonic() < until, "the page was not served in time"
            time.sleep(0.02)
        yield stage
    finally:
        server.should_exit = True
        thread.join(PATIENCE_SECONDS)
        listening.close()

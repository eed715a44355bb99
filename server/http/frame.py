"""What is around every request: its id, its line in the log, and an envelope for whatever goes wrong.

Nothing of a request's body and no token ever comes into the log. A trace-back goes there, and to no caller.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from diflow.server.http import envelope
from diflow.server.http.errors import ApiError, ClientGoneError, unavailable
from diflow.server.http.exchange import Exchange

REQUEST_ID: Final = b"x-request-id"
ROUTINE: Final = ("/profilings", "/hints/{namespace}/{name}")
_SANE: Final = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
_GONE: Final = 499  # nginx's number for a caller who hung up; it is only counted

log = structlog.get_logger("diflow.server")


@dataclass(frozen=True, slots=True)
class Answered:
    """One request that is over, for who counts them. `route` is its pattern, "" if no route took it."""

    method: str
    route: str
    status: int
    seconds: float


class Frame:
    """ASGI middleware. `limit` seconds may pass until a route has answered (but for those that wait on purpose)."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        on_answer: Callable[[Answered], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._on_answer = on_answer
        self._clock = clock
        self._prefix = os.urandom(4).hex().encode()
        self._numbers = itertools.count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = self._clock()
        request_id = self._id(scope)
        state = scope.setdefault("state", {})
        state["request_id"] = request_id.decode()
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (REQUEST_ID, request_id)]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except ClientGoneError:
            status = status or _GONE
        except ApiError as error:
            if status:
                raise
            await _fail(scope, receive, sending, error)
        except asyncio.CancelledError:
            status = status or _GONE
            raise
        except Exception as error:
            log.error(
                "failed",
                id=request_id.decode(),
                method=scope["method"],
                path=_shown(scope),
                error=type(error).__name__,
                trace="".join(traceback.format_tb(error.__traceback__, limit=-6)),
            )
            if status:
                raise
            await _fail(scope, receive, sending, ApiError(500, "something is wrong in the server; its log has more"))
        finally:
            self._tell(scope, request_id, status, self._clock() - began)

    def _id(self, scope: Scope) -> bytes:
        """The caller's own id if it is a sane one, else a new one."""
        for name, value in scope["headers"]:
            if name == REQUEST_ID and _SANE.fullmatch(value):
                return bytes(value)
        return b"%s-%x" % (self._prefix, next(self._numbers))

    def _tell(self, scope: Scope, request_id: bytes, status: int, seconds: float) -> None:
        route = scope.get("state", {}).get("route", "")
        self._on_answer(Answered(scope["method"], route, status, seconds))
        # What comes all the time and changes nothing that is asked for is for who looks for a fault.
        is_routine = status < 400 and (scope["method"] in ("GET", "HEAD") or route.endswith(ROUTINE))
        line: dict[str, Any] = {
            "id": request_id.decode(),
            "method": scope["method"],
            "path": _shown(scope),
            "status": status,
            "seconds": round(seconds, 4),
        }
        if caller := scope.get("state", {}).get("caller"):
            line["caller"] = caller
        if status >= 500:
            log.warning("request", **line)
        elif is_routine:
            log.debug("request", **line)
        else:
            log.info("request", **line)


def _shown(scope: Scope) -> str:
    """The path without its query, as much of it as a line of the log bears."""
    return envelope.plain(scope["path"])[:200]


async def _fail(scope: Scope, receive: Receive, send: Send, error: ApiError) -> None:
    exchange = Exchange(scope, receive, send)
    await exchange.answer(envelope.failure(error.message, error.data), status=error.status, headers=error.headers)


def late() -> ApiError:
    """503: it took too long."""
    return unavailable("the answer took too long")

"""Middleware around every request: a request id, a line in the log, and an envelope for every failure.

The log never contains a body or a token. Tracebacks go to the log, never to callers.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import re
import traceback
from collections.abc import Callable, Container
from typing import Any, Final

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from diflow.common.clock import SYSTEM, Clock
from diflow.server.http import envelope
from diflow.server.http.errors import ApiError, ClientGoneError
from diflow.server.http.exchange import Exchange
from diflow.server.telemetry import Answered

REQUEST_ID: Final = b"x-request-id"
_WELL_FORMED: Final = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
_GONE: Final = 499  # nginx's status for a client that disconnected; only for the counters

log = structlog.get_logger("diflow.server")


class Frame:
    """ASGI middleware. `on_answer` is called after each request.

    `routine`: the routes whose successful requests are logged for debugging alone, as those that read are.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        on_answer: Callable[[Answered], None] = lambda _: None,
        routine: Container[str] = (),
        clock: Clock = SYSTEM,
    ) -> None:
        self._app = app
        self._on_answer = on_answer
        self._routine = routine
        self._clock = clock
        self._prefix = os.urandom(4).hex().encode()
        self._numbers = itertools.count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = self._clock.monotonic()
        request_id = self._id(scope)
        scope.setdefault("state", {})
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
            await _fail(scope, receive, sending, ApiError(500, "internal error: see the log of the server"))
        finally:
            self._report(scope, request_id, status, self._clock.monotonic() - began)

    def _id(self, scope: Scope) -> bytes:
        """The caller's X-Request-Id if it is well-formed, else a new one."""
        for name, value in scope["headers"]:
            if name == REQUEST_ID and _WELL_FORMED.fullmatch(value):
                return bytes(value)
        return b"%s-%x" % (self._prefix, next(self._numbers))

    def _report(self, scope: Scope, request_id: bytes, status: int, seconds: float) -> None:
        route = scope.get("state", {}).get("route", "")
        self._on_answer(Answered(scope["method"], route, status, seconds))
        is_routine = status < 400 and (scope["method"] in ("GET", "HEAD") or route in self._routine)
        if is_routine and not log.is_enabled_for(logging.DEBUG):
            return
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
    """The path without its query, shortened for a log line."""
    return envelope.plain(scope["path"])[:200]


async def _fail(scope: Scope, receive: Receive, send: Send, error: ApiError) -> None:
    exchange = Exchange(scope, receive, send)
    await exchange.answer(envelope.failure(error.message, error.data), status=error.status, headers=error.headers)

"""One request and its response, directly on ASGI: starlette's Request costs as much as the whole response does."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar

from starlette.types import Message, Receive, Scope, Send

from diflow.server.http import envelope, strictjson
from diflow.server.http.errors import ApiError, ClientGoneError, bad_request, unauthorized

Result = TypeVar("Result")

_PREFIX: Final = b"bearer "
_NO_STORE: Final = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
_JSON_HEADERS: Final = ((b"content-type", envelope.JSON), *_NO_STORE)


class Exchange:
    """A request as its handler sees it. `headers` have lower-case names; of a repeated one the last counts."""

    __slots__ = ("_receive", "_send", "headers", "method", "parameters", "scope")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self._receive = receive
        self._send = send
        self.method: str = scope["method"]
        self.parameters: Mapping[str, str] = scope.get("path_params") or {}
        self.headers: dict[bytes, bytes] = dict(scope["headers"])

    @property
    def address(self) -> str:
        """The address of the connection's peer. Headers of proxies are not trusted."""
        host = (self.scope.get("client") or ("",))[0]
        if ":" in host:  # an IPv4 address on a socket for both kinds
            try:
                mapped = ipaddress.IPv6Address(host).ipv4_mapped
            except ValueError:
                return str(host)
            return str(mapped or host)
        return str(host)

    @property
    def token(self) -> str:
        """The bearer token, "" if none was sent. Raises ApiError (401) for another authentication scheme."""
        given = self.headers.get(b"authorization")
        if not given:
            return ""
        if given[:7].lower() != _PREFIX:
            raise unauthorized("log in with a token: Authorization: Bearer ...")
        return given[7:].strip().decode("latin-1")

    def header(self, name: bytes) -> str:
        """A header's value, or ""."""
        return self.headers.get(name, b"").decode("latin-1")

    async def json(self, limit: int, *, constants: bool = False) -> Any:
        """The parsed body. Raises ApiError (400, 413, 415), ClientGoneError. `constants`: as in `strictjson.parse`."""
        kind = self.headers.get(b"content-type", envelope.JSON).decode("latin-1").lower()
        essence, _, rest = kind.partition(";")
        charset = rest.partition("charset=")[2].strip(' "')
        if essence.strip() != "application/json" or charset not in ("", "utf-8", "utf8", "us-ascii"):
            raise ApiError(415, "the body must be JSON in UTF-8: Content-Type: application/json")
        if self.headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise ApiError(415, "the body must not be compressed")
        return strictjson.parse(await self.body(limit), constants=constants)

    async def body(self, limit: int) -> bytes:
        """The body, of at most `limit` bytes, declared or streamed. Raises ApiError (413) and ClientGoneError."""
        declared = self.headers.get(b"content-length", b"")
        if declared and (not declared.isdigit() or len(declared) > 15):
            raise bad_request("the Content-Length is not a number")
        if declared and int(declared) > limit:
            raise _too_large(limit)
        parts: list[bytes] = []
        size = 0
        while True:
            message: Message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            part = message.get("body", b"")
            size += len(part)
            if size > limit:
                raise _too_large(limit)
            parts.append(part)
            if not message.get("more_body"):
                return b"".join(parts)

    async def unless_gone(self, wait: Coroutine[Any, Any, Result]) -> Result:
        """Await `wait`, unless the client disconnects first (ClientGoneError). The request's body is discarded."""
        waiting = asyncio.ensure_future(wait)
        gone = asyncio.ensure_future(self._disconnected())
        try:
            await asyncio.wait([waiting, gone], return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise ClientGoneError
            return waiting.result()
        finally:
            waiting.cancel()
            gone.cancel()

    async def _disconnected(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def answer(
        self,
        body: bytes,
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        content_type: bytes = envelope.JSON,
    ) -> None:
        """Send the response; to HEAD, without its body."""
        base = _JSON_HEADERS if content_type is envelope.JSON else ((b"content-type", content_type), *_NO_STORE)
        more = [(k.lower().encode(), v.encode("latin-1", "replace")) for k, v in headers.items()] if headers else []
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(b"content-length", str(len(body)).encode()), *base, *more],
            }
        )
        await self._send({"type": "http.response.body", "body": b"" if self.method == "HEAD" else body})


Handler = Callable[[Exchange], Awaitable[None]]


def _too_large(limit: int) -> ApiError:
    # The rest of the body is not read, so the connection cannot be reused.
    return ApiError(413, f"the body is larger than {limit} bytes", headers={"Connection": "close"})

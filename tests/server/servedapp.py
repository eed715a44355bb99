"""`python -m tests.server.servedapp`: a small application under `diflow.server.http.serving`, for tests from outside.

It prints how it ended. Each route shows one thing that a handler may do.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from diflow.daemon.logs import configure_log
from diflow.server.http.serving import serve
from diflow.server.settings import server_settings
from diflow.server.telemetry import Telemetry


async def hello(_: Request) -> Response:
    return PlainTextResponse("hello")


async def echo(request: Request) -> Response:
    return JSONResponse({"bytes": len(await request.body()), "client": request.client.host if request.client else ""})


async def early(_: Request) -> Response:
    """A response that does not wait for the body."""
    return PlainTextResponse("no", 401)


async def slow(request: Request) -> Response:
    await asyncio.sleep(float(request.query_params.get("seconds", "3600")))
    return PlainTextResponse("slow")


async def broken(_: Request) -> Response:
    raise ZeroDivisionError("a secret of the handler")


async def large(_: Request) -> Response:
    return Response(b"x" * 8_000_000)


def main() -> int:
    configure_log("json", level="info")
    flushed: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.sleep(0.05)
        flushed.append("flushed")

    app = Starlette(
        routes=[
            Route("/hello", hello),
            Route("/echo", echo, methods=["POST"]),
            Route("/early", early, methods=["POST"]),
            Route("/slow", slow, methods=["GET", "POST"]),
            Route("/discover/{name}", slow),
            Route("/broken", broken),
            Route("/large", large),
        ],
        lifespan=lifespan,
    )

    code = serve(app, server_settings(), telemetry=Telemetry())
    print(json.dumps({"code": code, "flushed": flushed}), flush=True)  # noqa: T201
    return code


if __name__ == "__main__":
    sys.exit(main())

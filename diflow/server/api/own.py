"""diflow's own routes: health, and the OpenAPI document."""

from __future__ import annotations

from typing import Any

from diflow.server.api.core import Core
from diflow.server.api.routes import DONE, Answer, Routes, operation
from diflow.server.http import envelope
from diflow.server.http.errors import unavailable
from diflow.server.http.exchange import Exchange


class Own(Routes):
    """The handlers. `document`: the OpenAPI document."""

    tag, about = "diflow", "Health, and this document."
    needs_token = False

    def __init__(self, core: Core, document: bytes) -> None:
        super().__init__(core)
        self._document = document

    @operation("GET", "/healthz", answer=Answer(..., description="It runs. The body is empty."), errors=(405,))
    async def healthz(self, exchange: Exchange) -> None:
        """Whether the server runs."""
        await exchange.answer(b"", content_type=b"text/plain; charset=utf-8")

    @operation("GET", "/readyz", answer=Answer(DONE.kind, DONE.name, "Ready."), errors=(405, 503))
    async def readyz(self, exchange: Exchange) -> None:
        """Whether requests can be answered."""
        good, _ = self._core.readiness()  # the reason is for administrators: in the log, and on the metrics port
        if not good:
            raise unavailable("the server is not ready", after_seconds=1.0)
        await exchange.answer(envelope.success("ready"))

    @operation("GET", "/openapi.json", answer=Answer(dict[str, Any], description="The document."), errors=(405,))
    async def openapi(self, exchange: Exchange) -> None:
        """This document."""
        await exchange.answer(self._document)

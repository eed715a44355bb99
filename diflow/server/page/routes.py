"""The page's routes. They do not know Kubernetes: callables return the visitor of a token and the state of the caches.

GET  /          the page; without a token the page to sign in with (401)
GET  /board     the part of the page that changes, with an entity tag
POST /sign-in   a form with `token`: sets the cookie
POST /sign-out  removes the cookie
"""

from __future__ import annotations

import gzip
import hashlib
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from diflow.common.clock import SYSTEM, Clock
from diflow.common.errors import UnavailableError
from diflow.server.http.errors import ApiError
from diflow.server.http.parts import Parts
from diflow.server.http.pool import Pool
from diflow.server.page import render, session
from diflow.server.page.board import CacheSnapshot, Permissions, Query, board
from diflow.server.page.render import Freshness, content

_STEP_SECONDS: Final = 5.0
"""Ages are computed as of the last full five seconds, so that an unchanged page keeps its entity tag for a while."""
_RETRY_SECONDS: Final = 5
_SAME_SECONDS: Final = 1.0
"""A full page takes some 30 ms to render: visitors with the same permissions and query share it for so long."""
_SAME_KEPT: Final = 32
_MOST_WAITING: Final = 256
_PAGES_PER_SECOND: Final = 10.0
_PAGES_AT_ONCE: Final = 30.0
_SMALL: Final = 1024  # bytes: smaller pages are not compressed


@dataclass(frozen=True, slots=True)
class Visitor:
    """The user of a token: the name that the cluster knows, and the permissions. `tenant`: who bears the cost."""

    name: str
    permissions: Permissions
    tenant: str = ""


VisitorOf = Callable[[str, str], Awaitable[Visitor | None]]
"""(token, the caller's address) → the visitor, None if the token is not valid.

Raises UnavailableError if the API server cannot be reached.
"""


def routes(
    *,
    visitor_of: VisitorOf,
    state: Callable[[], CacheSnapshot],
    freshness: Callable[[], Freshness],
    clock: Clock = SYSTEM,
    argo_url: str = "",
    every_seconds: float = 3.0,
) -> list[Route]:
    """The routes of the status page, to be mounted at the root.

    `state` and `freshness` are called in a worker thread. `argo_url` is the address of the Argo UI for links,
    or "". A visible page requests `/board` every `every_seconds`.
    """
    door = _Door(
        visitor_of=visitor_of,
        state=state,
        freshness=freshness,
        clock=clock,
        argo_url=argo_url,
        every_seconds=every_seconds,
        lately=Parts(_SAME_KEPT, timer=clock.monotonic),
        # One at a time, so that the API's requests have the other processors.
        pool=Pool("page", threads=1, waiting=_MOST_WAITING, rate=_PAGES_PER_SECOND, burst=_PAGES_AT_ONCE, clock=clock),
    )
    return [
        Route("/", door.page, methods=["GET"], name="page", include_in_schema=False),
        Route("/board", door.board, methods=["GET"], name="board", include_in_schema=False),
        Route("/sign-in", door.sign_in, methods=["POST"], name="sign-in", include_in_schema=False),
        Route("/sign-in", door.page, methods=["GET"], name="sign-in-page", include_in_schema=False),
        Route("/sign-out", door.sign_out, methods=["POST"], name="sign-out", include_in_schema=False),
    ]


@dataclass(frozen=True, slots=True)
class _Shown:
    body: Markup
    tag: str
    freshness: Freshness

    @property
    def status(self) -> int:
        return 200 if self.freshness.is_synced and not self.freshness.is_stale else 503


@dataclass(frozen=True, slots=True)
class _Door:
    visitor_of: VisitorOf
    state: Callable[[], CacheSnapshot]
    freshness: Callable[[], Freshness]
    clock: Clock
    argo_url: str
    every_seconds: float
    lately: Parts[tuple[Permissions, Query], _Shown]
    pool: Pool

    async def page(self, request: Request) -> Response:
        nonce = secrets.token_urlsafe(18)
        token = session.token_of(request)
        try:
            visitor = await self._visitor(request, token)
            if visitor is None:
                return _signed_out(request, nonce, problem="Your sign-in has ended." if token else "")
            if request.url.path.endswith("/sign-in"):
                return _guarded(RedirectResponse("./", status_code=303))
            shown = await self._shown(visitor, request)
        except UnavailableError:
            return _unavailable(nonce)
        html = render.page(
            shown.body,
            tag=shown.tag,
            nonce=nonce,
            name=visitor.name,
            is_old=shown.status != 200,
            every_seconds=self.every_seconds,
        )
        return _guarded(_answer(request, html, status=shown.status), nonce=nonce)

    async def board(self, request: Request) -> Response:
        token = session.token_of(request)
        try:
            visitor = await self._visitor(request, token)
            if visitor is None:
                return _guarded(Response(status_code=401, headers={"WWW-Authenticate": "Bearer"}))
            shown = await self._shown(visitor, request)
        except UnavailableError:
            return _guarded(Response(status_code=503, headers={"Retry-After": str(_RETRY_SECONDS)}))
        headers = {"ETag": shown.tag, "X-Diflow-Board": "1"}
        if shown.status == 200 and shown.tag in _tags(request):
            return _guarded(Response(status_code=304, headers=headers))
        response = _answer(request, str(shown.body), status=shown.status)
        response.headers.update(headers)
        return _guarded(response)

    async def sign_in(self, request: Request) -> Response:
        nonce = secrets.token_urlsafe(18)
        if why := session.why_foreign(request):
            return _refused(nonce, why)
        try:
            token = await session.sent_token(request)
        except session.TooLargeError:
            return _signed_out(request, nonce, problem="That is longer than a token may be.", status=413)
        try:
            visitor = await self._visitor(request, token)
        except UnavailableError:
            return _unavailable(nonce)
        if visitor is None:
            return _signed_out(request, nonce, problem="The cluster does not know this token, or it has expired.")
        response = RedirectResponse("./", status_code=303)
        session.keep(response, request, token, now=self.clock.wall())
        return _guarded(response)

    async def sign_out(self, request: Request) -> Response:
        if why := session.why_foreign(request):
            return _refused(secrets.token_urlsafe(18), why)
        response = RedirectResponse("./", status_code=303)
        session.forget(response, request)
        return _guarded(response)

    async def _visitor(self, request: Request, token: str) -> Visitor | None:
        # For the log and the metrics of the middleware around these routes.
        state = request.scope.setdefault("state", {})
        state["route"] = request.url.path
        address = request.client.host if request.client else ""
        visitor = await self.visitor_of(token, address) if token else None
        if visitor is not None:
            state["caller"] = visitor.name
        return visitor

    async def _shown(self, visitor: Visitor, request: Request) -> _Shown:
        """The page for this visitor, or the one that was just rendered for the same permissions and query. Raises
        UnavailableError if too many pages wait."""
        query = Query.parse(request.query_params)
        key = (visitor.permissions, query)
        before = self.lately.get(key)
        if before is None:
            try:
                before = await self.pool.run(lambda: self._show(visitor, query), tenant=visitor.tenant)
            except ApiError as error:
                raise UnavailableError(error.message) from None
            self.lately.keep(key, before, tenant=visitor.tenant, seconds=_SAME_SECONDS)
        return before

    def _show(self, visitor: Visitor, query: Query) -> _Shown:
        freshness = self.freshness()
        at = self.clock.wall() // _STEP_SECONDS * _STEP_SECONDS
        body = content(board(self.state(), visitor.permissions, query), freshness, now=at, argo_url=self.argo_url)
        tag = f'"{hashlib.sha256(body.encode()).hexdigest()[:32]}"'
        return _Shown(body, tag, freshness)


def _tags(request: Request) -> set[str]:
    given = request.headers.get("if-none-match", "")
    # A proxy that compresses makes the tag weak; the content is the same.
    return {tag.strip().removeprefix("W/") for tag in given.split(",")}


def _answer(request: Request, html: str, *, status: int = 200) -> Response:
    body = html.encode()
    headers = {"Vary": "Accept-Encoding, Cookie, Authorization"}
    if status == 503:
        headers["Retry-After"] = str(_RETRY_SECONDS)
    if len(body) > _SMALL and "gzip" in request.headers.get("accept-encoding", ""):
        body = gzip.compress(body, compresslevel=4, mtime=0)
        headers["Content-Encoding"] = "gzip"
    return HTMLResponse(body, status_code=status, headers=headers)


def _signed_out(request: Request, nonce: str, *, problem: str = "", status: int = 401) -> Response:
    is_open = request.url.scheme != "https" and request.url.hostname not in ("localhost", "127.0.0.1", "::1")
    response = HTMLResponse(
        render.sign_in(nonce=nonce, problem=problem, is_open=is_open),
        status_code=status,
        headers={"WWW-Authenticate": "Bearer"} if status == 401 else None,
    )
    if session.cookie_name(request) in request.cookies:
        session.forget(response, request)
    return _guarded(response, nonce=nonce)


def _refused(nonce: str, why: str) -> Response:
    return _guarded(
        HTMLResponse(render.message("Refused", why, nonce=nonce, reload=False), status_code=403), nonce=nonce
    )


def _unavailable(nonce: str) -> Response:
    words = "The cluster cannot be asked who you are. This page tries again by itself."
    response = HTMLResponse(render.message("Not now", words, nonce=nonce), status_code=503)
    response.headers["Retry-After"] = str(_RETRY_SECONDS)
    return _guarded(response, nonce=nonce)


def _guarded(response: Response, *, nonce: str = "") -> Response:
    """Add the security headers."""
    allowed = f"style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; " if nonce else ""
    response.headers.update(
        {
            "Content-Security-Policy": (
                f"default-src 'none'; {allowed}connect-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; "
                "frame-ancestors 'none'"
            ),
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            # Not `no-referrer`: with that, browsers send `Origin: null` with this page's own forms.
            "Referrer-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-store",
        }
    )
    return response

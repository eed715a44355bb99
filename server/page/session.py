"""Who looks at the page: a token that a browser keeps in a cookie, since it cannot send one by itself.

The cookie holds the token and nothing is kept here, so any replica of the server can answer. It is not readable by
scripts, is never sent from another site's page, and the API does not take it: only the page does.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qs, urlsplit

from starlette.requests import Request
from starlette.responses import Response

from diflow.server.identity import claims

COOKIE: Final = "diflow-token"
LONGEST_TOKEN: Final = 3800
"""Characters. Browsers drop a cookie of more than 4,096 bytes with its name and attributes, without a word."""
_LONGEST_FORM: Final = 3 * LONGEST_TOKEN  # each character may be sent as three
_LONGEST_SECONDS: Final = 12 * 3600
_TOKEN: Final = re.compile(rf"[A-Za-z0-9._~+/=-]{{1,{LONGEST_TOKEN}}}")


class TooLargeError(Exception):
    """More was sent than any token has."""


def token_of(request: Request) -> str:
    """The token that came with a request, "" if there is none that could be one.

    An Authorization header goes first, for those who are no browser.
    """
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return well_formed(given)
    return well_formed(request.cookies.get(cookie_name(request), ""))


def cookie_name(request: Request) -> str:
    """With TLS, the name with which browsers promise that no other host and no open connection has set it."""
    return f"__Host-{COOKIE}" if request.url.scheme == "https" else COOKIE


def keep(response: Response, request: Request, token: str, *, now: float) -> None:
    """Let the browser keep the token for as long as it holds, and at most for a working day."""
    response.set_cookie(
        cookie_name(request), token, max_age=lifetime(token, now=now), path="/", httponly=True, samesite="strict",
        secure=request.url.scheme == "https",
    )  # fmt: skip


def forget(response: Response, request: Request) -> None:
    """Let the browser forget the token."""
    response.delete_cookie(
        cookie_name(request), path="/", httponly=True, samesite="strict", secure=request.url.scheme == "https"
    )


def lifetime(token: str, *, now: float) -> int:
    """How many seconds the token is worth keeping. What it says of its end is only read here: the cluster checks it."""
    end = claims(token).expires
    if end is None:
        return _LONGEST_SECONDS
    return max(0, min(_LONGEST_SECONDS, int(end - now)))


def is_own(request: Request) -> bool:
    """The request was sent by this very page, as browsers say, and not by another site's."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    # Browsers leave that header out where the connection is not encrypted; the origin of a POST they always say.
    origin = urlsplit(request.headers.get("origin", ""))
    return origin.scheme in ("http", "https") and origin.netloc.lower() == request.headers.get("host", "").lower()


async def sent_token(request: Request) -> str:
    """The token in a form that was sent, "" if there is none that could be one. Raises TooLargeError."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        return ""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LONGEST_FORM:
            raise TooLargeError
    try:
        fields = parse_qs(bytes(body).decode("ascii"), max_num_fields=8)
    except ValueError:
        return ""
    return well_formed("".join(fields.get("token", [""])[0].split()))


def well_formed(text: str) -> str:
    """The text, if it may be a token; else ""."""
    return text if _TOKEN.fullmatch(text) else ""

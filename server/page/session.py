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

from diflow.server.api.identity import claims

COOKIE: Final = "diflow-token"
LONGEST_TOKEN: Final = 3800
"""Characters. Browsers drop a cookie of more than 4,096 bytes with its name and attributes, without a word."""
_LONGEST_FORM: Final = 3 * LONGEST_TOKEN  # each character may be sent as three
_LONGEST_SECONDS: Final = 12 * 3600
_HERE: Final = "Open this page at its own address, and sign in there."
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


def why_foreign(request: Request) -> str:
    """Why a form is not taken as sent by this very page, and what to do; "" if it is, as browsers say.

    Browsers leave Sec-Fetch-Site out where the connection is not encrypted, and say the Origin of a POST. Older ones,
    and some behind a proxy, say only the Referer. What says nothing of these is no browser, or one that was made
    silent: another site's page cannot be told from this one then.
    """
    site = request.headers.get("sec-fetch-site")
    host = request.headers.get("host", "").lower()
    if site is not None:
        return "" if site in ("same-origin", "none") else f"The form was sent by another site\u2019s page. {_HERE}"
    said = next((request.headers[name] for name in ("origin", "referer") if request.headers.get(name)), "")
    if not said:
        return (
            "The request does not say which page sent it: it has no Sec-Fetch-Site, Origin or Referer. Every browser "
            "sends one of them, so a proxy or an extension may have removed it: let it pass. A script need not sign "
            "in: it sends Authorization: Bearer TOKEN with each request."
        )
    if said == "null":
        return (
            "The browser does not say which page sent the form (Origin: null), as for a page in a closed frame, from a "
            f"file, or behind a redirect. {_HERE}"
        )
    sender = _netloc(said)
    if sender and sender == host:
        return ""
    return (
        f"The form was sent by a page of {sender[:100] or 'another kind'}, and this server was asked as {host[:100]}. "
        f"{_HERE} A proxy before this server has to pass on the Host that the browser asked for."
    )


def _netloc(url: str) -> str:
    """The host and port of a page's address; "" if it is none of the web."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return parts.netloc.lower() if parts.scheme in ("http", "https") else ""


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

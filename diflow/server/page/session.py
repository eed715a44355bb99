"""The visitor's session: a cookie with the token, as a browser sends no Authorization header by itself.

The server keeps no session, so any replica can answer. The cookie is HttpOnly and SameSite=Strict, and only the page
accepts it, not the API.
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
"""Characters. Browsers silently drop a cookie of more than 4,096 bytes, including its name and attributes."""
_LONGEST_FORM: Final = 3 * LONGEST_TOKEN  # each character may be percent-encoded
_LONGEST_SECONDS: Final = 12 * 3600
_HERE: Final = "Open this page at its own address, and sign in there."
_TOKEN: Final = re.compile(rf"[A-Za-z0-9._~+/=-]{{1,{LONGEST_TOKEN}}}")


class TooLargeError(Exception):
    """The form is longer than any token."""


def token_of(request: Request) -> str:
    """The token of a request, from the Authorization header (for scripts) or the cookie; "" if none is well-formed."""
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return well_formed(given)
    return well_formed(request.cookies.get(cookie_name(request), ""))


def cookie_name(request: Request) -> str:
    """With TLS, a `__Host-` name: browsers accept such a cookie only from this host, over TLS."""
    return f"__Host-{COOKIE}" if request.url.scheme == "https" else COOKIE


def keep(response: Response, request: Request, token: str, *, now: float) -> None:
    """Set the cookie, until the token expires, for 12 hours at most."""
    response.set_cookie(
        cookie_name(request), token, max_age=lifetime(token, now=now), path="/", httponly=True, samesite="strict",
        secure=request.url.scheme == "https",
    )  # fmt: skip


def forget(response: Response, request: Request) -> None:
    """Delete the cookie."""
    response.delete_cookie(
        cookie_name(request), path="/", httponly=True, samesite="strict", secure=request.url.scheme == "https"
    )


def lifetime(token: str, *, now: float) -> int:
    """The cookie's lifetime in seconds, from the token's `exp`. It is not verified here: the cluster does that."""
    end = claims(token).expires
    if end is None:
        return _LONGEST_SECONDS
    return max(0, min(_LONGEST_SECONDS, int(end - now)))


def why_foreign(request: Request) -> str:
    """Why a form is refused as cross-site, and what to do; "" if it was sent by this page.

    Without TLS, browsers send no Sec-Fetch-Site, but the Origin of a POST. Older ones, and some behind a proxy, send
    only the Referer. A request with none of these cannot be distinguished from a cross-site one.
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
    """The host and port of a page's address; "" if it is not http or https."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return parts.netloc.lower() if parts.scheme in ("http", "https") else ""


async def sent_token(request: Request) -> str:
    """The token in a submitted form, "" if it is not well-formed. Raises TooLargeError."""
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
    """The text if it is a well-formed token, else ""."""
    return text if _TOKEN.fullmatch(text) else ""

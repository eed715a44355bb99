"""Authentication: tokens, as the API server reviews them (TokenReview).

Reviews are kept under the token's digest, never beyond the token's expiry. Authorisation is in `access`.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from diflow.common.clock import SYSTEM, Clock
from diflow.record import untrusted
from diflow.server.api.reviews import Found, Reviews
from diflow.server.http.errors import unauthorized

LONGEST_TOKEN: Final = 8192
_ACCOUNT: Final = "system:serviceaccount:"
_POD_NAME: Final = "authentication.kubernetes.io/pod-name"
_POD_UID: Final = "authentication.kubernetes.io/pod-uid"


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims in a token, not verified: they only select the review to make. `expires` is seconds since 1970."""

    audiences: tuple[str, ...] = ()
    expires: float | None = None


@dataclass(frozen=True, slots=True)
class User:
    """The user of a token as the API server knows it, with what a SubjectAccessReview needs."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    audiences: tuple[str, ...] = ()
    digest: bytes = b""
    expires: float | None = None
    """When the token does, in seconds since 1970."""

    @property
    def tenant(self) -> str:
        """Who bears the cost of its requests."""
        return tenant_of(self.name)

    @property
    def pod(self) -> tuple[str, str]:
        """(name, uid) of the pod to which the token is bound; ("", "") if there is none."""
        return (self.extra.get(_POD_NAME) or ("",))[0], (self.extra.get(_POD_UID) or ("",))[0]


def tenant_of(user: str) -> str:
    """Who bears the cost of what a user does: of a service account its namespace, as whoever can create pods there has
    any number of them."""
    return ":".join(user.split(":")[:3]) if user.startswith(_ACCOUNT) else user


def claims(token: str) -> Claims:
    """The claims in a token, empty if it is no JWT."""
    parts = token.split(".")
    if len(parts) != 3:
        return Claims()
    try:
        padded = parts[1] + "=" * (-len(parts[1]) % 4)
        payload = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True).decode())
    except (ValueError, RecursionError):
        return Claims()
    if not isinstance(payload, dict):
        return Claims()
    said = payload.get("aud")
    audiences = said if isinstance(said, list) else [said]
    return Claims(tuple(a for a in audiences if isinstance(a, str)), untrusted.number(payload.get("exp")))


class Identity:
    """The users of tokens, by `reviews` under (the token's digest, its audience)."""

    def __init__(self, reviews: Reviews[tuple[bytes, str], User], *, clock: Clock = SYSTEM) -> None:
        self._reviews = reviews
        self._clock = clock

    def known(self, token: str, *, audience: str = "") -> User | None:
        """The user of a token that was reviewed for this audience a moment ago, else None."""
        user = self._reviews.known((_digest(token), audience))
        return user if user is not None and not self._is_over(user.expires) else None

    async def user(self, token: str, *, audience: str = "", address: str = "", said: Claims | None = None) -> User:
        """The user of a token, for this audience (by default that of the API server itself).

        `said` are the token's claims, if the caller has parsed them already.

        Raises ApiError: 401 for an invalid token, 429 for too many reviews from this address, 503 if the API server
        cannot be reached.
        """
        if not token or len(token) > LONGEST_TOKEN or not token.isascii():
            raise unauthorized("this is not a token of this cluster")
        expires = (said or claims(token)).expires
        if self._is_over(expires):
            raise unauthorized("the token has expired")
        if (known := self.known(token, audience=audience)) is not None:
            return known
        digest = _digest(token)

        def read(status: Any) -> Found[User] | None:
            user = _user(status, audience, digest=digest, expires=expires)
            most = self._reviews.keep_seconds
            left = most if expires is None else min(most, expires - self._clock.wall())
            return Found(user, left, user.tenant) if user is not None else None

        spec = {"token": token, **({"audiences": [audience]} if audience else {})}
        user = await self._reviews.result((digest, audience), spec, read, address=address, payer=address)
        if user is None:
            raise unauthorized("the token is not valid")
        return user

    async def probe(self) -> None:
        """Make a TokenReview of an invalid token. Raises DiflowError if reviews cannot be made."""
        await self._reviews.made({"token": "probe"})

    def _is_over(self, expires: float | None) -> bool:
        return expires is not None and expires <= self._clock.wall()


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _user(status: Any, audience: str, *, digest: bytes, expires: float | None) -> User | None:
    """The user in a TokenReview's status, None if the token is not valid for this audience."""
    status = status if isinstance(status, dict) else {}
    user = status.get("user")
    audiences = tuple(a for a in status.get("audiences") or [] if isinstance(a, str))
    if status.get("authenticated") is not True or not isinstance(user, dict) or not user.get("username"):
        return None
    # An API server that ignores audiences would accept a token for any audience.
    if audience and audience not in audiences:
        return None
    return User(
        name=str(user["username"]),
        uid=str(user.get("uid") or ""),
        groups=tuple(str(group) for group in user.get("groups") or []),
        extra={str(k): tuple(str(v) for v in values or []) for k, values in (user.get("extra") or {}).items()},
        audiences=audiences,
        digest=digest,
        expires=expires,
    )

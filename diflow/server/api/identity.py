"""Authentication: tokens, as the API server reviews them (TokenReview).

Reviews are cached under the token's digest for a short time, never beyond the token's expiry. The caches are bounded;
invalid tokens have their own, so that a flood of them evicts no valid one. Concurrent requests with the same token
share one review. Authorisation is in `access`.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cachetools import TLRUCache, TTLCache

from diflow.common.clock import SYSTEM, Clock
from diflow.common.errors import DiflowError
from diflow.kube.api import Cluster
from diflow.kube.kinds import TOKEN_REVIEW
from diflow.record import untrusted
from diflow.server.api.shared_calls import SharedCalls
from diflow.server.http.buckets import Buckets
from diflow.server.http.errors import from_diflow, too_many, unauthorized
from diflow.server.http.pool import Pool

LONGEST_TOKEN: Final = 8192
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

    @property
    def pod(self) -> tuple[str, str]:
        """(name, uid) of the pod to which the token is bound; ("", "") if there is none."""
        return (self.extra.get(_POD_NAME) or ("",))[0], (self.extra.get(_POD_UID) or ("",))[0]


@dataclass(frozen=True, slots=True)
class _Known:
    user: User
    until: float  # on the clock
    expires: float | None  # seconds since 1970


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


@dataclass(frozen=True, slots=True)
class Kept:
    """How long reviews are kept, and how many."""

    seconds: float = 60.0
    denial_seconds: float = 10.0
    most: int = 10_000


KEPT: Final = Kept()


class Identity:
    """Makes TokenReviews in a pool of threads, and caches them as `kept` says.

    Failed reviews are limited for each address (`rate` per second, `burst` at once); successful ones do not count. For
    one event loop.
    """

    def __init__(
        self,
        cluster: Cluster,
        pool: Pool,
        *,
        kept: Kept = KEPT,
        rate: float = 20.0,
        burst: float = 100.0,
        clock: Clock = SYSTEM,
    ) -> None:
        self._cluster = cluster
        self._pool = pool
        self._keep_seconds = kept.seconds
        self._clock = clock
        timer = clock.monotonic
        self._known: TLRUCache[tuple[bytes, str], _Known] = TLRUCache(kept.most, lambda _, v, __: v.until, timer=timer)
        self._denied: TTLCache[tuple[bytes, str], bool] = TTLCache(kept.most, kept.denial_seconds, timer=timer)
        self._reviews = SharedCalls[tuple[bytes, str], User | None]()
        self._newcomers = Buckets(rate=rate, burst=burst, clock=clock)

    async def user(self, token: str, *, audience: str = "", address: str = "", said: Claims | None = None) -> User:
        """The user of a token, for this audience (by default that of the API server itself).

        `said` are the token's claims, if the caller has parsed them already.

        Raises ApiError: 401 for an invalid token, 429 for too many failed reviews from this address, 503 if the API
        server cannot be reached.
        """
        if not token or len(token) > LONGEST_TOKEN or not token.isascii():
            raise unauthorized("this is not a token of this cluster")
        expires = (said or claims(token)).expires
        if expires is not None and expires <= self._clock.wall():
            raise unauthorized("the token has expired")
        key = (hashlib.sha256(token.encode()).digest(), audience)
        known = self._known.get(key)
        if known is not None:
            return known.user
        if key in self._denied:
            raise unauthorized("the token is not valid")

        def review() -> Coroutine[Any, Any, User | None]:
            self.pace(address)
            return self._ask(token, key, audience, expires, address)

        user = await self._reviews.result(key, review)
        if user is None:
            raise unauthorized("the token is not valid")
        return user

    def pace(self, address: str) -> None:
        """Count a review for an address. Raises ApiError (429) if there were too many."""
        wait = self._newcomers.take(address)
        if wait:
            raise too_many("too many invalid tokens or refused requests from this address", after_seconds=wait)

    def refund(self, address: str) -> None:
        """Do not count a review for an address after all, as it succeeded."""
        self._newcomers.refund(address)

    async def _ask(
        self, token: str, key: tuple[bytes, str], audience: str, expires: float | None, address: str
    ) -> User | None:
        spec: dict[str, Any] = {"token": token}
        if audience:
            spec["audiences"] = [audience]
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        try:
            review = await self._pool.run(lambda: self._cluster.create(TOKEN_REVIEW, body))
        except DiflowError as error:
            raise from_diflow(error) from None
        user = _user(review.get("status"), audience, digest=key[0])
        if user is None:
            self._denied[key] = True
            return None
        self.refund(address)
        left = self._keep_seconds if expires is None else min(self._keep_seconds, expires - self._clock.wall())
        if left > 0:
            self._known[key] = _Known(user, self._clock.monotonic() + left, expires)
        return user

    async def probe(self) -> None:
        """Make a TokenReview of an invalid token. Raises DiflowError if reviews cannot be made."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "probe"}}
        await self._pool.run(lambda: self._cluster.create(TOKEN_REVIEW, body))


def _user(status: Any, audience: str, *, digest: bytes) -> User | None:
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
    )

"""Connects the page to the API's cache, identity and access.

app = create_app(..., routes=partial(mount.mounted, page=page))
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from starlette.routing import BaseRoute

from diflow.common.errors import UnavailableError
from diflow.kube.kinds import NODE
from diflow.server.api.cache import Cache
from diflow.server.api.core import Core
from diflow.server.api.identity import User
from diflow.server.http.errors import ApiError
from diflow.server.http.parts import Parts
from diflow.server.page.board import Permissions
from diflow.server.page.cache import PageCache
from diflow.server.page.render import Freshness
from diflow.server.page.routes import Visitor, routes

_VISITORS_KEPT: Final = 1000
_AT_ONCE: Final = 8  # concurrent reviews for one visitor: the pool has no more threads


def mounted(core: Core, *, page: PageCache, argo_url: str = "") -> list[BaseRoute]:
    """The page's routes, for `create_app`. `argo_url` is the address of the Argo UI, or ""."""
    permissions = ViewerPermissions(core, page)
    return [
        *routes(
            visitor_of=permissions.visitor,
            state=partial(page.snapshot, core.cache),
            freshness=partial(_freshness, core.cache),
            clock=core.clock,
            argo_url=argo_url,
        )
    ]


@dataclass(slots=True)
class _Known:
    """The cached permissions of one visitor. A namespace in neither set has not been reviewed."""

    everywhere: bool | None = None
    nodes: bool | None = None
    visible: set[str] = field(default_factory=set)
    hidden: set[str] = field(default_factory=set)


class ViewerPermissions:
    """Reviews what each visitor may list, and caches the answers as long as the API does."""

    def __init__(self, core: Core, page: PageCache) -> None:
        self._core = core
        self._page = page
        self._known: Parts[tuple[bytes, str], _Known] = Parts(_VISITORS_KEPT, timer=core.clock.monotonic)

    async def visitor(self, token: str, address: str) -> Visitor | None:
        """The visitor of a token, None if it is not valid. Raises UnavailableError if that cannot be reviewed now."""
        try:
            user = await self._core.identity.user(token, address=address)
            return Visitor(user.name, await self._permissions(user, address), user.tenant)
        except ApiError as error:
            if error.status in (401, 403):
                return None
            raise UnavailableError(error.message) from None

    async def _permissions(self, user: User, address: str) -> Permissions:
        known = self._known.get((user.digest, user.name))
        if known is None:
            known = _Known()
            seconds = self._core.settings.review_seconds
            self._known.keep((user.digest, user.name), known, tenant=user.tenant, seconds=seconds)
        may = partial(self._core.access.may, user, "list", address=address)
        if known.everywhere is None:
            known.everywhere = await may(namespace="")
        if known.nodes is None:
            known.nodes = await may(namespace="", kind=NODE)
        if known.everywhere:
            return Permissions(None, known.nodes)
        names = {namespace for namespace, _ in self._core.cache.workflows.items()} | self._page.ended().keys()
        await self._review(known, names - known.visible - known.hidden, may)
        return Permissions(frozenset(known.visible), known.nodes)

    async def _review(self, known: _Known, names: Iterable[str], may: Callable[..., Any]) -> None:
        """Review these namespaces. A visitor over the rate limit is shown what is known so far."""
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(name: str) -> None:
            async with gate:
                (known.visible if await may(namespace=name) else known.hidden).add(name)

        done = await asyncio.gather(*(one(name) for name in sorted(names)), return_exceptions=True)
        for error in done:
            if isinstance(error, BaseException) and not (isinstance(error, ApiError) and error.status == 429):
                raise error


def _freshness(cache: Cache) -> Freshness:
    """Without the reason, which is for administrators: the log and the metrics port have it."""
    age = cache.age_seconds
    return Freshness(
        age_seconds=age if math.isfinite(age) else 0.0,
        is_synced=cache.workflows.synced and cache.pods.synced and math.isfinite(age),
        is_stale=not cache.is_fresh(),
    )

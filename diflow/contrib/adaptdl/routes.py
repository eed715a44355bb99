"""The routes for AdaptDL's training processes: hints for the scheduler, and the addresses of the replicas.

Its clients expect no envelope around a success, and stop the training on any status of /discover except 200 and 408.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from diflow.record import untrusted
from diflow.server.api.cache import JobKey
from diflow.server.api.core import check_not_over
from diflow.server.api.folding import HINTS, Report
from diflow.server.api.models import Hints
from diflow.server.api.routes import READS, Answer, Parameter, Routes, operation
from diflow.server.api.scale_requests import check_readable
from diflow.server.api.v2alpha1 import checked
from diflow.server.http.errors import ApiError, bad_request, gone
from diflow.server.http.exchange import Exchange

TIMEOUT_SECONDS: Final = 30.0


_Name = Annotated[str, Field(pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
_GROUP: Final = Parameter(
    "group",
    "path",
    Annotated[int, Field(ge=0, le=999_999_999)],
    "How often the job has restarted: 0 in its first round.",
)
_TIMEOUT: Final = Parameter(
    "timeout",
    "query",
    Annotated[int, Field(ge=0, le=999_999, json_schema_extra={"default": int(TIMEOUT_SECONDS)})],
    "The most seconds to wait; the server limits it further.",
)
_Addresses = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]
_ACCEPTED: Final = Answer(..., description="Accepted. The body is empty.")


class AdaptDL(Routes):
    """The handlers. They have no state."""

    tag, about = "AdaptDL", "The routes of AdaptDL's training processes."
    parameters = (Parameter("namespace", "path", _Name), Parameter("name", "path", _Name), _GROUP)

    @operation("PUT", "/hints/{namespace}/{name}", body=Hints, answer=_ACCEPTED, is_report=True)
    async def put_hints(self, exchange: Exchange) -> None:
        """Hints of rank 0 for the scheduler."""
        namespace, name = exchange.parameters["namespace"], exchange.parameters["name"]
        view, caller = await self._core.reported(exchange, namespace, name)
        given = await exchange.json(self._core.settings.body_bytes, constants=True)
        body = checked(Hints, given)
        sender = view.rank_of(caller.pod) if caller.pod is not None else None
        if caller.pod is None or sender is not None:
            self._core.reporter.take(view, HINTS, Report("", body, sender))
        await exchange.answer(b"")

    @operation(
        "GET",
        "/discover/{namespace}/{name}/{group}",
        parameters=(_TIMEOUT,),
        answer=Answer(_Addresses, description="All addresses."),
        errors=(*READS, 408),
    )
    async def discover(self, exchange: Exchange) -> None:
        """Wait for the addresses of all replicas.

        The list of addresses by rank, without ports and without the envelope.
        """
        # The group is the number of restarts: 0 in the job's first round, 1 in the second. While the cache is stale
        # this waits as well, as AdaptDL tolerates no status but 408. When the job has ended, or its round is a later
        # one, the answer is 410, which ends AdaptDL's processes.
        namespace, name = exchange.parameters["namespace"], exchange.parameters["name"]
        group = exchange.parameters["group"]
        seconds = min(_timeout(exchange), self._core.settings.poll_seconds)
        starts = untrusted.whole(group)
        if starts is None:
            raise bad_request("the group is a whole number: how often the job has restarted")
        ends = self._core.clock.monotonic() + seconds
        key: JobKey = (namespace, name)
        if await exchange.unless_gone(self._core.discovery.wait(key, self._fresh, seconds=seconds)) is None:
            raise _not_yet()
        await self._core.job(exchange, namespace, name, "get")

        def addresses() -> bytes | None:
            if not self._core.cache.is_fresh():
                return None
            view = self._core.cache.job(*key)
            if view is None:
                return None
            check_not_over(view)
            check_readable(view.workflow)
            if (untrusted.whole(view.workflow.round) or 0) > starts + 1:
                raise gone(f"group {starts} is over: the job is in round {view.workflow.round}")
            return view.discover_answer if view.workflow.round == str(starts + 1) else None

        left = ends - self._core.clock.monotonic()
        found = await exchange.unless_gone(self._core.discovery.wait(key, addresses, seconds=left))
        if found is None:
            raise _not_yet()
        await exchange.answer(found)

    def _fresh(self) -> bool | None:
        return True if self._core.cache.is_fresh() else None


def _not_yet() -> ApiError:
    return ApiError(408, "not all replicas of this group have an address yet")


def _timeout(exchange: Exchange) -> float:
    """The query parameter `timeout` in seconds. Raises ApiError (400)."""
    query = exchange.scope.get("query_string", b"").decode("latin-1")
    given = [value for part in query.split("&") for name, _, value in (part.partition("="),) if name == "timeout"]
    if not given:
        return TIMEOUT_SECONDS
    seconds = untrusted.whole(given[-1], digits=6)
    if seconds is None:
        raise bad_request("timeout is a whole number of seconds")
    return float(seconds)

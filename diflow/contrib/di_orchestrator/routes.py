"""The routes of v1alpha1, which DI-engine's clients speak: a coordinator asks for collectors and learners.

Bodies and query parameters are taken as loosely as DI-orchestrator takes them: names in any case, no Content-Type,
quantities as text or number. Its messages are kept word for word.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

from diflow.common.limits import MOST_REPLICAS
from diflow.common.quantities import exact
from diflow.contrib.di_orchestrator import modules
from diflow.contrib.di_orchestrator.bodies import FailedRequest, ModuleReplicas, ModulesRequest
from diflow.contrib.di_orchestrator.changes import ModuleChanges, Plan, Wanted, deleting, replacing
from diflow.contrib.di_orchestrator.modules import (
    AGGREGATOR,
    COLLECTOR,
    COORDINATOR,
    DDP_LEARNER,
    GPU,
    LEARNER,
    Modules,
    Replica,
)
from diflow.server.api.access import Verb
from diflow.server.api.cache import ServedJob
from diflow.server.api.core import Core
from diflow.server.api.identity import tenant_of
from diflow.server.api.routes import Answer, Parameter, Routes, operation
from diflow.server.http import envelope, strictjson
from diflow.server.http.buckets import Buckets
from diflow.server.http.errors import ApiError, bad_request, not_found, too_many, unprocessable
from diflow.server.http.exchange import Exchange

Json = dict[str, Any]

_GOT: Final = "successfully get replicas"
_CREATED: Final = "successfully create replicas"
_DELETED: Final = "successfully delete replicas"
_RECREATED: Final = "successfully recreate replicas"
_RESOURCES: Final = {"cpus": "cpu", "memory": "memory", "gpus": GPU}
_LABEL: Final = re.compile(r"[!-~]{1,253}", re.ASCII)
_MOST_PARAMETERS: Final = 16
_MOST_NAMES: Final = MOST_REPLICAS
_LARGEST: Final = 10**15
# Of a namespace: a list takes as long as a thousand other requests.
_LISTS_PER_SECOND: Final = 2.0
_LISTS_AT_ONCE: Final = 20.0
_MOST_LISTED: Final = 20_000
"""Replicas in a list, those that were removed included."""
_QUERY: Final = (
    Parameter("namespace", "query", str, "The namespace of the job."),
    Parameter(COORDINATOR, "query", str, "The name of the coordinator's pod."),
    Parameter(AGGREGATOR, "query", str, "The name of an aggregator's pod: its ddp learners."),
    Parameter("name", "query", str, "The name of the pod of either."),
)
_NAMES: Final = frozenset(one.name for one in _QUERY)
_MODULES: Final = Answer(ModuleReplicas, "Modules")
_ERRORS: Final = (400, 401, 403, 404, 409, 410, 413, 422, 429, 500, 501, 503)


async def _refuse(exchange: Exchange) -> None:
    """Answer a method that there is not as clients know it."""
    raise ApiError(501, f"{exchange.method} not implemented")


class V1Alpha1(Routes):
    """The handlers."""

    tag = "v1alpha1"
    about = "The replicas of a coordinator. For jobs with a coordinator, of DI-orchestrator v0.x."
    prefixes = {"/v1alpha1": ""}  # noqa: RUF012
    missing = dict.fromkeys(("GET", "POST", "DELETE", "PUT", "PATCH", "OPTIONS"), _refuse)

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._changes = ModuleChanges(core.cluster, core.cache, core.scale_requests, clock=core.clock)
        self._lists = Buckets(rate=_LISTS_PER_SECOND, burst=_LISTS_AT_ONCE, clock=core.clock)

    @operation(
        "GET",
        "/replicas",
        parameters=_QUERY,
        answer=Answer(ModuleReplicas | list[ModuleReplicas], "AnyModules"),
        errors=_ERRORS,
    )
    async def get_modules(self, exchange: Exchange) -> None:
        """The replicas of a coordinator or an aggregator.

        Without either: of all coordinators of the namespace, or of all namespaces, as a list. Another parameter is an
        error.
        """
        # A body is ignored: clients send `{}`.
        asked = _query(exchange)
        if "name" in asked:
            is_aggregator = f"-{AGGREGATOR}-" in asked["name"] and not asked["name"].endswith(f"-{COORDINATOR}")
            asked.setdefault(AGGREGATOR if is_aggregator else COORDINATOR, asked["name"])
        namespace = asked.get("namespace", "")
        if namespace and COORDINATOR in asked:
            view, known = await self._module(exchange, namespace, asked[COORDINATOR], "get")
            found: Any = _listed(view, known, asked[COORDINATOR])
        elif namespace and AGGREGATOR in asked:
            view, known = await self._module(exchange, namespace, asked[AGGREGATOR], "get")
            found = _of_aggregator(view, known, asked[AGGREGATOR])
        else:
            caller = await self._core.access.lister(exchange.token, namespace=namespace, address=exchange.address)
            exchange.scope["state"]["caller"] = caller
            found = await self._all(namespace, caller)
        await exchange.answer(envelope.success(_GOT, found))

    async def _all(self, namespace: str, caller: str) -> list[Json]:
        """The jobs of a namespace, or of all, job by job: others are answered meanwhile. Raises ApiError: 422, 429."""
        wait = self._lists.take(namespace or tenant_of(caller))
        if wait:
            raise too_many("too many requests for lists: name a coordinator", after_seconds=wait)
        some = [view for view in self._core.cache.jobs() if namespace in ("", view.namespace) and _is_listed(view)]
        if sum(len(known.replicas) for view in some if (known := _modules(view))) > _MOST_LISTED:
            raise unprocessable(f"there are more than {_MOST_LISTED:,} replicas: name a namespace or a coordinator")
        found: list[Json] = []
        for view in sorted(some, key=lambda view: (view.namespace, view.name)):
            found.append(_of_job(view))
            await asyncio.sleep(0)
        return found

    @operation("POST", "/replicas", body=ModulesRequest, answer=_MODULES, errors=_ERRORS)
    async def create_modules(self, exchange: Exchange) -> None:
        """Add replicas to a coordinator.

        A learner with more than one GPU becomes an aggregator with ddp learners.
        """
        body = await self._body(exchange)
        wanted = [_wanted(body, f"{module}s") for module in (COLLECTOR, LEARNER)]
        await self._write(exchange, body, _CREATED, lambda: self._changes.creating(*wanted))

    @operation("DELETE", "/replicas", body=ModulesRequest, answer=_MODULES, errors=_ERRORS)
    async def delete_modules(self, exchange: Exchange) -> None:
        """Remove replicas of a coordinator.

        First those that do not run yet, then the newest.
        """
        body = await self._body(exchange)
        counts = [_wanted(body, f"{module}s").replicas for module in (COLLECTOR, LEARNER)]
        await self._write(exchange, body, _DELETED, lambda: deleting(*counts))

    @operation("POST", "/replicas/failed", body=FailedRequest, answer=_MODULES, errors=_ERRORS)
    async def replace_modules(self, exchange: Exchange) -> None:
        """Replace replicas that have failed.

        The answer has those in their place.
        """
        body = await self._body(exchange)
        names = list(dict.fromkeys(name for key in ("collectors", "learners") for name in _hostnames(body, key)))
        if len(names) > _MOST_NAMES:
            raise unprocessable(f"at most {_MOST_NAMES:,} replicas can be replaced at once")
        await self._write(exchange, body, _RECREATED, lambda: replacing(_text(body, "namespace"), names))

    async def _body(self, exchange: Exchange) -> Json:
        try:
            given = strictjson.parse(await exchange.body(self._core.settings.body_bytes))
        except ApiError as error:
            if error.status != 400:
                raise
            raise bad_request(f"failed to decode request body: {error.message}") from None
        if not isinstance(given, dict):
            raise _undecoded("it must be a JSON object")
        return _lower(given)

    async def _write(self, exchange: Exchange, body: Json, message: str, plan: Any) -> None:
        namespace, coordinator = _text(body, "namespace"), _text(body, COORDINATOR)
        view, _ = await self._module(exchange, namespace, coordinator, "patch")

        def write() -> tuple[Modules, tuple[Replica, ...]]:
            made: Plan = plan()
            return self._changes.write(namespace, view.name, made)

        known, named = await self._core.writes.run((namespace, view.name), write)
        await exchange.answer(envelope.success(message, _answer(known, namespace, coordinator, named)))

    async def _module(self, exchange: Exchange, namespace: str, name: str, verb: Verb) -> tuple[ServedJob, Modules]:
        """The job of a coordinator or aggregator, by the name of its pod. Raises ApiError: 401, 403, 404, 409, 410, 429
        or 503; authorisation comes first."""
        if not _LABEL.fullmatch(name) or not _LABEL.fullmatch(namespace):
            raise not_found(f"pod: {namespace[:253]}/{name[:253]} not exists in cache")
        job = modules.job_of(name) or name
        caller = await self._core.access.caller(
            exchange.token, namespace=namespace, job=job, verb=verb, address=exchange.address
        )
        exchange.scope["state"]["caller"] = caller.name
        view = self._core.cache.job(namespace, job)
        if view is None:
            raise not_found(f"pod: {namespace}/{name} not exists in cache")
        known = _modules(view)
        if known is None:
            raise not_found(f"module {name} is not owned by any DIJob")
        wait = self._core.buckets.take((namespace, job))
        if wait:
            raise too_many(f"too many requests for job {namespace}.{job}", after_seconds=wait)
        if view.workflow.problem or known.problem:
            raise ApiError(409, f"job {namespace}.{job} cannot be read: {view.workflow.problem or known.problem}")
        if _is_over(view, known):
            raise not_found(f"coordinator {name} is owned by stale DIJob")
        return view, known


def _modules(view: ServedJob) -> Modules | None:
    known = view.workflow.argo.side_by_side
    return known if isinstance(known, Modules) else None


def _is_over(view: ServedJob, known: Modules) -> bool:
    return view.workflow.is_over or known.has_ended


def _is_listed(view: ServedJob) -> bool:
    known = _modules(view)
    return known is not None and not known.problem and not _is_over(view, known)


def _of_job(view: ServedJob) -> Json:
    known = _modules(view)
    return _listed(view, known, f"{view.name}-{COORDINATOR}") if known is not None else {}


def _query(exchange: Exchange) -> dict[str, str]:
    """The parameters of the query, with names in lower case. Of a repeated one the first counts."""
    try:
        given = parse_qsl(
            bytes(exchange.scope.get("query_string", b"")).decode("latin-1"),
            keep_blank_values=True,
            max_num_fields=_MOST_PARAMETERS,
        )
    except ValueError:
        raise bad_request("the query has too many parameters") from None
    out: dict[str, str] = {}
    for name, value in given:
        if name.lower() not in _NAMES:
            raise bad_request(f"request param {name} is not supported")
        out.setdefault(name.lower(), value)
    return out


def _lower(given: Mapping[str, Any]) -> Json:
    return {str(key).lower(): value for key, value in given.items()}


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise _undecoded(f"{name} must be text")
    return value or ""


def _wanted(body: Mapping[str, Any], name: str) -> Wanted:
    given = body.get(name)
    if given is None:
        return Wanted()
    if not isinstance(given, dict):
        raise _undecoded(f"{name} must be a JSON object")
    inside = _lower(given)
    replicas = inside.get("replicas", 0)
    if replicas is None:
        replicas = 0
    if not isinstance(replicas, int) or isinstance(replicas, bool):
        raise _undecoded(f"{name}.replicas must be a whole number")
    if replicas > MOST_REPLICAS:
        raise unprocessable(f"{name}.replicas: at most {MOST_REPLICAS:,} are allowed")
    found = {ours: _quantity(inside.get(theirs), f"{name}.{theirs}") for theirs, ours in _RESOURCES.items()}
    return Wanted(max(0, replicas), {resource: text for resource, text in found.items() if text})


def _quantity(value: Any, path: str) -> str:
    """A Kubernetes quantity as text, "" for none or zero."""
    if value is None or value == "":
        return ""
    text = str(value)
    known = exact(text) if isinstance(value, str | int | float) and not isinstance(value, bool) else None
    if known is None or known < 0:
        raise _undecoded(f"{path} must be a quantity such as 2, 500m or 4Gi")
    if known > _LARGEST:
        raise unprocessable(f"{path} is too large")
    return text if known else ""


def _hostnames(body: Mapping[str, Any], name: str) -> list[str]:
    """The host names in a list of pods, each with or without its domain and port."""
    given = body.get(name)
    if given is None:
        return []
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise _undecoded(f"{name} must be a list of text")
    return [one.partition(":")[0].partition(".")[0] for one in given]


def _undecoded(why: str) -> ApiError:
    return bad_request(f"failed to decode request body: {why}")


def _listed(view: ServedJob, known: Modules, coordinator: str) -> Json:
    return _answer(known, view.namespace, coordinator, [one for one in known.replicas if one.is_listed])


def _answer(known: Modules, namespace: str, coordinator: str, some: Any) -> Json:
    """The collectors and learners among these. To a coordinator an aggregator is a learner; ddp learners are none."""
    return {
        "namespace": namespace,
        COORDINATOR: coordinator,
        "collectors": [known.url(one, namespace) for one in some if one.module == COLLECTOR],
        "learners": [
            known.url(one, namespace) for module in (LEARNER, AGGREGATOR) for one in some if one.module == module
        ],
    }


def _of_aggregator(view: ServedJob, known: Modules, name: str) -> Json:
    one = known.find([name]).get(name)
    if one is None or one.module != AGGREGATOR or one.is_released:
        raise not_found(f"pod: {view.namespace}/{name} not exists in cache")
    urls: list[str] = []
    for other in known.units([one]):
        if other.module == DDP_LEARNER and other.is_listed:
            urls.append(known.url(other, view.namespace))
            head, _, port = urls[-1].rpartition(":")
            ports = known.groups[other.round][DDP_LEARNER].ports(other.index)
            first = other.index == 0  # which has the port of the master as well
            urls += [f"{head}:{int(port) + j}" for j in range(1, ports + (0 if first else 1))]
    return {"namespace": view.namespace, COORDINATOR: name, "collectors": [], "learners": urls}

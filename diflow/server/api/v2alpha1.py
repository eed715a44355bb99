"""The routes of v2alpha1: a job's replicas, and its reports.

A job's id is `namespace.name`, `namespace.name.generation`, or `namespace/name`. The generation is the number of the
current round: a request with another one is about pods that are gone.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Annotated, Any, Final

from pydantic import Field

from diflow.common.errors import InvalidError
from diflow.record import untrusted
from diflow.server.api.access import Caller
from diflow.server.api.cache import ServedJob
from diflow.server.api.core import check_not_over
from diflow.server.api.folding import WHOLE, Report
from diflow.server.api.models import (
    Addresses,
    Leases,
    Model,
    NodeCheckAnswer,
    NodeCheckReport,
    Profiling,
    ReplicasRequest,
    ShardsRequest,
    WrappedProfiling,
    validate,
)
from diflow.server.api.routes import Answer, Parameter, Routes, operation
from diflow.server.api.scale_requests import ScaleRequest, check_generation
from diflow.server.http import envelope
from diflow.server.http.errors import Fault, bad_request, forbidden, gone, not_found, unprocessable
from diflow.server.http.exchange import Exchange
from diflow.server.http.strictjson import not_finite
from diflow.shards.dataset import Dataset
from diflow.shards.ledger import Ask

_ID: Final = Parameter(
    "id",
    "path",
    Annotated[str, Field(pattern=r"^[a-z0-9-]+\.[a-z0-9-]+(\.[0-9]{1,9})?$")],
    "The job: `namespace.name`, `namespace.name.generation`, or `namespace/name` (escaped). The generation is the "
    "number of the current round.",
    example="default.cartpole",
)
_IDEMPOTENCY_KEY: Final = Parameter(
    "Idempotency-Key",
    "header",
    Annotated[str, Field(min_length=1, max_length=255, pattern="^[!-~]+$")],
    "Text that the caller chooses. A request that is sent again with the same key is carried out once. The last 64 "
    "keys of a job are stored.",
)

_KEY: Final = re.compile(r"[!-~]{1,255}")
_SLASHED: Final = re.compile(r"[^/.]+/[^/.]+")
_ADDED: Final = envelope.success("successfully add replicas")
_DELETED: Final = envelope.success("successfully delete replicas")
_REPORTED: Final = envelope.success("successfully report profilings")


def parse_id(text: str) -> tuple[str, str, str | None]:
    """Parse a job's id: (namespace, name, generation or None). Raises ApiError (400)."""
    is_slashed = "/" in text
    parts = text.split("/") if is_slashed else text.split(".")
    generation = parts[2] if len(parts) == 3 and not is_slashed else None
    good = generation is not None or (len(parts) == 2 and "." not in parts[1])
    if good and all(0 < len(part) <= 253 and part.isascii() and part.isprintable() for part in parts):
        if generation is None:
            return parts[0], parts[1], None
        if (number := untrusted.whole(generation)) is not None:
            return parts[0], parts[1], str(number)
    raise bad_request(f"job id {text} must be in namespace.name format")


class V2Alpha1(Routes):
    """The handlers. They have no state."""

    tag, about = "v2alpha1", "A job's replicas, and its reports."
    # With and without `/job`: existing clients use both. The longer one is matched first.
    prefixes = {"/v2alpha1/job": "", "/v2alpha1": "Short"}  # noqa: RUF012
    parameters = (_ID,)

    @operation("GET", "/{id:path}/replicas", answer=Answer(Addresses, "Replicas"))
    async def get_replicas(self, exchange: Exchange) -> None:
        """The addresses of a job's replicas.

        `podIP:port`, by rank over the whole job: the container port named `di-port`, else 22270.
        """
        # A body is ignored: some clients send `{}`.
        namespace, name, generation = _id(exchange)
        view, _ = await self._core.job(exchange, namespace, name, "get")
        check_not_over(view)
        check_generation(view.workflow, generation)
        await exchange.answer(view.replicas_answer)

    @operation("POST", "/{id:path}/replicas", body=ReplicasRequest, parameters=(_IDEMPOTENCY_KEY,))
    async def add_replicas(self, exchange: Exchange) -> None:
        """Request more replicas.

        For a preemptible job this changes the most that the allocator may give it, within its minimum and maximum.
        """
        await self._scale(exchange, 1)
        await exchange.answer(_ADDED)

    @operation("DELETE", "/{id:path}/replicas", body=ReplicasRequest, parameters=(_IDEMPOTENCY_KEY,))
    async def delete_replicas(self, exchange: Exchange) -> None:
        """Request fewer replicas.

        The task's replicas with the highest ranks are removed, each with its grace period.
        """
        await self._scale(exchange, -1)
        await exchange.answer(_DELETED)

    async def _scale(self, exchange: Exchange, sign: int) -> None:
        namespace, name, generation = _id(exchange)
        view, _ = await self._core.job(exchange, namespace, name, "patch")
        check_generation(view.workflow, generation)
        key = exchange.header(b"idempotency-key")
        if b"idempotency-key" in exchange.headers and not _KEY.fullmatch(key):
            raise bad_request("the Idempotency-Key is text of 1 to 255 visible characters of ASCII")
        given = await exchange.json(self._core.settings.body_bytes)
        if not isinstance(given, dict):
            raise bad_request("the body must be a JSON object")
        request, faults = validate(ReplicasRequest, given)
        if request is None:
            raise bad_request("; ".join(f"{fault.path}: {fault.message}" for fault in faults))
        wanted = ScaleRequest(namespace, name, sign * (request.replicas or 0), request.task or "", generation, key)
        await self._core.writes.run((namespace, name), lambda: self._core.scale_requests.write(wanted))

    @operation("POST", "/{id:path}/profilings", body=WrappedProfiling | Profiling, is_report=True)
    async def report_profilings(self, exchange: Exchange) -> None:
        """Report about a replica's work.

        Under `data` or bare. Of each rank the newest report counts.
        """
        view, caller = await self._reported(exchange)
        body = await read_report(exchange, self._core.settings.body_bytes)
        if body.round is not None and str(body.round) != view.workflow.round:
            fault = Fault("round", f"the current round is {view.workflow.round}")
            raise unprocessable(f"round: the current round is {view.workflow.round}", [fault])
        rank = view.rank_of(caller.pod) if caller.pod is not None else body.rank or 0
        if caller.pod is None and rank is not None and rank >= len(view.members):
            message = f"the job has {len(view.members)} replicas"
            raise unprocessable(f"rank: {message}", [Fault("rank", message)])
        if rank is not None:  # None: a pod that is being removed; its report is ignored
            sender = rank if caller.pod is not None else None
            self._core.reporter.take(view, WHOLE if body.is_whole else rank, Report(view.task_of(rank), body, sender))
        await exchange.answer(_REPORTED)

    @operation("POST", "/{id:path}/shards", body=ShardsRequest, answer=Answer(Leases, "Shards"), is_report=True)
    async def lease_shards(self, exchange: Exchange) -> None:
        """Report shards done, and lease shards.

        For the pods of the job. The answer names all shards that the worker has, and is sent when that is stored. A
        request that is sent again has the same effect.
        """
        # While the pods of an earlier round end, they still report what they have done.
        view, caller = await self._reported(exchange, late=True)
        if caller.pod is None:
            raise forbidden("shards are leased to the pods of the job")
        body = checked(ShardsRequest, await exchange.json(self._core.settings.body_bytes))
        try:
            dataset = Dataset(body.size, body.shard, body.epochs, body.seed)
        except InvalidError as error:
            raise unprocessable(str(error), [Fault(error.path, error.message)]) from None
        wanted = Ask(
            name=body.dataset,
            dataset=dataset,
            worker=f"{caller.pod.uid}/{body.worker}",
            done=tuple(body.done),
            wants=body.want,
            seconds=body.lease_seconds,
            leaves=body.leave,
        )
        answer = await self._core.shards.ask(view, wanted, caller.pod)
        data = {
            "shards": [asdict(each) for each in answer.leases],
            "refused": list(answer.refused),
            "leaseSeconds": answer.seconds,
            "finished": answer.is_finished,
        }
        await exchange.answer(envelope.success("successfully lease shards", data))

    @operation(
        "POST", "/{id:path}/checks", body=NodeCheckReport, answer=Answer(NodeCheckAnswer, "NodeCheck"), is_report=True
    )
    async def report_node_check(self, exchange: Exchange) -> None:
        """Report the result of a node check.

        For the pods of the job, before their work begins. A request that is sent again has the same effect.
        """
        view, caller = await self._reported(exchange)
        if caller.pod is None:
            raise forbidden("the results of a node check are taken from the pods of the job")
        body = checked(NodeCheckReport, await exchange.json(self._core.settings.body_bytes))
        rank = view.rank_of(caller.pod)
        if rank is None:
            raise gone("this pod is being removed")
        verdict = self._core.checks.take(view, caller.pod, rank, body)
        await exchange.answer(envelope.success("successfully report the node check", verdict.model_dump()))

    async def _reported(self, exchange: Exchange, *, late: bool = False) -> tuple[ServedJob, Caller]:
        """The job of a report, and its caller. Raises ApiError."""
        namespace, name, generation = _id(exchange)
        view, caller = await self._core.reported(exchange, namespace, name, late=late)
        check_generation(view.workflow, generation)
        return view, caller


def _id(exchange: Exchange) -> tuple[str, str, str | None]:
    """The job's id in the path. Raises ApiError: 400, or 404 for a path that is no route."""
    text = exchange.parameters["id"]
    # `/v2alpha1/jobs/ns.name/...` also matches the short form, as an id may contain a slash; no job's name has a dot.
    if str(exchange.scope["path"]).startswith("/v2alpha1/jobs/") and not _SLASHED.fullmatch(text):
        raise not_found("there is nothing at this path")
    return parse_id(text)


async def read_report(exchange: Exchange, limit: int) -> Profiling:
    """The report in a body, wrapped in `data` or bare. Raises ApiError."""
    given = await exchange.json(limit, constants=True)
    prefix = ""
    wrapped = [key for key in given if key.casefold() == "data"] if isinstance(given, dict) else []
    if len(wrapped) > 1:
        raise unprocessable("data: is in the body twice", [Fault("data", "is in the body twice")])
    if wrapped:
        given, prefix = given[wrapped[0]], "data"
    return checked(Profiling, given, prefix=prefix)


def checked(model: type[Model], given: Any, *, prefix: str = "") -> Model:
    """Validate a body. Raises ApiError (422) with the paths of the invalid fields."""
    if not isinstance(given, dict):
        message = "must be a JSON object"
        raise unprocessable(f"{prefix or 'the body'}: {message}", [Fault(prefix, message)])
    faults = [Fault(path, "must be a finite number") for path in list(not_finite(given, prefix))[:20]]
    body = None
    if not faults:
        body, faults = validate(model, given, prefix=prefix)
    if body is None:
        raise unprocessable("; ".join(f"{fault.path}: {fault.message}" for fault in faults[:3]), faults)
    return body

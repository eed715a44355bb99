"""The OpenAPI document, generated from the routes and the models that they name:
`python -m diflow.server.api.openapi > diflow/server/openapi.json`.

tests/server/api/test_schema.py checks the server's responses against it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from pydantic import TypeAdapter

from diflow.common import contribs
from diflow.server.api.models import Envelope, Errors
from diflow.server.api.own import Own
from diflow.server.api.routes import Answer, Operation, Parameter, Routes
from diflow.server.api.v2alpha1 import V2Alpha1
from diflow.version import __version__

Json = dict[str, Any]

_JSON: Final = "application/json"
_REF: Final = "#/components/schemas/{model}"

_DESCRIPTION: Final = """\
The replicas of diflow's jobs, and the reports about them.

## Authentication

A pod of a job sends the token in its file `/var/run/secrets/diflow/token`, as `Authorization: Bearer ...`: a
service-account token that is bound to the pod and whose audience names the job. It is valid for this job alone, while
the pod exists and belongs to the job's current round; a pod of an earlier round is answered with 410. A user sends a
token for the cluster's API server, and may do with a job what RBAC allows with its Workflow (`get
workflows.argoproj.io` to read, `patch` to change); a 403 names the missing right. A caller who may not see a job is
answered with 403, whether the job exists or not; 404 is for callers who may.

Clients that send no token (DI-engine's, AdaptDL's) are served only with `DIFLOW_SERVER_UNPROVEN_PODS`: then a job's pod
without a token is identified by its address, and may read and scale the jobs of its namespace, but report about its own
job alone. The containers of a job with the annotation `diflow/adaptdl: "true"` get the variables that AdaptDL's clients
read.

## The envelope

Every response is `{"success": bool, "code": 0 or 1, "message": text, "data": any}`, except the successes of the two
AdaptDL routes. A message contains no apostrophes and no quotation marks. Each response has an `X-Request-Id`: the
caller's own, or a new one. With 429 and 503, `Retry-After` says when to try again.

## What 200 means

*For replicas:* the request is stored in the cluster, and survives a crash of the server. It does not mean that the
cluster has free capacity: the allocator acts on the request. With an `Idempotency-Key`, a request that is sent again
(after a timeout, to another server, after a restart) is carried out once; the last 64 keys of a job are stored. After a
503 the request may have been carried out: send it again with the same key. Requests for one job are carried out one
after the other; at most 64 of them wait.

*For shards:* what was done and what is leased is stored in the cluster. Requests of a job that arrive within a second
are stored together.

*For results of a node check:* the result was validated and accepted, and is written within about a second. The answer
is of what is stored: the pod repeats the request until the verdict is `go`.

*For reports* (profilings, hints): the report was validated and accepted. It is written within about a second, together
with the reports of the job's other replicas; of each rank the newest report counts. At shutdown the server writes all
accepted reports. A server that is killed loses those of the last second: a report is a measurement, and the next one
follows.

## A job and its rounds

A job that continues in another Workflow is the same job. Its *generation* is the number of its current round. An id
with another generation is answered with 409: the replicas of that round are gone. The *group* of AdaptDL's clients
counts from 0: it is the generation minus one.

A job that has ended has no replicas and accepts no reports: both are answered with 410, and so is a wait for the
addresses of an earlier group. A request for more or fewer replicas of such a job is answered with 409.

## Which task, and how many

Keys of a body match in any case, and the default number is 0. Replicas are added to or removed from the named task,
else the elastic task (the first whose `minReplicas` is below its `maxReplicas`), else the last task. A job that is not
preemptible gets the requested number, between its minimum (1 by default) and its maximum. For a preemptible job the
allocator decides: the requested number is the most that it may have. The first request counts from the current number
of replicas, a later one from the number that was requested before. A job with `scheduling: none` is answered with 409,
as no allocator would act on the request, and so is one that cannot be read or exceeds the limits of a job
(docs/limits.md).

## Limits

A body is at most 64 KiB of JSON in UTF-8, without repeated keys, at most 32 levels deep. 50 requests per second are
allowed for a job in the long run (50 for each 250 replicas of a job with more), and for an address 20 requests per
second with an invalid token or without the right, and 50 with tokens that the server does not know yet (429). Writes of
different namespaces take turns: while one namespace has very many, its own requests wait, and may be answered with 503.
While the server's copy of the cluster's state is older than 90 s, the answer is 503. Most of these are settings
(`DIFLOW_SERVER_...`).
"""

ERRORS: Final[dict[int, str]] = {
    400: "The request is malformed: a bad id, no JSON, an unknown task, a wrong type.",
    401: "No token, or an invalid one.",
    403: "The caller is not allowed to do this. Also if there is no such job.",
    404: "There is no such job (for callers who may see it).",
    405: "The path does not support this method.",
    408: "Not yet: ask again.",
    409: "Not possible in the job's state: another generation, below the minimum, ended, or scheduling none.",
    410: "Do not ask again: the job has ended, or the calling pod belongs to an earlier round.",
    413: "The body is too large.",
    415: "The body is not JSON in UTF-8.",
    422: "The body is well-formed, but not valid. `data.errors` has the paths of the fields.",
    429: "Too many requests, for the job or from the address.",
    500: "An internal error of the server.",
    501: "The path does not support this method, in the words of DI-orchestrator.",
    503: "Try again later: the current state of the cluster is not known, or its API server cannot be reached.",
}
_RETRIED: Final = frozenset({429, 503})


def tags() -> list[type[Routes]]:
    """All routes, in the order of the document."""
    return [V2Alpha1, *contribs.found("server.routes"), Own]


@cache
def text() -> str:
    """The document as served, and as stored in diflow/server/openapi.json."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


def document() -> Json:
    """The document as plain data."""
    kinds = {id(kind): kind for routes in tags() for kind in _kinds(routes)}
    made, definitions = TypeAdapter.json_schemas(
        [(key, "validation", TypeAdapter(kind)) for key, kind in kinds.items()], ref_template=_REF
    )
    schema_of = {key: _tidy(schema) for (key, _), schema in made.items()}
    schemas = {name: _tidy(schema) for name, schema in sorted(definitions["$defs"].items())}
    for answer in (each.answer for routes in tags() for each in routes.operations() if each.answer.name):
        schemas[answer.name] = _enveloped(True, schema_of[id(answer.kind)])
    schemas["Failure"] = _enveloped(False, {"type": "null"})
    schemas["Refusal"] = _enveloped(False, {"anyOf": [{"type": "null"}, _ref("Errors")]})
    paths: Json = {}
    for routes in tags():
        for prefix in routes.prefixes:
            for each in routes.operations():
                at = paths.setdefault(prefix + each.shown, _shared(routes, each, schema_of))
                at[each.method.lower()] = _operation(routes, each, prefix, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "diflow",
            "version": __version__,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "tags": [{"name": routes.tag, "description": routes.about} for routes in tags()],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "headers": {
                "RequestId": {
                    "description": "The caller's own X-Request-Id, or a new one.",
                    "schema": {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,64}$"},
                    "required": True,
                },
                "RetryAfter": {
                    "description": "Seconds after which to try again.",
                    "schema": {"type": "string", "pattern": "^[0-9]+$"},
                    "required": True,
                },
            },
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The token of a pod of the job, or of a user.",
                }
            },
        },
    }


def _kinds(routes: type[Routes]) -> Iterator[Any]:
    """The types of what is sent and answered."""
    yield from (Envelope, Errors)
    yield from (parameter.kind for parameter in routes.parameters)
    for each in routes.operations():
        yield from (parameter.kind for parameter in each.parameters)
        yield from (kind for kind in (each.body, each.answer.kind) if kind is not ...)


def _enveloped(success: bool, data: Json) -> Json:
    """The envelope with data of this kind."""
    return {
        "allOf": [_ref("Envelope")],
        "properties": {"success": {"const": success}, "code": {"const": 0 if success else 1}, "data": data},
        "required": ["success", "code", "message", "data"],
    }


def _shared(routes: type[Routes], each: Operation, schema_of: dict[int, Json]) -> Json:
    """What all methods of a path have in common: its parameters."""
    found = [_parameter(one, schema_of) for one in routes.parameters_of(each)]
    return {"parameters": found} if found else {}


def _parameter(given: Parameter, schema_of: dict[int, Json]) -> Json:
    return {
        "name": given.name,
        "in": given.where,
        "required": given.where == "path",
        **({"description": given.description} if given.description else {}),
        "schema": schema_of[id(given.kind)],
        **({"example": given.example} if given.example else {}),
    }


def _operation(routes: type[Routes], each: Operation, prefix: str, schema_of: dict[int, Json]) -> Json:
    """One method of a path."""
    responses = {"200": {"description": each.answer.description, "headers": _headers(200)}}
    if each.answer.kind is not ...:
        responses["200"]["content"] = {_JSON: {"schema": _answered(each.answer, schema_of)}}
    for status in sorted(each.errors):
        content = {_JSON: {"schema": _ref("Refusal" if status == 422 else "Failure")}}
        responses[str(status)] = {"description": ERRORS[status], "headers": _headers(status), "content": content}
    body = {"required": True, "content": {_JSON: {"schema": schema_of[id(each.body)]}}}
    return {
        "operationId": each.name + routes.prefixes[prefix],
        "tags": [routes.tag],
        "summary": each.summary,
        **({"description": each.description} if each.description else {}),
        **({"parameters": [_parameter(one, schema_of) for one in each.parameters]} if each.parameters else {}),
        **({} if routes.needs_token else {"security": []}),
        **({"requestBody": body} if each.body is not None else {}),
        "responses": responses,
    }


def _answered(answer: Answer, schema_of: dict[int, Json]) -> Json:
    return _ref(answer.name) if answer.name else schema_of[id(answer.kind)]


def _ref(model: str) -> Json:
    return {"$ref": _REF.format(model=model)}


def _headers(status: int) -> Json:
    """The headers of a response."""
    out: Json = {"X-Request-Id": {"$ref": "#/components/headers/RequestId"}}
    if status in _RETRIED:
        out["Retry-After"] = {"$ref": "#/components/headers/RetryAfter"}
    return out


def _tidy(schema: Any) -> Any:
    """Without the titles and null defaults that pydantic adds."""
    if isinstance(schema, list):
        return [_tidy(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _tidy(item) for name, item in value.items()} if key == "properties" else _tidy(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str)) and not (key == "default" and value is None)
    }


if __name__ == "__main__":
    sys.stdout.write(text())

"""The OpenAPI document of the API, made from the models: `python -m diflow.server.api.openapi > server/openapi.json`.

It says what is answered to whom, so precisely that a machine can check it (tests/server/api/test_schema.py).
"""

from __future__ import annotations

import json
import sys
from functools import cache
from typing import Any, Final

from pydantic.json_schema import models_json_schema

from diflow.server.api.models import Envelope, Errors, Hints, Profiling, ReplicasRequest, WrappedProfiling
from diflow.version import __version__

Json = dict[str, Any]

_JSON: Final = "application/json"
_REF: Final = "#/components/schemas/{model}"
_MODELS: Final = (ReplicasRequest, Profiling, WrappedProfiling, Hints, Envelope, Errors)
_ADDRESS: Final = r"^([^:]+:[0-9]+|\[[0-9a-fA-F:.]+\]:[0-9]+)?$"

_DESCRIPTION: Final = """\
What jobs of diflow, and the people who own them, ask for and tell.

## Who asks

A pod of a job shows the token in its file `/var/run/secrets/diflow/token`, as `Authorization: Bearer ...`: a
service-account token that is bound to the pod and whose audience names the job. It is for this job alone, and for as
long as the pod is there and of the job's current round; a pod of an earlier round is answered with 410. A person shows
a token of the cluster's API server, and may do with a job what the cluster lets him do with its Workflow (`get
workflows.argoproj.io` to look, `patch` to change); a 403 names the right that is missing.
Who may not see a job is told 403, whether it is there or not; 404 is for who may.

Clients that know nothing of tokens (DI-engine's, AdaptDL's) are served only where `DIFLOW_SERVER_UNPROVEN_PODS` is set:
then a pod of a job without a token is known by its address, and may ask for the jobs of its own namespace, but report
about its own job alone. The
containers of a job with the annotation `diflow/adaptdl: "true"` get the variables that AdaptDL's clients read.

## The envelope

Every answer is `{"success": bool, "code": 0 or 1, "message": text, "data": any}`, but for the two routes that clients
of AdaptDL know, where they are well. A message has neither apostrophes nor quotation marks. Each answer has an
`X-Request-Id`: the caller's own, or a new one. 429 and 503 say in `Retry-After` when to come again.

## What 200 means

*For replicas:* what was asked for stands in the cluster, and no crash of the server takes it back. Whether the cluster
has room for it is another matter: the allocator acts on it. With an `Idempotency-Key` a request that is sent again
(after a time-out, to another server, after a restart) is carried out once; the last 64 keys of a job are known. An
answer of 503 may mean that it was done: ask again with the same key. Requests of one job are carried out one after the
other; at most 64 of them wait.

*For reports* (profilings, hints): the report was checked and taken. It is written within about a second, in one write
with what the other replicas of the job report meanwhile; of each rank the newest report counts. A server that is told
to end writes what it has taken. One that is killed loses what it took in the last second: a report is a measurement,
and the next one follows.

## A job and its rounds

A job is the same job when it goes on in another Workflow. Its *generation* is the number of its current round. An id
that names another generation is answered with 409: its replicas are gone. The *group* of AdaptDL's clients counts from
0: it is the generation less one.

A job that has ended has no replicas and takes no reports: both are answered with 410, and so is a wait for the
addresses of a group that is over. A request for more or fewer replicas of it is answered with 409.

## Which task, and how many

Keys of a body are taken in any case, and a body without a number asks for none. Replicas are added to or removed from
the named task, else the elastic one (the first that has room between its
`minReplicas` and `maxReplicas`), else the last one. A job that is not preemptible gets what was asked for, between its
minimum (1 if it names none) and its maximum. A preemptible job gets what the allocator gives it: what was asked for is
the most that it may have, counted from what it has now until somebody has asked for a number, and then from that.
A job with `scheduling: none` is answered with 409, as nobody would act on it, and so is one that cannot be read or is
larger than any job may be (docs/limits.md).

## Limits

A body has at most 64 KiB of JSON in UTF-8, no key twice, 32 levels. A job may ask 50 times a second for long, and an
address may show 20 worthless tokens a second (429). From a copy of the cluster's state that is older than 90 s nobody
is answered (503). Most of these are settings (`DIFLOW_SERVER_...`).
"""

ERRORS: Final[dict[int, str]] = {
    400: "It cannot be understood: a bad id, no JSON, an unknown task, a wrong type.",
    401: "No token, or none that is worth anything.",
    403: "Not for this caller. Also where there is no such job.",
    404: "There is no such job (of those that the caller may see).",
    405: "Not with this method.",
    408: "Not yet: ask again.",
    409: "Not in the state that the job is in: another generation, below the minimum, ended, or with scheduling none.",
    410: "Over for good, so do not ask again: the job has ended, or the pod that asks is of an earlier round.",
    413: "The body is too large.",
    415: "The body is not JSON in UTF-8.",
    422: "It can be understood, and cannot be so. `data.errors` has the paths of the fields.",
    429: "Too many requests, for the job or from the address.",
    500: "A mistake in the server.",
    503: "Not now: the state of the cluster is not known well enough, or the cluster cannot be asked.",
}
_RETRIED: Final = frozenset({429, 503})


@cache
def text() -> str:
    """The document as it is checked in and served."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


def document() -> Json:
    """The document as plain data."""
    _, definitions = models_json_schema([(model, "validation") for model in _MODELS], ref_template=_REF)
    schemas = {name: _tidy(schema) for name, schema in sorted(definitions["$defs"].items())}
    schemas |= _answers()
    paths: Json = {}
    for prefix, suffix in (("/v2alpha1/job", ""), ("/v2alpha1", "Short")):
        paths[f"{prefix}/{{id}}/replicas"] = _replicas(suffix)
        paths[f"{prefix}/{{id}}/profilings"] = _profilings(suffix)
    paths["/hints/{namespace}/{name}"] = _hints()
    paths["/discover/{namespace}/{name}/{group}"] = _discover()
    paths |= _own()
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
        "tags": [
            {"name": "v2alpha1", "description": "A job's replicas, and what it reports."},
            {"name": "AdaptDL", "description": "What training processes of AdaptDL know."},
            {"name": "diflow", "description": "Health, and this document."},
        ],
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
                    "description": "Seconds after which to come again.",
                    "schema": {"type": "string", "pattern": "^[0-9]+$"},
                    "required": True,
                },
            },
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The token of a pod of the job, or of a person.",
                }
            },
        },
    }


def _answers() -> Json:
    """The envelope with each kind of data."""
    base: Json = {"allOf": [{"$ref": _REF.format(model="Envelope")}]}

    def with_data(success: bool, data: Json) -> Json:
        return {
            **base,
            "properties": {"success": {"const": success}, "code": {"const": 0 if success else 1}, "data": data},
            "required": ["success", "code", "message", "data"],
        }

    address = {"type": "string", "pattern": _ADDRESS}
    return {
        "Done": with_data(True, {"type": "null"}),
        "Replicas": with_data(
            True,
            {"type": "array", "items": address, "description": 'Addresses by rank; "" for a pod that has none yet.'},
        ),
        "Failure": with_data(False, {"type": "null"}),
        "Refusal": with_data(False, {"anyOf": [{"type": "null"}, {"$ref": _REF.format(model="Errors")}]}),
    }


def _replicas(suffix: str) -> Json:
    parameters = [_id()]
    body = _body({"$ref": _REF.format(model="ReplicasRequest")})
    key = {
        "name": "Idempotency-Key",
        "in": "header",
        "required": False,
        "description": "Text of the caller's own. A request that comes again with the same one is carried out once. "
        "The last 64 of a job are known.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
    }
    changed = (400, 401, 403, 404, 405, 409, 410, 413, 415, 422, 429, 500, 503)
    return {
        "parameters": parameters,
        "get": {
            "operationId": f"getReplicas{suffix}",
            "tags": ["v2alpha1"],
            "summary": "The addresses of a job's replicas",
            "description": "`podIP:port`, by rank over the whole job. The port is that named `di-port`, else 22270.",
            "responses": _responses("Replicas", (400, 401, 403, 404, 405, 409, 410, 429, 500, 503)),
        },
        "post": {
            "operationId": f"addReplicas{suffix}",
            "tags": ["v2alpha1"],
            "summary": "Ask for more replicas",
            "description": "Of a preemptible job this changes what the allocator may give it, within its minimum and "
            "maximum.",
            "parameters": [key],
            "requestBody": body,
            "responses": _responses("Done", changed),
        },
        "delete": {
            "operationId": f"deleteReplicas{suffix}",
            "tags": ["v2alpha1"],
            "summary": "Ask for fewer replicas",
            "description": "Those with the highest ranks of the task go, each with its grace period.",
            "parameters": [key],
            "requestBody": body,
            "responses": _responses("Done", changed),
        },
    }


def _profilings(suffix: str) -> Json:
    either = {"anyOf": [{"$ref": _REF.format(model=model)} for model in ("WrappedProfiling", "Profiling")]}
    return {
        "parameters": [_id()],
        "post": {
            "operationId": f"reportProfilings{suffix}",
            "tags": ["v2alpha1"],
            "summary": "Report about a replica's work",
            "description": "Under `data` or bare. Of each rank the newest report counts.",
            "requestBody": _body(either),
            "responses": _responses("Done", (400, 401, 403, 404, 405, 409, 410, 413, 415, 422, 429, 500, 503)),
        },
    }


def _hints() -> Json:
    return {
        "parameters": [_path("namespace"), _path("name")],
        "put": {
            "operationId": "putHints",
            "tags": ["AdaptDL"],
            "summary": "Hints of rank 0 for the scheduler",
            "requestBody": _body({"$ref": _REF.format(model="Hints")}),
            "responses": {
                "200": {"description": "Taken. The body is empty.", "headers": _headers(200)},
                **_responses("", (400, 401, 403, 404, 405, 410, 413, 415, 422, 429, 500, 503)),
            },
        },
    }


def _discover() -> Json:
    group = {
        "name": "group",
        "in": "path",
        "required": True,
        "description": "How often the job was started anew: 0 in its first round.",
        "schema": {"type": "integer", "minimum": 0, "maximum": 999_999_999},
    }
    timeout = {
        "name": "timeout",
        "in": "query",
        "required": False,
        "description": "Seconds to wait at most; the server has a limit of its own.",
        "schema": {"type": "integer", "minimum": 0, "maximum": 999_999, "default": 30},
    }
    addresses = {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1}
    return {
        "parameters": [_path("namespace"), _path("name"), group],
        "get": {
            "operationId": "discover",
            "tags": ["AdaptDL"],
            "summary": "Wait for the addresses of all replicas",
            "description": "A list of addresses by rank, without ports, and with no envelope around it.",
            "parameters": [timeout],
            "responses": {
                "200": {
                    "description": "All of them.",
                    "headers": _headers(200),
                    "content": {_JSON: {"schema": addresses}},
                },
                **_responses("", (400, 401, 403, 404, 405, 408, 410, 429, 500, 503)),
            },
        },
    }


def _own() -> Json:
    def page(name: str, summary: str, answer: Json, *errors: int) -> Json:
        return {
            "get": {
                "operationId": name,
                "tags": ["diflow"],
                "summary": summary,
                "security": [],
                "responses": {"200": {**answer, "headers": _headers(200)}, **_responses("", errors)},
            }
        }

    ready = {"description": "Ready.", "content": {_JSON: {"schema": {"$ref": _REF.format(model="Done")}}}}
    itself = {"description": "The document.", "content": {_JSON: {"schema": {"type": "object"}}}}
    return {
        "/healthz": page("healthz", "Whether the server runs", {"description": "It does. The body is empty."}, 405),
        "/readyz": page("readyz", "Whether requests can be answered", ready, 405, 503),
        "/openapi.json": page("openapi", "This document", itself, 405),
    }


def _id() -> Json:
    return {
        "name": "id",
        "in": "path",
        "required": True,
        "description": "The job: `namespace.name`, `namespace.name.generation`, or `namespace/name` (escaped). The "
        "generation is the number of the current round.",
        "schema": {"type": "string", "pattern": r"^[a-z0-9-]+\.[a-z0-9-]+(\.[0-9]{1,9})?$"},
        "example": "default.cartpole",
    }


def _path(name: str) -> Json:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "schema": {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63},
    }


def _body(schema: Json) -> Json:
    return {"required": True, "content": {_JSON: {"schema": schema}}}


def _responses(done: str, errors: tuple[int, ...]) -> Json:
    out: Json = {}
    if done:
        schema = {"$ref": _REF.format(model=done)}
        out["200"] = {"description": "Done.", "headers": _headers(200), "content": {_JSON: {"schema": schema}}}
    for status in errors:
        schema = {"$ref": _REF.format(model="Refusal" if status == 422 else "Failure")}
        out[str(status)] = {
            "description": ERRORS[status],
            "headers": _headers(status),
            "content": {_JSON: {"schema": schema}},
        }
    return out


def _headers(status: int) -> Json:
    out: Json = {"X-Request-Id": {"$ref": "#/components/headers/RequestId"}}
    if status in _RETRIED:
        out["Retry-After"] = {"$ref": "#/components/headers/RetryAfter"}
    return out


def _tidy(schema: Any) -> Any:
    """Without what pydantic adds for forms: titles, and defaults that are null."""
    if isinstance(schema, list):
        return [_tidy(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _tidy(item) for name, item in value.items()} if key == "properties" else _tidy(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str)) and not (key == "default" and value is None)
    }


def main() -> None:
    """Print the document."""
    sys.stdout.write(text())


if __name__ == "__main__":
    main()

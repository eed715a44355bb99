"""The OpenAPI document, generated from the models: `python -m diflow.server.api.openapi > diflow/server/openapi.json`.

tests/server/api/test_schema.py checks the server's responses against it.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from typing import Any, Final

from pydantic.json_schema import models_json_schema

from diflow.common.limits import MOST_REPLICAS
from diflow.server.api.models import (
    Envelope,
    Errors,
    Hints,
    Leases,
    NodeCheckAnswer,
    NodeCheckReport,
    Profiling,
    ReplicasRequest,
    ShardsRequest,
    WrappedProfiling,
)
from diflow.version import __version__

Json = dict[str, Any]

_JSON: Final = "application/json"
_REF: Final = "#/components/schemas/{model}"
_MODELS: Final = (
    ReplicasRequest,
    Profiling,
    WrappedProfiling,
    ShardsRequest,
    Leases,
    NodeCheckReport,
    NodeCheckAnswer,
    Hints,
    Envelope,
    Errors,
)
_ADDRESS: Final = r"^([^:]+:[0-9]+|\[[0-9a-fA-F:.]+\]:[0-9]+)?$"

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
second with an invalid token or without the right (429). While the server's copy of the cluster's state is older than
90 s, the answer is 503. Most of these are settings (`DIFLOW_SERVER_...`).
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
_OF_WRITES: Final = (400, 401, 403, 404, 405, 409, 410, 413, 415, 422, 429, 500, 503)
_OF_MODULES: Final = (400, 401, 403, 404, 409, 410, 413, 422, 429, 500, 501, 503)


@cache
def text() -> str:
    """The document as served, and as stored in diflow/server/openapi.json."""
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
        paths[f"{prefix}/{{id}}/shards"] = _shards(suffix)
        paths[f"{prefix}/{{id}}/checks"] = _checks(suffix)
    paths["/v1alpha1/replicas"] = _module_replicas()
    paths["/v1alpha1/replicas/failed"] = _failed_modules()
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
            {"name": "v2alpha1", "description": "A job's replicas, and its reports."},
            {
                "name": "v1alpha1",
                "description": "The replicas of a coordinator. For jobs with a coordinator, of DI-orchestrator v0.x.",
            },
            {"name": "AdaptDL", "description": "The routes of AdaptDL's training processes."},
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


def _answers() -> Json:
    """The envelope with each kind of data."""
    base: Json = {"allOf": [_ref("Envelope")]}

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
            {"type": "array", "items": address, "description": 'Addresses by rank; "" for a replica without one.'},
        ),
        "Modules": with_data(True, _ref("ModuleReplicas")),
        "AnyModules": with_data(
            True,
            {
                "anyOf": [
                    _ref("ModuleReplicas"),
                    {"type": "array", "items": _ref("ModuleReplicas")},
                ]
            },
        ),
        "ModuleReplicas": {
            "type": "object",
            "description": "The replicas of a coordinator or an aggregator, as `host:port`.",
            "properties": {
                "namespace": {"type": "string"},
                "coordinator": {"type": "string", "description": "The pod of the coordinator or the aggregator."},
                "collectors": {"type": "array", "items": {"type": "string"}},
                "learners": {"type": "array", "items": {"type": "string"}, "description": "Aggregators, too."},
            },
            "required": ["namespace", "coordinator", "collectors", "learners"],
        },
        "ModulesRequest": _modules_request(),
        "WantedModules": _wanted_modules(),
        "FailedRequest": _failed_request(),
        "Shards": with_data(True, _ref("Leases")),
        "NodeCheck": with_data(True, _ref("NodeCheckAnswer")),
        "Failure": with_data(False, {"type": "null"}),
        "Refusal": with_data(False, {"anyOf": [{"type": "null"}, _ref("Errors")]}),
    }


def _replicas(suffix: str) -> Json:
    key = {
        "name": "Idempotency-Key",
        "in": "header",
        "required": False,
        "description": "Text that the caller chooses. A request that is sent again with the same key is carried out "
        "once. The last 64 keys of a job are stored.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
    }
    changes: Json = {"answer": "Done", "errors": _OF_WRITES, "body": _ref("ReplicasRequest"), "parameters": [key]}
    return {
        "parameters": [_id()],
        "get": _operation(
            f"getReplicas{suffix}",
            "The addresses of a job's replicas",
            "`podIP:port`, by rank over the whole job: the container port named `di-port`, else 22270.",
            answer="Replicas",
            errors=(400, 401, 403, 404, 405, 409, 410, 429, 500, 503),
        ),
        "post": _operation(
            f"addReplicas{suffix}",
            "Request more replicas",
            "For a preemptible job this changes the most that the allocator may give it, within its minimum and "
            "maximum.",
            **changes,
        ),
        "delete": _operation(
            f"deleteReplicas{suffix}",
            "Request fewer replicas",
            "The task's replicas with the highest ranks are removed, each with its grace period.",
            **changes,
        ),
    }


def _profilings(suffix: str) -> Json:
    made = _operation(
        f"reportProfilings{suffix}",
        "Report about a replica's work",
        "Under `data` or bare. Of each rank the newest report counts.",
        answer="Done",
        errors=_OF_WRITES,
        body={"anyOf": [_ref("WrappedProfiling"), _ref("Profiling")]},
    )
    return {"parameters": [_id()], "post": made}


def _shards(suffix: str) -> Json:
    made = _operation(
        f"leaseShards{suffix}",
        "Report shards done, and lease shards",
        "For the pods of the job. The answer names all shards that the worker has, and is sent when that is stored. A "
        "request that is sent again has the same effect.",
        answer="Shards",
        errors=_OF_WRITES,
        body=_ref("ShardsRequest"),
    )
    return {"parameters": [_id()], "post": made}


def _checks(suffix: str) -> Json:
    made = _operation(
        f"reportNodeCheck{suffix}",
        "Report the result of a node check",
        "For the pods of the job, before their work begins. A request that is sent again has the same effect.",
        answer="NodeCheck",
        errors=_OF_WRITES,
        body=_ref("NodeCheckReport"),
    )
    return {"parameters": [_id()], "post": made}


def _module_replicas() -> Json:
    def query(name: str, description: str) -> Json:
        return {"name": name, "in": "query", "description": description, "schema": {"type": "string"}}

    of_modules: Json = {"tag": "v1alpha1", "errors": _OF_MODULES}
    return {
        "get": _operation(
            "getModules",
            "The replicas of a coordinator or an aggregator",
            "Without either: of all coordinators of the namespace, or of all namespaces, as a list. Another parameter "
            "is an error.",
            answer="AnyModules",
            parameters=[
                query("namespace", "The namespace of the job."),
                query("coordinator", "The name of the coordinator's pod."),
                query("aggregator", "The name of an aggregator's pod: its ddp learners."),
                query("name", "The name of the pod of either."),
            ],
            **of_modules,
        ),
        "post": _operation(
            "createModules",
            "Add replicas to a coordinator",
            "A learner with more than one GPU becomes an aggregator with ddp learners.",
            answer="Modules",
            body=_ref("ModulesRequest"),
            **of_modules,
        ),
        "delete": _operation(
            "deleteModules",
            "Remove replicas of a coordinator",
            "First those that do not run yet, then the newest.",
            answer="Modules",
            body=_ref("ModulesRequest"),
            **of_modules,
        ),
    }


def _failed_modules() -> Json:
    made = _operation(
        "replaceModules",
        "Replace replicas that have failed",
        "The answer has those in their place.",
        tag="v1alpha1",
        answer="Modules",
        errors=_OF_MODULES,
        body=_ref("FailedRequest"),
    )
    return {"post": made}


def _wanted_modules() -> Json:
    quantity = {"anyOf": [{"type": kind} for kind in ("string", "number", "null")]}
    return {
        "type": "object",
        "description": "How many replicas, and what each requests: quantities of Kubernetes, such as 2, 500m or 4Gi.",
        "properties": {
            "replicas": {"anyOf": [{"type": "integer", "maximum": MOST_REPLICAS}, {"type": "null"}]},
            **dict.fromkeys(("cpus", "gpus", "memory"), quantity),
        },
    }


def _modules_request() -> Json:
    wanted = {"anyOf": [_ref("WantedModules"), {"type": "null"}]}
    return {
        "type": "object",
        "description": "Keys match in any case.",
        "properties": {**_coordinator(), "collectors": wanted, "learners": wanted},
        "required": ["namespace", "coordinator"],
        "example": {
            "namespace": "default",
            "coordinator": "cartpole-coordinator",
            "collectors": {"replicas": 2, "cpus": "0.5", "gpus": "0", "memory": "1Gi"},
        },
    }


def _failed_request() -> Json:
    names = {
        "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
        "description": "Names of pods, or `host:port`.",
    }
    return {
        "type": "object",
        "description": "Keys match in any case.",
        "properties": {**_coordinator(), "collectors": names, "learners": names},
        "required": ["namespace", "coordinator"],
    }


def _coordinator() -> Json:
    return {
        "namespace": {"type": "string"},
        "coordinator": {"type": "string", "description": "The name of the coordinator's pod."},
    }


def _hints() -> Json:
    made = _operation(
        "putHints",
        "Hints of rank 0 for the scheduler",
        tag="AdaptDL",
        answer={"description": "Accepted. The body is empty."},
        errors=(400, 401, 403, 404, 405, 410, 413, 415, 422, 429, 500, 503),
        body=_ref("Hints"),
    )
    return {"parameters": [_path("namespace"), _path("name")], "put": made}


def _discover() -> Json:
    group = {
        "name": "group",
        "in": "path",
        "required": True,
        "description": "How often the job has restarted: 0 in its first round.",
        "schema": {"type": "integer", "minimum": 0, "maximum": 999_999_999},
    }
    timeout = {
        "name": "timeout",
        "in": "query",
        "required": False,
        "description": "The most seconds to wait; the server limits it further.",
        "schema": {"type": "integer", "minimum": 0, "maximum": 999_999, "default": 30},
    }
    addresses = {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1}
    made = _operation(
        "discover",
        "Wait for the addresses of all replicas",
        "The list of addresses by rank, without ports and without the envelope.",
        tag="AdaptDL",
        answer={"description": "All addresses.", "headers": _headers(200), "content": {_JSON: {"schema": addresses}}},
        errors=(400, 401, 403, 404, 405, 408, 410, 429, 500, 503),
        parameters=[timeout],
    )
    return {"parameters": [_path("namespace"), _path("name"), group], "get": made}


def _own() -> Json:
    def page(name: str, summary: str, answer: Json, *errors: int) -> Json:
        return {"get": _operation(name, summary, tag="diflow", answer=answer, errors=errors, security=[])}

    ready = {"description": "Ready.", "content": {_JSON: {"schema": _ref("Done")}}}
    itself = {"description": "The document.", "content": {_JSON: {"schema": {"type": "object"}}}}
    return {
        "/healthz": page("healthz", "Whether the server runs", {"description": "It runs. The body is empty."}, 405),
        "/readyz": page("readyz", "Whether requests can be answered", ready, 405, 503),
        "/openapi.json": page("openapi", "This document", itself, 405),
    }


def _operation(
    name: str,
    summary: str,
    description: str = "",
    *,
    tag: str = "v2alpha1",
    answer: str | Json,
    errors: tuple[int, ...],
    body: Json | None = None,
    **more: Any,
) -> Json:
    """One method of a path. `answer`: the name of the schema of a success, or the whole response."""
    if isinstance(answer, str):
        content = {_JSON: {"schema": _ref(answer)}}
        answer = {"description": "Done.", "headers": _headers(200), "content": content}
    responses = {"200": {**answer, "headers": _headers(200)}}
    for status in errors:
        schema = _ref("Refusal" if status == 422 else "Failure")
        content = {_JSON: {"schema": schema}}
        responses[str(status)] = {"description": ERRORS[status], "headers": _headers(status), "content": content}
    return {
        "operationId": name,
        "tags": [tag],
        "summary": summary,
        **({"description": description} if description else {}),
        **more,
        **({"requestBody": {"required": True, "content": {_JSON: {"schema": body}}}} if body else {}),
        "responses": responses,
    }


def _ref(model: str) -> Json:
    return {"$ref": _REF.format(model=model)}


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


def _headers(status: int) -> Json:
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

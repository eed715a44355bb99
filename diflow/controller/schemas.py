"""Parts of the schemas of the CustomResourceDefinitions, generated from the models that `diflow submit` uses.

The schema of a pod template is that of `diflow.dijob.rules.podtemplate`, so the API server keeps the fields that
diflow knows and drops the others.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Final

from diflow.common import keys
from diflow.dijob.model import DIJob, Task
from diflow.dijob.rules.podtypes import PodTemplate
from diflow.record.status.status import PHASES

Json = dict[str, Any]

KEPT: Final[Json] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
"""An object of the other version, which is kept as it is."""
ANYTHING: Final[Json] = {"x-kubernetes-preserve-unknown-fields": True}
"""A field that is `true` or an object, for which a structural schema has no words. The controller checks it."""
_INT_OR_STRING: Final[Json] = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}
# Fields of Kubernetes whose schema is not that of Hera's models.
_BY_NAME: Final[dict[str, Json]] = {
    "Quantity": _INT_OR_STRING,
    "IntOrString": _INT_OR_STRING,
    "ObjectMeta": {
        "type": "object",
        "properties": {
            name: {"type": "object", "additionalProperties": {"type": "string"}} for name in ("labels", "annotations")
        },
    },
}
_KEPT: Final = ("type", "format", "enum", "minItems", "minimum", "maximum")


def definition(kind: str, plural: str, short: str, versions: Sequence[Json], **spec: Json) -> Json:
    """A CustomResourceDefinition, as `kubectl apply` takes it."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{keys.API_GROUP}", "labels": {"app.kubernetes.io/part-of": "diflow"}},
        "spec": {
            "group": keys.API_GROUP,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
            },
            "scope": "Namespaced",
            **spec,
            "versions": list(versions),
        },
    }


def version(name: str, schema: Json, *, is_stored: bool, columns: Sequence[Json] = ()) -> Json:
    """A version of a CustomResourceDefinition with the schema of its objects. `columns`: what `kubectl get` prints."""
    known = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
    schema = {**schema, "properties": {**known, **schema["properties"]}}
    return {
        "name": name,
        "served": True,
        "storage": is_stored,
        "subresources": {"status": {}},
        **({"additionalPrinterColumns": list(columns)} if columns else {}),
        "schema": {"openAPIV3Schema": schema},
    }


def metadata() -> Json:
    """The metadata of a DIJob: the rules on its name need a bound."""
    return {"type": "object", "properties": {"name": {"type": "string", "maxLength": keys.LABEL_LIMIT}}}


def status() -> Json:
    """The status of a DIJob, in both versions."""
    count = {"type": "integer", "format": "int32", "minimum": 0}
    text = {"type": "string"}
    condition = dict.fromkeys(("type", "status", "reason", "message"), text) | {
        name: {"type": "string", "format": "date-time"} for name in ("lastTransitionTime", "lastUpdateTime")
    }
    return {
        "type": "object",
        "description": "What the controller has seen of the job.",
        "properties": {
            "phase": {
                "type": "string",
                "enum": [*PHASES, "Created"],
                "description": "What the job is doing. It ends as Succeeded or Failed.",
            },
            "reason": text,
            "message": {**text, "description": "What the job waits for, or why it failed."},
            "conditions": {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
                "items": {"type": "object", "required": ["type", "status"], "properties": condition},
            },
            "observedGeneration": {
                "type": "integer",
                "format": "int64",
                "minimum": 0,
                "description": "The metadata.generation of the object that this status is of.",
            },
            "replicas": {**count, "description": "How many replicas should run. A write by others is a request."},
            "readyReplicas": {**count, "description": "How many of them are ready."},
            "taskStatus": {
                "type": "object",
                "description": "The number of pods by task and phase.",
                "additionalProperties": {"type": "object", "additionalProperties": count},
            },
            "allocation": {
                "type": "object",
                "description": "The nodes of the replicas, by task.",
                "additionalProperties": {"type": "array", "items": text},
            },
            "profilings": {
                "type": "object",
                "x-kubernetes-preserve-unknown-fields": True,
                "description": "What the program has reported.",
            },
            "restarts": {**count, "description": "Failures that count against backoffLimit, so far."},
            "reschedules": {**count, "description": "New pods and rounds that do not count, so far."},
            "startTime": {"type": "string", "format": "date-time"},
            "completionTimestamp": {"type": "string", "format": "date-time"},
            "result": {
                **text,
                "description": "What the first replica has written to /dev/termination-log, if it has succeeded.",
            },
            "expiresAt": {
                "type": "string",
                "format": "date-time",
                "description": "When the ended job is deleted.",
            },
            "reportedReplicas": {**count, "description": "The number that the controller last wrote as replicas."},
            "scaleRequests": {
                **count,
                "description": "How many writes of replicas by others the controller has answered.",
            },
        },
    }


def rule(text: str, message: str, *, says: str = "") -> Json:
    """A rule in CEL. `says` is the expression of its message."""
    return {"rule": text, "message": message, **({"messageExpression": says} if says else {})}


def fixed(name: str, message: str) -> Json:
    """The rule that an optional field does not change."""
    return rule(
        f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})", message
    )


def clean_pod_policy() -> Json:
    """The schema of this field, in both versions."""
    return {
        "type": "string",
        "default": "Running",
        "maxLength": keys.LABEL_LIMIT,
        "description": "Which pods are deleted when the job has ended: Running, All or None.",
        "x-kubernetes-validations": [
            rule(
                "self in ['', 'None', 'Running', 'All']",
                "Invalid CleanPodPolicy, expected in [None, Running, All]",
                says="'Invalid CleanPodPolicy ' + self + ', expected in [None, Running, All]'",
            )
        ],
    }


def described(schema: Json, description: str, **more: Any) -> Json:
    """The schema with a description."""
    return {**schema, "description": description, **more}


def own(model: type[DIJob] | type[Task]) -> dict[str, Json]:
    """The schemas of the plain fields of one of our models, by their name in a manifest."""
    found = model.model_json_schema(by_alias=True)
    return {name: _structural(schema, found.get("$defs", {})) for name, schema in found["properties"].items()}


def pod_template() -> Json:
    """The schema of a PodTemplateSpec."""
    found = PodTemplate.model_json_schema(by_alias=True)
    out: Json = _structural(found, found["$defs"])
    return out


def _structural(schema: Json, definitions: dict[str, Json]) -> Json:
    """A JSON schema of pydantic as Kubernetes wants one: no references, no unions with null, no descriptions."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name in _BY_NAME:
            return copy.deepcopy(_BY_NAME[name])
        return _structural(definitions[name], definitions)
    if "anyOf" in schema:  # with null
        (known,) = [one for one in schema["anyOf"] if one.get("type") != "null"]
        return _structural(known, definitions)
    out: Json = {name: schema[name] for name in _KEPT if schema.get(name) is not None}
    if "properties" in schema:
        out["properties"] = {
            # Hera's model lacks the names of ports in `httpGet`.
            name: copy.deepcopy(_INT_OR_STRING)
            if (schema.get("title"), name) == ("HTTPGetAction", "port")
            else _structural(inner, definitions)
            for name, inner in schema["properties"].items()
        }
        if schema.get("required"):
            out["required"] = list(schema["required"])
    if isinstance(schema.get("additionalProperties"), dict):
        out["additionalProperties"] = _structural(schema["additionalProperties"], definitions)
    if "items" in schema:
        out["items"] = _structural(schema["items"], definitions)
    return out

"""Parts of the schemas of the CustomResourceDefinitions, generated from the models that `diflow submit` uses.

The schema of a pod template is that of `diflow.dijob.rules.podtemplate`, so the API server keeps the fields that
diflow knows and drops the others.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Final

from pydantic import BaseModel

from diflow.common import keys
from diflow.dijob.rules.podtypes import PodTemplate
from diflow.record.status.timeline import PHASES

Json = dict[str, Any]

KEPT: Final[Json] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
"""An object that is kept as it is, and whose fields the API server does not check."""
MOST_ITEMS: Final = 4096
"""Of a list of objects that has no bound of its own. In 128 KiB, a list may have 40,000 empty objects, of which each
takes more memory than text."""
_INT_OR_STRING: Final[Json] = {"x-kubernetes-int-or-string": True}
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
_OF_KUBERNETES: Final = ("type", "format", "enum", "minItems", "minimum", "maximum")
_OWN: Final = (*_OF_KUBERNETES, "maxItems", "minLength", "maxLength", "description")
"""What is kept of the schema of a field, which for the fields of a pod is without descriptions, as they are many."""


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
    schema = _with_bounded_lists({**schema, "properties": {**known, **schema["properties"]}})
    return {
        "name": name,
        "served": True,
        "storage": is_stored,
        "subresources": {"status": {}},
        **({"additionalPrinterColumns": list(columns)} if columns else {}),
        "schema": {"openAPIV3Schema": schema},
    }


def _with_bounded_lists(schema: Any) -> Any:
    """The schema, in which no list of objects is without a bound."""
    if isinstance(schema, list):
        return [_with_bounded_lists(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    items = schema.get("items") if schema.get("type") == "array" else None
    is_of_objects = isinstance(items, dict) and items.get("type") in ("object", "array")
    bound = {"maxItems": MOST_ITEMS} if is_of_objects else {}
    return {**bound, **{name: _with_bounded_lists(one) for name, one in schema.items()}}


def metadata() -> Json:
    """The metadata of a DIJob: the rules on its name need a bound."""
    return {"type": "object", "properties": {"name": {"type": "string", "maxLength": keys.LABEL_LIMIT}}}


def status() -> Json:
    """The status of a DIJob, in both versions."""
    text, moment = {"type": "string"}, {"type": "string", "format": "date-time"}
    count = {"type": "integer", "format": "int32", "minimum": 0}
    condition = dict.fromkeys(("type", "status", "reason", "message"), text) | dict.fromkeys(
        ("lastTransitionTime", "lastUpdateTime"), moment
    )
    conditions = {
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {"type": "object", "required": ["type", "status"], "properties": condition},
    }
    by_phase = {"type": "object", "additionalProperties": {"type": "object", "additionalProperties": count}}
    by_task = {"type": "object", "additionalProperties": {"type": "array", "items": text}}
    phase = {**text, "enum": [*PHASES, "Created"]}
    fields = {
        "phase": described(phase, "What the job is doing. It ends as Succeeded or Failed."),
        "reason": text,
        "message": described(text, "What the job waits for, or why it failed."),
        "conditions": conditions,
        "observedGeneration": described(
            {**count, "format": "int64"}, "The metadata.generation of the object that this status is of."
        ),
        "replicas": described(count, "How many replicas should run. A write by others is a request."),
        "readyReplicas": described(count, "How many of them are ready."),
        "taskStatus": described(by_phase, "The number of pods by task and phase."),
        "allocation": described(by_task, "The nodes of the replicas, by task."),
        "profilings": described(KEPT, "What the program has reported."),
        "restarts": described(count, "Failures that count against backoffLimit, so far."),
        "reschedules": described(count, "New pods and rounds that do not count, so far."),
        "startTime": moment,
        "completionTimestamp": moment,
        "result": described(text, "What the first replica has written to /dev/termination-log, if it has succeeded."),
        "expiresAt": described(moment, "When the ended job is deleted."),
        "reportedReplicas": described(count, "The number that the controller last wrote as replicas."),
        "scaleRequests": described(count, "How many writes of replicas by others the controller has answered."),
    }
    return {"type": "object", "description": "What the controller has seen of the job.", "properties": fields}


def rule(text: str, message: str, *, says: str = "") -> Json:
    """A rule in CEL. `says` is the expression of its message."""
    return {"rule": text, "message": message, **({"messageExpression": says} if says else {})}


def fixed(name: str, message: str, *, is_there: bool = False) -> Json:
    """The rule that a field does not change. `is_there`: it has a default, so each object has it."""
    if is_there:
        return rule(f"self.{name} == oldSelf.{name}", message)
    text = f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})"
    return rule(text, message)


def described(schema: Json, description: str) -> Json:
    """The schema with a description."""
    return {**schema, "description": description}


def own(model: type[BaseModel]) -> dict[str, Json]:
    """The schemas of the fields of one of our models, by their name in a manifest, with descriptions and defaults.

    The defaults of fields inside of these fields are said in their descriptions alone.
    """
    found = model.model_json_schema(by_alias=True)
    out = {name: _structural(schema, found.get("$defs", {}), _OWN) for name, schema in found["properties"].items()}
    for name, schema in found["properties"].items():
        if isinstance(default := schema.get("default"), str | int) and default != "":
            out[name]["default"] = default
    return out


def pod_template() -> Json:
    """The schema of a PodTemplateSpec."""
    found = PodTemplate.model_json_schema(by_alias=True)
    return _structural(found, found["$defs"], _OF_KUBERNETES)


def _structural(schema: Json, definitions: dict[str, Json], kept: Sequence[str]) -> Json:
    """A JSON schema of pydantic as Kubernetes wants one: no references, and no unions with null."""
    out: Json = {name: schema[name] for name in kept if schema.get(name) is not None}
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return {**copy.deepcopy(_BY_NAME.get(name) or _structural(definitions[name], definitions, kept)), **out}
    if "anyOf" in schema:  # with null
        (known,) = [one for one in schema["anyOf"] if one.get("type") != "null"]
        return {**_structural(known, definitions, kept), **out}
    if "properties" in schema:
        # Hera's model lacks the names of ports in `httpGet`.
        out["properties"] = {
            name: copy.deepcopy(_INT_OR_STRING)
            if (schema.get("title"), name) == ("HTTPGetAction", "port")
            else _field(inner, definitions, kept)
            for name, inner in schema["properties"].items()
        }
        if schema.get("required"):
            out["required"] = list(schema["required"])
    for name in ("additionalProperties", "items"):
        if isinstance(schema.get(name), dict):
            out[name] = _structural(schema[name], definitions, kept)
    return out


def _field(schema: Json, definitions: dict[str, Json], kept: Sequence[str]) -> Json:
    """The schema of a field of an object, whose description says its default."""
    out = _structural(schema, definitions, kept)
    if "description" in out and schema.get("default"):
        out["description"] += f" By default {schema['default']}."
    return out

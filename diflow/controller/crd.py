"""The CustomResourceDefinition of DIJobs, generated from the models that `diflow submit` uses.

The schema of a pod template is that of `diflow.spec.podtemplate`, so the API server keeps the fields that diflow knows
and drops the others. Rules in CEL refuse what can never run. Rules have cost limits, which the API server computes from
the largest sizes that the schema allows: the arrays and texts that a rule reads are bounded.
"""

from __future__ import annotations

import copy
from typing import Any, Final

from diflow import bounds, keys
from diflow.job import DIJob, Task
from diflow.names import TASK_PATTERN
from diflow.spec.podtemplate import PodTemplate
from diflow.yamltext import dump_yaml

Json = dict[str, Any]

PLURAL: Final = "dijobs"
NAME: Final = f"{PLURAL}.{keys.API_GROUP}"
_HEAD: Final = "# Generated from the models (`make golden`).\n"

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
_ADVICE: Final = "delete the job and create it again"
CHANGEABLE: Final = "replicas, minReplicas and maxReplicas of its tasks"
"""What may change in the spec of a job that was created."""

# What cannot change in the spec, besides its tasks.
_WITH_DEFAULT: Final = ("priority", "preemptible", "backoffLimit", "cleanPodPolicy")
_LONGEST_KEY: Final = 253 + 1 + keys.LABEL_LIMIT
"""Characters of a label's key: a prefix, a slash and a name."""
_OPTIONAL: Final = ("topology", "queue", "scheduling", "volumes", "ttlSecondsAfterFinished")

# Expressions of CEL.
_IS_NAMED: Final = "has({0}.name) && {0}.name != ''"
_TASK_NAME: Final = f"({_IS_NAMED} ? {{0}}.name : {{0}}.type)"
_TYPES: Final = "['learner', 'collector', 'evaluator']"
_TWICE: Final = "self.filter(u, u.type == {}).size() > 1"
_MOST_REPLICAS: Final = "(has(t.maxReplicas) ? t.maxReplicas : t.replicas)"
# Of another task with the same name: two tasks of one type are a fault of their own.
_SAME_NAME: Final = (
    f"self.filter(u, {_TASK_NAME.format('u')} == {_TASK_NAME.format('t')} && "
    "(u.type == 'none' || u.type != t.type)).size() > (t.type == 'none' ? 1 : 0)"
)
_PHASES: Final = ["Pending", "Starting", "Running", "Restarting", "Rescheduling", "Succeeded", "Failed", "Unknown"]


def crd() -> Json:
    """The CustomResourceDefinition, as `kubectl apply` takes it."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME, "labels": {"app.kubernetes.io/part-of": "diflow"}},
        "spec": {
            "group": keys.API_GROUP,
            "names": {
                "kind": keys.KIND,
                "listKind": f"{keys.KIND}List",
                "plural": PLURAL,
                "singular": "dijob",
                "shortNames": ["dijob"],
            },
            "scope": "Namespaced",
            "versions": [_v2alpha1()],
        },
    }


def crd_yaml() -> str:
    """The CustomResourceDefinition as YAML."""
    return _HEAD + dump_yaml(crd())


def _v2alpha1() -> Json:
    return {
        "name": keys.API_VERSION.rpartition("/")[2],
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
            {"name": "ReadyReplicas", "type": "integer", "jsonPath": ".status.readyReplicas"},
            {"name": "Replicas", "type": "integer", "jsonPath": ".status.replicas"},
            {"name": "Restarts", "type": "integer", "jsonPath": ".status.restarts"},
            {"name": "Reschedules", "type": "integer", "jsonPath": ".status.reschedules"},
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        ],
        "schema": {"openAPIV3Schema": _root()},
    }


def _root() -> Json:
    return {
        "description": "A reinforcement-learning or distributed-training job, run as one Argo Workflow.",
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": keys.LABEL_LIMIT}}},
            "spec": _spec(),
            "status": _status(),
        },
        "x-kubernetes-validations": [
            _rule(
                "!self.metadata.name.contains('.')",
                "the name of a job is part of its host names: lower-case letters, digits and dashes",
            ),
            _rule(
                f"self.spec.tasks.all(t, size(self.metadata.name) + size({_TASK_NAME.format('t')}) + "
                f"size(string({_MOST_REPLICAS} - 1)) + 2 <= {keys.LABEL_LIMIT})",
                f"a host name <job>-<task>-<index> would have more than {keys.LABEL_LIMIT} characters: shorten the "
                "name of the job or of the task",
            ),
            _rule(
                "!has(oldSelf.status) || !has(oldSelf.status.phase) || "
                "!(oldSelf.status.phase in ['Succeeded', 'Failed']) || self.spec == oldSelf.spec",
                f"the job has ended, so its spec cannot change: {_ADVICE}",
                says=f"'the job has ended (' + oldSelf.status.phase + '), so its spec cannot change: {_ADVICE}'",
            ),
        ],
    }


def _spec() -> Json:
    own = _own(DIJob)
    cannot = f"cannot change in a job that was created. What can change are {CHANGEABLE}; for the rest {_ADVICE}"
    return {
        "type": "object",
        "required": ["tasks"],
        "properties": {
            "priority": {**own["priority"], "default": "normal"},
            "queue": _described(own["queue"], "The queue on whose share the job draws.", maxLength=keys.LABEL_LIMIT),
            "scheduling": _described(own["scheduling"], "gang: by the allocator; none: by Argo alone."),
            "preemptible": {
                "type": "boolean",
                "default": False,
                "description": "Whether the allocator may resize, move and stop the job while it runs.",
            },
            "backoffLimit": {
                **_described(own["backoffLimit"], "How often a replica that failed is started again."),
                "default": 3,
            },
            "cleanPodPolicy": {
                "type": "string",
                "default": "Running",
                "maxLength": keys.LABEL_LIMIT,
                "description": "Which pods are deleted when the job has ended: Running, All or None.",
                "x-kubernetes-validations": [
                    _rule(
                        "self in ['', 'None', 'Running', 'All']",
                        "Invalid CleanPodPolicy, expected in [None, Running, All]",
                        says="'Invalid CleanPodPolicy ' + self + ', expected in [None, Running, All]'",
                    )
                ],
            },
            "ttlSecondsAfterFinished": _described(
                own["ttlSecondsAfterFinished"], "How many seconds the job is kept after it has ended."
            ),
            "topology": {
                "type": "object",
                "required": ["required"],
                "description": "The level of which one domain must hold the whole job, such as a rack.",
                "properties": {"required": {"type": "string", "minLength": 1, "maxLength": _LONGEST_KEY}},
            },
            "group": {"type": "string", "description": "Has no meaning: a field of older manifests."},
            "volumes": {
                "type": "array",
                "description": "Volumes that all pods of the job have.",
                "items": _pod_template()["properties"]["spec"]["properties"]["volumes"]["items"],
            },
            "tasks": _tasks(),
        },
        "x-kubernetes-validations": [
            *(_rule(f"self.{name} == oldSelf.{name}", f"{name} {cannot}") for name in _WITH_DEFAULT),
            *(
                _rule(
                    f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})",
                    f"{name} {cannot}",
                )
                for name in _OPTIONAL
            ),
            _rule(
                "self.tasks.map(t, [dyn(t.type), dyn(has(t.name) ? t.name : ''), dyn(t.template)]) == "
                "oldSelf.tasks.map(t, [dyn(t.type), dyn(has(t.name) ? t.name : ''), dyn(t.template)])",
                f"the number of tasks, their types, names and templates {cannot}",
            ),
            _rule(
                f"self.tasks.map(t, {_MOST_REPLICAS}).sum() <= {bounds.MOST_REPLICAS}",
                f"the job has too many replicas: at most {bounds.MOST_REPLICAS:,} are allowed in all",
            ),
        ],
    }


def _tasks() -> Json:
    own = _own(Task)
    count = {"type": "integer", "format": "int32", "minimum": 1, "maximum": bounds.MOST_REPLICAS}
    return {
        "type": "array",
        "minItems": 1,
        "maxItems": bounds.MOST_TASKS,
        "x-kubernetes-list-type": "atomic",
        "items": {
            "type": "object",
            "required": ["template"],
            "properties": {
                "type": {**own["type"], "maxLength": keys.LABEL_LIMIT, "default": "none"},
                "name": {
                    "type": "string",
                    "maxLength": keys.LABEL_LIMIT,
                    "description": "By default the type.",
                },
                "replicas": {**count, "default": 1},
                "minReplicas": count,
                "maxReplicas": count,
                "template": _pod_template(),
            },
            "x-kubernetes-validations": [
                _rule("self.type != 'none' || (has(self.name) && self.name != '')", "none type task has no name"),
                _rule(
                    f"!has(self.name) || self.name == '' || self.name.matches('^{TASK_PATTERN}$')",
                    "the name of a task is part of host names: lower-case letters, digits and dashes; it begins with a "
                    "letter",
                ),
                _rule(
                    "(!has(self.minReplicas) || self.minReplicas <= self.replicas) && "
                    "(!has(self.maxReplicas) || self.replicas <= self.maxReplicas)",
                    "replicas must be from minReplicas to maxReplicas",
                ),
            ],
        },
        "x-kubernetes-validations": [
            _rule(
                f"!{_TYPES}.exists(k, {_TWICE.format('k')})",
                "there is more than one task of a type",
                says="'the number of ' + ("
                + " : ".join(f"{_TWICE.format(repr(k))} ? {k!r}" for k in ("learner", "collector"))
                + " : 'evaluator') + ' task is more than one'",
            ),
            _rule(
                f"!self.exists(t, {_IS_NAMED.format('t')} && {_SAME_NAME})",
                "there is more than one task of a name",
                # The cost of a text is known where the text is found by its path, as by an index.
                says="'there is more than one task named ' + "
                f"self[self.map(t, {_IS_NAMED.format('t')} && {_SAME_NAME} ? 1 : 0).indexOf(1)].name",
            ),
        ],
    }


def _status() -> Json:
    count = {"type": "integer", "format": "int32", "minimum": 0}
    text = {"type": "string"}
    condition = dict.fromkeys(("type", "status", "reason", "message"), text) | {
        name: {"type": "string", "format": "date-time"} for name in ("lastTransitionTime", "lastUpdateTime")
    }
    return {
        "type": "object",
        "properties": {
            "phase": {"type": "string", "enum": _PHASES},
            "reason": text,
            "message": text,
            "conditions": {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
                "items": {"type": "object", "required": ["type", "status"], "properties": condition},
            },
            "replicas": {**count, "description": "How many replicas should run. A write by others is a request."},
            "readyReplicas": count,
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
            "profilings": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            "restarts": count,
            "reschedules": count,
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


def _rule(rule: str, message: str, *, says: str = "") -> Json:
    return {"rule": rule, "message": message, **({"messageExpression": says} if says else {})}


def _described(schema: Json, description: str, **more: Any) -> Json:
    return {**schema, "description": description, **more}


def _own(model: type[DIJob] | type[Task]) -> dict[str, Json]:
    """The schemas of the plain fields of one of our models, by their name in a manifest."""
    found = model.model_json_schema(by_alias=True)
    return {name: _structural(schema, found.get("$defs", {})) for name, schema in found["properties"].items()}


def _pod_template() -> Json:
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

"""The CustomResourceDefinition of DIJobs, generated from the models that `diflow submit` uses.

The schema of a pod template is that of `diflow.dijob.rules.podtemplate`, so the API server keeps the fields that
diflow knows and drops the others. Rules in CEL refuse what can never run. Rules have cost limits, which the API server
computes from the largest sizes that the schema allows: the arrays and texts that a rule reads are bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from diflow.common import contribs, keys, limits
from diflow.common.names import TASK_PATTERN
from diflow.controller import schemas
from diflow.controller.schemas import KEPT, Json, described, fixed, own, pod_template, rule
from diflow.controller.statuses import ADVICE
from diflow.dijob import stored
from diflow.dijob.model import DIJob, Task
from diflow.dijob.rules import ditask
from diflow.record.status.status import HEALTHY

PLURAL: Final = "dijobs"

CHANGEABLE: Final = "suspend, and replicas, minReplicas and maxReplicas of its tasks"
"""What may change in the spec of a job that was created."""

# What cannot change of a task `t`.
_FIXED: Final = (
    "[dyn(t.type), dyn(has(t.name) ? t.name : ''), dyn(has(t.nodeUnit) ? t.nodeUnit : 1), "
    "dyn(has(t.maxMemory) ? t.maxMemory : ''), "
    "dyn(has(t.activeDeadlineSeconds) ? t.activeDeadlineSeconds : 0), dyn(t.template)]"
)
_LONGEST_KEY: Final = 253 + 1 + keys.LABEL_LIMIT
"""Characters of a label's key: a prefix, a slash and a name."""
IN_METADATA: Final = frozenset({"name", "namespace", "labels", "annotations"})
"""The fields of a job that its object has in its metadata."""

_NOT_FIXED: Final = frozenset({"tasks", "suspend", "minReplicas", "maxReplicas", "group"})
"""The fields of the spec that may change, or have a rule of their own."""

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


@dataclass(frozen=True, slots=True)
class Version:
    """Another version of the kind, whose objects are stored as those of v2alpha1, without a conversion: `fields` are
    those that v2alpha1 has only for it. `made` makes the version of the fields of the spec of v2alpha1.

    `form`: the rule for the specs of all versions that says which fields a job has at least. `rules`: those for the
    objects of all versions.
    """

    made: Callable[[Mapping[str, Json]], Json]
    fields: Mapping[str, Json]
    form: Json
    rules: tuple[Json, ...] = ()


def _others() -> tuple[Version, ...]:
    return contribs.found("controller.versions")


def crd() -> Json:
    """The CustomResourceDefinition, as `kubectl apply` takes it."""
    versions = [_v2alpha1(), *(other.made(_spec()["properties"]) for other in _others())]
    # Said, though it is the default: it takes the place of a webhook of an older CRD, of which nothing is left.
    return schemas.definition(keys.KIND, PLURAL, "dijob", versions, conversion={"strategy": "None"})


def _v2alpha1() -> Json:
    healthy = f".status.conditions[?(@.type=='{HEALTHY}')].status"
    columns: list[Json] = [
        {"name": name, "type": kind, "jsonPath": path, **more}
        for name, kind, path, more in (
            ("Phase", "string", ".status.phase", {}),
            ("ReadyReplicas", "integer", ".status.readyReplicas", {}),
            ("Replicas", "integer", ".status.replicas", {}),
            ("Restarts", "integer", ".status.restarts", {}),
            ("Reschedules", "integer", ".status.reschedules", {}),
            ("Age", "date", ".metadata.creationTimestamp", {}),
            # With `-o wide` alone: few jobs have the first one, and the last one is long, and may change each second.
            ("Healthy", "string", healthy, {"priority": 1}),
            ("Message", "string", ".status.message", {"priority": 1}),
        )
    ]
    return schemas.version(keys.API_VERSION.rpartition("/")[2], _root(), is_stored=True, columns=columns)


def _root() -> Json:
    return {
        "description": "A reinforcement-learning or distributed-training job, run as one Argo Workflow.",
        "type": "object",
        "required": ["spec"],
        "properties": {"metadata": schemas.metadata(), "spec": _spec(), "status": schemas.status()},
        "x-kubernetes-validations": [
            *(refused for other in _others() for refused in other.rules),
            rule(
                "!self.metadata.name.contains('.')",
                "the name of a job is part of its host names: lower-case letters, digits and dashes",
            ),
            rule(
                "!has(self.spec.tasks) || self.spec.tasks.all(t, size(self.metadata.name) + "
                f"size({_TASK_NAME.format('t')}) + size(string({_MOST_REPLICAS} - 1)) + 2 <= {keys.LABEL_LIMIT})",
                f"a host name <job>-<task>-<index> would have more than {keys.LABEL_LIMIT} characters: shorten the "
                "name of the job or of the task",
            ),
            rule(
                "!has(oldSelf.status) || !has(oldSelf.status.phase) || "
                "!(oldSelf.status.phase in ['Succeeded', 'Failed']) || self.spec == oldSelf.spec",
                f"the job has ended, so its spec cannot change: {ADVICE}",
                says=f"'the job has ended (' + oldSelf.status.phase + '), so its spec cannot change: {ADVICE}'",
            ),
        ],
    }


def _spec() -> Json:
    fields = {**_own(), **_of_older_jobs()}
    cannot = f"cannot change in a job that was created. What can change are {CHANGEABLE}; for the rest {ADVICE}"
    return {
        "type": "object",
        "description": "What runs, and how. After the creation only the replicas of the tasks can change.",
        "properties": fields,
        "x-kubernetes-validations": [
            *(other.form for other in _others()),
            *(
                fixed(name, f"{name} {cannot}", is_there="default" in schema)
                for name, schema in fields.items()
                if name not in _NOT_FIXED and "type" in schema  # CEL sees no others
            ),
            rule(
                "has(self.tasks) == has(oldSelf.tasks) && (!has(self.tasks) || "
                f"self.tasks.map(t, {_FIXED}) == oldSelf.tasks.map(t, {_FIXED}))",
                "the number of tasks, their types, names, units, maxMemory, activeDeadlineSeconds and templates "
                f"{cannot}",
            ),
            rule(
                "!has(self.template) || has(self.tasks) || !has(self.maxReplicas) || self.maxReplicas == 0 || "
                "(has(self.minReplicas) ? self.minReplicas : 1) <= self.maxReplicas",
                "minReplicas must be at most maxReplicas",
            ),
            rule(
                f"!has(self.tasks) || self.tasks.map(t, {_MOST_REPLICAS}).sum() <= {limits.MOST_REPLICAS}",
                f"the job has too many replicas: at most {limits.MOST_REPLICAS:,} are allowed in all",
            ),
        ],
    }


def _own() -> dict[str, Json]:
    """The fields of the model, with what pydantic's schema does not say."""
    fields = {name: schema for name, schema in own(DIJob).items() if name not in IN_METADATA}
    fields["queue"]["maxLength"] = keys.LABEL_LIMIT
    fields["topology"]["properties"]["required"] |= {"minLength": 1, "maxLength": _LONGEST_KEY}
    fields["volumes"]["items"] = pod_template()["properties"]["spec"]["properties"]["volumes"]["items"]
    _complete_failure_policy(fields["failurePolicy"])
    for name in ("nodeCheck", "monitor"):
        fields[name] = _or_true(fields[name])
    least = limits.LEAST_HEALTH_SECONDS
    for name, schema in fields["health"]["properties"].items():
        if name.endswith("Seconds"):
            refused = rule(f"self == 0 || self >= {least}", f"must be 0, which is no limit, or at least {least}")
            schema["x-kubernetes-validations"] = [refused]
    fields["cleanPodPolicy"] |= {
        "maxLength": keys.LABEL_LIMIT,
        "x-kubernetes-validations": [
            rule(
                "self in ['', 'None', 'Running', 'All']",
                "Invalid CleanPodPolicy, expected in [None, Running, All]",
                says="'Invalid CleanPodPolicy ' + self + ', expected in [None, Running, All]'",
            )
        ],
    }
    del fields["cleanPodPolicy"]["enum"]  # manifests of DI-orchestrator's own programs have "", too
    fields["tasks"] |= _tasks()
    return fields


def _or_true(schema: Json) -> Json:
    """The schema of a field that is `true` or an object, for which a structural schema has no words."""
    fields = (f" `{name}`: {field['description']}" for name, field in schema["properties"].items())
    return described({"x-kubernetes-preserve-unknown-fields": True}, schema["description"] + "".join(fields))


def _of_older_jobs() -> dict[str, Json]:
    """The fields of other versions and of jobs with one template, and one that has no meaning."""
    text, number = {"type": "string"}, {"type": "integer", "format": "int32"}
    count = {**number, "minimum": 0, "maximum": limits.MOST_REPLICAS}
    topology = {**text, "enum": list(ditask.TOPOLOGIES)}
    workers = {**number, "minimum": 1, "maximum": limits.MOST_PARALLEL_WORKERS}
    engine = {
        "topology": described(topology, "To whom a replica connects: the first one, nobody, or all."),
        "parallelWorkers": described(workers, "The processes of each replica."),
    }
    return {
        **{name: schema for other in _others() for name, schema in other.fields.items()},
        "template": described(KEPT, "The pod template of a job of one task, as of DI-orchestrator v1.0."),
        "minReplicas": described(count, "Of a job of one template: the replicas with which it starts, at least 1."),
        "maxReplicas": described(count, "Of a job of one template: the most replicas."),
        "engineFields": described(
            {"type": "object", "properties": engine},
            "How the replicas of a job of one template connect with DI-engine's ditask.",
        ),
        "group": described(text, "Has no meaning: a field of older manifests."),
    }


def _complete_failure_policy(policy: Json) -> None:
    """Add to the schema of this field what is in the code of its reader, and not in the models."""
    rules = policy["properties"]["rules"]
    one, atomic = rules["items"], {"x-kubernetes-list-type": "atomic"}
    action, codes, conditions = (one["properties"][name] for name in ("action", "onExitCodes", "onPodConditions"))
    number = {"type": "integer", "minimum": 0, "maximum": limits.MOST_CODE}
    condition = conditions["items"]["properties"]
    rules |= {**atomic, "maxItems": limits.MOST_RULES}
    conditions |= {**atomic, "minItems": 1, "maxItems": limits.MOST_POD_CONDITIONS}
    condition["type"]["enum"], condition["status"]["enum"] = [stored.DISRUPTION], ["True"]
    codes["properties"]["containerName"] |= {"minLength": 1, "maxLength": keys.LABEL_LIMIT}
    codes["properties"]["values"] |= {
        "minItems": 1,
        "maxItems": limits.MOST_CODES,
        "x-kubernetes-list-type": "set",
        "items": number,
    }
    texts = (
        (rules, f"At most {limits.MOST_RULES}. Each has an action, and onExitCodes or onPodConditions."),
        (
            action,
            "Count: started again, of backoffLimit. Ignore: started again, not counted. FailJob: the job ends. "
            "Elsewhere: on another node. MoreMemory: with more memory.",
        ),
        (codes, "Matches a container that has ended with one of these exit codes."),
        (codes["properties"]["containerName"], "The container that ends with the code. Not set: any one of the job."),
        (codes["properties"]["operator"], "Whether the exit code is one of the values (In), or another one (NotIn)."),
        (codes["properties"]["values"], "The exit codes."),
        (conditions, "Matches a pod that was evicted, preempted or lost with its node."),
        (condition["type"], "The condition."),
        (condition["status"], "By default True."),
    )
    for schema, text in texts:
        schema["description"] = text
    codes["x-kubernetes-validations"] = [
        rule("self.operator != 'In' || !self.values.exists(v, v == 0)", "0 is no failure: In cannot name it")
    ]
    one["x-kubernetes-validations"] = [
        rule("has(self.onExitCodes) != has(self.onPodConditions)", "must have onExitCodes or onPodConditions"),
        rule(
            "self.action != 'MoreMemory' || !has(self.onPodConditions)",
            "more memory does not help a pod that was evicted",
        ),
    ]


def _tasks() -> Json:
    fields = own(Task)
    for name in ("type", "name"):
        fields[name]["maxLength"] = keys.LABEL_LIMIT
    fields["maxMemory"]["minLength"] = 1
    fields["template"] = described(pod_template(), fields["template"]["description"])
    return {
        "maxItems": limits.MOST_TASKS,
        "x-kubernetes-list-type": "atomic",
        "items": {
            "type": "object",
            "required": ["template"],
            "properties": fields,
            "x-kubernetes-validations": [
                rule("self.type != 'none' || (has(self.name) && self.name != '')", "none type task has no name"),
                rule(
                    f"!has(self.name) || self.name == '' || self.name.matches('^{TASK_PATTERN}$')",
                    "the name of a task is part of host names: lower-case letters, digits and dashes; it begins with a "
                    "letter",
                ),
                rule(
                    "(!has(self.minReplicas) || self.minReplicas <= self.replicas) && "
                    "(!has(self.maxReplicas) || self.replicas <= self.maxReplicas)",
                    "replicas must be from minReplicas to maxReplicas",
                ),
                rule(
                    "!has(self.nodeUnit) || self.nodeUnit < 1 || (self.replicas % self.nodeUnit == 0 && "
                    "(!has(self.minReplicas) || self.minReplicas % self.nodeUnit == 0) && "
                    "(!has(self.maxReplicas) || self.maxReplicas % self.nodeUnit == 0))",
                    "replicas, minReplicas and maxReplicas must be multiples of nodeUnit",
                ),
            ],
        },
        "x-kubernetes-validations": [
            rule(
                f"!{_TYPES}.exists(k, {_TWICE.format('k')})",
                "there is more than one task of a type",
                says="'the number of ' + ("
                + " : ".join(f"{_TWICE.format(repr(k))} ? {k!r}" for k in ("learner", "collector"))
                + " : 'evaluator') + ' task is more than one'",
            ),
            rule(
                f"!self.exists(t, {_IS_NAMED.format('t')} && {_SAME_NAME})",
                "there is more than one task of a name",
                # The cost of a text is known where the text is found by its path, as by an index.
                says="'there is more than one task named ' + "
                f"self[self.map(t, {_IS_NAMED.format('t')} && {_SAME_NAME} ? 1 : 0).indexOf(1)].name",
            ),
        ],
    }

"""The CustomResourceDefinition of DIJobs, generated from the models that `diflow submit` uses.

The schema of a pod template is that of `diflow.dijob.rules.podtemplate`, so the API server keeps the fields that diflow knows
and drops the others. Rules in CEL refuse what can never run. Rules have cost limits, which the API server computes from
the largest sizes that the schema allows: the arrays and texts that a rule reads are bounded.
"""

from __future__ import annotations

from typing import Final

from diflow.common import keys, limits
from diflow.common.names import TASK_PATTERN
from diflow.controller import crd_v1alpha1, schemas
from diflow.controller.schemas import (
    ANYTHING,
    KEPT,
    Json,
    clean_pod_policy,
    described,
    fixed,
    own,
    pod_template,
    rule,
)
from diflow.controller.statuses import ADVICE
from diflow.dijob import stored
from diflow.dijob.model import DIJob, Health, NodeCheck, Task
from diflow.dijob.rules import ditask
from diflow.record.status.status import HEALTHY

PLURAL: Final = "dijobs"

CHANGEABLE: Final = "replicas, minReplicas and maxReplicas of its tasks"
"""What may change in the spec of a job that was created."""

# What cannot change of a task `t`.
_FIXED: Final = (
    "[dyn(t.type), dyn(has(t.name) ? t.name : ''), dyn(has(t.nodeUnit) ? t.nodeUnit : 1), "
    "dyn(has(t.maxMemory) ? t.maxMemory : ''), dyn(t.template)]"
)
# What cannot change in the spec, besides its tasks.
_WITH_DEFAULT: Final = ("priority", "preemptible", "backoffLimit", "cleanPodPolicy")
_LONGEST_NAME: Final = 253
_LONGEST_KEY: Final = 253 + 1 + keys.LABEL_LIMIT
"""Characters of a label's key: a prefix, a slash and a name."""
_OPTIONAL: Final = (
    "topology", "queue", "scheduling", "volumes", "ttlSecondsAfterFinished", "startDeadlineSeconds", "failurePolicy",
    "health", "pendingSeconds", "template", "engineFields", "priorityClassName", *crd_v1alpha1.MODULES,
)  # fmt: skip

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


def crd() -> Json:
    """The CustomResourceDefinition, as `kubectl apply` takes it."""
    versions = [_v2alpha1(), crd_v1alpha1.version(_spec()["properties"])]
    # Said, though it is the default: it takes the place of a webhook of an older CRD, of which nothing is left.
    return schemas.definition(keys.KIND, PLURAL, "dijob", versions, conversion={"strategy": "None"})


def _v2alpha1() -> Json:
    columns: list[Json] = [
        *(
            {"name": name, "type": kind, "jsonPath": path}
            for name, kind, path in (
                ("Phase", "string", ".status.phase"),
                ("ReadyReplicas", "integer", ".status.readyReplicas"),
                ("Replicas", "integer", ".status.replicas"),
                ("Restarts", "integer", ".status.restarts"),
                ("Reschedules", "integer", ".status.reschedules"),
                ("Age", "date", ".metadata.creationTimestamp"),
            )
        ),
        # With `-o wide` alone: few jobs have the first one, and the last one is long, and may change each second.
        {
            "name": "Healthy",
            "type": "string",
            "jsonPath": f".status.conditions[?(@.type=='{HEALTHY}')].status",
            "priority": 1,
        },
        {"name": "Message", "type": "string", "jsonPath": ".status.message", "priority": 1},
    ]
    return schemas.version(keys.API_VERSION.rpartition("/")[2], _root(), is_stored=True, columns=columns)


def _root() -> Json:
    return {
        "description": "A reinforcement-learning or distributed-training job, run as one Argo Workflow.",
        "type": "object",
        "required": ["spec"],
        "properties": {"metadata": schemas.metadata(), "spec": _spec(), "status": schemas.status()},
        "x-kubernetes-validations": [
            crd_v1alpha1.name_is_short(),
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
    fields, check = own(DIJob), NodeCheck()
    cannot = f"cannot change in a job that was created. What can change are {CHANGEABLE}; for the rest {ADVICE}"
    return {
        "type": "object",
        "description": "What runs, and how. After the creation only the replicas of the tasks can change.",
        "properties": {
            **{
                name: described(KEPT, f"The {name} of a job of v1alpha1. A job of v2alpha1 has tasks.")
                for name in crd_v1alpha1.MODULES
            },
            "priorityClassName": {
                "type": "string",
                "maxLength": _LONGEST_NAME,
                "description": "The PriorityClass of the coordinator of a job of v1alpha1. Others have priority.",
            },
            **_one_template(),
            "priority": {
                **described(fields["priority"], "high before normal: the order of waiting jobs, and who gives way."),
                "default": "normal",
            },
            "queue": described(fields["queue"], "The queue on whose share the job draws.", maxLength=keys.LABEL_LIMIT),
            "scheduling": described(fields["scheduling"], "gang: by the allocator; none: by Argo alone."),
            "preemptible": {
                "type": "boolean",
                "default": False,
                "description": "Whether the allocator may resize, move and stop the job while it runs.",
            },
            "backoffLimit": {
                **described(fields["backoffLimit"], "How often a replica that failed is started again."),
                "default": 3,
            },
            "cleanPodPolicy": clean_pod_policy(),
            "ttlSecondsAfterFinished": described(
                fields["ttlSecondsAfterFinished"], "How many seconds the job is kept after it has ended."
            ),
            "startDeadlineSeconds": described(
                fields["startDeadlineSeconds"],
                "The job fails if it has not started so many seconds after its creation.",
            ),
            "failurePolicy": _failure_policy(),
            "health": _health(fields["health"]),
            "pendingSeconds": described(
                fields["pendingSeconds"],
                "After so many seconds in which a pod has a node and does not start, a job that may shrink continues "
                "without it, and another one returns to the queue. Not set: 900 for a preemptible job, if the "
                "administrator has set nothing else; another one waits.",
            ),
            "topology": {
                "type": "object",
                "required": ["required"],
                "description": "The level of which one domain must hold the whole job, such as a rack.",
                "properties": {
                    "required": {
                        "type": "string",
                        "minLength": 1,
                        "maxLength": _LONGEST_KEY,
                        "description": "The name of the level, or its node label.",
                    }
                },
            },
            "monitor": described(
                ANYTHING,
                "A container beside the work that reports for it: true, or an object with checkpointVolume and "
                "checkpointPath.",
            ),
            "nodeCheck": described(
                ANYTHING,
                "A check of the nodes before the work: true, or an object with image, command, timeoutSeconds (by "
                f"default {check.timeout_seconds}) and maxMoves ({check.max_moves}).",
            ),
            "group": {"type": "string", "description": "Has no meaning: a field of older manifests."},
            "volumes": {
                "type": "array",
                "description": "Volumes that all pods of the job have.",
                "items": pod_template()["properties"]["spec"]["properties"]["volumes"]["items"],
            },
            "tasks": _tasks(),
        },
        "x-kubernetes-validations": [
            crd_v1alpha1.has_a_form(),
            *(rule(f"self.{name} == oldSelf.{name}", f"{name} {cannot}") for name in _WITH_DEFAULT),
            *(fixed(name, f"{name} {cannot}") for name in _OPTIONAL),
            rule(
                "has(self.tasks) == has(oldSelf.tasks) && (!has(self.tasks) || "
                f"self.tasks.map(t, {_FIXED}) == oldSelf.tasks.map(t, {_FIXED}))",
                f"the number of tasks, their types, names, units, maxMemory and templates {cannot}",
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


def _health(fields: Json) -> Json:
    """The schema of this field. The deadlines are bounded below, but for 0."""
    of = Health()
    texts = {
        "heartbeatSeconds": "A replica without any sign of life for so long is silent. 0: never. "
        f"By default {of.heartbeat_seconds}.",
        "progressSeconds": "A replica whose step has not risen for so long is stalled. 0: never. "
        f"By default {of.progress_seconds}.",
        "firstProgressSeconds": "The same, from the start of a pod to its first step. "
        f"By default {of.first_progress_seconds}.",
        "action": "report names the replicas; restart also starts them again, not counted by backoffLimit. "
        f"By default {of.action}.",
        "maxRestarts": f"The most restarts of the job for this reason. By default {of.max_restarts}.",
    }
    least = limits.LEAST_HEALTH_SECONDS
    properties = {name: described(schema, texts[name]) for name, schema in fields["properties"].items()}
    for name, schema in properties.items():
        if name.endswith("Seconds"):
            refused = rule(f"self == 0 || self >= {least}", f"must be 0, which is no limit, or at least {least}")
            schema["x-kubernetes-validations"] = [refused]
    text = "After how long replicas count as silent or stalled, and what follows. Not set: never."
    return described({**fields, "properties": properties}, text)


def _failure_policy() -> Json:
    codes = {
        "type": "object",
        "required": ["operator", "values"],
        "properties": {
            "containerName": {
                "type": "string",
                "minLength": 1,
                "maxLength": keys.LABEL_LIMIT,
                "description": "The container that ends with the code. Not set: any container of the job.",
            },
            "operator": {
                "type": "string",
                "enum": list(stored.OPERATORS),
                "description": "Whether the exit code is one of the values (In), or another one (NotIn).",
            },
            "values": {
                "type": "array",
                "description": "The exit codes.",
                "minItems": 1,
                "maxItems": limits.MOST_CODES,
                "x-kubernetes-list-type": "set",
                "items": {"type": "integer", "format": "int32", "minimum": 0, "maximum": limits.MOST_CODE},
            },
        },
        "x-kubernetes-validations": [
            rule("self.operator != 'In' || !self.values.exists(v, v == 0)", "0 is no failure: In cannot name it")
        ],
    }
    condition = {
        "type": "object",
        "required": ["type"],
        "properties": {
            "type": {"type": "string", "enum": [stored.DISRUPTION], "description": "The condition."},
            "status": {"type": "string", "enum": ["True"], "description": "By default True."},
        },
    }
    one = {
        "type": "object",
        "required": ["action"],
        "properties": {
            "action": {
                "type": "string",
                "enum": list(stored.ACTIONS),
                "description": "Count: started again, of backoffLimit. Ignore: started again, not counted. FailJob: "
                "the job ends. Elsewhere: on another node. MoreMemory: with more memory.",
            },
            "onExitCodes": described(codes, "Matches a container that has ended with one of these exit codes."),
            "onPodConditions": {
                "type": "array",
                "description": "Matches a pod that was evicted, preempted or lost with its node.",
                "minItems": 1,
                "maxItems": limits.MOST_POD_CONDITIONS,
                "x-kubernetes-list-type": "atomic",
                "items": condition,
            },
        },
        "x-kubernetes-validations": [
            rule("has(self.onExitCodes) != has(self.onPodConditions)", "must have onExitCodes or onPodConditions"),
            rule(
                "self.action != 'MoreMemory' || !has(self.onPodConditions)",
                "more memory does not help a pod that was evicted",
            ),
        ],
    }
    return {
        "type": "object",
        "description": "What follows when a replica fails: the first rule that matches decides, then the default ones.",
        "properties": {
            "rules": {
                "type": "array",
                "description": "At most 20. Each has an action, and onExitCodes or onPodConditions.",
                "maxItems": limits.MOST_RULES,
                "x-kubernetes-list-type": "atomic",
                "items": one,
            }
        },
    }


def _one_template() -> Json:
    """The fields of jobs of DI-orchestrator v1.0, which have one template."""
    count = {"type": "integer", "format": "int32", "minimum": 0, "maximum": limits.MOST_REPLICAS}
    engine = {
        "topology": {
            "type": "string",
            "enum": list(ditask.TOPOLOGIES),
            "description": "To whom a replica connects: the first one, nobody, or all.",
        },
        "parallelWorkers": {
            "type": "integer",
            "format": "int32",
            "minimum": 1,
            "maximum": limits.MOST_PARALLEL_WORKERS,
            "description": "The processes of each replica.",
        },
    }
    return {
        "template": described(KEPT, "The pod template of a job of one task, as of DI-orchestrator v1.0."),
        "minReplicas": described(count, "Of a job of one template: the replicas with which it starts, at least 1."),
        "maxReplicas": described(count, "Of a job of one template: the most replicas."),
        "engineFields": {
            "type": "object",
            "description": "How the replicas of a job of one template connect with DI-engine's ditask.",
            "properties": engine,
        },
    }


def _tasks() -> Json:
    fields = own(Task)
    count = {"type": "integer", "format": "int32", "minimum": 1, "maximum": limits.MOST_REPLICAS}
    return {
        "type": "array",
        "description": "The kinds of replicas of the job, each with a pod template.",
        "minItems": 1,
        "maxItems": limits.MOST_TASKS,
        "x-kubernetes-list-type": "atomic",
        "items": {
            "type": "object",
            "required": ["template"],
            "properties": {
                "type": {
                    **described(fields["type"], "The role of the task. none: a task with a name of its own."),
                    "maxLength": keys.LABEL_LIMIT,
                    "default": "none",
                },
                "name": {
                    "type": "string",
                    "maxLength": keys.LABEL_LIMIT,
                    "description": "By default the type.",
                },
                "replicas": {**described(count, "The desired number of replicas."), "default": 1},
                "minReplicas": described(count, "The fewest replicas to which the task may be resized."),
                "maxReplicas": described(count, "The most replicas to which the task may be resized."),
                "nodeUnit": described(count, "The number of replicas is always a multiple of it."),
                "maxMemory": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": limits.LONGEST_QUANTITY,
                    "description": "The most memory that a replica may get after it ran out of it (failurePolicy).",
                },
                "template": described(
                    pod_template(), "A pod template. The work is the container di-container, else the first one."
                ),
            },
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

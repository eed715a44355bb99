"""The version v1alpha1 of the kind DIJob, and the kind AggregatorConfig.

Objects of both versions are stored as v2alpha1, without a conversion: a version has the fields of the other one, too,
as its own writes would drop them. The form of an object, and not its version, says which job it is.
"""

from __future__ import annotations

from typing import Final

from diflow.common import keys
from diflow.controller import schemas
from diflow.controller.schemas import KEPT, Json, clean_pod_policy, described, fixed, pod_template, rule
from diflow.jobs.v1alpha1 import AGGREGATOR_CONFIG, LONGEST_NAME
from diflow.record.modules import COLLECTOR, COORDINATOR, LEARNER

MODULES: Final = (COORDINATOR, COLLECTOR, LEARNER)
_LONGEST: Final = 253
_OF_V2: Final = (
    "priority", "queue", "scheduling", "backoffLimit", "ttlSecondsAfterFinished", "startDeadlineSeconds",
    "pendingSeconds", "minReplicas", "maxReplicas", "topology", "template", "engineFields", "failurePolicy", "health",
    "nodeCheck", "monitor", "preemptible", "tasks",
)  # fmt: skip
"""The fields of v2alpha1 alone."""


def version(v2: Json) -> Json:
    """The version, as the CustomResourceDefinition has it. `v2`: the fields of the spec of v2alpha1.

    Those have their types here, too: the rules of v2alpha1 read them with each write of the status, which the API
    server would refuse if another type were stored.
    """
    schema = {
        "description": "A reinforcement-learning job with a coordinator, which asks for collectors and learners by the "
        "REST API.",
        "type": "object",
        "required": ["spec"],
        "properties": {
            "metadata": schemas.metadata(),
            "spec": _spec({name: _without_default(v2[name]) for name in _OF_V2}),
            "status": schemas.status(),
        },
        "x-kubernetes-validations": [name_is_short()],
    }
    columns = (
        {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    )
    return schemas.version(keys.API_VERSION_1.rpartition("/")[2], schema, is_stored=False, columns=columns)


def has_a_form() -> Json:
    """The rule that an object is a job of one of the generations."""
    return rule(
        "has(self.tasks) || has(self.coordinator) || has(self.template)",
        "a job has tasks (v2alpha1) or a coordinator (v1alpha1)",
    )


def name_is_short() -> Json:
    """The rule on the names of jobs with a coordinator."""
    return rule(
        f"!has(self.spec.coordinator) || has(self.spec.tasks) || size(self.metadata.name) <= {LONGEST_NAME}",
        f"the name of a job with a coordinator is a part of host names: at most {LONGEST_NAME} characters",
    )


def aggregator() -> Json:
    """The CustomResourceDefinition of AggregatorConfigs."""
    kind = AGGREGATOR_CONFIG
    schema = {
        "description": "The pod template of the aggregators of jobs with a coordinator.",
        "type": "object",
        "properties": {
            "spec": {"type": "object", "required": ["aggregator"], "properties": {"aggregator": _module()}},
            "status": KEPT,
        },
    }
    version = schemas.version(kind.version, schema, is_stored=True)
    return schemas.definition(kind.name, kind.plural, "agconfig", [version])


def _without_default(schema: Json) -> Json:
    return {name: value for name, value in schema.items() if name != "default"}


def _spec(of_v2: Json) -> Json:
    cannot = "cannot change in a job that was created: delete the job and create it again"
    return {
        "type": "object",
        "description": "A coordinator with templates of collectors and learners. The other fields are of v2alpha1.",
        "properties": {
            **of_v2,
            "group": {"type": "string", "description": "Has no meaning: a field of older manifests."},
            "priorityClassName": {
                "type": "string",
                "maxLength": _LONGEST,
                "description": "The PriorityClass of the coordinator.",
            },
            "cleanPodPolicy": clean_pod_policy(),
            "volumes": {
                "type": "array",
                "description": "Volumes of the coordinator, the collectors and the learners.",
                "items": pod_template()["properties"]["spec"]["properties"]["volumes"]["items"],
            },
            **{
                module: described(_module(), f"The {module}, with its pod template{more}.")
                for module, more in zip(MODULES, ("", *[": of those that the coordinator asks for"] * 2), strict=True)
            },
        },
        "x-kubernetes-validations": [
            has_a_form(),
            *(fixed(name, f"{name} {cannot}") for name in (*MODULES, "volumes", "priorityClassName")),
            *(
                fixed(name, f"{name} is a field of v2alpha1: change it as {keys.API_VERSION}")
                for name, schema in of_v2.items()
                if "type" in schema  # CEL sees no other fields
            ),
        ],
    }


def _module() -> Json:
    template = described(pod_template(), "The pod template.")
    return {"type": "object", "required": ["template"], "properties": {"template": template}}

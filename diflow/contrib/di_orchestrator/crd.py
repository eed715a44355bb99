"""The version v1alpha1 of the kind DIJob, and the kind AggregatorConfig.

Objects of both versions are stored as v2alpha1, without a conversion: a version has the fields of the other one, too,
as its own writes would drop them. The form of an object, and not its version, says which job it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from diflow.common import keys
from diflow.contrib.di_orchestrator.manifest import AGGREGATOR_CONFIG, LONGEST_NAME
from diflow.contrib.di_orchestrator.modules import COLLECTOR, COORDINATOR, LEARNER
from diflow.controller import schemas
from diflow.controller.crd import Version
from diflow.controller.schemas import KEPT, Json, described, fixed, pod_template, rule

MODULES: Final = (COORDINATOR, COLLECTOR, LEARNER)
_LONGEST_CLASS: Final = 253
"""Characters of the name of a PriorityClass."""
_OWN: Final = (*MODULES, "volumes", "priorityClassName")
"""The fields of such a job that cannot change."""
_IN_BOTH: Final = frozenset({"cleanPodPolicy", "group"})
_UNTYPED: Final = frozenset({"nodeAffinity", "podAffinity", "podAntiAffinity", "postStart", "preStop"})
"""Fields in the pod templates of such a job that are kept as they are. `kubectl apply` writes the whole schema into an
annotation, and an object may have 256 KiB of these."""


def _version(v2: Mapping[str, Json]) -> Json:
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
            "spec": _spec(v2),
            "status": schemas.status(),
        },
        "x-kubernetes-validations": [_NAME_IS_SHORT],
    }
    columns = (
        {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    )
    return schemas.version(keys.API_VERSION_1.rpartition("/")[2], schema, is_stored=False, columns=columns)


def _fields() -> dict[str, Json]:
    return {
        **{name: described(KEPT, f"The {name} of a job of v1alpha1. A job of v2alpha1 has tasks.") for name in MODULES},
        "priorityClassName": described(
            {"type": "string", "maxLength": _LONGEST_CLASS},
            "The PriorityClass of the coordinator of a job of v1alpha1. Others have priority.",
        ),
    }


_HAS_A_FORM: Final = rule(
    "has(self.tasks) || has(self.coordinator) || has(self.template)",
    "a job has tasks (v2alpha1) or a coordinator (v1alpha1)",
)
_NAME_IS_SHORT: Final = rule(
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
            "spec": {
                "type": "object",
                "required": ["aggregator"],
                "properties": {"aggregator": _module(pod_template())},
            },
            "status": KEPT,
        },
    }
    version = schemas.version(kind.version, schema, is_stored=True)
    return schemas.definition(kind.name, kind.plural, "agconfig", [version])


def _spec(v2: Mapping[str, Json]) -> Json:
    cannot = "cannot change in a job that was created: delete the job and create it again"
    of_v2 = {
        name: {key: value for key, value in schema.items() if key != "default"}
        for name, schema in v2.items()
        if name not in _IN_BOTH and name not in _OWN
    }
    modules = {
        name: described(_module(_shortened(pod_template())), f"The {name}, with its pod template.") for name in MODULES
    }
    return {
        "type": "object",
        "description": "A coordinator with templates of the collectors and the learners that it asks for. The other "
        "fields are of v2alpha1.",
        "properties": {**v2, **of_v2, **modules},
        "x-kubernetes-validations": [
            _HAS_A_FORM,
            *(fixed(name, f"{name} {cannot}") for name in _OWN),
            *(
                fixed(name, f"{name} is a field of v2alpha1: change it as {keys.API_VERSION}")
                for name, schema in of_v2.items()
                if "type" in schema  # CEL sees no other fields
            ),
        ],
    }


def _module(template: Json) -> Json:
    return {
        "type": "object",
        "required": ["template"],
        "properties": {"template": described(template, "The pod template.")},
    }


def _shortened(schema: Json) -> Json:
    """The schema of a pod template without the types of what is in some fields."""
    if "items" in schema:
        return {**schema, "items": _shortened(schema["items"])}
    if "properties" not in schema:
        return schema
    fields = schema["properties"].items()
    return {**schema, "properties": {name: KEPT if name in _UNTYPED else _shortened(inner) for name, inner in fields}}


V1ALPHA1: Final = Version(made=_version, fields=_fields(), form=_HAS_A_FORM, rules=(_NAME_IS_SHORT,))

"""Checks the types of a pod template before it is submitted.

Argo Workflows with minimal CRDs does not check types: one Workflow with a boolean in place of text (an env name `N` in
YAML 1.1) stops its controller for all users. So each template is checked against the field types of Kubernetes, unknown
fields are removed and reported, and quantities become text. Types are strict, like the API server's: "30" is not a
number. Rules beyond types are in `podrules`.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final

from hera.workflows import models as m
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from diflow import bounds, keys, names
from diflow.errors import InvalidError
from diflow.figures import shortened
from diflow.spec import syntax
from diflow.spec.podrules import check_pod
from diflow.spec.volumerules import check_volumes as check_volume_rules

_MOST_LEVELS: Final = 32  # a pod's deepest field is at level 13
# All other integers of a pod's spec have 32 bits.
_INT64: Final = frozenset(
    {
        "activeDeadlineSeconds",
        "expirationSeconds",
        "fsGroup",
        "runAsGroup",
        "runAsUser",
        "seconds",
        "supplementalGroups",
        "terminationGracePeriodSeconds",
        "tolerationSeconds",
    }
)
_DIFLOWS_DOMAINS: Final = ("diengine", "diflow", keys.API_GROUP)
_SYSTEM_DOMAINS: Final = ("argoproj.io", *_DIFLOWS_DOMAINS)
_FOR_USERS: Final = frozenset(
    {
        keys.ADAPTDL,
        keys.APPLICATION,
        keys.DITASK,
        keys.DLROVER,
        keys.RENDEZVOUS,
        keys.SENDS_TOKEN,
        keys.TITLE,
        keys.DESCRIPTION,
    }
)
# Annotations of pods that Kubernetes acts on: they could get a pod rejected, or change it.
_POD_ANNOTATIONS: Final = (
    "kubernetes.io/config.",
    "container.apparmor.security.beta.kubernetes.io/",
    "container.seccomp.security.alpha.kubernetes.io/",
    "seccomp.security.alpha.kubernetes.io/",
    "scheduler.alpha.kubernetes.io/",
    "controller.kubernetes.io/pod-deletion-cost",
    "kubectl.kubernetes.io/default-container",
)


class _Typed(BaseModel):
    """A part of a PodSpec that Argo's own models do not have."""

    model_config = ConfigDict(frozen=True)


class _Spread(_Typed):
    label_selector: m.LabelSelector | None = Field(None, alias="labelSelector")
    match_label_keys: list[str] | None = Field(None, alias="matchLabelKeys")
    max_skew: int = Field(alias="maxSkew")
    min_domains: int | None = Field(None, alias="minDomains")
    node_affinity_policy: str | None = Field(None, alias="nodeAffinityPolicy")
    node_taints_policy: str | None = Field(None, alias="nodeTaintsPolicy")
    topology_key: str = Field(alias="topologyKey")
    when_unsatisfiable: str = Field(alias="whenUnsatisfiable")


class _ReadinessGate(_Typed):
    condition_type: str = Field(alias="conditionType")


class _PodClaim(_Typed):
    name: str
    resource_claim_name: str | None = Field(None, alias="resourceClaimName")
    resource_claim_template_name: str | None = Field(None, alias="resourceClaimTemplateName")


class _Named(_Typed):
    name: str


class PodMetadata(BaseModel):
    """The metadata of a pod template."""

    model_config = ConfigDict(frozen=True)

    name: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class PodSpec(BaseModel):
    """A Kubernetes PodSpec (v1.34), typed where diflow or Argo looks inside it."""

    model_config = ConfigDict(frozen=True)

    containers: list[m.Container] = Field(min_length=1)
    init_containers: list[m.Container] | None = Field(None, alias="initContainers")
    volumes: list[m.Volume] | None = None
    affinity: m.Affinity | None = None
    tolerations: list[m.Toleration] | None = None
    security_context: m.PodSecurityContext | None = Field(None, alias="securityContext")
    host_aliases: list[m.HostAlias] | None = Field(None, alias="hostAliases")
    image_pull_secrets: list[m.LocalObjectReference] | None = Field(None, alias="imagePullSecrets")
    dns_config: m.PodDNSConfig | None = Field(None, alias="dnsConfig")
    node_selector: dict[str, str] | None = Field(None, alias="nodeSelector")
    topology_spread_constraints: list[_Spread] | None = Field(None, alias="topologySpreadConstraints")
    readiness_gates: list[_ReadinessGate] | None = Field(None, alias="readinessGates")
    resource_claims: list[_PodClaim] | None = Field(None, alias="resourceClaims")
    scheduling_gates: list[_Named] | None = Field(None, alias="schedulingGates")
    overhead: dict[str, m.Quantity] | None = None
    resources: m.ResourceRequirements | None = None
    os: _Named | None = None
    active_deadline_seconds: int | None = Field(None, alias="activeDeadlineSeconds")
    automount_service_account_token: bool | None = Field(None, alias="automountServiceAccountToken")
    dns_policy: str | None = Field(None, alias="dnsPolicy")
    enable_service_links: bool | None = Field(None, alias="enableServiceLinks")
    host_ipc: bool | None = Field(None, alias="hostIPC")
    host_network: bool | None = Field(None, alias="hostNetwork")
    host_pid: bool | None = Field(None, alias="hostPID")
    host_users: bool | None = Field(None, alias="hostUsers")
    hostname: str | None = None
    node_name: str | None = Field(None, alias="nodeName")
    preemption_policy: str | None = Field(None, alias="preemptionPolicy")
    priority: int | None = None
    priority_class_name: str | None = Field(None, alias="priorityClassName")
    restart_policy: str | None = Field(None, alias="restartPolicy")
    runtime_class_name: str | None = Field(None, alias="runtimeClassName")
    scheduler_name: str | None = Field(None, alias="schedulerName")
    service_account: str | None = Field(None, alias="serviceAccount")
    service_account_name: str | None = Field(None, alias="serviceAccountName")
    set_hostname_as_fqdn: bool | None = Field(None, alias="setHostnameAsFQDN")
    share_process_namespace: bool | None = Field(None, alias="shareProcessNamespace")
    subdomain: str | None = None
    termination_grace_period_seconds: int | None = Field(None, alias="terminationGracePeriodSeconds", ge=0)


class PodTemplate(BaseModel):
    """A PodTemplateSpec."""

    model_config = ConfigDict(frozen=True)

    metadata: PodMetadata | None = None
    spec: PodSpec


class _Volumes(BaseModel):
    volumes: list[m.Volume]


def check_pod_template(data: Any) -> tuple[dict[str, Any], list[str]]:
    """Check a PodTemplateSpec given as plain data.

    Returns a clean copy of `data` (unknown fields removed, quantities as text) and the paths that were removed.
    Raises InvalidError with the path of the first invalid field.
    """
    clean, unknown = _check(PodTemplate, data, "template")
    metadata = clean.get("metadata", {})
    check_labels(metadata.get("labels", {}), path="template.metadata.labels")
    check_annotations(metadata.get("annotations", {}), path="template.metadata.annotations")
    for key in metadata.get("annotations", {}):
        if key.startswith(_POD_ANNOTATIONS):
            raise InvalidError(
                "is for Kubernetes itself: use the fields of the pod's spec",
                path=f"template.metadata.annotations.{key}",
            )
    check_pod(clean["spec"], "template.spec")
    return clean, unknown


def check_volumes(data: Any, *, path: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Check a list of Kubernetes volumes, as `check_pod_template` does."""
    parent, _, _ = path.rpartition(".")
    clean, unknown = _check(_Volumes, {"volumes": data}, parent)
    check_volume_rules(clean["volumes"], path)
    return clean["volumes"], unknown


def check_labels(given: Mapping[str, str], *, path: str) -> None:
    """Check a user's labels. Raises InvalidError if Kubernetes would reject one, and for reserved names."""
    syntax.labels(given, path)
    _check_owner(given, path)
    if keys.MANAGED_BY in given:
        raise InvalidError("is set by diflow: remove it", path=f"{path}.{keys.MANAGED_BY}")


def check_annotations(given: Mapping[str, str], *, path: str) -> None:
    """Check a user's annotations, as `check_labels` does."""
    syntax.annotation_keys(given, path)
    _check_owner([key for key in given if key not in _FOR_USERS], path)
    if keys.APPLICATION in given and not names.is_application(given[keys.APPLICATION]):
        raise InvalidError(
            "must be the name of an application, such as vision/resnet50: "
            f"up to {bounds.MOST_APPLICATION_NAME} letters, digits, '-', '_', '.' and '/', of which the first and the "
            "last are a letter or digit",
            path=f"{path}.{keys.APPLICATION}",
        )


def is_of_diflow(key: str) -> bool:
    """Whether a label or an annotation has one of diflow's names, whoever may set it."""
    return _is_under(key, _DIFLOWS_DOMAINS)


def _is_under(key: str, domains: Iterable[str]) -> bool:
    domain = key.rpartition("/")[0].lower()
    return any(domain == known or domain.endswith(f".{known}") for known in domains)


def _check_owner(given: Iterable[str], path: str) -> None:
    """Reject keys under the domains of Argo and diflow, which both act on."""
    for key in given:
        domain = key.rpartition("/")[0].lower()
        if _is_under(key, _SYSTEM_DOMAINS):
            raise InvalidError(
                f"names under {domain}/ are set by {'Argo' if domain.endswith('argoproj.io') else 'diflow'}: "
                "choose a name of your own",
                path=f"{path}.{key}",
            )


def _check(model: type[BaseModel], data: Any, path: str) -> tuple[dict[str, Any], list[str]]:
    if not isinstance(data, dict):
        raise InvalidError(f"must be a mapping, not {describe(data)}", path=path)
    unknown: list[str] = []
    clean: dict[str, Any] = _prune(data, model, path, unknown)
    try:
        # As JSON, whose types are those that the API server receives; strict mode converts nothing.
        model.model_validate_json(json.dumps(clean), strict=True)
    except ValidationError as error:
        wrong = [e for e in error.errors(include_url=False) if not _is_named_port(e)]
        if wrong:
            raise as_invalid(error, path=path, first=wrong[0]) from None
    return clean, unknown


def _is_named_port(error: Mapping[str, Any]) -> bool:
    """Whether the error is about a port name in an `httpGet`, which Argo's Python model lacks."""
    return error["loc"][-2:] == ("httpGet", "port") and isinstance(error["input"], str)


def _prune(value: Any, shape: Any, path: str, unknown: list[str], level: int = 0) -> Any:
    """Copy `value` without the fields that `shape` (a model, or a list or mapping of models) does not have."""
    if level > _MOST_LEVELS:
        raise InvalidError(f"is more than {_MOST_LEVELS} levels deep", path=path)
    if isinstance(value, dict):
        return _prune_mapping(value, shape, path, unknown, level + 1)
    if isinstance(value, list):
        inner = shape[1] if isinstance(shape, tuple) and shape[0] is list else None
        return [_prune(item, inner, f"{path}[{i}]", unknown, level + 1) for i, item in enumerate(value)]
    if _is_quantity(shape) and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return _plain(value, path)


def _prune_mapping(value: dict[Any, Any], shape: Any, path: str, unknown: list[str], level: int) -> dict[str, Any]:
    for key in value:
        if not isinstance(key, str):
            raise InvalidError(f"the key {describe(key)} must be text: put it in quotes", path=path)
        _plain(key, path)
    if isinstance(shape, type) and issubclass(shape, BaseModel) and not _is_root(shape):
        fields = _fields(shape)
        unknown += [f"{path}.{key}" if path else key for key in value if key not in fields]
        known = {key: item for key, item in value.items() if key in fields and item is not None}
        if shape is m.Volume and set(known) <= {"name"} and value.keys() - fields.keys():
            # Kubernetes would use an emptyDir.
            strange = ", ".join(sorted(value.keys() - fields.keys()))
            raise InvalidError(f"has no source that diflow knows: {strange}", path=path)
        return {
            key: _prune(item, fields[key], f"{path}.{key}" if path else key, unknown, level)
            for key, item in known.items()
        }
    inner = shape[1] if isinstance(shape, tuple) and shape[0] is dict else None
    return {key: _prune(item, inner, f"{path}.{key}", unknown, level) for key, item in value.items()}


def _plain(value: Any, path: str) -> Any:
    """A value that JSON and Kubernetes can represent."""
    if isinstance(value, str):
        if "\0" in value:
            raise InvalidError("has a NUL character, which no program can be given", path=path)
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise InvalidError("has half a character (a lone surrogate)", path=path) from None
    elif isinstance(value, int) and not isinstance(value, bool):
        name = path.rpartition(".")[2].partition("[")[0]
        if not -(2 ** (bits := 63 if name in _INT64 else 31)) <= value < 2**bits:
            raise InvalidError(f"must be an integer of {bits + 1} bits, not {describe(value)}", path=path)
    elif value is not None and not isinstance(value, bool | float):
        raise InvalidError(f"must be text, not {describe(value)}: put it in quotes", path=path)
    return value


@cache
def _fields(model: type[BaseModel]) -> dict[str, Any]:
    hints = typing.get_type_hints(model)
    return {field.alias or name: _shape(hints[name]) for name, field in model.model_fields.items()}


def _shape(hint: Any) -> Any:
    """Reduce a type hint to what `_prune` needs: a model, (list, inner), (dict, inner) or None."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return _shape(typing.get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        known = [_shape(arg) for arg in typing.get_args(hint) if arg is not type(None)]
        return next((shape for shape in known if shape is not None), None)
    if origin is list:
        return (list, _shape(typing.get_args(hint)[0]))
    if origin is dict:
        return (dict, _shape(typing.get_args(hint)[1]))
    return hint if isinstance(hint, type) and issubclass(hint, BaseModel) else None


def _is_root(model: type[BaseModel]) -> bool:
    return set(model.model_fields) <= {"root", "__root__"}


def _is_quantity(shape: Any) -> bool:
    return isinstance(shape, type) and shape.__name__ == "Quantity"


def as_invalid(error: ValidationError, *, path: str = "", first: Mapping[str, Any] | None = None) -> InvalidError:
    """Convert pydantic's first error (or the one given) to one line that names the field and says what to do."""
    first = first or error.errors(include_url=False)[0]
    where = path
    for part in first["loc"]:
        if isinstance(part, int):
            where += f"[{part}]"
        elif part not in ("root", "__root__", "str", "int") and not str(part)[:1].isupper():
            where += f".{part}" if where else str(part)
    return InvalidError(_complaint(first["type"], first.get("input"), first.get("ctx", {}), first["msg"]), path=where)


def _complaint(kind: str, value: Any, context: Mapping[str, Any], message: str) -> str:
    """The message of an error of pydantic."""
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        return "is not known: remove it"
    if kind == "string_type" and isinstance(value, bool | int | float):
        return f"must be text, not {describe(value)}: put it in quotes"
    if kind == "too_short":
        return "is empty: there must be at least one"
    wanted = _WANTED.get(kind)
    if wanted is None and kind in ("literal_error", "enum"):
        wanted = str(context["expected"])
    if wanted is None and kind in ("greater_than_equal", "less_than_equal"):
        wanted = f"at least {context['ge']:,}" if "ge" in context else f"at most {context['le']:,}"
    if wanted is None:
        words = message.removeprefix("Value error, ").removeprefix("Input ")
        return words if isinstance(value, dict | list) else f"{words}, not {describe(value)}"
    return f"must be {wanted}, not {describe(value)}"


_WANTED: Final = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "int_parsing_size": "a smaller integer",
    "int_type": "an integer",
    "list_type": "a list",
    "model_attributes_type": "a mapping",
    "model_type": "a mapping",
    "string_type": "text",
    "tuple_type": "a list",
}


def describe(value: Any) -> str:
    """A value in messages: its type and, if it is short, its text."""
    if value is None:
        return "empty"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, bool):
        return "true" if value else "false"
    return shortened(repr(value) if isinstance(value, str) else str(value), 80, end="...")

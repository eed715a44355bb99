"""Checks a pod template before anything is sent.

Argo Workflows does not check types itself when its minimal CRDs are installed: one Workflow with a boolean where text
belongs (an env name `N` in YAML 1.1) stops its controller for everybody. So each template is held against the
field types of Kubernetes here, unknown fields are taken out and reported, and quantities become text.
"""

from __future__ import annotations

import types
import typing
from functools import cache
from typing import Any

from hera.workflows import models as m
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from diflow.errors import InvalidError


class PodMetadata(BaseModel):
    """What a pod template may say about its pods' metadata."""

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
    topology_spread_constraints: list[dict[str, Any]] | None = Field(None, alias="topologySpreadConstraints")
    readiness_gates: list[dict[str, Any]] | None = Field(None, alias="readinessGates")
    resource_claims: list[dict[str, Any]] | None = Field(None, alias="resourceClaims")
    scheduling_gates: list[dict[str, str]] | None = Field(None, alias="schedulingGates")
    overhead: dict[str, str] | None = None
    resources: dict[str, Any] | None = None
    os: dict[str, str] | None = None
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


def check_pod_template(data: Any, *, path: str) -> tuple[dict[str, Any], list[str]]:
    """Check a PodTemplateSpec given as plain data.

    Returns a clean copy of `data` (unknown fields removed, quantities as text) and the paths that were removed.
    Raises InvalidError with the path of the first wrong field.
    """
    return _check(PodTemplate, data, path)


def check_volumes(data: Any, *, path: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Check a list of Kubernetes volumes, as `check_pod_template` does."""
    parent, _, _ = path.rpartition(".")
    clean, unknown = _check(_Volumes, {"volumes": data}, parent)
    return clean["volumes"], unknown


def _check(model: type[BaseModel], data: Any, path: str) -> tuple[dict[str, Any], list[str]]:
    if not isinstance(data, dict):
        raise InvalidError(f"must be a mapping, not {describe(data)}", path=path)
    unknown: list[str] = []
    clean: dict[str, Any] = _prune(data, model, path, unknown)
    try:
        model.model_validate(clean)
    except ValidationError as error:
        raise as_invalid(error, path=path) from None
    return clean, unknown


def _prune(value: Any, shape: Any, path: str, unknown: list[str]) -> Any:
    """Copy `value`, leaving out what `shape` (a model, or a list or mapping of models) does not know."""
    if isinstance(value, dict):
        if isinstance(shape, type) and issubclass(shape, BaseModel) and not _is_root(shape):
            fields = _fields(shape)
            out: dict[str, Any] = {}
            for key, item in value.items():
                here = f"{path}.{key}" if path else str(key)
                if key not in fields:
                    unknown.append(here)
                elif item is not None:
                    out[key] = _prune(item, fields[key], here, unknown)
            return out
        inner = shape[1] if isinstance(shape, tuple) and shape[0] is dict else None
        quantities = _is_quantity(inner)
        return {
            key: str(item)
            if quantities and isinstance(item, int | float) and not isinstance(item, bool)
            else _prune(item, inner, f"{path}.{key}", unknown)
            for key, item in value.items()
        }
    if isinstance(value, list):
        inner = shape[1] if isinstance(shape, tuple) and shape[0] is list else None
        return [_prune(item, inner, f"{path}[{i}]", unknown) for i, item in enumerate(value)]
    if _is_quantity(shape) and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
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


def as_invalid(error: ValidationError, *, path: str = "") -> InvalidError:
    """Turn pydantic's first complaint into one line that names the field and says what to do."""
    first = error.errors(include_url=False)[0]
    where = path
    for part in first["loc"]:
        if isinstance(part, int):
            where += f"[{part}]"
        elif part not in ("root", "__root__") and not str(part)[:1].isupper():
            where += f".{part}" if where else str(part)
    value = first.get("input")
    kind = first["type"]
    if kind == "string_type" and isinstance(value, bool | int | float):
        message = f"must be text, not {describe(value)}: put it in quotes"
    elif kind == "missing":
        message = "is missing"
    elif kind in ("literal_error", "enum"):
        message = f"must be {first['ctx']['expected']}, not {describe(value)}"
    else:
        message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
        if not isinstance(value, dict | list):
            message = f"{message}, not {describe(value)}"
    return InvalidError(message, path=where)


def describe(value: Any) -> str:
    """Name a value for a message: what it is and, when it is short, what it says."""
    if value is None:
        return "empty"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

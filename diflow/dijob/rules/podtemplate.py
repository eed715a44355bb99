"""Checks the types of a pod template before it is submitted.

Argo Workflows with minimal CRDs does not check types: one Workflow with a boolean in place of text (an env name `N` in
YAML 1.1) stops its controller for all users. So each template is checked against the field types of Kubernetes, unknown
fields are removed and reported, and quantities become text. Types are strict, like the API server's: "30" is not a
number. A quantity that Kubernetes cannot read is as bad. Rules beyond types are in `podrules`.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from hera.workflows.models import Volume
from pydantic import BaseModel, ValidationError

from diflow.common.errors import InvalidError
from diflow.dijob.rules import syntax
from diflow.dijob.rules.complaints import as_invalid, describe
from diflow.dijob.rules.metadata import check_annotations, check_labels
from diflow.dijob.rules.podrules import check_pod
from diflow.dijob.rules.podtypes import PodTemplate, Volumes
from diflow.dijob.rules.volumerules import check_volumes as check_volume_rules

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
    clean, unknown = _check(Volumes, {"volumes": data}, parent)
    check_volume_rules(clean["volumes"], path)
    return clean["volumes"], unknown


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
        value = str(value)
    if _is_quantity(shape) and isinstance(value, str):
        syntax.quantity(value, path)
    return _plain(value, path)


def _prune_mapping(value: dict[Any, Any], shape: Any, path: str, unknown: list[str], level: int) -> dict[str, Any]:
    for key in value:
        if not isinstance(key, str):
            raise InvalidError(f"the key {describe(key)} must be text: put it in quotes", path=path)
        _plain(key, path)
    if has_fields(shape):
        fields = fields_of(shape)
        unknown += [
            f"{path}.{key}" if path else key for key in value if key not in fields and not _is_unset(key, value)
        ]
        known = {key: item for key, item in value.items() if key in fields and item is not None}
        if shape is Volume and set(known) <= {"name"} and value.keys() - fields.keys():
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


def _is_unset(key: str, value: Mapping[str, Any]) -> bool:
    """Whether this is the creation time that programs of Kubernetes write into each template, without a value."""
    return key == "creationTimestamp" and value[key] is None


def has_fields(shape: Any) -> bool:
    """Whether a shape is a mapping of known fields (`fields_of`)."""
    return isinstance(shape, type) and issubclass(shape, BaseModel) and not _is_root(shape)


@cache
def fields_of(model: type[BaseModel]) -> dict[str, Any]:
    """The fields of a model by their names in manifests, each with its shape: a model, (list, shape), (dict, shape), or
    None for a value."""
    hints = typing.get_type_hints(model)
    return {field.alias or name: _shape(hints[name]) for name, field in model.model_fields.items()}


def _shape(hint: Any) -> Any:
    """Reduce a type hint to what is needed of it (`fields_of`)."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return _shape(typing.get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        known = [_shape(arg) for arg in typing.get_args(hint) if arg is not type(None)]
        return next((shape for shape in known if shape is not None), None)
    if origin in (list, tuple):
        return (list, _shape(typing.get_args(hint)[0]))
    if origin is dict:
        return (dict, _shape(typing.get_args(hint)[1]))
    return hint if isinstance(hint, type) and issubclass(hint, BaseModel) else None


def _is_root(model: type[BaseModel]) -> bool:
    return set(model.model_fields) <= {"root", "__root__"}


def _is_quantity(shape: Any) -> bool:
    return isinstance(shape, type) and shape.__name__ == "Quantity"

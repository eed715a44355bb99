"""Checks the syntax of names, labels, paths and quantities by the rules of Kubernetes.

Each check takes the text and the path of its field, and raises InvalidError. The rules are those of the API server
(k8s.io/apimachinery, v1.34), so that it accepts what passes here.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from fractions import Fraction
from typing import Any, Final, TypeVar

from diflow.common import quantities
from diflow.common.errors import InvalidError
from diflow.common.words import shortened

Value = TypeVar("Value", bound=Hashable)

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_QUALIFIED: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_ENV_NAME: Final = re.compile(r"[ -<>-~]+")  # printable ASCII without the equals sign
_PORT_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_LABEL_LIMIT: Final = 63
_SUBDOMAIN_LIMIT: Final = 253
_PORT_NAME_LIMIT: Final = 15


def once(seen: set[Value], value: Value, why: str, path: str) -> None:
    """Add a value to those that were seen, of which there may be one each; `why`: the error of a second one."""
    if value in seen:
        raise InvalidError(why, path=path)
    seen.add(value)


def dns_label(value: str, path: str) -> None:
    """The name of a container or a volume."""
    _check_length(value, _LABEL_LIMIT, path)
    if not _LABEL.fullmatch(value):
        raise InvalidError(
            f"{_show(value)} must be lower-case letters, digits and dashes, as in a host name", path=path
        )


def dns_subdomain(value: str, path: str) -> None:
    """The name of most objects: dots between labels."""
    _check_length(value, _SUBDOMAIN_LIMIT, path)
    if not _SUBDOMAIN.fullmatch(value):
        raise InvalidError(
            f"{_show(value)} must be lower-case letters, digits, dashes and dots, as in a domain name", path=path
        )


def qualified_name(value: str, path: str) -> None:
    """The key of a label: a name, or a prefix and a name (`example.org/name`)."""
    prefix, slash, name = value.rpartition("/")
    if slash and (len(prefix) > _SUBDOMAIN_LIMIT or not _SUBDOMAIN.fullmatch(prefix)):
        raise InvalidError(f"the key {_show(value)} must have a domain name before the slash, at most one", path=path)
    if len(name) > _LABEL_LIMIT or not _QUALIFIED.fullmatch(name):
        raise InvalidError(
            f"the key {_show(value)} must be at most {_LABEL_LIMIT} letters, digits, dashes, dots and underscores, and "
            "begin and end with a letter or digit",
            path=path,
        )


def label_value(value: str, path: str) -> None:
    """The value of a label, which may be empty."""
    if value and (len(value) > _LABEL_LIMIT or not _QUALIFIED.fullmatch(value)):
        raise InvalidError(
            f"the label's value {_show(value)} must be at most {_LABEL_LIMIT} letters, digits, dashes, dots and "
            "underscores, and begin and end with a letter or digit: put other text into an annotation",
            path=path,
        )


def labels(given: Mapping[str, str], path: str) -> None:
    """Labels, or a label selector."""
    for key, value in given.items():
        qualified_name(key, f"{path}.{key}")
        label_value(value, f"{path}.{key}")


def annotation_keys(given: Mapping[str, str], path: str) -> None:
    """The keys of annotations; their values may be any text."""
    for key in given:
        qualified_name(key.lower(), f"{path}.{key}")


def env_name(value: str, path: str) -> None:
    """The name of an environment variable."""
    if not _ENV_NAME.fullmatch(value):
        raise InvalidError(f"{_show(value)} must be printable ASCII characters without '='", path=path)
    if "{{" in value:
        raise InvalidError("cannot hold {{: Argo would read it as a template", path=path)


def port(value: int | str, path: str) -> None:
    """A port by its number or its name."""
    if isinstance(value, int):
        if not 1 <= value <= 65535:
            raise InvalidError(f"must be from 1 to 65535, not {value}", path=path)
        return
    if (
        len(value) > _PORT_NAME_LIMIT
        or not _PORT_NAME.fullmatch(value)
        or "--" in value
        or not any(c.isalpha() for c in value)
    ):
        raise InvalidError(
            f"{_show(value)} must be at most {_PORT_NAME_LIMIT} lower-case letters, digits and single dashes, with a "
            "letter among them",
            path=path,
        )


def quantity(value: str, path: str) -> Fraction:
    """The value of a Kubernetes quantity such as `500m` or `4Gi`, at least zero."""
    number = quantities.exact(value)
    if number is None:
        raise InvalidError(f"{_show(value)} is not a valid quantity: write a number such as 2, 500m or 4Gi", path=path)
    if number < 0:
        raise InvalidError(f"{_show(value)} is below zero", path=path)
    return number


def one_of(value: Any, allowed: tuple[str, ...], path: str) -> None:
    """One of the allowed values."""
    if value not in allowed:
        raise InvalidError(f"must be {' or '.join(allowed)}, not {_show(value)}", path=path)


def given(value: Any, path: str) -> None:
    """A value that must not be missing or empty."""
    if not value:
        raise InvalidError("is missing" if value is None else "is empty", path=path)


def _check_length(value: str, limit: int, path: str) -> None:
    if not value:
        raise InvalidError("is empty", path=path)
    if len(value) > limit:
        raise InvalidError(f"has {len(value)} characters, at most {limit} are allowed", path=path)


def _show(value: Any) -> str:
    return shortened(repr(value), 80, end="...")

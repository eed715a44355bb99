"""Requests of pods and resources of nodes as integers: millicores, MiB, devices, pods. The one reader of quantities."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from diflow.common.errors import InvalidError
from diflow.common.limits import MOST_POD_RESOURCES

_QUANTITY = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,3}))?")
_MOST_CHARACTERS = 64
_SUFFIX = {
    **{unit: Fraction(1000) ** -power for power, unit in enumerate("mun", 1)},
    **{unit: Fraction(1000) ** power for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Fraction(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
}
MOST = 10**15
"""Largest amount of a resource, in base units: a million nodes of a million cores, or of 1,000 TiB."""
Amounts = dict[str, int]
PODS = "pods"
NATIVE = frozenset({"cpu", "memory", "ephemeral-storage", PODS})


def exact(quantity: str) -> Fraction | None:
    """The value of a Kubernetes quantity such as `500m` or `4Gi` in its own unit (cores, bytes); None if it is none."""
    found = _QUANTITY.fullmatch(quantity) if len(quantity) <= _MOST_CHARACTERS else None
    if found is None:
        return None
    number, suffix, power = found.groups()
    return Fraction(number) * (_SUFFIX[suffix] if suffix else Fraction(10) ** int(power or 0))


def amount(resource: str, quantity: object, path: str) -> int:
    """A Kubernetes quantity in the resource's base unit, rounded up. Raises InvalidError that names `path`."""
    is_one = isinstance(quantity, str | int | float) and not isinstance(quantity, bool)
    value = exact(str(quantity)) if is_one else None
    if value is None or value < 0:
        raise InvalidError(f"must be a quantity such as 2, 500m or 4Gi, not {quantity!r}", path=path)
    if resource == "cpu":
        value *= 1000
    elif resource in ("memory", "ephemeral-storage"):
        value /= 1024 * 1024
    return math.ceil(value)


@lru_cache(maxsize=4096)
def _amount(resource: str, quantity: str) -> int:
    try:
        return min(amount(resource, quantity, resource), MOST)
    except InvalidError:
        return 0  # the API server has validated it: an unknown suffix must not stop a cycle


def read(quantities: Mapping[str, Any] | None) -> Amounts:
    """Kubernetes quantities as amounts: of the first MOST_POD_RESOURCES names, Kubernetes' own resources first."""
    given = {str(name): value for name, value in (quantities or {}).items()}
    if len(given) > MOST_POD_RESOURCES:
        given = {name: given[name] for name in sorted(given, key=_rank)[:MOST_POD_RESOURCES]}
    return {name: _amount(name, str(value)) for name, value in given.items()}


def of_pod(spec: Mapping[str, Any]) -> Amounts:
    """A pod's effective request, as kube-scheduler computes it: the sum of containers and sidecars, or the largest
    init container if that is more, plus the pod's overhead."""
    total: Amounts = {PODS: 1}
    for container in spec.get("containers") or []:
        add(total, _asked(container))
    sidecars: Amounts = {}
    highest: Amounts = {}
    for container in spec.get("initContainers") or []:
        asked = _asked(container)
        if container.get("restartPolicy") == "Always":
            add(sidecars, asked)
            asked = dict(sidecars)
        else:
            asked = plus(asked, sidecars)
        for name, value in asked.items():
            highest[name] = max(highest.get(name, 0), value)
    add(total, sidecars)
    for name, value in highest.items():
        total[name] = max(total.get(name, 0), value)
    add(total, read(spec.get("overhead")))
    names = sorted(total, key=_rank)[:MOST_POD_RESOURCES] if len(total) > MOST_POD_RESOURCES else total
    return {name: total[name] for name in names if total[name]}


def _rank(name: str) -> tuple[bool, str]:
    """Sort key of resource names: Kubernetes' own come first."""
    return name not in NATIVE, name


def add(total: Amounts, more: Mapping[str, int]) -> None:
    for name, value in more.items():
        total[name] = total.get(name, 0) + value


def plus(one: Mapping[str, int], other: Mapping[str, int]) -> Amounts:
    out = dict(one)
    add(out, other)
    return out


def total(parts: Iterable[Mapping[str, int]]) -> Amounts:
    out: Amounts = {}
    for part in parts:
        add(out, part)
    return out


def _asked(container: Mapping[str, Any]) -> Amounts:
    resources = container.get("resources") or {}
    # A limit without a request counts as the request: the API server defaults it in pods, but not in templates.
    return {**read(resources.get("limits")), **read(resources.get("requests"))}

"""Requests of pods and resources of nodes as integers: millicores, MiB, devices, pods. The one reader of quantities."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

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


def of_pod(spec: Mapping[str, Any], status: Mapping[str, Any] = MappingProxyType({})) -> Amounts:
    """A pod's effective request, as kube-scheduler computes it: the sum of containers and sidecars, or the largest
    init container if that is more; in place of it what the pod as a whole requests, of the resources that it names;
    plus the overhead of the pod.

    `status`: of a running pod, whose containers may be resized: until a resize is carried out, a container counts with
    the more of what it asks for and what it has, and with the latter if its node can never carry it out.
    """
    has = Granted(_granted(status), is_all=_is_infeasible(status))
    total: Amounts = {PODS: 1}
    for container in spec.get("containers") or []:
        add(total, _asked(container, has))
    sidecars: Amounts = {}
    highest: Amounts = {}
    for container in spec.get("initContainers") or []:
        asked = _asked(container, has)
        if container.get("restartPolicy") == "Always":
            add(sidecars, asked)
            continue
        # Of what it does not ask for, the sidecars that run by then have no more than all of them, which count below.
        for name, value in asked.items():
            highest[name] = max(highest.get(name, 0), value + sidecars.get(name, 0))
    add(total, sidecars)
    for name, value in highest.items():
        total[name] = max(total.get(name, 0), value)
    whole = spec.get("resources") or {}
    total |= {name: value for name, value in read(whole.get("requests")).items() if _is_of_whole_pod(name)}
    add(total, read(spec.get("overhead")))
    names = sorted(total, key=_rank)[:MOST_POD_RESOURCES] if len(total) > MOST_POD_RESOURCES else total
    return {name: total[name] for name in names if total[name]}


def limits_of_pod(spec: Mapping[str, Any]) -> Amounts:
    """A pod's effective limits, computed as its request is. A container without one adds nothing."""

    def limited(containers: Any) -> list[dict[str, Any]]:
        return [{**one, "resources": {"requests": (one.get("resources") or {}).get("limits")}} for one in containers]

    kinds = ("containers", "initContainers")
    found = of_pod({name: limited(spec.get(name) or ()) for name in kinds})
    more = read(spec.get("overhead"))
    return {name: amount + more.get(name, 0) for name, amount in found.items() if name != PODS}


def _is_of_whole_pod(name: str) -> bool:
    """Whether a pod may request this resource for all its containers together (Kubernetes 1.34)."""
    return name in ("cpu", "memory") or name.startswith("hugepages-")


class Granted(NamedTuple):
    """What a pod's containers have been given, by name; `is_all`: that they ask for more of it does not count."""

    by_container: Mapping[str, Amounts]
    is_all: bool


def _granted(status: Mapping[str, Any]) -> Mapping[str, Amounts]:
    out: dict[str, Amounts] = {}
    for container in [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]:
        granted = read((container.get("resources") or {}).get("requests"))
        for name, value in read(container.get("allocatedResources")).items():
            granted[name] = max(value, granted.get(name, 0))
        if granted:
            out[str(container.get("name"))] = granted
    return out


def _is_infeasible(status: Mapping[str, Any]) -> bool:
    """Whether the node of the pod refuses a resize for good."""
    conditions = status.get("conditions") or []
    return any(c.get("type") == "PodResizePending" and c.get("reason") == "Infeasible" for c in conditions)


def _rank(name: str) -> tuple[bool, str]:
    """Sort key of resource names: Kubernetes' own come first."""
    return name not in NATIVE, name


def add(total: Amounts, more: Mapping[str, int]) -> None:
    for name, value in more.items():
        total[name] = total.get(name, 0) + value


def total(parts: Iterable[Mapping[str, int]]) -> Amounts:
    out: Amounts = {}
    for part in parts:
        add(out, part)
    return out


def _asked(container: Mapping[str, Any], has: Granted) -> Amounts:
    granted = has.by_container.get(str(container.get("name")), {})
    resources = container.get("resources") or {}
    # A limit without a request counts as the request: the API server defaults it in pods, but not in templates.
    asked = {**read(resources.get("limits")), **read(resources.get("requests"))}
    for name, value in granted.items():
        asked[name] = value if has.is_all else max(value, asked.get(name, 0))
    return asked

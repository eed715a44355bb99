"""Amounts of resources for display: parsed from Kubernetes quantities, summed, and formatted.

cpu is in millicores, memory and storage in MiB, everything else in units. An invalid quantity counts as 0: the API
server has validated it, and a page without one bar is better than none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

Amounts = dict[str, float]

CPU: Final = "cpu"
MEMORY: Final = "memory"
_MIB: Final = frozenset({MEMORY, "ephemeral-storage"})
_QUANTITY: Final = re.compile(
    r"([0-9]{1,18}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})(?:[eE]([+-]?[0-9]{1,2})|([KMGTPE]i|[numkMGTPE])?)"
)
_SUFFIXES: Final = {
    "n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60,
}  # fmt: skip


def read(quantities: Any) -> Amounts:
    """Parse a mapping of quantities (`{"cpu": "500m"}`); zeros are left out."""
    if not isinstance(quantities, Mapping):
        return {}
    found = {str(name): _amount(str(name), str(quantity)) for name, quantity in quantities.items()}
    return {name: amount for name, amount in found.items() if amount > 0}


def of_pod(spec: Mapping[str, Any]) -> Amounts:
    """A pod's effective request, as kube-scheduler computes it: the sum of containers and sidecars, or the largest init
    container if that is more, and the overhead of the runtime class."""
    total = plus(*(_asked(container) for container in spec.get("containers") or []))
    sidecars: Amounts = {}
    highest: Amounts = {}
    for container in spec.get("initContainers") or []:
        needed = plus(_asked(container), sidecars)
        if container.get("restartPolicy") == "Always":
            sidecars = needed
        highest = {name: max(highest.get(name, 0), needed.get(name, 0)) for name in {*highest, *needed}}
    total = plus(total, sidecars)
    total = {name: max(total.get(name, 0), highest.get(name, 0)) for name in {*total, *highest}}
    return plus(total, read(spec.get("overhead")))


def plus(*parts: Mapping[str, float]) -> Amounts:
    """Their sum."""
    out: Amounts = {}
    for part in parts:
        for name, amount in part.items():
            out[name] = out.get(name, 0.0) + amount
    return out


def short(resource: str) -> str:
    """A short name: GPU for `nvidia.com/gpu`, CPU for `cpu`."""
    name = resource.rpartition("/")[2]
    return name.upper() if len(name) <= 3 else name


def shown(there: Iterable[str]) -> tuple[str, ...]:
    """The resources to show a bar for, of those that nodes have: devices first, then cpu and memory."""
    names = set(there)
    devices = sorted(name for name in names if is_device(name))
    return (*devices[:3], *(name for name in (CPU, MEMORY) if name in names))


def is_device(resource: str) -> bool:
    """Whether it is an extended resource, such as GPUs, which are counted in whole units."""
    return "/" in resource


@lru_cache(maxsize=4096)
def _amount(resource: str, quantity: str) -> float:
    found = _QUANTITY.fullmatch(quantity)
    if found is None:
        return 0.0
    digits, exponent, suffix = found.groups()
    value = float(digits) * (10.0 ** int(exponent) if exponent else _SUFFIXES.get(suffix or "", 0.0))
    if resource == CPU:
        value *= 1000
    elif resource in _MIB:
        value /= 2.0**20
    return value if math.isfinite(value) else 0.0


def _asked(container: Mapping[str, Any]) -> Amounts:
    resources = container.get("resources") or {}
    # A limit without a request is the request: the API server sets it in pods, but not in templates.
    return {**read(resources.get("limits")), **read(resources.get("requests"))}

"""The resources that are shown, and their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from diflow.common.words import quantity

# These first; then all others by name.
_FIRST: Final = ("cpu", "memory")
_HIDDEN: Final = ("pods", "hostport/")


def short(resource: str) -> str:
    """The short name of a resource: `gpu` for `nvidia.com/gpu`."""
    return resource.rpartition("/")[2]


def shown(resources: Sequence[str], *, asked: Mapping[str, float] | None = None) -> list[str]:
    """The resources to show, in order: those with a request in `asked` (all if it is None)."""
    kept = [r for r in resources if not r.startswith(_HIDDEN) and (asked is None or asked.get(r, 0) > 0)]
    return sorted(kept, key=lambda r: (_FIRST.index(r) if r in _FIRST else len(_FIRST), r))


def amounts(given: Mapping[str, float], resources: Sequence[str], *, zeros: bool = False) -> str:
    """Such as `cpu 4, memory 8Gi`; `-` for nothing. `zeros`: with what is limited to 0."""
    parts = [f"{short(r)} {quantity(r, given[r])}" for r in resources if given.get(r) or (zeros and r in given)]
    return ", ".join(parts) or "-"

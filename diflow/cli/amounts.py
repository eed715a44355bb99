"""Amounts of resources as people write them, from the allocator's whole numbers (millicores, MiB, devices)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

_MIB: Final = frozenset({"memory", "ephemeral-storage"})
# What people look at first; then whatever else there is, by name.
_FIRST: Final = ("cpu", "memory")
_HIDDEN: Final = ("pods", "hostport/")


def quantity(resource: str, amount: float) -> str:
    """Such as `1.5` cores, `20Gi`, `512Mi`, `4`."""
    if resource == "cpu":
        return f"{amount / 1000:.3g}" if amount < 1e5 else f"{amount / 1000:.0f}"
    if resource in _MIB:
        if amount >= 1024 * 1024:
            return f"{amount / 1024 / 1024:.3g}Ti"
        if amount >= 1024:
            gib = amount / 1024
            return f"{gib:.3g}Gi" if gib < 100 else f"{gib:.0f}Gi"
        return f"{amount:.0f}Mi"
    return f"{amount:.4g}"


def short(resource: str) -> str:
    """`nvidia.com/gpu` is `gpu` to people."""
    return resource.rpartition("/")[2]


def shown(resources: Sequence[str], *, asked: Mapping[str, float] | None = None) -> list[str]:
    """The resources to show, in their order: those that are `asked` for by anybody (all if it is None)."""
    kept = [r for r in resources if not r.startswith(_HIDDEN) and (asked is None or asked.get(r, 0) > 0)]
    return sorted(kept, key=lambda r: (_FIRST.index(r) if r in _FIRST else len(_FIRST), r))


def amounts(given: Mapping[str, float], resources: Sequence[str]) -> str:
    """Such as `cpu 4, memory 8Gi`; `-` for nothing."""
    parts = [f"{short(r)} {quantity(r, given[r])}" for r in resources if given.get(r)]
    return ", ".join(parts) or "-"

"""Which resources the page shows, in which order, and their short names."""

from __future__ import annotations

from collections.abc import Iterable


def short(resource: str) -> str:
    """A short name: GPU for `nvidia.com/gpu`, CPU for `cpu`, Memory for `memory`."""
    if resource == "memory":
        return "Memory"
    name = resource.rpartition("/")[2]
    return name.upper() if len(name) <= 3 else name


def shown(there: Iterable[str]) -> tuple[str, ...]:
    """The resources to show a bar for, of those that nodes have: devices first, then cpu and memory."""
    names = set(there)
    devices = sorted(name for name in names if is_device(name))
    return (*devices[:3], *(name for name in ("cpu", "memory") if name in names))


def is_device(resource: str) -> bool:
    """Whether it is an extended resource, such as GPUs, which are counted in whole units."""
    return "/" in resource

"""Amounts of a snapshot's resources, which are in base units, as text for people."""

from __future__ import annotations

from diflow.allocator.model.views import NOT_OFFERED, PODS
from diflow.common.words import counted, quantity


def amount(resource: str, value: int) -> str:
    """One amount as text, from a snapshot's base unit: 1500 of cpu is "1.5 cpu"."""
    if resource == "cpu":
        return f"{value / 1000:g} cpu"
    if resource in ("memory", "ephemeral-storage"):
        return f"{quantity(resource, value)} {resource}"
    if resource.startswith("hostport/"):
        return f"host port {resource.partition('/')[2]}"
    if resource == PODS:
        return counted(value, "pod")
    if resource == NOT_OFFERED:
        return "a resource that no node offers"
    return f"{value} {resource}"


def amount_of(resource: str, value: float) -> str:
    """As `amount`, for fractions of the base unit: 1,333.3 of cpu is "1.33 cpu"."""
    if float(value).is_integer():
        return amount(resource, int(value))
    return f"{quantity(resource, value)} {resource}"

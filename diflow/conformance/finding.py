"""What the probe says about one fact. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

Measured = bool | int | float | str

# The facts by their number in the design, as what diflow relies on.
TITLES: Final[Mapping[int, str]] = MappingProxyType(
    {
        1: "a patch of a running Workflow's parameters grows a group",
        2: "members of a group keep their names when one is added to or dropped from the tail",
        3: "a member that is stopped first can be dropped, and does not fail its group",
        4: "a group that was never empty can grow",
        5: "podSpecPatch sets gates, host name and grace period; one patch ungates and pins a pod",
        6: "activeDeadlineSeconds on a running pod stops it gracefully",
        7: "retryStrategy.expression sees the last attempt and reads parameters anew",
        8: "a new round with more replicas replaces the old one, and the Workflow succeeds",
        9: "a user's text reaches the container byte for byte",
        10: "each pod is told its peers by an expression, with no daemon up",
        13: "a worker's pod has Argo's containers beside the user's",
    }
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact, measured.

    `ok` says whether what diflow relies on holds. `measured` has the figures, and what diflow avoids but does not rely
    on, such as whether a reorder renames members. `seconds` is how long the measurement took, waits included.
    """

    fact: int
    title: str
    ok: bool
    detail: str
    seconds: float
    measured: Mapping[str, Measured] = field(default_factory=dict)


class FactFailedError(Exception):
    """The cluster does not do what the fact says; the text says what it did instead."""


class HopelessError(FactFailedError):
    """As its parent, and it would be so again: the probe does not try a second time."""

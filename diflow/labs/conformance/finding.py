"""The probe's finding about one fact. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

Measured = bool | int | float | str

# The facts that diflow relies on, by their number in the design.
TITLES: Final[Mapping[int, str]] = MappingProxyType(
    {
        1: "a patch of a running Workflow's parameters grows a group",
        2: "members of a group keep their names when one is added to or dropped from the tail",
        3: "a member that is stopped first can be dropped, and does not fail its group",
        4: "a group that was never empty can grow",
        5: "podSpecPatch sets gates, host name and grace period; one patch ungates and pins a pod",
        6: "activeDeadlineSeconds on a running pod stops it gracefully",
        7: "retryStrategy.expression sees the last attempt and rereads parameters",
        8: "a new round with more replicas replaces the old one, and the Workflow succeeds",
        9: "a user's text reaches the container byte for byte",
        10: "an expression gives each pod its peers, without a daemon",
        13: "a worker's pod has Argo's containers beside the user's",
        17: "a suspended Workflow has no pods, and one patch creates them on their nodes",
        20: "Argo looks at a Workflow when it sees it for the first time",
    }
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact, measured.

    `ok`: the fact holds. `measured` has figures, and behaviour that diflow does not rely on, such as whether a reorder
    renames members. `seconds` is the duration of the measurement, including waits.
    """

    fact: int
    title: str
    ok: bool
    detail: str
    seconds: float
    measured: Mapping[str, Measured] = field(default_factory=dict)


class FactFailedError(Exception):
    """The fact does not hold; the message says what happened instead."""


class HopelessError(FactFailedError):
    """A fact that does not hold and need not be retried."""

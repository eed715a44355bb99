"""A scenario's outcome about one fact, from which the probe makes findings. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from diflow.labs.conformance.finding import Measured


@dataclass(frozen=True, slots=True)
class Outcome:
    """A fact that holds in a scenario. One that does not raises FactFailedError instead."""

    fact: int
    detail: str
    measured: Mapping[str, Measured] = field(default_factory=dict)

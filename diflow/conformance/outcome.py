"""What a scenario found out about one fact, before the probe makes findings of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from diflow.conformance.finding import Measured


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a fact's part of a scenario showed. A fact that does not hold is raised as FactFailedError instead."""

    fact: int
    detail: str
    measured: Mapping[str, Measured] = field(default_factory=dict)

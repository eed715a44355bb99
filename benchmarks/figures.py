"""A measured figure, and tables of figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from diflow.common.tables import table


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with its unit, its upper limit, and the conditions of the measurement."""

    part: str
    name: str
    value: float
    unit: str
    limit: float | None = None
    note: str = ""

    @property
    def is_ratio(self) -> bool:
        return self.unit == "×"

    @property
    def is_missed(self) -> bool:
        return self.limit is not None and self.value > self.limit

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "missed": self.is_missed}


def figures_table(figures: Sequence[Figure]) -> str:
    """The figures as aligned text."""
    rows = []
    for f in figures:
        limit = "" if f.limit is None else f"≤ {f.limit:g} {f.unit}"
        verdict = "" if f.limit is None else "MISSED" if f.is_missed else "ok"
        rows.append((f.part, f.name, f"{f.value:.3g} {f.unit}", limit, verdict, f.note))
    return table(("part", "figure", "value", "limit", "", "note"), rows)

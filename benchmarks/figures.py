"""A measured figure, and tables of figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


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


def table(figures: Sequence[Figure]) -> str:
    """The figures as aligned text."""
    rows = [("part", "figure", "value", "limit", "", "note")]
    for f in figures:
        limit = "" if f.limit is None else f"≤ {f.limit:g} {f.unit}"
        verdict = "" if f.limit is None else "MISSED" if f.is_missed else "ok"
        rows.append((f.part, f.name, f"{f.value:.3g} {f.unit}", limit, verdict, f.note))
    return aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as text with aligned columns."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )

"""The table of users' reports: what each was about, what was seen in diflow, what is right, and the test of it."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass

from tests.reports import rows


@dataclass(frozen=True, slots=True)
class Row:
    """One report. `reports`: as project#number. `test`: the function that shows that it is right, in a file of
    `tests/reports` ("test_scheduler.py::test_name")."""

    reports: str
    input: str
    seen: str
    right: str
    test: str


@dataclass(frozen=True, slots=True)
class Kind:
    """Reports with one cause."""

    title: str
    cause: str
    rows: tuple[Row, ...]


def kinds() -> list[Kind]:
    """All kinds, in the order of their modules in `tests/reports/rows`, each of which has a `KINDS`."""
    names = sorted(module.name for module in pkgutil.iter_modules(rows.__path__))
    return [kind for name in names for kind in importlib.import_module(f"{rows.__name__}.{name}").KINDS]

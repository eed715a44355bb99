"""docs/limits.md names a test for each bound."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
_TEST = re.compile(r"`(tests/[a-z0-9_/]+\.py)::(test_[a-z0-9_]+)`")


def _rows() -> list[list[str]]:
    lines = (ROOT / "docs" / "limits.md").read_text().splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return table[2:]


def test_each_bound_in_the_docs_has_a_test_that_is_there() -> None:
    rows = _rows()
    assert len(rows) > 40
    for row in rows:
        assert len(row) == 4, row
        named = _TEST.fullmatch(row[3])
        assert named is not None, f"{row[0]}: {row[3]} is not `path::name`"
        path = ROOT / named[1]
        assert path.is_file(), row[3]
        assert f"def {named[2]}(" in path.read_text(), row[3]

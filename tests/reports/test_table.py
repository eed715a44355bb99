"""The table itself: each row has a test."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.reports.table import Row, kinds

HERE = Path(__file__).parent
ROWS = [row for kind in kinds() for row in kind.rows]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.test)
def test_the_test_of_each_row_exists(row: Row) -> None:
    file, _, name = row.test.partition("::")
    functions = ast.walk(ast.parse((HERE / file).read_text(encoding="utf-8")))
    assert name in {node.name for node in functions if isinstance(node, ast.FunctionDef)}


def test_no_cell_breaks_the_table() -> None:
    cells = [text for row in ROWS for text in (row.reports, row.input, row.seen, row.right)]
    assert [text for text in cells if "|" in text or "\n" in text or not text] == []

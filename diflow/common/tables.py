"""The one printer of text tables: for the commands, the simulator, the benchmarks, the demos and `python3 -m cluster`.

It imports the standard library alone, as `cluster` runs where no package is installed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Final

_GAP: Final = "   "
_ANSI: Final = re.compile(r"\x1b\[[0-9;]*m")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = ()) -> str:
    """A table with columns of minimal width. The columns named in `right` are aligned there."""
    cells = [list(head), *[list(row) for row in rows]]
    widths = [max(_width(row[i]) for row in cells) for i in range(len(head))]
    lines = []
    for row in cells:
        padded = []
        for name, cell, width in zip(head, row, widths, strict=True):
            space = " " * (width - _width(cell))
            padded.append(space + cell if name in right else cell + space)
        lines.append(_GAP.join(padded).rstrip())
    return "\n".join(lines)


def _width(text: str) -> int:
    return len(_ANSI.sub("", text)) if "\x1b" in text else len(text)

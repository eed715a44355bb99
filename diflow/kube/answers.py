"""Parses the API server's JSON, regardless of its nesting.

Workflows have fields of arbitrary content, and the API server accepts 10,000 levels. Python's JSON library raises
RecursionError before 1,000, and for a whole list: one object would hide all others from each reader. So values that are
nested deeper than any field that diflow reads are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

MOST_LEVELS: Final = 200
"""Of nested lists and mappings. The deepest field of a pod template is at level 16."""
_BRACKET: Final = re.compile(rb'[^"\[\]{}]*+(?:"(?:[^"\\]++|\\.)*+"[^"\[\]{}]*+)*+([\[\]{}])', re.DOTALL)


def parse(data: bytes) -> Any:
    """Parse a response; values that are nested too deeply become null. Raises ValueError if it is not JSON."""
    try:
        return json.loads(data)
    except RecursionError:
        return json.loads(b"".join(_shallow(data)))


def _shallow(data: bytes) -> Iterator[bytes]:
    """The JSON text without values below MOST_LEVELS."""
    level = begin = 0
    for match in _BRACKET.finditer(data):
        at = match.start(1)
        if match[1] in b"[{":
            level += 1
            if level == MOST_LEVELS + 1:
                yield data[begin:at]
                yield b"null"
        else:
            if level == MOST_LEVELS + 1:
                begin = at + 1
            level -= 1
    if level > MOST_LEVELS:
        raise ValueError("cut off in the middle")
    yield data[begin:]

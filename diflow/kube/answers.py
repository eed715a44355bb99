"""JSON as the API server sends it, however deep it is nested.

A Workflow has fields of any content, and the API server takes 10,000 levels of it. Python's JSON library raises
RecursionError before the thousandth, and that for a whole list: one object would hide all others from each reader. So
what is nested deeper than any field that diflow reads is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

MOST_LEVELS: Final = 200
"""Of lists and mappings inside each other. The deepest field of a pod template is on level 16."""
_BRACKET: Final = re.compile(rb'[^"\[\]{}]*+(?:"(?:[^"\\]++|\\.)*+"[^"\[\]{}]*+)*+([\[\]{}])', re.DOTALL)


def parse(data: bytes) -> Any:
    """The value of an answer. What is nested too deep is null. Raises ValueError for what is no JSON."""
    try:
        return json.loads(data)
    except RecursionError:
        return json.loads(b"".join(_shallow(data)))


def _shallow(data: bytes) -> Iterator[bytes]:
    """JSON text without what is nested more than so many levels deep."""
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

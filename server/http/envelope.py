"""The one form that all answers have: {"success", "code", "message", "data"}.

A client in the field turns apostrophes into quotation marks before it parses: no message holds either.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

JSON: Final = b"application/json"
_LONGEST: Final = 500
_UNSAFE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
_QUOTES: Final = str.maketrans({"'": "`", '"': "`"})


def success(message: str, data: Any = None) -> bytes:
    """The body of an answer of 200."""
    return _dump({"success": True, "code": 0, "message": plain(message), "data": data})


def failure(message: str, data: Any = None) -> bytes:
    """The body of every other answer."""
    return _dump({"success": False, "code": 1, "message": plain(message), "data": data})


def bare(data: Any) -> bytes:
    """The body of an answer with no envelope around it, for clients that know none."""
    return _dump(data)


def plain(text: str) -> str:
    """Text for a message: one line of bounded length, with neither apostrophes nor quotation marks."""
    line = _UNSAFE.sub(" ", text.translate(_QUOTES))
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()

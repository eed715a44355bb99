"""The envelope of all responses: {"success", "code", "message", "data"}.

An existing client replaces apostrophes by quotation marks before it parses, so no message contains either.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from diflow.common.words import shortened

JSON: Final = b"application/json"
_LONGEST: Final = 500
_UNSAFE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
_QUOTES: Final = str.maketrans({"'": "`", '"': "`"})


def success(message: str, data: Any = None) -> bytes:
    """The body of a response with status 200."""
    return bare({"success": True, "code": 0, "message": plain(message), "data": data})


def failure(message: str, data: Any = None) -> bytes:
    """The body of a response with any other status."""
    return bare({"success": False, "code": 1, "message": plain(message), "data": data})


def bare(data: Any) -> bytes:
    """A body without the envelope, for clients that do not know it."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def plain(text: str) -> str:
    """Text for a message: one line of bounded length, without apostrophes and quotation marks."""
    return shortened(_UNSAFE.sub(" ", text.translate(_QUOTES)), _LONGEST)

"""Reads plain data that anybody may have written (reports, annotations, parameters): what is no such thing is none.

For text that diflow alone writes, and whose loss must be told, this is not the place.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def mapping(text: str) -> Mapping[str, Any]:
    """A JSON object; an empty one for "" and for text that is something else."""
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def number(value: Any) -> float | None:
    """A finite number; None for everything else: a truth value, NaN, infinity, an integer that no float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None

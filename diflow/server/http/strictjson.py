"""Parses untrusted JSON: refuses what two parsers could read differently, and deep nesting.

It does not know what the values mean.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, Final

from diflow.server.http.errors import ApiError, bad_request

DEEPEST: Final = 32
_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_BRACKET: Final = re.compile(rb"[\[\]{}]")
_OPENING: Final = frozenset(b"[{")


def parse(body: bytes, *, constants: bool = False) -> Any:
    """Parse a body. Raises ApiError (400) if it is not JSON in UTF-8, repeats a key, or is nested too deep.

    `constants`: accept NaN and Infinity, which are not JSON, so that the caller can report their paths (`not_finite`).
    """
    if not body.strip():
        raise bad_request("the body is empty: send a JSON object")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise bad_request("the body is not UTF-8") from None
    if _depth(body) > DEEPEST:
        raise bad_request(f"the body is nested deeper than {DEEPEST} levels")
    try:
        return json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant if not constants else float, parse_int=_whole
        )
    except ApiError:
        raise
    except (ValueError, RecursionError) as error:
        where = f" at line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise bad_request(f"the body is not JSON{where}") from None


def not_finite(value: Any, path: str = "") -> Iterator[str]:
    """The paths of all numbers in a value that are NaN or infinite."""
    if isinstance(value, float):
        if not math.isfinite(value):
            yield path
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from not_finite(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from not_finite(item, f"{path}[{index}]")


def _depth(body: bytes) -> int:
    depth = deepest = 0
    for bracket in _BRACKET.finditer(_STRING.sub(b"", body)):
        depth += 1 if body and bracket.group()[0] in _OPENING else -1
        deepest = max(deepest, depth)
        if deepest > DEEPEST:
            break
    return deepest


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise bad_request(f"the key {twice[:100]} is in the body twice")
    return out


def _constant(name: str) -> Any:
    raise bad_request(f"the body is not JSON: {name} is not a number of JSON")


def _whole(text: str) -> int | float:
    # Such a number is out of every range: a float will do, and parsing a long int takes quadratic time.
    return int(text) if len(text) <= 20 else float(text)

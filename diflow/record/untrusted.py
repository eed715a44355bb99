"""Parses untrusted plain data: JSON, numbers, counts, times. Invalid input yields None or an empty value.

Everything is bounded: the length of a text, the digits of a number, the nesting of a value.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, TypeGuard

from diflow.common.levels import MOST_CHARACTERS, is_deep

FOREGROUND: Final = "foregroundDeletion"
# As Kubernetes and Argo write it. Times are compared as text, so no other form may pass.
_TIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?Z", re.ASCII)


def load(text: Any) -> Any:
    """Parse a JSON text. Raises ValueError if it is invalid, too long or too deep."""
    if not isinstance(text, str):
        raise ValueError("no text")
    if len(text) > MOST_CHARACTERS:
        raise ValueError("too long")
    if is_deep(text):
        raise ValueError("too deep")
    return _DECODER.decode(text)


def mapping(text: Any) -> Mapping[str, Any]:
    """Parse a JSON object as `load`; an empty one for "" and for anything else."""
    try:
        value = load(text) if text else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def number(value: Any) -> float | None:
    """A finite number; None for anything else: a boolean, NaN, infinity, an integer that no float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def is_count(value: Any, *, most: int, least: int = 1) -> TypeGuard[int]:
    """Whether this is an integer from `least` to `most`; a boolean is not."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def whole(text: Any, *, digits: int = 9, most: int | None = None) -> int | None:
    """The number in a text of 1 to `digits` ASCII digits; None for anything else and for a number above `most`.

    `int()` and `str.isdigit` accept blanks, underscores, signs and the digits of every script; `isdigit` accepts some
    that `int` does not, and `int` raises from 4,300 digits on.
    """
    if not isinstance(text, str) or not 1 <= len(text) <= digits or not (text.isascii() and text.isdigit()):
        return None
    found = int(text)
    return found if most is None or found <= most else None


def whole_text(number: int) -> str:
    """A count as `whole` reads it back: a larger one counts as the largest that it reads."""
    return str(min(number, 999_999_999))


def time(text: Any) -> str:
    """A time as Kubernetes writes it (`2026-11-21T09:40:44Z`); "" for anything else."""
    return text if isinstance(text, str) and _TIME.fullmatch(text) and _seconds(text) is not None else ""


def seconds(text: Any) -> float:
    """Such a time in seconds since 1970; 0 if it is invalid or earlier."""
    return max(0.0, _seconds(text) or 0.0) if isinstance(text, str) and _TIME.fullmatch(text) else 0.0


@lru_cache(maxsize=1024)
def _seconds(text: str) -> float | None:
    """Of a text of the right form. An object repeats its times, and the pods of a job share them."""
    try:
        return datetime.fromisoformat(f"{text[:19]}+00:00").timestamp()
    except (ValueError, OverflowError):
        return None


def sub(value: Any, *names: str) -> Mapping[str, Any]:
    """The mapping at a path of keys; an empty one if there is none."""
    for name in names:
        value = value.get(name) if _is_mapping(value) else None
    return value if _is_mapping(value) else {}


def _is_mapping(value: Any) -> TypeGuard[Mapping[str, Any]]:
    """Nearly all are dictionaries or missing: for both the check of an abstract class is slow."""
    return type(value) is dict or (value is not None and isinstance(value, Mapping))


def label(obj: Any, name: str) -> str:
    """A label of any object; "" without it."""
    return string(sub(obj, "metadata", "labels").get(name))


def is_deleted_in_foreground(metadata: Mapping[str, Any]) -> bool:
    """Whether an object is being deleted, and waits for the deletion of what it owns."""
    finalizers = metadata.get("finalizers")
    return bool(metadata.get("deletionTimestamp")) and isinstance(finalizers, list) and FOREGROUND in finalizers


def mappings(value: Any) -> Iterator[Mapping[str, Any]]:
    """The mappings in a list."""
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        yield from filter(_is_mapping, value)


def string(value: Any, *, most: int = MOST_CHARACTERS) -> str:
    """A text, truncated to `most` characters; "" for anything else."""
    return value[:most] if isinstance(value, str) else ""


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse)

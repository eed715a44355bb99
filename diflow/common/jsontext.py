"""JSON as diflow writes it, and the reader of JSON that anybody may have written: into types that have the bounds.

A text is valid as a whole or not at all: NaN, a number that is out of range, a lone surrogate, a wrong type or too many
levels of nesting make it invalid, in the time that it takes to read it once. Of two equal keys the last one counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final, TypeVar, overload

import msgspec

from diflow.common.levels import MOST_CHARACTERS, MOST_LEVELS, is_deep
from diflow.common.words import shortened

T = TypeVar("T")
Other = TypeVar("Other")

_LONGEST_WHY: Final = 200
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
_MISSING: Final = re.compile(r"Object missing required field `(\w+)`")
_OWN: Final = re.compile(r"\.([\w.\[\]]+): ")
_UNKNOWN: Final = re.compile(r"(?s)Object contains unknown field `(.*)`")
_EXPECTED: Final = re.compile(r"Expected `([^`]*)`(.*?)(?:, got `(.*)`)?")
_WORDS: Final = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "null": "nothing",
    "object": "a mapping",
    "str": "text",
}
_AT: Final = re.compile(r"(?s)(.*?)(?: - at `\$\.?([^`]*)`)?\Z")


def canonical_json(data: Any) -> str:
    """Plain data as JSON without spaces, in the order given: equal data gives equal bytes."""
    return _ENCODER.encode(data)


class NotOfTypeError(ValueError):
    """A text or value that is not of its type. `path`: where in it; "" for the whole, as for a text that is no JSON."""

    def __init__(self, why: str, path: str = "", *, is_json: bool = True) -> None:
        super().__init__(why)
        self.path = path
        self.is_json = is_json


def wrong(field: str, why: str) -> ValueError:
    """The error of a struct's own check (`__post_init__`) about one of its fields."""
    return ValueError(f".{field}: {why}")


@overload
def reader(kind: type[T], *, most_characters: int = MOST_CHARACTERS) -> Callable[[Any], T]: ...
@overload
def reader(kind: object, *, most_characters: int = MOST_CHARACTERS) -> Callable[[Any], Any]: ...
def reader(kind: Any, *, most_characters: int = MOST_CHARACTERS) -> Callable[[Any], Any]:
    """A function that decodes a JSON text (or its UTF-8) into this type. It raises NotOfTypeError, and nothing else."""
    decode = msgspec.json.Decoder(kind).decode

    def read(text: Any) -> Any:
        if not isinstance(text, str | bytes):
            raise NotOfTypeError("no text", is_json=False)
        if len(text) > most_characters:
            raise NotOfTypeError("too long", is_json=False)
        if is_deep(text):
            raise NotOfTypeError(f"it has more than {MOST_LEVELS} levels of lists and mappings")
        try:
            return decode(text)
        except msgspec.ValidationError as error:
            raise _invalid(error) from None
        except (ValueError, RecursionError) as error:
            raise NotOfTypeError(shortened(str(error), _LONGEST_WHY), is_json=False) from None

    return read


def parsed(read: Callable[[Any], T], text: Any, otherwise: Other) -> T | Other:
    """What a reader makes of a text; something else if the text is invalid."""
    try:
        return read(text)
    except NotOfTypeError:
        return otherwise


def converter(kind: type[T]) -> Callable[[Any], T]:
    """A function that converts plain data into this type. It raises NotOfTypeError."""

    def convert(data: Any) -> T:
        try:
            return msgspec.convert(data, kind)
        except msgspec.ValidationError as error:
            raise _invalid(error) from None

    return convert


def _invalid(error: msgspec.ValidationError) -> NotOfTypeError:
    found = _AT.match(str(error))
    why, path = (found[1], found[2] or "") if found is not None else (str(error), "")
    if missing := _MISSING.fullmatch(why):
        return NotOfTypeError("is missing", f"{path}.{missing[1]}" if path else missing[1])
    if own := _OWN.match(why):
        why, path = why[own.end() :], f"{path}.{own[1]}" if path else own[1]
    elif unknown := _UNKNOWN.fullmatch(why):
        why = f"{shortened(unknown[1], 80)} is not a field of it"
    elif expected := _EXPECTED.fullmatch(why):
        wanted, rest, got = expected.groups()
        kinds = " or ".join(_WORDS.get(kind, kind) for kind in wanted.split(" | ") if kind != "null")
        why = f"must be {kinds}{rest}" + (f", not {_WORDS.get(got, got)}" if got else "")
    return NotOfTypeError(shortened(f"{why[:1].lower()}{why[1:]}", _LONGEST_WHY), path)

"""JSON as diflow writes it, and the reader of JSON that anybody may have written: into types that have the bounds.

A text is valid as a whole or not at all: NaN, a number that is out of range, a lone surrogate, a wrong type or too many
levels of nesting make it invalid, in the time that it takes to read it once. Of two equal keys the last one counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Final, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints, overload

import msgspec

from diflow.common.levels import MOST_CHARACTERS, MOST_LEVELS, is_deep
from diflow.common.words import shortened

T = TypeVar("T")
Other = TypeVar("Other")

_LONGEST_WHY: Final = 200
_MOST_PARTS: Final = 4096
"""Of a list or mapping with invalid entries: twice as many as a job may have replicas."""
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
_HALF: Final = re.compile("[\\ud800-\\udfff]")
_MOST_WORK: Final = 20_000
"""Parts of one text that are looked at to find the invalid ones, each of which costs as much as `_WORK_OF_INVALID`."""
_WORK_OF_INVALID: Final = 20
_NULL: Final = msgspec.Raw(b"null")
_LIST: Final = msgspec.json.Decoder(tuple[msgspec.Raw, ...])
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
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


@overload
def lenient(kind: type[T], *, most_characters: int = MOST_CHARACTERS) -> Callable[[Any], T]: ...
@overload
def lenient(kind: object, *, most_characters: int = MOST_CHARACTERS) -> Callable[[Any], Any]: ...
def lenient(kind: Any, *, most_characters: int = MOST_CHARACTERS) -> Callable[[Any], Any]:
    """As `reader`, of a record of which each part counts for itself. What is invalid is null where it may be null; else
    a field has its default, and an entry of a list or mapping is left out. Structs and lists of a fixed length within
    are valid as a whole, or not at all. NotOfTypeError is raised for what is no such record even then."""
    read = reader(kind, most_characters=most_characters)

    def read_parts(text: Any) -> Any:
        try:
            return read(text)
        except NotOfTypeError as error:
            is_short = isinstance(text, str) and len(text) <= most_characters
            # Whatever the error is: it is of the first wrong value, and half a pair may follow.
            if is_short and (whole := _with_whole_characters(text)) != text:
                return read_parts(whole)
            if not error.is_json or is_deep(text):
                raise
            try:
                kept = _Sieve().valid(kind, text, is_record=True)
            except _SpentError:
                kept = None
            if kept is None:
                raise
        return read(bytes(kept))

    return read_parts


def _with_whole_characters(text: str) -> str:
    """A JSON text with U+FFFD for each half of a surrogate pair; the text itself if it has none."""
    if is_deep(text) or not _SURROGATE.search(text):
        return text
    try:
        plain = _ENCODER.encode(json.loads(text))
    except (ValueError, RecursionError):
        return text
    return _HALF.sub("\ufffd", plain)


class _SpentError(Exception):
    """A text has more invalid parts than are looked for."""


class _Sieve:
    """Leaves the invalid parts out of one text, for a bounded amount of work: a text of a tenant that has thousands of
    them is invalid as a whole."""

    def __init__(self) -> None:
        self._left = _MOST_WORK

    def valid(self, hint: Any, text: Any, *, is_record: bool = False) -> msgspec.Raw | None:
        """A JSON text of this type without its invalid parts; None if nothing of it is valid."""
        shape = _shape(hint)
        self._spend(1)
        try:
            shape.decode(text)
            return msgspec.Raw(text)
        except ValueError:
            self._spend(_WORK_OF_INVALID)
        otherwise = _NULL if shape.is_optional else None
        if not (is_record or shape.has_parts):
            return otherwise
        try:
            kept = msgspec.json.encode(self._parts(shape, text))
            shape.decode(kept)
            return msgspec.Raw(kept)
        except ValueError:
            return otherwise

    def _parts(self, shape: _Shape, text: Any) -> Any:
        """The valid parts of a JSON text."""
        if shape.of is not None:
            if shape.is_mapping:
                found = ((name, self.valid(shape.of, part)) for name, part in _bounded(_OBJECT, text).items())
                return {name: part for name, part in found if part is not None}
            return [part for part in (self.valid(shape.of, part) for part in _bounded(_LIST, text)) if part is not None]
        if not shape.is_mapping:
            parts = _bounded(_LIST, text)
            return [*map(self.valid, shape.fields.values(), parts), *parts[len(shape.fields) :]]
        given = _bounded(_OBJECT, text)
        known = ((name, kind) for name, kind in shape.fields.items() if name in given)
        return {name: part for name, kind in known if (part := self.valid(kind, given[name])) is not None}

    def _spend(self, work: int) -> None:
        self._left -= work
        if self._left < 0:
            raise _SpentError


class _Shape(NamedTuple):
    """A type, as the sieve needs it. `of`: the type of the entries of a list or mapping; `fields`: those of a struct,
    by their names in JSON. `has_parts`: each counts for itself, wherever it is."""

    decode: Callable[[Any], Any]
    is_optional: bool
    is_mapping: bool
    has_parts: bool
    of: Any = None
    fields: Mapping[str, Any] = MappingProxyType({})


@cache
def _shape(hint: Any) -> _Shape:
    decode, is_optional = msgspec.json.Decoder(hint).decode, NoneType in get_args(hint)
    while get_origin(hint) in (Annotated, Union, UnionType):
        hint = next(kind for kind in get_args(hint) if kind is not NoneType)
    origin, kinds = get_origin(hint), get_args(hint)
    if origin is dict:
        return _Shape(decode, is_optional, is_mapping=True, has_parts=True, of=kinds[1])
    if origin is tuple and kinds[-1] is Ellipsis:
        return _Shape(decode, is_optional, is_mapping=False, has_parts=True, of=kinds[0])
    if origin is not None or not isinstance(hint, type) or hint.__module__ == "builtins":
        return _Shape(decode, is_optional, is_mapping=True, has_parts=False)
    hints = get_type_hints(hint, include_extras=True)
    is_row = hasattr(hint, "__struct_config__") and bool(hint.__struct_config__.array_like)
    names = getattr(hint, "__struct_encode_fields__", tuple(hints))
    return _Shape(decode, is_optional, not is_row, is_row, fields=dict(zip(names, hints.values(), strict=True)))


def _bounded(decoder: msgspec.json.Decoder[Any], text: Any) -> Any:
    parts = decoder.decode(text)
    if len(parts) > _MOST_PARTS:
        raise ValueError("too many parts to look at each of them")
    return parts


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

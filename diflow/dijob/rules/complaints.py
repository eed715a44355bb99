"""The models of what users write, and the messages about a field that has the wrong type or value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from diflow.common.errors import InvalidError
from diflow.common.words import shortened


class Model(BaseModel):
    """Frozen, with camelCase aliases, no other fields, and InvalidError as its errors."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="forbid")

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise as_invalid(error) from None


def as_invalid(error: ValidationError, *, path: str = "", first: Mapping[str, Any] | None = None) -> InvalidError:
    """Convert pydantic's first error (or the one given) to one line that names the field and says what to do."""
    first = first or error.errors(include_url=False)[0]
    where = path
    for part in first["loc"]:
        if isinstance(part, int):
            where += f"[{part}]"
        elif part not in ("root", "__root__", "str", "int") and not str(part)[:1].isupper():
            where += f".{part}" if where else str(part)
    return InvalidError(_complaint(first["type"], first.get("input"), first.get("ctx", {}), first["msg"]), path=where)


def _complaint(kind: str, value: Any, context: Mapping[str, Any], message: str) -> str:
    """The message of an error of pydantic."""
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        return "is not known: remove it"
    if kind == "string_type" and isinstance(value, bool | int | float):
        return f"must be text, not {describe(value)}: put it in quotes"
    if kind == "too_short":
        return "is empty: there must be at least one"
    wanted = _WANTED.get(kind)
    if wanted is None and kind in ("literal_error", "enum"):
        wanted = str(context["expected"])
    if wanted is None and kind in ("greater_than_equal", "less_than_equal"):
        wanted = f"at least {context['ge']:,}" if "ge" in context else f"at most {context['le']:,}"
    if wanted is None:
        words = message.removeprefix("Value error, ").removeprefix("Input ")
        return words if isinstance(value, dict | list) else f"{words}, not {describe(value)}"
    return f"must be {wanted}, not {describe(value)}"


_WANTED: Final = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "int_parsing_size": "a smaller integer",
    "int_type": "an integer",
    "list_type": "a list",
    "model_attributes_type": "a mapping",
    "model_type": "a mapping",
    "string_type": "text",
    "tuple_type": "a list",
}


def describe(value: Any) -> str:
    """A value in messages: its type and, if it is short, its text."""
    if value is None:
        return "empty"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, bool):
        return "true" if value else "false"
    return shortened(repr(value) if isinstance(value, str) else str(value), 80, end="...")

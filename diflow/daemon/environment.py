"""Settings from the environment. An error has the variable and the allowed values in one line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, SettingsError

from diflow.common.errors import InvalidError

S = TypeVar("S", bound=BaseSettings)

_SHOWN: Final = 40
_WANTED: Final[Mapping[str, str]] = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "an object of JSON",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a smaller whole number",
    "int_type": "a whole number",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "list_type": "a list of JSON",
    "literal_error": "{expected}",
    "string_too_long": "text of at most {max_length} characters",
    "string_too_short": "text of at least {min_length} characters",
    "string_type": "text",
    "too_long": "at most {max_length} entries",
    "too_short": "at least {min_length} entries",
    "tuple_type": "a list of JSON",
}
"""Our messages for pydantic's error types."""
_NUMBERS: Final = {int: "a whole number", float: "a number"}


def from_environment(kind: type[S], given: Mapping[str, object]) -> S:
    """Settings of this kind from the environment and `given`. Raises InvalidError that names the variable, and its
    invalid entry if it has several."""
    try:
        return kind(**given)  # type: ignore[arg-type]
    except ValidationError as error:
        raise _wrong(kind, error.errors(include_url=False)[0]) from None
    except SettingsError as error:
        # Settings other than text and numbers are JSON; pydantic names the invalid one only in its message.
        found = re.search(r'field "(\w+)"', str(error))
        variable = _variable(kind, found[1]) if found else f"{kind.model_config['env_prefix']}..."
        raise InvalidError(f"must be JSON: {error.__cause__ or error}", path=variable) from None


def _wrong(kind: type[BaseSettings], error: Mapping[str, Any]) -> InvalidError:
    """An error of pydantic with our message."""
    if not error["loc"]:  # a rule over several settings, which names them itself
        return InvalidError(str(error["msg"]).removeprefix("Value error, "))
    name, *inside = error["loc"]
    entry = "".join(f"[{part}]" for part in inside if part != "[key]")
    field = kind.model_fields.get(str(name))
    wanted = _range(field) if field is not None and not inside else ""
    if not wanted and error["type"] in _WANTED:
        shown = {key: _number(value) for key, value in (error.get("ctx") or {}).items()}
        wanted = _WANTED[error["type"]].format(**shown)
    says = f"must be {wanted}" if wanted else str(error["msg"]).removeprefix("Value error, ")
    return InvalidError(f"{says}, not {_short(error.get('input'))}", path=f"{_variable(kind, str(name))}{entry}")


def _range(field: FieldInfo) -> str:
    """The range of a number; "" for other fields."""
    of = next((words for number, words in _NUMBERS.items() if field.annotation is number), "")
    if not of:
        return ""
    bounds = {name: getattr(part, name) for part in field.metadata for name in ("ge", "gt", "le", "lt")
              if getattr(part, name, None) is not None}  # fmt: skip
    words = {"gt": "more than {}", "ge": "at least {}", "lt": "less than {}", "le": "at most {}"}
    said = " and ".join(text.format(_number(bounds[name])) for name, text in words.items() if name in bounds)
    return f"{of} of {said}" if said else of


def _variable(kind: type[BaseSettings], name: str) -> str:
    known = {str(field.validation_alias): field for field in kind.model_fields.values() if field.validation_alias}
    return name if name in known else f"{kind.model_config['env_prefix']}{name.upper()}"


def _number(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."

"""Settings from the environment: what is wrong with one is told in a line that names its variable."""

from __future__ import annotations

import re
from typing import TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsError

from diflow.errors import InvalidError

S = TypeVar("S", bound=BaseSettings)


def from_environment(kind: type[S], given: dict[str, object]) -> S:
    """Settings of this kind from the environment and `given`. Raises InvalidError that names the variable, and the
    entry of it that is wrong where it has several."""
    prefix = str(kind.model_config["env_prefix"])
    try:
        return kind(**given)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field, *inside = first["loc"]
        entry = "".join(f"[{part}]" for part in inside if part != "[key]")
        raise InvalidError(str(first["msg"]), path=f"{prefix}{str(field).upper()}{entry}") from None
    except SettingsError as error:
        # What is not a plain text or number is JSON; pydantic says in words alone which one it could not read.
        found = re.search(r'field "(\w+)"', str(error))
        variable = f"{prefix}{found[1].upper()}" if found else f"{prefix}..."
        raise InvalidError(f"must be JSON: {error.__cause__ or error}", path=variable) from None

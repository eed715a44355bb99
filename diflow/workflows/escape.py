"""Keeps a user's text out of Argo's templating.

Argo substitutes `{{...}}` in a template in several passes, each of which reads the result of the one before, so no
escape by nesting is safe. But `podSpecPatch` is text that Argo parses as JSON only after the last substitution. So a
field with `{{` in it is moved there as a whole, with each brace pair as the JSON escape `\\u007b\\u007b`: for any text,
no pass sees two braces in a row.
"""

from __future__ import annotations

import re
from typing import Any

from diflow.common.jsontext import canonical_json

_OPEN = "{{"
# Characters that JSON allows unescaped, but YAML 1.1, as which Argo reads the patch, does not everywhere.
_NOT_IN_YAML = re.compile("[\x7f-\xa0\u2028\u2029\ufeff\ufffe\uffff]")


def has_template(value: Any) -> bool:
    """Whether Argo would read any text inside `value` (plain data) as a template."""
    # Between the parts of plain data Python writes no two braces in a row, and it leaves those inside text alone.
    return _OPEN in repr(value)


class Template(str):
    """Text of diflow's own among a user's that Argo should read as a template."""

    __slots__ = ()


def patch_json(ours: dict[str, Any], users: dict[str, Any]) -> str:
    """A podSpecPatch, or the manifest of a resource template, which Argo parses as late.

    `ours` may hold Argo templates, the text in `users` is inert unless it is a Template.

    Their keys must not overlap.
    """
    parts = [canonical_json(ours)[1:-1], _users(users)[1:-1]]
    return "{" + ",".join(part for part in parts if part) + "}"


def _users(value: Any) -> str:
    # No two braces meet where the parts are put together: between nested objects there is always a key.
    match value:
        case Template():
            return canonical_json(str(value))
        case dict():
            return "{" + ",".join(f"{_users(key)}:{_users(item)}" for key, item in value.items()) + "}"
        case list() | tuple():
            return "[" + ",".join(map(_users, value)) + "]"
        case _:
            return _inert(canonical_json(value))


def _inert(text: str) -> str:
    # In JSON text two braces in a row occur inside strings only: between nested objects there is always a key.
    text = text.replace(_OPEN, "\\u007b\\u007b")
    return _NOT_IN_YAML.sub(lambda match: f"\\u{ord(match.group()):04x}", text)

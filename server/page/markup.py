"""HTML from values, in which only what was built here is taken for markup: all other text is escaped.

Names, reasons and messages come from users. Beside the characters that HTML knows, those that would change the
direction of the text around them, and those that no page can hold, are replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from html import escape
from typing import Final

_ODD: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufffe\uffff\ud800-\udfff]"
)
_PLAIN: Final = re.compile(r"[A-Za-z0-9 .,:;/_#()%+-]*").fullmatch
_EMPTY: Final = frozenset({"circle", "img", "input", "line", "link", "meta", "path", "rect"})


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


Child = Markup | str | int | float | None | Iterable["Child"]


def text(value: str | float) -> Markup:
    """A value as text, or as what stands between the quotes of an attribute."""
    if isinstance(value, Markup):
        return value
    written = str(value)
    # Most of it is numbers and names, which need a single look.
    return Markup(written if _PLAIN(written) else escape(_ODD.sub("�", written), quote=True))


def join(*children: Child) -> Markup:
    """All of them behind one another; None is nothing."""
    return Markup("".join(_parts(children)))


def el(element: str, /, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """An element. `class_` is `class`, `aria_label` is `aria-label`; None and False leave an attribute out."""
    given = "".join(
        f" {_attribute(key)}" if value is True else f' {_attribute(key)}="{text(str(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if element in _EMPTY and not children:
        return Markup(
            f"<{element}{given}>" if element not in ("circle", "line", "path", "rect") else f"<{element}{given}/>"
        )
    return Markup(f"<{element}{given}>{join(*children)}</{element}>")


@cache
def _attribute(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _parts(children: Iterable[Child]) -> Iterable[str]:
    for child in children:
        if child is None:
            continue
        if isinstance(child, str | int | float):
            yield text(child)
        else:
            yield from _parts(child)

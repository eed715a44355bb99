"""Writes plain data as YAML text in the form of PyYAML, faster.

The texts are byte for byte those of PyYAML's dumper for C (`tests/dijob/test_yamltext.py` compares them), which takes
most of its time in Python, for representing and resolving each value. Here most values are written as they are. What is
not simple, such as text of several lines, is written by PyYAML itself, one value at a time. A document with a value
that PyYAML would fold is left to it as a whole.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

import yaml

_DUMPER: Final[Any] = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_DUMPER):  # type: ignore[misc]
    """Block style, multi-line text as literal blocks, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


# Text that Python's YAML leaves unquoted and Go's (kubectl's and argo's) reads as a boolean or a number: `y`, `1e-4`,
# `0o17`. The API server rejects a number in place of text; where it does not check types, Argo's controller fails.
_NO_TEXT_IN_GO: Final = re.compile(
    r"[yYnN]|[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?0[xXoObB][0-9a-fA-F_]+"
)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    style = "|" if "\n" in value else "'" if _NO_TEXT_IN_GO.fullmatch(value) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)

# Names, paths, images and words, which YAML reads as text, whatever follows in the line.
_PLAIN: Final = re.compile(r"[A-Za-z/][A-Za-z0-9_./=+@-]*(?: [A-Za-z0-9_./=+@-]+)*", re.ASCII)
_WORDS: Final = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null"])
# Text of one line that is not plain and has no character that needs an escape.
_LINE: Final = re.compile(r"(?! )[ -~]+(?<! )", re.ASCII)
_WRITTEN: Final = {True: "true", False: "false", None: "null"}
_EMPTY: Final[dict[type, str]] = {dict: "{}", list: "[]"}
# Line breaks for YAML, beside the line feed, after which it indents.
_OTHER_BREAK: Final = re.compile("[\r\x85\u2028\u2029]")
# PyYAML writes a longer key in another form.
_LONGEST_KEY: Final = 100
# A shorter text without blanks is never folded, and has an entry in the cache.
_SHORT: Final = 512


class _UnusualError(Exception):
    """A value of the document must be written by PyYAML together with what is around it."""


def dump_yaml(data: Any, *, width: int = 120, ascii_only: bool = False) -> str:
    """Plain data as YAML text, in the order given. Longer lines than `width` are folded."""
    if isinstance(data, dict | list) and data:
        try:
            lines: list[str] = []
            _Writer(width, ascii_only=ascii_only).block(data, "", lines)
            return "\n".join(lines) + "\n"
        except (_UnusualError, RecursionError):
            pass
    return _library(data, width=width, ascii_only=ascii_only)


def _library(data: Any, *, width: int, ascii_only: bool) -> str:
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=not ascii_only, width=width)
    return text


class _Writer:
    def __init__(self, width: int, *, ascii_only: bool) -> None:
        self._width, self._ascii_only = width, ascii_only

    def block(self, value: Any, indent: str, lines: list[str], first: str = "") -> None:
        """Append the lines of a mapping or a list that is not empty; `first` begins the first line instead of
        `indent`, as in `- name: a`."""
        start = first or indent
        if isinstance(value, dict):
            for key, item in value.items():
                self._entry(f"{start}{self._key(key)}:", item, indent, lines)
                start = indent
        else:
            for item in value:
                if isinstance(item, dict | list) and item:
                    self.block(item, f"{indent}  ", lines, f"{start}- ")
                else:
                    lines.append(f"{start}- {self._scalar(item, indent, len(start) + 2)}")
                start = indent

    def _entry(self, head: str, item: Any, indent: str, lines: list[str]) -> None:
        if isinstance(item, dict | list) and item:
            lines.append(head)
            # PyYAML does not indent a list in a mapping.
            self.block(item, f"{indent}  " if isinstance(item, dict) else indent, lines)
        else:
            lines.append(f"{head} {self._scalar(item, indent, len(head) + 1)}")

    def _key(self, key: Any) -> str:
        if type(key) is not str or len(key) > _LONGEST_KEY:
            raise _UnusualError
        text = _one_line(key)
        if text is None:
            raise _UnusualError
        return text

    def _scalar(self, value: Any, indent: str, column: int) -> str:
        kind = type(value)
        text: str | None
        if kind is str:
            text = _one_line(value) if len(value) < _SHORT else _format(value)
            if text is not None and column + len(text) > self._width and " " in text:
                raise _UnusualError  # it may be folded
        elif kind is int:
            text = str(value)
        else:
            text = _WRITTEN.get(value) if kind is bool or value is None else _EMPTY.get(kind)
        return self._by_library(value, indent, column) if text is None else text

    def _by_library(self, value: Any, indent: str, column: int) -> str:
        """The value, as PyYAML writes it in a mapping; its further lines are moved to this indent."""
        if isinstance(value, str) and _OTHER_BREAK.search(value):
            raise _UnusualError
        text = _library({"k": value}, width=self._width, ascii_only=self._ascii_only)
        first, *more = text.removeprefix("k: ").removesuffix("\n").split("\n")
        if not first.startswith("|") and (more or column + len(first) > self._width):
            raise _UnusualError  # it was folded, or would be here
        if first.startswith("|") and "+" in first:
            raise _UnusualError  # what follows depends on whether it is the end of the document
        return "\n".join([first, *(f"{indent}{line}" if line else line for line in more)])


def _format(text: str) -> str | None:
    """The text in one line, plain or in single quotes; None if it needs another form."""
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    if not _LINE.fullmatch(text):
        return None
    return f"'{text.replace(chr(39), chr(39) * 2)}'" if _is_quoted(text) else text


_one_line = lru_cache(maxsize=4096)(_format)

_RESOLVER: Final = yaml.SafeDumper.yaml_implicit_resolvers
_INDICATORS: Final = frozenset("#,[]{}&*!|>'\"%@`")


def _is_quoted(text: str) -> bool:
    """Whether PyYAML quotes this text of one line: YAML would read something else without quotes."""
    first = text[0]
    return (
        first in _INDICATORS
        or (first in "?:-" and (len(text) == 1 or text[1] == " "))
        or text.startswith(("---", "..."))
        or ": " in text
        or text.endswith(":")
        or " #" in text
        or any(pattern.match(text) for _, pattern in (*_RESOLVER.get(first, ()), *_RESOLVER.get(None, ())))
        or _NO_TEXT_IN_GO.fullmatch(text) is not None
    )

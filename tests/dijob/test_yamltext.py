"""YAML is written byte for byte as PyYAML writes it, and read back as what it was."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from diflow.dijob import yamltext
from diflow.dijob.yamltext import dump_yaml

_AWKWARD = (
    "", " ", "a ", " a", "- a", "-", "--- a", "...", "?", "? a", ":", ":a", "a:", "a: b", "a:b", "a #b", "a#b", "#",
    "~", "null", "Null", "true", "TRUE", "tRUE", "y", "No", "on", "1", "1.0", "1e3", "0x1f", "0o17", "1_000", "1:30",
    ".inf", ".5", "+1", "-x", "=", "<<", "2020-01-01", "2020-01-01T00:00:00Z", "'", "''", "it's", '"', "{{=a}}",
    "{}", "[]", "[a", "a]", "a, b", "*a", "&a", "!a", "|", ">", "%a", "@a", "`a`", "a\nb", "a\n", "a\n\n", "\n", "\na",
    "  a\nb", "a \nb", "a\n  b\n", "\ta", "a\tb", "a\rb", "é", "日本", "\u2028", "\x85", "\x00", "\x7f", "\ufeff", "😀",
    "a" * 130, "a b " * 50, "a\n\nb", "a\n \nb", "#!/bin/sh\nset -e\n",
)  # fmt: skip
_TEXTS = st.one_of(
    st.sampled_from(_AWKWARD),
    st.text(alphabet="ab '\"#:-?{}[],\n~.0é", max_size=12),
    st.text(max_size=20),
    st.from_regex(r"[A-Za-z0-9_./=+@ -]{1,30}", fullmatch=True),
)
_SCALARS = st.one_of(_TEXTS, st.integers(), st.booleans(), st.none(), st.floats(), st.dates())
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_TEXTS, inner, max_size=4)),
    max_leaves=25,
)
_PLAIN_DATA = st.recursive(
    st.one_of(_TEXTS, st.integers(), st.booleans(), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_TEXTS, inner, max_size=4)),
    max_leaves=25,
)


def library(data: Any, *, width: int = 120, ascii_only: bool = False) -> str:
    return yamltext._library(data, width=width, ascii_only=ascii_only)


def _examples() -> list[Any]:
    """Each awkward text as a value and a key, in lists and mappings at several depths."""
    out: list[Any] = []
    for text in _AWKWARD:
        out += [
            {text: text},
            [text],
            {"a": [text, {"b": text}]},
            [[text, [text]], {"a": {"b": {"c": text}}, "d": text}],
        ]
    return out


@pytest.mark.parametrize("width", [120, 65_536])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_awkward_texts_are_written_as_the_library_writes_them(width: int, ascii_only: bool) -> None:
    for data in _examples():
        written = dump_yaml(data, width=width, ascii_only=ascii_only)
        assert written == library(data, width=width, ascii_only=ascii_only), data


@pytest.mark.slow
@settings(max_examples=600)
@given(_VALUES, st.sampled_from([20, 120, 65_536]), st.booleans())
@example([], 120, False)
@example({"a": {}, "b": [], "c": [{}, []]}, 120, False)
@example({"k" * 200: 1}, 120, False)
@example({1: 2}, 120, False)
@example([[["a"], []], [{"a": ["b", {"c": ["d"]}]}]], 120, False)
def test_any_data_is_written_as_the_library_writes_it(data: Any, width: int, ascii_only: bool) -> None:
    assert dump_yaml(data, width=width, ascii_only=ascii_only) == library(data, width=width, ascii_only=ascii_only)


@settings(max_examples=300)
@given(_PLAIN_DATA, st.booleans())
def test_what_is_written_is_read_back(data: Any, ascii_only: bool) -> None:
    assert yaml.safe_load(dump_yaml(data, ascii_only=ascii_only)) == data


def test_most_of_a_workflow_is_not_left_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yamltext, "_library", lambda *_, **__: pytest.fail("left to the library"))
    data = {"name": "a-b", "args": ["--x=1", "{{=a + 'b'}}", ""][:2], "m": 3, "on": True, "more": {"a: b": None}}
    assert dump_yaml(data, width=65_536).splitlines() == [
        "name: a-b", "args:", "- --x=1", "- '{{=a + ''b''}}'", "m: 3", "'on': true", "more:", "  'a: b': null",
    ]  # fmt: skip


def test_what_nests_without_end_is_an_error_and_not_a_hang() -> None:
    data: dict[str, Any] = {}
    data["a"] = data
    with pytest.raises(RecursionError):
        dump_yaml(data)

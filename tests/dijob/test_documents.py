"""Reading manifests: what a file may contain, what is refused before it is built, and the line of an error."""

from __future__ import annotations

import io
import json
import math
import re
import string
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from diflow import DIJob
from diflow.common.errors import InvalidError
from diflow.common.limits import MOST_FILE_BYTES, MOST_FILE_DEPTH, MOST_FILE_VALUES
from diflow.dijob import manifests
from tests.builders import manifest


def read(text: str) -> list[Any]:
    return [document.data for document in manifests.read(text)]


def refusal(text: str) -> str:
    with pytest.raises(InvalidError) as caught:
        manifests.read(text)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 300
    return message


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "[" * 100_000 + "]" * 100_000,
        "[\n" * 100_000,
        "{a: " * 100_000,
        '{"a":' * 100_000,
        "- " * 100_000,
        "? " * 100_000,
        "\n".join(f"{' ' * i}a:" for i in range(1500)),
        "[" * 400 + "]" * 400,
    ],
)
def test_what_is_nested_too_deep_is_refused_before_it_is_built(text: str) -> None:
    assert f"nested more than {MOST_FILE_DEPTH} levels deep at line" in refusal(text)


def test_the_deepest_that_is_allowed_is_read() -> None:
    deepest = "[" * MOST_FILE_DEPTH + "]" * MOST_FILE_DEPTH
    assert read(f"{deepest}\n") == [json.loads(deepest)]
    assert read(f"--- {deepest}\n") == [json.loads(deepest)]


def test_aliases_count_as_often_as_they_are_used() -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)]
    assert f"more than {MOST_FILE_VALUES:,} values at line" in refusal("\n".join(lines))
    long = f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 50)}]"
    assert "more than 4 MiB of text at line 2" in refusal(long)
    chain = ["a0: &a0 [1]", *(f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 100))]
    assert "levels deep at line" in refusal("\n".join(chain))


def test_an_alias_that_contains_itself_is_refused() -> None:
    assert refusal("spec: &a\n  tasks: [*a]") == "broken YAML at line 2: *a is used inside of what it names"
    assert refusal("a: *b") == "broken YAML at line 1, column 4: found undefined alias"


def test_anchors_and_merge_keys_of_an_honest_file_are_read() -> None:
    text = "base: &base {cpu: 1, memory: 2Gi}\nmore:\n  <<: *base\n  cpu: 2\nsame: *base\n"
    (document,) = manifests.read(text)
    base = {"cpu": 1, "memory": "2Gi"}
    assert document.data == {"base": base, "more": {**base, "cpu": 2}, "same": base}
    assert document.repeated == ()
    assert document.line_of("more.cpu") == 4


def test_a_file_that_is_too_long_is_refused_without_parsing_it() -> None:
    assert "more than 4 MiB" in refusal("a" * (MOST_FILE_BYTES + 1))


def test_a_file_without_an_end_is_not_read_to_the_end(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="/dev/zero cannot be read: it has more than 4 MiB"):
        manifests.read_file(Path("/dev/zero"))
    with pytest.raises(InvalidError, match="cannot be read: Is a directory"):
        manifests.read_file(tmp_path)


def test_what_yaml_takes_for_more_than_json_has_is_text_as_with_kubectl() -> None:
    text = "a: 2026-11-22\nb: 2026-11-22T10:00:00Z\nc: 12:30\nd: =\ne: 1:30.5\nf: !!timestamp 2001-01-01\n"
    assert read(text) == [
        {"a": "2026-11-22", "b": "2026-11-22T10:00:00Z", "c": "12:30", "d": "=", "e": "1:30.5", "f": "2001-01-01"}
    ]
    assert read("[1, -2, 0x1f, 0644, 1_000, 1.5, -.inf, yes, off, ~, 1e3]") == [
        [1, -2, 31, 420, 1000, 1.5, -math.inf, True, False, None, "1e3"]
    ]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("!!binary aGVsbG8=", "!!binary is a type that Kubernetes objects do not have"),
        ("!!set {a, b}", "!!set is a type"),
        ("!!omap [a: 1]", "!!omap is a type"),
        ("!!pairs [a: 1]", "!!pairs is a type"),
        ("!!python/object/apply:os.system [ls]", "!!python/object/apply:os.system is a type"),
        ("!Ref x", "!Ref is a type"),
        ("!!bool maybe", "maybe cannot be read as bool"),
        ("!!int ''", "cannot be read as int"),
        ("!!float x", "x cannot be read as float"),
        ("9" * 5000, "cannot be read as int"),
        ("{[a]: b}", "found unhashable key"),
        ("!!map [a]", "expected a mapping node"),
    ],
)
def test_a_value_that_no_kubernetes_object_has_is_refused_with_its_line(value: str, words: str) -> None:
    message = refusal(f"a:\n  b: {value}")
    assert words in message
    assert message.startswith("broken YAML at line 2, column ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: \x07", "broken YAML at line 2: the character U+0007 is not allowed"),
        ("a: 1\n\0", "broken YAML at line 2: the character U+0000 is not allowed"),
        ("a: 1\nb: \ud83d", "broken text in line 2: half of a surrogate pair is not a character"),
        ('{"a": "\\ud83d"}', "broken JSON: half of a surrogate pair is not a character"),
    ],
)
def test_characters_that_are_none_are_refused(text: str, message: str) -> None:
    assert refusal(text) == message


def test_a_byte_order_mark_is_no_part_of_the_text() -> None:
    assert read("\ufeffa: 1") == [{"a": 1}]
    assert read('\ufeff{"a": 1}') == [{"a": 1}]
    assert read("a: 1\n---\n\ufeffb: 2\n") == [{"a": 1}, {"b": 2}]
    for encoding in ("utf-8-sig", "utf-16"):  # as Windows writes it
        assert manifests.read_text(io.BytesIO("a: ü".encode(encoding))) == "a: ü"


def test_bytes_that_are_no_text_are_named_with_their_line() -> None:
    with pytest.raises(InvalidError, match=re.escape("it is not text in UTF-8 (byte 0xff in line 3)")):
        manifests.read_text(io.BytesIO(b"a\nb\nc\xff"))


def test_json_is_read_with_its_pairs_of_surrogates_and_its_numbers() -> None:
    text = '{"face": "\\ud83d\\ude00",\n "text": "\\\\ud83d\\\\ude00", "slash": "\\/", "number": 1e3}'
    (document,) = manifests.read(text)
    assert document.data == {"face": "😀", "text": "\\ud83d\\ude00", "slash": "/", "number": 1000.0}
    assert (document.line, document.line_of("text")) == (1, 2)
    indented = json.dumps(manifest(), indent="\t")
    assert read(indented) == [manifest()]


def test_a_key_that_stands_twice_is_told_with_both_lines() -> None:
    (document,) = manifests.read("a:\n  b: 1\n  c: [{z: 1, z: 2}]\n  b: 3\nd: {'b': 1}\n")
    assert document.data["a"]["b"] == 3
    assert document.warnings() == [
        "a.c[0].z is given twice, in line 3: the last one counts",
        "a.b is given twice, in lines 2 and 4: the last one counts",
    ]
    (again,) = manifests.read('{"a": 1,\n "a": 2}')
    assert again.warnings() == ["a is given twice, in lines 1 and 2: the last one counts"]


def test_a_job_with_a_key_that_stands_twice_warns_in_python_too() -> None:
    text = DIJob.from_manifest(manifest()).to_yaml() + "spec: {}\n"
    with (
        pytest.warns(manifests.DuplicateKeyWarning, match="spec is given twice, in lines 5 and"),
        pytest.raises(InvalidError, match=r"spec\.tasks: is missing"),
    ):
        DIJob.from_yaml(text)


def test_the_line_of_a_field_is_that_of_its_key() -> None:
    text = (
        "spec:\n  tasks:\n  - name: a\n    labels: {diflow/x: 1}\n    diflow/x.y:\n      z: 1\n    spec: [\n      1]\n"
    )
    (document,) = manifests.read(f"---\n# a comment\n{text}")
    wanted = {
        "spec": 3,
        "spec.tasks[0]": 5,
        "spec.tasks[0].labels.diflow/x": 6,
        "spec.tasks[0].diflow/x.y": 7,
        "spec.tasks[0].diflow/x.y.z": 8,
        "spec.tasks[0].spec[0]": 10,
        "spec.tasks[7].name": 4,  # what is missing: where it should be
        "spec.backoffLimit": 3,
        "": 3,
        "metadata.name": 3,
    }
    assert {path: document.line_of(path) for path in wanted} == wanted


def test_the_items_of_a_list_are_objects_of_their_own() -> None:
    inner = {"apiVersion": "v1", "kind": "List", "items": [{"kind": "Secret", "metadata": {"name": "s"}}]}
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [manifest(), inner]}, sort_keys=False)
    found = manifests.read(f"{text}---\nkind: ConfigMap\nmetadata: {{name: c}}\n")
    assert [one.title for one in found] == ["DIJob job", "Secret s", "ConfigMap c"]
    assert [one.is_job for one in found] == [True, False, False]
    assert found[0].data == manifest()
    lines = text.splitlines()
    assert lines[found[0].line_of("metadata.name") - 1].strip() == "name: job"
    with pytest.raises(InvalidError, match="the List in line 1 is empty"):
        read('{"kind": "DIJobList", "items": []}')
    assert [one.title for one in manifests.read("kind: List\nitems: []\n---\nkind: ConfigMap\n")] == ["ConfigMap"]


def test_of_several_objects_python_takes_the_one_job() -> None:
    job = DIJob.from_manifest(manifest())
    others = "kind: ConfigMap\nmetadata: {name: c}\n---\n"
    assert DIJob.from_yaml(others + job.to_yaml()) == job
    with pytest.raises(InvalidError, match=r"holds 2 jobs \(DIJob job in line \d+, DIJob job in line \d+\): put each"):
        DIJob.from_yaml(others + job.to_yaml() + "---\n" + job.to_yaml())
    with pytest.raises(InvalidError, match=r"holds 2 documents and none is a DIJob \(ConfigMap c in line 1, an object"):
        DIJob.from_yaml(others + "a: 1")


_FLOATS = st.floats(allow_nan=False, allow_infinity=False)
_SCALARS = st.none() | st.booleans() | st.integers() | _FLOATS | st.text(max_size=8)
_TREES = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(string.ascii_letters, max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)
_PIECES = st.sampled_from(
    ["a:", "- ", "? ", "&a ", "*a", "<<: ",
     "[", "]", "{", "}", ",", "\n", "  ", "!!set ", "!x ", "|\n", "'", '"', "---\n",
     "%YAML 1.1\n", "...\n", "\t", "#", "\ufeff", "\\ud83d", "\\ude00", "12:30", "2026-01-01", "=", ".inf", "\0",
     "\ud800", "é"]
)  # fmt: skip


@given(_TREES)
@example(data=["\x85"])
def test_what_json_and_yaml_can_write_is_read_as_it_was_written(data: Any) -> None:
    wanted = [] if data is None else [data]
    if isinstance(data, dict | list):
        assert read(json.dumps(data)) == wanted
    dumped = yaml.safe_dump(data, allow_unicode=True)
    # 1e+16 is text to YAML 1.1, and PyYAML writes U+0085 in such a way that it reads a space itself.
    if not any(isinstance(one, float) for one in _leaves(data)) and "\x85" not in dumped:
        assert read(dumped) == wanted


def _leaves(data: Any) -> list[Any]:
    if isinstance(data, dict):
        return [leaf for value in data.values() for leaf in _leaves(value)]
    return [leaf for value in data for leaf in _leaves(value)] if isinstance(data, list) else [data]


@given(st.lists(_PIECES | st.text(max_size=3), max_size=25).map("".join))
@example('{"a": "\\')
@example("&a [*a, *a]")
def test_no_text_ends_in_anything_but_objects_or_one_sentence(text: str) -> None:
    said = ""
    found: tuple[manifests.Document, ...] = ()
    try:
        found = manifests.read(text)
    except InvalidError as error:
        said = str(error)
    assert "\n" not in said
    assert len(said) < 300
    for document in found:
        assert json.loads(json.dumps(document.data, ensure_ascii=False).encode()) is not None
        assert isinstance(document.title, str)
        assert document.line_of("spec.tasks[0].name") >= document.line

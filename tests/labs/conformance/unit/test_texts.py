"""How the probe compares what a pod was given with what the user wrote."""

from __future__ import annotations

import base64

import pytest

from diflow.labs.conformance.finding import FactFailedError
from diflow.labs.conformance.texts import _HEAD, NASTY, differences, expand, parse, random_texts, variables


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("$(KNOWN)", "value"),
        ("$(UNKNOWN)", "$(UNKNOWN)"),
        ("$$(KNOWN)", "$(KNOWN)"),
        ("$$$(KNOWN)", "$value"),
        ("$", "$"),
        ("$$", "$"),
        ("$$$", "$$"),
        ("$(KNOWN", "$(KNOWN"),
        ("$x $ y", "$x $ y"),
        ("$()", "$()"),
        ("{{$(KNOWN)}}", "{{value}}"),
    ],
)
def test_kubernetes_own_references_are_expected_to_be_expanded(text: str, seen: str) -> None:
    assert expand(text, {"KNOWN": "value"}) == seen


def test_a_variable_sees_only_those_before_it() -> None:
    assert variables(["$(TEXT_1)", "b", "$(TEXT_1)"]) == {"TEXT_0": "$(TEXT_1)", "TEXT_1": "b", "TEXT_2": "b"}


def _arrived(texts: list[str]) -> tuple[list[bytes], dict[str, bytes]]:
    env = variables(texts)
    words = [*(expand(word, env) for word in _HEAD), *(expand(text, env) for text in (*texts, *texts))]
    return [word.encode() for word in words], {name: value.encode() for name, value in env.items()}


def test_what_arrives_as_it_was_written_is_no_difference() -> None:
    texts = list(NASTY)
    assert differences(texts, *_arrived(texts)) == []


def test_the_path_of_the_program_is_not_the_users_text() -> None:
    arguments, environment = _arrived(["a"])
    arguments[0] = b"/bin/sh"
    assert differences(["a"], arguments, environment) == []


def test_a_text_that_argo_evaluated_is_told_with_its_place() -> None:
    texts = ["a", "{{=1+1}}"]
    arguments, environment = _arrived(texts)
    arguments[len(_HEAD) + 1] = b"2"
    environment["TEXT_1"] = b"2"
    assert differences(texts, arguments, environment) == [
        "argument 5: '{{=1+1}}' came as b'2'",
        "variable TEXT_1: '{{=1+1}}' came as b'2'",
    ]


def test_a_missing_argument_is_a_difference() -> None:
    arguments, environment = _arrived(["a", "b"])
    assert differences(["a", "b"], arguments[:-1], environment) == ["7 arguments came, not 8"]


def test_the_output_is_read_between_the_lines_of_argos_starter() -> None:
    printed = base64.encodebytes(b"sh\0-c\0\0\xff\0").decode().splitlines()
    environment = base64.encodebytes(b"A=1=2\0B=\nx\0").decode().splitlines()
    lines = [
        "time=2026 level=INFO msg=argo",
        *(f"arguments {line}" for line in printed),
        "msg=another",
        *(f"environment {line}" for line in environment),
    ]
    assert parse(lines) == ([b"sh", b"-c", b"", b"\xff"], {"A": b"1=2", "B": b"\nx"})


@pytest.mark.parametrize("lines", [[], ["sh: not found"], ["arguments ???", "environment QQ=="]])
def test_an_output_of_another_kind_is_a_failed_fact(lines: list[str]) -> None:
    with pytest.raises(FactFailedError, match="did not print its arguments"):
        parse(lines)


def test_the_same_seed_makes_the_same_texts() -> None:
    assert random_texts(3) == random_texts(3) != random_texts(4)

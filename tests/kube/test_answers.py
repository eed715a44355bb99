"""Objects that are nested deeper than Python's JSON library reads: one of them must not hide all others."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest

from diflow.kube import answers
from diflow.kube.kinds import WORKFLOW
from tests.kube.fakeapi import Answer, serving

DEEP = b'{"name":"x","plugin":' + b'{"a":[' * 3000 + b'"]}"' + b"]}" * 3000 + b',"after":[1,"}"]}'


def workflow(name: bytes) -> bytes:
    return b'{"metadata":{"name":"%s","uid":"u-%s","resourceVersion":"7"},"spec":{"templates":[%s]}}' % (
        name, name, DEEP,
    )  # fmt: skip


def test_a_workflow_that_is_nested_too_deep_hides_no_other_in_a_list() -> None:
    plain = b'{"metadata":{"name":"honest"}}'
    body = b'{"items":[%s,%s],"metadata":{"resourceVersion":"9"}}' % (workflow(b"deep"), plain)
    with serving() as api:
        api.rule(lambda _: Answer(body=body))
        items, version = api.cluster().snapshot(WORKFLOW)
    assert [item["metadata"]["name"] for item in items] == ["deep", "honest"]
    assert version == "9"
    assert items[0]["spec"]["templates"][0]["after"] == [1, "}"], "what stands behind the deep part is read"


def test_a_workflow_that_is_nested_too_deep_does_not_end_a_watch() -> None:
    lines = [(b'{"type":"ADDED","object":%s}' % workflow(name)).decode() for name in (b"deep", b"next")]
    with serving() as api:
        api.rule(lambda r: Answer(lines=lines) if r.query.get("watch") else None)
        changes = api.cluster().stream(WORKFLOW, since="5", seconds=60, silence_seconds=60)
        found = [change.object["metadata"]["name"] for change in itertools.islice(changes, 2)]
    assert found == ["deep", "next"]


def test_only_what_is_too_deep_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = random.Random(7)

    def value(levels: int) -> Any:
        if levels == 0:
            return chosen.choice([1, "a]", 'q"\\', "{", None, "\\"])
        inner = [value(levels - 1) for _ in range(chosen.randint(0, 2))]
        return inner if chosen.random() < 0.5 else {f'k{i}"[\\': item for i, item in enumerate(inner)}

    def cut(given: Any, level: int = 1) -> Any:
        if not isinstance(given, dict | list):
            return given
        if level > 3:
            return None
        if isinstance(given, dict):
            return {key: cut(item, level + 1) for key, item in given.items()}
        return [cut(item, level + 1) for item in given]

    monkeypatch.setattr(answers, "MOST_LEVELS", 3)
    for _ in range(300):
        given = value(7)
        text = json.dumps(given, ensure_ascii=chosen.random() < 0.5).encode()
        assert json.loads(b"".join(answers._shallow(text))) == cut(given)


@pytest.mark.parametrize("data", [DEEP[:-9000], b"[" * 100_000, b'{"a":' * 5000, DEEP + b"]"])
def test_what_breaks_off_is_no_answer(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        answers.parse(data)

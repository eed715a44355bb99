"""Plain data from untrusted users."""

from __future__ import annotations

import json
from typing import Any, TypedDict

import pytest
from msgspec import Raw

from diflow.allocator.watch import records
from diflow.common import keys
from diflow.common.jsontext import NotOfTypeError, reader
from diflow.common.levels import MOST_LEVELS
from diflow.dijob.model import Health, NodeCheck
from diflow.record import chain, untrusted
from diflow.record.argo import node_names
from diflow.record.job import record_of
from diflow.record.pod import serving_record_of
from diflow.server.api import reading
from diflow.server.api.folding import Shape, fold
from diflow.workflows import render
from tests.allocator.lab import job, task

# int() takes some of these as numbers, raises on others, and str.isdigit() is true of many.
ODD = [
    "²",
    "1²",
    "٣",
    "১",
    "𝟑",
    "①",
    "+1",
    "-1",
    " 1",
    "1_0",
    "1.0",
    "0x1",
    "",
    pytest.param("9" * 4400, id="4,400 digits"),
    "1" * 10,
]


@pytest.mark.parametrize("text", ODD)
def test_what_is_not_a_short_number_in_decimal_digits_is_no_whole_number(text: str) -> None:
    assert untrusted.whole(text) is None


def test_a_whole_number_is_read_up_to_its_most_digits() -> None:
    assert [untrusted.whole(text) for text in ("0", "7", "007", "999999999")] == [0, 7, 7, 999_999_999]
    assert untrusted.whole("9" * 18, digits=18) == 10**18 - 1
    assert untrusted.whole("9" * 19, digits=18) is None


@pytest.mark.parametrize("text", ODD)
def test_odd_digits_in_labels_annotations_and_names_are_read_as_none(text: str) -> None:
    """Each of these texts is one that a user may write."""
    assert chain.part({"metadata": {"name": "a", "labels": {keys.PART: text}}}) == 1
    labels = {keys.OPERATOR: keys.OPERATOR_VALUE, keys.ARGO_WORKFLOW: "job"}
    annotations = {keys.ARGO_NODE_NAME: f"job.round(0:1)(0).worker(0:{text})(0).worker(0)"}
    pod = serving_record_of({"metadata": {"name": "a", "labels": labels, "annotations": annotations}})
    assert pod.index in (-1, 1)  # as below
    found = node_names.parse("job", f"job.round(0:1)(0).worker(0:{text})")
    assert found is None or found.index == 1  # `1.0` is the first incarnation of member 1
    shape = Shape("1", "worker", 1, {"worker": 1})
    said = json.dumps({"round": "1", "ranks": {text: {"task": "worker", "step": 3}}})
    assert json.loads(fold(said, {}, shape, now=0))["ranks"] == {}


@pytest.mark.parametrize("around", ["[{}]", '{{"a":{}}}', "[0,{}]"])
def test_a_value_may_have_64_levels(around: str) -> None:
    def nested(levels: int) -> str:
        text = "1"
        for _ in range(levels):
            text = around.format(text)
        return text

    untrusted.load(nested(MOST_LEVELS))
    with pytest.raises(ValueError, match="too deep"):
        untrusted.load(nested(MOST_LEVELS + 1))
    untrusted.load(f"[{','.join(['[]'] * 1000)}]")


class _Other(TypedDict, total=False):
    a: int


@pytest.mark.parametrize("is_bytes", [False, True])
@pytest.mark.parametrize("kind", [Any, list[Raw], tuple[int, ...], _Other])
def test_a_text_of_more_than_64_levels_is_refused_before_it_is_decoded(kind: Any, is_bytes: bool) -> None:
    """The stack of a thread is not the limit, whatever the type skips."""

    def why(levels: int, inside: str = "") -> str:
        text = "[" * levels + inside + "]" * levels
        try:
            reader(kind)(text.encode() if is_bytes else text)
        except NotOfTypeError as error:
            return str(error)
        return ""

    assert "levels" not in why(MOST_LEVELS)
    assert why(MOST_LEVELS + 1) == why(100_000) == "it has more than 64 levels of lists and mappings"
    assert "64 levels" in why(MOST_LEVELS, json.dumps(['"]]]', []]))
    assert "64 levels" not in why(1, ",".join(['"[{"', '"\\\\\\"[["', "[]"] * 100))


def test_a_report_of_more_than_64_levels_is_a_complaint() -> None:
    def complaint(levels: int) -> str:
        body = render(job())
        for item in body["spec"]["arguments"]["parameters"]:
            if item["name"] == "profilings":
                item["value"] = '{"a":' * levels + "1" + "}" * levels
        return record_of(body).complaint

    assert complaint(MOST_LEVELS) == ""
    assert "profilings is not a valid report" in complaint(MOST_LEVELS + 1)


_LISTS = "[" + "[]," * 75_000 + "[]]"


@pytest.mark.parametrize(
    "key", ["allocation", "decision", "bounds", "history-before", "excluded-nodes", "health", "node-check", "dijob"]
)
def test_an_annotation_of_eighty_thousand_lists_is_not_parsed(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body = render(job("job", task("worker"), node_check=NodeCheck(), health=Health()))
    body["metadata"]["annotations"][f"diflow/{key}"] = _LISTS[: 90_000 if key == "node-check" else None]
    assert _longest_decoded(body, monkeypatch) < 5_000


@pytest.mark.parametrize("name", ["rounds", "granted", "released", "incarnations", "replicas", "profilings", "memory"])
def test_a_parameter_of_eighty_thousand_lists_is_not_parsed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body = render(job("job", task("worker")))
    given = [p for p in body["spec"]["arguments"]["parameters"] if p["name"] != name]
    body["spec"]["arguments"]["parameters"] = [*given, {"name": name, "value": f"[{_LISTS[-60_000:]}"}]
    assert _longest_decoded(body, monkeypatch) < 5_000


def _longest_decoded(body: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> int:
    """The characters of the longest text that is parsed when this Workflow is read."""
    seen = [0]

    class Decoder(json.JSONDecoder):
        def decode(self, s: str, *args: Any) -> Any:
            seen.append(len(s))
            return super().decode(s, *args)

    monkeypatch.setattr(untrusted, "_DECODER", Decoder())
    body["metadata"] |= {"namespace": "default", "uid": "u", "resourceVersion": "1"}
    records.planning_record_of(body)
    reading.served_record_of(body)
    return max(seen)

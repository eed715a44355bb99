"""Plain data from untrusted users."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Raw, Struct

from diflow.allocator.watch import records
from diflow.common import keys
from diflow.common.jsontext import NotOfTypeError, lenient, parsed, reader
from diflow.common.levels import MOST_LEVELS
from diflow.dijob.model import Health, NodeCheck
from diflow.record import chain, reports, signals, untrusted
from diflow.record.argo import node_names
from diflow.record.job import record_of
from diflow.record.pod import serving_record_of
from diflow.record.requests.notes import Notes
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


@pytest.mark.parametrize(
    ("key", "around"),
    [
        ("history-before", '{"phases":%s}'),
        ("node-check", '{"round":"1","since":1,"ranks":{"0":%s},"unmet":{"0":%s}}'),
        ("excluded-nodes", "%s"),
        ("requests", '{"done":%s}'),
        ("allocation", '{"round":"1","nodes":{"worker":%s}}'),
    ],
)
def test_lists_where_there_may_be_lists_are_read_at_once(key: str, around: str) -> None:
    body = render(job("job", task("worker"), node_check=NodeCheck(), health=Health()))
    body["metadata"] |= {"namespace": "default", "uid": "u", "resourceVersion": "1"}
    records.planning_record_of(body)
    for lists in (_LISTS, _LISTS[: 3 * 4_000] + "[]]"):
        body["metadata"]["annotations"][f"diflow/{key}"] = around.replace("%s", lists)
        began = time.process_time()
        records.planning_record_of(body)
        Notes.read(record_of(body).wishes.request(keys.REQUESTS))
        assert time.process_time() - began < 0.2


@pytest.mark.parametrize("name", ["observed", "ranks", "localBszBounds", "signals"])
@pytest.mark.parametrize("lists", [_LISTS, _LISTS[: 3 * 4_000] + "[]]"], ids=["more than may be", "as many"])
def test_a_report_of_lists_is_read_at_once(name: str, lists: str) -> None:
    text = json.dumps({name: {}}).replace("{}", lists if name != "ranks" else f'{{"0":{lists}}}')
    began = time.process_time()
    assert (reports.read(text).speed, signals.of(text)) == (None, None)
    assert time.process_time() - began < 0.2


class _Row(Struct, array_like=True):
    text: str
    first: float | None = None
    second: Annotated[int, Meta(ge=0)] | None = None


class _Fields(Struct):
    number: Annotated[int, Meta(ge=0, le=9)] = 7
    text: str = "text"
    half: float | None = None
    numbers: tuple[int, ...] = ()
    maybe: tuple[int | None, ...] = ()
    named: dict[str, int] = {}
    pairs: tuple[tuple[int, int], ...] = ()


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 12) | st.floats(-1, 1) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)


def _is_int(value: Any) -> bool:
    return type(value) is int


@given(st.dictionaries(st.sampled_from((*_Fields.__struct_fields__, "other")), _JSON))
def test_of_a_lenient_record_each_part_counts_for_itself(said: dict[str, Any]) -> None:
    found = lenient(_Fields)(json.dumps(said))
    number: Any = said.get("number")
    named, lists = said.get("named"), {name: value for name, value in said.items() if type(value) is list}
    assert found.number == (number if _is_int(number) and 0 <= number <= 9 else 7)
    assert found.text == (said["text"] if isinstance(said.get("text"), str) else "text")
    assert found.half == (said["half"] if type(said.get("half")) in (int, float) else None)
    assert found.numbers == tuple(filter(_is_int, lists.get("numbers", ())))
    assert found.maybe == tuple(one if _is_int(one) else None for one in lists.get("maybe", ()))
    assert found.named == ({k: v for k, v in named.items() if _is_int(v)} if isinstance(named, dict) else {})
    pairs = (one for one in lists.get("pairs", ()) if type(one) is list and len(one) == 2 and all(map(_is_int, one)))
    assert found.pairs == tuple(map(tuple, pairs))


@pytest.mark.parametrize(("entries", "kept"), [(4_095, 4_095), (4_096, 0)])
def test_a_list_with_an_invalid_entry_counts_up_to_its_bound(entries: int, kept: int) -> None:
    found = lenient(_Fields)(json.dumps({"numbers": [*range(entries), "x"], "number": 3}))
    assert (len(found.numbers), found.number) == (kept, 3)
    assert len(lenient(_Fields)(json.dumps({"numbers": [*range(5_000)]})).numbers) == 5_000


def test_a_text_with_thousands_of_invalid_parts_is_invalid_as_a_whole() -> None:
    """Each of them costs far more than a valid one: without a bound a text of 100 kB took a fifth of a second."""
    assert len(lenient(_Fields)(json.dumps({"numbers": [1, *["x"] * 900]})).numbers) == 1
    with pytest.raises(NotOfTypeError):
        lenient(_Fields)(json.dumps({"numbers": [1, *["x"] * 1100]}))
    many = {str(i): [1, *[2] * 3000, "x"] for i in range(20)}
    with pytest.raises(NotOfTypeError):
        lenient(dict[str, tuple[int, ...]])(json.dumps(many))


@given(st.lists(_JSON, max_size=4))
def test_of_a_lenient_list_a_wrong_value_is_as_none(values: list[Any]) -> None:
    found = parsed(lenient(_Row), json.dumps(values), None)
    assert (found is not None) == (bool(values) and isinstance(values[0], str))
    if found is not None:
        first, second = ([*values[1:3], None, None])[:2]
        assert found.first == (first if type(first) in (int, float) else None)
        assert found.second == (second if _is_int(second) and second >= 0 else None)


_NO_RECORDS = {
    "no text": None, "a number": 7, "empty": "", "a list": "[]", "JSON of a number": "7", "cut off": "{",
    "no number": '{"number": NaN}', "deep": "[" * 10**6, "half a surrogate pair, cut off": '{"text": "\\ud800"',
}  # fmt: skip


@pytest.mark.parametrize("what", _NO_RECORDS)
def test_a_text_that_is_no_record_is_refused_by_a_lenient_reader_too(what: str) -> None:
    with pytest.raises(NotOfTypeError):
        lenient(_Fields)(_NO_RECORDS[what])


@pytest.mark.parametrize("half", ["\\ud800", "\\uDFFF", "\ud800"])
def test_half_a_surrogate_pair_does_not_hide_its_record(half: str) -> None:
    found = lenient(_Row)(f'["a{half}b\\ud83d\\ude00", 2]')
    assert (found.text, found.first) == ("a\ufffdb\U0001f600", 2)


def test_half_a_surrogate_pair_behind_a_wrong_value_hides_nothing_either() -> None:
    found = lenient(_Fields)('{"number": "none", "text": "a\\ud800"}')
    assert (found.number, found.text) == (_Fields().number, "a\ufffd")


def test_half_a_surrogate_pair_in_a_report_hides_nothing_beside_it() -> None:
    signals_ = '{"round": "1", "at": 100, "since": 50, "heard": [1], "moved": [1], "steps": [3]}'
    text = f'{{"note": "\\ud800", "speed": 3.0, "signals": {signals_}}}'
    assert reports.fields(text)["speed"] == reports.read(text).speed == 3.0
    assert signals.of(text) is not None


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

"""The cache of users' texts is bounded in bytes, not only in the number of texts."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable

import pytest

from diflow.allocator.watch import records
from diflow.common.errors import InvalidError
from diflow.common.memo import remembered
from tests.record.hostile import Json, workflow


def reports(body: Json, number: int) -> None:
    """One report after the other, each of as many bytes as an object may have."""
    text = json.dumps({"x": f"{number}" + "y" * 1_000_000})
    for item in body["spec"]["arguments"]["parameters"]:
        if item["name"] == "profilings":
            item["value"] = text


def usable_reports(body: Json, number: int) -> None:
    """Reports of the length that is read, of characters that take four bytes each."""
    text = json.dumps({"x": f"{number}" + "\U0001f600" * 60_000}, ensure_ascii=False)
    for item in body["spec"]["arguments"]["parameters"]:
        if item["name"] == "profilings":
            item["value"] = text


def manifests(body: Json, number: int) -> None:
    annotations = body["metadata"]["annotations"]
    manifest = json.loads(annotations["diflow/dijob"])
    manifest["metadata"]["annotations"] = {"note": f"{number}" + "y" * 100_000}
    annotations["diflow/dijob"] = json.dumps(manifest)


@pytest.mark.slow
@pytest.mark.parametrize(("edit", "edits"), [(reports, 50), (usable_reports, 190), (manifests, 450)])
def test_a_workflow_that_is_edited_again_and_again_fills_no_memory(
    edit: Callable[[Json, int], None], edits: int
) -> None:
    body = workflow()

    tracemalloc.start()
    try:
        for number in range(edits):
            edit(body, number)
            records.planning_record_of(body)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 40 * 2**20


def test_the_latest_texts_are_remembered_and_the_others_make_room() -> None:
    asked: list[str] = []

    @remembered(most_bytes=1600, size=len)
    def read(text: str) -> int:
        asked.append(text)
        return len(text)

    texts = [f"{i}".ljust(100) for i in range(17)]
    assert [read(text) for text in (*texts[:16], texts[0], texts[16])] == [100] * 18
    assert asked == texts
    read(texts[0])
    assert asked == texts, "it was used after the one that was evicted"
    read(texts[1])
    assert asked == [*texts, texts[1]]


def test_one_long_text_drives_no_other_out() -> None:
    asked: list[str] = []

    @remembered(most_bytes=1600, size=len)
    def read(text: str) -> None:
        asked.append(text)

    for text in ("a" * 100, "b" * 101, "b" * 101, "a" * 100):
        read(text)
    assert asked == ["a" * 100, "b" * 101, "b" * 101]


def test_an_error_is_raised_each_time() -> None:
    @remembered(most_bytes=1600)
    def read(text: str) -> None:
        raise InvalidError(text)

    for _ in range(2):
        with pytest.raises(InvalidError, match="no"):
            read("no")

"""The streams of watches and logs. What becomes of a watch that breaks is in test_reflector.py."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import pytest

from diflow.common.errors import UnavailableError
from diflow.kube.api import Change, Cluster
from diflow.kube.kinds import POD
from tests.kube.fakeapi import CUT, FakeApi, serving


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with serving() as found:
        yield found


def pod(name: str) -> dict[str, object]:
    return {"metadata": {"name": name, "labels": {"job": "a"}}}


def stream(cluster: Cluster, count: int) -> list[Change]:
    """The first changes of pods since the server was empty, as many as given."""
    with contextlib.closing(cluster.stream(POD, since="100", seconds=60, silence_seconds=60)) as changes:
        return list(itertools.islice(changes, count))


def test_managed_fields_are_dropped(api: FakeApi) -> None:
    api.add(POD, {"metadata": {"name": "a", "managedFields": [{"big": "x" * 100}]}})
    (change,) = stream(api.cluster(), 1)
    assert "managedFields" not in change.object["metadata"]


def test_logs_come_line_by_line_as_they_were_written(api: FakeApi) -> None:
    api.logs["p"] = ["one", "två ⚙", "carriage\r", "last without an end\\"]
    assert list(api.cluster().logs("p")) == ["one", "två ⚙", "carriage", "last without an end\\"]
    assert list(api.cluster().logs("empty")) == []


def test_logs_are_asked_for_as_the_caller_wishes(api: FakeApi) -> None:
    options = {"follow": True, "previous": True, "since_seconds": 5, "tail": 0, "timestamps": True, "container": "c"}
    list(api.cluster().logs("p", **options))  # type: ignore[arg-type]
    assert api.requests[0].query == {
        "container": "c", "follow": "true", "previous": "true", "sinceSeconds": "5", "tailLines": "0",
        "timestamps": "true",
    }  # fmt: skip


def test_logs_that_break_off_say_so(api: FakeApi) -> None:
    api.logs["p"] = ["one", CUT]
    stream = api.cluster().logs("p", follow=True)
    assert next(stream) == "one"
    with pytest.raises(UnavailableError, match="was lost"):
        next(stream)


def test_a_stream_that_is_left_does_not_hold_its_connection(api: FakeApi) -> None:
    api.add(POD, pod("a"))
    cluster = api.cluster()
    for _ in range(20):
        assert [change.object["metadata"]["name"] for change in stream(cluster, 1)] == ["a"]
    assert cluster.version() == "v1.34.4"

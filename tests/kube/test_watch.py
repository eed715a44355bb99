"""Watches and logs: streams that break, are silent, end, or lose their version."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from diflow.errors import UnauthorizedError, UnavailableError
from diflow.kube.api import Change, Cluster
from diflow.kube.kinds import POD, WORKFLOW
from tests.kube.fakeapi import CUT, STALL, Answer, FakeApi, Request, serving, status


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with serving() as found:
        yield found


def pod(name: str) -> dict[str, object]:
    return {"metadata": {"name": name, "labels": {"job": "a"}}}


def names(changes: list[Change]) -> list[tuple[str, str]]:
    return [(c.kind, c.object["metadata"]["name"]) for c in changes]


def take(cluster: Cluster, count: int, **options: object) -> list[Change]:
    """The first changes of pods, as many as given; with fewer, the test ends by its time limit."""
    return list(itertools.islice(cluster.watch(POD, **options), count))  # type: ignore[arg-type]


def soon(act: Callable[[], object]) -> None:
    """Call this a moment later."""
    threading.Timer(0.1, act).start()


def event(kind: str, name: str, version: int) -> str:
    return json.dumps({"type": kind, "object": {"metadata": {"name": name, "resourceVersion": str(version)}}})


def watches(api: FakeApi) -> list[Request]:
    return [r for r in api.requests if r.query.get("watch")]


def test_a_watch_begins_with_what_is_there_and_goes_on_with_what_happens(api: FakeApi) -> None:
    api.add(POD, pod("old"))

    def happen() -> None:
        api.add(POD, pod("new"))
        api.add(POD, pod("old"))
        api.remove(POD, "new")

    soon(happen)
    found = take(api.cluster(), 4)
    assert names(found) == [("ADDED", "old"), ("ADDED", "new"), ("MODIFIED", "old"), ("DELETED", "new")]


def test_a_watch_from_a_known_version_skips_what_the_caller_has(api: FakeApi) -> None:
    api.add(POD, pod("old"))
    _, version = api.cluster().snapshot(POD)
    soon(lambda: api.add(POD, pod("new")))
    assert names(take(api.cluster(), 1, since=version)) == [("ADDED", "new")]


def test_a_watch_of_one_object_sees_only_that(api: FakeApi) -> None:
    api.add(WORKFLOW, {"metadata": {"name": "a"}})
    api.add(WORKFLOW, {"metadata": {"name": "b"}})
    soon(lambda: (api.add(WORKFLOW, {"metadata": {"name": "b"}}), api.add(WORKFLOW, {"metadata": {"name": "a"}})))
    found = list(itertools.islice(api.cluster().watch(WORKFLOW, name="a"), 2))
    assert names(found) == [("ADDED", "a"), ("MODIFIED", "a")]


@pytest.mark.parametrize(
    "end", [CUT, "", '{"type": "MODIFIED", "object": {"meta'], ids=["cut", "ended", "cut in an event"]
)
def test_a_stream_that_ends_is_taken_up_where_it_ended(api: FakeApi, end: str) -> None:
    api.add(POD, pod("a"))
    lines = [event("ADDED", "b", 150), *([end] if end else [])]
    first = [True]

    def rule(request: Request) -> Answer | None:
        if request.query.get("watch") and first:
            first.clear()
            return Answer(lines=lines)
        return None

    api.rule(rule)
    api.version = 200
    soon(lambda: api.add(POD, pod("c")))
    assert names(take(api.cluster(), 3)) == [("ADDED", "a"), ("ADDED", "b"), ("ADDED", "c")]
    assert [w.query["resourceVersion"] for w in watches(api)][1] == "150"


def test_a_silent_stream_is_given_up_and_opened_again(api: FakeApi) -> None:
    first = [True]

    def rule(request: Request) -> Answer | None:
        if request.query.get("watch") and first:
            first.clear()
            return Answer(lines=[STALL, event("ADDED", "late", 500)])
        return None

    api.rule(rule)
    soon(lambda: api.add(POD, pod("a")))
    # The events of the first stream after its silence are not received.
    assert names(take(api.cluster(watch_read_seconds=0.3), 1)) == [("ADDED", "a")]
    assert len(watches(api)) == 2


@pytest.mark.parametrize("how", ["in the stream", "as HTTP"])
def test_a_forgotten_version_lists_again_and_tells_what_was_missed(api: FakeApi, how: str) -> None:
    api.add(POD, pod("stays"))
    api.add(POD, pod("goes"))
    first = [True]

    def rule(request: Request) -> Answer | None:
        if request.query.get("watch") and first:
            first.clear()
            api.remove(POD, "goes")
            api.add(POD, pod("comes"))
            if how == "as HTTP":
                return status(410, "too old resource version")
            return Answer(lines=[json.dumps({"type": "ERROR", "object": {"code": 410, "message": "too old"}})])
        return None

    api.rule(rule)
    found = names(take(api.cluster(), 4))
    assert found == [("ADDED", "stays"), ("ADDED", "goes"), ("DELETED", "goes"), ("ADDED", "comes")]


def test_bookmarks_move_the_place_and_are_not_shown(api: FakeApi) -> None:
    first = [True]

    def rule(request: Request) -> Answer | None:
        if request.query.get("watch") and first:
            first.clear()
            return Answer(lines=[event("BOOKMARK", "", 900)])
        return None

    api.rule(rule)
    api.version = 1000
    soon(lambda: api.add(POD, pod("a")))
    assert names(take(api.cluster(), 1)) == [("ADDED", "a")]
    assert watches(api)[1].query["resourceVersion"] == "900"
    assert watches(api)[0].query["allowWatchBookmarks"] == "true"


def test_a_server_in_trouble_is_asked_again_with_growing_pauses(api: FakeApi) -> None:
    asked: list[float] = []
    api.add(POD, pod("a"))
    failures = iter(range(6))
    api.rule(lambda r: status(503, "down") if r.query.get("watch") and next(failures, None) is not None else None)
    soon(lambda: api.add(POD, pod("b")))

    def jitter(low: float, high: float) -> float:
        asked.append(high)
        return low

    assert names(take(api.cluster(jitter=jitter), 2)) == [("ADDED", "a"), ("ADDED", "b")]
    pauses = [high for high in asked if high != 300]
    assert pauses[:6] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0]


def test_a_server_that_ends_each_stream_at_once_is_not_asked_in_a_tight_loop(api: FakeApi) -> None:
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)

    api.rule(lambda r: Answer(lines=[]) if r.query.get("watch") else None)
    stop = lambda: len(pauses) >= 5  # noqa: E731
    list(api.cluster(sleep=sleep, jitter=lambda _, high: high).watch(POD, stop=stop))
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0]


def test_a_login_that_is_refused_ends_the_watch(api: FakeApi) -> None:
    api.rule(lambda r: status(401, "Unauthorized") if r.query.get("watch") else None)
    with pytest.raises(UnauthorizedError):
        take(api.cluster(), 1)


def test_a_watch_with_a_time_limit_ends_by_itself(api: FakeApi) -> None:
    began = time.monotonic()
    assert list(api.cluster().watch(POD, seconds=1.0)) == []
    assert time.monotonic() - began > 0.9


def test_managed_fields_are_dropped(api: FakeApi) -> None:
    soon(lambda: api.add(POD, {"metadata": {"name": "a", "managedFields": [{"big": "x" * 100}]}}))
    (change,) = take(api.cluster(), 1)
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
        assert names(take(cluster, 1)) == [("ADDED", "a")]
    assert cluster.version() == "v1.34.4"

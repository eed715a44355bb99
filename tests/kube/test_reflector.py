"""The reflector's cache stays correct under each fault of a server."""

from __future__ import annotations

import itertools
import json
import math
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from diflow.common.clock import Clock
from diflow.common.errors import DiflowError
from diflow.common.kept import KeptBytes
from diflow.kube.api import Cluster
from diflow.kube.kinds import POD, WORKFLOW
from diflow.kube.reflector import Pace, Reflector, make_room
from diflow.kube.refusals import Target
from tests.allocator.faults import Refusing, Time, client, eventually
from tests.kube.fakeapi import CUT, Answer, FakeApi, Request, Rule, serving, status
from tests.kube.in_a_pod import as_in_a_pod

Json = dict[str, Any]


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with serving() as found:
        yield found


class Seen:
    """A running reflector, and the changes that it has reported."""

    def __init__(self, cluster: Cluster, **options: Any) -> None:
        self.time = options.pop("time", None) or Time()
        self.told: list[tuple[str, str]] = []
        self.changes: list[tuple[str, Json | None, Json | None]] = []
        self._started = False
        sleep = options.pop("sleep", self.time.sleep)
        clock = Clock(
            monotonic=self.time.now,
            wait=lambda _, seconds: sleep(seconds),
            jitter=options.pop("jitter", random.uniform),
        )
        given = {"clock": clock, "on_change": self._tell}
        self.reflector = Reflector(cluster, options.pop("kind", POD), **{**given, **options})

    def _tell(self, what: str, key: tuple[str, str], old: Json | None, new: Json | None) -> None:
        self.changes.append((what, old, new))
        self.told.append((what, key[1]))

    @property
    def names(self) -> set[str]:
        return {name for _, name in self.reflector.items()}

    def __enter__(self) -> Seen:
        if not self._started:
            self._started = True
            self.reflector.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.reflector.stop()

    def synced(self) -> Seen:
        self.__enter__()
        assert self.reflector.wait_synced(30)
        return self


def pod(name: str, **more: Any) -> Json:
    metadata = {"name": name, **more.pop("metadata", {})}
    return {"metadata": metadata, **more}


def event(kind: str, name: str, version: int, *, uid: str = "", **more: Any) -> str:
    metadata = {"name": name, "namespace": "default", "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return json.dumps({"type": kind, "object": {"metadata": metadata, **more}})


def watches(api: FakeApi) -> list[Request]:
    return [r for r in api.requests if r.query.get("watch")]


def lists(api: FakeApi) -> list[Request]:
    return [r for r in api.requests if r.method == "GET" and not r.query.get("watch")]


def first_watch(answer: Callable[[], Answer]) -> Rule:
    """A rule for the first watch only."""
    left = [True]

    def rule(request: Request) -> Answer | None:
        if request.query.get("watch") and left:
            left.clear()
            return answer()
        return None

    return rule


# --- the copy ---------------------------------------------------------------------------------------------------------


def test_it_begins_with_all_that_is_there_and_follows_what_happens(api: FakeApi) -> None:
    for i in range(7):
        api.add(POD, pod(f"p{i}"))
    with Seen(client(api), pace=Pace(page=3)).synced() as seen:
        assert seen.names == {f"p{i}" for i in range(7)}
        assert [r.query.get("limit") for r in lists(api)] == ["3", "3", "3"]
        api.add(POD, pod("new"))
        api.add(POD, pod("p1", spec={"x": 1}))
        api.remove(POD, "p0")
        eventually(lambda: len(seen.told) == 10)
        assert seen.told[7:] == [("ADDED", "new"), ("MODIFIED", "p1"), ("DELETED", "p0")]
        assert seen.names == {"new", *(f"p{i}" for i in range(1, 7))}
        assert (seen.reflector.get("default", "p1") or {})["spec"] == {"x": 1}
        assert seen.reflector.get("default", "p0") is None
        assert seen.reflector.trouble == ""


def test_a_view_stays_as_it_was_when_it_was_taken(api: FakeApi) -> None:
    api.add(POD, pod("a"))
    with Seen(client(api)).synced() as seen:
        before = seen.reflector.items()
        assert seen.reflector.items() is before, "taking a view of an unchanged copy costs nothing"
        api.add(POD, pod("b"))
        eventually(lambda: "b" in seen.names)
        assert [name for _, name in before] == ["a"]
        with pytest.raises(TypeError):
            before[("x", "y")] = {}  # type: ignore[index]


def test_the_selectors_the_namespace_and_the_limits_reach_the_server(api: FakeApi) -> None:
    api.add(POD, pod("a", metadata={"labels": {"job": "x"}}), namespace="lab")
    api.add(POD, pod("b"), namespace="lab")
    options = {"namespace": "lab", "labels": "job=x", "jitter": lambda _, high: high}
    with Seen(client(api), **options).synced() as seen:
        eventually(lambda: watches(api))
        assert seen.names == {"a"}
        (watch,) = watches(api)
        assert watch.path == "/api/v1/namespaces/lab/pods"
        assert watch.query == {
            "watch": "1", "allowWatchBookmarks": "true", "resourceVersion": str(api.version), "labelSelector": "job=x",
            "timeoutSeconds": "300",
        }  # fmt: skip


def test_all_namespaces_are_one_copy(api: FakeApi) -> None:
    api.rule(lambda r: Answer(body={"metadata": {"resourceVersion": "9"}, "items": [
        {"metadata": {"name": "a", "namespace": n, "uid": n, "resourceVersion": "5"}} for n in ("x", "y")
    ]}) if not r.query.get("watch") else None)  # fmt: skip
    with Seen(client(api), everywhere=True).synced() as seen:
        assert set(seen.reflector.items()) == {("x", "a"), ("y", "a")}
        assert lists(api)[0].path == "/api/v1/pods"


def test_only_what_trim_leaves_is_kept_and_none_means_nothing(api: FakeApi) -> None:
    def trim(obj: Json) -> Json | None:
        assert "managedFields" not in obj["metadata"]
        return None if obj.get("done") else {"x": obj.get("x")}

    api.add(POD, pod("a", x=1, huge="x" * 1000, metadata={"managedFields": [{"f": 1}]}))
    api.add(POD, pod("b", done=True))
    with Seen(client(api), trim=trim).synced() as seen:
        assert dict(seen.reflector.items()) == {("default", "a"): {"x": 1}}
        api.add(POD, pod("a", x=1, huge="y", metadata={"managedFields": [{"f": 2}]}))
        api.add(POD, pod("a", x=2))
        api.add(POD, pod("a", done=True))
        api.add(POD, pod("b", x=3))
        eventually(lambda: seen.names == {"b"})
        assert seen.told == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), ("ADDED", "b")]
        assert seen.changes[1] == ("MODIFIED", {"x": 1}, {"x": 2})
        assert seen.changes[2] == ("DELETED", {"x": 2}, None)


def test_another_object_of_the_same_name_is_a_deletion_and_an_addition(api: FakeApi) -> None:
    api.add(POD, pod("a", metadata={"uid": "one"}))
    with Seen(client(api)).synced() as seen:
        api.add(POD, pod("a", metadata={"uid": "two"}))
        eventually(lambda: len(seen.told) == 3)
        assert seen.told == [("ADDED", "a"), ("DELETED", "a"), ("ADDED", "a")]
        assert (seen.reflector.get("default", "a") or {})["metadata"]["uid"] == "two"


# --- streams that end -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["in the stream", "as HTTP", "from the future"])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_forgotten_version_lists_again_and_tells_what_was_missed(api: FakeApi, how: str, replaced: bool) -> None:
    for name in ("stays", "goes", "changes"):
        api.add(POD, pod(name))
    synced: list[bool] = []

    def answer() -> Answer:
        api.remove(POD, "goes")
        if replaced:
            api.add(POD, pod("goes", metadata={"uid": "another"}))
        api.add(POD, pod("changes", x=1))
        api.add(POD, pod("comes"))
        if how == "as HTTP":
            return status(410, "too old resource version")
        if how == "from the future":
            return status(504, "Too large resource version: 300, current: 200", reason="Timeout")
        return Answer(lines=[json.dumps({"type": "ERROR", "object": {"code": 410, "message": "too old"}})])

    api.rule(first_watch(answer))

    def sleep(seconds: float) -> None:
        synced.append(seen.reflector.synced)
        seen.time.sleep(seconds)

    seen = Seen(client(api), sleep=sleep)
    with seen.synced():
        eventually(lambda: "comes" in seen.names)
        eventually(lambda: seen.reflector.synced)
        gone = [("DELETED", "goes")] + ([("ADDED", "goes")] if replaced else [])
        assert sorted(seen.told[3:]) == sorted([*gone, ("MODIFIED", "changes"), ("ADDED", "comes")])
        assert [t for t in seen.told[3:] if t[1] == "goes"] == gone
        assert ("goes" in seen.names) is replaced
        assert synced[0] is False, "what is known to have gaps is not planned on"


@pytest.mark.parametrize("last", [CUT, "", '{"type": "MODIFIED", "object": {"meta\\', '["no event"]'])
def test_a_stream_that_breaks_is_taken_up_where_it_broke(api: FakeApi, last: str) -> None:
    api.add(POD, pod("a"))
    api.rule(first_watch(lambda: Answer(lines=[event("ADDED", "b", 150), *([last] if last else [])])))
    with Seen(client(api)).synced() as seen:
        eventually(lambda: len(watches(api)) == 2)
        assert seen.names == {"a", "b"}
        assert watches(api)[1].query["resourceVersion"] == "150"
        assert len(lists(api)) == 1
        assert len(seen.time.slept) == 1
        assert seen.time.slept[0] >= 0.5


def test_a_silent_stream_is_given_up_and_taken_up_again(api: FakeApi) -> None:
    api.add(POD, pod("a"))
    quiet = threading.Event()

    def silence() -> Iterator[str]:
        yield event("BOOKMARK", "", 150)
        quiet.wait(60)

    def rule(request: Request) -> Answer | None:
        began = request.query.get("resourceVersion")
        return Answer(lines=silence()) if request.query.get("watch") and began != "150" else None  # type: ignore[arg-type]

    api.rule(rule)
    try:
        with Seen(client(api), pace=Pace(silence_seconds=0.5)).synced():
            eventually(lambda: [w for w in watches(api) if w.query["resourceVersion"] == "150"])
            assert len(lists(api)) == 1
    finally:
        quiet.set()


def test_a_watch_that_was_lost_without_a_sign_is_continued_on_request(api: FakeApi) -> None:
    api.add(POD, pod("a"))
    quiet = threading.Event()

    def silence() -> Iterator[str]:
        yield event("BOOKMARK", "", 101)
        quiet.wait(60)

    api.rule(first_watch(lambda: Answer(lines=silence())))  # type: ignore[arg-type]
    try:
        with Seen(client(api)).synced() as seen:
            eventually(lambda: seen.reflector._got_event, "the watch is open")
            api.add(POD, pod("b"))
            seen.time.move(50)
            assert seen.reflector.age_seconds >= 50
            seen.reflector.reopen()
            eventually(lambda: seen.names == {"a", "b"}, "what it has missed comes")
            assert seen.reflector.age_seconds == 0.0
            assert len(lists(api)) == 1
            assert seen.time.slept == [], "at once"
    finally:
        quiet.set()


@pytest.mark.parametrize(("answer", "least_seconds"), [(404, 0.0), (429, 5.0)])
def test_a_list_that_fails_is_retried_with_pauses_although_a_new_connection_is_requested(
    api: FakeApi, answer: int, least_seconds: float
) -> None:
    headers: dict[str, Any] = {"Retry-After": "5"} if least_seconds else {}
    api.rule(lambda request: status(answer, "not now", **headers) if "watch" not in request.query else None)
    seen = Seen(client(api).without_retries())
    seen.reflector.reopen()
    with seen:
        eventually(lambda: len(seen.time.slept) >= 5, "it pauses after each failure")
        seen.reflector.reopen()
        eventually(lambda: len(seen.time.slept) >= 10, "and after those that follow another request")
    assert len(lists(api)) <= len(seen.time.slept) + 2
    assert min(seen.time.slept) >= max(least_seconds, 0.01)
    assert seen.reflector.trouble


def test_a_bookmark_moves_the_place_and_makes_the_copy_young_again(api: FakeApi) -> None:
    go = threading.Event()

    def lines() -> Iterator[str]:
        yield event("ADDED", "first", 800)
        go.wait(60)
        yield event("BOOKMARK", "", 900)

    api.rule(first_watch(lambda: Answer(lines=lines())))  # type: ignore[arg-type]
    seen = Seen(client(api))
    assert seen.reflector.age_seconds == math.inf
    assert not seen.reflector.synced
    with seen.synced():
        eventually(lambda: "first" in seen.names)
        seen.time.move(50)
        assert seen.reflector.age_seconds == 50
        go.set()
        eventually(lambda: len(watches(api)) == 2)
        assert seen.reflector.age_seconds < 50
        assert seen.told == [("ADDED", "first")]
        assert watches(api)[1].query["resourceVersion"] == "900"


def test_a_stream_that_held_for_a_minute_is_opened_again_at_once(api: FakeApi) -> None:
    time = Time()

    def a_minute_later() -> Answer:
        time.move(61)
        return Answer(lines=[])

    api.rule(first_watch(a_minute_later))
    with Seen(client(api), time=time).synced():
        eventually(lambda: len(watches(api)) == 2)
        assert time.slept == []


@pytest.mark.parametrize("end", [[CUT], []], ids=["cut", "ended"])
def test_a_stream_that_said_nothing_at_all_for_a_minute_is_not_believed(api: FakeApi, end: list[str]) -> None:
    """A server whose etcd was restored from a backup accepts a version from the future, and omits events."""
    for name in ("stays", "forgotten"):
        api.add(POD, pod(name))
    time = Time()

    def silence() -> Answer:
        del api.objects["/api/v1/namespaces/default/pods"]["forgotten"]
        time.move(76)
        return Answer(lines=end)

    api.rule(first_watch(silence))
    with Seen(client(api), time=time).synced() as seen:
        eventually(lambda: seen.names == {"stays"})
        assert len(lists(api)) == 2


# --- a server in trouble ----------------------------------------------------------------------------------------------


def test_a_server_that_is_away_for_five_minutes_is_asked_a_few_dozen_times(api: FakeApi) -> None:
    api.add(POD, pod("a"))
    time = Time()
    away = [math.inf]
    transport = Refusing(lambda: away[0] <= time.now() < away[0] + 300)
    cluster = Cluster(Target(api.url), transport=transport, clock=time.clock)
    api.rule(first_watch(lambda: (away.__setitem__(0, time.now()), Answer(lines=[]))[1]))
    told: list[str] = []

    def sleep(seconds: float) -> None:
        told.append(seen.reflector.trouble)
        time.sleep(seconds)

    seen = Seen(cluster, time=time, sleep=sleep, jitter=random.Random(1).uniform)
    with seen.synced():
        eventually(lambda: len(watches(api)) == 2)
        assert 10 < transport.refused < 60, "neither given up nor asked in a tight loop"
        assert min(time.slept) >= 0.5
        assert max(time.slept) <= 30
        assert "no cluster answers" in told[-1]
        eventually(lambda: seen.reflector.trouble == "")
        api.add(POD, pod("b"))
        eventually(lambda: seen.names == {"a", "b"})


@pytest.mark.parametrize("end", [[CUT], []], ids=["cut", "ended"])
def test_the_pauses_grow_to_half_a_minute_and_start_again_after_a_minute_of_health(
    api: FakeApi, end: list[str]
) -> None:
    api.add(POD, pod("a"))
    time = Time()
    asked = [0]

    def rule(request: Request) -> Answer | None:
        if not request.query.get("watch"):
            return None
        asked[0] += 1
        if asked[0] == 9:
            time.move(61)  # this one held for a minute
            return Answer(lines=end)
        return status(500, "etcdserver: no leader") if asked[0] < 12 else None

    api.rule(rule)
    with Seen(client(api), time=time, jitter=lambda _, high: high).synced():
        eventually(lambda: len(watches(api)) == 12)
        assert time.slept == [1, 2, 4, 8, 16, 30, 30, 30, *([1, 2, 4] if end else [1, 2])]


@pytest.mark.parametrize("which", ["list", "watch"])
@pytest.mark.parametrize("code", [429, 503])
def test_the_server_says_when_to_come_back(api: FakeApi, which: str, code: int) -> None:
    api.add(POD, pod("a"))
    answer = status(code, "too many requests", Retry_After="47")
    left = [answer]
    api.rule(lambda r: left.pop() if left and bool(r.query.get("watch")) == (which == "watch") else None)
    with Seen(client(api)).synced() as seen:
        eventually(lambda: watches(api) and not left and (which == "list" or len(watches(api)) == 2))
        assert seen.time.slept == [47]
        assert seen.names == {"a"}


def test_a_server_that_ends_every_stream_at_once_is_not_asked_in_a_tight_loop(api: FakeApi) -> None:
    api.rule(lambda r: Answer(lines=[]) if r.query.get("watch") else None)
    time = Time()
    with Seen(client(api), time=time, jitter=lambda _, high: high).synced():
        eventually(lambda: len(time.slept) >= 8)
        assert time.slept[:8] == [1, 2, 4, 8, 16, 30, 30, 30]


def test_a_server_that_forgets_every_version_is_not_listed_in_a_tight_loop(api: FakeApi) -> None:
    api.rule(lambda r: status(410, "too old") if r.query.get("watch") else None)
    time = Time()
    with Seen(client(api), time=time, jitter=lambda _, high: high).synced():
        eventually(lambda: len(time.slept) >= 8)
        assert time.slept[:8] == [1, 2, 4, 8, 16, 30, 30, 30]
        assert len(lists(api)) <= len(time.slept) + 1


@pytest.mark.parametrize(
    "answer",
    [
        status(403, 'pods is forbidden: User "x" cannot list resource "pods" in API group ""'),
        status(404, "the server could not find the requested resource"),
        status(404, 'namespaces "lab" not found', reason="NotFound"),
        status(422, "unprocessable", reason="Invalid"),
        status(409, "conflict", reason="Conflict"),
        Answer(200, b"<html>a proxy</html>"),
        Answer(200, {"message": "a proxy"}),
        Answer(200, {"items": ["no object"], "metadata": {}}),
        Answer(200, {"items": [], "metadata": {}}, cut=True),
    ],
    ids=["403", "no such kind", "no namespace", "422", "409", "html", "no list", "odd items", "cut"],
)
def test_whatever_a_list_answers_there_is_another_try(api: FakeApi, answer: Answer) -> None:
    api.add(POD, pod("a"))
    left = [answer] * 3
    api.rule(lambda r: left.pop() if left and not r.query.get("watch") else None)
    troubles: list[str] = []
    seen: Seen = Seen(client(api), sleep=lambda _: troubles.append(seen.reflector.trouble))
    with seen.synced():
        assert seen.names == {"a"}
        assert len(troubles) == 3
        assert all(troubles)


def test_an_error_in_the_stream_is_told_and_the_stream_taken_up_again(api: FakeApi) -> None:
    error = json.dumps({"type": "ERROR", "object": {"code": 500, "message": "the storage is unwell"}})
    api.rule(first_watch(lambda: Answer(lines=[error])))
    troubles: list[str] = []
    seen: Seen = Seen(client(api), sleep=lambda _: troubles.append(seen.reflector.trouble))
    with seen.synced():
        eventually(lambda: len(watches(api)) == 2)
        assert troubles == ["the watch failed: the storage is unwell"]
        assert len(lists(api)) == 1


# --- the login --------------------------------------------------------------------------------------------------------


def test_a_token_that_has_been_renewed_is_read_again_when_the_old_one_is_refused(api: FakeApi, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("old\n")
    valid = ["old"]
    api.rule(
        lambda r: None
        if r.headers.get("Authorization") == f"Bearer {valid[0]}"
        else status(401, "Unauthorized")
    )  # fmt: skip
    api.rule(first_watch(lambda: (valid.__setitem__(0, "new"), Answer(lines=[]))[1]))
    troubles: list[str] = []

    def sleep(_: float) -> None:
        troubles.append(seen.reflector.trouble)
        if len(troubles) == 4:
            path.write_text("new\n")

    seen = Seen(in_a_pod(api, tmp_path), sleep=sleep)
    with seen.synced():
        eventually(lambda: len(troubles) == 4)
        api.add(POD, pod("a"))
        eventually(lambda: seen.names == {"a"})
        assert "does not know who you are" in troubles[-1]
        assert len(troubles) == 4, "the new token was used as soon as it was there"


def test_a_token_file_that_is_away_for_a_moment_does_not_matter(api: FakeApi, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first")
    cluster = in_a_pod(api, tmp_path)
    (tmp_path / "token").unlink()
    assert cluster.version() == "v1.34.4"
    assert api.requests[-1].headers["Authorization"].lower() == "bearer first"


def in_a_pod(api: FakeApi, folder: Path) -> Cluster:
    """A client as in a pod whose service account is in this folder, but without the TLS that a real server has."""
    with pytest.MonkeyPatch.context() as patch:
        as_in_a_pod(patch, api, folder, namespace="default")
        patch.setattr("ssl.SSLContext.load_verify_locations", lambda *_, **__: None)
        patch.setattr(Cluster, "__init__", _plain(Cluster.__init__, api.url))
        return Cluster.connect()


def _plain(init: Callable[..., None], url: str) -> Callable[..., None]:
    def plain(self: Cluster, target: Target, **options: Any) -> None:
        assert target.server.startswith("https://")
        init(self, Target(url), **options, clock=Clock(sleep=lambda _: None))

    return plain


# --- own writes -------------------------------------------------------------------------------------------------------


def test_the_answer_to_a_write_is_in_the_copy_at_once_and_older_events_do_not_undo_it(api: FakeApi) -> None:
    api.add(POD, pod("a", x=0))
    go = threading.Event()

    def lines() -> Iterator[str]:
        go.wait(60)
        yield event("MODIFIED", "a", 150, x=1)  # a write by another client before ours
        yield event("MODIFIED", "a", 200, x=2)  # our write
        yield event("MODIFIED", "a", 250, x=3)

    api.rule(first_watch(lambda: Answer(lines=lines())))  # type: ignore[arg-type]
    with Seen(client(api), trim=lambda obj: {"x": obj["x"]}).synced() as seen:
        answer = json.loads(event("", "a", 200, x=2))["object"]
        seen.reflector.apply_write({**answer, "metadata": {**answer["metadata"], "managedFields": [1]}})
        assert seen.reflector.get("default", "a") == {"x": 2}
        go.set()
        eventually(lambda: seen.reflector.get("default", "a") == {"x": 3})
        assert [new["x"] for _, _, new in seen.changes if new] == [0, 2, 3]


def test_an_answer_that_is_older_or_of_another_object_or_of_none_is_ignored(api: FakeApi) -> None:
    api.add(POD, pod("a", x=0, metadata={"uid": "one"}))
    with Seen(client(api)).synced() as seen:
        for name, version, uid in (("a", 90, "one"), ("a", 101, "one"), ("a", 200, "other"), ("gone", 200, "x")):
            seen.reflector.apply_write(json.loads(event("", name, version, uid=uid, x=9))["object"])
        assert {key: obj["x"] for key, obj in seen.reflector.items().items()} == {("default", "a"): 0}
        assert seen.told == [("ADDED", "a")]


def test_an_object_can_be_trimmed_again_at_its_version_and_at_no_older_one(api: FakeApi) -> None:
    api.add(POD, pod("a", x=0, metadata={"uid": "one"}))
    looks = itertools.count()
    with Seen(client(api), trim=lambda obj: {"x": obj["x"], "looks": next(looks)}).synced() as seen:
        (made,) = client(api).list_all(POD, namespace="default")
        version = int(made["metadata"]["resourceVersion"])
        for older in (version - 1, version):
            seen.reflector.apply_write(
                json.loads(event("", "a", older, uid="one", x=0))["object"], again=older != version
            )
        assert seen.reflector.get("default", "a") == {"x": 0, "looks": 0}
        seen.reflector.apply_write(json.loads(event("", "a", version, uid="one", x=0))["object"], again=True)
        assert seen.reflector.get("default", "a") == {"x": 0, "looks": 1}


def test_an_object_that_is_deleted_after_an_own_write_is_gone(api: FakeApi) -> None:
    api.add(POD, pod("a"))
    api.rule(first_watch(lambda: Answer(lines=[event("DELETED", "a", 150)])))
    with Seen(client(api)) as seen:
        eventually(lambda: seen.told == [("ADDED", "a"), ("DELETED", "a")])
        seen.reflector.apply_write(json.loads(event("", "a", 149))["object"])
        assert seen.names == set(), "an answer that comes late does not bring it back"


def test_a_write_during_a_list_is_not_undone_by_the_list(api: FakeApi) -> None:
    api.add(POD, pod("a", x=0))
    api.add(POD, pod("b", x=0))
    relists = [0]

    def rule(request: Request) -> Answer | None:
        if not request.query.get("watch"):
            relists[0] += 1
            if relists[0] == 2:
                made = api._plain(request)
                seen.reflector.apply_write(json.loads(event("", "a", 500, x=5))["object"])
                return made
        return None

    api.rule(rule)
    api.rule(first_watch(lambda: status(410, "too old")))
    seen = Seen(client(api))
    with seen:
        eventually(lambda: relists[0] == 2 and seen.reflector.synced)
        assert {name: obj["x"] for (_, name), obj in seen.reflector.items().items()} == {"a": 5, "b": 0}


def test_after_a_restored_backup_the_list_counts_though_its_versions_are_lower(api: FakeApi) -> None:
    api.add(POD, pod("a", x=2))

    def restored() -> Answer:
        stored = api.objects["/api/v1/namespaces/default/pods"]["a"]
        stored.update(x=1, metadata={**stored["metadata"], "resourceVersion": "50"})
        return status(504, "Too large resource version: 101, current: 60")

    api.rule(first_watch(restored))
    with Seen(client(api)) as seen:
        eventually(lambda: (seen.reflector.get("default", "a") or {}).get("x") == 1)


# --- errors of our own ------------------------------------------------------------------------------------------------


def test_an_object_that_trim_cannot_read_is_told_and_the_last_that_is_known_of_it_stays(api: FakeApi) -> None:
    def trim(obj: Json) -> Json:
        return {"x": 1 // obj["x"]}

    api.add(POD, pod("good", x=1))
    api.add(POD, pod("bad", x=0))
    with Seen(client(api), trim=trim).synced() as seen:
        assert seen.names == {"good"}
        assert seen.reflector.trouble == "Pod default/bad cannot be read: ZeroDivisionError: integer division or " \
            "modulo by zero"  # fmt: skip
        api.add(POD, pod("bad", x=1))
        eventually(lambda: seen.names == {"good", "bad"})
        assert seen.reflector.trouble == ""
        api.add(POD, pod("good", x=0))
        eventually(lambda: "default/good" in seen.reflector.trouble)
        assert seen.names == {"good", "bad"}, "a pod that cannot be read still counts"
        api.remove(POD, "good")
        eventually(lambda: seen.names == {"bad"})
        assert seen.reflector.trouble == ""


def test_an_error_of_the_listener_is_told_and_the_copy_goes_on(api: FakeApi) -> None:
    def on_change(_: str, key: tuple[str, str], *__: object) -> None:
        if key[1] == "bad":
            raise KeyError("bad")

    with Seen(client(api), on_change=on_change).synced() as seen:
        api.add(POD, pod("bad"))
        eventually(lambda: "on_change failed for Pod default/bad" in seen.reflector.trouble)
        api.add(POD, pod("good"))
        eventually(lambda: seen.names == {"bad", "good"})
        eventually(lambda: seen.reflector.trouble == "")


# --- stopping ---------------------------------------------------------------------------------------------------------


def reflectors() -> set[threading.Thread]:
    """The reflectors of pods that run, those of other tests in this process too."""
    return {thread for thread in threading.enumerate() if thread.name == "reflector-pods"}


def test_a_reflector_that_waits_in_a_silent_stream_stops_at_once(api: FakeApi) -> None:
    before = reflectors()
    seen = Seen(client(api))
    with seen.synced():
        eventually(lambda: watches(api))
        seen.reflector.stop(timeout=30)
        assert not reflectors() - before
        with pytest.raises(RuntimeError):
            seen.reflector.start()


def test_a_reflector_that_waits_for_its_next_try_stops_at_once(api: FakeApi) -> None:
    api.rule(lambda _: status(503, "down", Retry_After="100"))
    before = reflectors()
    reflector = Reflector(client(api), POD)
    reflector.start()
    eventually(lambda: reflector.trouble)
    reflector.stop(timeout=30)
    assert not reflectors() - before
    assert not reflector.wait_synced(0)


# --- everything at once -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_through_any_faults_the_copy_becomes_what_the_server_has(api: FakeApi, seed: int) -> None:
    """A random walk: objects are created, changed, replaced and deleted, while streams and lists fail in every way."""
    chance = random.Random(seed)
    lock = threading.Lock()
    calm = threading.Event()

    def rule(request: Request) -> Answer | None:
        if calm.is_set():
            return None
        with lock:
            dice = chance.random()
            watch = bool(request.query.get("watch"))
            if dice < 0.1:
                return status(chance.choice([429, 500, 503]), "in trouble", Retry_After="1")
            if dice < 0.2:
                return status(chance.choice([401, 410]), "no")
            if watch:
                return Answer(lines=_some(api, request, chance))
            if dice < 0.3:
                made = api._plain(request)
                made.cut = True
                return made
        return None

    api.rule(rule)
    known: dict[str, tuple[str, int]] = {}
    wrong: list[str] = []

    def on_change(what: str, key: tuple[str, str], old: Json | None, new: Json | None) -> None:
        """The events must be consistent: a listener knows nothing else."""
        had = known.get(key[1])
        if (old is None) != (had is None) or (what == "ADDED") != (old is None) or (what == "DELETED") != (new is None):
            wrong.append(f"{what} {key[1]}: knew {had}")
        if old is not None and new is not None and old["uid"] != new["uid"]:
            wrong.append(f"{what} {key[1]}: another object")
        if new is None:
            known.pop(key[1], None)
        else:
            known[key[1]] = (new["uid"], new["x"])

    def trim(obj: Json) -> Json:
        return {"uid": obj["metadata"]["uid"], "x": obj["x"]}

    seen = Seen(client(api), on_change=on_change, trim=trim, pace=Pace(page=4, silence_seconds=60.0))
    with seen:
        # The number of streams and lists in these steps depends on the threads: continue until there were enough.
        for step in itertools.count():
            if step >= 150 and len(watches(api)) > 30 and len(lists(api)) > 10:
                break
            assert step < 3000, "the faults never made it list again"
            asked = len(api.requests)
            name = f"p{chance.randrange(12)}"
            stored = api.objects.get("/api/v1/namespaces/default/pods", {})
            if name not in stored:
                api.add(POD, pod(name, x=step, metadata={"uid": f"{name}-{step}"}))
            elif chance.random() < 0.3:
                api.remove(POD, name)
                if chance.random() < 0.5:
                    api.add(POD, pod(name, x=step, metadata={"uid": f"{name}-{step}"}))
            else:
                answer = api.add(POD, {**stored[name], "x": step})
                if chance.random() < 0.3:
                    seen.reflector.apply_write(answer)
                    at_once = seen.reflector.get("default", name)
                    assert at_once is None or at_once["uid"] != answer["metadata"]["uid"] or at_once["x"] == step
            if step % 3 == 0:
                eventually(lambda: len(api.requests) > asked, "the reflector goes on asking")  # noqa: B023
        calm.set()
        stored = api.objects["/api/v1/namespaces/default/pods"]
        truth = {name: (obj["metadata"]["uid"], obj["x"]) for name, obj in stored.items()}
        eventually(lambda: known == truth, "the listener knows what the server has")
        shown = {name: (obj["uid"], obj["x"]) for (_, name), obj in seen.reflector.items().items()}
        assert shown == truth
        assert wrong == []


def _some(api: FakeApi, request: Request, chance: random.Random) -> list[str]:
    """The next few events of a watch, and then an end of some kind, perhaps in the middle of a line."""
    since = int(request.query["resourceVersion"])
    with api.changed:
        news = [e for e in api.events if e[0] > since and e[2] == request.path]
    lines = [json.dumps({"type": what, "object": obj}) for _, what, _, obj in news[: chance.randrange(6)]]
    if lines and chance.random() < 0.3:
        lines[-1] = lines[-1][: chance.randrange(1, len(lines[-1]))] + "\\"
    return lines + ([CUT] if chance.random() < 0.5 else [])


@pytest.mark.slow
def test_a_workflow_far_larger_than_what_is_kept_of_it_does_not_stay_in_memory(api: FakeApi) -> None:
    import gc
    import tracemalloc

    big = {"spec": {"templates": [{"name": f"t{i}", "text": "x" * 200} for i in range(500)]}}
    for i in range(30):
        api.add(WORKFLOW, {"metadata": {"name": f"w{i}"}, **big})
    tracemalloc.start()
    try:
        with Seen(client(api), kind=WORKFLOW, pace=Pace(page=5), trim=lambda o: {"n": o["metadata"]["name"]}) as seen:
            seen.synced()
            api.events.clear()
            gc.collect()
            held = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/json/*", all_frames=True)])
            assert len(seen.names) == 30
            assert sum(trace.size for trace in held.traces) < 500_000, "one such Workflow alone has more than that"
    finally:
        tracemalloc.stop()


def test_an_object_that_replaces_another_between_two_lists_is_counted(api: FakeApi) -> None:
    kept = KeptBytes(10**6)

    def counted(obj: Json) -> Json:
        assert kept.admits((obj["metadata"]["namespace"], obj["metadata"]["name"]), obj)
        return obj

    def changed(_: str, key: tuple[str, str], __: Json | None, new: Json | None) -> None:
        make_room(kept, seen.reflector, key, new)

    seen: Seen = Seen(client(api), trim=counted, on_change=changed)
    api.add(POD, pod("a", metadata={"uid": "first"}))
    seen.reflector._list()
    assert seen.reflector.trouble == ""
    before = kept.bytes_in("default")
    api.remove(POD, "a")
    api.add(POD, pod("a", metadata={"uid": "other"}))
    seen.reflector._list()
    assert 0 < before <= kept.bytes_in("default") < before * 1.1
    api.remove(POD, "a")
    seen.reflector._list()
    assert kept.bytes_in("default") == 0


def test_what_was_read_of_a_list_that_breaks_off_is_not_counted(api: FakeApi) -> None:
    kept = KeptBytes(10**6)

    def counted(obj: Json) -> Json:
        assert kept.admits((obj["metadata"]["namespace"], obj["metadata"]["name"]), obj)
        return obj

    def changed(_: str, key: tuple[str, str], __: Json | None, new: Json | None) -> None:
        make_room(kept, seen.reflector, key, new)

    seen: Seen = Seen(client(api), trim=counted, on_change=changed, on_gone=kept.forget, pace=Pace(page=1))
    for name in "abc":
        api.add(POD, pod(name))
    pages = list[int]()

    def broken(_: Request) -> Answer | None:
        pages.append(1)
        return status(500, "it breaks off") if len(pages) == 2 else None

    api.rule(broken)
    with pytest.raises(DiflowError):
        seen.reflector._list()
    assert kept.bytes_in("default") == 0

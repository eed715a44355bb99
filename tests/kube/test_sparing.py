"""What reading a namespace's objects costs is its own trouble: they are read late, and those of others are not."""

from __future__ import annotations

import itertools
import json
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from diflow.common.clock import Clock
from diflow.kube.kinds import POD
from diflow.kube.reflector import Reflector
from diflow.kube.reflectors import Reflectors
from diflow.kube.sparing import Late, Shares
from tests.allocator.faults import Time, eventually
from tests.kube.fakeapi import Answer, FakeApi, Request, serving

Json = dict[str, Any]
HEAVY = 0.4


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with serving() as found:
        yield found


@dataclass
class Machine:
    """A machine on which reading an object of the namespace `evil` takes `HEAVY` seconds of a processor."""

    now: float = 0.0
    used: float = 0.0
    read: list[tuple[str, str]] = field(default_factory=list)

    def shares(self, **given: float) -> Shares:
        clock = Clock(monotonic=lambda: self.now)
        return Shares(**{"share": 0.25, "burst": 1.0, **given}, clock=clock, processor=lambda: self.used)

    def trim(self, obj: Json) -> Json:
        metadata = obj["metadata"]
        self.used += HEAVY if metadata["namespace"] == "evil" else 0.001
        self.read.append((metadata["namespace"], metadata["name"]))
        return {"version": metadata["resourceVersion"], "text": obj.get("text", "")}


def add(api: FakeApi, name: str, text: str = "", *, namespace: str = "evil", uid: str = "") -> None:
    api.add(POD, {"metadata": {"name": name, "uid": uid or name}, "text": text}, namespace=namespace)


class Cache:
    """A reflector of which the late objects are read when the test says so."""

    def __init__(self, api: FakeApi, machine: Machine, **options: Any) -> None:
        self.told: list[tuple[str, tuple[str, str]]] = []
        self.gone: list[tuple[str, str]] = []
        self.reflector = Reflector(
            api.cluster(),
            POD,
            trim=machine.trim,
            on_change=lambda what, key, *_: self.told.append((what, key)),
            on_gone=self.gone.append,
            shares=machine.shares(**options),
            clock=Clock(wait=lambda stop, seconds: stop.wait(3600.0 if seconds < 0.3 else seconds)),
            everywhere=True,
        )

    def __enter__(self) -> Cache:
        self.reflector.start()
        assert self.reflector.wait_synced(30)
        return self

    def __exit__(self, *_: object) -> None:
        self.reflector.stop()

    def text(self, name: str, *, namespace: str = "evil") -> str | None:
        found = self.reflector.get(namespace, name)
        return found["text"] if found is not None else None


def flood(api: FakeApi, name: str, times: int) -> None:
    for i in range(times):
        add(api, name, str(i))


def test_a_namespace_that_costs_more_than_its_share_is_read_late_and_others_at_once(api: FakeApi) -> None:
    machine = Machine()
    add(api, "one")
    with Cache(api, machine) as cache:
        flood(api, "one", 50)
        add(api, "two")
        add(api, "mine", "new", namespace="honest")
        eventually(lambda: cache.text("mine", namespace="honest") == "new", "the other one is read")
        assert machine.used < 1.0 + 2 * HEAVY + 0.1, "a burst, and what was being read"
        assert cache.text("one") != "49", "it is as it was"
        assert cache.text("two") is None
        assert set(cache.reflector.late()) == {"evil"}
        assert not cache.reflector.read_late(), "not yet"
        machine.now += 100
        while cache.reflector.read_late():
            machine.now += 2
        assert (cache.text("one"), cache.text("two")) == ("49", "")
        assert cache.reflector.late() == {}


def test_what_is_gone_is_not_brought_back_by_the_late_reading(api: FakeApi) -> None:
    machine = Machine()
    asked: list[str] = []
    with Cache(api, machine) as cache:
        add(api, "one")
        flood(api, "one", 10)
        add(api, "two")
        eventually(lambda: "evil" in cache.reflector.late(), "they are late")

        def gone_meanwhile(request: Request) -> Answer | None:
            """The watch tells of its end while the object is being read."""
            if not request.path.endswith("/two"):
                return None
            asked.append(request.path)
            api.remove(POD, "two", namespace="evil")
            add(api, "later", "told", namespace="honest")
            eventually(lambda: cache.text("later", namespace="honest") == "told", "the watch has told of it")
            return Answer(200, {"metadata": {"name": "two", "namespace": "evil", "uid": "two", "resourceVersion": "7"}})

        api.rule(gone_meanwhile)
        while not asked:
            machine.now += 1000
            cache.reflector.read_late()
        assert cache.text("two") is None
        assert ("evil", "two") in machine.read, "it was read, and not kept"
        assert cache.gone == [("evil", "two")], "whoever counts what is kept is told"


def test_an_error_of_any_kind_does_not_end_the_late_reading(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    add(api, "one")
    with Cache(api, machine) as cache:
        flood(api, "one", 10)
        eventually(lambda: "evil" in cache.reflector.late(), "it is late")
        machine.now += 1000
        before = cache.reflector.late()["evil"]
        with monkeypatch.context() as broken:
            broken.setattr(cache.reflector._cluster, "find", lambda *_, **__: 1 / 0)
            assert not cache.reflector.read_late()
        assert cache.reflector.late()["evil"] >= before, "a reading that fails makes nothing younger"
        assert cache.reflector.read_late()
        assert cache.text("one") == "9"


def test_an_object_that_replaces_another_is_not_shown_as_the_former(api: FakeApi) -> None:
    machine = Machine()
    add(api, "one", "former")
    with Cache(api, machine) as cache:
        flood(api, "one", 10)
        api.remove(POD, "one", namespace="evil")
        add(api, "one", "another", uid="another")
        eventually(lambda: cache.text("one") is None, "the former one is gone")
        machine.now += 1000
        assert cache.reflector.read_late()
        assert cache.text("one") == "another"


def test_in_a_list_a_namespace_costs_only_so_much_and_a_large_honest_one_is_read_whole(api: FakeApi) -> None:
    machine = Machine()
    for i in range(100):
        add(api, f"e{i}")
    for i in range(1000):
        add(api, f"h{i}", namespace="honest")
    with Cache(api, machine) as cache:
        items = cache.reflector.items()
        assert sum(key[0] == "honest" for key in items) == 1000
        assert 20.0 / HEAVY <= sum(key[0] == "evil" for key in items) < 60
        machine.now += 1000
        assert cache.reflector.read_late()


def test_the_answer_to_a_write_is_known_at_once_and_charged(api: FakeApi) -> None:
    machine = Machine()
    add(api, "one")
    with Cache(api, machine) as cache:
        flood(api, "one", 10)
        eventually(lambda: "evil" in cache.reflector.late(), "it is late")
        used = machine.used
        found = api.cluster().get(POD, "one", namespace="evil")
        cache.reflector.apply_write(found)
        assert cache.text("one") == found["text"]
        assert machine.used == used + HEAVY
        assert cache.reflector.late() == {}


def test_a_share_comes_back_with_time() -> None:
    machine = Machine()
    shares = machine.shares()
    shares.charge("evil", 3.0)
    assert not shares.may("evil")
    assert shares.may("other")
    assert shares.left_seconds("evil") == pytest.approx(8.0)
    machine.now += 8.1
    assert shares.may("evil")
    assert shares.left_seconds("evil") == 0.0


def test_of_the_late_objects_each_namespace_has_its_turn() -> None:
    machine = Machine()
    shares = machine.shares()
    late = Late(shares)
    for key in (("a", "1"), ("a", "2"), ("b", "1"), ("c", "1")):
        late.add(key)
    shares.charge("c", 5.0)
    assert late.due() == [("a", "1"), ("b", "1")]
    late.discard(("a", "1"))
    assert late.due() == [("a", "2"), ("b", "1")]


# --- the age of what is known -----------------------------------------------------------------------------------------


def test_a_cache_is_as_old_as_what_waits_to_be_read(api: FakeApi) -> None:
    """An age that counts from the last event read would be 0 while hours of events wait."""
    time_ = Time()
    going, begun = threading.Event(), threading.Event()

    def trim(obj: Json) -> Json:
        if obj["metadata"]["name"].startswith("slow"):
            begun.set()
            assert going.wait(30)
        return obj

    reflector = Reflector(api.cluster(), POD, trim=trim, clock=Clock(monotonic=time_.now), everywhere=True)
    reflector.start()
    try:
        assert reflector.wait_synced(30)
        for i in range(2):
            add(api, f"slow{i}")
        assert begun.wait(30)
        time_.sleep(64.0)
        assert reflector.age_seconds == 64.0
        assert "was not read to its end for 64 s" in Reflectors([reflector]).trouble(30.0)
        going.set()
        eventually(lambda: reflector.age_seconds == 0.0, "all is read")
        assert Reflectors([reflector]).trouble(30.0) == ""
    finally:
        going.set()
        reflector.stop()


def test_events_that_wait_in_the_connection_make_the_cache_old(api: FakeApi) -> None:
    """As many as do not fit into one piece that is read: what has come is known by the connection."""
    time_ = Time()
    seen = itertools.count()

    def trim(obj: Json) -> Json:
        if obj["metadata"]["name"] == "one":
            next(seen)
            time_.sleep(1.0)
            time.sleep(0.05)  # so that the server has sent the next ones
        return {"n": obj["metadata"]["resourceVersion"]}

    reflector = Reflector(api.cluster(), POD, trim=trim, clock=Clock(monotonic=time_.now), everywhere=True)
    reflector.start()
    try:
        assert reflector.wait_synced(30)
        ages = []
        for i in range(12):
            api.add(POD, {"metadata": {"name": "one", "uid": "one"}, "text": "x" * 100_000, "i": i}, namespace="evil")
        ends = time.monotonic() + 30
        while json.dumps(reflector.get("evil", "one")) == "null" or reflector.age_seconds > 0:
            ages.append(reflector.age_seconds)
            assert time.monotonic() < ends
            time.sleep(0.01)
        assert max(ages) >= 3.0
        assert math.isfinite(max(ages))
    finally:
        reflector.stop()

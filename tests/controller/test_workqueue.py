"""The queue of jobs to look at."""

from __future__ import annotations

import threading

from diflow.controller.workqueue import Key, WorkQueue
from tests.allocator.faults import Time, eventually


def taken(queue: WorkQueue) -> list[Key]:
    """All keys that are due, in their order; each look ends at once."""
    out: list[Key] = []
    while (key := queue.take()) is not None:
        out.append(key)
        queue.done(key)
    return out


def queue() -> tuple[WorkQueue, Time]:
    time = Time()
    return WorkQueue(clock=time.clock), time


def test_a_key_that_is_added_twice_is_looked_at_once() -> None:
    made, _ = queue()
    made.add(("a", "x"))
    made.add(("a", "x"))
    assert taken(made) == [("a", "x")]


def test_a_key_waits_for_its_time_and_the_earliest_of_several_counts() -> None:
    made, time = queue()
    made.done(("a", "x"), again=5)
    made.done(("a", "x"), again=2)
    made.done(("a", "x"), again=9)
    assert taken(made) == []
    time.move(1)
    assert taken(made) == []
    time.move(1)
    assert taken(made) == [("a", "x")]
    time.move(100)
    assert taken(made) == [], "the later times are obsolete"


def test_a_key_that_changes_during_its_look_is_looked_at_again_and_not_twice_at_a_time() -> None:
    made, _ = queue()
    made.add(("a", "x"))
    key = made.take()
    assert key == ("a", "x")
    made.add(key)
    assert made.take() is None
    made.done(key)
    assert taken(made) == [key]


def test_after_a_look_a_key_rests_whatever_happens() -> None:
    made, time = queue()
    made.add(("a", "x"))
    key = made.take()
    assert key is not None
    made.add(key)
    made.done(key, rest=1.0)
    made.add(key)
    assert taken(made) == []
    time.move(1.0)
    assert taken(made) == [key]


def test_a_namespace_with_a_thousand_jobs_delays_another_one_by_one_look() -> None:
    made, _ = queue()
    for i in range(1000):
        made.add(("many", str(i)))
    made.add(("few", "x"))
    made.add(("few", "y"))
    assert [key[0] for key in taken(made)[:4]] == ["few", "many", "few", "many"]


def test_a_deleted_key_leaves_nothing() -> None:
    made, time = queue()
    made.add(("a", "x"))
    key = made.take()
    assert key is not None
    made.done(key, rest=9.0)
    made.forget(key)
    made.add(key)
    assert taken(made) == [key]
    assert len(made) == 0
    time.move(1)
    assert taken(made) == []


def test_a_waiting_thread_gets_a_key_as_soon_as_it_is_due_and_ends_when_told() -> None:
    made, stop = WorkQueue(), threading.Event()
    found: list[Key | None] = []

    def work() -> None:
        while (key := made.pop(stop)) is not None:
            found.append(key)
            made.done(key)
        found.append(None)

    thread = threading.Thread(target=work)
    thread.start()
    made.done(("a", "x"), again=0.05)
    eventually(lambda: found == [("a", "x")], "the key was taken")
    stop.set()
    thread.join(30)
    assert found == [("a", "x"), None]


def test_a_key_that_changes_all_the_time_leaves_nothing_behind() -> None:
    time = Time()
    queue = WorkQueue(clock=time.clock)
    queue.done(("quiet", "x"), again=60.0)
    for _ in range(10_000):
        queue.add(("busy", "a"))
        assert queue.take() == ("busy", "a")
        queue.done(("busy", "a"), again=3600.0)
    assert len(queue._later) < 2_000
    time.move(61.0)
    assert queue.take() == ("quiet", "x")
    time.move(3600.0)
    assert queue.take() == ("busy", "a")

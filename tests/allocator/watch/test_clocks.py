"""The clock of the allocator's machine is set back by an hour, or is behind the others: nothing waits for that hour."""

from __future__ import annotations

import math

import numpy as np

from diflow.allocator.model.views import JobView, NodeView, RoleView, build
from diflow.allocator.watch.free_capacity import FreeCapacity
from tests.allocator import values
from tests.allocator.lab import Lab, job, lab, task

HOUR = 3600.0


def elastic(at: Lab, *, replicas: int = 2) -> None:
    at.cluster.submit(job("one", task(replicas=replicas, min_replicas=2, max_replicas=replicas), preemptible=True))
    at.until(lambda: len(at.cluster.running("one")) == min(replicas, 8), "it runs")
    at.rest(seconds=12)


def evict(at: Lab) -> None:
    at.cluster.evict(at.cluster.of("one")["worker-0"]["metadata"]["name"])
    at.until(lambda: at.cluster.parameters("one")["current"] == "2", "it begins another round")
    at.until(lambda: len(at.cluster.running("one")) == 2, "it runs again")


def test_an_evicted_replica_is_back_without_delay(at: Lab) -> None:
    elastic(at)
    at.cluster.set_back_seconds = HOUR
    evict(at)


def test_an_evicted_replica_is_back_without_delay_under_another_process(at: Lab) -> None:
    elastic(at)
    at.end()
    at.cluster.set_back_seconds = HOUR
    at.begin()
    evict(at)


def test_a_round_that_has_just_begun_is_left_alone_for_a_while_all_the_same(at: Lab) -> None:
    elastic(at)
    at.cluster.set_back_seconds = HOUR
    at.daemon.allocator.ask("a look")  # type: ignore[union-attr]
    at.step()
    began = at.time.now()
    evict(at)
    assert at.time.now() - began >= 9


def test_a_silent_node_is_lost_after_the_time_that_is_set(at: Lab) -> None:
    at.cluster.set_back_seconds = HOUR
    elastic(at, replicas=8)
    at.cluster.silence("b")
    for _ in range(55):
        at.step()
    assert not [text for reason, text in at.events("one") if reason == "NodeLost"], "it may come back"
    at.until(lambda: [text for reason, text in at.events("one") if reason == "NodeLost"], "it is lost", seconds=15)


def test_a_job_grows_when_there_is_room(at: Lab) -> None:
    elastic(at, replicas=12)
    at.cluster.set_back_seconds = HOUR
    at.cluster.node("c", cpu=4)
    at.until(lambda: len(at.cluster.running("one")) == 12, "it uses the new capacity", seconds=80)


def test_a_time_in_the_future_is_as_old_as_it_was_seen() -> None:
    capacity = FreeCapacity({}, now_seconds=1000.0, ages={5000.0: 7.0})
    assert (capacity.age(900.0), capacity.age(1000.0), capacity.age(5000.0), capacity.age(math.inf)) == (
        100.0,
        0.0,
        7.0,
        0.0,
    )
    view = JobView("a", (RoleView("w", {"cpu": 1}),), started_seconds=5000.0, changed_seconds=900.0)
    made = build([NodeView("n", {"cpu": 4})], [view], now_seconds=1000.0, ages={5000.0: 7.0})
    assert (made.job_started_seconds.tolist(), made.job_changed_seconds.tolist()) == ([993.0], [900.0])
    assert np.isfinite(made.job_service_seconds).all()


def test_nothing_is_kept_of_times_that_are_past() -> None:
    with lab() as at:
        at.cluster.node("a")
        elastic(at)
        at.cluster.set_back_seconds = HOUR
        at.step()
        assert at.daemon is not None
        allocator = at.daemon.allocator
        allocator._view.capacity(allocator.caches.state())
        assert len(allocator._view._ahead) in (1, 2)
        at.cluster.set_back_seconds = 0.0
        allocator._view.capacity(allocator.caches.state())
        assert allocator._view._ahead == {}
        assert values.capacity().age(0.0) == values.NOW

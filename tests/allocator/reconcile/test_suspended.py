"""What happens to a preemptible job of which replicas fail while its user has suspended it.

Argo records the ends of their pods, and judges them only when the job is resumed.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from diflow.allocator.settings import AllocatorSettings
from diflow.common import keys
from diflow.kube.kinds import POD
from tests.allocator.lab import Lab, job, lab, task

pytestmark = pytest.mark.usefixtures("from_memory_as_afresh")

MOVED = pytest.mark.parametrize("has_moved", [False, True], ids=["first round", "second round"])


@pytest.fixture
def at() -> Iterator[Lab]:
    with lab(settings=AllocatorSettings(writers=1, debounce_seconds=0.0, promise_seconds=60.0)) as made:
        made.cluster.node("a", cpu=4)
        yield made


def fail_while_suspended(at: Lab, *, backoff_limit: int, code: int = 3, has_moved: bool = False) -> None:
    """Both replicas fail while the job is suspended. `has_moved`: in its second round, whose pods had gates."""
    work = task(replicas=2, min_replicas=1, max_replicas=2, cpu="2")
    at.cluster.submit(job("job", work, preemptible=True, backoff_limit=backoff_limit))
    if has_moved:
        at.cluster.foreign("in-the-way", "a", cpu=2)
    at.begin()
    if has_moved:
        at.until(lambda: len(at.cluster.running("job")) == 1, "it runs with less")
        at.api.remove(POD, "in-the-way")
    at.until(lambda: len(at.cluster.running("job")) == 2, "it runs", seconds=120)
    at.cluster.suspend("job")
    at.step()
    for name in ("worker-0", "worker-1"):
        at.cluster.finish(at.cluster.of("job")[name]["metadata"]["name"], code=code)
    at.step()


def resume(at: Lab) -> None:
    at.cluster.annotate("job", held="")
    at.cluster.resume("job")


def take_its_place(at: Lab) -> None:
    """A job of higher priority needs all that it holds."""
    at.cluster.submit(job("other", task(replicas=4, cpu="1"), priority="high"))
    at.until(lambda: len(at.cluster.running("other")) == 4, "the other one runs")


def test_if_nobody_takes_its_place_it_fails_when_it_is_resumed(at: Lab) -> None:
    fail_while_suspended(at, backoff_limit=0)
    resume(at)
    at.until(lambda: at.cluster.phase("job") == "Failed", "it failed")


@MOVED
def test_it_fails_although_others_took_its_place(at: Lab, *, has_moved: bool) -> None:
    fail_while_suspended(at, backoff_limit=0, has_moved=has_moved)
    take_its_place(at)
    resume(at)
    at.until(lambda: at.cluster.phase("job") == "Failed", "it failed", seconds=120)
    assert at.cluster.running("job") == {}


def test_its_decision_and_its_event_say_why_it_failed(at: Lab) -> None:
    fail_while_suspended(at, backoff_limit=0)
    take_its_place(at)
    at.until(lambda: at.cluster.phase("job") == "Failed", "it failed")
    assert "worker-0 failed (main: Error (exit code 3))" in at.decision("job")["why"]
    assert [reason for reason, _ in at.events("job")].count("Stopped") == 1


@MOVED
def test_it_fails_although_its_place_expired(at: Lab, *, has_moved: bool) -> None:
    fail_while_suspended(at, backoff_limit=0, has_moved=has_moved)
    for _ in range(120):
        at.step()
    resume(at)
    at.until(lambda: at.cluster.phase("job") == "Failed", "it failed", seconds=120)


def test_below_its_limit_the_failure_of_the_round_is_counted_once(at: Lab) -> None:
    fail_while_suspended(at, backoff_limit=1)
    take_its_place(at)
    at.rest()
    resume(at)
    at.cluster.delete("other")
    at.until(lambda: len(at.cluster.running("job")) == 2, "it runs again", seconds=180)
    assert at.annotation("job", keys.RESTARTS_BEFORE.removeprefix("diflow/")) == "1"
    at.rest()
    at.cluster.finish(at.cluster.of("job")["worker-0"]["metadata"]["name"], code=3)
    at.until(lambda: at.cluster.phase("job") == "Failed", "its limit is used up", seconds=120)


@MOVED
def test_it_fails_although_it_is_to_have_another_size_when_it_is_resumed(at: Lab, *, has_moved: bool) -> None:
    fail_while_suspended(at, backoff_limit=0, has_moved=has_moved)
    for _ in range(120):
        at.step()
    at.cluster.foreign("in-the-way", "a", cpu=2)
    resume(at)
    at.until(lambda: at.cluster.phase("job") == "Failed", "it failed", seconds=120)


def test_what_does_not_count_is_not_counted(at: Lab) -> None:
    fail_while_suspended(at, backoff_limit=0, code=137)
    take_its_place(at)
    resume(at)
    at.rest()
    at.cluster.delete("other")
    at.until(lambda: len(at.cluster.running("job")) == 2, "it runs again", seconds=180)

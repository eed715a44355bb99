"""How often the jobs of one namespace are resized because their users ask for it: the last wish counts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest

from diflow.allocator.plan import wishes
from diflow.allocator.plan.wishes import WAITS_FOR_ITS_TURN
from diflow.allocator.watch.job import Job
from diflow.allocator.write.patches import Write
from tests.allocator.lab import Lab, job, lab, task
from tests.allocator.run.test_pace import running


@contextmanager
def resizes(at: Lab) -> Iterator[list[str]]:
    """The jobs that get another size meanwhile, once for each time; what they give back does not count."""
    assert at.daemon is not None
    executor, found = at.daemon.allocator.executor, list[str]()
    send = executor.apply

    def apply(writes: Sequence[Write], jobs: Mapping[str, Job]) -> list[Write]:
        refused = send(writes, jobs)
        done = (one for one in writes if one not in refused and one.note is not None)
        found.extend(one.job for one in done if one.note.reason == "Resized" and "released" not in one.note.message)  # type: ignore[union-attr]
        return refused

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(executor, "apply", apply)
        yield found


def some(at: Lab, count: int, *, preemptible: bool) -> list[str]:
    """Small jobs that run with one replica."""
    at.cluster.node("a", cpu=64, pods=2000)
    names = [f"small-{number:03d}" for number in range(count)]
    small = task(cpu="10m", min_replicas=1, max_replicas=1) if preemptible else task(cpu="10m")
    for name in names:
        at.cluster.submit(job(name, small, preemptible=preemptible))
    at.until(lambda: all(running(at, name) == 1 for name in names), "they run", seconds=300)
    at.rest()
    return names


def ask(at: Lab, name: str, replicas: int, *, preemptible: bool) -> None:
    if preemptible:
        at.cluster.annotate(name, bounds=json.dumps({"worker": {"min": replicas, "max": replicas}}))
    else:
        at.cluster.scale(name, worker=replicas)


@pytest.mark.slow
@pytest.mark.parametrize("preemptible", [False, True])
def test_jobs_of_a_namespace_that_change_their_minds_each_second_are_resized_at_one_pace_together(
    preemptible: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wishes, "AT_ONCE", 12)
    monkeypatch.setattr(wishes, "_EACH_SECOND", 0.2)
    with lab() as at:
        names = some(at, 12, preemptible=preemptible)
        with resizes(at) as found:
            for second in range(90):
                for number, name in enumerate(names):
                    ask(at, name, 1 + (second + number) % 3, preemptible=preemptible)
                at.step()
        assert 12 < len(found) <= 12 + 0.2 * 90 + 1
        counts = [found.count(f"default/{name}") for name in names]
        assert max(counts) <= min(counts) + 1
        for name in names:
            ask(at, name, 3, preemptible=preemptible)
        at.until(lambda: all(running(at, name) == 3 for name in names), "the last wish", seconds=180)
        at.until(lambda: not any(at.decision(n)["why"] == WAITS_FOR_ITS_TURN for n in names), "it is not said any more")
        assert at.cluster.problems == []


def test_each_of_many_jobs_may_be_resized_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wishes, "AT_ONCE", 3)
    with lab() as at:
        names = some(at, 30, preemptible=False)
        with resizes(at) as found:
            for name in names:
                ask(at, name, 2, preemptible=False)
            at.until(lambda: all(running(at, name) == 2 for name in names), "all have more", seconds=10)
        assert sorted(found) == [f"default/{name}" for name in names]


def test_who_waits_for_a_turn_is_told_and_others_of_the_namespace_get_room_for_what_they_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wishes, "AT_ONCE", 1)
    monkeypatch.setattr(wishes, "_EACH_SECOND", 1 / 120)
    with lab() as at:
        names = some(at, 1, preemptible=False)
        ask(at, names[0], 2, preemptible=False)
        at.until(lambda: running(at, names[0]) == 2, "the first wish")
        ask(at, names[0], 4, preemptible=False)
        at.until(lambda: at.decision(names[0])["why"] == WAITS_FOR_ITS_TURN, "it is said", seconds=20)
        at.cluster.evict(at.cluster.of(names[0])["worker-1"]["metadata"]["name"])
        at.until(lambda: running(at, names[0]) == 1, "a pod is lost")
        at.until(lambda: running(at, names[0]) == 2, "it is made again", seconds=60)
        ask(at, names[0], 3, preemptible=False)
        at.until(lambda: running(at, names[0]) == 3, "the last wish", seconds=180)
        assert "waits" not in at.decision(names[0])["action"]

"""Pods that have a node and do not start: the job goes on without them, or waits for other places."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from diflow.allocator.reconcile.pending import _excluded
from diflow.allocator.settings import AllocatorSettings, allocator_settings
from diflow.common.errors import InvalidError
from diflow.record.exclusions import Exclusions
from diflow.record.pod import pod_record_of
from tests.allocator.crashing import Crash
from tests.allocator.lab import Killed, Lab, job, lab, task

PENDING = 120


@pytest.fixture
def at() -> Iterator[Lab]:
    with lab() as made:
        made.cluster.node("a", cpu=2)
        made.cluster.node("b", cpu=2)
        made.cluster.broken = {"b"}
        yield made
        assert made.cluster.problems == []


@contextmanager
def usual(seconds: int) -> Iterator[Lab]:
    """As `at`, with this time for jobs that do not set one."""
    with lab(settings=AllocatorSettings(writers=1, debounce_seconds=0.0, pending_seconds=seconds)) as made:
        made.cluster.node("a", cpu=2)
        made.cluster.node("b", cpu=2)
        made.cluster.broken = {"b"}
        yield made
        assert made.cluster.problems == []


def excluded(at: Lab, name: str = "one") -> list[str]:
    given = json.loads(at.cluster.workflow(name)["metadata"]["annotations"].get("diflow/excluded-nodes", "[]"))
    return [entry["node"] for entry in given]


def messages(at: Lab, name: str = "one") -> list[str]:
    return [message for reason, message in at.events(name) if reason == "NotStarted"]


def test_a_job_that_may_shrink_goes_on_with_the_replicas_that_have_started(at: Lab) -> None:
    scales = task(replicas=4, min_replicas=2, max_replicas=4)
    at.cluster.submit(job("one", scales, preemptible=True, pending_seconds=PENDING, backoff_limit=0))
    at.until(lambda: len(at.cluster.running("one")) == 2, "two run on a")
    for _ in range(PENDING - 20):
        at.step()
    assert at.cluster.parameters("one")["current"] == "1", "not before"
    at.until(lambda: at.cluster.parameters("one")["current"] == "2", "it goes on", seconds=30)
    assert messages(at) == [
        "worker-2 on b (ContainerCreating), worker-3 on b (ContainerCreating) did not start within 2m: "
        "it goes on with 2 replicas"
    ]
    at.until(lambda: set(at.cluster.running("one").values()) == {"a"}, "both run again on a", seconds=60)
    at.rest(seconds=60)
    assert excluded(at) == ["b"]
    assert at.allocation("one") == {"worker": ["a", "a"]}
    assert at.cluster.restarts("one") == 0
    at.cluster.node("c", cpu=2)  # and it grows on another node
    at.until(lambda: sorted(at.cluster.running("one").values()) == ["a", "a", "c", "c"], "it grows", seconds=60)


def test_a_job_of_a_fixed_size_goes_back_to_the_queue_with_the_reason_and_frees_its_places(at: Lab) -> None:
    at.cluster.submit(job("one", task(replicas=4), pending_seconds=PENDING, backoff_limit=0))
    at.until(lambda: len(at.cluster.running("one")) == 2, "two run on a")
    at.cluster.submit(job("two", task(replicas=2)))
    at.until(lambda: messages(at), "it goes back", seconds=PENDING + 30)
    assert messages(at)[0].endswith("did not start within 2m: it goes back to the queue")
    at.until(lambda: at.cluster.running("two"), "another one gets the places", seconds=200)
    assert at.cluster.running("one") == {}
    at.rest(seconds=30)
    assert "did not start within 2m" in at.decision("one")["why"]
    at.cluster.node("c", cpu=4)
    at.until(lambda: set(at.cluster.running("one").values()) == {"c"}, "it runs elsewhere", seconds=60)
    assert at.cluster.restarts("one") == 0
    assert at.cluster.phase("one") == "Running"


def test_one_that_may_shrink_but_not_so_far_waits_for_other_places(at: Lab) -> None:
    scales = task(replicas=4, min_replicas=3, max_replicas=4)
    at.cluster.submit(job("one", scales, preemptible=True, pending_seconds=PENDING, backoff_limit=0))
    at.until(lambda: messages(at), "it goes back", seconds=PENDING + 60)
    assert messages(at)[0].endswith("it goes back to the queue")
    at.rest(seconds=30)
    assert at.allocation("one") == {}
    at.cluster.node("c", cpu=2)
    at.until(lambda: sorted(at.cluster.running("one").values()) == ["a", "a", "c", "c"], "it runs", seconds=60)


def test_a_replica_that_comes_back_and_does_not_start_leaves_the_others_alone() -> None:
    with lab() as at:
        at.cluster.node("a", cpu=2)
        at.cluster.node("b", cpu=2)
        at.cluster.submit(job("one", task(replicas=3), pending_seconds=PENDING))
        at.until(lambda: len(at.cluster.running("one")) == 3, "all run")
        (name,) = [name for name, node in at.cluster.running("one").items() if node == "b"]
        old = {replica: pod["metadata"]["uid"] for replica, pod in at.cluster.of("one").items() if replica != name}
        at.cluster.node("c", cpu=2)
        at.cluster.broken = {"b"}
        at.cluster.evict(at.cluster.of("one")[name]["metadata"]["name"])
        at.until(lambda: at.cluster.running("one").get(name) == "c", "it runs elsewhere", seconds=PENDING + 200)
        assert messages(at) == [f"{name} on b (ContainerCreating) did not start within 2m: placed again"]
        assert old.items() <= {r: pod["metadata"]["uid"] for r, pod in at.cluster.of("one").items()}.items()
        assert at.cluster.problems == []


@pytest.mark.slow
@pytest.mark.parametrize("preemptible", [False, True])
def test_a_job_that_starts_nowhere_does_not_move_others_again_and_again(preemptible: bool) -> None:
    names = [f"n{number:02d}" for number in range(8)]
    with lab() as at:
        for name in names:
            at.cluster.node(name, cpu=1)
        other = task(replicas=8, min_replicas=1, max_replicas=8)
        at.cluster.submit(job("other", other, preemptible=True))
        at.until(lambda: len(at.cluster.running("other")) == 8, "it runs")
        at.cluster.broken = set(names)  # of the other one, no pod is made again from here on
        at.cluster.submit(job("bad", task(), priority="high", preemptible=preemptible, pending_seconds=60))
        at.until(lambda: len(messages(at, "bad")) == 2, "it did not start twice", seconds=400)
        assert "it goes back to the queue, for 1m at least" in messages(at, "bad")[1]
        assert at.allocation("bad") == {}
        tries = []
        for _ in range(4):
            before = at.time.now()
            count = len(messages(at, "bad"))
            at.until(lambda count=count: len(messages(at, "bad")) > count, "the next try", seconds=1200)  # type: ignore[misc]
            tries.append(at.time.now() - before)
        assert all(later > sooner + 50 for sooner, later in pairwise(tries))
        assert at.cluster.problems == []


def test_when_the_nodes_are_left_out_no_more_the_tries_begin_again() -> None:
    known = Exclusions()
    pods = [replace(pod_record_of({"metadata": {"name": "p"}}), host=f"n{number}") for number in range(20)]
    for turn in range(1, 9):
        now = 1e9 + turn
        known = _excluded(known, pods[:16] if turn % 2 else pods[4:], "which", now)
        assert len(known.active(now)) == 16
        assert known.paused_until(now) == (0 if turn == 1 else now + min(1800, 60 * 2 ** (turn - 2)))
    later = max(entry.until for entry in known.entries)
    assert known.paused_until(later) == 0
    assert _excluded(known, pods[:1], "which", later).paused_until(later) == 0
    failed = Exclusions()
    for number in range(16):
        failed = failed.without(f"f{number}", reason="r", source="failure", now=1e9)
    assert _excluded(failed, pods, "which", 1e9 + 1) == failed


def test_an_edited_record_of_tries_bars_a_job_for_half_an_hour_at_most() -> None:
    for attempt in ("pending/99999", "pending/999999999", "pending/²", "pending/-1", "pending/"):
        known = Exclusions().without("a", reason="r", source="pending", now=1e9, attempts=[attempt])
        assert known.paused_until(1e9) <= 1e9 + 1800
    ahead = Exclusions().without("a", reason="r", source="pending", now=9e9, attempts=["pending/5"])
    assert ahead.paused_until(1e9) == 0
    both = ahead.without("b", reason="r", source="pending", now=1e9, attempts=["pending/5"])
    assert both.paused_until(1e9) == 1e9 + 480


def test_a_job_that_is_not_preemptible_and_does_not_ask_waits_for_its_pods() -> None:
    with usual(PENDING) as at:
        at.cluster.submit(job("one", task(replicas=4)))
        for _ in range(3 * PENDING):
            at.step()
        assert messages(at) == []
        assert len(at.cluster.running("one")) == 2


def test_a_preemptible_job_that_does_not_ask_has_the_time_of_the_allocator() -> None:
    with usual(PENDING) as at:
        scales = task(replicas=4, min_replicas=2, max_replicas=4)
        at.cluster.submit(job("one", scales, preemptible=True, backoff_limit=0))
        at.until(lambda: len(at.cluster.running("one")) == 2, "two run on a")
        for _ in range(PENDING - 20):
            at.step()
        assert at.cluster.parameters("one")["current"] == "1", "not before"
        at.until(lambda: messages(at), "it goes on", seconds=30)
        assert messages(at)[0].endswith("did not start within 2m: it goes on with 2 replicas")
        at.until(lambda: set(at.cluster.running("one").values()) == {"a"}, "both run again on a", seconds=60)
        assert at.cluster.restarts("one") == 0


@pytest.mark.parametrize(("seconds", "own"), [(0, None), (PENDING, 10 * PENDING)])
def test_without_a_usual_time_or_with_a_longer_one_of_its_own_it_waits(seconds: int, own: int | None) -> None:
    with usual(seconds) as at:
        scales = task(replicas=4, min_replicas=2, max_replicas=4)
        at.cluster.submit(job("one", scales, preemptible=True, pending_seconds=own))
        for _ in range(3 * PENDING):
            at.step()
        assert messages(at) == []
        assert at.cluster.parameters("one")["current"] == "1"


def test_the_usual_time_is_that_of_dlrovers_masters() -> None:
    assert AllocatorSettings().pending_seconds == 900


@pytest.mark.parametrize("seconds", ["59", "-1", "nan", "2147483648"])
def test_a_usual_time_that_is_out_of_bounds_is_refused(monkeypatch: pytest.MonkeyPatch, seconds: str) -> None:
    monkeypatch.setenv("DIFLOW_ALLOCATOR_PENDING_SECONDS", seconds)
    with pytest.raises(InvalidError, match="DIFLOW_ALLOCATOR_PENDING_SECONDS"):
        allocator_settings()


@pytest.mark.slow
@pytest.mark.parametrize("low", [2, 4])
def test_killed_at_any_write_it_ends_where_it_would_have_ended(low: int) -> None:
    undisturbed = Crash(at=0, is_sent=False)
    wanted = end_of(low, undisturbed)
    assert undisturbed.seen >= 3
    for is_sent in (False, True):
        for k in range(1, undisturbed.seen + 1):
            crash = Crash(at=k, is_sent=is_sent)
            assert end_of(low, crash) == wanted, f"killed {'after' if is_sent else 'before'} write {k}"


def end_of(low: int, crash: Crash) -> dict[str, Any]:
    with lab() as at:
        at.cluster.node("a", cpu=2)
        at.cluster.node("b", cpu=2)
        at.cluster.broken = {"b"}
        scales = task(replicas=4, min_replicas=low, max_replicas=4)
        at.cluster.submit(job("one", scales, preemptible=True, pending_seconds=60, backoff_limit=0))
        at.until(lambda: len(at.cluster.running("one")) == 2, "two run on a")
        assert at.daemon is not None
        at.daemon.line.before, at.daemon.line.after = crash.before, crash.after
        for _ in range(260):
            try:
                at.step()
            except Killed:
                at.end()
                at.begin()
        assert at.cluster.problems == []
        return {
            "runs": at.cluster.running("one"),
            "allocation": at.allocation("one"),
            "restarts": at.cluster.restarts("one"),
            "excluded": excluded(at),
            "phase": at.cluster.phase("one"),
        }


def pod(**status: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "p",
            "namespace": "default",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"diengine/operator": "diflow", "workflows.argoproj.io/workflow": "one"},
            "annotations": {"workflows.argoproj.io/node-name": "one.round(0:1)(0).worker(0:0)(0).worker(0)"},
        },
        "spec": {"nodeName": "a", "containers": [{"name": "main"}]},
        "status": {"phase": "Pending", **status},
    }


PULLS = {"state": {"waiting": {"reason": "ImagePullBackOff"}}}
RUNS = {"state": {"running": {"startedAt": "2026-01-01T00:01:02Z"}}}
ENDED = {"state": {"terminated": {"exitCode": 0, "finishedAt": "2026-01-01T01:00:00Z"}}}
BOUND = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:01:00Z"}]


@pytest.mark.parametrize(
    ("status", "seconds"),
    [
        ({"conditions": BOUND}, 60),
        ({}, 0),  # since its creation, if nothing else is known
        ({"conditions": BOUND, "containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]}, 60),
        ({"conditions": BOUND, "initContainerStatuses": [{"state": {"running": {"startedAt": "x"}}}]}, None),
        ({"conditions": BOUND, "phase": "Running"}, None),
        # Argo's container runs while the image of the work cannot be pulled.
        ({"conditions": BOUND, "containerStatuses": [{"name": "main", **PULLS}, {"name": "wait", **RUNS}]}, 60),
        ({"conditions": BOUND, "containerStatuses": [{"name": "main", **RUNS}, {"name": "mine", **PULLS}]}, None),
        # The time begins again when the last init container has ended.
        ({"conditions": BOUND, "initContainerStatuses": [{"name": "x", **ENDED}], "containerStatuses": [PULLS]}, 3600),
        # An init container that does not end is one beside the work.
        ({"conditions": BOUND, "initContainerStatuses": [{"name": "sidecar", **RUNS}]}, 60),
        ({"conditions": BOUND, "initContainerStatuses": [{"name": "sidecar", **RUNS}, {"name": "x", **RUNS}]}, None),
    ],
)
def test_since_when_a_pod_is_pending(status: dict[str, Any], seconds: float | None) -> None:
    created = 1_767_225_600.0
    given = pod(**status)
    given["spec"]["initContainers"] = [{"name": "sidecar", "restartPolicy": "Always"}, {"name": "x"}]
    assert pod_record_of(given).pending_since == (0.0 if seconds is None else created + seconds)


def test_why_a_pod_does_not_start_is_bounded() -> None:
    waiting = [{"state": {"waiting": {"reason": "x" * 999}}}]
    assert pod_record_of(pod(containerStatuses=waiting)).waits_for == "x" * 60
    assert pod_record_of(pod(containerStatuses=[{"state": {"waiting": {"reason": 7}}}])).waits_for == ""

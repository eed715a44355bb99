"""The allocator is killed at each single write, and the next process reaches the same final state."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from diflow import Task
from diflow.allocator.settings import AllocatorSettings
from diflow.record.exclusions import Exclusions
from tests.allocator.crashing import Crash
from tests.allocator.fakeargo import is_gated
from tests.allocator.lab import Killed, Lab, job, lab, task

Play = Callable[[Lab], None]


def end_of(prepare: Play, scenes: list[Play], crash: Crash, *, lag_seconds: float = 0.0) -> dict[str, Any]:
    """Run the scenario with one crash, and return the final state.

    `lag_seconds`: the age of Argo's copies of the Workflows.
    """
    settings = AllocatorSettings(writers=1, debounce_seconds=0.0, between_rounds_seconds=3.0, lost_after_seconds=0.0)
    with lab(settings=settings) as at:
        at.cluster.node("a", cpu=4)
        at.cluster.node("b", cpu=4)
        prepare(at)
        at.rest(seconds=6)
        assert at.daemon is not None
        at.daemon.line.before, at.daemon.line.after = crash.before, crash.after
        at.cluster.lag_seconds = lag_seconds
        for scene in scenes:
            scene(at)
            rest_through_crashes(at, seconds=7 + int(lag_seconds))
        assert at.cluster.problems == []
        return {
            name: state(at, name)
            for name in sorted(at.api.objects["/apis/argoproj.io/v1alpha1/namespaces/default/workflows"])
        }


def rest_through_crashes(at: Lab, *, seconds: int = 15) -> None:
    """Let everything come to rest; a daemon that is killed is replaced by a new one."""
    while True:
        try:
            at.rest(seconds=seconds)
            return
        except Killed:
            at.end()
            at.begin()


def state(at: Lab, name: str) -> dict[str, Any]:
    """The state of one job, without the names of its rounds and which of two equal nodes it has."""
    parameters = {key: json.loads(value) for key, value in at.cluster.parameters(name).items()}
    current = str(parameters["current"])
    pods = at.cluster.of(name)
    return {
        "phase": at.cluster.phase(name),
        "restarts": at.cluster.restarts(name),
        "runs": at.cluster.running(name),
        "waits": sorted(replica for replica, pod in pods.items() if is_gated(pod)),
        "pods": len(pods),
        "rounds": len(parameters["rounds"]),
        "granted": parameters["granted"][current],
        "released": parameters["released"],
        "incarnations": sorted(parameters["incarnations"]),
        "allocation": at.allocation(name),
        "memory": parameters.get("memory"),
        "excluded": [entry.node for entry in Exclusions.parse(at.annotation(name, "excluded-nodes")).entries],
        "decision": at.decision(name).get("action"),
    }


def nothing(_: Lab) -> None:
    """No object exists at first."""


def two_arrive(at: Lab) -> None:
    at.cluster.submit(job("fixed", task("head"), task("worker", replicas=2)))
    at.cluster.submit(_elastic(low=2, replicas=9))


def _elastic(*, low: int, replicas: int) -> Any:
    scales = task("worker", replicas=replicas, min_replicas=low, max_replicas=replicas)
    return job("elastic", scales, preemptible=True, backoff_limit=0)


def fixed(at: Lab) -> None:
    at.cluster.submit(job("fixed", task("head"), task("worker", replicas=4), backoff_limit=0))


def scale(worker: int) -> Play:
    return lambda at: at.cluster.scale("fixed", worker=worker)


def elastic(at: Lab) -> None:
    at.cluster.submit(job("elastic", task(replicas=6, cpu="2", min_replicas=2, max_replicas=6), preemptible=True,
                          backoff_limit=0))  # fmt: skip


def more_capacity(at: Lab) -> None:
    at.cluster.node("c", cpu=4)


def less_capacity(at: Lab) -> None:
    at.cluster.remove_node("a")


def urgent(at: Lab) -> None:
    at.cluster.submit(job("urgent", task(replicas=2, cpu="3"), priority="high"))


def urgent_ends(at: Lab) -> None:
    for pod in at.cluster.of("urgent").values():
        at.cluster.finish(pod["metadata"]["name"])


def failing(at: Lab) -> None:
    at.cluster.submit(job("elastic", task(replicas=3), preemptible=True, backoff_limit=1))


def one_fails(at: Lab) -> None:
    at.cluster.finish(at.cluster.of("elastic")["worker-1"]["metadata"]["name"], code=1)


def one_is_evicted(at: Lab) -> None:
    for _ in range(4):
        at.step()
    at.cluster.evict(at.cluster.of("elastic")["worker-1"]["metadata"]["name"])


def policy(*, preemptible: bool) -> Play:
    """A job with a failure policy, which needs more memory than it has at first if it runs out of it."""

    def submit(at: Lab) -> None:
        amounts = {"cpu": "1", "memory": "1Gi"}
        container = {"name": "di-container", "image": "x", "resources": {"requests": amounts}}
        one = Task(name="worker", replicas=3, template={"spec": {"containers": [container]}})
        at.cluster.submit(job("elastic", one, preemptible=preemptible, backoff_limit=1, failure_policy={}))

    return submit


def exits(code: int, *, peer: int | None = None) -> Play:
    def end(at: Lab) -> None:
        pods = at.cluster.of("elastic")
        at.cluster.finish(pods["worker-1"]["metadata"]["name"], code=code)
        if peer is not None:
            at.cluster.finish(pods["worker-2"]["metadata"]["name"], code=peer)

    return end


PLAYS: dict[str, tuple[Play, list[Play]]] = {
    "admission": (nothing, [two_arrive]),
    "fewer replicas and more": (fixed, [scale(1), scale(3)]),
    "growth of a preemptible job": (elastic, [more_capacity]),
    "a node is gone": (elastic, [less_capacity]),
    "preemption and return": (elastic, [urgent, urgent_ends]),
    "a failed replica": (failing, [one_fails]),
    "a replica that was taken away": (failing, [one_is_evicted]),
    "a node that is left out": (policy(preemptible=False), [exits(201)]),
    "a node that is left out, of a job that moves as a whole": (policy(preemptible=True), [exits(201, peer=1)]),
    "more memory": (nothing, [policy(preemptible=False), exits(247)]),
    "more memory, of a job that moves as a whole": (policy(preemptible=True), [exits(247, peer=1)]),
}


@pytest.mark.slow
@pytest.mark.parametrize("play", PLAYS)
def test_killed_at_any_write_it_ends_where_it_would_have_ended(play: str) -> None:
    prepare, scenes = PLAYS[play]
    undisturbed = Crash(at=0, is_sent=False)
    wanted = end_of(prepare, scenes, undisturbed)
    assert undisturbed.seen >= 4
    for is_sent in (False, True):
        for k in range(1, undisturbed.seen + 1):
            crash = Crash(at=k, is_sent=is_sent)
            assert end_of(prepare, scenes, crash) == wanted, f"killed {'after' if is_sent else 'before'} write {k}"
            assert crash.seen >= k

"""Argo may evaluate the end of a pod with a stale copy of the Workflow: no stop by the allocator counts as a failure.

Argo's watches of pods and Workflows are independent. So it may see the end of a pod that the allocator has stopped
before the decision in the Workflow, and then the pod's message has to be enough.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from diflow.allocator.settings import AllocatorSettings
from diflow.kube.kinds import WORKFLOW
from tests.allocator.crashing import Crash
from tests.allocator.lab import Lab, job, lab, task
from tests.allocator.reconcile.test_successor import elastic as long
from tests.allocator.reconcile.test_successor import finish, move, newest, small, until_runs
from tests.allocator.run.test_crashes import (
    PLAYS,
    Play,
    elastic,
    end_of,
    failing,
    fixed,
    less_capacity,
    more_capacity,
    one_fails,
    scale,
    urgent,
    urgent_ends,
)
from tests.allocator.run.test_scenarios import ends, runs

# Shorter and longer than a pod's grace period of 3 s and the second after which Argo evaluates its end.
LAGS = (2.0, 9.0)


@pytest.fixture
def at() -> Iterator[Lab]:
    """One node of four CPUs, and an allocator that leads."""
    with lab(settings=AllocatorSettings(writers=1, debounce_seconds=0.0, between_rounds_seconds=3.0)) as made:
        made.cluster.node("only", cpu=4)
        yield made
        assert made.cluster.problems == []


def low(*, backoff_limit: int = 0, **fields: Any) -> Any:
    scales = task(replicas=4, min_replicas=2, max_replicas=4)
    return job("low", scales, preemptible=True, backoff_limit=backoff_limit, **fields)


@pytest.mark.parametrize("lag", LAGS)
@pytest.mark.parametrize("backoff_limit", [0, 1])
def test_a_job_that_gives_way_and_comes_back_has_not_failed(at: Lab, lag: float, backoff_limit: int) -> None:
    at.cluster.submit(low(backoff_limit=backoff_limit))
    runs(at, "low", 4)
    at.cluster.lag_seconds = lag
    at.cluster.submit(job("high", task(replicas=4), priority="high"))
    runs_at_last(at, "high", 4)
    at.rest()
    assert len(at.cluster.of("low")) == 2, "its least number waits"
    ends(at, "high")
    runs_at_last(at, "low", 4)
    ends(at, "low")
    assert at.cluster.restarts("low") == 0


@pytest.mark.parametrize("lag", LAGS)
@pytest.mark.parametrize("backoff_limit", [0, 1])
def test_a_job_that_gives_replicas_up_has_not_failed(at: Lab, lag: float, backoff_limit: int) -> None:
    at.cluster.submit(job("fixed", task(replicas=4), backoff_limit=backoff_limit))
    runs(at, "fixed", 4)
    at.cluster.lag_seconds = lag
    at.cluster.scale("fixed", worker=1)
    runs_at_last(at, "fixed", 1)
    at.rest(seconds=20)
    assert json.loads(at.cluster.parameters("fixed")["granted"]) == {"1": {"worker": 1}}
    at.cluster.scale("fixed", worker=3)
    runs_at_last(at, "fixed", 3)
    ends(at, "fixed")
    assert at.cluster.restarts("fixed") == 0


@pytest.mark.parametrize("lag", LAGS)
def test_a_round_that_starts_again_together_counts_once(at: Lab, lag: float) -> None:
    at.cluster.submit(low(backoff_limit=2))
    runs(at, "low", 4)
    before = {pod["metadata"]["uid"] for pod in at.cluster.pods()}
    at.cluster.lag_seconds = lag
    at.cluster.finish(at.cluster.of("low")["worker-2"]["metadata"]["name"], code=1)
    at.until(lambda: not before & {pod["metadata"]["uid"] for pod in at.cluster.pods()}, "all are ended")
    runs_at_last(at, "low", 4)
    assert at.cluster.parameters("low")["current"] == "1", "a restart is inside the same round"
    assert at.cluster.restarts("low") == 1
    ends(at, "low")
    assert at.cluster.restarts("low") == 1


@pytest.mark.parametrize("lag", LAGS)
def test_a_job_that_goes_on_in_another_workflow_has_not_failed(lag: float) -> None:
    with small() as at:
        at.cluster.submit(long(backoff_limit=0))
        until_runs(at)
        at.cluster.lag_seconds = lag
        while newest(at) == "long":
            move(at)
        until_runs(at)
        finish(at)
        assert at.cluster.phase("long") == at.cluster.phase("long-s2") == "Succeeded"
        assert at.cluster.restarts("long") == at.cluster.restarts("long-s2") == 0


def test_a_job_of_an_older_diflow_that_waits_does_not_fail_when_it_is_admitted(at: Lab) -> None:
    at.cluster.submit(job("high", task(replicas=4), priority="high"))
    runs(at, "high", 4)
    at.cluster.submit(low())
    _as_of_an_older_diflow(at, "low")
    at.rest()
    at.cluster.lag_seconds = LAGS[0]
    ends(at, "high")
    runs_at_last(at, "low", 4)
    ends(at, "low")


def test_a_round_of_an_older_diflow_starts_again_together(at: Lab) -> None:
    at.cluster.submit(low(backoff_limit=1))
    _as_of_an_older_diflow(at, "low")
    runs(at, "low", 4)
    at.cluster.finish(at.cluster.of("low")["worker-2"]["metadata"]["name"], code=1)
    at.until(lambda: at.cluster.restarts("low") == 1, "the round starts again")
    runs(at, "low", 4)
    ends(at, "low")
    assert at.cluster.restarts("low") == 1


def one_finishes(at: Lab) -> None:
    at.cluster.finish(at.cluster.of("elastic")["worker-1"]["metadata"]["name"])


def all_finish(at: Lab) -> None:
    at.cluster.hurry()


def small_urgent(at: Lab) -> None:
    at.cluster.submit(job("urgent", task(cpu="3"), priority="high"))


def at_once(*scenes: Play) -> Play:
    def play(at: Lab) -> None:
        for scene in scenes:
            scene(at)

    return play


ORDERS: dict[str, tuple[Play, list[Play]]] = {
    **PLAYS,
    "some have finished before others are wanted elsewhere": (elastic, [one_finishes, urgent, all_finish, all_finish]),
    "one finishes as it gives way": (elastic, [at_once(one_finishes, urgent), all_finish, all_finish]),
    "one fails as it gives way": (failing, [at_once(one_fails, urgent), urgent_ends]),
    "its node goes as it gives way": (elastic, [at_once(less_capacity, small_urgent), urgent_ends]),
    "it waits, and gets other nodes": (elastic, [urgent, more_capacity, urgent_ends]),
    "one that is released finishes": (fixed, [at_once(all_finish, scale(1))]),
}


@pytest.mark.parametrize("play", ORDERS)
def test_an_argo_that_lags_behind_ends_where_another_would(play: str) -> None:
    prepare, scenes = ORDERS[play]
    wanted = end_of(prepare, scenes, Crash(at=0, is_sent=False))
    for lag in LAGS:
        got = end_of(prepare, scenes, Crash(at=0, is_sent=False), lag_seconds=lag)
        for name, state in wanted.items():
            for key in ("phase", "restarts", "runs", "waits", "granted", "allocation"):
                assert got[name][key] == state[key], f"{key} of {name}, when Argo is {lag:g} s late"


@pytest.mark.slow
def test_killed_at_any_write_of_a_restart_while_argo_is_late_it_ends_where_it_would_have_ended() -> None:
    prepare, scenes = PLAYS["a failed replica"]
    undisturbed = Crash(at=0, is_sent=False)
    wanted = end_of(prepare, scenes, undisturbed, lag_seconds=LAGS[0])
    assert undisturbed.seen >= 4
    for is_sent in (False, True):
        for k in range(1, undisturbed.seen + 1):
            got = end_of(prepare, scenes, Crash(at=k, is_sent=is_sent), lag_seconds=LAGS[0])
            assert got == wanted, f"killed {'after' if is_sent else 'before'} write {k}"


def runs_at_last(at: Lab, of: str, count: int) -> None:
    """As `runs`, with more time, as each step of Argo is late."""
    at.until(
        lambda: len(at.cluster.running(of)) == count == len(at.cluster.of(of)), f"{count} of {of} run", seconds=150
    )


def _as_of_an_older_diflow(at: Lab, name: str) -> None:
    """The retry expression of its pods does not know stops."""

    def change(template: dict[str, Any]) -> dict[str, Any]:
        strategy = template.get("retryStrategy") or {}
        if "lastRetry.message" not in strategy.get("expression", ""):
            return template
        older = strategy["expression"].split(" || (lastRetry.message matches '^Pod was active", 1)
        assert len(older) == 2
        return {**template, "retryStrategy": {**strategy, "expression": f"{older[0]})"}}

    obj = at.cluster.workflow(name)
    templates = [change(template) for template in obj["spec"]["templates"]]
    at.api.add(WORKFLOW, {**obj, "spec": {**obj["spec"], "templates": templates}})

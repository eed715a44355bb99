"""Gangs that kube-scheduler refuses, for reasons that the allocator does not know: all or nothing, in its own words."""

from __future__ import annotations

from typing import Any

import pytest

from diflow.allocator.settings import AllocatorSettings
from tests.reports.lab import UsersLab, job, lab, task
from tests.reports.scheduler import World
from tests.reports.test_scheduler import nodes

Json = dict[str, Any]
DEVICE = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]}
CLAIM = {"resources": {"claims": [{"name": "gpu"}], "limits": {"cpu": "1"}}}


OFTEN = AllocatorSettings(writers=1, debounce_seconds=0.0, reading_share=100.0, longest_pause_seconds=240.0)


def with_devices(at: UsersLab, *counts: int) -> None:
    for n, count in enumerate(counts):
        at.cluster.machine(f"n{n}", devices=count)


@pytest.mark.parametrize("preemptible", [False, True], ids=["fixed", "preemptible"])
def test_a_gang_with_claims_of_devices_is_let_go_as_a_whole_and_starts_at_once(*, preemptible: bool) -> None:
    with lab() as at:
        with_devices(at, 2, 2)
        made = task(replicas=4, spec=DEVICE, container=CLAIM)
        if preemptible:
            made = made.model_copy(update={"min_replicas": 4, "max_replicas": 4})
        at.cluster.submit(job("a", made, preemptible=preemptible))
        course = at.watch("a", seconds=60)["a"]
        assert at.allocation("a")["worker"] == [at.running("a")[f"worker-{index}"] for index in range(4)]
    assert course.since(4) <= 5.0
    assert course.begins_whole(4)
    assert (course.rounds, course.restarts) == (1, 0)
    assert at.cluster.problems == []


@pytest.mark.parametrize("preemptible", [False, True], ids=["fixed", "preemptible"])
def test_a_gang_that_does_not_fit_goes_back_as_a_whole_and_pauses_longer_each_time(*, preemptible: bool) -> None:
    with lab(settings=OFTEN) as at:
        with_devices(at, 2, 1)
        made = task(replicas=4, spec=DEVICE, container=CLAIM)
        if preemptible:
            made = made.model_copy(update={"min_replicas": 4, "max_replicas": 4})
        at.cluster.submit(job("a", made, preemptible=preemptible))
        course = at.watch("a", seconds=70)["a"]
        assert course.running[-1][1] == 0
        assert course.says(
            'kube-scheduler says "0/2 nodes are available: 2 cannot allocate all claims', "tried again in 1m"
        )
        assert not course.says("grows")
        course = at.watch("a", seconds=600)["a"]
        assert len([reason for reason, _ in course.events if reason == "Refused"]) <= 5
        assert course.restarts == 0
        assert course.rounds <= 6
        at.cluster.machine("n2", devices=1)
        course = at.watch("a", seconds=310)["a"]
    assert course.running[-1][1] == 4
    assert at.cluster.problems == []


def test_an_elastic_gang_goes_on_with_the_replicas_that_are_bound() -> None:
    """As many as there are devices for; it tries to grow again after longer and longer pauses."""
    with lab(settings=OFTEN) as at:
        with_devices(at, 2, 2)
        made = task(replicas=8, spec=DEVICE, container=CLAIM)
        made = made.model_copy(update={"min_replicas": 2, "max_replicas": 8})
        at.cluster.submit(job("a", made, preemptible=True))
        course = at.watch("a", seconds=90)["a"]
        assert course.running[-1][1] == 4
        assert course.says("it goes on with 4 replicas", "cannot allocate all claims")
        course = at.watch("a", seconds=600)["a"]
        assert course.rounds <= 10
        assert course.restarts == 0
        at.cluster.machine("n2", devices=4)
        course = at.watch("a", seconds=310)["a"]
    assert course.running[-1][1] == 8


def test_others_do_not_wait_for_it() -> None:
    with lab() as at:
        with_devices(at, 1, 1)
        at.cluster.submit(job("never", task(replicas=4, spec=DEVICE, container=CLAIM), priority="high"))
        at.watch("never", seconds=65)
        at.cluster.submit(job("innocent", task(replicas=2, ask={"cpu": "8"})))
        course = at.watch("innocent", seconds=30)["innocent"]
    assert course.since(2) <= 5.0


def test_a_pinned_gang_that_is_refused_is_tried_again_where_kube_scheduler_chooses() -> None:
    """By a rule that nobody here knows: the first two nodes refuse everything."""
    with lab() as at:
        nodes(at, 4)
        at.cluster.refuses = {"n0", "n1"}
        at.cluster.submit(job("a", task(replicas=2, ask={"cpu": "8"})))
        course = at.watch("a", seconds=100)["a"]
    assert set(course.where.values()) == {"n2", "n3"}
    assert course.begins_whole(2)
    assert course.since(2) <= 75.0
    assert course.says("kube-scheduler says", "2 node(s) were refused", "on nodes that kube-scheduler chooses")
    assert course.restarts == 0


def test_a_refused_replacement_of_one_replica_leaves_the_others_alone() -> None:
    with lab() as at:
        nodes(at, 3, cpu="1")
        at.cluster.submit(job("a", task(replicas=2)))
        at.watch("a", seconds=60)
        kept = at.running("a")["worker-0"]
        lost = next(name for name, pod in at.cluster.of("a").items() if pod["spec"]["nodeName"] != kept)
        at.cluster.refuses = {at.running("a")[lost]}
        at.cluster.evict(at.cluster.of("a")[lost]["metadata"]["name"])
        course = at.watch("a", seconds=200)["a"]
    assert min(count for _, count in course.running) == 1
    assert course.running[-1][1] == 2
    assert not course.says("grows")


@pytest.mark.parametrize("name", ["volcano", "nobody"])
def test_the_rules_of_another_scheduler_count(name: str) -> None:
    def only_last(pod: Json, node: Json, world: World) -> str:
        del pod, world
        return "" if node["metadata"]["name"] in ("n2", "n3") else "node(s) are not in the pod group"

    with lab() as at:
        nodes(at, 4, cpu="1")
        at.cluster.others["volcano"] = only_last
        at.cluster.silent_schedulers = {"nobody"}
        at.cluster.submit(job("a", task(replicas=2, spec={"schedulerName": name})))
        course = at.watch("a", seconds=20 if name == "volcano" else 700)["a"]
    if name == "volcano":
        assert sorted(course.where.values()) == ["n2", "n3"]
        assert course.since(2) <= 5.0
    else:
        assert course.says("does the scheduler that they name run?")


def test_the_time_is_a_setting() -> None:
    settings = AllocatorSettings(writers=1, debounce_seconds=0.0, reading_share=100.0, bind_seconds=10.0)
    with lab(settings=settings) as at:
        with_devices(at, 0)
        at.cluster.submit(job("a", task(spec=DEVICE, container=CLAIM)))
        course = at.watch("a", seconds=20)["a"]
    assert course.says("not bound within 10s")

"""Nodes whose label kubernetes.io/hostname is not their name, as on some clouds and with Karpenter's kwok provider."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.reports.lab import UsersLab, job, lab, task


@pytest.fixture
def at() -> Iterator[UsersLab]:
    with lab() as made:
        for index in range(4):
            made.cluster.machine(f"n{index}.internal", cpu="4", labels={"kubernetes.io/hostname": f"host-{index}"})
        yield made


def test_a_gang_starts_whole_on_the_nodes_that_were_chosen(at: UsersLab) -> None:
    at.cluster.submit(job("a", task(replicas=4, ask={"cpu": "3"})))
    course = at.watch("a", seconds=8)["a"]
    assert course.begins_whole(4)
    assert sorted(course.where.values()) == [f"n{index}.internal" for index in range(4)]
    assert sorted(at.allocation("a")["worker"]) == sorted(course.where.values())
    assert course.rounds == 1
    assert at.cluster.refused == {}


def test_a_replica_that_is_lost_comes_back(at: UsersLab) -> None:
    at.cluster.submit(job("a", task(replicas=3, ask={"cpu": "3"})))
    at.until(lambda: len(at.running("a")) == 3, "it runs")
    at.cluster.evict(at.cluster.of("a")["worker-1"]["metadata"]["name"])
    at.until(lambda: len(at.running("a")) < 3, "one is lost")
    at.until(lambda: len(at.running("a")) == 3, "it runs again")
    assert at.cluster.refused == {}


def test_an_elastic_job_moves_and_shares_the_nodes_with_another(at: UsersLab) -> None:
    at.cluster.submit(job("a", task(replicas=4, min_replicas=2, max_replicas=4, ask={"cpu": "3"}), preemptible=True))
    at.until(lambda: len(at.running("a")) == 4, "it runs")
    at.cluster.submit(job("b", task(replicas=2, ask={"cpu": "3"}), priority="high"))
    at.until(lambda: len(at.running("b")) == 2 and len(at.running("a")) == 2, "both run", seconds=90)
    assert at.cluster.refused == {}

"""Quotas of namespaces: a gang for which there is no room waits whole."""

from __future__ import annotations

import pytest

from tests.reports.lab import job, lab, task
from tests.reports.test_scheduler import nodes


@pytest.mark.parametrize("hard", [{"pods": "2"}, {"cpu": "2"}], ids=["pods", "cpu"])
@pytest.mark.parametrize("preemptible", [False, True], ids=["fixed", "preemptible"])
def test_a_quota_with_room_for_part_of_a_gang_starts_none_of_it(hard: dict[str, str], *, preemptible: bool) -> None:
    with lab() as at:
        nodes(at, 4)
        at.cluster.resource_quota("team", **hard)
        made = task(replicas=4)
        if preemptible:
            made = made.model_copy(update={"min_replicas": 4, "max_replicas": 4})
        at.cluster.submit(job("a", made, preemptible=preemptible))
        course = at.watch("a", seconds=60)["a"]
        assert at.cluster.of("a") == {}
        assert course.most == 0
        assert course.says("the quota team of its namespace has no room for all of its pods")
        at.cluster.resource_quota("team", **dict.fromkeys(hard, "4"))
        course = at.watch("a", seconds=10)["a"]
    assert course.since(4) <= 5.0
    assert course.begins_whole(4)
    assert course.restarts == 0


def test_a_gang_starts_when_pods_of_another_job_end() -> None:
    with lab() as at:
        nodes(at, 4)
        at.cluster.resource_quota("team", pods="4")
        at.cluster.submit(job("a", task(replicas=3)))
        at.until(lambda: len(at.running("a")) == 3, "it runs")
        at.cluster.submit(job("b", task(replicas=2)))
        at.cluster.submit(job("c", task(replicas=1)))
        courses = at.watch("b", "c", seconds=30)
        assert (courses["b"].most, courses["c"].most) == (0, 1), "nobody waits for the gang that has no room"
        at.cluster.delete("a")
        assert at.watch("b", seconds=30)["b"].begins_whole(2)
        assert len(at.running("b")) == 2


def test_a_full_quota_is_asked_again_as_soon_as_it_has_room() -> None:
    """The dry run is refused as long as no pod fits."""
    with lab() as at:
        nodes(at, 4)
        at.cluster.resource_quota("team", pods="3")
        at.cluster.submit(job("a", task(replicas=3)))
        at.until(lambda: len(at.running("a")) == 3, "it runs")
        at.cluster.submit(job("b", task(replicas=2, ask={"cpu": "2"})))
        assert at.watch("b", seconds=200)["b"].says("exceeded quota")
        at.cluster.delete("a")
        at.until(lambda: not at.cluster.of("a"), "its pods are gone")
        assert at.watch("b", seconds=20)["b"].since(2) <= 10.0


def test_of_two_gangs_that_fit_alone_one_starts_at_a_time() -> None:
    with lab() as at:
        at.cluster.resource_quota("team", pods="5")
        at.cluster.submit(job("a", task(replicas=3)))
        at.cluster.submit(job("b", task(replicas=3)))
        at.watch("a", "b", seconds=10)
        nodes(at, 4)
        courses = at.watch("a", "b", seconds=60)
        assert sorted(course.most for course in courses.values()) == [0, 3]
        assert courses["a"].begins_whole(3)
        assert courses["b"].begins_whole(3)
        at.cluster.delete("a")
        assert at.watch("b", seconds=30)["b"].since(3) <= 30.0


def test_an_elastic_job_takes_what_the_quota_leaves() -> None:
    with lab() as at:
        nodes(at, 4)
        at.cluster.resource_quota("team", pods="3")
        made = task(replicas=4, min_replicas=2, max_replicas=4)
        at.cluster.submit(job("a", made, preemptible=True))
        course = at.watch("a", seconds=60)["a"]
        assert course.most == 3
        assert course.rounds == 1
        at.cluster.resource_quota("team", pods="4")
        assert at.watch("a", seconds=60)["a"].most == 4


def test_other_namespaces_have_their_own_quotas() -> None:
    with lab(namespaces=("default", "other")) as at:
        nodes(at, 4)
        at.cluster.resource_quota("team", pods="1", namespace="other")
        at.cluster.submit(job("a", task(replicas=2)))
        assert at.watch("a", seconds=10)["a"].since(2) <= 5.0

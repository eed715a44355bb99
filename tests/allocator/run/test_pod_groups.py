"""Gangs have PodGroups where admission puts their pods into one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from diflow.allocator.run.pod_groups import MOST_WRITES
from diflow.kube.kinds import POD_GROUP
from tests.kube.fakeapi import status
from tests.reports.cluster import UsersCluster
from tests.reports.lab import UsersLab, job, lab, task

Json = dict[str, Any]


def in_group(pod: Json) -> Json:
    """What admission makes of a pod of a gang: manifests/podgroups, and Argo of the priority."""
    name = pod["metadata"]["labels"]["workflows.argoproj.io/workflow"]
    more = {"schedulingGroup": {"podGroupName": name}, "priorityClassName": "diflow-normal"}
    return {**pod, "spec": {**pod["spec"], **more}}


@pytest.fixture
def at() -> Iterator[UsersLab]:
    with lab() as made:
        made.cluster.mutate = in_group
        made.cluster.knows_groups = True
        for index in range(4):
            made.cluster.machine(f"n{index}", cpu="4")
        yield made


def groups(at: UsersLab, namespace: str = "default") -> dict[str, int]:
    with at.api.changed:
        found = dict(at.api.objects.get(POD_GROUP.path(namespace), {}))
    return {name: group["spec"]["schedulingPolicy"]["gang"]["minCount"] for name, group in found.items()}


def is_whole(at: UsersLab, name: str, count: int) -> bool:
    return len(at.running(name)) == count


def test_a_gang_gets_its_group_and_starts(at: UsersLab) -> None:
    at.cluster.submit(job("a", task(replicas=4)))
    course = at.watch("a", seconds=6)["a"]
    assert course.begins_whole(4)
    assert course.most == 4
    assert groups(at) == {"a": 4}
    (group,) = at.api.objects[POD_GROUP.path("default")].values()
    assert group["metadata"]["ownerReferences"][0]["uid"] == at.cluster.workflow("a")["metadata"]["uid"]


def test_the_group_of_an_elastic_job_is_its_minimum(at: UsersLab) -> None:
    at.cluster.submit(job("a", task(replicas=2, min_replicas=2, max_replicas=4), preemptible=True))
    at.until(lambda: is_whole(at, "a", 4), "it runs")
    assert groups(at) == {"a": 2}


def test_a_gang_whose_other_replicas_have_finished_restarts_the_last_one(at: UsersLab) -> None:
    at.cluster.submit(job("a", task(replicas=3)))
    at.until(lambda: is_whole(at, "a", 3), "it runs")
    names = sorted(at.cluster.of("a"))
    for name in names[:2]:
        at.cluster.finish(at.cluster.of("a")[name]["metadata"]["name"])
    at.until(lambda: len(at.running("a")) == 1, "two have finished")
    at.cluster.evict(at.cluster.of("a")[names[2]]["metadata"]["name"])
    at.until(lambda: not at.running("a"), "the last one is lost")
    at.until(lambda: len(at.running("a")) == 1, "it runs again")
    assert groups(at) == {"a": 1}


def test_jobs_without_groups_have_none(at: UsersLab) -> None:
    at.cluster.mutate = lambda pod: pod
    at.cluster.submit(job("a", task(replicas=2)))
    at.until(lambda: is_whole(at, "a", 2), "it runs")
    assert groups(at) == {}


def test_a_group_that_cannot_be_made_is_tried_again(at: UsersLab) -> None:
    at.api.fail(status(403, "forbidden"), method="POST", path="podgroups")
    at.cluster.submit(job("a", task(replicas=2)))
    at.watch("a", seconds=5)
    assert not at.running("a")
    at.until(lambda: is_whole(at, "a", 2), "it runs", seconds=60)


def test_a_group_that_somebody_deleted_is_made_again(at: UsersLab) -> None:
    at.cluster.submit(job("a", task(replicas=2)))
    at.until(lambda: is_whole(at, "a", 2), "it runs")
    at.api.remove(POD_GROUP, "a")
    name = next(iter(at.cluster.of("a").values()))["metadata"]["name"]
    at.cluster.evict(name)
    at.until(lambda: not is_whole(at, "a", 2), "one is lost")
    at.until(lambda: is_whole(at, "a", 2), "it runs again", seconds=180)


def test_many_gangs_are_written_in_turns(at: UsersLab) -> None:
    for index in range(8):
        at.cluster.machine(f"m{index}", cpu="16")
    for index in range(MOST_WRITES + 5):
        at.cluster.submit(job(f"a{index}", task(replicas=2)))
    at.until(lambda: all(is_whole(at, f"a{index}", 2) for index in range(MOST_WRITES + 5)), "all run")
    assert len(groups(at)) == MOST_WRITES + 5


def test_a_part_of_a_gang_is_never_bound(at: UsersLab) -> None:
    """The allocator does not know what kube-scheduler refuses here."""
    at.cluster.others["x"] = lambda _pod, node, _world: "" if node["metadata"]["name"] in ("n0", "n1") else "not here"
    bare = {"schedulerName": "x"}
    at.cluster.submit(job("a", task(replicas=4, spec=bare, ask={"cpu": "3"})))
    course = at.watch("a", seconds=90)["a"]
    assert course.most == 0
    assert isinstance(at.cluster, UsersCluster)

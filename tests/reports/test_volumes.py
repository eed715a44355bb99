"""Gangs whose claims can be mounted on some nodes alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kube.fakeapi import status
from tests.reports.lab import UsersLab, job, lab, task
from tests.reports.test_scheduler import nodes, zones_of

Json = dict[str, Any]
DATA = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}
MOUNT = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}


def submit(at: UsersLab, replicas: int, cpu: str = "1", **fields: Any) -> None:
    at.cluster.submit(job("a", task(replicas=replicas, spec=DATA, container=MOUNT, ask={"cpu": cpu}), **fields))


def test_a_gang_is_in_the_zone_of_its_volume() -> None:
    with lab() as at:
        nodes(at, 12, zones=3, cpu="1")
        at.cluster.volume("disk", zone="z2")
        at.cluster.claim("data", volume="disk")
        submit(at, 4)
        course = at.watch("a", seconds=10)["a"]
        assert zones_of(at, course.where.values()) == {"z2": 4}
    assert course.begins_whole(4)
    assert at.cluster.refused == {}


def test_a_gang_is_on_the_node_of_a_local_volume() -> None:
    with lab() as at:
        nodes(at, 4)
        at.cluster.volume("disk", node="n2")
        at.cluster.claim("data", volume="disk")
        submit(at, 3)
        assert set(at.watch("a", seconds=10)["a"].where.values()) == {"n2"}


def test_a_claim_that_waits_for_its_first_consumer_is_where_its_class_makes_volumes() -> None:
    with lab() as at:
        nodes(at, 6, zones=3)
        at.cluster.storage_class("zonal", zones=("z1",))
        at.cluster.claim("data", storage="zonal")
        submit(at, 2, "8")
        course = at.watch("a", seconds=15)["a"]
        assert zones_of(at, course.where.values()) == {"z1": 2}
    assert at.cluster.refused == {}


def test_all_that_mount_a_claim_of_one_node_are_on_one() -> None:
    with lab() as at:
        nodes(at, 3)
        at.cluster.volume("disk")
        at.cluster.claim("data", "ReadWriteOnce", volume="disk")
        at.cluster.foreign("other", "n0", cpu="6")
        submit(at, 3)
        course = at.watch("a", seconds=10)["a"]
    assert len(set(course.where.values())) == 1
    assert course.begins_whole(3)


@pytest.mark.parametrize(
    ("mode", "ask", "why", "fits"),
    [
        ("ReadWriteOnce", (3, "4"), "only pods of one node can mount it", "2 fit"),
        ("ReadWriteOncePod", (2,), "one pod can mount it", "1 fits"),
    ],
    ids=["it fits on no one node", "a claim of one pod"],
)
def test_a_gang_that_cannot_share_its_claim_waits_and_says_why(
    mode: str, ask: tuple[Any, ...], why: str, fits: str
) -> None:
    with lab() as at:
        nodes(at, 3)
        at.cluster.volume("disk")
        at.cluster.claim("data", mode, volume="disk")
        submit(at, *ask)
        course = at.watch("a", seconds=10)["a"]
    assert course.most == 0
    assert course.says(f"its claim data is {mode}: {why}", fits)


def test_a_claim_in_use_on_a_node_draws_the_gang_there() -> None:
    with lab() as at:
        nodes(at, 3)
        at.cluster.volume("disk")
        at.cluster.claim("data", "ReadWriteOnce", volume="disk")
        at.cluster.other_pod("notebook", "n1", labels={}, spec=DATA)
        submit(at, 2)
        course = at.watch("a", seconds=10)["a"]
    assert set(course.where.values()) == {"n1"}


def test_a_node_that_takes_no_more_volumes_is_left_out() -> None:
    with lab() as at:
        nodes(at, 3)
        for n, name in enumerate(("data", "one", "two")):
            at.cluster.volume(f"disk{n}", driver="ebs")
            at.cluster.claim(name, volume=f"disk{n}")
        for n in (0, 1):
            at.cluster.volume_limit(f"n{n}", "ebs", 1)
        at.cluster.volume_limit("n2", "ebs", 2)
        for n, name in enumerate(("one", "two")):
            others = {"volumes": [{"name": "x", "persistentVolumeClaim": {"claimName": name}}]}
            at.cluster.other_pod(name, f"n{n}", labels={}, spec=others)
        submit(at, 2)
        course = at.watch("a", seconds=10)["a"]
    assert set(course.where.values()) == {"n2"}
    assert at.cluster.refused == {}


@pytest.mark.parametrize("preemptible", [False, True], ids=["fixed", "preemptible"])
def test_without_the_right_to_read_volumes_kube_scheduler_decides(*, preemptible: bool) -> None:
    with lab(begin=False) as at:
        at.api.rule(
            lambda request: status(403, "no", reason="Forbidden") if "persistentvolume" in request.path else None
        )
        at.begin()
        nodes(at, 6, zones=3, cpu="1")
        at.cluster.volume("disk", zone="z2")
        at.cluster.claim("data", volume="disk")
        submit(at, 2, preemptible=preemptible)
        course = at.watch("a", seconds=100)["a"]
        assert zones_of(at, course.where.values()) == {"z2": 2}
    assert course.begins_whole(2)

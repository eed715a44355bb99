"""Gangs whose claims can be mounted on some nodes alone."""

from __future__ import annotations

from typing import Any

import pytest

from diflow.allocator.watch.volumes import UNKNOWN, Volumes
from diflow.kube.kinds import PERSISTENT_VOLUME_CLAIM
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


@pytest.mark.parametrize(
    ("storage", "why"),
    [
        (None, "its claim data does not exist"),
        ("fast", "its claim data is not bound yet, and its storage class fast waits for no pod"),
        ("", "its claim data is not bound, and has no storage class that makes a volume"),
        ("gone", "the storage class of its claim data, gone, does not exist"),
    ],
    ids=["no claim", "immediate", "no class", "a class that does not exist"],
)
@pytest.mark.parametrize("preemptible", [False, True], ids=["fixed", "preemptible"])
def test_a_gang_waits_alone_for_its_claim_and_is_where_its_volume_is(
    storage: str | None, why: str, *, preemptible: bool
) -> None:
    with lab() as at:
        nodes(at, 6, zones=3)
        at.cluster.storage_class("fast", waits=False)
        if storage is not None:
            at.cluster.claim("data", storage=storage)
        submit(at, 2, "8", preemptible=preemptible, priority="high")
        course = at.watch("a", seconds=20)["a"]
        assert course.most == 0
        assert at.cluster.of("a") == {}
        assert course.says(why)
        at.cluster.submit(job("innocent", task(replicas=2, ask={"cpu": "1"})))
        assert at.watch("innocent", seconds=10)["innocent"].since(2) <= 5.0
        at.cluster.delete("innocent")
        at.cluster.volume("disk", zone="z2")
        at.cluster.claim("data", volume="disk", storage=storage or "fast")
        course = at.watch("a", seconds=40)["a"]
        assert zones_of(at, course.where.values()) == {"z2": 2}
    assert course.since(2) <= 20.0
    assert course.restarts == 0
    assert at.cluster.refused == {}


def test_a_claim_whose_volume_is_not_there_yet_holds_the_gang() -> None:
    with lab() as at:
        nodes(at, 6, zones=3)
        at.cluster.claim("data", volume="disk")
        submit(at, 2)
        assert at.watch("a", seconds=20)["a"].says("the volume of its claim data, disk, does not exist")
        at.cluster.volume("disk", zone="z1")
        course = at.watch("a", seconds=30)["a"]
        assert zones_of(at, course.where.values()) == {"z1": 2}
    assert at.cluster.refused == {}


def test_a_claim_that_is_deleted_does_not_concern_a_gang_that_runs() -> None:
    with lab() as at:
        nodes(at, 3)
        at.cluster.volume("disk")
        at.cluster.claim("data", volume="disk")
        submit(at, 2)
        before = at.watch("a", seconds=10)["a"].where
        at.api.remove(PERSISTENT_VOLUME_CLAIM, "data", namespace="default")
        course = at.watch("a", seconds=100)["a"]
    assert course.where == before
    assert len(before) == 2


@pytest.mark.parametrize(
    ("spec", "status", "lack"),
    [
        ({"volumeName": "disk"}, {"phase": "Bound"}, ""),
        ({"volumeName": "disk"}, {"phase": "Pending"}, "its claim data is not bound yet to the volume disk"),
        ({"volumeName": "lost"}, {"phase": "Lost"}, "the volume of its claim data, lost, does not exist"),
        ({"storageClassName": "late"}, {"phase": "Pending"}, ""),
    ],
)
def test_what_a_claim_lacks(spec: Json, status: Json, lack: str) -> None:
    metadata = {"name": "data", "namespace": "x"}
    claim = {"metadata": metadata, "spec": {"accessModes": ["ReadWriteMany"], **spec}, "status": status}
    storage = {"metadata": {"name": "late"}, "provisioner": "x", "volumeBindingMode": "WaitForFirstConsumer"}
    known = Volumes.of([claim], [{"metadata": {"name": "disk"}, "spec": {}}], [storage], [])
    assert known.lack("x", "data") == lack
    assert UNKNOWN.lack("x", "data") == ""
    ended = {**claim, "metadata": {**metadata, "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert Volumes.of([ended], [], [], []).lack("x", "data") == "its claim data is being deleted"

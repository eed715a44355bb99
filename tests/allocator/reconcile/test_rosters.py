"""The hosts and ranks of a job are told its pods after all decisions, some at a time, with namespaces in turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from diflow.allocator.reconcile.rosters import MOST_AT_ONCE, PAUSE_SECONDS, Rosters
from diflow.allocator.watch.cluster_state import assemble
from diflow.allocator.write.patches import Write
from diflow.common import keys
from diflow.common.clock import Clock
from diflow.record.identity import Identity
from diflow.record.pod import roster_digest
from diflow.record.roster import roster
from tests.allocator.lab import Lab, job, lab, task
from tests.allocator.values import pod, read, role


class Executor:
    """Keeps what it is to send."""

    def __init__(self) -> None:
        self.sent: list[Write] = []

    def apply(self, writes: list[Write], _: Any) -> list[Write]:
        self.sent += writes
        return []

    def is_backing_off(self, _: str) -> bool:
        return False


class Cluster:
    """Jobs of which all pods have to be told others hosts, and the time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.executor = Executor()
        self.rosters = Rosters(self.executor, clock=Clock(monotonic=lambda: self.now))  # type: ignore[arg-type]
        self.counts: dict[str, int] = {}
        self.told: dict[str, str] = {}

    def look(self) -> list[Write]:
        """One cycle, after which its writes are known."""
        records, pods = [], []
        for key, count in self.counts.items():
            namespace, name = key.split("/")
            hosts = roster(name, namespace, {"w": count}).nodes
            records.append(replace(read(role(replicas=count)), identity=Identity(namespace, name, key, "1")))
            for i in range(count):
                told = self.told.get(f"{key}-{i}", "somebody")
                rank: dict[str, Any] = {
                    "hosts": roster_digest(told),
                    "rank": str(i),
                    "replicas": str(count if told == hosts else 1),
                }
                made = pod(f"w-{i}", on="a", **rank)
                identity = Identity(namespace, f"{name}-{i}", f"{key}-{i}", "1")
                pods.append(replace(made, identity=identity, job=key, owner=key))
        before = len(self.executor.sent)
        self.rosters.send(assemble(records, [], pods))
        new = self.executor.sent[before:]
        for write in new:
            annotations = write.body["metadata"]["annotations"]
            self.told[f"{write.job}-{annotations[keys.RANK]}"] = annotations[keys.NODES]
        return new


def test_a_large_job_is_told_some_pods_at_a_time_and_all_in_the_end() -> None:
    cluster = Cluster()
    cluster.counts = {"big/job": 300}
    looks = 0
    while new := cluster.look():
        assert len(new) <= MOST_AT_ONCE
        assert cluster.rosters.due() == (cluster.now if len(cluster.told) < 300 else float("inf"))
        looks += 1
        cluster.now += 0.4
    assert len(cluster.told) == 300
    assert looks == -(-300 // MOST_AT_ONCE)


def test_namespaces_take_turns() -> None:
    cluster = Cluster()
    cluster.counts = {"big/job": 300, "small/job": 4}
    assert Counter(write.target.namespace for write in cluster.look()) == {"big": MOST_AT_ONCE - 4, "small": 4}


def test_a_job_that_changes_again_waits_and_its_last_wish_counts() -> None:
    cluster = Cluster()
    cluster.counts = {"ns/job": 3}
    assert len(cluster.look()) == 3
    began = cluster.now
    for count in (4, 3, 5, 6):
        cluster.now += 2.0
        cluster.counts = {"ns/job": count}
        assert cluster.look() == []
    assert cluster.rosters.due() == began + PAUSE_SECONDS
    cluster.now = began + PAUSE_SECONDS
    assert len(cluster.look()) == 6
    assert all(write.body["metadata"]["annotations"][keys.REPLICAS] == "6" for write in cluster.executor.sent[3:])


def test_a_namespace_that_changes_its_jobs_all_the_time_writes_no_more_than_its_part() -> None:
    cluster = Cluster()
    for second in range(100):
        cluster.now += 1.0
        cluster.counts = {f"ns/job-{i}": 60 + second // 10 % 2 for i in range(10)}
        for _ in range(2):
            cluster.look()
    assert len(cluster.executor.sent) <= 2000 + 100 * 20 + MOST_AT_ONCE


@pytest.fixture(name="at")
def _at() -> Iterator[Lab]:
    with lab(direct=False) as made:
        made.cluster.node("a", cpu=64)
        yield made


def test_after_a_resize_all_pods_know_all_hosts(at: Lab) -> None:
    at.cluster.submit(job("one", task(replicas=4, min_replicas=2, max_replicas=60)))
    at.until(lambda: len(at.cluster.running("one")) == 4, "it runs")
    for count in (50, 3, 40):
        at.cluster.scale("one", worker=count)
        at.until(lambda c=count: len(at.cluster.running("one")) == c, "it has as many", seconds=120)  # type: ignore[misc]
    at.rest()
    told = [p["metadata"]["annotations"] for p in at.cluster.of("one").values() if p["status"]["phase"] == "Running"]
    assert {one[keys.REPLICAS] for one in told} == {"40"}
    assert {len(one[keys.NODES].split(",")) for one in told} == {40}
    assert sorted(int(one[keys.RANK]) for one in told) == list(range(40))

"""The cluster state of the caches: unchanged parts are the same objects, whatever else has changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from urllib3 import PoolManager

from diflow.allocator.settings import AllocatorSettings
from diflow.allocator.watch.cluster_state import Caches
from diflow.kube.api import Cluster
from diflow.kube.refusals import Target
from diflow.record.identity import Identity
from diflow.record.job import JobRecord
from diflow.record.node import NodeRecord
from diflow.record.pod import PodRecord
from tests.allocator import values
from tests.allocator.values import changed


@dataclass
class Kept:
    """A fake reflector: it returns another mapping after each change."""

    kept: Mapping[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def items(self) -> Mapping[tuple[str, str], dict[str, Any]]:
        return self.kept

    def put(self, *reads: JobRecord | PodRecord | NodeRecord) -> None:
        self.kept = {**self.kept, **{("ns", _name(read)): {"read": read} for read in reads}}

    def take(self, name: str) -> None:
        self.kept = {key: item for key, item in self.kept.items() if key[1] != name}


def _name(read: JobRecord | PodRecord | NodeRecord) -> str:
    return read.name if isinstance(read, NodeRecord) else read.identity.name


@dataclass
class Shown:
    """Caches with the objects of the tests."""

    nodes: Kept
    queues: Kept
    workflows: Kept
    pods: Kept
    caches: Caches


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    nobody = Cluster(Target("http://127.0.0.1:9", "none"), transport=PoolManager())
    caches = Caches(nobody, AllocatorSettings(), on_change=lambda *_: None)
    members = tuple(Kept() for _ in range(4))
    monkeypatch.setattr(caches, "_all", SimpleNamespace(members=members))
    monkeypatch.setattr(caches, "queues", members[1])
    nodes, queues, workflows, pods = members
    nodes.put(values.node("a"), values.node("b"))
    workflows.put(job("one"), job("two"))
    pods.put(pod("one"), pod("two"))
    return Shown(nodes, queues, workflows, pods, caches)


def job(name: str, uid: str = "") -> JobRecord:
    return replace(values.read(), identity=Identity("ns", name, uid or f"uid-{name}", "1"))


def pod(of: str, name: str = "") -> PodRecord:
    found = values.pod(on="a")
    return replace(found, identity=replace(found.identity, name=name or f"p-{of}"), job=f"ns/{of}", owner=f"uid-{of}")


def test_nothing_has_changed(shown: Shown) -> None:
    assert shown.caches.state() is shown.caches.state()


def test_a_workflow_has_changed(shown: Shown) -> None:
    before = shown.caches.state()
    shown.workflows.put(changed(job("one"), priority="high"))
    after = shown.caches.state()
    assert after.jobs["ns/one"].read.terms.priority_number == 100
    assert after.jobs["ns/one"].pods is before.jobs["ns/one"].pods
    assert after.jobs["ns/two"] is before.jobs["ns/two"]
    assert (after.nodes, after.pods) == (before.nodes, before.pods)
    assert after.nodes is before.nodes
    assert after.pods is before.pods


def test_a_pod_has_come(shown: Shown) -> None:
    before = shown.caches.state()
    shown.pods.put(pod("one", "another"))
    after = shown.caches.state()
    assert [p.identity.name for p in after.jobs["ns/one"].pods] == ["p-one", "another"]
    assert after.jobs["ns/two"] is before.jobs["ns/two"]
    assert after.nodes is before.nodes
    assert len(after.pods) == 3


def test_a_node_is_gone(shown: Shown) -> None:
    before = shown.caches.state()
    shown.nodes.take("b")
    after = shown.caches.state()
    assert list(after.nodes) == ["a"]
    assert after.pods is before.pods
    assert after.jobs == before.jobs


def test_pods_of_an_earlier_job_of_the_name_are_foreign_though_no_pod_has_changed(shown: Shown) -> None:
    assert len(shown.caches.state().jobs["ns/one"].pods) == 1
    shown.workflows.put(job("one", uid="another"))
    after = shown.caches.state()
    assert after.jobs["ns/one"].pods == ()
    assert [(p.job, p.place) for p in after.pods if p.identity.name == "p-one"] == [("", None)]


def test_the_part_that_a_job_goes_on_in_comes_and_goes(shown: Shown) -> None:
    before = shown.caches.state()
    shown.workflows.put(changed(job("next"), name="one", part=2, continues="one", continues_uid="uid-one"))
    during = shown.caches.state()
    assert during.jobs["ns/one"].after is during.jobs["ns/next"].read
    assert during.jobs["ns/next"].before is before.jobs["ns/one"].read
    assert during.jobs["ns/next"].old_pods == during.jobs["ns/one"].pods
    shown.workflows.take("next")
    assert shown.caches.state().jobs["ns/one"].after is None


def test_wrong_queues_stop_a_process_that_has_read_no_correct_ones(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches = shown.caches
    monkeypatch.setattr(caches, "_all", SimpleNamespace(members=caches._all.members, trouble=lambda _: ""))
    key = ("diflow-system", "diflow-queues")
    shown.queues.kept = {key: {"read": "queues: 3"}}
    assert caches.trouble().startswith("the ConfigMap diflow-queues has no correct text: ")
    assert "must be a mapping with a list" in caches.trouble()
    shown.queues.kept = {key: {"read": "queues: [{name: red, cap: {cpu: 4}}]"}}
    caches.state()
    assert caches.trouble() == ""
    shown.queues.kept = {key: {"read": "queues: 3"}}
    assert [queue.name for queue in caches.state().queues] == ["red"]
    assert caches.trouble() == "", "it goes on with the correct ones"

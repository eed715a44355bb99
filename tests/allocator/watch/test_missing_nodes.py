"""A Node object that is missing for a moment has no effect; one that stays missing counts as lost in time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from diflow.allocator.watch.missing_nodes import MOST_UNKNOWN, MissingNodes
from diflow.kube.kinds import NODE
from diflow.record.node import node_record_of
from diflow.record.pod import PodRecord
from tests.allocator.fakeargo import EPOCH
from tests.allocator.lab import Lab, job, task
from tests.allocator.values import NOW, node, pod

remembering = pytest.mark.usefixtures("from_memory_as_afresh")


def uids(at: Lab) -> dict[str, str]:
    return {name: found["metadata"]["uid"] for name, found in at.cluster.of("one").items()}


def runs(at: Lab, count: int, *, seconds: int = 45) -> None:
    at.until(lambda: len(at.cluster.running("one")) == count, f"{count} replicas run", seconds=seconds)


def taken(at: Lab, name: str) -> dict[str, Any]:
    """Delete the Node object. Returns it as it was."""
    was: dict[str, Any] = at.api.objects[NODE.path(None)][name]
    at.cluster.remove_node(name)
    return was


@remembering
@pytest.mark.parametrize("preemptible", [False, True])
def test_a_node_object_that_is_missing_for_a_moment_has_no_effect(at: Lab, preemptible: bool) -> None:
    at.cluster.submit(job("one", task(replicas=8), preemptible=preemptible, backoff_limit=0))
    runs(at, 8)
    before = uids(at)
    was = taken(at, "b")
    for _ in range(50):
        at.step()
    at.api.add(NODE, was)
    at.rest()
    assert uids(at) == before
    assert len(at.cluster.running("one")) == 8
    assert "NodeLost" not in [reason for reason, _ in at.events("one")]


@remembering
@pytest.mark.parametrize("preemptible", [False, True])
def test_a_node_that_stays_away_is_lost_after_the_time_of_a_silent_one(at: Lab, preemptible: bool) -> None:
    at.cluster.node("c", cpu=4)
    at.cluster.submit(job("one", task(replicas=2, cpu="3"), preemptible=preemptible, backoff_limit=0))
    runs(at, 2)
    lost = at.cluster.running("one")["worker-1"]
    at.cluster.remove_node(lost)
    for _ in range(55):
        at.step()
    assert at.cluster.running("one")["worker-1"] == lost, "the time of a silent node is 60 s"
    at.until(lambda: lost not in at.cluster.running("one").values(), "it is written off", seconds=10)
    runs(at, 2)
    (told,) = [text for reason, text in at.events("one") if reason == "NodeLost"]
    assert told == f"1 of its pods was on {lost}, which is gone"


@remembering
def test_nothing_new_is_sent_to_a_node_that_is_missing(at: Lab) -> None:
    at.cluster.submit(job("one", task(replicas=5)))
    runs(at, 5)
    (full,) = {n for n in "ab" if list(at.cluster.running("one").values()).count(n) == 4}
    was = taken(at, "b" if full == "a" else "a")
    at.cluster.submit(job("two"))
    at.rest()
    assert at.cluster.running("two") == {}
    assert at.allocation("two") == {}
    at.api.add(NODE, was)
    at.until(lambda: len(at.cluster.running("two")) == 1, "it runs on the node that is back")


@remembering
def test_a_new_leader_counts_the_time_of_a_missing_node_from_its_own_first_look(at: Lab) -> None:
    at.cluster.submit(job("one", task(replicas=8), preemptible=True, backoff_limit=0))
    runs(at, 8)
    before = uids(at)
    at.end()
    was = taken(at, "b")
    for _ in range(100):
        at.pass_time()
    at.begin()
    for _ in range(20):
        at.step()
    at.api.add(NODE, was)
    at.rest()
    assert uids(at) == before


def test_a_node_that_was_just_made_again_is_silent_since_then() -> None:
    made = {"metadata": {"name": "a", "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {}, "status": {}}
    assert node_record_of(made).not_ready_since == EPOCH


def test_the_nodes_are_the_same_mapping_while_nothing_is_missing() -> None:
    nodes, pods = {"a": node("a")}, (pod("w-0", on="a"),)
    missing = MissingNodes()
    assert missing.among(nodes, pods, now=NOW) is nodes
    fewer: dict[str, Any] = {}
    shown = missing.among(fewer, pods, now=NOW + 1)
    assert shown["a"].not_ready_since == NOW + 1
    assert missing.among(fewer, pods, now=NOW + 2) is shown
    assert missing.among(fewer, (*pods,), now=NOW + 3)["a"].not_ready_since == NOW + 1
    assert missing.among(fewer, (), now=NOW + 4) == {}, "it has no pods any more"


def test_invented_nodes_are_counted_up_to_a_bound() -> None:
    pods = tuple(pod("w-0", on=f"ghost-{i}") for i in range(MOST_UNKNOWN + 100))
    missing = MissingNodes()
    assert len(missing.among({}, pods, now=NOW)) == MOST_UNKNOWN
    assert len(missing.among({}, (*pods, pod("w-1", on="ghost-0")), now=NOW)) == MOST_UNKNOWN


def of(namespace: str, *, on: str) -> PodRecord:
    made = pod(on=on)
    return replace(made, identity=replace(made.identity, namespace=namespace))


def test_a_namespace_that_invents_nodes_leaves_room_for_the_missing_nodes_of_others() -> None:
    invented = tuple(of("evil", on=f"ghost-{i:04}") for i in range(2 * MOST_UNKNOWN))
    honest = tuple(of("good", on=f"rack-{i}") for i in range(20))
    missing = MissingNodes()
    missing.among({}, invented, now=NOW)
    shown = missing.among({}, (*invented, *honest), now=NOW + 1)
    assert {f"rack-{i}" for i in range(20)} <= shown.keys()
    assert len(shown) == MOST_UNKNOWN
    later = missing.among({}, (*invented, *honest, of("evil", on="ghost-0000")), now=NOW + 2)
    assert {name: node.not_ready_since for name, node in later.items()} == {
        name: node.not_ready_since for name, node in shown.items()
    }, "those that are counted stay, each with its time"


def test_a_node_that_pods_of_several_namespaces_name_counts_for_the_first_of_them() -> None:
    invented = tuple(of("evil", on=f"ghost-{i:04}") for i in range(2 * MOST_UNKNOWN))
    shared = tuple(of(name, on="rack") for name in ("evil", "good"))
    assert "rack" in MissingNodes().among({}, (*invented, *shared), now=NOW)

"""Nodes to which kube-scheduler did not bind a pod are avoided, by the namespace of that pod alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diflow.allocator.model.plan import Action
from diflow.allocator.plan.inputs import Restrictions, picture
from diflow.allocator.policies.fit.policy import FitPolicy
from diflow.allocator.reconcile.unbound_pods import AvoidedNodes
from diflow.allocator.watch.cluster_state import ClusterState, assemble
from diflow.allocator.watch.job import Job
from diflow.record.identity import Identity
from diflow.record.job import JobRecord
from diflow.record.pod import PodRecord
from tests.allocator.values import NOW, capacity, node, pod, read, role


def sent(there: str) -> tuple[JobRecord, ClusterState, AvoidedNodes]:
    """A job of the namespace `ns` whose pod was not bound to the node `there`."""
    placed = read(role(replicas=1), nodes={"w": (there,)})
    unbound = pod("w-0", pinned=there)
    state = assemble([placed], [node("a"), node("b")], [unbound])
    avoided = AvoidedNodes()
    avoided.update(state, {unbound.identity.uid: unbound}, now=0.0)
    return placed, state, avoided


def test_a_node_is_avoided_for_longer_each_time_and_forgotten_after_a_long_rest() -> None:
    _, state, avoided = sent("a")
    (unbound,) = state.pods
    assert avoided.at(59.0) == {"ns": frozenset("a")}
    assert avoided.anywhere(59.0) == {"a"}
    assert avoided.at(60.0) == {}
    avoided.update(state, {unbound.identity.uid: unbound}, now=61.0)
    assert avoided.at(61.0 + 119.0) == {"ns": frozenset("a")}
    avoided.update(state, {}, now=200.0 + 1800.0)
    avoided.update(state, {unbound.identity.uid: unbound}, now=200.0 + 1801.0)
    assert avoided.at(200.0 + 1801.0 + 60.0) == {}


def test_many_refused_pods_of_a_job_cost_no_more_each_than_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    pods = [pod(f"w-{index}", pinned="a") for index in range(200)]
    placed = read(role(replicas=100), nodes={"w": ("a",) * 100})
    state = assemble([placed], [node("a")], pods)
    looked = 0
    is_wanted = Job.is_wanted

    def counted(self: Job, one: PodRecord) -> bool:
        nonlocal looked
        looked += 1
        return is_wanted(self, one)

    monkeypatch.setattr(Job, "is_wanted", counted)
    avoided = AvoidedNodes()
    avoided.update(state, {one.identity.uid: one for one in pods}, now=0.0)
    assert avoided.anywhere(1.0) == {"a"}
    assert looked <= 4 * len(pods)


def test_another_namespace_still_uses_the_node() -> None:
    """The pods may ask kube-scheduler for what their job does not say."""
    _, _, avoided = sent("a")
    ours = read(role(replicas=1))
    theirs = replace(ours, identity=Identity("other", "job", "uid-other", "7"))
    state = assemble([ours, theirs], [node("a", cpu=1000)], [])
    restrictions = Restrictions(avoid=avoided.at(1.0))
    shown = picture(state, capacity(node("a", cpu=1000)), now=NOW, restrictions=restrictions)
    plan = FitPolicy().optimize(shown.snapshot)
    admitted = plan.action == Action.ADMIT
    assert [s.job.key for s, starts in zip(shown.standings, admitted, strict=True) if starts] == ["other/job"]

"""Topology in the allocator: its setting, the field of a job, what a user can edit, and a job's life in one rack."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from diflow import DIJob
from diflow.allocator.gpu_pools import Pools, parse_pools
from diflow.allocator.inspect import explain, observer
from diflow.allocator.model.topology import MOST_LEVELS, parse_levels
from diflow.allocator.plan.triggers import reason_to_plan
from diflow.allocator.policies.base import load_policy
from diflow.allocator.run.control_channel import AllocatorStatus
from diflow.allocator.settings import AllocatorSettings, allocator_settings
from diflow.allocator.watch.records import planning_record_of
from diflow.common.clock import Clock
from diflow.common.errors import InvalidError
from diflow.dijob.model import Topology
from diflow.kube.kinds import NODE, WORKFLOW
from diflow.workflows import render
from tests.allocator.fakeargo import FakeCluster
from tests.allocator.lab import Lab, job, lab, task
from tests.allocator.values import changed

SETTINGS = AllocatorSettings(writers=1, debounce_seconds=0.0, topology="rack")
RACK = Topology(required="rack")
POLICIES = ("fit", "fair", "goodput", "fair+goodput")


def add_node(cluster: FakeCluster, name: str, cpu: str = "2") -> None:
    """A node whose rack is the first letter of its name."""
    cluster.node(name, cpu=cpu)
    made = cluster.api.objects[NODE.path(None)][name]
    labels = {**made["metadata"]["labels"], "rack": name[0]}
    cluster.api.add(NODE, {**made, "metadata": {**made["metadata"], "labels": labels}})


def racks(found: Lab, name: str) -> set[str]:
    """The racks of the job's running pods, as kube-scheduler bound them."""
    return {node[0] for node in found.cluster.running(name).values()}


def test_the_levels_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert allocator_settings().pools.levels == ()
    monkeypatch.setenv("DIFLOW_ALLOCATOR_TOPOLOGY", "block=cloud.google.com/gce-topology-block,rack")
    assert [level.label for level in allocator_settings().pools.levels] == [
        "cloud.google.com/gce-topology-block",
        "rack",
    ]
    monkeypatch.setenv("DIFLOW_ALLOCATOR_TOPOLOGY", "rack,rack=x")
    with pytest.raises(InvalidError, match="DIFLOW_ALLOCATOR_TOPOLOGY: 'rack' and 'rack' have the same name or label"):
        allocator_settings()


def test_the_levels_are_published_with_the_pools() -> None:
    pools = Pools(topology=",".join(f"level-{i}={'a' * 240}.example/l{i}" for i in range(MOST_LEVELS)))
    found = parse_pools(pools.to_json())
    assert found is not None
    assert found.levels == parse_levels(pools.topology)
    assert parse_pools('{"topology": "a b"}') is None
    older = parse_pools('{"label": "x", "speed": {}}')
    assert older is not None
    assert older.levels == (), "what a leader from before the setting published"


def edited(**topology: Any) -> dict[str, Any]:
    """The Workflow of a job whose annotation says this of its topology."""
    workflow: dict[str, Any] = render(job("job", topology=RACK))
    workflow["metadata"] = {**workflow["metadata"], "namespace": "default", "uid": "u", "resourceVersion": "1"}
    manifest = json.loads(workflow["metadata"]["annotations"]["diflow/dijob"])
    manifest["spec"] |= topology
    workflow["metadata"]["annotations"]["diflow/dijob"] = json.dumps(manifest)
    return workflow


def test_the_field_travels_in_the_workflow() -> None:
    assert planning_record_of(edited()).spec.required == "rack"
    plain: dict[str, Any] = render(job("job"))
    plain["metadata"] = {**plain["metadata"], "namespace": "default"}
    assert planning_record_of(plain).spec.required == ""
    assert "topology" not in json.dumps(plain), "a job without the field has the Workflow that it had"
    assert render(job("job", topology=RACK))["spec"] == plain["spec"], "pods do not know of it"


@pytest.mark.parametrize(
    "value",
    [
        {"required": "x" * 100_000},
        {"required": ["rack"] * 1000},
        {"required": 5},
        {"required": "{{=1}}"},
        {"required": "\u0000"},
        {},
        [],
        "rack",
        {"required": {"required": "rack"}},
    ],
)
def test_a_topology_that_was_edited_to_nonsense_holds_that_job(value: Any) -> None:
    read = planning_record_of(edited(topology=value))
    assert "is not a valid job any more (spec.topology" in read.problem
    assert len(read.problem) < 500
    assert read.needs.roles == ()


def test_an_edit_of_the_queue_is_a_reason_to_plan() -> None:
    before, after = planning_record_of(edited()), planning_record_of(edited())
    after = changed(after, queue="another")
    assert "asks for something else" in reason_to_plan(WORKFLOW, "default/job", before, after, fraction=0.1)


def test_an_edit_of_the_level_is_a_reason_to_plan() -> None:
    before, after = planning_record_of(edited()), planning_record_of(edited(topology={"required": "block"}))
    assert after.problem == ""
    assert "asks for something else" in reason_to_plan(WORKFLOW, "default/job", before, after, fraction=0.1)
    assert reason_to_plan(WORKFLOW, "default/job", before, planning_record_of(edited()), fraction=0.1) == ""


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_stays_in_one_rack_through_growth_retries_and_a_lost_node(policy: str) -> None:
    with lab(policy=load_policy(policy), settings=SETTINGS) as found:
        for name in ("a1", "a2", "a3", "b1", "b2", "b3"):
            add_node(found.cluster, name)
        fields: dict[str, Any] = {"preemptible": True, "topology": RACK}
        found.cluster.submit(job("job", task(replicas=4, min_replicas=4, max_replicas=4), **fields))
        found.until(lambda: len(found.cluster.running("job")) == 4, "it runs")
        home = racks(found, "job")
        assert len(home) == 1
        found.cluster.evict(found.cluster.of("job")["worker-0"]["metadata"]["name"])
        found.rest()
        assert len(found.cluster.running("job")) == 4
        assert len(racks(found, "job")) == 1
        # Two nodes of its rack go: what is left holds two replicas, and the other rack all four.
        (rack,) = racks(found, "job")
        for index in (1, 2):
            found.cluster.silence(f"{rack}{index}")
        (other,) = {"a", "b"} - {rack}
        found.until(lambda: racks(found, "job") == {other}, "it moves as a whole", seconds=400)
        assert len(found.cluster.running("job")) == 4


def test_a_job_that_is_not_preemptible_grows_in_its_rack_and_waits_there_for_a_lost_replica() -> None:
    with lab(settings=SETTINGS) as found:
        for name in ("a1", "a2", "b1", "b2", "b3"):
            add_node(found.cluster, name)
        found.cluster.foreign("other", "b3", cpu="2")
        found.cluster.submit(job("job", task(replicas=2), topology=RACK))
        found.until(lambda: len(found.cluster.running("job")) == 2, "it runs")
        (rack,) = racks(found, "job")
        found.cluster.scale("job", worker=5)
        found.rest()
        assert len(found.cluster.running("job")) == 4, "as many as its rack holds"
        assert racks(found, "job") == {rack}
        found.cluster.silence(f"{rack}1")
        for _ in range(120):
            found.step()
            assert racks(found, "job") <= {rack}, "it does not spread over two racks"
        found.cluster.silence(f"{rack}1", on=False)
        found.until(lambda: len(found.cluster.running("job")) == 4, "it is complete again", seconds=400)
        assert racks(found, "job") == {rack}


def test_a_job_of_an_unknown_level_waits_with_the_reason_and_others_run() -> None:
    with lab(settings=SETTINGS) as found:
        add_node(found.cluster, "a1", cpu="4")
        found.cluster.submit(job("lost", topology=Topology(required="row")))
        found.cluster.submit(job("other", topology=RACK))
        found.until(lambda: len(found.cluster.running("other")) == 1, "the other one runs")
        found.rest()
        assert found.cluster.running("lost") == {}
        assert "requires one 'row', and the topology of this cluster has only 'rack'" in found.decision("lost")["why"]


def test_explain_counts_with_the_levels_that_the_leader_published(monkeypatch: pytest.MonkeyPatch) -> None:
    with lab(settings=SETTINGS) as found:
        for name in ("a1", "a2", "b1"):
            add_node(found.cluster, name)
        found.cluster.submit(job("job", task(replicas=3, cpu="2"), topology=RACK))
        found.rest()
        published = AllocatorStatus("diflow-system", holder="x", pools=SETTINGS.pools.to_json())
        monkeypatch.setattr(observer, "read_status", lambda *_, **__: published)
        monkeypatch.setattr(observer, "look", partial(observer.look, clock=Clock(wall=found.cluster.wall)))
        lines = list(explain.explanation(found.api.cluster(), "job", policy=""))
        assert any("needs 3 replicas in one rack, and the largest takes 2" in line for line in lines), lines


def test_a_dijob_knows_its_topology() -> None:
    made = job("job", topology=RACK)
    assert DIJob.from_manifest(made.to_manifest()) == made
    assert made.to_manifest()["spec"]["topology"] == {"required": "rack"}

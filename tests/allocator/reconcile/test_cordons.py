"""Cordoning: off by default, by the jobs of several namespaces, and never of many nodes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diflow.allocator.reconcile.cordons import Cordons, findings
from diflow.allocator.settings import AllocatorSettings
from diflow.allocator.watch.job import Job
from diflow.common import keys
from diflow.common.clock import Clock
from diflow.kube.kinds import NODE
from diflow.record.exclusions import Exclusions
from tests.allocator.lab import Lab, lab, task
from tests.allocator.lab import job as dijob
from tests.allocator.manifests import Grant, granted, objects
from tests.allocator.values import NOW, job, node, read

FOLDER = Path(__file__).parents[3] / "manifests" / "cordon"
ON = AllocatorSettings(writers=1, debounce_seconds=0.0, cordon_after_namespaces=1)


def excluding(*nodes: str, namespace: str = "ns", since: float = NOW) -> Job:
    record = Exclusions()
    for name in nodes:
        record = record.without(name, reason="product 9 s", source="node-check", now=since)
    found = read(excluded=record, name="job")
    return job(replace(found, identity=replace(found.identity, namespace=namespace)))


def test_a_namespace_counts_once_for_each_node() -> None:
    jobs = [excluding("a", namespace="x"), excluding("a", "b", namespace="x"), excluding("a", namespace="y")]
    assert [(f.node, set(f.namespaces)) for f in findings(jobs, least=2, now=NOW)] == [("a", {"x", "y"})]
    assert [f.node for f in findings(jobs, least=1, now=NOW)] == ["a", "b"]
    assert findings(jobs, least=1, now=NOW + 4000) == []  # the exclusions have ended


def test_an_exclusion_of_the_future_is_no_reason_to_cordon() -> None:
    """Written to the node as the last cause, it would keep the node from being cordoned for a later one."""
    jobs = [excluding("a", namespace="x", since=NOW + 1e8), excluding("a", namespace="y")]
    assert [(f.since, set(f.namespaces)) for f in findings(jobs, least=1, now=NOW)] == [(NOW, {"y"})]


class Nodes:
    """A fake cluster of nodes, as far as cordoning uses it."""

    def __init__(self, *names: str) -> None:
        self.objects: dict[str, dict[str, Any]] = {
            name: {"metadata": {"uid": f"uid-{name}", "annotations": {}}, "spec": {}} for name in names
        }
        self.patched: list[str] = []

    def without_retries(self) -> Nodes:
        return self

    def get(self, _: object, name: str) -> dict[str, Any]:
        return self.objects[name]

    def patch(self, _: object, name: str, body: dict[str, Any], **__: Any) -> None:
        assert body["metadata"]["uid"] == f"uid-{name}"
        self.objects[name]["metadata"]["annotations"] |= body["metadata"]["annotations"]
        self.objects[name]["spec"] |= body["spec"]
        self.patched.append(name)


class Leads:
    def check(self) -> int:
        return 7

    def writes_as(self, epoch: str) -> str:
        return f"diflow/{epoch}"


def cordons(nodes: Nodes, *, after: int = 1) -> Cordons:
    return Cordons(nodes, Leads(), after_namespaces=after, clock=Clock(monotonic=lambda: 0.0, wall=lambda: NOW))  # type: ignore[arg-type]


def run(made: Cordons, nodes: Nodes, *jobs: Job) -> list[str]:
    closed = {name for name, one in nodes.objects.items() if one["spec"].get("unschedulable")}
    made.run(
        {str(i): one for i, one in enumerate(jobs)},
        {name: node(name, is_schedulable=name not in closed) for name in nodes.objects},
    )
    patched, nodes.patched = nodes.patched, []
    return patched


def test_only_a_part_of_the_nodes_is_cordoned() -> None:
    names = [f"n{i:02d}" for i in range(20)]
    nodes = Nodes(*names)
    made = cordons(nodes)
    jobs = [excluding(*names[:10]), excluding(*names[10:], namespace="y")]
    assert run(made, nodes, *jobs) == names[:2]
    assert run(made, nodes, *jobs) == []
    few = Nodes("a", "b")
    assert run(cordons(few), few, excluding("a", "b")) == ["a"]


def test_a_node_that_somebody_uncordons_stays_so_until_another_job_leaves_it_out() -> None:
    nodes = Nodes("a", "b")
    made = cordons(nodes)
    assert run(made, nodes, excluding("a")) == ["a"]
    nodes.objects["a"]["spec"]["unschedulable"] = False
    assert run(made, nodes, excluding("a")) == []
    assert run(cordons(nodes), nodes, excluding("a")) == []  # another process knows it from the node
    assert run(made, nodes, excluding("a"), excluding("a", since=NOW + 5)) == ["a"]
    assert "ns/job: product 9 s" in json.loads(nodes.objects["a"]["metadata"]["annotations"][keys.CORDONED])["why"]


def test_it_is_off_by_default() -> None:
    assert AllocatorSettings().cordon_after_namespaces == 0
    nodes = Nodes("a", "b")
    assert run(cordons(nodes, after=0), nodes, excluding("a")) == []


def left_out(at: Lab) -> None:
    for name in ("a", "b"):
        at.cluster.node(name, cpu=4)
    at.cluster.submit(dijob("j", task(replicas=1)))
    at.until(lambda: at.cluster.running("j"), "it runs")
    record = Exclusions().without("a", reason="slow", source="node-check", now=at.cluster.wall())
    at.cluster.annotate("j", **{"excluded-nodes": record.to_json()})


def is_cordoned(at: Lab, name: str) -> bool:
    return bool(at.api.objects[NODE.path(None)][name]["spec"].get("unschedulable"))


@pytest.mark.parametrize("settings", [ON, None])
def test_the_allocator_cordons_if_it_is_asked_to(settings: AllocatorSettings | None) -> None:
    with lab(**({"settings": settings} if settings else {})) as at:
        left_out(at)
        if settings is None:
            for _ in range(90):
                at.step()
            assert not is_cordoned(at, "a")
        else:
            at.until(lambda: is_cordoned(at, "a"), "it is cordoned", seconds=200)
        assert not is_cordoned(at, "b")


def test_its_rights_are_in_a_manifest_of_their_own() -> None:
    assert granted("diflow-allocator", FOLDER) == {Grant(verb, "", "nodes", "", "") for verb in ("get", "patch")}
    assert not {g for g in granted("diflow-allocator") if g.resource == "nodes" and g.verb not in ("list", "watch")}
    assert len(objects(FOLDER)) == 2

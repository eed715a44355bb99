"""Nodes that are left out for one job: planning gives it no new place there, until the exclusion ends."""

from __future__ import annotations

import json
from typing import Any

from diflow.allocator.model.validate import faults
from diflow.allocator.policies.base import load_policy
from diflow.allocator.reasons import reason_texts
from diflow.allocator.reasons.plan_text import as_data, plan_text
from diflow.allocator.watch.job import Job
from diflow.allocator.write.rounds import place_again
from diflow.common import keys
from diflow.common.predicates import NODE_NAME, Requirement, Where
from diflow.record.exclusions import FIRST_SECONDS, Exclusions
from tests.allocator.lab import job as dijob
from tests.allocator.lab import lab, task
from tests.allocator.plan.calls import plan_writes
from tests.allocator.plan.test_planning import shown
from tests.allocator.values import NOW, job, node, pod, read, role


def without(*nodes: str, now: float = NOW) -> Exclusions:
    record = Exclusions()
    for name in nodes:
        record = record.without(name, reason="exit code 201", source="failure", now=now)
    return record


def decided(*jobs: Job, **options: Any) -> tuple[dict[str, Any], dict[str, list[str]]]:
    picture = shown(*jobs, **options)
    plan = load_policy("fit").optimize(picture.snapshot)
    assert faults(picture.snapshot, plan) == []
    free, use = plan_writes(picture, plan, now=NOW)
    (write,) = [*free, *use]
    given = write.body["metadata"]["annotations"]
    return json.loads(given[keys.DECISION]), json.loads(given.get(keys.ALLOCATION) or "{}").get("nodes", {})


def test_a_requirement_is_added_to_each_term() -> None:
    line = Requirement(NODE_NAME, "NotIn", ("a", "b"))
    gpu = Requirement("gpu", "Exists")
    assert Where().without(frozenset()) == Where()
    assert Where().without({"b", "a"}) == Where(affinity=((line,),))
    assert Where(affinity=((gpu,), ())).without({"b", "a"}) == Where(affinity=((gpu, line), ()))
    assert not Where(affinity=((),)).without({"a"}).admits({NODE_NAME: "c"}, ())  # an empty term selects nothing
    assert not Where().without({"a"}).admits({NODE_NAME: "a"}, ())
    assert Where().without({"a"}).admits({NODE_NAME: "c"}, ())


def test_a_job_gets_no_new_place_on_a_node_that_is_left_out() -> None:
    nodes = (node("a"), node("b"))
    _, places = decided(job(read(role(replicas=2))), nodes=nodes)
    assert set(places["w"]) == {"a"}
    _, places = decided(job(read(role(replicas=2), excluded=without("a"))), nodes=nodes)
    assert set(places["w"]) == {"b"}


def test_other_jobs_do() -> None:
    s = shown(job(read(role(), excluded=without("a"))), nodes=(node("a"), node("b"))).snapshot
    other = shown(job(read(role())), nodes=(node("a"), node("b"))).snapshot
    assert s.class_nodes[s.role_class[0]].tolist() == [False, True]
    assert other.class_nodes[other.role_class[0]].tolist() == [True, True]


def test_a_running_replica_stays_where_it_is() -> None:
    running = job(read(nodes={"w": ("a", "a")}, excluded=without("a")), pod("w-0", on="a"), pod("w-1", on="a"))
    picture = shown(running, nodes=(node("a"), node("b")))
    plan = load_policy("fit").optimize(picture.snapshot)
    assert faults(picture.snapshot, plan) == []
    assert plan_writes(picture, plan, now=NOW) == ([], [])


def test_the_reason_to_wait_names_the_nodes_that_are_left_out_and_for_how_long() -> None:
    said, places = decided(job(read(role(), excluded=without("a"))), nodes=(node("a"),))
    assert places == {}
    assert said["action"] in ("wait", "late")
    assert said["why"].endswith("; left out for this job for up to 60 minutes: a (exit code 201)")


def test_a_job_whose_nodes_are_left_out_is_not_said_to_be_too_large_for_the_cluster() -> None:
    """It starts when the time is over: nobody has to ask for less, or to add nodes."""
    said, _ = decided(job(read(role(), excluded=without("a"))), nodes=(node("a"),))
    assert "cannot start now: its gang needs 2 replicas and the nodes that are not left out" in said["why"]
    assert "can never" not in said["why"]
    too_large, _ = decided(job(read(role(replicas=2, low=2))), nodes=(node("a", cpu=1),))
    assert "cannot start on the nodes that are there" in too_large["why"]


def test_a_plan_as_text_and_as_data_says_so_too() -> None:
    picture = shown(job(read(role(), excluded=without("a"))), nodes=(node("a"),))
    for name in ("fit", "fair"):
        plan = load_policy(name).optimize(picture.snapshot)
        (text, data) = (show(picture.snapshot, plan, excluded=picture.excluded) for show in (plan_text, as_data))
        for words in (text, str(data)):
            assert "the nodes that are not left out for it take 0; it can use the others again" in words
            assert "can never" not in words


def test_explain_says_of_a_replica_without_a_place_that_its_nodes_are_left_out() -> None:
    waits = job(read(nodes={"w": ("", "b")}, excluded=without("a")), pod("w-1", on="b"))
    s = shown(waits, nodes=(node("a"), node("b", cpu=1))).snapshot
    plan = load_policy("fit").optimize(s)
    lines = reason_texts.details(s, plan, 0, excluded=waits.read.notes.excluded.at(NOW))
    assert lines[0].endswith("keeps what it holds: no node that is not left out for it has room for the rest")
    assert "w: 0 more fit now; b lacks 1 cpu, 1 node is left out for this job" in lines
    assert not any("not what it may run on" in line for line in lines)


def test_an_exclusion_that_has_ended_has_no_effect() -> None:
    _, places = decided(job(read(role(), excluded=without("a", now=NOW - FIRST_SECONDS))), nodes=(node("a"),))
    assert places == {"w": ["a", "a"]}


def test_a_job_that_is_placed_again_keeps_its_other_replicas_and_the_record() -> None:
    fixed = job(read(nodes={"w": ("a", "b")}), pod("w-0", on="a"), pod("w-1", on="b"))
    write = place_again(fixed, {("w", 0)}, now=NOW, excluded=without("a"))
    given = write.body["metadata"]["annotations"]
    assert json.loads(given[keys.ALLOCATION])["nodes"] == {"w": ["", "b"]}
    assert Exclusions.parse(given[keys.EXCLUDED]) == without("a")
    assert "spec" not in write.body


def test_a_preemptible_job_begins_a_round_without_places() -> None:
    moves = job(read(role(low=1), nodes={"w": ("a", "b")}, is_preemptible=True), pod("w-0", on="a"), pod("w-1", on="b"))
    write = place_again(moves, {("w", 0)}, now=NOW, excluded=without("a"))
    parameters = {p["name"]: p["value"] for p in write.body["spec"]["arguments"]["parameters"]}
    assert json.loads(parameters["rounds"]) == ["1", "2"]
    assert json.loads(write.body["metadata"]["annotations"][keys.ALLOCATION])["nodes"] == {}
    assert Exclusions.parse(write.body["metadata"]["annotations"][keys.EXCLUDED]) == without("a")


def test_a_job_that_waits_starts_when_the_exclusion_ends() -> None:
    with lab() as at:
        at.cluster.node("a", cpu=4)
        at.cluster.submit(dijob("j", task(replicas=2)))
        record = without("a", now=at.cluster.wall() - FIRST_SECONDS + 90)
        at.cluster.annotate("j", **{"excluded-nodes": record.to_json()})
        at.until(lambda: at.decision("j").get("action") == "wait", "it waits")
        assert "left out for this job" in at.decision("j")["why"]
        at.until(lambda: len(at.cluster.running("j")) == 2, "it runs", seconds=200)

"""The node check: faulty nodes are left out for the job, and its gang is placed again without using backoffLimit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from diflow.allocator.reconcile.node_checks import by_rank, left_out
from diflow.allocator.watch.job import Job
from diflow.common import keys
from diflow.dijob.model import NodeCheck
from diflow.record import nodecheck
from diflow.record.allocation import Allocation
from diflow.record.exclusions import Exclusions
from diflow.record.nodecheck import Entry, Record
from diflow.record.pod import PodRecord
from tests.allocator.lab import job as dijob
from tests.allocator.lab import lab, task
from tests.allocator.plan.calls import reconcile
from tests.allocator.values import NOW, capacity, job, node, pod, read, role, tree

NODES = ("a", "b", "c")


def entry(of: PodRecord, product: float = 0.1, **over: Any) -> Entry:
    return Entry(of.identity.uid[: nodecheck.UID_CHARACTERS], {"product": product}, **over)


def checked(*products: float, is_preemptible: bool = False, max_moves: int = 3, **over: Any) -> Job:
    """A gang with a replica on each of three nodes, whose pods have these figures (0: none yet)."""
    pods = [pod(f"w-{i}", on=name, has_run=True) for i, name in enumerate(NODES)]
    entries = {i: entry(pods[i], product) for i, product in enumerate(products) if product}
    fields: dict[str, Any] = {
        "nodes": {"w": NODES},
        "is_preemptible": is_preemptible,
        "node_check": NodeCheck(max_moves=max_moves),
        "checks": Record("1", NOW - 1, entries),
        **over,
    }
    return job(read(role(replicas=3, low=1), **fields), *pods)


def writes(given: Job) -> list[Any]:
    return reconcile(given, capacity(*map(node, NODES)), now=NOW)


def test_a_slow_node_is_left_out_and_its_replica_alone_is_placed_again() -> None:
    (write,) = writes(checked(0.1, 0.31, 0.1))
    given = write.body["metadata"]["annotations"]
    assert json.loads(given[keys.ALLOCATION])["nodes"] == {"w": ["a", "", "c"]}
    (excluded,) = Exclusions.parse(given[keys.EXCLUDED]).entries
    text = "product 0.31 s, 3.1 times the others' median 0.1 s"
    assert (excluded.node, excluded.source, excluded.reason) == ("b", "node-check", text)
    assert write.note is not None
    assert write.note.reason == "NodeLeftOut"
    assert f"node b: {text}" in write.note.message
    assert "not counted" in write.note.message
    assert json.loads(given[keys.DECISION])["why"] == f"its node check left out node b: {text}"
    assert "spec" not in write.body  # no parameter of Argo's changes: nothing counts


def test_the_pods_on_it_are_stopped_after_that_and_no_others() -> None:
    before = checked(0.1, 0.31, 0.1)
    (write,) = writes(before)
    given = write.body["metadata"]["annotations"]
    after = checked(
        0.1,
        0.31,
        0.1,
        allocation=Allocation.parse(given[keys.ALLOCATION]),
        excluded=Exclusions.parse(given[keys.EXCLUDED]),
    )
    (stop,) = [w for w in writes(after) if w.kind.name == "Pod" and not w.subresource]
    assert stop.target.name == before.pods[1].identity.name
    # A graceful end, whose message Argo does not count against backoffLimit.
    assert stop.body == {"spec": {"activeDeadlineSeconds": 1}}


def test_a_preemptible_gang_moves_to_a_new_round() -> None:
    (write,) = writes(checked(0.1, 0.31, 0.1, is_preemptible=True))
    parameters = {p["name"]: p["value"] for p in write.body["spec"]["arguments"]["parameters"]}
    assert parameters["current"] == "2"
    assert json.loads(write.body["metadata"]["annotations"][keys.ALLOCATION])["nodes"] == {}
    assert Exclusions.parse(write.body["metadata"]["annotations"][keys.EXCLUDED]).at(NOW) == {"b"}


def test_healthy_nodes_change_nothing() -> None:
    assert left_out(checked(0.1, 0.12, 0.1), NOW) is None


def test_nothing_is_decided_before_all_have_reported_or_the_time_is_nearly_over() -> None:
    assert left_out(checked(0.1, 0.31, 0), NOW) is None
    assert left_out(checked(0.1, 0.31, 0.1), NOW) is not None
    assert left_out(checked(0.1, 0.31, 0), NOW + 90) is not None


def test_results_of_another_round_or_of_other_pods_count_for_nothing() -> None:
    given = checked(0.1, 0.31, 0.1)
    entries = given.read.notes.checks.entries
    assert left_out(checked(checks=Record("2", NOW, entries)), NOW) is None
    others = {rank: Entry("ffffffff", one.figures) for rank, one in entries.items()}
    assert left_out(checked(checks=Record("1", NOW, others)), NOW) is None


def test_a_job_without_a_node_check_has_no_results() -> None:
    entries = checked(0.1, 0.31, 0.1).read.notes.checks.entries
    given = checked(node_check=None, checks=Record("1", NOW, entries))
    assert left_out(given, NOW) is None
    assert writes(given) == writes(checked(node_check=None, checks=Record()))


def test_the_gang_is_placed_again_as_often_as_it_may() -> None:
    record = Exclusions()
    for number in range(2):
        given = checked(0.1, 0.31, 0.1, excluded=record, max_moves=2)
        found = left_out(given, NOW + 90_000 * number)  # the exclusion before has ended
        assert found is not None
        record = found.excluded
        assert nodecheck.moves(record) == number + 1
    assert left_out(checked(0.1, 0.31, 0.1, excluded=record, max_moves=2), NOW + 200_000) is None
    assert left_out(checked(0.1, 0.31, 0.1, max_moves=0), NOW) is None


def test_a_node_that_is_left_out_already_is_no_news() -> None:
    record = Exclusions().without("b", reason="exit code 201", source="failure", now=NOW)
    assert left_out(checked(0.1, 0.31, 0.1, excluded=record), NOW) is None


def test_a_node_whose_check_has_failed_is_named_with_the_reason() -> None:
    given = checked(0.1, 0.1, 0.1)
    entries = {**given.read.notes.checks.entries, 2: entry(given.pods[2], failed="the matrix product is wrong")}
    found = left_out(checked(checks=Record("1", NOW, entries)), NOW)
    assert found is not None
    assert found.text == "node c: the matrix product is wrong"
    assert [p.host for p in found.pods] == ["c"]


def test_finished_replicas_are_not_waited_for() -> None:
    given = checked(0, 0.31, 0.1, tree=tree(w_0="Succeeded"))
    assert left_out(given, NOW) is not None


def test_ranks_are_counted_over_all_tasks() -> None:
    pods = [pod("s-0", on="a"), pod("w-0", on="a"), pod("w-1", on="b"), pod("w-7", on="b")]
    given = read(role("s", 1), role("w", 2))
    assert {rank: p.place.index for rank, p in by_rank(given, pods).items() if p.place} == {0: 0, 1: 0, 2: 1}


@pytest.mark.parametrize("preemptible", [True, False])
def test_a_gang_leaves_a_slow_node_and_runs(preemptible: bool) -> None:
    """The whole way in the lab: places, results, another place, and no failure."""
    with lab() as at:
        for name in "abcd":
            at.cluster.node(name, cpu=1)
        given = dijob("j", task(replicas=3), preemptible=preemptible, node_check=NodeCheck())
        at.cluster.submit(given)
        at.until(lambda: len(at.cluster.running("j")) == 3, "it runs")
        pods = at.cluster.of("j")
        slow = min(at.cluster.running("j").values())
        entries = {}
        for name, one in pods.items():
            uid = one["metadata"]["uid"][: nodecheck.UID_CHARACTERS]
            product = 0.9 if one["spec"]["nodeName"] == slow else 0.1
            entries[int(name.rpartition("-")[2])] = Entry(uid, {"product": product})
        at.cluster.annotate("j", **{"node-check": Record("1", at.cluster.wall(), entries).to_json()})
        at.until(
            lambda: len(at.cluster.running("j")) == 3 and slow not in at.cluster.running("j").values(),
            "it runs elsewhere",
            seconds=200,
        )
        assert at.cluster.restarts("j") == 0
        assert [reason for reason, _ in at.events("j")].count("NodeLeftOut") == 1
        assert "node-check" in at.cluster.workflow("j")["metadata"]["annotations"][keys.EXCLUDED]
        at.rest()  # nothing more changes


def test_a_replica_that_never_reports_does_not_let_the_work_begin_on_a_faulty_node() -> None:
    """Nothing changes after the last result: with time alone the gang is placed again before its check ends."""
    with lab() as at:
        for name in "abcd":
            at.cluster.node(name, cpu=1)
        at.cluster.submit(dijob("j", task(replicas=3), node_check=NodeCheck(timeout_seconds=120)))
        at.until(lambda: len(at.cluster.running("j")) == 3, "it runs")
        at.rest()
        began = at.cluster.wall() - 84  # who misses a peer reports late
        pods, bad = at.cluster.of("j"), at.cluster.running("j")["worker-1"]
        uids = [pods[f"worker-{rank}"]["metadata"]["uid"][: nodecheck.UID_CHARACTERS] for rank in (0, 1)]
        entries = {0: Entry(uids[0], unmet=(2,)), 1: Entry(uids[1], failed="the product is wrong", unmet=(2,))}
        at.cluster.annotate("j", **{"node-check": Record("1", began, entries).to_json()})
        at.until(lambda: at.cluster.wall() >= began + 89, "its time is nearly over")
        assert at.annotation("j", "excluded-nodes") == ""
        at.until(lambda: "node-check" in at.annotation("j", "excluded-nodes"), "the node is left out", seconds=3)
        assert Exclusions.parse(at.annotation("j", "excluded-nodes")).at(at.cluster.wall()) == {bad}


@pytest.mark.parametrize("preemptible", [True, False])
def test_a_check_of_the_users_own_that_fails_leaves_its_node_out_and_counts_for_nothing(preemptible: bool) -> None:
    with lab() as at:
        for name in "abc":
            at.cluster.node(name, cpu=1)
        check = NodeCheck(image="my/check", command=("check",))
        at.cluster.submit(dijob("j", task(replicas=2), preemptible=preemptible, node_check=check))
        at.until(lambda: len(at.cluster.running("j")) == 2, "it runs")
        bad = at.cluster.running("j")["worker-1"]
        at.cluster.finish(at.cluster.of("j")["worker-1"]["metadata"]["name"], code=3, container="diflow-check")
        at.until(
            lambda: len(at.cluster.running("j")) == 2 and bad not in at.cluster.running("j").values(),
            "it runs elsewhere",
            seconds=200,
        )
        assert at.cluster.restarts("j") == 0
        record = Exclusions.parse(at.cluster.workflow("j")["metadata"]["annotations"][keys.EXCLUDED])
        assert record.at(at.cluster.wall()) == {bad}
        assert record.entries[0].reason == "worker-1: node check, Error (exit code 3)"
        assert nodecheck.moves(record) == 1


def test_after_max_moves_failures_of_such_a_check_the_job_ends() -> None:
    with lab() as at:
        for name in "abcd":
            at.cluster.node(name, cpu=1)
        check = NodeCheck(image="my/check", command=("check",), max_moves=2)
        at.cluster.submit(dijob("j", task(replicas=1), node_check=check))
        for _ in range(3):
            at.until(lambda: len(at.cluster.running("j")) == 1, "it runs", seconds=200)
            at.cluster.finish(at.cluster.of("j")["worker-0"]["metadata"]["name"], code=3, container="diflow-check")
            at.until(lambda: not at.cluster.running("j"), "that is seen")
        at.until(lambda: at.cluster.phase("j") == "Failed", "it ends", seconds=120)
        assert "its gang was placed again as often as it may" in at.decision("j")["why"]


def test_a_failure_of_the_work_counts_as_ever_beside_such_a_check() -> None:
    with lab() as at:
        at.cluster.node("a", cpu=1)
        check = NodeCheck(image="my/check", command=("check",))
        at.cluster.submit(dijob("j", task(replicas=1), backoff_limit=1, node_check=check))
        for _ in range(2):
            at.until(lambda: len(at.cluster.running("j")) == 1, "it runs", seconds=200)
            at.cluster.finish(at.cluster.of("j")["worker-0"]["metadata"]["name"], code=201)
            at.until(lambda: not at.cluster.running("j"), "that is seen")
        at.until(lambda: at.cluster.phase("j") == "Failed", "it ends", seconds=120)
        assert keys.EXCLUDED not in at.cluster.workflow("j")["metadata"]["annotations"]

"""diflow nodes: what node checks and failures said about each node."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from diflow.common import keys
from diflow.dijob.model import NodeCheck
from diflow.jobs import nodes
from diflow.kube.kinds import WORKFLOW
from diflow.record.allocation import Allocation
from diflow.record.exclusions import Exclusions
from diflow.record.nodecheck import Entry, Record
from tests.cli.placed import dijob, put
from tests.cli.runner import Cli


def has(
    diflow: Cli,
    name: str,
    *places: str,
    products: tuple[float, ...] = (),
    failures: tuple[tuple[str, str], ...] = (),
    left_out: tuple[str, ...] = (),
    namespace: str = "default",
) -> dict[str, Any]:
    """A job with a replica on each of these nodes, with what it has seen of them."""
    put(diflow, dijob(name, {"w": len(places)}, node_check=NodeCheck()), at={"w": places}, namespace=namespace)
    made = diflow.api.objects[WORKFLOW.path(namespace)][name]
    annotations = made["metadata"]["annotations"]
    annotations[keys.ALLOCATION] = Allocation("1", {"w": places}).to_json()
    entries = {rank: Entry(f"{rank:08d}", {"product": product}) for rank, product in enumerate(products)}
    annotations[keys.NODE_CHECK] = Record("1", time.time(), entries).to_json()
    record = Exclusions()
    for node in left_out:
        record = record.without(node, reason="product 0.9 s", source="node-check", now=time.time())
    annotations[keys.EXCLUDED] = record.to_json()
    made.setdefault("status", {})["nodes"] = {
        f"n{i}": {
            "id": f"n{i}",
            "name": f"{name}.round(0:1).w({i}:{i}).w(0)",
            "type": "Pod",
            "phase": "Failed",
            "hostNodeName": host,
            "message": message,
        }
        for i, (host, message) in enumerate(failures)
    }
    return diflow.api.add(WORKFLOW, made, namespace=namespace)


def lines(diflow: Cli, *options: str) -> list[list[str]]:
    return [line.split("   ") for line in diflow("nodes", *options).out.splitlines()]


def test_each_node_is_listed_with_what_jobs_have_seen_the_most_suspicious_first(diflow: Cli) -> None:
    has(diflow, "one", "a", "b", "c", products=(0.1, 0.1, 0.9), left_out=("c",))
    has(diflow, "two", "a", "c", products=(0.1, 0.2), failures=(("b", "main: Error (exit code 201)"),) * 2)
    found = nodes.seen(diflow.api.objects[WORKFLOW.path("default")].values(), now=time.time())
    assert [(one.node, one.checked, one.failed, dict(one.failures)) for one in found] == [
        ("c", 2, 0, {}), ("b", 1, 1, {"hardware": 2}), ("a", 2, 0, {}),
    ]  # fmt: skip
    assert found[0].worst is not None
    assert found[0].worst.value / found[0].worst.median == pytest.approx(9)
    out = diflow("nodes").out.splitlines()
    assert out[0].split() == ["NODE", "CHECKED", "SLOWEST", "FAILURES", "LEFT", "OUT", "BY"]
    assert out[1].split()[:4] == ["c", "2", "product", "9x"]
    assert "1 (default/one: product 0.9 s)" in out[1]
    assert "2 × hardware" in out[2]


def test_a_failure_without_a_known_meaning_is_named_by_its_exit_code(diflow: Cli) -> None:
    messages = ("main: Error (exit code 3)",) * 2 + ("diflow-monitor: Error (exit code 3)", "something odd")
    has(diflow, "one", "a", failures=tuple(("a", message) for message in messages))
    out = diflow("nodes").out
    assert "2 × exit code 3, 1 × another container, 1 × unknown reason" in out


def test_stopped_and_evicted_replicas_say_nothing_of_their_node(diflow: Cli) -> None:
    messages = (
        "Pod was active on the node longer than the specified deadline",
        "pod deleted",
        "The node was low on resource: memory",
        "workflow shutdown with strategy:  Stop",
        "",
    )
    has(diflow, "one", "a", failures=tuple(("a", message) for message in messages))
    assert "no results: no job has" in diflow("nodes").err


def test_other_forms_and_namespaces(diflow: Cli) -> None:
    assert "no results: no job has" in diflow("nodes").err
    has(diflow, "one", "a", "b", products=(0.1, 0.1))
    has(diflow, "two", "x", failures=(("x", "diflow-check: Error (exit code 3)"),), namespace="other")
    assert diflow("nodes", "-o", "name").out.split() == ["a", "b"]
    assert diflow("nodes", "-A", "-o", "name").out.split() == ["x", "a", "b"]
    (data, *_) = json.loads(diflow("nodes", "-A", "-o", "json").out)
    assert data == {
        "node": "x", "checkedBy": 0, "worst": None, "failedJobs": 1, "failures": {"node check": 1}, "leftOutBy": {},
    }  # fmt: skip


def test_what_users_write_into_workflows_breaks_nothing(diflow: Cli) -> None:
    made = has(
        diflow, "one", "a", "b", products=(0.1, 0.1), failures=(("\x1b[31m" * 200, "main: Error (exit code 1)"),)
    )
    has(diflow, "two", "a", "b", products=(0.1, 0.3))
    for key, text in (
        (keys.NODE_CHECK, "[" * 50_000),
        (keys.EXCLUDED, json.dumps([{"node": "\x1b[2J", "reason": "\x1b", "since": 1, "until": 9e10}])),
        (keys.ALLOCATION, "{"),
    ):
        made["metadata"]["annotations"][key] = text
    diflow.api.add(WORKFLOW, made)
    result = diflow("nodes")
    assert result.code == 0
    assert "\x1b" not in result.out
    assert "\n".join(result.out.splitlines()[1:]).count("product") == 2


def test_a_job_counts_once_for_each_node_and_the_list_is_bounded(monkeypatch: pytest.MonkeyPatch, diflow: Cli) -> None:
    has(diflow, "one", *("a",) * 5, products=(0.1,) * 5, failures=(("a", "main: Error (exit code 1)"),) * 9)
    (seen,) = nodes.seen(diflow.api.objects[WORKFLOW.path("default")].values(), now=time.time())
    assert (seen.checked, seen.failed, seen.failures.total()) == (1, 1, 9)
    monkeypatch.setattr(nodes, "MOST_NODES", 3)
    has(diflow, "many", *"bcdefgh", products=(0.1,) * 7)
    assert len(diflow("nodes", "-o", "name").out.split()) == 3


def test_a_namespace_that_makes_nodes_up_fills_no_memory_and_hides_no_others(
    diflow: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "MOST_NODES", 6)
    for number in range(5):
        has(diflow, f"bad-{number}", *(f"no-{number}-{i}" for i in range(4)), failures=(), namespace="bad")
    has(diflow, "good", "real", products=(1.0,), namespace="good")
    workflows = [
        one for space in ("bad", "good") for one in diflow.api.objects[WORKFLOW.path(space)].values()
    ]  # fmt: skip
    for one in workflows:
        one["metadata"]["annotations"][keys.NODE_CHECK] = Record(
            "1", time.time(), {rank: Entry(f"{rank:08d}", {"product": 1.0}) for rank in range(4)}
        ).to_json()
    kept: list[int] = []
    merge = nodes._merge

    def counted(into: nodes.Seen, one: nodes.Seen) -> None:
        kept.append(1)
        merge(into, one)

    monkeypatch.setattr(nodes, "_merge", counted)
    nodes.seen(workflows, now=time.time())
    assert len(kept) == 6 + 1

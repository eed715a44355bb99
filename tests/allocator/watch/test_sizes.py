"""A job beyond the size limits is held with a one-sentence reason, and its data are not kept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from diflow.allocator.watch import records
from diflow.allocator.watch.records import planning_record_of
from diflow.allocator.write.patches import new_round
from diflow.common import keys
from diflow.common.limits import MOST_CONDITIONS, MOST_MOVES, MOST_PORTS, MOST_REPLICAS, MOST_RESOURCES, MOST_TASKS
from diflow.record import untrusted
from diflow.record.allocation import Allocation
from tests.allocator.values import NOW, changed, read, role
from tests.allocator.watch.test_records import workflow

Json = dict[str, Any]


def hostile(tasks: list[Json], *, granted: Json | None = None) -> Json:
    """A Workflow with these values, created without `diflow submit`."""
    job = {
        "apiVersion": "diengine.opendilab.org/v2alpha1",
        "kind": "DIJob",
        "metadata": {"name": "one"},
        "spec": {"tasks": tasks},
    }
    counts = granted or {task.get("name", ""): min(task.get("replicas", 1), 3) for task in tasks}
    return workflow(annotations={keys.DIJOB: json.dumps(job)}, parameters={"granted": json.dumps({"1": counts})})


def task(name: str = "w", *, replicas: int = 1, spec: Json | None = None, **container: Any) -> Json:
    main = {"name": "di-container", "image": "x", "command": ["x"], **container}
    return {
        "name": name,
        "type": "none",
        "replicas": replicas,
        "template": {"spec": {"containers": [main], **(spec or {})}},
    }


MANY_RESOURCES = {f"a.example/{i}": "1" for i in range(MOST_RESOURCES + 1)}
MANY_PORTS = [{"containerPort": i, "hostPort": i} for i in range(1, MOST_PORTS + 2)]
MANY_LABELS = {f"label-{i}": "x" for i in range(MOST_CONDITIONS + 1)}


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        ([task(replicas=MOST_REPLICAS + 1)], "2,001 replicas"),
        ([task("a", replicas=MOST_REPLICAS), task("b")], "2,001 replicas"),
        ([task(f"t{i}") for i in range(MOST_TASKS + 1)], "tasks"),
        ([task(resources={"requests": MANY_RESOURCES})], "different resources"),
        ([task(ports=MANY_PORTS)], "host ports"),
        ([task(spec={"nodeSelector": MANY_LABELS})], "conditions on nodes"),
    ],
)  # fmt: skip
def test_a_job_that_is_too_large_is_held_with_one_sentence(tasks: list[Json], words: str) -> None:
    found = planning_record_of(hostile(tasks))
    assert found.problem
    assert words in found.problem or "is not a valid job" in found.problem
    assert found.needs.roles == ()
    assert found.key == "ns/one"


def test_what_the_model_lets_through_is_held_against_the_bounds_again() -> None:
    many = changed(read(), roles=(role("a", MOST_REPLICAS), role("b", 1)))
    assert records.too_large(many) == "it has 2,001 replicas in all, and a job may have 2,000: ask for fewer"
    assert records.too_large(read(role("a", MOST_REPLICAS))) == ""


def test_replicas_that_somebody_granted_by_hand_are_counted_too() -> None:
    found = planning_record_of(hostile([task("w", replicas=1)], granted={"w": MOST_REPLICAS + 1}))
    assert "2,001 replicas" in found.problem


@pytest.mark.parametrize("key", ["spec", "status", "labels", "annotations"])
@pytest.mark.parametrize(
    "value", [5, "text", ["list"], {"nodes": 5}, {"arguments": "x"}, {"suspend": {}, "arguments": [1]}]
)
def test_a_workflow_of_which_a_part_is_something_else_is_held(key: str, value: Any) -> None:
    made = workflow()
    if key in ("labels", "annotations"):
        made["metadata"][key] = value
    else:
        made[key] = value
    found = planning_record_of(made)
    assert found.key == "ns/one"
    assert found.problem or found.needs.roles or found.has_ended


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00", "9999-12-31T23:59:59-23:59", "yesterday", "²", "9" * 5000])
def test_no_time_is_so_strange_that_it_raises(time: str) -> None:
    assert 0.0 <= untrusted.seconds(time) < 1e12


@pytest.mark.parametrize("text", ["²", "9" * 5000, "-1", "1e30", ""])
def test_restarts_before_are_a_number_or_none(text: str) -> None:
    found = planning_record_of(workflow(annotations={keys.RESTARTS_BEFORE: text, keys.ROUNDS_BEFORE: text}))
    assert (found.restarts, found.reschedules) == (0, 0)


def test_moves_beyond_all_measure_are_a_number_that_arrays_hold() -> None:
    text = json.dumps({"round": "1", "nodes": {"worker": ["a"]}, "moves": 10**30})
    found = Allocation.parse(text)
    assert found is None or found.moves <= MOST_MOVES


def test_one_move_more_than_can_be_written_is_still_an_allocation_that_reads_back() -> None:
    most = Allocation("1", {"w": ("a",)}, first=NOW, moves=MOST_MOVES)
    assert Allocation.parse(most.to_json()) == most
    write = new_round(read(allocation=most), {"w": 1}, {"w": ("b",)}, now=NOW)
    found = Allocation.parse(write.body["metadata"]["annotations"][keys.ALLOCATION])
    assert found is not None
    assert found.moves == MOST_MOVES


def test_rounds_that_are_no_numbers_do_not_stop_the_next_round() -> None:
    write = new_round(read(rounds=("²", "1", "9" * 4400, "2"), current="2"), {"w": 1}, {}, now=NOW)
    parameters = {p["name"]: p["value"] for p in write.body["spec"]["arguments"]["parameters"]}
    assert parameters["current"] == "3"

"""What the caches keep for the status page of a Workflow, a pod and a node, whatever users wrote into them."""

from __future__ import annotations

import base64
import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from diflow.common import keys, quantities, words
from diflow.record.pod import serving_record_of
from diflow.record.reports import read
from diflow.record.status import status
from diflow.server.page.facts import JobFacts, pod_facts, trim_node
from tests.server.page_scene import GPU, NOW, MadeJob, foreign_pod, made_node, trim_workflow, when

RECORDINGS = sorted((Path(__file__).parents[2] / "data" / "recordings").glob("*.json"))


def facts(job: MadeJob) -> JobFacts:
    found = trim_workflow(job.workflow())
    assert found is not None
    return found


def counts(job: JobFacts) -> list[tuple[int, int, int]]:
    """(minutes ago, running, waiting) of each step."""
    return [(round((NOW - step.at) / 60), step.total, step.waiting) for step in job.history.steps]


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_a_real_workflow_has_the_phase_and_the_words_of_diflow_list(path: Path) -> None:
    workflow = json.loads(path.read_text())["workflow"]
    seen = status.derive(workflow)
    found = trim_workflow(workflow)
    assert found is not None
    assert (found.phase, found.message, found.restarts) == (seen.phase, seen.message, seen.restarts)
    assert found.history.steps[-1].total == 0, "it has ended"
    assert found.history.peak == seen.replicas


def test_a_job_that_moved_shows_each_round_with_its_replicas() -> None:
    job = MadeJob("a", {"w": (1, 3, 4)}, preemptible=True, rounds=("1", "2"), granted={"w": 3}, submitted=50)
    job.pod("w", 0, made=50, ready=50, ended=20)
    for i in range(3):
        job.pod("w", i, round_="2", made=19, ready=19)
    found = facts(job)
    assert counts(found) == [(50, 1, 0), (20, 0, 0), (19, 3, 0)]
    assert [round((NOW - at) / 60) for at in found.history.rounds] == [19]
    assert (found.reschedules, found.record.round) == (1, "2")


def test_a_replica_counts_once_while_its_next_pod_waits_for_its_last_one_to_leave() -> None:
    job = MadeJob("a", {"w": (1, 6, 6)}, preemptible=True, rounds=("1", "2"), granted={"w": 4}, submitted=50)
    for i in range(6):
        job.pod("w", i, made=50, ready=49, ended=18)
    for i in range(4):
        job.pod("w", i, round_="2", made=20, ready=17)
    found = facts(job)
    assert counts(found) == [(50, 6, 0), (20, 6, 0), (18, 4, 0)]
    assert found.history.peak == 6, "never more than the job may have"


def test_a_replica_that_never_ran_is_shown_as_waiting_until_it_was_given_up() -> None:
    job = MadeJob("a", {"w": 1}, submitted=50).pod(
        "w", 0, made=40, ended=10, phase="Failed", message="ImagePullBackOff"
    )
    assert counts(facts(job)) == [(50, 0, 0), (40, 0, 1), (10, 0, 0)]


def test_pods_released_behind_their_gate_wait_no_longer_than_until_the_next_round() -> None:
    job = MadeJob("a", {"w": (1, 1, 4)}, preemptible=True, rounds=("1", "2"), granted={"w": 2}, submitted=50)
    released = "released: another round, or fewer replicas"
    job.pod("w", 0, made=50, phase="Failed", message=released)  # Argo writes no finishedAt for it
    for i in range(2):
        job.pod("w", i, round_="2", made=40, ready=40)
    assert counts(facts(job)) == [(50, 0, 1), (40, 2, 0)]


def test_a_replica_that_ran_waited_until_its_job_got_its_first_nodes() -> None:
    first = json.dumps({"round": "1", "nodes": {"w": ["n"]}, "first": NOW - 600, "since": NOW - 600})
    job = MadeJob("a", {"w": 1}, submitted=50, annotations={keys.ALLOCATION: first}).pod("w", 0, made=50, ready=10)
    assert counts(facts(job)) == [(50, 0, 1), (10, 1, 0)]


def test_a_long_history_is_thinned_and_keeps_its_lows_its_span_and_its_end() -> None:
    job = MadeJob("a", {"w": 1}, submitted=1001, backoff_limit=1000)
    for i in range(1000):
        job.pod("w", 0, tries=i, made=1000 - i, ready=1000 - i, ended=999.5 - i, phase="Failed", message="exit code 1")
    steps = facts(job).history.steps
    assert len(steps) <= 100
    assert {step.total for step in steps} == {0, 1}
    assert (round((NOW - steps[0].at) / 60), steps[-1].total) == (1001, 0)
    assert [step.at for step in steps] == sorted(step.at for step in steps)


def test_desired_granted_and_observed_are_never_mixed() -> None:
    job = MadeJob("a", {"learner": 1, "w": (2, 6, 8)}, preemptible=True, granted={"learner": 1, "w": 3})
    job.pod("learner", 0, made=9, ready=9).pod("w", 0, made=9, ready=9).pod("w", 1, made=9).pod("w", 2, made=9)
    tasks = {t.name: (t.low, t.high, t.desired, t.granted, t.ready) for t in facts(job).tasks}
    assert tasks == {"learner": (1, 1, 1, 1, 1), "w": (2, 8, 6, 3, 1)}


def test_a_job_without_a_place_waits_and_is_granted_nothing() -> None:
    job = MadeJob("a", {"w": 2}, placed=False, decision=("wait", "no GPU is free", 3)).pod("w", 0, made=9)
    found = facts(job)
    assert (found.is_queued, found.why, round(NOW - found.decided)) == (True, "no GPU is free", 180)
    assert [task.granted for task in found.tasks] == [0]
    assert not facts(MadeJob("a", {"w": 2}, placed=False, gang=False)).is_queued, "Argo alone runs it"


def test_a_workflow_of_somebody_else_is_not_kept() -> None:
    workflow = MadeJob("a", {"w": 1}).workflow()
    del workflow["metadata"]["labels"][keys.MANAGED_BY]
    assert trim_workflow(workflow) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (keys.PARAM_GRANTED, '{"1":{"w":1000000000000}}'),
        (keys.PARAM_GRANTED, '{"1":"no"}'),
        (keys.PARAM_GRANTED, "[" * 100_000),
        (keys.PARAM_ROUNDS, "{"),
        (keys.PARAM_REPLICAS, '{"w":-4,"x":true}'),
        (keys.PARAM_PROFILINGS, '{"speed":NaN,"progress":1e999,"ranks":7}'),
        (keys.PARAM_PROFILINGS, '{"speed":"<b>"}'),
        (keys.PARAM_INCARNATIONS, "[1]"),
    ],
)
def test_what_somebody_wrote_into_a_parameter_makes_no_error(name: str, value: str) -> None:
    workflow = MadeJob("a", {"w": 1}).pod("w", 0, made=9, ready=9).workflow()
    for parameter in workflow["spec"]["arguments"]["parameters"]:
        parameter["value"] = value if parameter["name"] == name else parameter["value"]
    found = trim_workflow(workflow)
    assert found is not None
    assert (found.namespace, found.name) == ("vision", "a")
    assert found.speed is None
    assert found.progress is None


@pytest.mark.parametrize(
    "change",
    [
        {"status": {"nodes": {"x": 7}}},
        {"status": {"phase": ["Running"]}},
        {"spec": {"arguments": {"parameters": {"no": "list"}}}},
        {"status": {"compressedNodes": "bm90IGd6aXA="}},
    ],
)
def test_a_workflow_of_an_impossible_shape_is_kept_as_one_that_cannot_be_read(change: dict[str, Any]) -> None:
    found = trim_workflow({**MadeJob("a", {"w": 1}).workflow(), **change})
    assert found is not None
    assert found.name == "a"


@pytest.mark.parametrize("inside", [b" " * 100_000_000, b"{}," * 2_000_000], ids=["long", "many"])
def test_packed_nodes_that_unpack_to_far_too_much_are_not_unpacked(inside: bytes) -> None:
    workflow = MadeJob("a", {"w": 1}).workflow()
    bomb = base64.b64encode(gzip.compress(b"[" + inside, compresslevel=1)).decode()
    workflow["status"] = {"phase": "Running", "compressedNodes": bomb}
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        found = trim_workflow(workflow)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert found is not None
    assert found.message == "its nodes are too many to be shown"
    assert peak < 32 * 1024 * 1024


def test_packed_nodes_are_read_like_others() -> None:
    job = MadeJob("a", {"w": 2}).pod("w", 0, made=9, ready=9).pod("w", 1, made=9, ready=9)
    workflow = job.workflow()
    nodes = json.dumps(workflow["status"].pop("nodes")).encode()
    workflow["status"]["compressedNodes"] = base64.b64encode(gzip.compress(nodes)).decode()
    assert trim_workflow(workflow) == facts(job)


@pytest.mark.parametrize("key", [keys.ALLOCATION, keys.DECISION, keys.BOUNDS, keys.DIJOB, keys.HISTORY_BEFORE])
@pytest.mark.parametrize("value", ["", "{", "[]", '{"nodes":3,"why":{},"time":7,"first":"x","since":1e400}', '{"w":1}'])
def test_what_somebody_wrote_into_an_annotation_makes_no_error(key: str, value: str) -> None:
    workflow = MadeJob("a", {"w": 1}).pod("w", 0, made=9, ready=9).workflow()
    workflow["metadata"]["annotations"][key] = value
    found = trim_workflow(workflow)
    assert found is not None
    assert found.name == "a"


def test_the_speed_is_what_the_job_says_or_what_its_ranks_say_together() -> None:
    assert read('{"speed": 12.5, "ranks": {"0": {"speed": 1}}}').speed == 12.5
    ranks = '{"0": {"speed": 2.0}, "1": {"speed": 3.0}, "2": {"speed": -1}, "3": "x"}'
    assert read(f'{{"ranks": {ranks}}}').speed == 5.0
    assert read('{"speed": 0}').speed is None


def test_a_pod_has_its_replica_its_node_and_what_it_asks_for() -> None:
    job = MadeJob("a", {"w": 2}, cpu="1500m", memory="2Gi", gpus=2)
    job.pod("w", 1, made=9, ready=8, node="gpu-1").pod("w", 0, made=9)
    placed, gated = (pod_facts(pod, serving_record_of(pod)) for pod in job.pods)
    assert placed is not None
    assert (placed.record.workflow, placed.replica) == ("a", "w-1")
    assert (placed.record.where, placed.record.is_ready) == ("gpu-1", True)
    assert placed.record.request == {"cpu": 1500, "memory": 2048, GPU: 2, "pods": 1}
    assert gated is not None
    assert (gated.record.where, gated.record.is_ready) == ("", False)
    assert "admitted" in gated.waiting


def test_a_pod_that_has_ended_holds_nothing_and_a_foreign_one_is_no_replica() -> None:
    pod = foreign_pod("x", "gpu-1")
    kept = pod_facts(pod, serving_record_of(pod))
    assert kept is not None
    assert (kept.record.workflow, kept.record.task) == ("", "")
    ended = {**pod, "status": {"phase": "Succeeded"}}
    assert pod_facts(ended, serving_record_of(ended)) is None


def test_a_node_tells_whether_it_is_ready_and_since_when_it_is_not() -> None:
    assert trim_node(made_node("a")).state == "ready"
    assert trim_node(made_node("a", closed=True)).state == "cordoned"
    down = trim_node(made_node("a", down=7))
    assert (down.state, round((NOW - (down.not_ready_since or 0)) / 60)) == ("not ready", 7)
    assert dict(down.allocatable)[GPU] == 8


@pytest.mark.parametrize(
    ("resource", "quantity", "amount", "shown"),
    [
        ("cpu", "250m", 250, "0.25"),
        ("cpu", "96", 96_000, "96"),
        ("memory", "1Gi", 1024, "1Gi"),
        ("memory", "1536Mi", 1536, "1.5Gi"),
        ("memory", "24581684Ki", 24_006, "23.4Gi"),  # as a kubelet writes what a node has
        ("memory", "128974848", 123, "123Mi"),
        ("memory", "1e6Ki", 0, "0Mi"),
        ("memory", "134217728e0", 128, "128Mi"),
        ("memory", "3Ti", 3 * 1024**2, "3Ti"),
        (GPU, "8", 8, "8"),
        (GPU, "<b>", 0, "0"),
        (GPU, "1e99", quantities.MOST, "1e+15"),
    ],
)
def test_quantities_are_read_and_written(resource: str, quantity: str, amount: int, shown: str) -> None:
    found = quantities.read({resource: quantity})[resource]
    assert found == amount
    assert words.quantity(resource, found) == shown


def test_what_a_pod_asks_for_counts_init_containers_sidecars_and_overhead() -> None:
    def container(cpu: str, **more: str) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    spec = {
        "containers": [container("1"), {"resources": {"limits": {"cpu": "2"}}}],
        "initContainers": [container("500m", restartPolicy="Always"), container("7")],
        "overhead": {"cpu": "100m"},
    }
    assert quantities.of_pod(spec) == {"cpu": 7600, "pods": 1}


def test_times_that_are_none_are_no_times() -> None:
    job = MadeJob("a", {"w": 1}, submitted=5).pod("w", 0, made=4, ready=4)
    workflow = job.workflow()
    workflow["status"]["nodes"] = {
        name: {**node, "startedAt": "yesterday", "finishedAt": None} for name, node in job.nodes.items()
    }
    found = trim_workflow(workflow)
    assert found is not None
    assert [step.total for step in found.history.steps] == [0]
    assert when(0) == "2026-11-21T12:00:00Z"

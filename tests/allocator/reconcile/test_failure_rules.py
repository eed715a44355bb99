"""What follows from failures by the failure policy: counted, elsewhere, with more memory, or the end of the job.

The rows are those of DLRover's job master, each with its numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from diflow import DIJob, Task
from diflow.allocator.settings import AllocatorSettings
from diflow.kube.kinds import POD
from diflow.record import untrusted
from diflow.record.exclusions import MOST_EXCLUDED, Exclusions
from tests.allocator import values
from tests.allocator.lab import Lab, job, lab
from tests.allocator.plan.test_planning import shown

GIB = 1024


@pytest.fixture
def at() -> Iterator[Lab]:
    with lab(settings=AllocatorSettings(writers=1, debounce_seconds=0.0, between_rounds_seconds=3.0)) as made:
        for name in ("a", "b", "c"):
            made.cluster.node(name, cpu=4, memory="16Gi")
        yield made
        assert made.cluster.problems == []


def task(*, replicas: int = 1, memory: str = "2Gi", cpu: str = "1", **fields: Any) -> Task:
    amounts = {"cpu": cpu, "memory": memory}
    container = {"name": "di-container", "image": "x", "resources": {"requests": amounts, "limits": amounts}}
    return Task(name="w", replicas=replicas, template={"spec": {"containers": [container]}}, **fields)


def asks(
    *rules: dict[str, Any], replicas: int = 1, preemptible: bool = False, backoff_limit: int = 1, **of: Any
) -> DIJob:
    return job(
        "j",
        task(replicas=replicas, **of),
        preemptible=preemptible,
        backoff_limit=backoff_limit,
        failure_policy={"rules": list(rules)},
    )


def codes(action: str, *values: int) -> dict[str, Any]:
    return {"action": action, "onExitCodes": {"operator": "In", "values": list(values)}}


def runs(at: Lab, count: int = 1) -> dict[str, str]:
    at.until(lambda: len(at.cluster.running("j")) == count, f"{count} run", seconds=90)
    return at.cluster.running("j")


def exits(at: Lab, code: int, *, index: int = 0) -> None:
    at.cluster.finish(at.cluster.of("j")[f"w-{index}"]["metadata"]["name"], code=code)


def memory(at: Lab, index: int = 0) -> str:
    pod = at.cluster.of("j").get(f"w-{index}")
    return str(pod["spec"]["containers"][0]["resources"]["limits"]["memory"]) if pod else ""


def excluded(at: Lab) -> list[str]:
    given = at.cluster.workflow("j")["metadata"]["annotations"].get("diflow/excluded-nodes")
    return [entry.node for entry in Exclusions.parse(given).entries]


def ended(at: Lab) -> str:
    at.until(lambda: at.cluster.phase("j") in ("Failed", "Succeeded"), "it ends", seconds=120)
    return str(at.cluster.phase("j"))


KINDS = pytest.mark.parametrize("preemptible", [False, True], ids=["alone", "together"])


# --- hardware: elsewhere ----------------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("code", [201, 202, 14])
def test_hardware_is_elsewhere_and_not_counted(at: Lab, code: int, preemptible: bool) -> None:
    at.cluster.submit(asks(replicas=2, preemptible=preemptible, backoff_limit=1))
    before = runs(at, 2)["w-1"]
    exits(at, code, index=1)
    at.until(lambda: excluded(at) == [before], "its node is left out")
    at.until(lambda: len(at.cluster.running("j")) == 2 and at.cluster.running("j")["w-1"] != before, "it moves")
    at.rest()
    assert at.cluster.restarts("j") == 0
    assert any(reason == "NodeLeftOut" and before in text for reason, text in at.events("j"))
    if preemptible:
        assert before not in at.cluster.running("j").values()


def test_the_other_replicas_of_a_job_that_is_not_preemptible_stay(at: Lab) -> None:
    at.cluster.submit(asks(replicas=2, cpu="3"))
    before = runs(at, 2)
    exits(at, 201, index=0)
    at.until(lambda: excluded(at) == [before["w-0"]], "its node is left out")
    at.rest()
    assert at.cluster.running("j")["w-1"] == before["w-1"]


def test_two_replicas_on_the_same_bad_node_both_move(at: Lab) -> None:
    at.cluster.submit(asks(replicas=2))
    before = runs(at, 2)
    assert before["w-0"] == before["w-1"]
    exits(at, 201, index=0)
    exits(at, 202, index=1)
    at.until(lambda: excluded(at) == [before["w-0"]], "its node is left out")
    at.rest()
    after = at.cluster.running("j")
    assert len(after) == 2
    assert before["w-0"] not in after.values()


def test_a_job_whose_nodes_are_all_left_out_waits_and_says_so(at: Lab) -> None:
    at.cluster.submit(asks())
    for _ in range(3):
        runs(at)
        exits(at, 201)
        at.step()
    at.rest()
    assert at.cluster.running("j") == {}
    assert sorted(excluded(at)) == ["a", "b", "c"]
    assert at.cluster.phase("j") == "Running"
    assert "left out for this job" in at.decision("j")["why"]


def test_after_an_hour_it_starts_there_again(at: Lab) -> None:
    test_a_job_whose_nodes_are_all_left_out_waits_and_says_so(at)
    for _ in range(3900 // 5):
        at.step(5.0)
    assert len(at.cluster.running("j")) == 1


def test_a_program_that_fails_so_on_every_node_ends_the_job(at: Lab) -> None:
    for number in range(MOST_EXCLUDED + 2):
        at.cluster.node(f"n{number:02}", cpu=4)
    at.cluster.submit(asks())
    for _ in range(MOST_EXCLUDED + 1):
        runs(at)
        exits(at, 201)
        at.step()
    assert ended(at) == "Failed"
    assert "the nodes are not the reason" in at.decision("j")["why"]


# --- out of memory: more memory ---------------------------------------------------------------------------------------


@KINDS
def test_out_of_memory_is_more_memory_and_not_counted(at: Lab, preemptible: bool) -> None:
    at.cluster.uses["w"] = 7 * GIB
    at.cluster.submit(asks(replicas=2, preemptible=preemptible, backoff_limit=1))
    enough = {"w-0", "w-1"}
    at.until(lambda: set(at.cluster.running("j")) == enough and memory(at) == memory(at, 1) == "8192Mi", "it runs",
             seconds=120)  # fmt: skip
    at.rest()
    assert at.cluster.restarts("j") == 0
    assert at.cluster.parameters("j")["memory"] == '{"w":8192}'
    said = [text for reason, text in at.events("j") if reason == "OutOfMemory"]
    assert any("ran out of memory with 2Gi: it starts again with 4Gi" in text for text in said)
    assert any("ran out of memory with 4Gi: it starts again with 8Gi" in text for text in said)


@KINDS
def test_the_new_size_is_placed_where_it_fits(at: Lab, preemptible: bool) -> None:
    for name in ("a", "b"):
        at.cluster.foreign(f"other-{name}", name, memory="13Gi")
    at.cluster.uses["w"] = 3 * GIB
    at.cluster.submit(asks(preemptible=preemptible))
    at.until(lambda: at.cluster.running("j") == {"w-0": "c"} and memory(at) == "4096Mi", "it moves", seconds=90)


@KINDS
def test_a_size_that_fits_nowhere_waits_with_that_reason(at: Lab, preemptible: bool) -> None:
    for name in ("a", "b", "c"):
        at.cluster.foreign(f"other-{name}", name, memory="13Gi")
    at.cluster.uses["w"] = 3 * GIB
    at.cluster.submit(asks(preemptible=preemptible))
    at.until(lambda: at.cluster.parameters("j")["memory"] == '{"w":4096}', "it is raised")
    at.rest(limit=1200)
    assert at.cluster.running("j") == {}
    assert "each w has 4Gi of memory instead of 2Gi, since one ran out of it" in at.decision("j")["why"]
    at.api.remove(POD, "other-b")
    at.until(lambda: at.cluster.running("j") == {"w-0": "b"}, "it starts", seconds=90)


@KINDS
def test_at_the_maximum_of_its_task_the_job_fails_and_says_so(at: Lab, preemptible: bool) -> None:
    at.cluster.uses["w"] = 100 * GIB
    at.cluster.submit(asks(preemptible=preemptible, max_memory="6Gi"))
    assert ended(at) == "Failed"
    assert at.decision("j")["why"] == "w-0 ran out of memory with 6Gi, the most that it may have (maxMemory)"
    assert at.cluster.restarts("j") == 0
    assert at.cluster.pods() == []


def test_at_the_maximum_of_the_cluster_it_fails_and_says_so() -> None:
    settings = AllocatorSettings(writers=1, debounce_seconds=0.0, max_memory="3Gi")
    with lab(settings=settings) as at:
        at.cluster.node("a", cpu=4, memory="16Gi")
        at.cluster.uses["w"] = 100 * GIB
        at.cluster.submit(asks())
        assert ended(at) == "Failed"
        assert "with 3Gi, the most that any replica may have in this cluster" in at.decision("j")["why"]


def test_replicas_that_run_keep_their_memory_and_what_they_do_not_use_is_free(at: Lab) -> None:
    """Three of 2Gi and one of 4Gi on a node: its 16Gi have room for a fifth of 4Gi, which would not be there if all
    counted as large."""
    at.cluster.remove_node("b")
    at.cluster.remove_node("c")
    at.cluster.node("big", cpu=64, memory="16Gi")
    at.cluster.remove_node("a")
    at.cluster.submit(asks(replicas=4))
    runs(at, 4)
    at.cluster.finish(at.cluster.of("j")["w-3"]["metadata"]["name"], code=247)
    at.until(lambda: len(at.cluster.running("j")) == 4 and memory(at, 3) == "4096Mi", "it has more")
    assert [memory(at, i) for i in range(3)] == ["2048Mi"] * 3
    at.cluster.submit(job("other", Task(name="w", replicas=1, template=task(memory="6Gi").template)))
    at.until(lambda: len(at.cluster.running("other")) == 1, "the rest is free")


# --- errors of the program --------------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("code", [1, 134, 3])
def test_errors_count(at: Lab, code: int, preemptible: bool) -> None:
    at.cluster.submit(asks(replicas=2, preemptible=preemptible, backoff_limit=1))
    for _ in range(2):
        runs(at, 2)
        exits(at, code)
        at.step()
    assert ended(at) == "Failed"
    assert at.cluster.restarts("j") == 1


@KINDS
def test_errors_end_the_job_if_it_says_so(at: Lab, preemptible: bool) -> None:
    at.cluster.submit(asks(codes("FailJob", 1, 134), replicas=2, preemptible=preemptible, backoff_limit=5))
    runs(at, 2)
    exits(at, 134)
    assert ended(at) == "Failed"
    assert at.decision("j")["why"] == "w-0 failed (Error (exit code 134)), which ends the job (failurePolicy.rules[0])"
    assert at.cluster.restarts("j") == 0


@KINDS
def test_what_a_job_ignores_is_not_counted(at: Lab, preemptible: bool) -> None:
    at.cluster.submit(asks(codes("Ignore", 42), preemptible=preemptible, backoff_limit=0))
    for _ in range(3):
        runs(at)
        exits(at, 42)
        at.step()
    runs(at)
    assert at.cluster.restarts("j") == 0


# --- taken away: never counted ----------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("code", [137, 143])
def test_killed_is_never_counted(at: Lab, code: int, preemptible: bool) -> None:
    at.cluster.submit(asks(preemptible=preemptible, backoff_limit=0))
    for _ in range(3):
        runs(at)
        exits(at, code)
        at.step()
        at.rest(seconds=4)
    runs(at)
    assert at.cluster.restarts("j") == 0
    assert at.cluster.parameters("j")["memory"] == '{"w":2048}'
    assert excluded(at) == []


@KINDS
def test_evicted_and_lost_are_never_counted(at: Lab, preemptible: bool) -> None:
    at.cluster.submit(asks(preemptible=preemptible, backoff_limit=0))
    where = runs(at)["w-0"]
    at.cluster.evict(at.cluster.of("j")["w-0"]["metadata"]["name"])
    at.rest()
    where = runs(at)["w-0"]
    at.cluster.silence(where)
    at.until(lambda: at.cluster.running("j").get("w-0") not in (None, where), "it moves", seconds=200)
    assert at.cluster.restarts("j") == 0


# --- peers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["the lost replica", "its peer"])
@pytest.mark.parametrize("code", [247, 201, 137])
def test_a_peer_that_fails_with_a_lost_replica_does_not_count(at: Lab, code: int, first: str) -> None:
    at.cluster.submit(asks(replicas=3, preemptible=True, backoff_limit=0))
    runs(at, 3)
    if first == "its peer":
        exits(at, 1, index=1)
        at.step()
        at.step()
    exits(at, code, index=0)
    at.step()
    if first != "its peer":
        exits(at, 1, index=1)
        at.step()
    at.rest()
    assert at.cluster.phase("j") == "Running"
    assert len(at.cluster.running("j")) == 3
    assert at.cluster.restarts("j") == 0


def test_nor_does_it_end_the_job(at: Lab) -> None:
    at.cluster.submit(asks(codes("FailJob", 1), replicas=3, preemptible=True))
    runs(at, 3)
    exits(at, 1, index=1)
    at.step()
    exits(at, 247, index=0)
    at.rest()
    assert at.cluster.phase("j") == "Running"
    runs(at, 3)
    exits(at, 1, index=1)
    assert ended(at) == "Failed"


def test_many_replicas_that_fail_on_one_node_are_one_exclusion_and_few_writes(at: Lab) -> None:
    for name in ("b", "c"):
        at.cluster.remove_node(name)
    at.cluster.node("big", cpu=64, memory="128Gi")
    at.cluster.submit(asks(replicas=40))
    before = runs(at, 40)
    there = [int(name[2:]) for name, node in before.items() if node == "big"]
    assert len(there) > 2 * 16
    for index in there:
        exits(at, 201, index=index)
    at.until(lambda: excluded(at) == ["big"], "its node is left out")
    at.rest(limit=200)
    assert len([1 for reason, _ in at.events("j") if reason == "NodeLeftOut"]) <= 3
    assert "big" not in at.cluster.running("j").values()
    assert at.cluster.restarts("j") == 0


def test_a_failure_without_such_a_reason_counts_after_some_seconds(at: Lab) -> None:
    at.cluster.submit(asks(replicas=3, preemptible=True, backoff_limit=1))
    runs(at, 3)
    exits(at, 1, index=1)
    at.until(lambda: at.cluster.restarts("j") == 1, "it counts", seconds=20)
    runs(at, 3)
    exits(at, 1, index=2)
    assert ended(at) == "Failed"
    assert at.decision("j")["why"] == "w-2 failed (Error (exit code 1)) after 1 restart; backoffLimit is 1"


# --- what users can edit ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["1", "999999999999999", "x", "-5", ""])
def test_a_pod_that_claims_another_memory_makes_no_room_on_its_node(given: str) -> None:
    """16Gi with two running replicas of 2Gi, of which the next have 4Gi: another job of 12Gi fits, and one of 13Gi does
    not, whatever the pods' annotations say."""
    amounts = {"cpu": 1000, "memory": 4 * GIB, "pods": 1}
    wanted = replace(values.role("w", 2), request=amounts, asked_memory=2 * GIB)
    small = {"cpu": 1000, "memory": 2 * GIB, "pods": 1}
    pods = [values.pod(f"w-{i}", on="a", request=small, memory=untrusted.whole(given, digits=15) or 0) for i in (0, 1)]
    raised = values.job(values.read(wanted, nodes={"w": ("a", "a")}, has_policy=True, memory={"w": 4 * GIB}), *pods)
    node = values.node("a")
    big = replace(node, allocatable={**node.allocatable, "memory": 16 * GIB})
    s = shown(raised, nodes=(big,)).snapshot
    memory_of = s.resources.index("memory")
    assert int(s.idle()[0, memory_of]) == 12 * GIB
    assert int(s.role_request[0, memory_of]) >= 4 * GIB


def test_a_job_whose_memory_was_edited_is_held_and_its_pods_keep_running(at: Lab) -> None:
    at.cluster.submit(asks())
    runs(at)
    at.cluster.edit("j", memory='{"w":"lots"}')
    at.step()
    assert at.daemon is not None
    read = at.daemon.allocator.caches.state().jobs["default/j"].read
    assert "the parameter memory is not what diflow wrote" in read.problem
    at.rest()
    assert len(at.cluster.running("j")) == 1


def test_an_edited_record_of_nodes_has_an_effect_on_its_own_job_alone(at: Lab) -> None:
    record = Exclusions()
    for name in ("a", "b"):
        record = record.without(name, reason="x" * 1000, source="me", now=at.cluster.wall())
    at.cluster.submit(asks())
    at.cluster.annotate("j", **{"excluded-nodes": record.to_json()})
    at.cluster.submit(job("other", task()))
    assert runs(at) == {"w-0": "c"}
    at.until(lambda: at.cluster.running("other") != {}, "the other one runs")

"""The allocator over a fake cluster: scenarios of jobs from submission to end."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from diflow import DIJob
from diflow.allocator.policies.base import load_policy
from diflow.allocator.policies.settings import PolicySettings
from diflow.allocator.settings import AllocatorSettings
from diflow.kube.kinds import POD, WORKFLOW
from tests.allocator.fakeargo import is_gated
from tests.allocator.lab import Lab, job, lab, task

pytestmark = pytest.mark.usefixtures("from_memory_as_afresh")


@pytest.fixture
def at() -> Iterator[Lab]:
    """Two nodes of four CPUs each, and an allocator that leads; over sockets."""
    with lab(direct=False) as made:
        made.cluster.node("a", cpu=4)
        made.cluster.node("b", cpu=4)
        yield made
        assert made.cluster.problems == []


def names(at: Lab, of: str) -> set[str]:
    return set(at.cluster.running(of))


def uids(at: Lab, of: str) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in at.cluster.of(of).items()}


def rounds(at: Lab, of: str) -> list[str]:
    return list(json.loads(at.cluster.parameters(of)["rounds"]))


def runs(at: Lab, of: str, count: int) -> None:
    at.until(lambda: len(at.cluster.running(of)) == count == len(at.cluster.of(of)), f"{count} replicas of {of} run")


def ends(at: Lab, of: str, phase: str = "Succeeded") -> None:
    """All pods finish, and so does the job."""
    for pod in at.cluster.of(of).values():
        at.cluster.finish(pod["metadata"]["name"])
    at.until(lambda: at.cluster.phase(of) not in ("Pending", "Running"), f"{of} ends")
    assert at.cluster.phase(of) == phase
    assert at.cluster.of(of) == {}


# --- admission --------------------------------------------------------------------------------------------------------


def test_a_gang_is_admitted_all_together_or_not_at_all(at: Lab) -> None:
    at.cluster.submit(job("big", task(replicas=5, cpu="2")))
    at.cluster.submit(job("small", task(replicas=3, cpu="2")))
    runs(at, "small", 3)
    assert at.cluster.of("big") == {}, "a waiting job has no pods"
    assert "5" in at.decision("big")["why"]
    assert "Waiting" in [reason for reason, _ in at.events("big")]
    ends(at, "small")
    at.rest()
    assert at.cluster.of("big") == {}, "five of two CPUs never fit on eight"
    at.cluster.node("c", cpu=2)
    runs(at, "big", 5)
    ends(at, "big")


def test_what_argo_adds_to_a_pod_is_counted_when_its_pods_are_there() -> None:
    with lab(direct=False, wait_request={"cpu": "500m"}) as at:
        at.cluster.node("a", cpu=4)
        at.cluster.submit(job("tight", task(replicas=4, cpu="1")))
        at.cluster.submit(job("loose", task(replicas=2, cpu="1")))
        runs(at, "loose", 2)
        at.rest()
        assert at.cluster.running("tight") == {}, "four of a CPU and a half do not fit on four"
        assert at.cluster.problems == []


def test_pods_of_others_count_for_what_they_use(at: Lab) -> None:
    at.cluster.foreign("theirs", "a", cpu=3)
    at.cluster.submit(job("one", task(replicas=3, cpu="2")))
    at.rest()
    assert at.cluster.running("one") == {}
    at.api.remove(POD, "theirs")
    runs(at, "one", 3)
    ends(at, "one")


def test_the_older_and_the_higher_come_first(at: Lab) -> None:
    at.cluster.submit(job("first", task(replicas=4, cpu="2")))
    at.step()
    at.cluster.submit(job("second", task(replicas=4, cpu="2")))
    at.cluster.submit(job("high", task(replicas=4, cpu="2"), priority="high"))
    runs(at, "first", 4)
    at.rest()
    ends(at, "first")
    runs(at, "high", 4)
    assert at.cluster.running("second") == {}
    ends(at, "high")
    runs(at, "second", 4)
    ends(at, "second")


# --- a job that is not preemptible ------------------------------------------------------------------------------------


def test_resizing_touches_only_the_difference(at: Lab) -> None:
    at.cluster.submit(job("one", task("head"), task("worker", replicas=2)))
    runs(at, "one", 3)
    before = uids(at, "one")
    at.cluster.scale("one", worker=4)
    runs(at, "one", 5)
    assert uids(at, "one").items() >= before.items()
    at.cluster.scale("one", worker=1)
    runs(at, "one", 2)
    assert uids(at, "one").items() <= before.items()
    at.rest()
    assert json.loads(at.cluster.parameters("one")["granted"]) == {"1": {"head": 1, "worker": 1}}
    assert at.cluster.parameters("one")["released"] == "[]"
    at.cluster.scale("one", worker=3)
    runs(at, "one", 4)
    assert uids(at, "one")["worker-0"] == before["worker-0"]
    assert json.loads(at.cluster.parameters("one")["incarnations"]) == {"1/worker/1": ".1", "1/worker/2": ".1"}
    at.rest()
    for rank, name in enumerate(["head-0", "worker-0", "worker-1", "worker-2"]):
        annotations = at.cluster.of("one")[name]["metadata"]["annotations"]
        assert annotations["diengine/rank"] == str(rank)
        assert annotations["diengine/replicas"] == "4"
        assert annotations["diflow/nodes"].count(",") == 3
    assert rounds(at, "one") == ["1"]
    assert at.cluster.restarts("one") == 0
    ends(at, "one")


def test_scale_requests_that_change_faster_than_pods_stop_end_in_the_last_one(at: Lab) -> None:
    at.cluster.submit(job("one", task(replicas=4)))
    runs(at, "one", 4)
    for wanted in (1, 3, 2, 5, 1, 4):
        at.cluster.scale("one", worker=wanted)
        at.step()
    runs(at, "one", 4)
    at.rest()
    assert names(at, "one") == {f"worker-{i}" for i in range(4)}
    assert len(at.allocation("one")["worker"]) == 4
    assert at.cluster.restarts("one") == 0
    ends(at, "one")


def test_growth_beyond_the_free_capacity_is_partial(at: Lab) -> None:
    at.cluster.submit(job("one", task(replicas=2)))
    runs(at, "one", 2)
    at.cluster.scale("one", worker=30)
    runs(at, "one", 8)
    at.rest()
    assert json.loads(at.cluster.parameters("one")["granted"]) == {"1": {"worker": 8}}
    at.cluster.node("c", cpu=2)
    runs(at, "one", 10)
    ends(at, "one")


def test_a_scale_request_before_the_placement_counts(at: Lab) -> None:
    at.cluster.submit(job("one", task(replicas=9)))
    at.rest()
    assert at.cluster.running("one") == {}
    at.cluster.scale("one", worker=3)
    runs(at, "one", 3)
    at.rest()
    assert json.loads(at.cluster.parameters("one")["granted"]) == {"1": {"worker": 3}}
    ends(at, "one")


def test_roles_that_finish_before_the_others_stay_finished(at: Lab) -> None:
    at.cluster.submit(job("one", task("head"), task("worker", replicas=2), task("judge")))
    runs(at, "one", 4)
    at.cluster.finish(at.cluster.of("one")["judge-0"]["metadata"]["name"])
    at.cluster.finish(at.cluster.of("one")["worker-0"]["metadata"]["name"])
    runs(at, "one", 2)
    at.cluster.submit(job("two"))
    runs(at, "two", 1)
    at.rest()
    assert names(at, "one") == {"head-0", "worker-1"}
    assert json.loads(at.cluster.parameters("one")["granted"]) == {"1": {"head": 1, "worker": 2, "judge": 1}}
    ends(at, "one")


def test_a_lost_node_takes_nothing_from_replicas_that_had_finished(at: Lab) -> None:
    at.cluster.submit(job("one", task(replicas=3, cpu="3")))
    at.cluster.node("c", cpu=4)
    runs(at, "one", 3)
    at.cluster.finish(at.cluster.of("one")["worker-0"]["metadata"]["name"])
    runs(at, "one", 2)
    for name, node in at.cluster.running("one").items():
        assert name in ("worker-1", "worker-2")
        at.cluster.remove_node(node)
    at.cluster.node("d", cpu=8)
    at.until(
        lambda: at.cluster.running("one") == {"worker-1": "d", "worker-2": "d"}, "both run on the new node", seconds=100
    )
    assert json.loads(at.cluster.parameters("one")["granted"]) == {"1": {"worker": 3}}
    ends(at, "one")


# --- a preemptible job ------------------------------------------------------------------------------------------------


def elastic(name: str = "one", *, low: int = 1, replicas: int = 8, **fields: Any) -> DIJob:
    scales = task("worker", replicas=replicas, min_replicas=low, max_replicas=replicas)
    return job(name, scales, preemptible=True, backoff_limit=0, **fields)


def test_a_preemptible_job_grows_shrinks_is_preempted_and_comes_back(at: Lab) -> None:
    at.cluster.submit(elastic(low=2, replicas=12))
    runs(at, "one", 8)
    at.rest(seconds=6)  # a job is not resized again at once
    at.cluster.node("c", cpu=4)
    runs(at, "one", 12)
    at.cluster.submit(job("fixed", task(replicas=4)))
    runs(at, "fixed", 4)
    runs(at, "one", 8)
    at.cluster.submit(job("urgent", task(replicas=2, cpu="4"), priority="high"))
    runs(at, "urgent", 2)
    assert len(at.cluster.running("one")) == 0
    at.rest()
    assert at.allocation("one") == {}
    assert "Preempted" in [reason for reason, _ in at.events("one")]
    ends(at, "urgent")
    runs(at, "one", 8)
    at.cluster.scale("one", worker=3)
    runs(at, "one", 3)
    at.rest()
    assert at.cluster.restarts("one") == 0
    assert at.cluster.restarts("fixed") == 0
    ends(at, "one")
    ends(at, "fixed")


def test_two_generations_never_run_side_by_side(at: Lab) -> None:
    at.cluster.submit(elastic(low=2, replicas=12))
    runs(at, "one", 8)
    at.rest(seconds=6)
    old = set(uids(at, "one").values())
    at.cluster.node("c", cpu=4)
    while set(uids(at, "one").values()) & old:
        at.step(1.0)
        new = [pod for pod in at.cluster.of("one").values() if pod["metadata"]["uid"] not in old]
        running = [pod for pod in at.cluster.of("one").values() if pod["metadata"]["uid"] in old]
        assert not running or all(is_gated(pod) for pod in new)
    runs(at, "one", 12)
    ends(at, "one")


def test_one_that_waits_takes_what_it_gets(at: Lab) -> None:
    at.cluster.submit(elastic(low=3, replicas=100))
    runs(at, "one", 8)
    assert rounds(at, "one")[-1] == at.cluster.parameters("one")["current"]
    at.rest()
    ends(at, "one")


def test_a_preemptible_job_whose_replicas_finish_one_by_one_is_left_alone(at: Lab) -> None:
    at.cluster.submit(elastic(replicas=4))
    runs(at, "one", 4)
    at.cluster.finish(at.cluster.of("one")["worker-3"]["metadata"]["name"])
    at.cluster.finish(at.cluster.of("one")["worker-1"]["metadata"]["name"])
    runs(at, "one", 2)
    at.cluster.node("c", cpu=4)
    at.cluster.submit(job("two", task(replicas=2)))
    runs(at, "two", 2)
    at.rest()
    assert names(at, "one") == {"worker-0", "worker-2"}
    assert rounds(at, "one") == ["1"]
    ends(at, "one")
    assert at.cluster.restarts("one") == 0


def test_a_job_that_has_just_finished_is_not_started_again() -> None:
    for preemptible in (False, True):
        with lab(runs=lambda _: (2.0, 0)) as at:
            at.cluster.node("a", cpu=4)
            at.cluster.submit(job("one", task(replicas=2), preemptible=preemptible))
            at.until(lambda: len(at.cluster.ended()) == 2, "both have ended")
            for _ in range(20):
                at.step()
                assert at.daemon is not None
                at.daemon.allocator.ask("a test")
            assert len(at.cluster.ended()) == 2
            assert at.cluster.of("one") == {}
            at.until(lambda: at.cluster.phase("one") == "Succeeded", "it ends", seconds=60)


# --- failures ---------------------------------------------------------------------------------------------------------


def test_failures_are_counted_over_the_whole_job(at: Lab) -> None:
    at.cluster.submit(job("one", task(replicas=3), backoff_limit=3))
    runs(at, "one", 3)
    for name in ("worker-0", "worker-1", "worker-0"):
        at.cluster.finish(at.cluster.of("one")[name]["metadata"]["name"], code=1)
        at.step()
        runs(at, "one", 3)
    assert at.cluster.restarts("one") == 3
    at.cluster.finish(at.cluster.of("one")["worker-2"]["metadata"]["name"], code=1)
    at.until(lambda: at.cluster.phase("one") == "Failed", "it fails")
    assert at.cluster.of("one") == {}
    assert at.decision("one")["action"] == "stop"
    assert "backoffLimit is 3" in at.decision("one")["why"]


def test_a_failed_replica_of_a_preemptible_job_restarts_its_round_at_once(at: Lab) -> None:
    at.cluster.submit(job("one", task(replicas=4), preemptible=True, backoff_limit=2))
    runs(at, "one", 4)
    old = uids(at, "one")
    at.cluster.finish(at.cluster.of("one")["worker-2"]["metadata"]["name"], code=1)
    at.step()
    runs(at, "one", 4)
    assert not set(old.values()) & set(uids(at, "one").values()), "all of them start again"
    assert rounds(at, "one") == ["1"]
    assert at.cluster.restarts("one") == 1
    assert "Restarted" in [reason for reason, _ in at.events("one")]
    for _ in range(2):
        at.cluster.finish(at.cluster.of("one")["worker-0"]["metadata"]["name"], code=1)
        at.step()
        at.until(lambda: len(at.cluster.running("one")) in (0, 4), "all or nothing")
        at.rest()
    assert at.cluster.phase("one") == "Failed"
    assert at.cluster.of("one") == {}


def test_an_evicted_replica_of_a_preemptible_job_means_a_new_round_that_is_not_counted(at: Lab) -> None:
    at.cluster.submit(job("one", task(replicas=4), preemptible=True, backoff_limit=0))
    runs(at, "one", 4)
    for _ in range(12):
        at.step()
    old = uids(at, "one")
    at.cluster.evict(at.cluster.of("one")["worker-2"]["metadata"]["name"])
    at.until(lambda: len(rounds(at, "one")) == 2, "a new round")
    runs(at, "one", 4)
    assert not set(old.values()) & set(uids(at, "one").values())
    assert at.cluster.restarts("one") == 0
    ends(at, "one")


def test_an_eviction_just_after_the_start_is_mended_without_waiting_for_a_plan(at: Lab) -> None:
    at.cluster.submit(job("one", task(replicas=4), preemptible=True, backoff_limit=0))
    runs(at, "one", 4)
    at.cluster.evict(at.cluster.of("one")["worker-2"]["metadata"]["name"])
    at.until(lambda: len(rounds(at, "one")) == 2, "a new round", seconds=25)
    runs(at, "one", 4)
    at.rest()
    assert len(rounds(at, "one")) == 2
    ends(at, "one")


def test_an_evicted_replica_of_another_job_comes_back_where_it_was(at: Lab) -> None:
    at.cluster.submit(job("one", task(replicas=4), backoff_limit=0))
    runs(at, "one", 4)
    old = uids(at, "one")
    at.cluster.evict(at.cluster.of("one")["worker-2"]["metadata"]["name"])
    at.until(lambda: uids(at, "one").get("worker-2") not in (None, old["worker-2"]), "it is made again")
    runs(at, "one", 4)
    assert {k: v for k, v in uids(at, "one").items() if k != "worker-2"}.items() <= old.items()
    assert at.cluster.restarts("one") == 0
    ends(at, "one")


# --- nodes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["removed", "silent", "cordoned"])
@pytest.mark.parametrize("preemptible", [False, True])
def test_the_jobs_of_a_node_that_goes_are_placed_again(at: Lab, how: str, preemptible: bool) -> None:
    at.cluster.node("c", cpu=4)
    at.cluster.submit(job("one", task(replicas=2, cpu="3"), preemptible=preemptible, backoff_limit=0))
    runs(at, "one", 2)
    lost = at.cluster.running("one")["worker-1"]
    old = uids(at, "one")
    if how == "removed":
        at.cluster.remove_node(lost)
    elif how == "silent":
        at.cluster.silence(lost)
    else:
        at.cluster.cordon(lost)
    if how == "cordoned" and not preemptible:
        at.rest()
        assert uids(at, "one") == old, "a job that may not be moved stays until it ends"
        ends(at, "one")
        return
    at.until(
        lambda: len(at.cluster.running("one")) == 2 and lost not in at.cluster.running("one").values(),
        "both run elsewhere",
        seconds=100,
    )
    if not preemptible:
        assert uids(at, "one")["worker-0"] == old["worker-0"]
    at.rest()
    assert len(at.cluster.of("one")) == 2
    assert at.cluster.restarts("one") == 0
    ends(at, "one")


def test_a_node_that_is_silent_for_a_moment_costs_nothing(at: Lab) -> None:
    at.cluster.submit(elastic(replicas=4))
    runs(at, "one", 4)
    old = uids(at, "one")
    at.cluster.silence("a")
    for _ in range(30):
        at.step()
    at.cluster.silence("a", on=False)
    at.rest()
    assert uids(at, "one") == old
    ends(at, "one")


def test_the_heartbeat_of_a_node_does_not_wake_the_loop(at: Lab) -> None:
    at.cluster.submit(elastic(replicas=4))
    runs(at, "one", 4)
    at.rest()
    daemon = at.daemon
    assert daemon is not None
    assert not daemon.allocator.has_work()
    at.cluster.beat("a")
    daemon.catch_up()
    assert not daemon.allocator.has_work()
    at.cluster.cordon("a")
    daemon.catch_up()
    assert daemon.allocator.has_work()


def test_a_cordoned_node_with_nowhere_to_go_keeps_its_jobs(at: Lab) -> None:
    at.cluster.submit(elastic(low=8, replicas=8))
    runs(at, "one", 8)
    old = uids(at, "one")
    at.cluster.cordon("a")
    at.rest()
    assert uids(at, "one") == old
    ends(at, "one")


@pytest.mark.parametrize("preemptible", [False, True])
def test_a_place_that_kube_scheduler_does_not_take_is_given_up(at: Lab, preemptible: bool) -> None:
    at.cluster.refuses = {"a"}
    at.cluster.submit(job("one", task(replicas=2), preemptible=preemptible, backoff_limit=0))
    at.until(lambda: len(at.cluster.of("one")) == 2, "its pods are made")
    at.until(lambda: "Refused" in [reason for reason, _ in at.events("one")], "they are taken back", seconds=90)
    at.cluster.refuses = set()
    runs(at, "one", 2)
    at.rest()
    assert at.cluster.restarts("one") == 0
    ends(at, "one")


def evict_and_take_the_capacity(at: Lab, node: str) -> None:
    """Evict a replica of two CPUs; a foreign pod takes its capacity before the allocator acts."""
    at.cluster.grace_seconds = 1.0
    at.cluster.evict(at.cluster.of("one")["worker-1"]["metadata"]["name"])
    at.cluster.frozen = True
    at.step(2.0)
    at.cluster.foreign("theirs", node, cpu=2)
    at.cluster.frozen = False


def test_a_replica_whose_capacity_was_taken_meanwhile_goes_elsewhere(at: Lab) -> None:
    at.cluster.submit(job("one", task(replicas=2, cpu="2"), backoff_limit=0))
    runs(at, "one", 2)
    (home,) = set(at.cluster.running("one").values())
    old = uids(at, "one")
    evict_and_take_the_capacity(at, home)
    runs(at, "one", 2)
    assert uids(at, "one")["worker-0"] == old["worker-0"]
    assert set(at.cluster.running("one").values()) == {"a", "b"}
    ends(at, "one")


@pytest.mark.parametrize("preemptible", [False, True])
def test_no_replica_comes_back_to_a_node_that_was_closed_meanwhile(at: Lab, preemptible: bool) -> None:
    at.cluster.submit(job("one", task(replicas=2, cpu="1"), preemptible=preemptible, backoff_limit=2))
    runs(at, "one", 2)
    at.rest(seconds=6)
    (home,) = set(at.cluster.running("one").values())
    at.cluster.finish(at.cluster.of("one")["worker-1"]["metadata"]["name"], code=1)
    at.cluster.cordon(home)
    at.step()
    runs(at, "one", 2)
    assert at.cluster.running("one")["worker-1"] != home
    assert at.cluster.restarts("one") <= 1
    ends(at, "one")


def test_a_gang_of_which_a_part_lost_its_place_moves_as_a_whole(at: Lab) -> None:
    at.cluster.submit(job("one", task(replicas=2, cpu="2"), preemptible=True, backoff_limit=0))
    runs(at, "one", 2)
    (home,) = set(at.cluster.running("one").values())
    evict_and_take_the_capacity(at, home)
    runs(at, "one", 2)
    assert home not in at.cluster.running("one").values() or len(set(at.cluster.running("one").values())) == 2
    at.rest()
    assert at.cluster.restarts("one") == 0
    ends(at, "one")


# --- others -----------------------------------------------------------------------------------------------------------


def begin_a_resize(at: Lab) -> None:
    """A job of 8 that runs gets a new round, for a node more."""
    at.cluster.submit(elastic(low=2, replicas=12))
    runs(at, "one", 8)
    at.rest(seconds=6)  # a job is not resized again at once
    at.cluster.node("c", cpu=4)
    at.until(lambda: len(rounds(at, "one")) >= 2, "a new round is written")


def test_a_users_edit_in_the_middle_of_a_resize_is_kept(at: Lab) -> None:
    begin_a_resize(at)
    at.cluster.scale("one", worker=3)
    at.cluster.annotate("one", note="mine")
    runs(at, "one", 3)
    assert at.cluster.workflow("one")["metadata"]["annotations"]["diflow/note"] == "mine"
    assert json.loads(at.cluster.parameters("one")["replicas"]) == {"worker": 3}
    ends(at, "one")


def test_invalid_parameters_hold_the_job_and_no_other(at: Lab) -> None:
    at.cluster.frozen = True
    at.cluster.submit(job("bad", task(replicas=2)))
    at.cluster.submit(job("good", task(replicas=2)))
    good = at.cluster.parameters("bad")["released"]
    at.cluster.edit("bad", released="{}", current="1")
    at.cluster.frozen = False
    runs(at, "good", 2)
    at.rest()
    assert at.cluster.running("bad") == {}
    assert any(reason == "Refused" and "released" in text for reason, text in at.events("bad"))
    at.cluster.edit("bad", released=good)
    runs(at, "bad", 2)
    ends(at, "bad")
    ends(at, "good")


@pytest.mark.parametrize("preemptible", [False, True])
def test_a_deleted_allocation_is_restored_from_the_pods(at: Lab, preemptible: bool) -> None:
    at.cluster.submit(job("one", task(replicas=5), preemptible=preemptible))
    runs(at, "one", 5)
    old, where = uids(at, "one"), at.allocation("one")
    at.cluster.annotate("one", allocation="nonsense")
    at.cluster.submit(job("two", task(replicas=2)))
    runs(at, "two", 2)
    at.rest()
    assert uids(at, "one") == old
    assert at.allocation("one") == where
    ends(at, "one")


def test_a_node_that_refuses_what_is_sent_to_it_is_left_alone_for_a_while(at: Lab) -> None:
    at.cluster.refuses = {"a"}
    at.cluster.submit(job("one", task(replicas=2), preemptible=True, backoff_limit=0))
    at.until(lambda: set(at.cluster.running("one").values()) == {"b"}, "it runs on the other node", seconds=90)
    at.cluster.submit(job("two", task(replicas=2, cpu="2")))
    for _ in range(600):
        at.step()
    assert at.cluster.running("two") == {}
    pods = [pod for pod in at.cluster.ended() if pod["metadata"]["labels"]["workflows.argoproj.io/workflow"] == "two"]
    assert len(pods) <= 2 * 5, "it is tried again, but seldom"
    at.cluster.refuses = set()
    at.until(lambda: len(at.cluster.running("two")) == 2, "it is tried again", seconds=1900)
    ends(at, "two")


def test_a_job_deleted_in_the_middle_of_a_resize_leaves_nothing(at: Lab) -> None:
    begin_a_resize(at)
    at.cluster.delete("one")
    at.cluster.submit(job("two", task(replicas=12)))
    runs(at, "two", 12)
    assert at.cluster.of("one") == {}
    ends(at, "two")


def test_another_job_of_the_same_name_inherits_nothing(at: Lab) -> None:
    at.cluster.submit(job("one", task(replicas=8), preemptible=True, backoff_limit=0))
    runs(at, "one", 8)
    old = set(uids(at, "one").values())
    at.cluster.grace_seconds = 20.0
    at.cluster.delete("one")
    at.cluster.submit(job("one", task(replicas=8), preemptible=True, backoff_limit=0))
    for _ in range(18):
        at.step()
        new = [pod for pod in at.cluster.pods() if pod["metadata"]["uid"] not in old]
        assert all(is_gated(pod) for pod in new), "none of the new gang before there is capacity for all of it"
    at.until(lambda: not old & set(uids(at, "one").values()), "the old pods are gone")
    runs(at, "one", 8)
    assert at.cluster.restarts("one") == 0
    at.cluster.grace_seconds = 3.0
    ends(at, "one")


def test_a_stopped_job_ends_whatever_it_was_doing(at: Lab) -> None:
    at.cluster.submit(job("waits", task(replicas=9)))
    at.cluster.submit(job("runs", task(replicas=2)))
    runs(at, "runs", 2)
    at.cluster.stop("waits")
    at.cluster.stop("runs")
    at.until(lambda: at.cluster.phase("waits") == at.cluster.phase("runs") == "Failed", "both end")
    assert at.cluster.of("waits") == at.cluster.of("runs") == {}


def test_the_pods_of_a_stopped_job_that_ignore_the_stop_end_after_their_grace_period_and_one_more(at: Lab) -> None:
    at.cluster.deaf.add("one")
    at.cluster.grace_seconds = 30.0
    at.cluster.submit(job("one", task(replicas=2)))
    runs(at, "one", 2)
    at.cluster.stop("one")
    at.until(lambda: at.cluster.phase("one") == "Failed", "Argo ends the job")
    began, written = at.time.now(), len(at.api.seen("PATCH", "/pods/"))
    at.rest(seconds=34, limit=34)
    assert len(at.cluster.running("one")) == 2
    assert len(at.api.seen("PATCH", "/pods/")) == written, "nothing is written while they have time"
    at.until(lambda: at.cluster.of("one") == {}, "they end", seconds=40)
    assert at.time.now() - began <= 30 + 5 + 30 + 3
    assert len(at.api.seen("PATCH", "/pods/")) == written + 2
    (late,) = [message for reason, message in at.events("one") if reason == "StoppedLate"]
    assert late.startswith("Argo has ended worker-0, worker-1, and after the grace period they still run")
    assert at.cluster.restarts("one") == 0


def test_a_job_with_pods_that_ignore_the_stop_gives_up_as_others_and_its_node_is_used_again(at: Lab) -> None:
    """The allocator itself stops the job; a new leader gives the pods their grace period once more."""
    at.cluster.deaf.add("one")
    at.cluster.submit(job("one", task(replicas=4, cpu="2"), backoffLimit=0))
    runs(at, "one", 4)
    at.cluster.submit(job("next", task(replicas=4, cpu="2")))
    at.cluster.finish(at.cluster.of("one")["worker-0"]["metadata"]["name"], code=1)
    at.until(lambda: at.cluster.phase("one") == "Failed", "it fails")
    for _ in range(20):
        at.step()
    at.end()
    at.begin()
    for _ in range(20):
        at.step()
    assert len(at.cluster.running("one")) == 3
    runs(at, "next", 4)
    ends(at, "next")


def test_jobs_of_others_are_left_alone(at: Lab) -> None:
    plain = {"metadata": {"name": "plain", "labels": {}}, "spec": {"templates": []}, "status": {"phase": "Succeeded"}}
    at.api.add(WORKFLOW, plain)
    at.cluster.submit(job("one"))
    runs(at, "one", 1)
    assert at.api.seen("PATCH", "workflows/plain") == []


@pytest.mark.parametrize("policy", ["fit", "fair", "goodput", "fair+goodput"])
def test_every_policy_gives_a_job_that_cannot_be_moved_what_its_user_asks_for_later(policy: str) -> None:
    with lab(policy=load_policy(policy)) as at:
        at.cluster.node("a", cpu=4)
        at.cluster.submit(job("one", task("learner"), task("collector")))
        at.until(lambda: len(at.cluster.running("one")) == 2, "both run")
        at.cluster.scale("one", collector=3)
        at.until(lambda: len(at.cluster.running("one")) == 4, "two collectors more run")
        at.cluster.scale("one", collector=1)
        at.until(lambda: len(at.cluster.running("one")) == 2, "they are gone again")


class Stop(threading.Event):
    """Notes how long it was waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout or 0.0)
        return False


def test_a_change_after_a_quiet_time_starts_a_cycle_at_once_and_a_burst_is_gathered() -> None:
    stop = Stop()
    with lab(settings=AllocatorSettings(writers=1, debounce_seconds=0.25)) as at:
        assert at.daemon is not None
        allocator = at.daemon.allocator
        at.rest()
        for lull, gathers in ((1.0, []), (0.1, [0.25])):
            at.time.move(lull)
            allocator.ask("something")
            stop.waited.clear()
            allocator._wait(stop)
            assert stop.waited == gathers
            allocator.turn()


def test_after_a_slow_cycle_changes_are_gathered_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Stop()
    with lab(settings=AllocatorSettings(writers=1, debounce_seconds=0.02)) as at:
        assert at.daemon is not None
        allocator = at.daemon.allocator
        at.rest()
        monkeypatch.setattr(allocator.health, "run", lambda *_, **__: at.time.move(2.0))
        allocator.ask("something")
        assert allocator.turn().seconds == 2.0
        for lull, gathers in ((0.1, [0.1]), (1.0, [])):
            at.time.move(lull)
            allocator.ask("something more")
            stop.waited.clear()
            allocator._wait(stop)
            assert stop.waited == gathers


def test_a_new_round_does_not_wait_for_pods_that_never_ran() -> None:
    with lab() as found:
        found.cluster.node("one", cpu="4")
        found.cluster.mounts = False
        found.cluster.submit(job("job", task(replicas=2, min_replicas=1, max_replicas=4), preemptible=True))
        found.until(lambda: len(found.cluster.of("job")) == 4, "its pods hang in ContainerCreating")
        found.rest()
        assert found.cluster.running("job") == {}, "and nobody ends what only takes long"
        found.cluster.mounts = True
        found.cluster.annotate("job", bounds=json.dumps({"worker": {"min": 2, "max": 2}}))
        found.until(lambda: len(found.cluster.running("job")) == 2, "the new round runs at once", seconds=20)


def test_what_its_user_asks_for_does_not_wait_for_the_guard_against_thrashing() -> None:
    with lab(policy=load_policy("fit", PolicySettings(least_seconds_between_resizes=600.0))) as found:
        found.cluster.node("one", cpu="8")
        found.cluster.submit(job("job", task(replicas=2, min_replicas=1, max_replicas=2), preemptible=True))
        found.until(lambda: len(found.cluster.running("job")) == 2, "it runs")
        for most in (4, 6, 3):
            found.cluster.annotate("job", bounds=json.dumps({"worker": {"min": 1, "max": most}}))
            found.until(lambda: len(found.cluster.running("job")) == most, f"{most} replicas", seconds=30)  # noqa: B023


def test_growth_by_the_policy_waits_for_the_guard() -> None:
    with lab(policy=load_policy("fit", PolicySettings(least_seconds_between_resizes=300.0))) as found:
        found.cluster.node("one", cpu="4")
        found.cluster.submit(job("job", task(replicas=2, min_replicas=1, max_replicas=2), preemptible=True))
        found.until(lambda: len(found.cluster.running("job")) == 2, "it runs")
        found.cluster.annotate("job", bounds=json.dumps({"worker": {"min": 1, "max": 8}}))
        found.until(lambda: len(found.cluster.running("job")) == 4, "it has all there is", seconds=30)
        found.cluster.node("two", cpu="4")
        found.rest(seconds=100)
        assert len(found.cluster.running("job")) == 4, "what was asked for was looked at: now it is left alone"
        found.until(lambda: len(found.cluster.running("job")) == 8, "and grows later", seconds=400)

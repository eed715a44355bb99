"""An allocation is accepted if the allocator wrote it into this Workflow, and no later one."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from diflow import DIJob
from diflow.allocator.settings import AllocatorSettings
from diflow.allocator.signature import KEY, NAME, PREVIOUS, Seal
from diflow.allocator.watch.cluster_state import Caches
from diflow.common import keys
from diflow.kube.kinds import SECRET, WORKFLOW
from tests.allocator.lab import Lab, job, lab, task
from tests.allocator.manifests import one
from tests.kube.fakeapi import FakeApi, serving, status

SYSTEM = "diflow-system"


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with serving() as found:
        found.add(SECRET, {"metadata": {"name": NAME}}, namespace=SYSTEM)
        yield found


def annotations_of(at: Lab, name: str) -> dict[str, str]:
    return dict(at.cluster.workflow(name)["metadata"]["annotations"])


def forge(at: Lab, name: str, *, nodes: dict[str, list[str]], **more: str) -> None:
    """A user writes a forged allocation into a job's Workflow."""
    text = json.dumps({"round": "1", "nodes": nodes, "since": 1.0, "first": 1.0, "moves": 0})
    at.cluster.annotate(name, allocation=text, **more)


def suspended(name: str, replicas: int) -> DIJob:
    return job(name, task(replicas=replicas))


def suspend(at: Lab, name: str) -> None:
    with at.api.changed:
        obj = at.api.objects[WORKFLOW.path("default")][name]
        at.api.add(WORKFLOW, {**obj, "spec": {**obj["spec"], "suspend": True}})


def runs(at: Lab, of: str, count: int, *, seconds: int = 45) -> None:
    at.until(lambda: len(at.cluster.running(of)) == count, f"{count} replicas of {of} run", seconds=seconds)


def secret(api: FakeApi) -> dict[str, Any]:
    return api.objects[SECRET.path(SYSTEM)][NAME]


def loaded(api: FakeApi) -> Seal:
    made = Seal(api.cluster(), namespace=SYSTEM)
    made.load()
    return made


def test_a_suspended_job_with_a_forged_allocation_delays_no_job(at: Lab) -> None:
    at.cluster.frozen = True
    at.cluster.submit(job("one", task(replicas=8)))
    suspend(at, "one")
    forge(at, "one", nodes={"worker": ["a"] * 4 + ["b"] * 4})
    at.cluster.frozen = False
    at.cluster.submit(job("urgent", task(replicas=2, cpu="4"), priority="high"))
    runs(at, "urgent", 2)
    assert any("not written by the allocator" in text for _, text in at.events("one"))


@pytest.mark.parametrize("proof", ["", "nonsense", f"1:{'0' * 64}", f"{'9' * 5000}:{'0' * 64}", "²:" + "a" * 64])
def test_a_forged_allocation_of_a_job_that_runs_changes_nothing(at: Lab, proof: str) -> None:
    at.cluster.submit(job("one", task(replicas=2)))
    runs(at, "one", 2)
    was, before = at.allocation("one"), at.cluster.running("one")
    forge(at, "one", nodes={"worker": ["b"] * 4 + ["a"] * 4}, **{"allocation-proof": proof})
    at.cluster.submit(job("two", task(replicas=6)))
    runs(at, "two", 6)
    assert at.cluster.running("one") == before
    assert at.allocation("one") == was, "what its pods show is written again"


def test_an_earlier_allocation_that_is_restored_is_rejected(at: Lab) -> None:
    at.cluster.quota = {"one": 0}
    at.cluster.submit(job("one", task(replicas=8)))
    at.until(lambda: at.allocation("one") != {}, "it is given its place")
    kept = {key.removeprefix("diflow/"): annotations_of(at, "one")[key] for key in (keys.ALLOCATION, keys.PROOF)}
    at.until(lambda: at.allocation("one") == {}, "it is given back", seconds=400)
    at.cluster.annotate("one", **kept)
    at.cluster.submit(job("two", task(replicas=8)))
    runs(at, "two", 8)


def test_the_allocation_of_another_job_is_rejected(at: Lab) -> None:
    at.cluster.submit(job("one", task(replicas=8)))
    runs(at, "one", 8)
    at.cluster.submit(job("two", task(replicas=8)))
    at.rest()
    given = annotations_of(at, "one")
    at.cluster.annotate("two", allocation=given[keys.ALLOCATION], **{"allocation-proof": given[keys.PROOF]})
    assert at.daemon is not None
    at.daemon.catch_up()
    jobs = at.daemon.allocator.caches.state().jobs
    assert jobs["default/one"].read.notes.allocation is not None
    assert jobs["default/two"].read.notes.allocation is None


def test_a_new_leader_accepts_what_the_previous_one_wrote(at: Lab) -> None:
    at.cluster.frozen = True
    at.cluster.submit(job("one", task(replicas=8)))
    at.until(lambda: at.allocation("one") != {}, "it is given its place")
    given = annotations_of(at, "one")[keys.ALLOCATION]
    at.end()
    at.begin()
    at.cluster.frozen = False
    runs(at, "one", 8)
    assert annotations_of(at, "one")[keys.ALLOCATION] == given


def test_a_lost_key_costs_running_jobs_nothing_and_waiting_ones_a_new_decision(at: Lab) -> None:
    at.cluster.submit(job("one", task(replicas=4)))
    at.cluster.submit(job("big", task(replicas=9)))
    runs(at, "one", 4)
    before = {pod["metadata"]["uid"] for pod in at.cluster.of("one").values()}
    at.end()
    at.api.add(SECRET, {"metadata": {"name": NAME}}, namespace=SYSTEM)
    at.begin()
    at.cluster.submit(job("two", task(replicas=4)))
    runs(at, "two", 4)
    at.rest()
    assert {pod["metadata"]["uid"] for pod in at.cluster.of("one").values()} == before
    assert keys.PROOF in annotations_of(at, "one")


def test_read_only_commands_neither_read_nor_create_the_key(api: FakeApi) -> None:
    caches = Caches(api.cluster(), AllocatorSettings(), on_change=lambda *_: None)
    caches.start()
    try:
        assert caches.wait_synced(10.0)
    finally:
        caches.stop()
    assert not [request for request in api.requests if "secrets" in request.path]


def test_without_the_secret_all_is_accepted_and_nothing_is_signed() -> None:
    with lab(begin=False) as at:
        at.api.remove(SECRET, NAME, namespace=SYSTEM)
        at.cluster.node("a", cpu=4)
        at.begin()
        at.cluster.submit(job("one", task(replicas=2)))
        runs(at, "one", 2)
        assert keys.PROOF not in annotations_of(at, "one")


def test_a_job_that_goes_on_in_another_workflow_keeps_its_place_there() -> None:
    settings = AllocatorSettings(writers=1, debounce_seconds=0.0, most_nodes=1)
    with lab(settings=settings) as at:
        at.cluster.node("a", cpu=4)
        at.cluster.submit(job("one", task(replicas=8, min_replicas=1, max_replicas=8), preemptible=True))
        runs(at, "one", 4)
        at.rest(seconds=12)  # younger rounds are not replaced
        at.cluster.evict(at.cluster.of("one")["worker-0"]["metadata"]["name"])
        at.until(lambda: len(at.cluster.running("one-s2")) == 4, "it goes on in the next one")
        seal = at.daemon.allocator.seal  # type: ignore[union-attr]
        metadata = at.cluster.workflow("one-s2")["metadata"]
        given = metadata["annotations"]
        assert seal.is_ours(metadata["uid"], given[keys.ALLOCATION], given[keys.PROOF])


# --- the key ----------------------------------------------------------------------------------------------------------


def test_the_first_to_start_makes_the_key_and_the_others_have_the_same(api: FakeApi) -> None:
    first, second = loaded(api), loaded(api)
    assert len(base64.b64decode(secret(api)["data"][KEY])) == 32
    assert second.is_ours("u", "text", first.sign("u", "text"))
    assert not second.is_ours("u", "other", first.sign("u", "text"))
    assert not second.is_ours("v", "text", first.sign("u", "text"))


def test_two_that_start_at_once_have_the_same_key(api: FakeApi) -> None:
    other = base64.b64encode(b"k" * 32).decode()

    def meanwhile(request: Any) -> None:
        if request.method == "PATCH" and not secret(api).get("data"):
            api.add(SECRET, {"metadata": {"name": NAME}, "data": {KEY: other}}, namespace=SYSTEM)

    api.rule(meanwhile)
    made = loaded(api)
    assert secret(api)["data"][KEY] == other
    assert loaded(api).is_ours("u", "text", made.sign("u", "text"))


def test_signatures_of_the_previous_key_are_accepted_until_it_is_removed(api: FakeApi) -> None:
    before = loaded(api).sign("u", "text")
    new = base64.b64encode(b"n" * 32).decode()
    data = {KEY: new, PREVIOUS: secret(api)["data"][KEY]}
    api.add(SECRET, {"metadata": {"name": NAME}, "data": data}, namespace=SYSTEM)
    assert loaded(api).is_ours("u", "text", before)
    api.add(SECRET, {"metadata": {"name": NAME}, "data": {KEY: new}}, namespace=SYSTEM)
    assert not loaded(api).is_ours("u", "text", before)


def test_a_key_that_may_not_be_read_turns_the_check_off(api: FakeApi) -> None:
    api.rule(lambda request: status(403, "no") if "secrets" in request.path else None)
    made = loaded(api)
    assert made.is_ours("u", "text", "")
    assert made.sign("u", "text") == ""


@pytest.mark.parametrize("key", ["", "c2hvcnQ=", "not base64 at all", "²"])
def test_an_invalid_key_is_replaced(api: FakeApi, key: str) -> None:
    api.add(SECRET, {"metadata": {"name": NAME}, "data": {KEY: key}}, namespace=SYSTEM)
    assert loaded(api).sign("u", "text") != ""
    assert len(base64.b64decode(secret(api)["data"][KEY])) == 32


def test_what_is_remembered_of_workflows_that_are_gone_is_forgotten(api: FakeApi) -> None:
    made = loaded(api)
    for number in range(10):
        assert made.is_ours(f"u{number}", "text", made.sign(f"u{number}", "text"))
    made.keep(["u3", "u4", "unknown"])
    assert len(made) == 2


def test_the_manifests_bring_the_secret_without_a_key_so_that_applying_them_again_keeps_it() -> None:
    brought = one("Secret", NAME)
    assert brought["metadata"]["namespace"] == SYSTEM
    assert "data" not in brought
    assert "stringData" not in brought

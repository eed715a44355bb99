"""On a real cluster: unused places, objects at their size limit, and forged allocations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from diflow import DIJob, Task
from diflow.allocator import signature
from diflow.common import keys
from tests.builders import template
from tests.clusters import TestCluster, wait_until
from tests.e2e.allocators import Zone, daemon, events, run_on, status, submit, until_running, zone
from tests.e2e.live import FAKE, Live

pytestmark = [pytest.mark.extended, pytest.mark.xdist_group("allocator")]

SLOT = "diflow.test/slot"
MOST_ANNOTATIONS = 262_144


@pytest.fixture(scope="module")
def live(argo40: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A namespace with an allocator that reserves a place for 20 s, and with the Secret of its key."""
    with argo40.namespace("promises") as namespace:
        place = Live(argo40, namespace)
        place.kubectl("create", "secret", "generic", signature.NAME)
        log = tmp_path_factory.mktemp("allocator") / "log"
        with daemon(place, log, DIFLOW_ALLOCATOR_PROMISE_SECONDS="20"):
            yield place


@pytest.fixture
def nodes(live: Live, request: pytest.FixtureRequest) -> Iterator[Zone]:
    with zone(live, f"p{abs(hash(request.node.name)) % 10_000}") as made:
        yield made


def told(live: Live, name: str, words: str) -> str:
    """Wait for an Event of the allocator that contains the words."""
    return wait_until(
        f"{name} has an event: {words}", lambda: next((m for _, m in events(live, name) if words in m), None)
    )


def is_placed(live: Live, name: str) -> bool:
    return any(status(live, name).allocation.values())


def fill(live: Live, name: str) -> None:
    """As many bytes of annotations as the API server takes, less one, and no decision that another could replace."""
    live.kubectl("annotate", "workflow", name, f"{keys.DECISION}-")
    given = live.workflow(name)["metadata"]["annotations"]
    left = MOST_ANNOTATIONS - 1 - sum(len(k) + len(v.encode()) for k, v in given.items()) - len("fill")
    live.kubectl("patch", "workflow", name, "--type=merge", "--patch-file=/dev/stdin",
                 stdin=json.dumps({"metadata": {"annotations": {"fill": "x" * left}}}))  # fmt: skip


def test_a_gang_whose_pods_a_quota_forbids_gives_its_place_back_and_starts_when_it_may(live: Live, nodes: Zone) -> None:
    """The allocator does not count quotas with scopes."""
    nodes.add("one", cpu=4)
    live.kubectl("create", "quota", "few", "--hard=pods=2", "--scopes=NotTerminating")
    try:
        gang = submit(live, nodes.job("forbidden", 4, seconds=120))  # its first two pods outlive the wait for its place
        why = told(live, gang, "given back")
        assert "not created" in why
        assert "quota" in why
        wait_until("nothing of it runs", lambda: not is_placed(live, gang) and not run_on(live, gang))
    finally:
        live.kubectl("delete", "quota", "few")
    live.ends(gang, "Succeeded")


def test_a_gang_waits_whole_while_a_quota_cannot_hold_it(live: Live, nodes: Zone) -> None:
    nodes.add("one", cpu=4)
    live.kubectl("create", "quota", "small", "--hard=pods=2")
    try:
        gang = submit(live, nodes.job("whole", 4, seconds=2))
        assert "small" in told(live, gang, "quota")
        assert live.pods(gang) == []
    finally:
        live.kubectl("delete", "quota", "small")
    live.ends(gang, "Succeeded")


def test_a_victim_that_does_not_end_keeps_its_room_and_the_other_is_placed_elsewhere(live: Live, nodes: Zone) -> None:
    home = live.node()["metadata"]["name"]
    _offer(live, home, "1")
    try:
        victim = submit(live, _slotted("victim", "trap '' TERM; sleep 3600 & wait; sleep 3600", preemptible=True))
        until_running(live, victim, 1)
        urgent = submit(live, _slotted("urgent", "sleep 1", priority="high"))
        why = told(live, urgent, "given back")
        assert "victim-worker" in why
        assert run_on(live, victim) == {home: 1}, "it has its own grace period"
        nodes.add("spare", cpu=2)
        _offer(live, nodes.full("spare"), "1")
        live.ends(urgent, "Succeeded")
        live.kubectl("delete", "workflow", victim, "--wait=false")
        live.kubectl("delete", "pods", "-l", f"{keys.JOB}=victim", "--grace-period=0", "--force")
    finally:
        _offer(live, home, None)


def test_a_job_whose_annotations_are_full_is_preempted_and_stopped(live: Live, nodes: Zone) -> None:
    nodes.add("one", cpu=4)
    full = submit(live, nodes.job("full", 4, bounds=(2, 4)))
    until_running(live, full, 4)
    fill(live, full)
    urgent = submit(live, nodes.job("first", 4, seconds=5, priority="high"))
    live.ends(urgent, "Succeeded")
    told(live, full, "no annotation can be added")
    live.argo("stop", full)
    live.ends(full, "Failed")


def test_an_allocation_that_somebody_else_wrote_is_not_believed(live: Live, nodes: Zone) -> None:
    nodes.add("one", cpu=4)
    name = submit(live, nodes.job("forged", 4), suspended=True)
    at = json.dumps({"round": "1", "nodes": {"worker": [nodes.full("one")] * 4}, "since": 1, "first": 1, "moves": 0})
    patch = {"metadata": {"annotations": {keys.ALLOCATION: at, keys.PROOF: f"7:{'0' * 64}"}}}
    live.kubectl("patch", "workflow", name, "--type=merge", "-p", json.dumps(patch))
    told(live, name, "not written by the allocator")
    honest = submit(live, nodes.job("honest", 4, seconds=5))
    live.ends(honest, "Succeeded")
    assert keys.PROOF in live.workflow(honest)["metadata"]["annotations"]
    live.kubectl("delete", "workflow", name)


def _slotted(name: str, script: str, **fields: Any) -> DIJob:
    """A job of one pod that uses a node's slot, on real and fake nodes."""
    slot = {SLOT: "1"}
    made = template(
        script,
        container={"resources": {"requests": {"cpu": "10m", **slot}, "limits": slot}},
        terminationGracePeriodSeconds=86_400,
        tolerations=[{"key": FAKE, "operator": "Exists"}],
    )
    made["metadata"] = {"annotations": {"kwok.x-k8s.io/duration": "2s"}}
    return DIJob(
        name=name, tasks=(Task(name="worker", replicas=1, template=made),), scheduling="gang", backoff_limit=0, **fields
    )


def _offer(live: Live, node: str, slots: str | None) -> None:
    """Set the number of a node's slots; None removes them."""
    amounts = {"capacity": {SLOT: slots}, "allocatable": {SLOT: slots}}
    live.cluster.kubectl(
        "patch", "node", node, "--subresource=status", "--type=merge", "-p", json.dumps({"status": amounts})
    )

"""A new leader: no write of a former one takes effect after its first decision, and that is a matter of seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from diflow.common import keys
from diflow.common.clock import Clock
from diflow.common.errors import LostLeadershipError
from diflow.kube.kinds import LEASE
from diflow.kube.leader_election import WRITES_AS
from tests.allocator import fencing
from tests.allocator.lab import Daemon, Lab, job, lab, task
from tests.allocator.run.test_scenarios import runs

BEYOND = 20.0
"""Seconds: longer than a Lease."""


@pytest.fixture
def at() -> Iterator[Lab]:
    with lab() as made:
        made.cluster.node("only", cpu=4)
        made.step()  # it leads; under a new Lease it changes each job that is there
        yield made
        assert made.cluster.problems == []


def replace(at: Lab) -> Daemon:
    """Let the leader die, and another one lead that has not had a turn yet."""
    at.end()
    at.pass_time(BEYOND)
    return at.begin()


def stopped(at: Lab, path: str) -> list[tuple[str, str, int]]:
    """Stop the leader between its check of the Lease and its next write to such a path, until another process leads and
    has decided. Returns the responses to its writes from then on."""
    first = at.daemon
    assert first is not None
    told: list[int] = []

    def stop(method: str, to: str) -> None:
        if method != "PATCH" or path not in to or told:
            return
        told.append(len(first.line.sent))
        at.daemon = None
        at.pass_time(BEYOND)
        at.begin()
        at.step()

    first.line.before = stop
    for _ in range(10):
        at.pass_time()
        if at.daemon is first:
            first.lead()
            first.catch_up()
        with suppress(LostLeadershipError):
            first.turn()
        if told:
            break
    assert told, "it was stopped"
    first.stop()
    return [one for one in first.line.sent[told[0] :] if one[0] == "PATCH"]


def touches(daemon: Daemon) -> list[str]:
    """The Workflows that it has changed."""
    return [
        path.rsplit("/", 1)[1] for method, path, _ in daemon.line.sent if method == "PATCH" and "/workflows/" in path
    ]


def test_a_former_leader_is_fenced_by_the_api_server_and_no_job_is_changed_for_that(at: Lab) -> None:
    fencing.install(at.api)
    at.cluster.submit(job("one", task(replicas=2)))
    runs(at, "one", 2)
    second = replace(at)
    second.catch_up()
    second.turn()
    assert touches(second) == []
    at.cluster.submit(job("two", task(replicas=2)))
    runs(at, "two", 2)


@pytest.mark.parametrize(("path", "kind"), [("/workflows/", "Workflow"), ("/pods/", "Pod")])
def test_a_write_of_a_leader_that_stood_still_is_refused(at: Lab, path: str, kind: str) -> None:
    fencing.install(at.api)
    at.cluster.submit(job("one", task(replicas=2)))
    if kind == "Pod":
        at.cluster.resume("one")  # its pods have gates, which the allocator removes
    late = stopped(at, path)
    assert [status for _, _, status in late] == [422]
    runs(at, "one", 2)
    changed = [at.cluster.workflow("one"), *at.cluster.of("one").values()]
    epochs = {obj["kind"]: obj["metadata"]["annotations"].get(keys.EPOCH) for obj in changed}
    assert epochs[kind].endswith("/2"), "the next leader's write is the one that took effect"


def test_without_the_policy_a_write_to_a_job_of_a_leader_that_stood_still_conflicts(at: Lab) -> None:
    at.cluster.submit(job("one", task(replicas=2)))
    late = stopped(at, "/workflows/")
    assert [status for _, _, status in late] == [409]
    runs(at, "one", 2)


def test_without_the_policy_each_job_is_changed_once(at: Lab) -> None:
    for name in ("one", "two"):
        at.cluster.submit(job(name, task(replicas=2)))
        runs(at, name, 2)
    second = replace(at)
    second.catch_up()
    second.turn()
    assert sorted(touches(second)) == ["one", "two"]
    at.rest()
    assert sorted(touches(second)) == ["one", "two"], "and not again"


def test_a_predecessor_whose_writes_do_not_name_it_is_not_fenced_by_the_policy(at: Lab) -> None:
    fencing.install(at.api)
    at.cluster.submit(job("one", task(replicas=2)))
    runs(at, "one", 2)
    at.end()
    found = fencing.lease(at.api)
    assert found is not None
    metadata = {**found["metadata"], "annotations": {}}  # as a leader that does not name its writes leaves it
    at.api.add(LEASE, {**found, "metadata": metadata}, namespace=fencing.SYSTEM)
    at.pass_time(BEYOND)
    second = at.begin()
    second.catch_up()
    second.turn()
    assert touches(second) == ["one"]
    found = fencing.lease(at.api)
    assert found is not None
    assert found["metadata"]["annotations"][WRITES_AS] == second.elector.writes_as(2)


def test_a_new_leader_waits_until_the_api_server_knows_it(at: Lab) -> None:
    at.cluster.submit(job("one", task(replicas=2)))
    runs(at, "one", 2)
    old, asked = fencing.lease(at.api), []

    def seen() -> object:
        asked.append(1)
        return old if len(asked) <= 5 else fencing.lease(at.api)

    fencing.install(at.api, seen)  # type: ignore[arg-type]
    second = replace(at)
    waited: list[float] = []
    second.allocator._takeover._clock = Clock(monotonic=at.time.now, sleep=waited.append)
    second.catch_up()
    second.turn()
    assert waited == [0.1, 0.1, 0.1]
    assert touches(second) == []


def test_an_api_server_that_does_not_read_the_lease_any_more_refuses_nothing(at: Lab) -> None:
    """Kubernetes ends its watch of Leases for good when the last binding that names one is deleted."""
    at.cluster.submit(job("one", task(replicas=2)))
    runs(at, "one", 2)
    old = fencing.lease(at.api)
    assert old is not None
    fencing.install(at.api, lambda: old)
    second = replace(at)
    second.allocator._takeover._clock = Clock(monotonic=at.time.now, sleep=at.time.move)
    second.catch_up()
    second.turn()
    assert touches(second) == ["one"]
    at.cluster.submit(job("two", task(replicas=2)))
    runs(at, "two", 2)
    assert {status for _, _, status in second.line.writes()} == {200}


@pytest.mark.slow
def test_many_jobs_are_changed_while_decisions_are_made_and_those_that_wait_come_first(at: Lab) -> None:
    for i in range(100):
        at.cluster.submit(job(f"runs-{i:03}", task(cpu="20m")))
    at.rest()
    at.cluster.submit(job("waits", task(cpu="3")))
    at.rest()
    second = replace(at)
    slow = [0.1]
    second.line.after = lambda method, _: at.time.move(slow[0] if method == "PATCH" else 0.0)
    second.catch_up()
    at.cluster.submit(job("new", task(cpu="1")))
    second.catch_up()
    done = second.turn()
    assert done is not None
    assert done.planned, "it decides in its first turn"
    first = touches(second)
    assert first[0] == "waits"
    assert "new" in first
    assert 20 <= len(first) <= 66, "for two seconds, a batch at a time"
    for _ in range(5):
        second.lead()
        second.catch_up()
        second.turn()
    assert set(touches(second)) >= {f"runs-{i:03}" for i in range(100)}
    at.rest()


def test_under_a_new_lease_each_job_is_changed_once_and_rests(at: Lab) -> None:
    """The former leader had epoch 1 too: the same number would change nothing, again and again."""
    for name in ("one", "two"):
        at.cluster.submit(job(name, task(replicas=2)))
        runs(at, name, 2)
    before = {name: at.cluster.workflow(name)["metadata"]["annotations"][keys.EPOCH] for name in ("one", "two")}
    at.end()
    at.api.remove(LEASE, "diflow-allocator", namespace=fencing.SYSTEM)
    at.api.uid_of = lambda name: f"another-uid-{name}"
    at.pass_time(BEYOND)
    second = at.begin()
    at.let_lead(second)
    at.rest()
    assert second.elector.epoch == 1
    assert sorted(touches(second)) == ["one", "two"]
    for name, epoch in before.items():
        assert at.cluster.workflow(name)["metadata"]["annotations"][keys.EPOCH] != epoch

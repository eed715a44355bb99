"""The allocator under faults of others: other allocators, the API server, Argo, and its policy."""

from __future__ import annotations

import json
import math
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from diflow.allocator.model.plan import Plan, keep_plan
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.fit.policy import FitPolicy
from diflow.allocator.policies.settings import PolicySettings
from diflow.allocator.reconcile.one_job import reconcile
from diflow.allocator.remember.ended_jobs import ENDED
from diflow.allocator.run.daemon import Allocator, lead
from diflow.allocator.settings import AllocatorSettings
from diflow.common import keys
from diflow.common.clock import Clock
from diflow.common.errors import LostLeadershipError
from diflow.kube.kinds import LEASE
from diflow.kube.leader_election import Elector
from tests.allocator.fakeargo import is_gated
from tests.allocator.faults import eventually
from tests.allocator.lab import Daemon, Lab, job, lab, task
from tests.kube.fakeapi import Answer, Request, serving, status


def two_nodes(at: Lab) -> None:
    at.cluster.node("a", cpu=4)
    at.cluster.node("b", cpu=4)


def elastic(at: Lab, *, replicas: int = 12) -> None:
    scales = task("worker", replicas=replicas, min_replicas=2, max_replicas=replicas)
    at.cluster.submit(job("one", scales, preemptible=True, backoff_limit=0))


def runs(at: Lab, of: str, count: int, *, seconds: int = 45) -> None:
    at.until(lambda: len(at.cluster.running(of)) == count == len(at.cluster.of(of)), f"{count} of {of} run",
             seconds=seconds)  # fmt: skip


def leader(at: Lab) -> Daemon:
    assert at.daemon is not None
    return at.daemon


def evicted(at: Lab, of: str) -> None:
    """A replica is evicted, and comes back."""
    old = at.cluster.of(of)["worker-0"]["metadata"]
    at.cluster.evict(old["name"])
    at.until(lambda: at.cluster.of(of).get("worker-0", {"metadata": old})["metadata"]["uid"] != old["uid"], "a new pod")
    runs(at, of, 2)


# --- two of them ------------------------------------------------------------------------------------------------------


def test_of_two_daemons_one_writes() -> None:
    with lab() as at:
        two_nodes(at)
        second = at.new_daemon()
        try:
            elastic(at)
            for _ in range(40):
                at.step()
                second.lead()
                with pytest.raises(LostLeadershipError):
                    second.allocator.turn()
            assert len(at.cluster.running("one")) == 8
            assert second.line.writes() == []
            assert at.daemon is not None
            assert at.daemon.line.writes() != []
        finally:
            second.stop()


def test_a_former_leader_that_was_stopped_for_a_while_writes_nothing() -> None:
    with lab() as at:
        two_nodes(at)
        first, second = leader(at), at.new_daemon()
        elastic(at)
        at.daemon = None
        for _ in range(20):  # the first one does not get a single instruction
            at.pass_time()
            second.lead()
        assert second.elector.is_leader()
        first.catch_up()
        with pytest.raises(LostLeadershipError):
            first.allocator.turn()
        assert first.line.writes() == []
        at.daemon = second
        runs(at, "one", 8)
        assert not first.elector.renew()
        assert not first.elector.try_acquire()
        first.stop()


def test_a_write_that_was_overtaken_by_another_leader_is_refused() -> None:
    """The process is stopped between checking the Lease and a write, which the next leader has made meanwhile."""
    with lab() as at:
        two_nodes(at)
        first, second = leader(at), at.new_daemon()
        at.cluster.submit(job("one", task(replicas=4)))

        def stop(method: str, path: str) -> None:
            if method == "PATCH" and "/workflows/" in path:
                first.line.before = lambda *_: None
                at.daemon = None
                at.let_lead(second)
                at.daemon = second
                at.until(lambda: len(at.cluster.running("one")) == 4, "the second one admits the gang")

        first.line.before = stop
        at.until(lambda: at.daemon is second, "the second one leads")
        with pytest.raises(LostLeadershipError):
            first.allocator.turn()
        assert [code for _, path, code in first.line.writes() if "/workflows/" in path] == [409]
        first.stop()
        at.rest()
        assert len(at.cluster.running("one")) == 4
        assert at.cluster.problems == []


@pytest.mark.parametrize("lease", ["kept", "deleted"])
def test_a_decision_that_a_former_leader_has_not_sent_yet_is_refused_though_nothing_else_has_changed(
    lease: str,
) -> None:
    """The process is stopped between checking the Lease and a write; the next leader is paused and decides nothing."""
    with lab() as at:
        two_nodes(at)
        first, second = leader(at), at.new_daemon()
        at.step()  # a new Lease: the jobs that are there would be changed first
        at.cluster.submit(job("one", task(replicas=4)))

        def pause(who: str | None) -> None:
            paused = {"metadata": {"annotations": {keys.PAUSED: who}}}
            at.api.cluster().patch(LEASE, second.elector.name, paused, namespace=second.elector.namespace)

        def stop(method: str, path: str) -> None:
            if method == "PATCH" and path.endswith("/workflows/one"):
                first.line.before = lambda *_: None
                if lease == "deleted":
                    at.api.remove(LEASE, second.elector.name, namespace=second.elector.namespace)
                    at.api.uid_of = lambda name: f"another-uid-{name}"
                else:
                    pause("somebody")
                at.daemon = None
                at.let_lead(second)
                pause("somebody")
                while not second.allocator.paused():
                    at.pass_time()
                    second.lead()
                at.daemon = second
                for _ in range(5):
                    at.step()

        first.line.before = stop
        at.until(first.line.writes, "the write of the first one comes to an answer")
        assert [code for _, path, code in first.line.writes() if path.endswith("/workflows/one")] == [409]
        with pytest.raises(LostLeadershipError):
            first.allocator.turn()
        first.stop()
        assert [code for _, path, code in second.line.writes() if path.endswith("/workflows/one")] == [200]
        pause(None)
        runs(at, "one", 4)
        assert at.cluster.problems == []


# --- the API server ---------------------------------------------------------------------------------------------------


def test_the_server_is_away_for_five_minutes() -> None:
    """The process loses its Lease and ends; the next ones wait, and continue from the objects."""
    with lab() as at:
        two_nodes(at)
        elastic(at, replicas=8)
        runs(at, "one", 8)
        first = leader(at)
        first.line.is_cut = True
        at.daemon = None
        before = first.line.tries
        ended = 0
        for _ in range(30):
            at.pass_time()
            first.lead()
            if first.allocator.has_work() or not first.elector.is_leader():
                try:
                    first.allocator.turn()
                except LostLeadershipError:
                    ended += 1
        assert ended > 0
        assert first.line.writes() == [w for w in first.line.writes() if w[2] == 200]
        assert first.line.tries - before < 120, "four watches that back off, and renewals"
        first.stop()
        at.cluster.submit(job("two", task(replicas=4)))
        at.cluster.foreign("theirs", "a", cpu=0)
        at.cluster.remove_node("b")
        for _ in range(270):
            at.pass_time()
        made = len(at.api.seen("PATCH"))
        second = at.new_daemon()
        assert len(at.api.seen("PATCH")) == made, "one that does not lead writes nothing"
        at.let_lead(second)
        at.daemon = second
        at.until(
            lambda: set(at.cluster.running("one").values()) == {"a"},
            "what was on the lost node is on the other",
            seconds=100,
        )
        at.until(
            lambda: len(at.cluster.running("one")) + len(at.cluster.running("two")) == 4,
            "what is left is used",
            seconds=100,
        )
        assert at.cluster.problems == []


def test_nothing_is_decided_on_a_cache_that_may_be_old() -> None:
    with lab() as at:
        two_nodes(at)
        at.rest()
        at.is_silent = True
        for _ in range(100):
            at.step()
        at.cluster.submit(job("one", task(replicas=2)))
        assert at.daemon is not None
        seen = len(at.daemon.cycles)
        for _ in range(60):
            at.step()
        assert at.cluster.running("one") == {}
        assert all(is_gated(pod) for pod in at.cluster.of("one").values())
        assert at.daemon.line.writes() == []
        assert len(at.daemon.cycles) > seen
        assert all("has said nothing" in cycle.trouble and cycle.writes == 0 for cycle in at.daemon.cycles[seen:])
        at.is_silent = False
        runs(at, "one", 2)


def test_a_daemon_with_stale_caches_runs_slowly() -> None:
    """The real loop on the real clock: with caches that are never synced it runs about once a second."""
    with serving() as api:
        at = Lab(api)
        daemon = _on_real_time(at, stale_seconds=0.001)
        stop = threading.Event()
        ended = threading.Thread(target=_run, args=(daemon, stop), daemon=True)
        try:
            ended.start()
            eventually(lambda: len(daemon.cycles) >= 2, "it turns")
            before, began = len(daemon.cycles), time.monotonic()
            time.sleep(1.5)
            assert len(daemon.cycles) - before <= (time.monotonic() - began) + 1
            assert all(cycle.trouble for cycle in daemon.cycles)
        finally:
            stop.set()
            daemon.allocator.ask("the end")
            ended.join(20)
            assert not ended.is_alive()


def test_a_process_that_stands_by_has_its_caches_and_lists_nothing_when_it_leads() -> None:
    with serving() as api:
        at = Lab(api, direct=False)
        two_nodes(at)
        daemon = _on_real_time(at)
        at.cluster.submit(job("one", task(replicas=2)))
        free = {"metadata": {"name": "diflow-allocator"}, "spec": {"leaseTransitions": 1, "holderIdentity": "other"}}
        api.add(LEASE, free, namespace=at.settings.namespace)
        daemon.elector.release()
        stop = threading.Event()
        runner = threading.Thread(target=lead, args=(daemon.allocator, stop), daemon=True)
        runner.start()
        try:
            eventually(lambda: daemon.allocator.caches.wait_synced(0.1), "it stands by with full caches")
            eventually(lambda: daemon.allocator.caches.optional.wait_synced(0.1), "it knows the volumes")
            before = len(api.requests)
            released = {"spec": {"leaseTransitions": 1, "holderIdentity": ""}}
            api.cluster().patch(LEASE, "diflow-allocator", released, namespace=at.settings.namespace)

            def admitted() -> bool:
                at.cluster.step(0.1)
                return len(at.cluster.running("one")) == 2

            eventually(admitted, "it decides")
            gets = [r for r in api.requests[before:] if r.method == "GET" and not r.query.get("watch")]
            # Other threads, for which no decision waits, record what has ended and read the memories of applications.
            memory = f"metadata.name={keys.APPLICATIONS}"
            later = [
                r for r in gets if r.query.get("labelSelector") != ENDED and r.query.get("fieldSelector") != memory
            ]
            asked = {r.path.rsplit("/", 1)[-1] for r in later}
            assert asked - {keys.PUBLIC_QUEUES, "one"} == {"diflow-allocator"}, (
                "its Lease, what is public, the Workflow of which a pod is tried, and no list"
            )
            again = [r for r in api.requests[before:] if r.query.get("watch")]
            assert len(again) >= 4, "the watches are on new connections"
        finally:
            stop.set()
            daemon.allocator.ask("the end")
            runner.join(20)
            assert not runner.is_alive()


def _run(daemon: Daemon, stop: threading.Event) -> None:
    daemon.allocator.caches.start()
    try:
        daemon.allocator.run(stop)
    finally:
        daemon.allocator.caches.stop()


def test_the_real_loop_admits_resizes_and_ends() -> None:
    """The loop runs by itself: each change has to wake it."""
    with serving() as api:
        at = Lab(api, direct=False)
        two_nodes(at)
        daemon = _on_real_time(at, lost_after_seconds=0.0)
        stop = threading.Event()
        runner = threading.Thread(target=_run, args=(daemon, stop), daemon=True)
        runner.start()
        try:

            def so(count: int) -> Callable[[], bool]:
                def look() -> bool:
                    at.cluster.step(0.1)
                    return len(at.cluster.running("one")) == count == len(at.cluster.of("one"))

                return look

            at.cluster.submit(job("one", task(replicas=3)))
            eventually(so(3), "admitted")
            at.cluster.scale("one", worker=1)
            eventually(so(1), "fewer")
            at.cluster.scale("one", worker=4)
            eventually(so(4), "more")
            assert all(cycle.trouble == "" for cycle in daemon.cycles)

            def is_quiet() -> bool:
                before = len(daemon.cycles), len(api.requests)
                time.sleep(1.0)
                return before == (len(daemon.cycles), len(api.requests))

            eventually(is_quiet, "when nothing happens, nothing is done")
        finally:
            stop.set()
            daemon.allocator.ask("the end")
            runner.join(20)
            assert not runner.is_alive()


def _on_real_time(at: Lab, **settings: Any) -> Daemon:
    """A daemon whose loop runs on the real clock, and which leads from the start."""
    at.settings = AllocatorSettings(writers=2, debounce_seconds=0.01, **settings)
    daemon = Daemon(at, "real")
    daemon.lead()
    at.time.move(20.0)
    daemon.elector.try_acquire()
    assert daemon.elector.is_leader()
    old = daemon.allocator
    daemon.allocator = Allocator(
        old.executor._cluster, at.settings, at.policy, daemon.elector, on_cycle=daemon.cycles.append,
        clock=Clock(wall=at.cluster.wall),
    )  # fmt: skip
    daemon.elector._clock = Clock(monotonic=lambda: 0.0)  # this process leads for as long as the test takes
    daemon.elector._renewed = 0.0
    return daemon


STORMS = {
    "conflicts": [status(409, "the object has been modified", reason="Conflict")],
    "refusals": [status(422, "denied by a webhook", reason="Invalid")],
    "too many requests": [status(429, "slow down", Retry_After="2")],
    "errors": [status(500, "etcdserver: request timed out"), status(503, "not now")],
    "all of them": [
        status(409, "the object has been modified"), status(429, "slow down", Retry_After="3"), status(500, "no"),
        status(422, "denied"), Answer(body={"kind": "Pod"}, cut=True),
    ],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("storm", STORMS)
def test_after_a_storm_of_refusals_all_is_as_it_should_be(storm: str) -> None:
    chance = random.Random(storm)
    with lab(direct=False) as at:
        two_nodes(at)
        calm = [False]

        def blow(request: Request) -> Answer | None:
            return (
                chance.choice(STORMS[storm])
                if request.method == "PATCH" and not calm[0] and chance.random() < 0.6
                else None
            )

        at.api.rule(blow)
        elastic(at)
        at.cluster.submit(job("two", task(replicas=3)))
        for step in range(90):
            if step == 30:
                at.cluster.scale("two", worker=1)
            at.step()
        calm[0] = True
        runs(at, "two", 1, seconds=130)
        runs(at, "one", 7, seconds=130)
        at.rest()
        assert at.cluster.restarts("one") == at.cluster.restarts("two") == 0
        assert at.cluster.problems == []


@pytest.mark.parametrize("storm", ["refusals", "too many requests", "errors"])
def test_a_server_that_refuses_everything_gets_few_requests(storm: str) -> None:
    with lab() as at:
        two_nodes(at)
        answers = STORMS[storm]
        calm = [False]
        at.api.rule(lambda r: answers[0] if r.method == "PATCH" and not calm[0] else None)
        elastic(at)
        at.cluster.submit(job("two", task(replicas=3)))
        for _ in range(300):
            at.step()
        tries = len(at.api.seen("PATCH"))
        assert 4 <= tries <= 2 * 20, "one try each half second at first, then each minute"
        calm[0] = True
        runs(at, "two", 3, seconds=130)
        runs(at, "one", 5, seconds=130)


def test_a_job_whose_writes_are_all_refused_delays_no_other() -> None:
    """The job should free capacity: others are planned around it, and its owner gets an Event."""
    with lab() as at:
        two_nodes(at)
        elastic(at, replicas=8)
        runs(at, "one", 8)
        at.rest(seconds=6)
        at.api.rule(
            lambda r: status(422, "denied by a webhook") if r.method == "PATCH" and r.path.endswith("/one") else None
        )
        at.cluster.submit(job("urgent", task(replicas=2), priority="high"))
        for _ in range(20):
            at.step()
        assert at.cluster.running("urgent") == {}
        assert len(at.cluster.running("one")) == 8
        at.cluster.node("c", cpu=4)
        runs(at, "urgent", 2)
        assert set(at.cluster.running("urgent").values()) == {"c"}
        at.cluster.submit(job("two", task(replicas=2)))
        runs(at, "two", 2)
        assert at.cluster.problems == []


def test_a_deleted_job_is_not_retried_for_ever() -> None:
    with lab() as at:
        two_nodes(at)
        at.api.fail(status(500, "no"), method="PATCH", times=1)
        at.cluster.submit(job("one"))
        at.until(lambda: at.api.seen("PATCH"), "a write is refused")
        at.cluster.delete("one")
        at.rest()
        assert at.daemon is not None
        assert not at.daemon.allocator.has_work()
        assert at.daemon.allocator.executor.next_retry() == math.inf


@pytest.mark.parametrize("answer", [status(410, "too old resource version"), Answer(lines=["{"]), Answer(lines=[])])
def test_watches_that_end_are_restarted(answer: Answer) -> None:
    with lab() as at:
        two_nodes(at)
        at.api.fail(answer, path="/pods", method="GET", times=1)
        elastic(at, replicas=8)
        runs(at, "one", 8)


def test_a_mistake_with_one_job_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from diflow.allocator.reconcile import all_jobs

    def trips(what: Any, *given: Any, **options: Any) -> Any:
        if what.read.identity.name == "bad":
            raise KeyError("a mistake of ours")
        return reconcile(what, *given, **options)

    monkeypatch.setattr(all_jobs, "reconcile", trips)
    with lab() as at:
        two_nodes(at)
        at.cluster.submit(job("bad"))
        at.cluster.submit(job("good"))
        runs(at, "good", 1)
        for _ in range(100):
            at.step()
        assert at.cluster.running("bad") == {}
        assert at.daemon is not None
        assert len(at.daemon.cycles) < 60, "it is tried again, but seldom"


def test_a_mistake_in_planning_leaves_all_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from diflow.allocator.plan import planner

    def trips(*_: Any, **__: Any) -> Any:
        raise KeyError("a mistake of ours")

    with lab() as at:
        two_nodes(at)
        at.cluster.submit(job("one", task(replicas=2)))
        runs(at, "one", 2)
        assert at.daemon is not None
        with monkeypatch.context() as patch:
            patch.setattr(planner, "picture", trips)
            at.cluster.submit(job("two"))
            evicted(at, "one")
            assert "a mistake of ours" in at.daemon.allocator.last_trouble
            assert at.cluster.running("two") == {}
        runs(at, "two", 1, seconds=70)


# --- Argo -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", range(1, 11))
def test_argos_controller_is_away_in_the_middle_of_a_resize(after: int) -> None:
    with lab() as at:
        two_nodes(at)
        elastic(at)
        at.cluster.submit(job("two", task(replicas=2)))
        runs(at, "two", 2)
        runs(at, "one", 6)
        at.rest(seconds=6)
        at.cluster.node("c", cpu=4)
        at.cluster.scale("two", worker=1)
        for _ in range(after):
            at.step()
        at.cluster.frozen = True
        for _ in range(70):
            at.step()
        at.cluster.frozen = False
        runs(at, "two", 1)
        runs(at, "one", 11)
        at.rest()
        assert at.cluster.restarts("one") == at.cluster.restarts("two") == 0
        assert json.loads(at.cluster.parameters("two")["granted"]) == {"1": {"worker": 1}}
        assert at.cluster.problems == []


# --- the policy -------------------------------------------------------------------------------------------------------


class Bad:
    """A policy that does `harm` while this is set."""

    name = "bad"

    def __init__(self, harm: Callable[[Snapshot], Plan]) -> None:
        self._harm, self._good = harm, FitPolicy(PolicySettings(least_seconds_between_resizes=5.0))
        self.is_bad = False
        self.asked = 0

    def allocate(self, job: int, snapshot: Snapshot) -> Plan:
        return self._good.allocate(job, snapshot)

    def optimize(self, snapshot: Snapshot) -> Plan:
        self.asked += 1
        return self._harm(snapshot) if self.is_bad else self._good.optimize(snapshot)

    def measure(self, snapshot: Snapshot, plan: Plan) -> float:
        return self._good.measure(snapshot, plan)


def _raises(_: Snapshot) -> Plan:
    raise ZeroDivisionError("half of nothing")


def _leaves(_: Snapshot) -> Plan:
    raise SystemExit


def _hangs(snapshot: Snapshot) -> Plan:
    time.sleep(8.0)
    return keep_plan(snapshot, "bad")


def _is_nonsense(_: Snapshot) -> Plan:
    return "all will be well"  # type: ignore[return-value]


def _forgets_its_pods(snapshot: Snapshot) -> Plan:
    """A plan that stops all jobs, though some may not be stopped."""
    import dataclasses

    kept = keep_plan(snapshot, "bad")
    return dataclasses.replace(kept, role=kept.role[:0], node=kept.node[:0], count=kept.count[:0])


def _overfills(snapshot: Snapshot) -> Plan:
    import dataclasses

    kept = keep_plan(snapshot, "bad")
    return dataclasses.replace(kept, count=kept.count + 1000)


HARM = [_raises, _leaves, _hangs, _is_nonsense, _forgets_its_pods, _overfills]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("harm", HARM, ids=lambda harm: harm.__name__.strip("_"))
def test_a_policy_that_does_harm_changes_nothing_and_is_reported(harm: Callable[[Snapshot], Plan]) -> None:
    policy = Bad(harm)
    settings = AllocatorSettings(writers=1, debounce_seconds=0.0, policy_seconds=2.0)
    with lab(policy=policy, settings=settings) as at:
        two_nodes(at)
        at.cluster.submit(job("runs", task(replicas=2)))
        runs(at, "runs", 2)
        at.rest(seconds=6)
        assert at.daemon is not None
        made = len(at.daemon.line.writes())
        policy.is_bad, policy.asked = True, 0
        with capture_logs() as logs:
            at.cluster.submit(job("waits", task(replicas=2)))
            for _ in range(10):
                at.step()
        assert policy.asked >= 1
        assert policy.asked <= 3, "it is not asked again and again for the same"
        assert at.daemon.allocator.failing_seconds > 0
        assert len(at.daemon.line.writes()) == made
        assert len(at.cluster.running("runs")) == 2
        assert any("policy bad" in line.get("why", "") and line["log_level"] == "error" for line in logs)
        assert "nothing is changed" in at.daemon.allocator.last_trouble
        told = at.api.objects[f"/api/v1/namespaces/{settings.namespace}/events"].values()
        assert [e["involvedObject"]["kind"] for e in told if e["reason"] == "PolicyFailed"] == ["Lease"]
        evicted(at, "runs")  # earlier decisions are reconciled all the same
        policy.is_bad = False
        eventually(lambda: at.daemon is not None and not at.daemon.allocator.stuck_seconds, "no call is left behind")
        runs(at, "waits", 2, seconds=70)
        assert at.daemon.allocator.failing_seconds == 0.0


def test_a_process_that_loses_its_lease_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """`lead` raises LostLeadershipError, which ends the process."""
    with serving() as api:
        at = Lab(api)
        daemon = _on_real_time(at)
        monkeypatch.setattr(daemon.elector, "acquire", lambda _: True)
        stop = threading.Event()
        out: list[BaseException] = []

        def run() -> None:
            try:
                lead(daemon.allocator, stop)
            except BaseException as error:
                out.append(error)

        runner = threading.Thread(target=run, daemon=True)
        runner.start()
        eventually(lambda: daemon.cycles, "it works")
        assert isinstance(daemon.elector, Elector)
        daemon.elector._clock = Clock(monotonic=lambda: 1000.0)
        daemon.allocator.ask("a look")
        runner.join(20)
        assert [type(error) for error in out] == [LostLeadershipError]

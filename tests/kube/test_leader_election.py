"""Two processes never lead at once, whatever delays, losses, pauses and clocks a cluster has."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import diflow
from diflow.common.clock import Clock
from diflow.common.errors import DiflowError, LostLeadershipError
from diflow.kube.api import Cluster
from diflow.kube.kinds import LEASE, POD
from diflow.kube.leader_election import WRITES_AS, Elector, Times, boottime
from diflow.kube.refusals import Target
from tests.allocator.faults import Refusing, Time, eventually
from tests.kube.fakeapi import Answer, FakeApi, Request, serving, status

NAME = "diflow-allocator"
FREE = {"leaseTransitions": 7, "holderIdentity": ""}


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with serving() as found:
        yield found


def free(api: FakeApi) -> None:
    """A Lease that its last holder has released."""
    api.add(LEASE, {"metadata": {"name": NAME, "annotations": {"diflow/paused": "true"}}, "spec": dict(FREE)})


def lease(api: FakeApi) -> dict[str, Any]:
    return api.objects["/apis/coordination.k8s.io/v1/namespaces/default/leases"][NAME]


def elector(api: FakeApi, identity: str, clock: Time, **options: Any) -> Elector:
    given: dict[str, Any] = {"cluster": api.cluster(), "name": NAME, "namespace": "default"}
    times = {name: options.pop(name) for name in list(options) if name.endswith("_seconds")}
    parts = {name: options.pop(name) for name in ("wall", "jitter") if name in options}
    given |= {"clock": Clock(monotonic=clock.now, **parts), "times": Times(**times), **options}
    return patient(Elector(given.pop("cluster"), identity=identity, **given))


def patient(found: Elector) -> Elector:
    """Give the elector timeouts so long that a busy machine causes none: only the tests' clocks count."""
    found._cluster = found._cluster.without_retries(read_seconds=60.0, connect_seconds=60.0)
    return found


def leading(api: FakeApi, identity: str, clock: Time, **options: Any) -> Elector:
    free(api)
    found = elector(api, identity, clock, **options)
    assert found.try_acquire()
    return found


# --- taking the Lease -------------------------------------------------------------------------------------------------


def test_who_takes_a_free_lease_leads_with_the_next_epoch(api: FakeApi) -> None:
    clock = Time()
    found = leading(api, "a", clock, wall=lambda: 0.0)
    assert found.is_leader()
    assert (found.check(), found.epoch, found.holder, found.trouble) == (8, 8, "a", "")
    assert lease(api)["spec"] == {
        "holderIdentity": "a", "leaseDurationSeconds": 15, "leaseTransitions": 8,
        "acquireTime": "1970-01-01T00:00:00.000000Z", "renewTime": "1970-01-01T00:00:00.000001Z",
    } | {"renewTime": "1970-01-01T00:00:00.000000Z"}  # fmt: skip


def test_it_knows_for_how_long_it_has_led(api: FakeApi) -> None:
    free(api)
    clock = Time()
    first = elector(api, "a", clock)
    clock.move(500)
    assert first.leading_seconds == 0
    first.try_acquire()
    clock.move(3)
    first.renew()
    assert first.leading_seconds == 3


def test_before_it_leads_nothing_may_be_written(api: FakeApi) -> None:
    found = elector(api, "a", Time())
    assert not found.is_leader()
    assert found.epoch == 0
    with pytest.raises(LostLeadershipError, match="a does not hold the Lease default/diflow-allocator"):
        found.check()


def test_a_lease_that_is_not_there_is_made_and_watched_first(api: FakeApi) -> None:
    """It may have been deleted a moment ago, which the leader has not noticed yet."""
    clock = Time()
    found = elector(api, "a", clock)
    assert not found.try_acquire()
    assert lease(api)["spec"] == {"leaseTransitions": 0}
    clock.move(14.9)
    assert not found.try_acquire()
    clock.move(0.2)
    assert found.try_acquire()
    assert found.check() == 1


def test_anothers_lease_is_taken_when_it_has_not_changed_for_its_time_on_our_own_clock(api: FakeApi) -> None:
    ours, theirs = Time(), Time()
    first = leading(api, "a", theirs, wall=lambda: 4e9)  # the wall clock of its machine is decades ahead
    second = elector(api, "b", ours, wall=lambda: 0.0)
    for _ in range(20):
        assert not second.try_acquire()
        ours.move(3)
        assert first.renew()
        theirs.move(3)
    assert second.holder == "a"
    assert not second.try_acquire()
    ours.move(14)
    assert not second.try_acquire()
    ours.move(1)
    assert second.try_acquire()
    assert second.check() == 9
    assert not first.renew()
    assert "b holds the Lease now" in first.trouble


def test_the_time_that_the_holder_has_written_counts_when_it_is_longer(api: FakeApi) -> None:
    clock, other = Time(), Time()
    leading(api, "a", other, lease_seconds=40)
    found = elector(api, "b", clock)
    assert not found.try_acquire()
    clock.move(39)
    assert not found.try_acquire()
    clock.move(1)
    assert found.try_acquire()


def test_people_who_annotate_the_lease_do_not_keep_a_dead_leader_alive(api: FakeApi) -> None:
    clock = Time()
    leading(api, "a", Time())
    found = elector(api, "b", clock)
    for i in range(5):
        assert not found.try_acquire()
        clock.move(3)
        api.cluster().patch(LEASE, NAME, {"metadata": {"annotations": {"diflow/paused": str(i)}}})
    assert found.try_acquire()


def test_a_process_with_our_name_is_another_process(api: FakeApi) -> None:
    clock = Time()
    first = leading(api, "a", clock)
    again = elector(api, "a", clock)
    assert not again.try_acquire()
    clock.move(9)
    assert first.renew()
    clock.move(9)
    assert not again.try_acquire()
    clock.move(15)
    assert again.try_acquire()
    assert not first.is_leader()
    assert not first.renew()
    assert again.is_leader()


def test_a_process_with_our_name_that_took_the_lease_has_another_epoch(api: FakeApi) -> None:
    clock = Time()
    first, again = leading(api, "a", clock), elector(api, "a", clock)
    api.cluster().patch(LEASE, NAME, {"spec": {"holderIdentity": ""}})
    assert again.try_acquire()
    assert not first.renew()
    assert not first.is_leader()
    assert again.renew()


def test_of_two_that_reach_for_it_together_one_gets_it(api: FakeApi) -> None:
    clock = Time()
    free(api)
    first, second = elector(api, "a", clock), elector(api, "b", clock)
    once = [True]

    def rule(request: Request) -> Answer | None:
        if request.method == "PUT" and once:
            once.clear()
            assert second.try_acquire()
        return None

    api.rule(rule)
    assert not first.try_acquire()
    assert second.is_leader()
    assert not first.is_leader()


# --- keeping it -------------------------------------------------------------------------------------------------------


def test_leadership_lasts_until_the_deadline_after_the_start_of_the_last_renewal(api: FakeApi) -> None:
    clock = Time()
    found = leading(api, "a", clock)
    clock.move(5)

    def rule(request: Request) -> Answer | None:
        if request.method == "PUT":
            clock.move(3)  # the renewal took so long
        return None

    api.rule(rule)
    assert found.renew()
    clock.move(6.9)
    assert found.is_leader()
    clock.move(0.2)
    assert not found.is_leader()


def test_a_process_that_was_paused_writes_nothing_when_it_goes_on(api: FakeApi) -> None:
    clock = Time()
    found = leading(api, "a", clock)
    clock.move(20)
    with pytest.raises(LostLeadershipError):
        found.check()
    asked = len(api.requests)
    assert not found.renew()
    assert len(api.requests) == asked, "what is lost is not renewed"


def test_a_renewal_that_was_answered_after_a_pause_does_not_count(api: FakeApi) -> None:
    clock = Time()
    found = leading(api, "a", clock)
    api.rule(lambda r: clock.move(20) if r.method == "PUT" else None)
    assert not found.renew()
    assert not found.is_leader()


def test_what_was_lost_stays_lost_when_a_late_answer_would_make_it_good_again(api: FakeApi) -> None:
    clock = Time()
    found = leading(api, "a", clock)
    clock.move(9)
    noticed: list[bool] = []

    def rule(request: Request) -> Answer | None:
        if request.method == "PUT":
            clock.move(2)
            noticed.append(found.is_leader())
        return None

    api.rule(rule)
    assert not found.renew()
    assert noticed == [False]
    assert not found.is_leader()


@pytest.mark.parametrize(
    "answer",
    [
        status(500, "etcdserver: request timed out"),
        status(429, "too many requests", Retry_After="100"),
        status(401, "Unauthorized"),
        status(403, "forbidden"),
        status(422, "invalid", reason="Invalid"),
        Answer(200, b"<html>a proxy</html>"),
        Answer(200, b"{}", cut=True),
    ],
    ids=["500", "429", "401", "403", "422", "html", "cut"],
)
def test_a_renewal_that_fails_in_any_way_is_tried_again_until_the_deadline(api: FakeApi, answer: Answer) -> None:
    clock = Time()
    found = leading(api, "a", clock)
    api.rule(lambda r: answer if r.method == "PUT" else None)
    for _ in range(3):
        clock.move(3)
        assert not found.renew()
        assert found.is_leader()
        assert "could not be renewed" in found.trouble
    api.rules.clear()
    assert found.renew()
    assert found.trouble == ""
    api.rule(lambda r: answer if r.method == "PUT" else None)
    for _ in range(4):
        clock.move(3)
        found.renew()
    assert not found.is_leader()


def test_a_server_that_is_away_is_a_failed_renewal(api: FakeApi) -> None:
    clock, away = Time(), [False]
    found = leading(api, "a", clock, cluster=Cluster(Target(api.url), transport=Refusing(lambda: away[0])))
    away[0] = True
    clock.move(3)
    assert not found.renew()
    assert found.is_leader()
    away[0] = False
    clock.move(3)
    assert found.renew()
    clock.move(9)
    assert found.is_leader()


def test_a_renewal_whose_answer_is_lost_is_found_again_as_our_own(api: FakeApi) -> None:
    clock = Time()
    found = leading(api, "a", clock)
    once = [True]

    def rule(request: Request) -> Answer | None:
        if request.method == "PUT" and once:
            once.clear()
            api._plain(request)
            return status(504, "the answer was lost")
        return None

    api.rule(rule)
    clock.move(3)
    assert not found.renew()
    clock.move(3)
    assert found.renew()
    clock.move(9)
    assert found.is_leader()


def test_a_lease_that_is_deleted_or_emptied_is_lost(api: FakeApi) -> None:
    clock = Time()
    found = leading(api, "a", clock)
    api.remove(LEASE, NAME)
    assert not found.renew()
    assert not found.is_leader()
    assert "no process holds the Lease now" in found.trouble
    again = leading(api, "b", clock)
    api.cluster().patch(LEASE, NAME, {"spec": {"holderIdentity": None}})
    assert not again.renew()
    assert not again.is_leader()


def test_a_candidate_leads_as_soon_as_the_lease_has_run_out(api: FakeApi) -> None:
    clock = Time()
    leading(api, "a", clock)

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            clock.move(timeout)
            return False

    found = elector(api, "b", clock, jitter=lambda _, high: high)
    began = clock.now()
    assert found.acquire(Stop())
    assert 15.0 <= clock.now() - began < 15.1
    assert found.former_writes_as == "diflow-allocator/default/uid-diflow-allocator/8"
    assert found.writes_as(found.epoch) == "diflow-allocator/default/uid-diflow-allocator/9"
    found.release()


def test_a_leader_that_did_not_name_its_writes_is_known_as_such(api: FakeApi) -> None:
    clock = Time()
    found = leading(api, "a", clock)
    assert found.former_writes_as == "", "the Lease was free, and its last leader had said nothing"
    assert found.release()
    stale = {"metadata": {"annotations": {WRITES_AS: found.writes_as(7)}}}
    api.cluster().patch(LEASE, NAME, stale)  # as an older version leaves what a newer one wrote before it
    other = elector(api, "b", clock)
    assert other.try_acquire()
    assert other.former_writes_as == ""


def test_what_others_write_on_the_lease_stays_and_is_seen(api: FakeApi) -> None:
    clock = Time()
    found = leading(api, "a", clock)
    says = {WRITES_AS: "diflow-allocator/default/uid-diflow-allocator/8"}
    assert found.lease_annotations() == {"diflow/paused": "true", **says}
    other = {"metadata": {"annotations": {"diflow/paused": None, "diflow/note": "x"}, "labels": {"l": "1"}}}
    api.cluster().patch(LEASE, NAME, {**other, "spec": {"strategy": "s"}})
    assert found.renew()
    assert found.lease_annotations() == {"diflow/note": "x", **says}
    assert found.release()
    assert lease(api)["metadata"]["annotations"] == {"diflow/note": "x", **says}
    assert lease(api)["metadata"]["labels"] == {"l": "1"}
    assert lease(api)["spec"]["strategy"] == "s"


def test_a_request_may_take_less_than_half_the_deadline(api: FakeApi) -> None:
    for wrong in ({"renew_seconds": 10}, {"lease_seconds": 4}, {"request_seconds": 5}, {"deadline_seconds": 15}):
        with pytest.raises(ValueError, match="an elector needs renew_seconds < deadline_seconds < lease_seconds"):
            Times(**wrong)
    with pytest.raises(ValueError, match="identity"):
        Elector(api.cluster(), name=NAME, namespace="default", identity="")


def test_the_clock_counts_on_and_is_not_the_wall_clock() -> None:
    first = boottime()
    assert first <= boottime()
    assert abs(first - time.time()) > 1e6


# --- giving it up -----------------------------------------------------------------------------------------------------


def test_a_released_lease_is_taken_over_at_once(api: FakeApi) -> None:
    clock = Time()
    first = leading(api, "a", clock)
    second = elector(api, "b", clock)
    assert not second.try_acquire()
    assert first.release()
    assert not first.is_leader()
    assert lease(api)["spec"]["holderIdentity"] == ""
    assert second.try_acquire()
    assert second.check() == 9
    assert not first.renew()
    assert second.is_leader()
    assert not first.release(), "what is not held cannot be given up"
    assert lease(api)["spec"]["holderIdentity"] == "b"


def test_a_release_goes_through_although_somebody_has_annotated_the_lease(api: FakeApi) -> None:
    found = leading(api, "a", Time())
    api.cluster().patch(LEASE, NAME, {"metadata": {"annotations": {"x": "y"}}})
    assert found.release()


def test_a_release_that_fails_still_ends_leadership(api: FakeApi) -> None:
    found = leading(api, "a", Time())
    api.fail(status(500, "down"), method="PUT")
    assert not found.release()
    assert not found.is_leader()
    assert "could not be released" in found.trouble


# --- the threads ------------------------------------------------------------------------------------------------------


def test_acquire_waits_through_trouble_until_it_leads_and_then_renews(api: FakeApi) -> None:
    free(api)
    api.fail(status(503, "down"), path="leases", times=3)
    api.fail(status(404, 'namespaces "default" not found', reason="NotFound"), method="PUT")
    api.fail(Answer(200, b"{"), path="leases", times=1)
    found = elector(api, "a", Time(), renew_seconds=0.02)
    assert found.acquire(threading.Event())
    before = len(api.seen("PUT"))
    eventually(lambda: len(api.seen("PUT")) > before + 3)
    assert found.release()
    eventually(lambda: not elector_threads())


def test_acquire_ends_when_it_is_told_to_stop(api: FakeApi) -> None:
    free(api)
    api.rule(lambda _: status(503, "down", Retry_After="1000"))
    found = elector(api, "a", Time())
    stop = threading.Event()
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(found.acquire(stop)))
    thread.start()
    eventually(lambda: "HTTP 503" in found.trouble)
    stop.set()
    thread.join(30)
    assert results == [False]
    assert not found.is_leader()


def test_the_loss_is_told_once_and_says_why(api: FakeApi) -> None:
    free(api)
    clock, lost = Time(), list[str]()
    found = elector(api, "a", clock, renew_seconds=0.02, on_lost=lost.append)
    found.acquire(threading.Event())
    api.rule(lambda r: status(500, "down") if r.method == "PUT" else None)
    eventually(lambda: found.trouble)
    assert lost == []
    clock.move(11)
    eventually(lambda: lost)
    eventually(lambda: not elector_threads())
    assert len(lost) == 1
    assert "the Lease could not be renewed" in lost[0]


def test_the_loss_is_told_even_while_a_renewal_hangs(api: FakeApi) -> None:
    free(api)
    clock, lost, go = Time(), list[str](), threading.Event()
    cluster = api.cluster()
    found = elector(api, "a", clock, cluster=cluster, renew_seconds=0.02, on_lost=lost.append)
    found.acquire(threading.Event())
    hanging = threading.Event()

    def rule(request: Request) -> Answer | None:
        if request.method == "PUT":
            hanging.set()
            go.wait(60)
        return None

    api.rule(rule)
    try:
        eventually(hanging.is_set)
        clock.move(11)
        eventually(lambda: lost)
    finally:
        go.set()
    eventually(lambda: not elector_threads())


def test_a_process_that_hangs_gives_its_lead_up_and_the_next_one_waits_until_the_lease_has_run_out(
    api: FakeApi,
) -> None:
    clock = Time()
    first, second = leading(api, "a", clock), elector(api, "b", clock)
    assert not second.try_acquire()
    first.abandon("the loop has stood still for 50 s")
    with pytest.raises(LostLeadershipError, match="the loop has stood still for 50 s"):
        first.check()
    assert not first.renew()
    assert not first.release(), "it may have a write under way: others wait"
    clock.move(14.9)
    assert not second.try_acquire()
    clock.move(0.2)
    assert second.try_acquire()


def test_a_release_is_not_told_as_a_loss(api: FakeApi) -> None:
    free(api)
    lost = list[str]()
    found = elector(api, "a", Time(), renew_seconds=0.02, on_lost=lost.append)
    found.acquire(threading.Event())
    assert found.release()
    eventually(lambda: not elector_threads())
    assert lost == []


def elector_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("elector")]


# --- any history ------------------------------------------------------------------------------------------------------


class Simulation:
    """Three electors with clocks of their own, and a network that delays, loses and repeats what they send.

    While a request is in flight, time passes and the others act, so that all interleavings occur.
    """

    def __init__(self, api: FakeApi, seed: int) -> None:
        self.api = api
        self.chance = random.Random(seed)
        self.now = 0.0
        self.calm = False
        self.depth = 0
        self.happened: Counter[str] = Counter()
        self.late: list[Request] = []
        self.epochs: list[int] = []
        self.deleted = False
        self.busy: set[str] = set()
        self.starved = ""
        self.wrong: list[str] = []
        rates = [0.95, 1.0, 1.05]
        self.electors = [
            patient(
                Elector(
                    api.cluster(),
                    name=NAME,
                    namespace="default",
                    identity=f"e{i}",
                    clock=Clock(
                        monotonic=self._clock(rate, self.chance.uniform(0, 1e6)),
                        wall=lambda: self.chance.choice([0.0, 1e9, 4e9]) + self.now,
                    ),
                )
            )
            for i, rate in enumerate(rates)
        ]
        api.rule(self.network)

    def _clock(self, rate: float, start: float) -> Callable[[], float]:
        return lambda: start + self.now * rate

    def leaders(self) -> list[Elector]:
        return [e for e in self.electors if e.is_leader()]

    def check(self) -> None:
        leaders = self.leaders()
        if len(leaders) > 1:  # an exception would be lost here: this may be in one of the server's threads
            self.wrong.append(f"at {self.now}: {[e.identity for e in leaders]}")
        if leaders and (not self.epochs or self.epochs[-1] != leaders[0].check()):
            self.epochs = [*([] if self.deleted else self.epochs), leaders[0].check()]
            self.deleted = False

    def passes(self) -> None:
        """A random duration: mostly short, sometimes as long as on a machine that swaps."""
        left = self.chance.choice([0.1, 0.5, 1.0, 2.0, 3.0, 4.0] if self.chance.random() < 0.97 else [20.0])
        while left > 0:
            self.now += min(left, 1.0)
            left -= 1.0
            self.check()

    def step(self) -> None:
        if self.chance.random() < 0.1:
            self.starved = self.chance.choice(self.electors).identity
        free = [e for e in self.electors if e.identity not in self.busy and e.identity != self.starved]
        if not free:
            return
        each = self.chance.choice(free)
        self.busy.add(each.identity)
        try:
            if each.is_leader():
                if self.chance.random() < 0.04 and not self.calm:
                    self.happened["released"] += each.release()
                else:
                    self.happened["renewed"] += each.renew()
            else:
                self.happened["acquired"] += each.try_acquire()
        except DiflowError:
            self.happened["refused"] += 1
        finally:
            self.busy.discard(each.identity)
        self.check()

    def acts(self) -> None:
        self.passes()
        for _ in range(self.chance.randrange(4)):
            self.step()

    def meanwhile(self) -> None:
        """Events while a request is in flight."""
        if self.depth >= 2 or self.chance.random() < 0.8:
            return
        self.happened["interrupted"] += 1
        self.depth += 1
        try:
            for _ in range(self.chance.randrange(4)):
                self.acts()
        finally:
            self.depth -= 1

    def network(self, request: Request) -> Answer | None:
        if self.calm or "leases" not in request.path:
            return None
        if request.method == "POST":
            request.body["metadata"]["uid"] = f"uid-{self.chance.random()}"
        self.meanwhile()
        fate = self.chance.random()
        if fate < 0.05:
            self.happened["lost on its way"] += 1
            return status(503, "down")
        if fate < 0.1 and request.method != "GET":
            self.happened["arrives late"] += 1
            self.late.append(request)
            return status(504, "timed out")
        made = self.api._plain(request)
        self.meanwhile()
        if fate < 0.16:
            self.happened["answer lost"] += 1
            return status(502, "bad gateway")
        return made

    def somebody(self) -> None:
        """Random actions of people and faults of the network."""
        dice = self.chance.random()
        leases = self.api.objects.get("/apis/coordination.k8s.io/v1/namespaces/default/leases", {})
        if dice < 0.15 and self.late:
            self.api._plain(self.late.pop(self.chance.randrange(len(self.late))))
            self.happened["late arrival"] += 1
        elif dice < 0.25 and leases:
            annotations = {**(leases[NAME]["metadata"].get("annotations") or {}), f"a{self.chance.randrange(9)}": "x"}
            self.api.add(LEASE, {**leases[NAME], "metadata": {**leases[NAME]["metadata"], "annotations": annotations}})
            self.happened["annotated"] += 1
        elif dice < 0.28 and leases:
            self.api.remove(LEASE, NAME)
            self.deleted = True  # the count restarts with the next one
            self.happened["deleted"] += 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_at_no_instant_do_two_lead(api: FakeApi, seed: int) -> None:
    history = Simulation(api, seed)
    for _ in range(600):
        history.acts()
        history.somebody()
        assert history.wrong == []
        assert history.epochs == sorted(set(history.epochs)), "each leader has a higher epoch than those before"
    fates = {"renewed", "acquired", "released", "refused", "interrupted", "lost on its way", "arrives late"}
    assert not {f for f in fates | {"answer lost", "late arrival", "annotated"} if history.happened[f] < 3}, (
        history.happened
    )
    history.calm = True
    for _ in range(200):
        history.now += 0.5
        history.step()
        if history.leaders():
            break
    assert history.leaders(), "when the trouble is over, somebody leads again"


# --- a real process ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_stopped_process_that_goes_on_gets_no_write_accepted(api: FakeApi) -> None:
    """It is stopped between the check that it leads and its write."""
    free(api)
    api.add(POD, {"metadata": {"name": "a"}})
    caught, go = threading.Event(), threading.Event()
    rounds = [0]

    def rule(request: Request) -> Answer | None:
        if request.path == "/version":
            rounds[0] += 1
            if rounds[0] == 4:
                caught.set()
                go.wait(90)
        return None

    api.rule(rule)
    root = str(Path(diflow.__file__).parents[1])
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.kube.holder", api.url], cwd=root, env={**os.environ, "PYTHONPATH": root}
    )
    second = Elector(api.cluster(), name=NAME, namespace="default", identity="b", times=Times(8, 0.5))
    try:
        assert caught.wait(60)
        process.send_signal(signal.SIGSTOP)
        assert second.acquire(threading.Event())
        cluster = api.cluster()
        cluster.replace(POD, "a", {**cluster.get(POD, "a"), "by": "b", "epoch": second.check()})
        tried = len(api.seen("PUT", "pods"))
        go.set()
        process.send_signal(signal.SIGCONT)
        assert process.wait(60) == 3, "it ended because it does not lead any more"
    finally:
        go.set()
        process.kill()
        process.wait()
        second.release()
    accepted = [(obj.get("by"), obj.get("epoch")) for _, what, path, obj in api.events if path.endswith("pods")]
    assert accepted == [(None, None), *[("holder", 8)] * 3, ("b", 9)]
    assert len(api.seen("PUT", "pods")) == tried + 1, "its write was sent, and refused"

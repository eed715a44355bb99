"""Replicas that are silent, stalled or slow: found by the allocator, named, and started again."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from diflow import DIJob
from diflow.allocator.reconcile import health
from diflow.allocator.reconcile.health import HealthWatch
from diflow.allocator.reconcile.problems import MOST_AT_ONCE
from diflow.allocator.settings import AllocatorSettings
from diflow.allocator.write.patches import Note
from diflow.common.clock import Clock
from diflow.dijob.model import Health
from diflow.dijob.rules.failurerules import FailurePolicy
from tests.allocator.crashing import Crash
from tests.allocator.lab import Killed, Lab, job, lab, task
from tests.allocator.signs import Programs

HEARTBEAT, PROGRESS, FIRST = 300, 600, 1800
SOON = 120
"""The deadline for a step in a test that waits for it at each of many crashes."""
LATE_SECONDS = 30
"""How much later than its deadline a hang may be found."""


@pytest.fixture
def at() -> Iterator[Lab]:
    with lab() as made:
        made.cluster.node("a", cpu=4)
        made.cluster.node("b", cpu=4)
        yield made
        assert made.cluster.problems == []


def healthy(name: str = "one", *, replicas: int = 4, action: str = "report", **fields: Any) -> DIJob:
    health = Health(
        heartbeat_seconds=HEARTBEAT,
        progress_seconds=PROGRESS,
        first_progress_seconds=FIRST,
        action=action,
        max_restarts=2,
    )
    return job(name, task(replicas=replicas), health=health, backoff_limit=0, **fields)


def elastic(name: str = "one", *, action: str = "restart") -> DIJob:
    made = healthy(name, action=action, preemptible=True)
    return made.model_copy(update={"tasks": (task(replicas=4, min_replicas=2, max_replicas=4),)})


def starts(at: Lab, given: DIJob) -> None:
    at.cluster.submit(given)
    count = given.tasks[0].replicas
    at.until(lambda: len(at.cluster.running(given.name)) == count, "it runs")


def found(at: Lab, name: str = "one") -> dict[str, Any]:
    return dict(json.loads(at.cluster.workflow(name)["metadata"]["annotations"].get("diflow/health", "{}")))


def says(at: Lab, name: str = "one") -> str:
    return str(found(at, name).get("why", ""))


def uids(at: Lab, name: str = "one") -> dict[str, str]:
    return {replica: pod["metadata"]["uid"] for replica, pod in at.cluster.of(name).items()}


def reasons(at: Lab, name: str = "one") -> list[str]:
    return [reason for reason, _ in at.events(name)]


def steady(_: int, seconds: float) -> int:
    return int(seconds)


def test_a_job_whose_ranks_advance_has_no_annotation_and_no_event(at: Lab) -> None:
    starts(at, healthy(action="restart"))
    Programs(at, "one", steady).run(2000)
    assert found(at) == {}
    assert "Unhealthy" not in reasons(at)


def test_a_hang_of_all_ranks_is_found_within_its_deadline_and_30_s(at: Lab) -> None:
    starts(at, healthy())
    programs = Programs(at, "one", steady)
    programs.run(500)
    programs.program = lambda _, seconds: min(int(seconds), 500)
    took = programs.until(lambda: says(at), "it is found", seconds=PROGRESS + 2 * LATE_SECONDS)
    assert PROGRESS - 20 <= took <= PROGRESS + LATE_SECONDS
    assert says(at) == "no step for 10m: all 4 replicas"
    assert found(at)["stalled"] == "0-3"
    programs.run(600)
    assert reasons(at).count("Unhealthy") == 1, "a job that only reports is left alone"
    programs.program = steady
    programs.until(lambda: not says(at), "it is well again", seconds=120)
    assert reasons(at)[-1] == "Healthy"


def test_of_ranks_that_wait_for_a_dead_one_the_dead_one_is_named(at: Lab) -> None:
    starts(at, healthy())
    programs = Programs(at, "one", steady)
    programs.run(500)
    programs.program = lambda rank, seconds: None if rank == 2 else min(int(seconds), 500)
    programs.until(lambda: "all 4" in says(at), "it is found", seconds=PROGRESS + 2 * LATE_SECONDS)
    where = at.cluster.running("one")["worker-2"]
    assert says(at) == (
        f"no sign of life for 5m: worker-2 on {where}; no step for 10m: all 4 replicas; "
        f"the others wait for worker-2 on {where}"
    )
    assert found(at)["behind"] == found(at)["silent"] == "2"


def test_a_server_that_is_away_makes_no_rank_silent(at: Lab) -> None:
    starts(at, healthy(action="restart"))
    programs = Programs(at, "one", steady)
    programs.run(200)
    programs.server_is_away = True
    programs.run(3 * PROGRESS)
    assert says(at).startswith("not judged: for 5m no server has written what it reports")
    assert found(at)["restarts"] == 0
    programs.server_is_away = False
    programs.program = lambda _, seconds: None if seconds < 3 * PROGRESS + 400 else int(seconds)  # still backing off
    programs.run(60)
    programs.run(400)
    assert says(at) == ""
    assert set(reasons(at)) == {"Admitted", "Unhealthy", "Healthy"}


@pytest.mark.slow
def test_a_job_that_no_server_hears_is_told_so_and_left_alone(at: Lab) -> None:
    starts(at, healthy(action="restart"))
    old = uids(at)
    for _ in range(240):
        at.step()
    assert found(at) == {}
    for _ in range(3 * FIRST // 5):
        at.step(5.0)
    assert says(at).startswith("not judged")
    assert uids(at) == old


def test_a_job_of_which_some_replicas_have_ended_is_well_again_when_the_others_advance(at: Lab) -> None:
    starts(at, healthy())
    programs = Programs(at, "one", steady)
    programs.run(300)
    at.cluster.finish(at.cluster.of("one")["worker-0"]["metadata"]["name"])
    programs.program = lambda rank, seconds: min(int(seconds), 300) if rank == 1 else int(seconds)
    programs.until(lambda: says(at), "it is found", seconds=PROGRESS + 60)
    assert found(at)["stalled"] == "1"
    programs.program = steady
    programs.until(lambda: not says(at), "it is well again", seconds=120)


@pytest.mark.slow
def test_replicas_of_a_fixed_job_that_stand_are_started_again_and_nothing_is_counted(at: Lab) -> None:
    starts(at, healthy(action="restart"))
    programs = Programs(at, "one", steady)
    programs.run(500)
    old = uids(at)
    programs.program = lambda _, seconds: min(int(seconds), 500)
    programs.until(lambda: "Restarted" in reasons(at), "it is restarted", seconds=PROGRESS + LATE_SECONDS)
    programs.program = steady
    programs.until(lambda: not set(old.values()) & set(uids(at).values()), "the pods are new", seconds=120)
    at.until(lambda: len(at.cluster.running("one")) == 4, "it runs again", seconds=120)
    assert found(at)["restarts"] == 1
    programs.until(lambda: not says(at), "it is well again", seconds=120)
    assert found(at)["last"].endswith("restarted (1 of 2, not counted in backoffLimit)")
    new = uids(at)
    programs.run(1000)
    assert uids(at) == new
    assert at.cluster.restarts("one") == 0
    assert at.cluster.phase("one") == "Running"
    assert reasons(at).count("Restarted") == 1


@pytest.mark.parametrize("preemptible", [False, True])
def test_with_a_failure_policy_a_restart_counts_nothing_either(at: Lab, preemptible: bool) -> None:
    starts(at, healthy(action="restart", preemptible=preemptible, failure_policy=FailurePolicy()))
    programs = Programs(at, "one", steady)
    programs.run(300)
    old = uids(at)
    programs.program = lambda _, seconds: min(int(seconds), 300)
    programs.until(lambda: "Restarted" in reasons(at), "it is restarted", seconds=PROGRESS + LATE_SECONDS)
    programs.program = steady
    at.until(lambda: len(at.cluster.running("one")) == 4, "it runs again", seconds=120)
    programs.run(300)
    assert old.keys() == uids(at).keys()
    assert not set(old.values()) & set(uids(at).values())
    assert at.cluster.restarts("one") == 0
    assert at.cluster.phase("one") == "Running"


def test_of_replicas_that_work_alone_only_the_one_that_stands_is_started_again(at: Lab) -> None:
    starts(at, healthy(action="restart"))
    programs = Programs(at, "one", steady)
    programs.run(500)
    old = uids(at)
    programs.program = lambda rank, seconds: int(seconds) if rank != 1 else min(int(seconds), 500)
    programs.until(lambda: uids(at).get("worker-1") not in (None, old["worker-1"]), "one is new", seconds=900)
    assert {name: uid for name, uid in uids(at).items() if name != "worker-1"} == {
        name: uid for name, uid in old.items() if name != "worker-1"
    }


@pytest.mark.slow
def test_an_elastic_job_that_stands_gets_a_new_round_on_its_nodes(at: Lab) -> None:
    starts(at, elastic())
    programs = Programs(at, "one", steady)
    programs.run(500)
    before = at.allocation("one")
    programs.program = lambda _, seconds: min(int(seconds), 500)
    programs.until(lambda: at.cluster.parameters("one")["current"] == "2", "a new round", seconds=700)
    programs.program = steady
    at.until(lambda: len(at.cluster.running("one")) == 4, "it runs again", seconds=120)
    assert at.allocation("one") == before
    assert found(at)["restarts"] == 1
    programs.run(1000)
    assert at.cluster.parameters("one")["current"] == "2"
    assert at.cluster.restarts("one") == 0


@pytest.mark.slow
@pytest.mark.parametrize("given", [healthy(action="restart"), elastic()], ids=["fixed", "elastic"])
def test_a_job_that_hangs_again_and_again_is_restarted_as_often_as_it_may(at: Lab, given: DIJob) -> None:
    starts(at, given)
    programs = Programs(at, "one", lambda _, seconds: min(int(seconds), 100))
    programs.run(5 * (PROGRESS + 300), every=20)
    assert found(at)["restarts"] == 2
    assert says(at).endswith("not restarted again, after 2 restarts (maxRestarts)")
    assert reasons(at).count("Restarted") == 2
    assert at.cluster.phase("one") == "Running"


def test_nothing_is_restarted_while_the_user_has_suspended_the_job(at: Lab) -> None:
    starts(at, healthy(action="restart"))
    programs = Programs(at, "one", steady)
    programs.run(100)
    at.cluster._change_workflow("one", lambda obj: {**obj, "spec": {**obj["spec"], "suspend": True}})
    programs.program = lambda _, seconds: min(int(seconds), 100)
    programs.run(1000)
    assert found(at) == {}


def test_before_its_first_step_a_job_has_more_time(at: Lab) -> None:
    starts(at, healthy())
    programs = Programs(at, "one", lambda *_: None)
    programs.run(FIRST - 30)
    assert found(at) == {}
    programs.until(lambda: says(at), "it is found", seconds=30 + LATE_SECONDS)
    assert says(at) == "no step for 30m: all 4 replicas"


@pytest.mark.slow
def test_where_one_rank_speaks_for_all_the_others_are_not_judged_but_started_with_it(at: Lab) -> None:
    starts(at, healthy(action="restart"))
    programs = Programs(at, "one", lambda rank, seconds: int(seconds) if rank == 0 else None)
    programs.run(2 * FIRST, every=20)
    assert found(at) == {}
    old = uids(at)
    programs.program = lambda rank, seconds: min(int(seconds), 2 * FIRST) if rank == 0 else None
    programs.until(lambda: not set(old.values()) & set(uids(at).values()), "all are new", seconds=900)


@pytest.mark.slow
def test_a_slow_rank_is_named_and_a_node_that_is_slow_for_several_jobs_too() -> None:
    port = {"containerPort": 7777, "hostPort": 7777}
    with lab() as at:
        for name in "abcd":
            at.cluster.node(name, cpu=4)
        for name, number in (("one", 7777), ("two", 7778)):
            made = task(replicas=4)
            (container,) = made.template["spec"]["containers"]
            ports = [{**port, "hostPort": number}]  # a replica on each node
            template = {"spec": {"containers": [{**container, "ports": ports}]}}
            at.cluster.submit(job(name, made.model_copy(update={"template": template}), health=Health()))
        at.until(lambda: len(at.cluster.running("one")) + len(at.cluster.running("two")) == 8, "both run")

        def program(name: str) -> Programs:
            where = at.cluster.running(name)
            return Programs(at, name, lambda rank, seconds: int(seconds / (3 if where[f"worker-{rank}"] == "c" else 1)))

        one, two = program("one"), program("two")
        for _ in range(195):
            one.report()
            two.report()
            at.step(5.0)
            at.step(5.0)
        for name in ("one", "two"):
            (rank,) = found(at, name)["slow"]
            assert at.cluster.running(name)[f"worker-{rank}"] == "c"
            assert says(at, name).startswith(f"worker-{rank} on c is 3.0 times slower than the median of the others")
        assert at.daemon is not None
        assert at.daemon.allocator.health.slow_nodes == {"c": (("default", "one"), ("default", "two"))}
        with at.api.changed:
            events = at.api.objects["/api/v1/namespaces/diflow-system/events"].values()
        assert [e["message"] for e in events if e["reason"] == "SlowNode"] == [
            "node c is slow: 2 jobs have a replica there that is slower than its others"
        ]


def recording_watch() -> tuple[HealthWatch, list[list[str]]]:
    """A watch, and the nodes of the Events of each of its looks."""
    looks: list[list[str]] = []

    class Events:
        def record_own_events(self, events: Any) -> None:
            looks.append([note.message.split()[1] for note, _ in events])

    return HealthWatch(Events(), clock=Clock(monotonic=lambda: 0.0, wall=lambda: 0.0)), looks  # type: ignore[arg-type]


def test_many_slow_nodes_are_told_a_few_at_a_time_those_of_the_namespaces_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tenant whose jobs are alone on some hundred nodes can make all of them slow at once, and again and again."""
    watch, looks = recording_watch()
    slow = {f"a-{number:03}": (("evil", "one"), ("evil", "two")) for number in range(100)}
    slow["z"] = (("good", "one"), ("good", "two"))
    monkeypatch.setattr(health, "slow_nodes", lambda *_: slow)
    for _ in range(10):
        watch._find_slow_nodes([])
    assert "z" in looks[0]
    assert max(map(len, looks)) == MOST_AT_ONCE
    assert sorted(node for look in looks for node in look) == sorted(slow), "each is told once"
    assert watch.slow_nodes == slow, "all are known from the first look on"


def test_a_tenant_has_no_more_turns_with_slow_nodes_for_having_several_namespaces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch, looks = recording_watch()
    sets = [[f"evil-{i}" for i in range(6) if number >> i & 1] for number in range(1, 64)]
    slow = {f"a-{n:02}": tuple((space, name) for space in spaces for name in "ab") for n, spaces in enumerate(sets)}
    slow["z"] = (("good", "one"), ("good", "two"))
    monkeypatch.setattr(health, "slow_nodes", lambda *_: slow)
    watch._find_slow_nodes([])
    assert "z" in looks[0]


def test_events_of_the_allocators_own_are_sent_side_by_side() -> None:
    with lab(settings=AllocatorSettings(writers=2, debounce_seconds=0.0)) as at:
        assert at.daemon is not None
        both = threading.Barrier(2, timeout=10)

        def meet(_: str, path: str) -> None:
            if path.endswith("/events"):
                both.wait()

        at.daemon.line.before = meet
        events = [(Note("SlowNode", f"node {name} is slow", is_warning=True), name) for name in "ab"]
        at.daemon.allocator.executor.record_own_events(events)
        assert not both.broken
        with at.api.changed:
            assert len(at.api.objects["/api/v1/namespaces/diflow-system/events"]) == 2


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"round":"1","stop":{"until":1e300,"members":{"worker":"0-3"}}}',
        '{"round":"9","stop":{"until":99999999999,"members":{"worker":"0-3"}}}',
        '{"round":"1","stop":{"until":1,"members":{"worker":"0-3"}}}',
        '{"round":"1","stop":{"until":99999999998,"members":{"worker":"0-3"}}}',
        '{"round":"1","slow":{"0":1e400},"silent":"0-1999"}',
    ],
)
def test_an_annotation_that_a_user_has_written_ends_no_pod(at: Lab, text: str) -> None:
    starts(at, healthy(action="restart"))
    old = uids(at)
    at.cluster.annotate("one", health=text)
    Programs(at, "one", steady).run(300)
    assert uids(at) == old


def test_of_a_job_that_does_not_ask_for_restarts_no_annotation_ends_a_pod(at: Lab) -> None:
    stop = '{"round":"1","stop":{"until":99999999999,"members":{"worker":"0-3"}}}'
    for name, given in (("one", healthy(replicas=2)), ("two", job("two", task(replicas=2)))):
        starts(at, given)
        at.cluster.annotate(name, health=stop)
    old = uids(at) | uids(at, "two")
    at.rest()
    assert uids(at) | uids(at, "two") == old


def test_signs_of_life_that_a_user_has_written_make_no_other_job_fail(at: Lab) -> None:
    starts(at, healthy("bad", replicas=2))
    starts(at, healthy(replicas=2))
    programs = Programs(at, "one", steady)
    programs.run(100)
    huge = {"round": "1", "at": 10**11, "since": 1, "heard": [0, -1], "moved": [0, 5], "steps": [10**15, 0]}
    for signs in (huge, {**huge, "heard": [10**11] * 2}, {**huge, "work": [1e-300, 1e5]}, {**huge, "steps": [0]}):
        at.cluster.edit("bad", profilings=json.dumps({"signals": signs}))
        programs.run(20)
    programs.program = lambda _, seconds: min(int(seconds), 300)
    programs.until(lambda: says(at), "it is found", seconds=PROGRESS + 300)


@pytest.mark.slow
@pytest.mark.parametrize("given", [healthy(action="restart"), elastic()], ids=["fixed", "elastic"])
def test_killed_at_any_write_of_a_restart_it_restarts_once_and_ends_where_it_would_have_ended(given: DIJob) -> None:
    undisturbed = Crash(at=0, is_sent=False)
    wanted = after_a_hang(given, undisturbed)
    assert undisturbed.seen >= 5
    for is_sent in (False, True):
        for k in range(1, undisturbed.seen + 1):
            crash = Crash(at=k, is_sent=is_sent)
            assert after_a_hang(given, crash) == wanted, f"killed {'after' if is_sent else 'before'} write {k}"
            assert crash.seen >= k


def after_a_hang(given: DIJob, crash: Crash) -> dict[str, Any]:
    """The state after a hang and the restart, with one crash of the allocator."""
    assert given.health is not None
    given = given.model_copy(update={"health": given.health.model_copy(update={"progress_seconds": SOON})})
    with lab() as at:
        at.cluster.node("a", cpu=4)
        at.cluster.node("b", cpu=4)
        starts(at, given)
        programs = Programs(at, "one", steady)
        programs.run(100)
        old = set(uids(at).values())
        assert at.daemon is not None
        at.daemon.line.before, at.daemon.line.after = crash.before, crash.after
        programs.program = lambda _, seconds: (
            int(seconds) if seconds < 100 or old.isdisjoint(uids(at).values()) else 100
        )
        ends = at.time.now() + SOON + 400
        while at.time.now() < ends:
            try:
                programs.run(10)
            except Killed:
                at.end()
                at.begin()
        assert at.cluster.problems == []
        return {
            "new": old.isdisjoint(uids(at).values()),
            "runs": sorted(at.cluster.running("one")),
            "allocation": {task: sorted(nodes) for task, nodes in at.allocation("one").items()},
            "restarts": found(at)["restarts"],
            "says": says(at) if found(at)["round"] == at.cluster.parameters("one")["current"] else "",
            "counted": at.cluster.restarts("one"),
            "phase": at.cluster.phase("one"),
            "rounds": at.cluster.parameters("one")["rounds"],
        }

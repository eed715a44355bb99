"""What jobs of one namespace cost those of another by coming and going: restarts, places without pods, late plans."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from diflow import Task
from diflow.allocator.model.plan import Plan
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.policies.base import Policy, load_policy
from diflow.allocator.settings import AllocatorSettings
from diflow.allocator.watch.job import Job
from diflow.allocator.write.patches import Write
from diflow.kube.kinds import CONFIG_MAP, POD, WORKFLOW
from tests.allocator.lab import Lab, job, lab, task

POLICIES = ["fit", "fair", "goodput", "fair+goodput"]
FOR_EVER = 10**9
PROMISE = 300
THING = "example.com/thing"
QUEUES = "queues:\n  - {name: victims, guarantee: {cpu: 6}}\n  - {name: default}\n"


@contextmanager
def shared(policy: str, *, seconds: int = FOR_EVER, queues: str = "", **options: Any) -> Iterator[Lab]:
    """A cluster of two namespaces. Pods of jobs "evil-..." run for so many seconds."""

    def runs(pod: dict[str, Any]) -> tuple[float, int]:
        return (seconds if pod["metadata"]["namespace"] == "evil" else FOR_EVER), 0

    with lab(policy=load_policy(policy), namespaces=("default", "evil"), runs=runs, **options) as at:
        if queues:
            at.api.add(
                CONFIG_MAP,
                {"metadata": {"name": "diflow-queues"}, "data": {"queues.yaml": queues}},
                namespace="diflow-system",
            )
        yield at


def elastic(name: str, **fields: Any) -> Any:
    return job(name, task(replicas=8, min_replicas=1, max_replicas=8), preemptible=True, **fields)


def parts(at: Lab, name: str) -> list[str]:
    """The Workflows of a job."""
    with at.api.changed:
        return [one for one in at.cluster._objects(WORKFLOW) if one == name or one.startswith(f"{name}-s")]


def moves(at: Lab, name: str) -> int:
    """How often the job has got another allocation."""
    return max(int(json.loads(at.annotation(part, "allocation") or "{}").get("moves", 0)) for part in parts(at, name))


def running(at: Lab, name: str) -> int:
    return sum(len(at.cluster.running(part)) for part in parts(at, name))


@pytest.mark.parametrize(
    ("policy", "priority", "sizes", "queues"),
    [
        *((policy, "normal", (1,), "") for policy in POLICIES),
        ("fit", "high", (1, 3, 7), ""),
        ("fair", "high", (2, 1), QUEUES),
        ("fair", "normal", (1,), QUEUES),
    ],
)
def test_jobs_that_come_and_go_restart_anothers_job_twice_an_hour_at_most(
    policy: str, priority: str, sizes: tuple[int, ...], queues: str
) -> None:
    with shared(policy, seconds=5, queues=queues) as at:
        at.cluster.node("a", cpu=8)
        at.cluster.submit(elastic("victim", **({"queue": "victims"} if queues else {})))
        at.until(lambda: running(at, "victim") == 8, "it has all", seconds=400)
        before = moves(at, "victim")
        for second in range(1800):
            if second % 30 == 0:
                size = sizes[second // 30 % len(sizes)]
                evil = job(f"evil-{second}", task(replicas=size), priority=priority)
                at.cluster.submit(evil, namespace="evil")
            at.step()
        assert moves(at, "victim") - before <= 2
        assert running(at, "victim") >= (6 if queues else 1)
        assert at.cluster.problems == []


@pytest.mark.parametrize("policy", POLICIES)
def test_after_one_push_a_job_grows_again_within_minutes(policy: str) -> None:
    with shared(policy, seconds=60) as at:
        at.cluster.node("a", cpu=8)
        at.cluster.submit(elastic("victim"))
        at.until(lambda: running(at, "victim") == 8, "it has all", seconds=400)
        at.cluster.submit(job("evil-0", task(replicas=2)), namespace="evil")
        at.until(lambda: running(at, "victim") == 6, "it gives way")
        for _ in range(180):
            at.step()
        assert running(at, "victim") == 6
        usual = 300 if policy in ("fit", "fair") else 700  # a young job's restart has to pay off
        at.until(lambda: running(at, "victim") == 8, "it grows again", seconds=usual)


def test_what_is_free_elsewhere_is_not_kept_for_those_who_pushed_a_job() -> None:
    """The namespace that pushed it is busy all the time, on other nodes."""
    with shared("fit", seconds=20) as at:
        at.cluster.node("a", cpu=8)
        at.cluster.submit(elastic("victim"))
        at.until(lambda: running(at, "victim") == 8, "it has all", seconds=400)
        at.cluster.submit(job("evil-0", task(replicas=2)), namespace="evil")
        at.until(lambda: running(at, "victim") == 6, "it gives way")
        at.cluster.node("b", **{"cpu": 1, THING: 1})
        needs = {"requests": {"cpu": "1", THING: "1"}, "limits": {THING: "1"}}
        container = {"name": "di-container", "image": "x", "command": ["x"], "resources": needs}
        there = Task(name="worker", replicas=1, template={"spec": {"containers": [container]}})
        for second in range(540):
            if second % 20 == 0:
                at.cluster.submit(job(f"evil-1{second}", there), namespace="evil")
            at.step()
        assert running(at, "victim") == 8


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fit", "fair"])
def test_jobs_that_come_each_time_when_anothers_job_has_grown_restart_it_twice_an_hour(policy: str) -> None:
    pause = 330
    with shared(policy, seconds=5) as at:
        at.cluster.node("a", cpu=8)
        at.cluster.submit(elastic("victim"))
        at.until(lambda: running(at, "victim") == 8, "it has all", seconds=400)
        times, before = list[int](), moves(at, "victim")
        for second in range(2 * 3600):
            if second % pause == 0:
                at.cluster.submit(job(f"evil-{second}", task(replicas=1 + second % 3)), namespace="evil")
            at.step()
            if (now := moves(at, "victim")) > before:
                times += [second] * (now - before)
                before = now
        assert times
        assert all(sum(one <= other < one + 3600 for other in times) <= 2 for one in times)


def test_what_is_not_carried_out_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Workflow that changes all the time refuses writes: else these alone would use up what a namespace may take."""
    with shared("fit") as at:
        at.cluster.node("a", cpu=8)
        at.cluster.submit(elastic("victim"))
        at.until(lambda: running(at, "victim") == 8, "it has all", seconds=400)
        assert at.daemon is not None
        executor, refused = at.daemon.allocator.executor, list[Write]()
        send = executor.apply

        def apply(writes: Sequence[Write], jobs: Mapping[str, Job]) -> list[Write]:
            out = [write for write in writes if write.job == "default/victim" and not write.is_only_text]
            refused.extend(out)
            return [*out, *send([write for write in writes if write not in out], jobs)]

        with monkeypatch.context() as patched:
            patched.setattr(executor, "apply", apply)
            at.cluster.submit(job("evil-0", task(replicas=2)), namespace="evil")
            at.until(lambda: len(refused) > 3, "several plans take something from it", seconds=200)
        at.until(lambda: running(at, "victim") == 6, "it gives way", seconds=200)


def test_jobs_of_ones_own_namespace_are_not_counted() -> None:
    def runs(pod: dict[str, Any]) -> tuple[float, int]:
        return (20 if pod["metadata"]["name"].startswith("own-") else FOR_EVER), 0

    with lab(policy=load_policy("fit"), runs=runs) as at:
        at.cluster.node("a", cpu=8)
        at.cluster.submit(elastic("victim"))
        at.until(lambda: running(at, "victim") == 8, "it has all", seconds=400)
        for number in range(3):
            at.cluster.submit(job(f"own-{number}", task(replicas=2 + number)))
            at.until(lambda n=number: at.cluster.phase(f"own-{n}") == "Succeeded", "it runs", seconds=90)  # type: ignore[misc]
        at.until(lambda: running(at, "victim") == 8, "it grows again", seconds=200)


def test_the_last_wish_of_a_user_is_carried_out_and_not_each_of_them() -> None:
    with lab() as at:
        at.cluster.node("a", cpu=8)
        at.cluster.submit(job("own", task(replicas=2, min_replicas=1, max_replicas=8), preemptible=True))
        at.until(lambda: running(at, "own") == 2 or running(at, "own") == 8, "it runs")
        for _ in range(60):
            at.step()
        before = moves(at, "own")
        for second in range(60):
            high = 2 + second % 5
            at.cluster.annotate("own", bounds=json.dumps({"worker": {"min": high, "max": high}}))
            at.step()
        assert moves(at, "own") - before <= 4
        at.until(lambda: running(at, "own") == 6, "the last wish", seconds=100)


def never_made(at: Lab, namespace: str = "evil") -> None:
    """No pod of that namespace can be created."""
    make = at.cluster._make_pod
    at.cluster._make_pod = lambda live, *given: None if live.namespace == namespace else make(live, *given)  # type: ignore[method-assign]


@pytest.mark.parametrize("policy", POLICIES)
def test_jobs_without_pods_hold_the_cluster_once(policy: str) -> None:
    with shared(policy) as at:
        for node in "abc":
            at.cluster.node(node, cpu=8)
        never_made(at)
        names = [f"honest-{i}" for i in range(3)]
        for name in names:
            at.cluster.submit(job(name, task(replicas=8, min_replicas=4, max_replicas=8), preemptible=True))
        at.until(lambda: sum(running(at, name) for name in names) == 24, "they have all", seconds=600)
        used = 0
        for second in range(1800):
            if second % 120 == 0:
                evil = job(f"evil-{second}", task(replicas=24), priority="high")
                at.cluster.submit(evil, namespace="evil")
            at.step()
            used += sum(running(at, name) for name in names) if second >= PROMISE + 60 else 0
        assert used >= 0.9 * 24 * (1800 - PROMISE - 60)


@pytest.mark.parametrize("policy", ["fair", "fit"])
def test_a_small_job_that_runs_does_not_vouch_for_what_elastic_jobs_were_promised(policy: str) -> None:
    with shared(policy) as at:
        for node in "abc":
            at.cluster.node(node, cpu=8)
        at.cluster.submit(job("own", task(replicas=1)), namespace="evil")
        at.until(lambda: running(at, "own") == 1, "it runs")
        never_made(at)
        names = [f"honest-{i}" for i in range(3)]
        for name in names:
            at.cluster.submit(job(name, task(replicas=8, min_replicas=2, max_replicas=8), preemptible=True))
        at.until(lambda: sum(running(at, name) for name in names) >= 22, "they have the rest", seconds=600)
        used = 0
        for second in range(1500):
            if second % 120 == 0:
                evil = job(f"evil-{second}", elastic_task(23), preemptible=True, priority="high")
                at.cluster.submit(evil, namespace="evil")
            at.step()
            used += sum(running(at, name) for name in names) if second >= 2 * PROMISE + 60 else 0
        assert used >= 0.75 * 23 * (1500 - 2 * PROMISE - 60)


def elastic_task(most: int) -> Any:
    return task(replicas=most, min_replicas=1, max_replicas=most)


def test_jobs_that_are_deleted_before_their_pods_exist_stop_nobody_after_the_first() -> None:
    with shared("fit") as at:
        at.cluster.node("a", cpu=8)
        never_made(at)
        at.cluster.submit(elastic("victim"))
        at.until(lambda: running(at, "victim") == 8, "it has all", seconds=400)
        used, last = 0, ""
        for second in range(900):
            if second % 70 == 0:
                if last:
                    at.cluster.delete(last)
                last = f"evil-{second}"
                at.cluster.submit(job(last, task(replicas=8), priority="high"), namespace="evil")
            at.step()
            used += running(at, "victim")
        assert used >= 0.9 * 8 * 900


def test_a_namespace_whose_quota_was_used_up_is_trusted_again_when_such_a_job_runs() -> None:
    with shared("fit") as at:
        at.cluster.node("a", cpu=8)
        at.cluster.quota = {"first": 0}
        at.cluster.submit(job("first", task(replicas=4)), namespace="evil")
        at.until(lambda: at.annotation("first", "allocation") != "", "it is given its place")
        at.until(lambda: "was given back" in at.annotation("first", "decision"), "it lapses", seconds=PROMISE + 70)
        at.cluster.submit(job("second", task(replicas=4)), namespace="evil")
        at.until(lambda: len(at.cluster.running("second")) == 4, "it runs in free capacity")
        at.cluster.submit(job("low", task(replicas=4), preemptible=True))
        at.until(lambda: len(at.cluster.running("low")) == 4, "it uses the rest")
        at.cluster.submit(job("third", task(replicas=4), priority="high"), namespace="evil")
        at.until(lambda: len(at.cluster.running("third")) == 4, "it takes what it may")


@pytest.mark.slow
def test_a_namespace_is_suspected_for_half_an_hour_and_for_longer_the_next_time() -> None:
    with shared("fit") as at:
        at.cluster.node("a", cpu=8)
        make = at.cluster._make_pod
        for number, (least, most) in enumerate([(1500, 1900), (3200, 3700)]):
            at.cluster.submit(elastic(f"first-{number}"))
            at.until(lambda n=number: running(at, f"first-{n}") == 8, "it has all", seconds=400)  # type: ignore[misc]
            never_made(at)
            at.cluster.submit(job(f"evil-{number}", task(replicas=4), priority="high"), namespace="evil")
            at.until(lambda n=number: "given back" in at.annotation(f"evil-{n}", "decision"), "it lapses", seconds=400)  # type: ignore[misc]
            at.cluster.delete(f"evil-{number}")
            at.cluster.delete(f"first-{number}")
            at.cluster._make_pod = make  # type: ignore[method-assign]
            at.cluster.submit(elastic(f"next-{number}"))
            at.until(lambda n=number: running(at, f"next-{n}") == 8, "another one has all", seconds=60)  # type: ignore[misc]
            at.cluster.submit(job(f"last-{number}", task(replicas=2), priority="high"), namespace="evil")
            began = at.time.now()
            at.until(lambda n=number: running(at, f"last-{n}") == 2, "it takes what it may", seconds=4000)  # type: ignore[misc]
            assert least < at.time.now() - began < most
            at.cluster.delete(f"last-{number}")
            at.cluster.delete(f"next-{number}")


def test_a_job_that_is_deleted_while_some_of_its_pods_exist_makes_its_namespace_not_suspected() -> None:
    with shared("fit") as at:
        at.cluster.node("a", cpu=8)
        at.cluster.quota = {"one": 4}
        at.cluster.submit(elastic("one"), namespace="evil")
        at.until(lambda: len(at.api.objects.get(POD.path("evil"), {})) == 4, "some of its pods exist")
        assert at.daemon is not None
        at.daemon.catch_up()
        at.daemon.allocator.cycle("a plan while others are not created")
        at.cluster.delete("one")
        for _ in range(3):
            at.step()
        assert not at.daemon.allocator._planner.promises.suspected


def test_a_namespace_that_waits_for_its_turn_makes_no_cycle_plan() -> None:
    with shared("fit") as at:
        at.cluster.node("a", cpu=8)
        at.cluster.quota = {"first": 0}
        at.cluster.submit(job("first", task(replicas=4)), namespace="evil")
        at.until(lambda: "was given back" in at.annotation("first", "decision"), "it lapses", seconds=PROMISE + 70)
        at.cluster.submit(job("second", task(replicas=9)), namespace="evil")
        for _ in range(120):
            at.step()
        assert at.daemon is not None
        seen = len(at.daemon.cycles)
        for _ in range(300):
            at.daemon.allocator.cycle("")
            at.step()
        planned = [cycle for cycle in at.daemon.cycles[seen:] if "a place was not taken" in cycle.planned]
        assert len(planned) <= 2


def test_what_lapsed_is_known_to_the_next_leader() -> None:
    with shared("fit") as at:
        at.cluster.node("a", cpu=8)
        never_made(at)
        at.cluster.submit(elastic("victim"))
        at.until(lambda: running(at, "victim") == 8, "it has all", seconds=400)
        at.cluster.submit(job("evil-1", task(replicas=8), priority="high"), namespace="evil")
        at.until(lambda: "was given back" in at.annotation("evil-1", "decision"), "it lapses", seconds=PROMISE + 90)
        at.until(lambda: running(at, "victim") >= 1, "the other job runs again", seconds=120)
        at.end()
        at.begin()
        at.cluster.submit(job("evil-2", task(replicas=8), priority="high"), namespace="evil")
        for _ in range(200):
            at.step()
            assert running(at, "victim") >= 1


def test_a_request_that_is_edited_after_the_promise_changes_no_promise() -> None:
    with shared("fit") as at:
        at.cluster.node("a", cpu=8)
        at.cluster.refuses.add("a")  # kube-scheduler is late
        at.cluster.submit(job("evil-1", task(replicas=2, cpu="10m")), namespace="evil")
        at.until(lambda: len(at.cluster.of("evil-1")) == 2, "it is admitted, and its pods exist")
        workflow = json.dumps(at.cluster.workflow("evil-1"))
        assert workflow.count("10m") > 1
        at.cluster._put(WORKFLOW, json.loads(workflow.replace("10m", "100")))
        for pod in at.cluster.of("evil-1").values():
            at.cluster._put(POD, json.loads(json.dumps(pod).replace("10m", "100")))
        at.step()
        at.cluster.submit(job("honest", task(replicas=3, cpu="1")))
        at.until(lambda: at.annotation("honest", "allocation") != "", "what was not promised is free")


class Slow:
    """A policy that takes long for each job of a namespace that waits, and counts no work."""

    name = "slow"

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def allocate(self, job: int, snapshot: Snapshot) -> Plan:
        return self._policy.allocate(job, snapshot)

    def optimize(self, snapshot: Snapshot) -> Plan:
        time.sleep(0.4 * sum(name.startswith("evil/") for name in snapshot.job_names))
        return self._policy.optimize(snapshot)

    def measure(self, snapshot: Snapshot, plan: Plan) -> float:
        return self._policy.measure(snapshot, plan)


def test_a_late_plan_costs_the_namespace_that_makes_it_late() -> None:
    settings = AllocatorSettings(writers=1, debounce_seconds=0.0, policy_seconds=0.2)
    with lab(policy=Slow(load_policy("fit")), namespaces=("default", "evil"), settings=settings) as at:
        at.cluster.node("a", cpu=8)
        at.cluster.submit(job("evil-1", task("a"), task("b"), task("c")), namespace="evil")
        at.cluster.submit(job("honest", task()))
        at.until(lambda: len(at.cluster.running("honest")) == 1, "it runs")
        assert "a plan took longer than it may" in _told(at, "evil-1", "evil")
        at.cluster.submit(job("evil-2", task()), namespace="evil")
        at.cluster.submit(job("other", task()))
        at.until(lambda: len(at.cluster.running("other")) == 1, "it runs", seconds=5)


def _told(at: Lab, name: str, namespace: str) -> str:
    with at.api.changed:
        found = at.api.objects.get(f"/api/v1/namespaces/{namespace}/events", {}).values()
        return " ".join(e["message"] for e in found if e["involvedObject"]["name"] == name)

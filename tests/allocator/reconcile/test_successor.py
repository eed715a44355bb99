"""A job whose Workflow is full continues in another one, also when killed at each write and disturbed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from diflow import DIJob
from diflow.allocator.settings import AllocatorSettings
from diflow.allocator.write import executor
from diflow.common import keys
from diflow.kube.kinds import WORKFLOW
from diflow.record import chain
from diflow.record.status.status import derive
from tests.allocator.crashing import Crash
from tests.allocator.fakeargo import is_gated
from tests.allocator.lab import Killed, Lab, job, lab, task
from tests.allocator.run.test_crashes import rest_through_crashes
from tests.allocator.run.test_faults import leader

pytestmark = pytest.mark.usefixtures("from_memory_as_afresh")

MOST = 20
"""Two replicas take about ten nodes a round: the third round begins in another Workflow."""


@contextmanager
def small(most_nodes: int = MOST, **options: Any) -> Iterator[Lab]:
    """A cluster of two nodes, and an allocator with the limit `most_nodes`."""
    settings = AllocatorSettings(writers=1, debounce_seconds=0.0, most_nodes=most_nodes)
    with lab(settings=settings, **options) as at:
        at.cluster.node("a", cpu=4)
        at.cluster.node("b", cpu=4)
        yield at


def elastic(name: str = "long", *, backoff_limit: int = 3, **fields: Any) -> DIJob:
    return job(name, task(replicas=2, cpu="2"), preemptible=True, backoff_limit=backoff_limit, **fields)


def workflows(at: Lab) -> dict[str, Any]:
    with at.api.changed:
        return dict(at.api.objects[WORKFLOW.path("default")])


def newest(at: Lab, name: str = "long") -> str:
    """The name of the job's current Workflow."""
    found = [w for w in chain.newest(workflows(at).values()) if chain.job_name(w) == name]
    assert len(found) == 1, [w["metadata"]["name"] for w in found]
    return str(found[0]["metadata"]["name"])


def until_runs(at: Lab, count: int = 2, name: str = "long") -> None:
    at.until(lambda: len(at.cluster.running(newest(at, name))) == count, f"{name} runs with {count}", seconds=90)


def move(at: Lab, name: str = "long") -> None:
    """Evict one replica: the job begins another round."""
    before = at.cluster.of(newest(at, name))
    for _ in range(11):  # younger rounds are not replaced
        at.step()
    at.cluster.evict(before["worker-0"]["metadata"]["name"])
    at.until(
        lambda: (
            not before.keys() & {n for n, p in at.cluster.of(newest(at, name)).items() if p in before.values()}
            and len(at.cluster.running(newest(at, name))) == 2
            and not {p["metadata"]["uid"] for p in before.values()} & live_uids(at)
        ),
        "it runs in another round",
        seconds=90,
    )


def live_uids(at: Lab) -> set[str]:
    return {pod["metadata"]["uid"] for pod in at.cluster.pods()}


def finish(at: Lab, name: str = "long") -> None:
    for pod in at.cluster.of(newest(at, name)).values():
        at.cluster.finish(pod["metadata"]["name"])
    at.until(lambda: all(at.cluster.phase(w) != "Running" for w in workflows(at)), "all have ended")


def test_a_full_workflow_is_continued_by_another_and_the_job_ends_as_one() -> None:
    with small() as at:
        at.cluster.submit(elastic())
        until_runs(at)
        rounds = 0
        while newest(at) != "long-s3":
            move(at)
            rounds += 1
            assert rounds < 20
        finish(at)
        assert {name: at.cluster.phase(name) for name in workflows(at)} == dict.fromkeys(
            ("long", "long-s2", "long-s3"), "Succeeded"
        )
        assert at.cluster.problems == []
        found = workflows(at)["long-s3"]
        status = derive(found)
        # Each eviction adds a round; the pod that Argo created again before it never had a node.
        assert (status.phase, status.restarts, status.reschedules) == ("Succeeded", 0, rounds)
        assert at.cluster.parameters("long-s3")["current"] == str(rounds + 1), "the numbers of the rounds go on"
        assert chain.submitted(found) == workflows(at)["long"]["metadata"]["creationTimestamp"]
        assert {c.type for c in status.conditions} >= {"Pending", "Running", "Rescheduling", "Succeeded"}
        assert status.start_time == workflows(at)["long"]["status"]["startedAt"]
        assert [r for r, _ in at.events("long")].count("Continued") == 1
        assert max(len(w["status"]["nodes"]) for w in workflows(at).values()) < 2 * MOST


def test_the_next_part_is_a_copy_that_names_the_job() -> None:
    with small(most_nodes=1) as at:
        at.cluster.submit(elastic(labels={"team": "rl"}, annotations={keys.TITLE: "My job"}))
        until_runs(at)
        at.cluster.annotate("long", bounds='{"worker":{"min":1,"max":2}}')
        at.cluster.edit("long", profilings='{"speed":3}')
        move(at)
        first, second = workflows(at)["long"], workflows(at)["long-s2"]
        labels, annotations = second["metadata"]["labels"], second["metadata"]["annotations"]
        assert labels == {**first["metadata"]["labels"], keys.CHAIN: "long", keys.PART: "2"}
        assert annotations[keys.TITLE] == "My job (part 2)"
        assert annotations[keys.DIJOB] == first["metadata"]["annotations"][keys.DIJOB]
        assert annotations[keys.BOUNDS] == '{"worker":{"min":1,"max":2}}'
        assert keys.CONTINUED_IN not in annotations
        tokens = [
            v["projected"]["sources"][0]["serviceAccountToken"] for v in second["spec"]["volumes"] if "projected" in v
        ]
        assert [token["audience"] for token in tokens] == ["diflow/{{workflow.namespace}}/long"], (
            "the job's, not the part's"
        )
        assert at.cluster.parameters("long-s2")["profilings"] == '{"speed":3}'
        assert at.cluster.parameters("long")["current"] == ""
        pod = at.cluster.of("long-s2")["worker-0"]
        assert pod["metadata"]["labels"][keys.JOB] == "long"
        assert pod["spec"]["hostname"] == "long-s2-worker-0"
        assert pod["metadata"]["annotations"][keys.NODES].startswith("long-s2-worker-0.di.default.svc")
        templates = {t["name"]: t for t in second["spec"]["templates"]}
        assert '"DI_JOB_ID","value":"{{workflow.namespace}}/long"' in second["spec"]["podSpecPatch"]
        assert {**templates, "worker": 0} == {**{t["name"]: t for t in first["spec"]["templates"]}, "worker": 0}


def test_the_label_of_the_next_part_has_its_own_number_of_replicas() -> None:
    with small(most_nodes=1) as at:
        at.cluster.submit(elastic())
        until_runs(at)
        at.cluster.annotate("long", bounds='{"worker":{"min":1,"max":1}}')
        at.until(lambda: "long-s2" in workflows(at), "it continues")
        assert workflows(at)["long"]["metadata"]["labels"][keys.GRANTED] == "2"
        assert workflows(at)["long-s2"]["metadata"]["labels"][keys.GRANTED] == "1"


def test_no_pod_is_admitted_while_pods_of_the_previous_workflow_live() -> None:
    with small(most_nodes=1, grace_seconds=12.0) as at:
        at.cluster.submit(elastic())
        until_runs(at)
        (node,) = set(at.cluster.running("long").values())
        at.cluster.cordon(node)
        at.until(lambda: newest(at) == "long-s2", "it goes on")
        at.until(lambda: len(at.cluster.of("long-s2")) == 2, "its pods are made")
        seen = 0
        while at.cluster.of("long"):
            assert all(is_gated(pod) for pod in at.cluster.of("long-s2").values()), (
                "there is free capacity for them elsewhere"
            )
            at.step()
            seen += 1
        assert seen > 3
        until_runs(at)
        assert set(at.cluster.running("long-s2").values()) == {"a", "b"} - {node}
        assert at.cluster.problems == []


def test_failures_count_over_all_parts() -> None:
    with small(most_nodes=1) as at:
        at.cluster.submit(elastic(backoff_limit=2))
        until_runs(at)
        for _ in range(2):
            fail(at)
            until_runs(at)
        assert newest(at) == "long-s3", "a round that starts again adds to its Workflow as a new one does"
        assert derive(workflows(at)["long-s3"]).restarts == 2
        fail(at)
        at.until(lambda: all(at.cluster.phase(w) not in ("Pending", "Running") for w in workflows(at)), "it has failed")
        assert at.cluster.phase(newest(at)) == "Failed"
        assert "backoffLimit is 2" in at.decision(newest(at))["why"]
        assert [at.cluster.phase(name) for name in ("long", "long-s2")] == ["Succeeded", "Succeeded"]


def fail(at: Lab) -> None:
    before = live_uids(at)
    at.cluster.finish(at.cluster.of(newest(at))["worker-1"]["metadata"]["name"], code=1)
    at.until(lambda: not before & live_uids(at), "they have all ended", seconds=90)


def test_a_name_that_is_taken_is_not_used() -> None:
    with small(most_nodes=1) as at:
        at.cluster.submit(job("long-s2"))
        at.cluster.submit(elastic())
        until_runs(at)
        move(at)
        assert newest(at).startswith("long-s2-")
        assert newest(at, "long-s2") == "long-s2"
        assert keys.CONTINUES not in workflows(at)["long-s2"]["metadata"]["annotations"]


def test_long_names_are_shortened_so_that_hosts_have_room() -> None:
    name = "a-rather-long-name-of-a-job-that-fills-all-the-room"
    with small(most_nodes=1) as at:
        at.cluster.submit(elastic(name))
        until_runs(at, name=name)
        move(at, name)
        second = newest(at, name)
        assert second != name
        assert all(len(p["spec"]["hostname"]) <= 63 for p in at.cluster.of(second).values())


def test_a_job_whose_tasks_leave_no_room_for_another_name_goes_on_where_it_is_and_says_so() -> None:
    with small(most_nodes=1) as at:
        at.cluster.submit(job("l", task("w" * 55, replicas=2, cpu="2"), preemptible=True))
        until_runs(at, name="l")
        (node,) = set(at.cluster.running("l").values())
        at.cluster.cordon(node)
        at.until(lambda: set(at.cluster.running("l").values()) == {"a", "b"} - {node}, "it moves")
        assert set(workflows(at)) == {"l"}
        assert at.cluster.parameters("l")["rounds"] == '["1","2"]'
        assert [m for r, m in at.events("l") if r == "Refused"] == [
            "its Workflow is full, and the names of its tasks are too long for it to get a next one"
        ]


def test_a_job_whose_next_workflow_cannot_be_made_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise RecursionError("its spec is nested too deeply")

    monkeypatch.setattr(executor, "successor", fails)
    with small(most_nodes=1) as at:
        at.cluster.submit(elastic())
        until_runs(at)
        (node,) = set(at.cluster.running("long").values())
        at.cluster.cordon(node)
        at.until(lambda: "nested" in leader(at).allocator.executor.refusals().get("default/long", ""), "it backs off")
        at.cluster.submit(job("other", task(cpu="1")))
        at.until(lambda: at.cluster.running("other"), "the other one runs")


# --- disturbances between the two writes ------------------------------------------------------------------------------


def begun(at: Lab) -> None:
    """Kill the allocator after it has created the next Workflow, and before the hand-over to it."""
    at.cluster.submit(elastic())
    until_runs(at)
    (node,) = set(at.cluster.running("long").values())
    assert at.daemon is not None

    def after(method: str, path: str) -> None:
        if method == "POST" and path.endswith("/workflows"):
            raise Killed

    at.daemon.line.after = after
    at.cluster.cordon(node)
    with pytest.raises(Killed):
        at.rest()
    at.end()
    assert set(workflows(at)) == {"long", "long-s2"}
    assert newest(at) == "long", "until the first one says so, the job is there"
    assert len(at.cluster.running("long")) == 2


def test_the_next_allocator_goes_on_with_a_hand_over_and_with_what_is_asked_by_then() -> None:
    with small(most_nodes=1) as at:
        begun(at)
        at.cluster.scale("long", worker=1)
        requests = {
            "bounds": '{"worker":{"min":1,"max":2}}',
            "requests": '{"done":[["a","b"]],"ranges":{}}',  # an Idempotency-Key must count in the next Workflow too
            "carried-out": '{"spec":{"worker":[1,1,2]},"status":[1,1]}',
        }
        at.cluster.annotate("long", **requests)
        for _ in range(20):
            at.step()
        assert all(is_gated(pod) for pod in at.cluster.of("long-s2").values()), "it has no place before its time"
        at.begin()
        at.until(lambda: newest(at) != "long", "it goes on")
        assert json.loads(at.cluster.parameters("long-s2")["replicas"]) == {"worker": 1}
        annotations = workflows(at)["long-s2"]["metadata"]["annotations"]
        assert {key: annotations.get(f"diflow/{key}") for key in requests} == requests
        until_runs(at, 1)
        finish(at)
        assert at.cluster.phase("long") == "Succeeded"
        assert derive(workflows(at)[newest(at)]).phase == "Succeeded"
        assert at.cluster.problems == []


@pytest.mark.parametrize("how", ["Failed", "Succeeded"])
def test_a_job_that_ends_before_the_hand_over_is_not_started_again(how: str) -> None:
    with small(most_nodes=1) as at:
        begun(at)
        if how == "Failed":
            at.cluster.stop("long")
        for pod in at.cluster.of("long").values():
            at.cluster.finish(pod["metadata"]["name"])
        for _ in range(5):
            at.step()
        assert at.cluster.phase("long") == how
        at.begin()
        at.rest()
        assert {name: at.cluster.phase(name) for name in workflows(at)} == {"long": how, "long-s2": "Failed"}
        assert newest(at) == "long"
        assert "before it continued here" in at.decision("long-s2")["why"]
        assert not at.cluster.pods()


def test_a_user_may_delete_the_first_part_and_the_job_goes_on() -> None:
    with small(most_nodes=1) as at:
        at.cluster.submit(elastic())
        until_runs(at)
        move(at)
        at.cluster.delete("long")
        at.rest()
        assert newest(at) == "long-s2"
        assert len(at.cluster.running("long-s2")) == 2
        move(at)
        assert newest(at) == "long-s3"


Play = Callable[[Lab], None]


def scene(crash: Crash) -> dict[str, Any]:
    with small(most_nodes=1) as at:
        at.cluster.submit(elastic())
        until_runs(at)
        for _ in range(11):
            at.step()
        assert at.daemon is not None
        at.daemon.line.before, at.daemon.line.after = crash.before, crash.after
        at.cluster.evict(at.cluster.of("long")["worker-0"]["metadata"]["name"])
        rest_through_crashes(at)
        assert at.cluster.problems == []
        return {
            "phases": {name: at.cluster.phase(name) for name in workflows(at)},
            "runs": at.cluster.running(newest(at)),
            "job": newest(at),
            "reschedules": derive(workflows(at)[newest(at)]).reschedules,
            "live": len(at.cluster.pods()),
        }


@pytest.mark.slow
def test_killed_at_any_write_of_a_hand_over_it_ends_where_it_would_have_ended() -> None:
    undisturbed = Crash(at=0, is_sent=False)
    wanted = scene(undisturbed)
    assert (wanted["job"], wanted["live"]) == ("long-s2", 2)
    assert undisturbed.seen >= 6
    for is_sent in (False, True):
        for k in range(1, undisturbed.seen + 1):
            crash = Crash(at=k, is_sent=is_sent)
            assert scene(crash) == wanted, f"killed {'after' if is_sent else 'before'} write {k}"

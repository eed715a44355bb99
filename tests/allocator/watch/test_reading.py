"""What reading and keeping the jobs of a namespace may cost, and what of an unreadable job is kept."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from diflow.allocator.settings import AllocatorSettings
from diflow.allocator.watch.cluster_state import Caches
from diflow.allocator.watch.records import planning_record_of
from diflow.common import keys
from diflow.kube.kinds import LEASE, POD, WORKFLOW
from diflow.record.argo.nodes import packed
from diflow.record.job import JobRecord
from diflow.workflows import render
from tests.allocator.faults import eventually
from tests.allocator.lab import Lab, job, lab, task
from tests.kube.fakeapi import FakeApi, serving

Json = dict[str, Any]


def workflow(name: str, *, namespace: str = "default", **parameters: Any) -> Json:
    made = copy.deepcopy(render(job(name, task(replicas=5), preemptible=True)))
    made["metadata"] |= {
        "namespace": namespace,
        "uid": f"{namespace}-{name}",
        "labels": dict(made["metadata"]["labels"]),
    }
    for given in made["spec"]["arguments"]["parameters"]:
        if given["name"] in parameters:
            value = parameters[given["name"]]
            given["value"] = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return made


def large(name: str, *, rounds: int = 10_000, namespace: str = "evil") -> Json:
    """Of 330 KiB, which would be kept as 3.5 MB."""
    names = [str(i + 1) for i in range(rounds)]
    granted = {round_: {"worker": 5} for round_ in names}
    return workflow(name, namespace=namespace, rounds=names, current="1", granted=granted)


def forged(name: str, *, dots: int = 900, pods: int = 14_000) -> Json:
    """Of 155 KiB, with names of nodes of a thousand levels, of which each is there, and a node without a name."""
    made = workflow(name, namespace="evil")
    stem = f"{name}.round(0:"
    nodes: Json = {"torn": {}, "a": {"name": name}, "b": {"name": f"{name}.round"}}
    nodes |= {f"c{i}": {"name": stem + "." * i} for i in range(dots)}
    nodes |= {f"p{i}": {"name": f"{stem}{'.' * dots}).worker({i}:{i})(0).worker", "type": "Pod"} for i in range(pods)}
    return {**made, "status": {"phase": "Running", **packed(nodes)}}


def put(api: FakeApi, obj: Json) -> None:
    api.add(WORKFLOW, obj, namespace=obj["metadata"]["namespace"])


@contextmanager
def caches(api: FakeApi, **settings: Any) -> Iterator[Caches]:
    told = settings.pop("told", [])
    made = Caches(api.cluster(), AllocatorSettings(**settings), on_change=lambda _, key, *__: told.append(key))
    made.start()
    try:
        assert made.wait_synced(60)
        yield made
    finally:
        made.stop()


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with serving() as found:
        yield found


def test_names_of_a_thousand_levels_cost_what_other_names_cost() -> None:
    shallow, deep = forged("one", dots=5, pods=3_000), forged("one", pods=3_000)
    for obj in (shallow, deep):
        planning_record_of(obj)
    took = []
    for obj in (shallow, deep):
        began = time.thread_time()
        planning_record_of(obj)
        took.append(time.thread_time() - began)
    assert took[1] < 4 * took[0] + 0.1, "it was 40 times as much"


def test_a_job_of_another_namespace_is_known_at_once_while_one_changes_what_takes_long_to_read(api: FakeApi) -> None:
    evil = forged("heavy")
    put(api, evil)
    told: list[str] = []
    with caches(api, told=told, reading_share=0.01) as known:
        for i in range(40):
            changed = {**evil["metadata"]["annotations"], "i": str(i)}
            put(api, {**evil, "metadata": {**evil["metadata"], "annotations": changed}})
        put(api, workflow("honest"))
        eventually(lambda: known.workflows.get("default", "honest"), "it is known")
        assert told.count("evil/heavy") < 20, "before, all changes of the other one were read first"
        assert known.workflows.late()
        assert known.trouble() == ""


def _vast(name: str, **spec: Any) -> Json:
    """A pod that takes a third of a second to read."""
    requests = [{f"x.y/r{i}-{j}": f"{i}.{j}" for j in range(8)} for i in range(5_000)]
    containers = [{"name": f"c{i}", "resources": {"requests": one}} for i, one in enumerate(requests)]
    return {"metadata": {"name": name, "namespace": "evil"}, "spec": {"containers": containers, **spec}}


def test_changes_of_a_vast_pod_wait_and_that_it_is_bound_does_not(api: FakeApi) -> None:
    api.add(POD, _vast("heavy"), namespace="evil")
    told: list[str] = []
    with caches(api, told=told, reading_share=0.01) as known:
        known.shares.charge("evil", 30.0)
        for i in range(20):
            changed = _vast("heavy")
            changed["metadata"]["annotations"] = {"i": str(i)}
            api.add(POD, changed, namespace="evil")
        put(api, workflow("honest"))
        eventually(lambda: known.workflows.get("default", "honest"), "it is known")
        eventually(lambda: len(known.pods._late or ()) == 1, "its changes wait")
        assert told.count("evil/heavy") <= 1
        api.add(POD, _vast("heavy", nodeName="a"), namespace="evil")
        api.add(POD, _vast("new", nodeName="b"), namespace="evil")
        eventually(lambda: _hosts(known) == {"heavy": "a", "new": "b"}, "who uses which node is known")
        assert known.trouble() == ""


def _hosts(known: Caches) -> dict[str, str]:
    return {key[1]: item["read"].host for key, item in known.pods.items().items()}


def test_a_namespace_that_fills_its_part_of_the_memory_has_further_jobs_held(api: FakeApi) -> None:
    for i in range(12):
        put(api, large(f"large-{i:02}"))
    put(api, workflow("honest"))
    with caches(api, kept_mib=16, reading_share=100) as known:
        reads = known.state().jobs
        held = [key for key, found in reads.items() if found.read.problem]
        assert 6 <= len(held) < 12
        assert all(key.startswith("evil/") for key in held)
        why = reads[held[0]].read.problem
        assert "namespace evil" in why
        assert "16 MiB" in why
        assert known.kept.bytes_in("evil") <= 16 * 2**20
        assert known.kept.full() == {"evil": len(held)}
        for key in sorted(set(reads) - set(held) - {"default/honest"}):
            api.remove(WORKFLOW, key.split("/")[1], namespace="evil")
        eventually(lambda: known.kept.full().get("evil", 0) < len(held) - 2, "there is room again")
        eventually(lambda: known.kept.full().get("evil", 0) <= max(0, len(held) - 5), "for as many")


def test_a_job_that_is_kept_stays_so_when_others_come(api: FakeApi) -> None:
    put(api, workflow("first", namespace="evil"))
    with caches(api, kept_mib=16, reading_share=100) as known:
        for i in range(12):
            put(api, large(f"large-{i:02}"))
        eventually(lambda: known.kept.full().get("evil", 0) > 0, "some are held")
        put(api, {**workflow("first", namespace="evil"), "status": {"phase": "Running"}})
        eventually(lambda: known.state().jobs["evil/first"].read.argo.phase == "Running", "the change is known")
        assert known.state().jobs["evil/first"].read.problem == ""


def test_ten_thousand_waiting_jobs_of_one_team_fit(api: FakeApi) -> None:
    count = 200
    for i in range(count):
        put(api, workflow(f"job-{i}"))
    with caches(api) as known:
        assert known.kept.bytes_in("default") * (10_000 / count) < 0.75 * known.kept.most


def test_what_is_left_of_an_ended_job_is_small(api: FakeApi) -> None:
    put(api, {**large("ended"), "status": {"phase": "Succeeded"}})
    with caches(api) as known:
        assert known.kept.bytes_in("evil") < 20_000


@pytest.fixture(name="at")
def _at() -> Iterator[Lab]:
    with lab(direct=False) as made:
        made.cluster.node("a", cpu=8)
        yield made


def broken(at: Lab, name: str) -> None:
    """Make its Workflow unreadable, as its owner may."""
    obj = at.cluster.workflow(name)
    given = [p for p in obj["spec"]["arguments"]["parameters"] if p["name"] != keys.PARAM_MEMORY]
    memory = {"name": keys.PARAM_MEMORY, "value": '{"nobody":5}'}
    at.api.add(WORKFLOW, {**obj, "spec": {**obj["spec"], "arguments": {"parameters": [*given, memory]}}})


def test_an_unreadable_job_keeps_for_a_time_what_was_promised_for_pods_that_are_not_bound(at: Lab) -> None:
    at.cluster.refuses.add("a")  # kube-scheduler is slow
    at.cluster.submit(job("one", task(replicas=8)))
    at.until(lambda: len(at.cluster.of("one")) == 8, "its pods are on their way to the node")
    broken(at, "one")
    for _ in range(60):
        at.step()
    assert any("the parameter memory" in message for _, message in at.events("one"))
    assert used(at) == 8000
    at.until(lambda: used(at) == 0, "but not for ever", seconds=700)


def used(at: Lab) -> int:
    """The CPU of the node that counts as used, in thousandths."""
    assert at.daemon is not None
    state = at.daemon.allocator.caches.state()
    return sum(pod.request["cpu"] for pod in state.pods if pod.where == "a")


def test_the_leader_says_which_namespace_is_read_late_and_why(at: Lab) -> None:
    assert at.daemon is not None
    at.daemon.allocator.caches.late = lambda: {"evil": 31.0, "careless": 1.0}  # type: ignore[method-assign]
    for _ in range(130):
        at.step()
    with at.api.changed:
        events = at.api.objects.get(f"/api/v1/namespaces/{at.settings.namespace}/events", {}).values()
        said = [e for e in events if e["reason"] == "ReadLate"]
    assert [e["involvedObject"]["kind"] for e in said] == [LEASE.name]
    assert "namespace evil" in said[0]["message"]
    assert "31 s late" in said[0]["message"]


@pytest.mark.parametrize("is_paid", [True, False])
def test_a_write_that_conflicts_reads_again_what_its_namespace_has_paid_for(
    at: Lab, monkeypatch: pytest.MonkeyPatch, is_paid: bool
) -> None:
    """Its Workflow may take seconds to read, and each conflict would read it twice, while other decisions wait."""
    assert at.daemon is not None
    caches, line = at.daemon.allocator.caches, at.daemon.line
    sent, read = list[str](), list[str]()
    at.cluster.node("only", cpu=4)
    at.step()  # it leads; under a new Lease it changes each job that is there

    def change(method: str, path: str) -> None:
        if method == "PATCH" and path.endswith("/workflows/changed"):
            sent.append(path)
            if len(sent) == 1:
                body = {"metadata": {"annotations": {"a": "b"}}}
                at.api.cluster().patch(WORKFLOW, "changed", body, namespace="default")

    def again(obj: Json) -> JobRecord:
        read.append(obj["metadata"]["name"])
        return planning_record_of(obj)

    line.before = change
    monkeypatch.setattr(caches, "read", again)
    monkeypatch.setattr(caches, "may_read", lambda namespace: namespace != "default" or is_paid)
    at.cluster.submit(job("changed", task(cpu="1")))
    at.until(lambda: len(sent) >= 2, "it is written again")
    assert bool(read) is is_paid


def test_texts_of_decisions_are_written_for_namespaces_that_can_pay_for_reading_the_answers(
    at: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert at.daemon is not None
    at.step()
    caches, poor = at.daemon.allocator.caches, {"evil"}
    monkeypatch.setattr(caches, "may_read", lambda namespace: namespace not in poor)
    for namespace in ("evil", "default"):
        waits = workflow("waits", namespace=namespace)
        given = waits["metadata"]["annotations"]
        given[keys.DIJOB] = given[keys.DIJOB].replace('"cpu":"1"', '"cpu":"900"')
        put(at.api, waits)

    def told(namespace: str) -> bool:
        found = at.api.objects[WORKFLOW.path(namespace)]["waits"]["metadata"]["annotations"]
        return keys.DECISION in found

    at.until(lambda: told("default"), "it is told why it waits")
    for _ in range(10):
        at.step()
    assert not told("evil")
    poor.clear()
    at.until(lambda: told("evil"), "the next plan tells it", seconds=120)

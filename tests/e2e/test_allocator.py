"""The allocator on a real cluster: gangs, resizes, rounds, preemption, lost nodes; killed, frozen and doubled.

Placement is tried on fake nodes, which are Kubernetes' and Argo's own business as any other; what happens inside pods
(TERM, exit codes, files) is tried with real ones.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from diflow import DIJob, Task
from diflow.allocator.watch.free_capacity import FreeCapacity
from diflow.allocator.watch.job import Job
from diflow.allocator.watch.records import planning_record_of
from diflow.common import keys
from diflow.kube.kinds import POD
from diflow.record.node import node_record_of
from diflow.record.pod import pod_record_of
from tests.allocator.plan.calls import reconcile
from tests.builders import job, task, template
from tests.clusters import TestCluster, wait_until
from tests.e2e.allocators import (
    Daemon,
    Zone,
    ask,
    daemon,
    events,
    kept_alive,
    run_on,
    status,
    submit,
    until_running,
    zone,
)
from tests.e2e.live import ENDED, Live, pod_name

pytestmark = pytest.mark.xdist_group("allocator")
# The tests on fake nodes run in one process, with their own namespace and allocator.
on_fake_nodes = pytest.mark.xdist_group("allocator-fake")

_PATIENT = "trap 'echo saving; exit 143' TERM; "


@pytest.fixture(scope="module")
def place(argo40: TestCluster) -> Iterator[Live]:
    with argo40.namespace("alloc") as namespace:
        yield Live(argo40, namespace)


@pytest.fixture(scope="module")
def running(place: Live, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with daemon(place, tmp_path_factory.mktemp("allocator") / "log") as made:
        yield made


@pytest.fixture
def live(place: Live, running: Daemon, request: pytest.FixtureRequest) -> Iterator[Live]:
    """The namespace with a running allocator. Restarted when it ends, except for tests that use `running`."""
    assert running.process is not None
    if running.process.poll() is not None:  # the previous test ended it
        running.log.write_text("")
        running.start()
        running.until_leading()
    with nullcontext() if "running" in signature(request.function).parameters else kept_alive(running):
        yield place


@pytest.fixture
def nodes(live: Live, request: pytest.FixtureRequest) -> Iterator[Zone]:
    with zone(live, f"z{abs(hash(request.node.name)) % 10_000}-{getattr(request.node, 'execution_count', 1)}") as made:
        yield made


@on_fake_nodes
def test_a_gang_starts_whole_or_not_at_all_and_says_why_it_waits(live: Live, nodes: Zone) -> None:
    nodes.add("one", cpu=2)
    name = submit(live, nodes.job("gang", 3, seconds=5))
    told = wait_until("it says why it waits", lambda: [m for r, m in events(live, name) if r == "Waiting"])
    assert "3" in told[0]
    assert live.pods(name) == [], "none is created while one has no place"
    assert "gate" not in status(live, name).message
    nodes.add("two", cpu=2)
    live.ends(name, "Succeeded")
    done = status(live, name)
    assert set(done.allocation["worker"]) == {nodes.full("one"), nodes.full("two")}
    assert len(done.allocation["worker"]) == 3
    assert done.restarts == 0


def test_a_resize_touches_only_the_difference(live: Live) -> None:
    wait = f"{_PATIENT} until {live.is_open('resized')}; do sleep 0.5 & wait $!; done"
    parts = [task(kind, wait, terminationGracePeriodSeconds=5) for kind in ("learner", "collector", "evaluator")]
    name = submit(live, job(*parts, name="resize", scheduling="gang", backoff_limit=0))
    before = {pod_name(pod) for pod in until_running(live, name, 3)}

    ask(live, name, collector=3)
    grown = until_running(live, name, 5)
    assert before < {pod_name(pod) for pod in grown}
    assert status(live, name).replicas == 5
    _ranks_are_right(live, name, {"learner": 1, "collector": 3, "evaluator": 1})

    ask(live, name, collector=2)
    shrunk = until_running(live, name, 4)
    assert before < {pod_name(pod) for pod in shrunk}
    assert {p["metadata"]["labels"][keys.POD] for p in shrunk} == {
        "resize-learner-0", "resize-collector-0", "resize-collector-1", "resize-evaluator-0",
    }  # fmt: skip
    _ranks_are_right(live, name, {"learner": 1, "collector": 2, "evaluator": 1})

    wait_until("the released one is dropped", lambda: '"collector":2' in _parameter(live, name, keys.PARAM_GRANTED))
    ask(live, name, collector=3)
    again = until_running(live, name, 5)
    new = {pod_name(p) for p in again} - {pod_name(p) for p in shrunk}
    assert len(new) == 1
    assert not new & {pod_name(pod) for pod in grown}, "its pods are new"
    assert status(live, name).restarts == 0
    live.open("resized")
    live.ends(name, "Succeeded")
    reasons = [reason for reason, _ in events(live, name)]
    assert reasons.count("Resized") == 3
    assert "Resized" in _diflow(live, "describe", name)


@on_fake_nodes
def test_a_copy_of_a_job_waits_for_places_of_its_own(live: Live, nodes: Zone) -> None:
    """`argo resubmit` copies all parameters, those with the places of the admission among them."""
    nodes.add("one", cpu=2)
    name = submit(live, nodes.job("original", 2, seconds=3600))
    until_running(live, name, 2)
    copy = json.loads(live.argo("resubmit", name, "-o", "json"))["metadata"]["name"]
    pods = wait_until("Argo has made its pods", lambda: found if len(found := live.pods(copy)) == 2 else None)
    assert all(pod["spec"].get("schedulingGates") for pod in pods)
    assert not any(keys.HOSTNAME in (pod["spec"].get("nodeSelector") or {}) for pod in pods)
    wait_until("it says why it waits", lambda: "waits" in status(live, copy).message)
    live.argo("delete", name)
    until_running(live, copy, 2)
    live.argo("delete", copy)


@on_fake_nodes
def test_a_preemptible_job_gives_way_to_a_higher_priority_and_comes_back(live: Live, nodes: Zone) -> None:
    nodes.add("only", cpu=4)
    low = submit(live, nodes.job("low", 2, bounds=(2, 4), seconds=25, backoff_limit=0))
    until_running(live, low, 4)
    high = submit(live, nodes.job("high", 4, seconds=4, priority="high", backoff_limit=0))
    live.ends(high, "Succeeded")
    assert any(reason == "Preempted" and "high" in message for reason, message in events(live, low))
    live.ends(low, "Succeeded")
    done = status(live, low)
    assert (done.phase, done.restarts) == ("Succeeded", 0)
    assert json.loads(_parameter(live, low, keys.PARAM_ROUNDS))[-1] == _parameter(live, low, keys.PARAM_CURRENT)


@on_fake_nodes
def test_a_stop_that_argo_sees_before_its_reason_counts_for_nothing(live: Live, nodes: Zone, running: Daemon) -> None:
    """Argo watches pods and Workflows apart, so it may judge a pod's end by a Workflow in which the round still counts.

    What the allocator would write after its next decision is written without the decision, which looks the same.
    """
    nodes.add("n", cpu=4)
    made = nodes.job("early", 2, bounds=(2, 4), backoff_limit=0)
    made.tasks[0].template["spec"]["activeDeadlineSeconds"] = 900  # the kubelet's message is the same
    name = submit(live, made)
    first = {pod_name(pod) for pod in until_running(live, name, 4)}
    wait_until("Argo has seen all run", lambda: _phases(live, name).count("Running") == 4)
    assert running.stop() == 0
    assert _stop_as_superseded(live, name) == {"spec"}
    second = {pod_name(pod) for pod in wait_until("other pods are there", lambda: _made_since(live, name, first, 4))}
    assert _stop_as_superseded(live, name) == {"status"}, "they are gated"
    wait_until("others again", lambda: _made_since(live, name, first | second, 4))
    assert not _has_given_up(live, name)
    running.log.write_text("")
    running.start()
    running.until_leading()
    until_running(live, name, 4)
    assert _finished(live, name) == "Succeeded"
    assert status(live, name).restarts == 0


def test_the_passing_of_a_jobs_own_deadline_is_its_failure(live: Live) -> None:
    late = submit(live, job(task("learner", "sleep 600", activeDeadlineSeconds=4, terminationGracePeriodSeconds=1),
                            name="late", scheduling="gang", backoff_limit=0))  # fmt: skip
    live.ends(late, "Failed")
    assert len(live.pods(late)) == 1, "it is not tried again"


@on_fake_nodes
def test_a_preemptible_job_shrinks_for_a_newcomer_and_grows_with_the_cluster(live: Live, nodes: Zone) -> None:
    nodes.add("first", cpu=4)
    one = submit(live, nodes.job("one", 1, bounds=(1, 6), seconds=40, backoff_limit=0))
    until_running(live, one, 4)
    two = submit(live, nodes.job("two", 2, seconds=10))
    wait_until("both run", lambda: sum(run_on(live, one).values()) == 2 and sum(run_on(live, two).values()) == 2)
    nodes.add("second", cpu=4)
    wait_until("it has grown", lambda: sum(run_on(live, one).values()) >= 4)
    live.ends(two, "Succeeded")
    live.ends(one, "Succeeded")
    assert status(live, one).restarts == 0
    assert {reason for reason, _ in events(live, one)} >= {"Admitted", "Resized"}


@on_fake_nodes
def test_the_commands_say_why_a_job_waits_and_pause_and_resize(live: Live, nodes: Zone, tmp_path: Path) -> None:
    nodes.add("n", cpu=3)
    runs = submit(live, nodes.job("runs", 1, bounds=(1, 3), seconds=900))
    until_running(live, runs, 3)
    assert "1 to 3 → 1 to 2 replicas" in _diflow(live, "scale", runs, "--max", "2")
    until_running(live, runs, 2)
    waits = submit(live, nodes.job("waits", 8, seconds=900))
    wait_until("it waits", lambda: "Waiting" in {reason for reason, _ in events(live, waits)})
    assert "8" in _diflow(live, "explain", waits)
    assert "2 of 1-2 replicas" in _diflow(live, "explain", runs)
    queue = _diflow(live, "queue")
    assert waits in queue
    assert f"{live.namespace}/{runs}" not in queue, "only who waits is in the list of those who wait"
    file = tmp_path / "job.yaml"
    file.write_text(nodes.job("newcomer", 1, seconds=5).to_yaml())
    assert "newcomer" in _diflow(live, "plan", "--simulate", str(file))
    _diflow(live, "pause", "--reason", "maintenance")
    try:
        late = submit(live, nodes.job("late", 1, seconds=3))
        wait_until("Argo has seen it", lambda: live.workflow(late).get("status"))
        assert "maintenance" in _diflow(live, "explain", late)
        assert live.pods(late) == []
    finally:
        _diflow(live, "resume")
    live.ends(late, "Succeeded")
    live.delete(waits)
    live.delete(runs)


@on_fake_nodes
def test_a_job_goes_on_when_its_node_is_removed_or_cordoned(live: Live, nodes: Zone) -> None:
    nodes.add("a", "b", cpu=3)
    moves = submit(live, nodes.job("moves", 2, bounds=(1, 4), seconds=20, backoff_limit=0))
    fixed = submit(live, nodes.job("fixed", 1, cpu="10m", seconds=45, backoff_limit=0))
    until_running(live, moves, 4)
    until_running(live, fixed, 1)
    home = next(iter(run_on(live, fixed)))
    other = nodes.full("b") if home == nodes.full("a") else nodes.full("a")
    live.cluster.kubectl("delete", "node", home, "--wait=false")
    wait_until(
        "all are on the node that is left", lambda: set(run_on(live, moves)) == {other} == set(run_on(live, fixed))
    )
    assert any(reason == "NodeLost" for reason, _ in events(live, moves))
    nodes.add("c", cpu=3)
    live.cluster.kubectl("cordon", other)
    wait_until("what can move has left the cordoned node", lambda: set(run_on(live, moves)) == {nodes.full("c")})
    live.ends(fixed, "Succeeded")
    live.ends(moves, "Succeeded")
    assert status(live, moves).restarts == status(live, fixed).restarts == 0


@on_fake_nodes
def test_a_job_goes_on_when_its_node_is_silent(live: Live, nodes: Zone) -> None:
    nodes.add("a", "b", cpu=3)
    moves = submit(live, nodes.job("away", 2, bounds=(1, 4), backoff_limit=0))
    fixed = submit(live, nodes.job("stays", 1, cpu="10m", backoff_limit=0))
    until_running(live, moves, 4)
    until_running(live, fixed, 1)
    home = next(iter(run_on(live, fixed)))
    other = nodes.full("b") if home == nodes.full("a") else nodes.full("a")
    zombies = {pod["metadata"]["uid"] for pod in live.pods(fixed)}
    _begin_reports(live, moves, fixed, on=home)
    nodes.silence(home.removeprefix(nodes.full("")))
    wait_until("all are on the other node", lambda: set(run_on(live, moves)) == {other} == set(run_on(live, fixed)))
    left = [pod for pod in live.pods(fixed) if pod["metadata"]["uid"] in zombies]
    assert [pod["status"]["message"] for pod in left] == [f"The node was lost: {home}"], "nobody else could end it"
    assert any(reason == "NodeLost" for reason, _ in events(live, fixed))
    assert live.node()["metadata"]["name"] != home, "tests side by side find a node that runs pods"
    assert _finished(live, moves) == _finished(live, fixed) == "Succeeded"
    late = submit(live, nodes.job("late", 1, cpu="2", seconds=2))
    live.ends(late, "Succeeded")
    assert status(live, late).allocation["worker"] == [other], "nobody is sent to the silent node"
    assert status(live, moves).restarts == status(live, fixed).restarts == 0


def _begin_reports(live: Live, *names: str, on: str) -> None:
    """What the executors of real pods do on this node: they say that they have not reported yet, and Argo waits."""
    begun = {
        pod["metadata"]["annotations"]["workflows.argoproj.io/node-id"]: name
        for name in names
        for pod in live.pods(name)
        if pod["spec"].get("nodeName") == on
    }
    for node_id, name in begun.items():
        labels = {
            "workflows.argoproj.io/workflow": name,
            "workflows.argoproj.io/report-outputs-completed": "false",
        }
        metadata = {"name": node_id, "namespace": live.namespace, "labels": labels}
        body = {"apiVersion": "argoproj.io/v1alpha1", "kind": "WorkflowTaskResult", "metadata": metadata}
        # Argo writes that it waits only together with another change of the node.
        body["progress"] = "1/2"
        live.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(body))

    def is_awaited() -> bool:
        found = {node["id"]: node for name in names for node in live.nodes(name)}
        return all(found[node_id].get("taskResultSynced") is False for node_id in begun)

    wait_until("Argo waits for their reports", is_awaited)


def test_a_rank_that_fails_starts_the_round_again_together_and_at_once(live: Live) -> None:
    wait = f"{_PATIENT} until {live.is_open('mended')}; do sleep 0.5 & wait $!; done"
    until = f"until {live.is_open('crash')}; do sleep 0.3; done"
    crash = f'if [ "$RANK" = 1 ] && ! {live.is_open("crashed")}; then {until}; exit 3; fi; '
    workers = Task(
        name="worker", replicas=3, min_replicas=3, max_replicas=3,
        template=template(crash + wait, terminationGracePeriodSeconds=5),
    )  # fmt: skip
    name = submit(live, DIJob(name="together", tasks=(workers,), scheduling="gang", preemptible=True, backoff_limit=1))
    first = {pod_name(pod) for pod in until_running(live, name, 3)}
    live.open("crash")
    wait_until("the crash was seen", lambda: status(live, name).restarts == 1 or _ended_badly(live, name, first))
    live.open("crashed")
    second = until_running(live, name, 3)
    assert not first & {pod_name(pod) for pod in second}, "all start again, not only the one that failed"
    assert status(live, name).restarts == 1
    assert _parameter(live, name, keys.PARAM_CURRENT) == "1", "a restart is inside the same round"
    live.open("mended")
    live.ends(name, "Succeeded")


def test_a_replica_that_is_taken_away_moves_the_round_and_counts_for_nothing(live: Live) -> None:
    wait = f"{_PATIENT} until {live.is_open('evicted')}; do sleep 0.5 & wait $!; done"
    workers = Task(
        name="worker",
        replicas=2,
        min_replicas=2,
        max_replicas=2,
        template=template(wait, terminationGracePeriodSeconds=5),
    )
    name = submit(live, DIJob(name="taken", tasks=(workers,), scheduling="gang", preemptible=True, backoff_limit=0))
    first = until_running(live, name, 2)
    # Argo replaces a pod that is deleted before it was seen running by one of the same name.
    wait_until("Argo has seen both run", lambda: _phases(live, name) == ["Running", "Running"])
    lost = first[0]["metadata"]["uid"]
    live.kubectl("delete", "pod", pod_name(first[0]), "--wait=false")

    def goes_on() -> bool:
        """In a new round, or in a new pod in the same place, which Argo makes from an old copy when it is slow."""
        made = [p for p in live.pods(name) if pod_name(p) == pod_name(first[0]) and p["metadata"]["uid"] != lost]
        return _parameter(live, name, keys.PARAM_CURRENT) == "2" or bool(made)

    wait_until("it goes on", goes_on)
    second = until_running(live, name, 2)
    assert lost not in {pod["metadata"]["uid"] for pod in second}
    if _parameter(live, name, keys.PARAM_CURRENT) == "2":
        assert not {pod_name(p) for p in first} & {pod_name(p) for p in second}
    live.open("evicted")
    live.ends(name, "Succeeded")
    assert status(live, name).restarts == 0


def test_restarts_are_counted_over_all_replicas(live: Live) -> None:
    workers = task("none", "sleep 1; exit 3", name="worker", replicas=3)
    name = submit(live, job(workers, name="counted", scheduling="gang", backoff_limit=2))
    live.ends(name, "Failed")
    failed = wait_until("its pods have ended", lambda: [p for p in live.pods(name) if p["status"]["phase"] == "Failed"])
    ran = [pod for pod in failed if pod["spec"].get("nodeName")]
    assert len(ran) <= 6, "three first tries, two more, and one that may have been on its way"
    assert "backoffLimit is 2" in status(live, name).message


def test_jobs_that_are_retried_with_argo_run_again_with_their_full_limit(live: Live) -> None:
    gate = f"repaired-{secrets.token_hex(2)}"  # that of an earlier try is open already
    fails = live.fails_until_open(gate)
    names = [
        submit(
            live,
            job(task("none", fails, name="worker"), task("none", live.until_open(gate), name="other"),
                name=f"repaired-{kind}", scheduling="gang", backoff_limit=1, preemptible=kind == "together"),
        )
        for kind in ("alone", "together")
    ]  # fmt: skip
    for name in names:
        live.ends(name, "Failed")
        assert status(live, name).restarts == 1
    live.open(gate)
    for name in names:
        live.argo("retry", name)
    for name in names:
        live.ends(name, "Succeeded")
        assert status(live, name).restarts == 0
        wait_until("an Event says it", partial(_is_repaired, live, name))


def _is_repaired(live: Live, name: str) -> bool:
    return "Repaired" in dict(events(live, name))


@on_fake_nodes
def test_an_allocator_that_is_killed_in_a_resize_leaves_it_to_the_next(
    live: Live, nodes: Zone, running: Daemon
) -> None:
    nodes.add("n", cpu=4)
    name = submit(live, nodes.job("killed", 1, bounds=(1, 4), seconds=600, backoff_limit=0))
    until_running(live, name, 4)
    submit(live, nodes.job("other", 2, seconds=8))
    wait_until("the resize is decided", lambda: _parameter(live, name, keys.PARAM_CURRENT) != "2")
    running.kill()
    live.cluster.kubectl("delete", "pod", "-n", "argo", "-l", "app=workflow-controller", "--wait=false")
    time.sleep(3)
    running.log.write_text("")
    running.start()
    running.until_leading()
    live.ends("other", "Succeeded")
    until_running(live, name, 4)
    assert status(live, name).restarts == 0
    live.delete(name)
    wait_until("nothing is left of it", lambda: not live.pods(name))


@on_fake_nodes
def test_of_two_allocators_one_writes_and_a_frozen_one_never_again(
    live: Live, nodes: Zone, running: Daemon, tmp_path: Path
) -> None:
    nodes.add("n", cpu=4)
    name = submit(live, nodes.job("doubled", 1, bounds=(1, 4), seconds=600))
    until_running(live, name, 4)
    running.freeze()
    try:
        with daemon(live, tmp_path / "second.log") as second:
            epoch = next(int(line["epoch"]) for line in second.lines() if line.get("event") == "leading")
            submit(live, nodes.job("after", 1, seconds=600))
            wait_until("the second one acts", lambda: sum(run_on(live, "after").values()) == 1)
            told = len(running.lines())
            running.thaw()
            assert running.wait() == 5, "it ends when it sees that it was replaced"
            assert not [line for line in running.lines()[told:] if line.get("event") in ("resized", "admitted")]
            submit(live, nodes.job("later", 1, seconds=600))
            wait_until("there is still one at work", lambda: sum(run_on(live, "later").values()) == 1)
            for which in (name, "after", "later"):
                assert _epoch_of(live, which) <= epoch
            assert _epoch_of(live, "later") == epoch
    finally:
        running.thaw()
    for which in (name, "after", "later"):
        live.delete(which)


def test_without_an_allocator_jobs_run_on_and_plain_ones_start_and_end(live: Live, running: Daemon) -> None:
    wait = f"{_PATIENT} until {live.is_open('alone')}; do sleep 0.5 & wait $!; done"
    name = submit(live, job(task("learner", wait), name="alone", scheduling="gang"))
    until_running(live, name, 1)
    assert running.stop() == 0
    plain = submit(live, job(task("learner", "true"), name="plain"))
    live.ends(plain, "Succeeded")
    live.open("alone")
    live.ends(name, "Succeeded")


@on_fake_nodes
def test_a_workflow_that_somebody_edited_into_nonsense_is_held_and_others_go_on(live: Live, nodes: Zone) -> None:
    nodes.add("n", cpu=4)
    broken = submit(live, nodes.job("broken", 1, seconds=600))
    until_running(live, broken, 1)
    parameters = live.workflow(broken)["spec"]["arguments"]["parameters"]
    at = next(i for i, item in enumerate(parameters) if item["name"] == keys.PARAM_RELEASED)
    patch = [{"op": "replace", "path": f"/spec/arguments/parameters/{at}/value", "value": "{nonsense"}]
    live.kubectl("patch", "workflow", broken, "--type=json", "-p", json.dumps(patch))
    told = wait_until("it says so", lambda: [m for r, m in events(live, broken) if r == "Refused"])
    assert "released" in told[0]
    other = submit(live, nodes.job("fine", 3, seconds=3))
    live.ends(other, "Succeeded")
    assert sum(run_on(live, broken).values()) == 1, "what runs is left alone"
    live.delete(broken)


def _epoch_of(live: Live, name: str) -> int:
    """The epoch of the leader that wrote last."""
    return int(live.workflow(name)["metadata"]["annotations"][keys.EPOCH].rpartition("/")[2])


def _parameter(live: Live, name: str, parameter: str) -> str:
    parameters = live.workflow(name)["spec"]["arguments"]["parameters"]
    return str(next(item["value"] for item in parameters if item["name"] == parameter))


def _diflow(live: Live, *arguments: str) -> str:
    """The output of a command. The allocator of these tests runs in the namespace of their jobs."""
    settings = {"DIFLOW_ALLOCATOR_NAMESPACE": live.namespace, "DIFLOW_ALLOCATOR_WATCHED_NAMESPACE": live.namespace}
    done = live.diflow(*arguments, **settings)
    assert done.code == 0, done.err
    return done.out + done.err


def _stop_as_superseded(live: Live, name: str) -> set[str]:
    """Write to the job's pods what the allocator would, if another round were the current one; returns which fields."""
    workflow, pods = live.workflow(name), [pod for raw in live.pods(name) if (pod := pod_record_of(raw)).is_live]
    given = {item["name"]: item for item in workflow["spec"]["arguments"]["parameters"]}
    for parameter, value in ((keys.PARAM_ROUNDS, '["9"]'), (keys.PARAM_CURRENT, "9")):
        given[parameter]["value"] = value
    given[keys.PARAM_GRANTED]["value"] = json.dumps({"9": {"worker": 1}})
    read = planning_record_of(workflow)
    assert not read.problem
    known = {node["metadata"]["name"]: node_record_of(node) for node in live.cluster.get("nodes")["items"]}
    capacity = FreeCapacity.of(known, pods, now_seconds=time.time(), lost_after_seconds=600)
    fields: set[str] = set()
    for write in reconcile(Job(read, pods), capacity, now=time.time()):
        assert write.kind == POD
        live.api.patch(POD, write.target.name, write.body, namespace=live.namespace, subresource=write.subresource)
        fields |= write.body.keys()
    return fields


def _finished(live: Live, name: str) -> str:
    """Let the job's fake pods succeed, those of later rounds as well; returns the Workflow's phase."""

    def probe() -> str:
        live.kubectl("annotate", "pods", "-l", f"{keys.JOB}={name}", "kwok.x-k8s.io/duration=1s", "--overwrite")
        phase = live.workflow(name).get("status", {}).get("phase", "")
        return phase if phase in ENDED else ""

    return wait_until(f"{name} has ended", probe, every=3)


def _made_since(live: Live, name: str, before: set[str], count: int) -> list[dict[str, Any]] | None:
    """This number of live pods with other names, or None."""
    found = [pod for pod in live.pods(name) if pod_name(pod) not in before and pod_record_of(pod).is_live]
    return found if len(found) == count else None


def _has_given_up(live: Live, name: str) -> bool:
    return any("give-up" in node["name"] for node in live.nodes(name))


def _phases(live: Live, name: str) -> list[str]:
    return [node["phase"] for node in live.nodes(name) if node["type"] == "Pod" and ".round(" in node["name"]]


def _ended_badly(live: Live, name: str, pods: set[str]) -> bool:
    return all(p["status"]["phase"] == "Failed" for p in live.pods(name) if pod_name(p) in pods)


def _ranks_are_right(live: Live, name: str, counts: dict[str, int]) -> None:
    """The files of each running pod contain its rank among the current pods."""
    first, total = {}, 0
    for kind, count in counts.items():
        first[kind] = total
        total += count

    def right() -> bool:
        for pod in live.pods(name):
            if pod["status"]["phase"] != "Running":
                continue
            labels = pod["metadata"]["labels"]
            rank = first[labels[keys.TASK_NAME]] + int(labels[keys.POD].rsplit("-", 1)[1])
            files = live.exec(
                pod_name(pod), "sh", "-c", "cd /etc/diflow; cat rank; echo; cat replicas; echo; cat nodes"
            )
            told = files.splitlines()
            if told[:2] != [str(rank), str(total)] or not told[2].split(",")[rank].startswith(f"{labels[keys.POD]}."):
                return False
        return True

    wait_until("each pod's files tell its rank", right, timeout=300, every=2)

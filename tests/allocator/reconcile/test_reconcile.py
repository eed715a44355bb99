"""Reconciliation, line by line of the table in docs/decisions/0005: from a job and its pods to the next writes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from diflow.allocator.reconcile.all_jobs import _few_repairs
from diflow.allocator.reconcile.one_job import Pace
from diflow.allocator.reconcile.rosters import untold
from diflow.allocator.watch.free_capacity import FreeCapacity
from diflow.allocator.watch.job import Job
from diflow.allocator.write.patches import Write
from diflow.common import keys
from diflow.common.durations import timestamp
from diflow.kube.kinds import WORKFLOW
from diflow.record.argo.failures import UNCOUNTED_MESSAGES
from diflow.record.argo.tree import Tree
from diflow.record.identity import Identity
from diflow.record.patches import stopping
from diflow.record.pod import roster_digest
from diflow.record.roster import roster
from tests.allocator.plan.calls import reconcile
from tests.allocator.values import CPU, NOW, capacity, changed, job, node, pod, read, role, tree


def out(what: Job, at: FreeCapacity | None = None, **options: Any) -> list[Write]:
    return reconcile(what, at or capacity(pods=tuple(what.pods)), now=NOW, **options)


def told(writes: list[Write]) -> list[tuple[str, str]]:
    """(object, change)."""
    return [(write.target.name, _what(write)) for write in writes]


def _what(write: Write) -> str:
    if write.subresource:
        return f"{write.subresource}: {write.body['status']['phase']}: {write.body['status']['message']}"
    spec = write.body.get("spec", {})
    if "schedulingGates" in spec:
        return f"to {spec['nodeSelector']['kubernetes.io/hostname']}"
    return json.dumps(spec or write.body["metadata"]["annotations"])


def parameters(write: Write) -> dict[str, Any]:
    given = {p["name"]: p["value"] for p in write.body["spec"]["arguments"]["parameters"]}
    return {name: json.loads(value) for name, value in given.items()}


def _is_uncounted(write: Write) -> bool:
    """An attempt that ends with this write's message is no failure, even if Argo still wants the replica."""
    return any(re.search(pattern, write.body["status"]["message"]) for pattern in UNCOUNTED_MESSAGES)


PLACED = {"w": ("a", "b")}


# --- what should not run any more -------------------------------------------------------------------------------------


@pytest.mark.parametrize("why", ["another round", "released"])
def test_a_pod_that_runs_and_should_not_is_stopped_with_its_grace_period(why: str) -> None:
    if why == "released":
        doing = read(nodes=PLACED, released=frozenset({"1/w/1"}))
        old = pod("w-1", on="b")
    else:
        doing = read(nodes=PLACED, current="2")
        old = pod("w-1", on="b", round="1")
    writes = [w for w in out(job(doing, old)) if w.target == old.identity]
    assert [w.body for w in writes] == [{"spec": {"activeDeadlineSeconds": 1}}]
    assert writes[0].patch("9")["metadata"]["uid"] == old.identity.uid
    assert writes[0].patch("9")["metadata"]["resourceVersion"] == old.identity.version
    for ending in (replace(old, is_stopping=True), replace(old, is_terminating=True)):
        assert not [w for w in out(job(doing, ending)) if w.target == old.identity]


def test_a_job_that_is_deleted_after_its_pods_is_stopped_once() -> None:
    doing = read(nodes=PLACED, is_preemptible=True, is_being_deleted=True, tree=tree(restart=1, restarts=1))
    (write,) = out(job(doing, pod("w-0", on="a"), pod("w-1", restart=1)))
    assert (write.kind.name, write.body["spec"]) == ("Workflow", stopping())
    assert out(job(changed(doing, has_ended=True))) == []
    after = out(job(changed(doing, is_stopping=True), pod("w-0")))
    assert [w.kind.name for w in after] == ["Pod"]


@pytest.mark.parametrize("old", [pod("w-0", round="1"), pod("w-0", round="1", pinned="a")])
def test_an_unbound_pod_is_ended_by_its_status(old: Any) -> None:
    (write,) = out(job(read(current="2"), old))
    assert write.subresource == "status"
    assert write.body["status"]["phase"] == "Failed"
    assert _is_uncounted(write), "Argo may not have seen yet that it is not wanted any more"


def test_no_kubelet_is_asked_on_a_node_that_is_lost() -> None:
    old = pod("w-0", round="1", on="gone")
    (write,) = out(job(read(current="2"), old))
    assert told([write]) == [(old.identity.name, "status: Failed: The node was lost: gone")]


# --- admission --------------------------------------------------------------------------------------------------------


def test_a_gang_is_admitted_when_all_its_pods_exist_and_fit() -> None:
    pods = (pod("w-0"), pod("w-1"))
    assert told(out(job(read(nodes=PLACED), *pods))) == [
        (pods[0].identity.name, "to a"),
        (pods[1].identity.name, "to b"),
    ]


def test_a_gang_waits_for_its_last_pod() -> None:
    assert out(job(read(nodes=PLACED), pod("w-0"))) == []


def test_a_gang_waits_for_capacity_for_all_of_it() -> None:
    pods = (pod("w-0"), pod("w-1"))
    full = capacity(node("a"), node("b", cpu=500))
    assert out(job(read(nodes=PLACED), *pods), full) == []
    assert out(job(read(nodes=PLACED), *pods), capacity(node("a"), node("b", is_schedulable=False))) == []
    assert full.free["a"]["cpu"] == 8000, "what was not admitted has taken nothing"


def test_two_gangs_do_not_get_the_same_capacity() -> None:
    small = capacity(node("a", cpu=3000), node("b"))
    doing = job(read(nodes={"w": ("a", "a")}), pod("w-0"), pod("w-1"))
    assert len(reconcile(doing, small, now=NOW)) == 2
    assert reconcile(doing, small, now=NOW) == []


@pytest.mark.parametrize(
    "waits",
    [
        {"nodes": None},
        {"nodes": {}},
        {"nodes": {"w": ("a", "")}},
        {"nodes": PLACED, "is_suspended": True},
        {"nodes": PLACED, "problem": "nonsense"},
        {"nodes": PLACED, "has_ended": True},
    ],
)
def test_a_job_without_a_place_or_that_is_held_is_not_admitted(waits: dict[str, Any]) -> None:
    assert out(job(read(**waits), pod("w-0"), pod("w-1"))) == []


def test_an_allocation_of_another_round_admits_no_pod() -> None:
    stale = read(nodes=PLACED, current="2")
    assert stale.notes.allocation is not None
    stale = changed(stale, allocation=replace(stale.notes.allocation, round="1"))
    assert out(job(stale, pod("w-0", round="2"), pod("w-1", round="2"))) == []


def test_the_gates_of_others_stay() -> None:
    first = replace(pod("w-0"), gates=("other", keys.GATE))
    (write,) = out(job(read(role(replicas=1), nodes={"w": ("a",)}), first))
    assert write.body["spec"]["schedulingGates"] == [{"name": "other"}]
    second = replace(first, gates=(keys.GATE,))
    (write,) = out(job(read(role(replicas=1), nodes={"w": ("a",)}), second))
    assert write.body["spec"]["schedulingGates"] is None


def test_the_rest_of_a_gang_follows_what_was_admitted_before_a_crash() -> None:
    pods = (pod("w-0", on="a"), pod("w-1"))
    assert told(out(job(read(nodes=PLACED), *pods))) == [(pods[1].identity.name, "to b")]
    full = capacity(node("a"), node("b", cpu=500))
    assert out(job(read(nodes=PLACED), *pods), full) == []


def test_a_retry_is_admitted_to_its_old_place() -> None:
    again = pod("w-1", made=1)
    doing = read(nodes=PLACED, tree=tree(w_0="Running", w_1="Running"))
    assert told(out(job(doing, pod("w-0", on="a"), again))) == [(again.identity.name, "to b")]
    finished = job(read(nodes=PLACED, tree=tree(w_0="Succeeded", w_1="Running")), again)
    assert told(out(finished)) == [(again.identity.name, "to b")], "its peer has finished, and is not waited for"


def test_a_new_round_waits_until_the_pods_of_the_old_one_are_gone() -> None:
    doing = read(nodes=PLACED, current="2", is_preemptible=True)
    new = (pod("w-0", round="2"), pod("w-1", round="2"))
    old = pod("w-0", round="1", on="a", is_stopping=True)
    assert out(job(doing, old, *new)) == []
    assert len(out(job(doing, *new))) == 2
    lost = replace(old, host="gone")
    assert len(out(job(doing, lost, *new))) == 3, "a pod on a lost node is not waited for"


def test_a_restarted_round_waits_for_the_pods_of_its_last_restart() -> None:
    doing = read(nodes=PLACED, is_preemptible=True, tree=tree(restart=1, restarts=1))
    new = (pod("w-0", restart=1), pod("w-1", restart=1))
    assert out(job(doing, pod("w-0", restart=0, on="a", is_stopping=True), *new)) == []
    assert len(out(job(doing, *new))) == 2


# --- pods that Argo has forgotten -------------------------------------------------------------------------------------


@pytest.mark.parametrize("later", [{"restart": 1}, {"made": 1}], ids=["round", "replica"])
@pytest.mark.parametrize("is_recorded", [False, True], ids=["nothing recorded", "the earlier attempt lives"])
def test_a_pod_that_argo_has_forgotten_is_ended_and_takes_no_place(later: dict[str, Any], *, is_recorded: bool) -> None:
    at = tree(w_0="Running", w_1="Running") if is_recorded else Tree()
    doing = read(nodes=PLACED, is_preemptible="restart" in later, tree=at)
    forgotten = (pod("w-0", **later), pod("w-1", **later))
    real = (pod("w-0"), pod("w-1")) if is_recorded else ()
    writes = out(job(doing, *forgotten, *real))
    ended = [write for write in writes if write.subresource == "status"]
    assert [write.target for write in ended] == [one.identity for one in forgotten]
    assert all(_is_uncounted(write) for write in ended), "Argo takes them for its next attempts, which must not count"
    assert told(writes[2:]) == [(one.identity.name, f"to {node}") for one, node in zip(real, "ab", strict=False)]


def test_a_job_is_not_admitted_beside_the_pods_that_argo_has_forgotten() -> None:
    doing = read(nodes=PLACED, is_preemptible=True, tree=tree(w_0="Running", w_1="Running"))
    (write,) = out(job(doing, pod("w-0"), pod("w-1"), pod("w-0", restart=1, on="a")))
    assert write.body == {"spec": {"activeDeadlineSeconds": 1}}


def test_the_next_attempt_is_not_forgotten_while_argo_has_not_recorded_it() -> None:
    """Argo makes a pod before it writes its node. Of offloaded nodes nothing is known."""
    known = tree(w_0="Running", w_1="Running")
    assert not job(read(nodes=PLACED, tree=known), pod("w-0", made=1), pod("w-1")).forgotten
    assert not job(read(nodes=PLACED, tree=known), pod("w-0", restart=1), pod("w-1", on="a")).forgotten
    left = pod("w-0", on="a", is_terminating=True)
    assert not job(read(nodes=PLACED, tree=known), left, pod("w-0", made=1)).forgotten
    recorded = replace(known, newest={"1/w/0": (0, 0, 0, 1)})
    assert not job(read(nodes=PLACED, tree=recorded), pod("w-0", on="a"), pod("w-0", made=1)).forgotten
    assert not job(read(nodes=PLACED, tree=Tree(is_offloaded=True)), pod("w-0", made=1)).forgotten


# --- fewer replicas ---------------------------------------------------------------------------------------------------


def test_the_highest_ranks_are_released_when_fewer_are_asked_for() -> None:
    doing = read(role(replicas=3, desired=1), nodes={"w": ("a", "b", "b")})
    (write,) = [w for w in out(job(doing, pod("w-0", on="a"))) if w.kind.name == "Workflow"]
    assert parameters(write)["released"] == ["1/w/1", "1/w/2"]
    assert parameters(write)["granted"] == {"1": {"w": 3}}, "a member is dropped after its end, never before"
    assert json.loads(write.body["metadata"]["annotations"][keys.ALLOCATION])["nodes"] == {"w": ["a"]}
    assert write.note is not None
    assert "3 → 1" in write.note.message


def test_a_released_member_is_dropped_when_it_has_come_to_its_end_and_its_pod_is_gone() -> None:
    doing = read(role(replicas=3, desired=1), nodes={"w": ("a",)}, released=frozenset({"1/w/1", "1/w/2"}))
    still = changed(doing, tree=tree(w_1="Running", w_2="Succeeded"))
    (write,) = out(job(still))
    assert parameters(write)["granted"] == {"1": {"w": 2}}
    assert parameters(write)["released"] == ["1/w/1"]
    assert out(job(changed(doing, tree=tree(w_1="Succeeded", w_2="Running")))) == [], "only from the tail"
    gone = changed(doing, tree=tree(w_1="Succeeded", w_2="Succeeded"))
    assert out(job(gone, pod("w-2", on="b", is_stopping=True))) == []
    (write,) = out(job(gone))
    assert parameters(write)["granted"] == {"1": {"w": 1}}
    assert parameters(write)["released"] == []


def test_a_live_group_never_shrinks_to_zero() -> None:
    doing = read(role(replicas=2, desired=1), released=frozenset({"1/w/0", "1/w/1"}),
                 tree=tree(w_0="Succeeded", w_1="Succeeded"))  # fmt: skip
    (write,) = out(job(doing))
    assert parameters(write)["granted"] == {"1": {"w": 1}}


# --- failures ---------------------------------------------------------------------------------------------------------


def test_one_failed_replica_of_a_preemptible_job_stops_the_others() -> None:
    doing = read(nodes=PLACED, is_preemptible=True, tree=tree(w_0="Failed", w_1="Running"))
    peer = pod("w-1", restart=0, on="b")
    (first,) = out(job(doing, peer))
    assert parameters(first)["released"] == ["1/0"], "Argo would start again what is stopped and wanted"
    doing = changed(doing, live=replace(doing.live, released=frozenset({"1/0"})))
    (write,) = out(job(doing, peer))
    assert write.body == {"spec": {"activeDeadlineSeconds": 1}}
    assert write.note is not None
    assert write.note.reason == "Restarted"
    assert out(job(doing, replace(peer, is_stopping=True))) == []
    gated = pod("w-1", restart=0)
    (ended,) = out(job(doing, gated))
    assert ended.body["status"]["phase"] == "Failed"
    assert not _is_uncounted(ended), "made by Argo in the stopped one's place, it would be made for ever"
    other = changed(doing, tree=tree(w_0="Failed", w_1="Running", restart=1))
    (later,) = out(job(other, pod("w-1", restart=1, on="b")))
    assert parameters(later)["released"] == ["1/1"], "each restart is released by itself"


def test_a_failed_replica_of_another_job_is_argos_own_to_retry() -> None:
    doing = read(nodes=PLACED, tree=tree(w_0="Failed", w_1="Running"))
    assert out(job(doing, pod("w-1", on="b"))) == []


def test_an_evicted_replica_leads_to_a_new_round_in_the_same_place() -> None:
    doing = read(nodes=PLACED, is_preemptible=True, tree=tree(recreated=("1/w/0",), w_0="Running", w_1="Running"))
    again = pod("w-0", made=1, restart=0)
    writes = out(job(doing, again, pod("w-1", on="b", restart=0)))
    assert len(writes) == 1
    assert parameters(writes[0])["rounds"] == ["1", "2"]
    assert parameters(writes[0])["current"] == 2
    assert json.loads(writes[0].body["metadata"]["annotations"][keys.ALLOCATION])["nodes"] == {"w": ["a", "b"]}


def test_the_lost_node_of_a_finished_replica_delays_no_other() -> None:
    doing = read(
        nodes={"w": ("a", "gone")}, is_preemptible=True, tree=tree(recreated=("1/w/0",), w_0="Running", w_1="Succeeded")
    )
    (write,) = out(job(doing, pod("w-0", made=1, restart=0)))
    assert json.loads(write.body["metadata"]["annotations"][keys.ALLOCATION])["nodes"] == {}, "planning finds a place"
    both = changed(doing, tree=tree(recreated=("1/w/0",), w_0="Running", w_1="Running"))
    assert out(job(both, pod("w-0", made=1, restart=0))) == [], "and here it finds one anyway"


def test_evictions_come_in_bursts_so_a_young_round_is_not_replaced() -> None:
    doing = read(nodes=PLACED, is_preemptible=True, tree=tree(recreated=("1/w/0",), w_0="Running", w_1="Running"))
    assert doing.notes.allocation is not None
    young = changed(doing, allocation=replace(doing.notes.allocation, since=NOW - 5))
    again = pod("w-0", made=1, restart=0)
    peer = pod("w-1", on="b", restart=0)
    assert out(job(young, again, peer), pace=Pace(10.0)) == [], "and nobody is admitted to what will be replaced"
    assert len(out(job(young, again, peer), pace=Pace(4.0))) == 1


def test_a_job_that_failed_too_often_over_all_its_replicas_is_stopped() -> None:
    doing = read(nodes=PLACED, backoff_limit=2, tree=tree(restarts=3))
    (write,) = out(job(doing, pod("w-0", on="a")))
    assert write.body["spec"] == stopping()
    said = json.loads(write.body["metadata"]["annotations"][keys.DECISION])
    assert said["action"] == "stop"
    assert "3 times" in said["why"]
    assert "backoffLimit is 2" in said["why"]
    assert out(job(changed(doing, tree=tree(restarts=2)), pod("w-0", on="a"), pod("w-1", on="b"))) == []
    (write,) = out(job(changed(doing, tree=tree(restarts=1), restarts_before=2), pod("w-0", on="a")))
    assert write.body["spec"] == stopping()


@pytest.mark.parametrize("problem", ["", "nonsense"])
def test_a_job_that_is_stopped_is_rid_of_the_pods_that_argo_cannot_end(problem: str) -> None:
    gated, unbound, lost = pod("w-0"), pod("w-1", pinned="a"), pod("w-2", on="gone")
    writes = out(job(read(nodes=PLACED, is_stopping=True, problem=problem), gated, unbound, lost, pod("w-3", on="a")))
    assert {w.target.name for w in writes} == {p.identity.name for p in (gated, unbound, lost)}
    assert {w.subresource for w in writes} == {"status"}


# --- nodes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_terminating", [False, True])
def test_pods_on_a_node_that_is_gone_or_silent_for_too_long_are_written_off(is_terminating: bool) -> None:
    doing = read(nodes={"w": ("gone", "silent", "quiet")}, roles=(role(replicas=3),))
    pods = [pod(f"w-{i}", on=n, is_terminating=is_terminating) for i, n in enumerate(("gone", "silent", "quiet"))]
    at = capacity(node("silent", not_ready_since=NOW - 61), node("quiet", not_ready_since=NOW - 59))
    writes = out(job(doing, *pods), at)
    assert told(writes) == [
        (pods[0].identity.name, "status: Failed: The node was lost: gone"),
        (pods[1].identity.name, "status: Failed: The node was lost: silent"),
    ]
    assert [w.note is not None for w in writes] == [True, False], "one Event tells of all"


def test_what_is_written_off_ends_with_its_containers_or_argo_would_wait_for_their_report_for_ever() -> None:
    doing = read(nodes={"w": ("silent", "gone")})
    began = pod("w-0", on="silent", containers=(("main", "my/image:1"), ("wait", "argoexec:4")))
    never_began = pod("w-1", on="gone")
    at = capacity(node("silent", not_ready_since=NOW - 61))
    first, second = out(job(doing, began, never_began), at)
    ends = first.body["status"]["containerStatuses"]
    assert [(status["name"], status["image"]) for status in ends] == [("main", "my/image:1"), ("wait", "argoexec:4")]
    for status in ends:
        assert status["state"]["terminated"]["exitCode"] == 137
        assert status["state"]["terminated"]["finishedAt"] == timestamp(NOW)
    assert executor(second) == ("wait", 137, None)


def test_a_pod_that_never_began_ends_with_its_executor_as_one_of_its_name_may_have_begun_before() -> None:
    """A pod whose Node object is deleted goes before its executor reports. Argo makes it again under its name."""
    (ended,) = out(job(read(current="2"), pod("w-0", round="1")))
    assert ended.body["status"]["phase"] == "Failed"
    assert executor(ended) == ("wait", 137, None), "without an end there is no back-off before a retry"


def executor(write: Write) -> tuple[str, int, str | None]:
    (status,) = write.body["status"]["containerStatuses"]
    end = status["state"]["terminated"]
    return status["name"], end["exitCode"], end.get("finishedAt")


def test_a_pod_that_is_not_bound_for_too_long_loses_its_place() -> None:
    late = pod("w-1", pinned="b", created=NOW)
    doing = job(read(nodes=PLACED), pod("w-0", on="a", began=NOW - 60.0), late)
    assert out(doing) == []
    change, failed = out(doing, overdue=frozenset({late.identity.uid}))
    assert json.loads(change.body["metadata"]["annotations"][keys.ALLOCATION])["nodes"] == {"w": ["a", ""]}
    assert failed.body["status"]["message"].startswith("Pod was rejected: "), "which counts for nothing"
    # A gang that has not run together yet goes back as a whole.
    (change,) = out(job(read(nodes=PLACED), pod("w-0", on="a"), late), overdue=frozenset({late.identity.uid}))
    assert json.loads(change.body["metadata"]["annotations"][keys.ALLOCATION])["nodes"] == {}
    preemptible = job(read(nodes=PLACED, is_preemptible=True), pod("w-0", on="a"), late)
    (change,) = out(preemptible, overdue=frozenset({late.identity.uid}))
    assert parameters(change)["rounds"] == ["1", "2"]
    assert json.loads(change.body["metadata"]["annotations"][keys.ALLOCATION])["nodes"] == {}


# --- who is who -------------------------------------------------------------------------------------------------------


def test_running_pods_are_told_when_the_roster_changes() -> None:
    right = roster("job", "ns", {"w": 2})
    old = pod("w-1", on="b", hosts=roster_digest("somebody"), rank="1", replicas="1")
    told = pod("w-0", on="a", hosts=roster_digest(right.nodes), rank="0", replicas="2")
    (write,) = untold(job(read(nodes=PLACED), told, old))
    assert write.body["metadata"]["annotations"] == {keys.NODES: right.nodes, keys.REPLICAS: "2", keys.RANK: "1"}
    assert write.target == old.identity


def test_nothing_is_left_to_do_for_a_job_that_is_as_it_should_be() -> None:
    hosts = roster_digest(roster("job", "ns", {"w": 2}).nodes)
    pods = [pod(f"w-{i}", on=n, hosts=hosts, rank=str(i), replicas="2", request=CPU) for i, n in enumerate("ab")]
    assert out(job(read(nodes=PLACED), *pods)) == []
    assert not list(untold(job(read(nodes=PLACED), *pods)))


# --- a job that does not start ----------------------------------------------------------------------------------------


def _late(age: float = 61.0, **fields: Any) -> Job:
    found = {"awaits_admission": True, "start_deadline_seconds": 60, "created_seconds": NOW - age, **fields}
    return job(changed(read(nodes={}), allocation=None, **found))


def test_a_job_that_has_not_started_by_its_deadline_is_stopped() -> None:
    (write,) = out(_late())
    assert write.body["spec"]["shutdown"] == "Stop"
    assert write.note is not None
    assert write.note.is_warning
    assert "it has not started within 60 s, its startDeadlineSeconds" in json.dumps(write.body["metadata"])


@pytest.mark.parametrize(
    "waiting",
    [_late(59.0), _late(start_deadline_seconds=None), _late(is_suspended=True), _late(continued_in="next")],
    ids=["early", "no deadline", "suspended", "continued"],
)
def test_another_job_that_waits_is_not_stopped(waiting: Job) -> None:
    assert out(waiting) == []


def test_a_job_that_has_started_has_no_deadline_for_it() -> None:
    assert not [write for write in out(_late(awaits_admission=False)) if "shutdown" in write.body.get("spec", {})]


def test_a_job_that_can_start_now_is_not_too_late() -> None:
    waiting = job(
        changed(read(nodes=PLACED), awaits_admission=True, start_deadline_seconds=60, created_seconds=NOW - 61)
    )
    (write,) = out(waiting)
    assert "shutdown" not in write.body["spec"]


def test_few_jobs_are_repaired_in_one_pass_and_each_namespace_has_its_turn() -> None:
    def write(namespace: str, number: int, *, is_repair: bool) -> Write:
        job_ = Identity(namespace, f"job-{number}", "u", "1")
        return Write(WORKFLOW, job_, f"{namespace}/{number}", {}, is_repair=is_repair)

    repairs = [write("evil", number, is_repair=True) for number in range(50)] + [write("good", 0, is_repair=True)]
    others = [write("evil", number, is_repair=False) for number in range(50)]
    chosen = _few_repairs([*repairs, *others])
    assert chosen[:50] == others
    assert [one.target.namespace for one in chosen[50:]] == ["evil", "good", "evil", "evil"]

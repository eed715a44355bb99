"""Planning: the snapshot for the policy, and the writes of its plan."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from diflow.allocator.model.plan import Plan, make_plan
from diflow.allocator.model.reasons import Fits
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.plan.holding import stand
from diflow.allocator.plan.inputs import Picture, Restrictions, left_in_place, picture
from diflow.allocator.watch.cluster_state import ClusterState
from diflow.allocator.watch.job import Job
from diflow.allocator.write.patches import Write
from diflow.common import keys
from diflow.record.node import NodeRecord
from diflow.record.parameters import Decision
from tests.allocator.plan.calls import plan_writes
from tests.allocator.values import NOW, capacity, changed, job, node, pod, read, role, tree


def shown(*jobs: Job, nodes: tuple[NodeRecord, ...] = (), **options: Any) -> Picture:
    pods = [p for j in jobs for p in j.pods] + options.pop("others", [])
    at = capacity(*nodes, pods=tuple(pods))
    state = ClusterState({j.key: j for j in jobs}, at.nodes, tuple(pods))
    return picture(state, at, now=NOW, **options)


def amount(of: Snapshot, table: Any, name: str) -> int:
    return int(table[of.node_names.index(name), of.resources.index("cpu")])


def bounds(of: Snapshot) -> list[tuple[str, int, int, int]]:
    """(role, held, minimum, maximum)."""
    held = of.held_by_role()
    return [
        (name, int(h), int(low), int(high))
        for name, h, low, high in zip(of.role_names, held, of.role_min, of.role_max, strict=True)
    ]


def plan(of: Snapshot, **places: dict[str, int]) -> Plan:
    """The plan that gives each task these replicas on these nodes."""
    triples = [
        (of.role_names.index(name), of.node_names.index(n), count)
        for name, nodes in places.items()
        for n, count in nodes.items()
    ]
    columns = np.array(sorted(triples), dtype=np.int64).reshape(-1, 3).T
    reasons = [Fits(1, 1)] * of.jobs
    return make_plan(of, "test", columns[0].copy(), columns[1].copy(), columns[2].copy(), reasons=reasons)


def written(write: Write) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the parameters, the allocation) of a write."""
    given = (write.body.get("spec") or {}).get("arguments", {}).get("parameters", [])
    text = write.body["metadata"]["annotations"].get(keys.ALLOCATION)
    return {p["name"]: json.loads(p["value"]) for p in given}, json.loads(text) if text else {}


PLACED = {"w": ("a", "b")}


# --- what the policy is shown -----------------------------------------------------------------------------------------


def test_what_is_decided_counts_as_held_before_any_pod_is_there() -> None:
    s = shown(job(read(nodes=PLACED))).snapshot
    assert bounds(s) == [("w", 2, 2, 2)]
    assert amount(s, s.idle(), "a") == 7000


def test_terminating_pods_use_capacity_until_they_are_gone() -> None:
    old = pod("w-0", round="1", on="a")
    s = shown(job(read(nodes={}, current="2", is_preemptible=True), old)).snapshot
    assert amount(s, s.node_releasing, "a") == 1000
    assert amount(s, s.node_foreign, "a") == 0
    terminating = replace(pod("w-0", on="a", is_terminating=True), place=None, job="")
    s = shown(others=[terminating]).snapshot
    assert amount(s, s.node_releasing, "a") == 1000


@pytest.mark.parametrize("what", ["somebody's", "of a job that is held", "of a job that ends"])
def test_pods_that_the_allocator_may_not_touch_are_foreign(what: str) -> None:
    theirs = pod("w-0", on="a")
    if what == "somebody's":
        s = shown(others=[replace(theirs, place=None, job="")]).snapshot
    elif what == "of a job that is held":
        s = shown(job(read(nodes=PLACED, problem="nonsense"), theirs)).snapshot
    else:
        s = shown(job(read(nodes=PLACED, is_stopping=True), theirs)).snapshot
    assert s.jobs == 0
    assert amount(s, s.node_foreign, "a") == 1000


def test_a_pod_that_is_where_it_should_be_is_not_counted_twice() -> None:
    s = shown(job(read(nodes=PLACED), pod("w-0", on="a"), pod("w-1", pinned="b"))).snapshot
    assert amount(s, s.idle(), "a") == amount(s, s.idle(), "b") == 7000


def test_a_pod_that_is_not_where_it_should_be_counts_for_both_places() -> None:
    s = shown(job(read(nodes=PLACED), pod("w-0", on="b"), pod("w-1", on="b"))).snapshot
    assert amount(s, s.idle(), "a") == 7000
    assert amount(s, s.idle(), "b") == 6000


def test_a_preemptible_job_is_shown_with_its_range_and_another_with_what_it_has_and_wants() -> None:
    assert bounds(shown(job(read(role(replicas=4, low=2), is_preemptible=True))).snapshot) == [("w", 0, 2, 4)]
    assert bounds(shown(job(read(role(replicas=4)))).snapshot) == [("w", 0, 4, 4)]
    assert bounds(shown(job(read(role(desired=5), nodes=PLACED))).snapshot) == [("w", 2, 2, 5)]
    released = read(role(replicas=3, desired=5), nodes=PLACED, released=frozenset({"1/w/2"}))
    assert bounds(shown(job(released)).snapshot) == [("w", 2, 2, 2)], "nothing grows behind what is being released"


@pytest.mark.parametrize("is_preemptible", [False, True])
def test_finished_replicas_need_nothing_and_their_job_is_not_moved(is_preemptible: bool) -> None:
    roles = (role("w", 2, low=1), role("judge", 1))
    doing = read(*roles, nodes={**PLACED, "judge": ("a",)}, is_preemptible=is_preemptible,
                 tree=tree(judge_0="Succeeded", w_0="Running", w_1="Running"))  # fmt: skip
    s = shown(job(doing)).snapshot
    assert bounds(s) == [("w", 2, 2, 2)]
    assert not s.job_preemptible[0]
    assert amount(s, s.idle(), "a") == 7000
    partly = changed(doing, tree=tree(w_0="Succeeded", w_1="Running", judge_0="Running"))
    assert bounds(shown(job(partly)).snapshot) == [("w", 1, 1, 1), ("judge", 1, 1, 1)]


def test_a_task_in_units_is_shown_with_its_unit_but_not_the_rest_of_one_of_which_replicas_have_finished() -> None:
    pairs = replace(role(replicas=4, low=2), unit=2)
    assert shown(job(read(pairs, is_preemptible=True))).snapshot.role_unit.tolist() == [2]
    assert shown(job(read(role(replicas=4, low=2), is_preemptible=True))).snapshot.role_unit.tolist() == [1]
    doing = read(replace(role(), unit=2), nodes=PLACED, tree=tree(w_0="Succeeded", w_1="Running"))
    s = shown(job(doing)).snapshot
    assert (bounds(s), s.role_unit.tolist()) == ([("w", 1, 1, 1)], [1])


def test_finished_replicas_are_not_asked_for_again_when_the_others_lost_their_node() -> None:
    doing = read(role(replicas=3), nodes={"w": ("a", "gone", "gone")},
                 tree=tree(w_0="Succeeded", w_1="Running", w_2="Running"))  # fmt: skip
    looked = shown(job(doing))
    assert bounds(looked.snapshot) == [("w", 0, 2, 2)]
    _, (write,) = plan_writes(looked, plan(looked.snapshot, w={"b": 2}), now=NOW)
    parameters, at = written(write)
    assert parameters == {}
    assert at["nodes"] == {"w": ["a", "b", "b"]}


def test_a_job_all_of_whose_replicas_have_finished_is_not_planned() -> None:
    assert shown(job(read(nodes=PLACED, tree=tree(w_0="Succeeded", w_1="Succeeded")))).snapshot.jobs == 0


def test_a_job_for_which_nothing_can_be_written_keeps_what_it_has() -> None:
    fixed = frozenset({"ns/job"})
    doing = read(role(replicas=2, low=1, desired=6), nodes=PLACED, is_preemptible=True)
    s = shown(job(doing), restrictions=Restrictions(fixed=fixed)).snapshot
    assert bounds(s) == [("w", 2, 2, 2)]
    assert not s.job_preemptible[0]
    assert shown(job(read()), restrictions=Restrictions(fixed=fixed)).snapshot.jobs == 0, (
        "one that waits is not given what nobody can write"
    )


def test_a_place_is_withdrawn_when_others_use_its_capacity() -> None:
    waiting = job(read(nodes={"w": ("a", "a")}), pod("w-0"), pod("w-1"))
    theirs = replace(pod("w-9", on="a"), place=None, job="", request={"cpu": 7000})
    assert bounds(shown(waiting).snapshot) == [("w", 2, 2, 2)]
    looked = shown(waiting, others=[theirs])
    assert bounds(looked.snapshot) == [("w", 0, 2, 2)]
    free, use = plan_writes(looked, plan(looked.snapshot), now=NOW)
    assert use == []
    parameters, at = written(free[0])
    assert parameters == {}, "nothing has run in this round: it goes on waiting in it"
    assert at["nodes"] == {}
    started = job(read(nodes={"w": ("a", "a")}), pod("w-0", on="a"), pod("w-1"))
    assert bounds(shown(started, others=[theirs]).snapshot) == [("w", 1, 1, 2)], "what runs stays"
    together = job(changed(started.read, is_preemptible=True), *started.pods)
    assert shown(together, others=[theirs]).standings[0].is_displaced, "a gang moves as a whole"


# --- nodes that go ----------------------------------------------------------------------------------------------------

GONE = (node("a"),)
SILENT = (node("a"), node("b", not_ready_since=NOW - 600))
QUIET = (node("a"), node("b", not_ready_since=NOW - 10))
CORDONED = (node("a"), node("b", is_schedulable=False))


@pytest.mark.parametrize(
    ("nodes", "is_preemptible", "held"),
    [
        (GONE, False, {0: "a"}),
        (SILENT, False, {0: "a"}),
        (QUIET, False, {0: "a", 1: "b"}),
        (CORDONED, False, {0: "a", 1: "b"}),
        (GONE, True, {}),
        (SILENT, True, {}),
        (QUIET, True, {0: "a", 1: "b"}),
        (CORDONED, True, {}),
    ],
)
def test_what_a_job_keeps_when_a_node_goes(
    nodes: tuple[NodeRecord, ...], is_preemptible: bool, held: dict[int, str]
) -> None:
    standing = stand(job(read(nodes=PLACED, is_preemptible=is_preemptible)), capacity(*nodes))
    assert dict(standing.places.get("w", {})) == held
    assert standing.is_displaced is (held == {})


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        (GONE, "as node b is gone"),
        (SILENT, "as node b has been silent for 600 s"),
        (CORDONED, "as node b is cordoned"),
    ],
)
def test_a_displaced_job_says_what_happened_to_its_node(nodes: tuple[NodeRecord, ...], words: str) -> None:
    doing = job(read(nodes=PLACED, is_preemptible=True), pod("w-0", on="a"), pod("w-1", on="b"))
    looked = shown(doing, nodes=nodes)
    writes = [write for part in plan_writes(looked, plan(looked.snapshot, w={"a": 2}), now=NOW) for write in part]
    (note,) = [write.note for write in writes if write.note]
    assert note.reason == "Rescheduled"
    assert words in note.message, note.message


def test_a_job_that_could_leave_a_cordoned_node_only_for_nothing_stays() -> None:
    doing = job(read(nodes=PLACED, is_preemptible=True), pod("w-0", on="a"), pod("w-1", on="b"))
    looked = shown(doing, nodes=CORDONED)
    assert left_in_place(looked, plan(looked.snapshot))
    assert not left_in_place(looked, plan(looked.snapshot, w={"a": 2}))
    assert bounds(shown(doing, nodes=CORDONED, keep_cordoned=True).snapshot) == [("w", 2, 2, 2)]
    finishing = job(changed(doing.read, tree=tree(w_0="Succeeded", w_1="Running")))
    assert stand(finishing, capacity(*CORDONED)).is_placed, "it is about to end"


# --- what a plan becomes ----------------------------------------------------------------------------------------------


def test_a_job_is_admitted_in_its_round_when_it_gets_what_its_round_has() -> None:
    looked = shown(job(read(role(low=1), is_preemptible=True)))
    free, (write,) = plan_writes(looked, plan(looked.snapshot, w={"b": 2}), now=NOW)
    assert free == []
    parameters, at = written(write)
    assert parameters == {}
    assert at.pop("requests") == {"w": {"cpu": 1000, "pods": 1}}
    assert at == {"round": "1", "nodes": {"w": ["b", "b"]}, "since": NOW, "first": NOW, "moves": 0, "asked": "w:1-2"}
    assert write.note is not None
    assert write.note.reason == "Admitted"


def test_a_preemptible_job_that_gets_another_number_gets_a_new_round() -> None:
    looked = shown(job(read(role(low=1), is_preemptible=True)))
    _, (write,) = plan_writes(looked, plan(looked.snapshot, w={"b": 1}), now=NOW)
    parameters, at = written(write)
    assert parameters["rounds"] == ["1", "2"]
    assert parameters["current"] == 2
    assert parameters["granted"] == {"1": {"w": 2}, "2": {"w": 1}}
    assert at["round"] == "2"
    assert at["moves"] == 0, "it never ran before"


def test_replicas_stay_on_their_nodes_where_they_can() -> None:
    doing = job(read(role(replicas=4, low=1), nodes={"w": ("a", "b", "a", "b")}, is_preemptible=True),
                *(pod(f"w-{i}", on="ab"[i % 2]) for i in range(4)))  # fmt: skip
    looked = shown(doing, nodes=(node("a"), node("b"), node("c")))
    free, use = plan_writes(looked, plan(looked.snapshot, w={"a": 1, "b": 2, "c": 1}), now=NOW)
    _, at = written(free[0])
    assert use == []
    assert at["nodes"]["w"] == ["a", "b", "c", "b"]
    assert at["moves"] == 1


def test_writes_that_free_capacity_come_before_those_that_use_it() -> None:
    doing = job(read(role(low=1), nodes=PLACED, is_preemptible=True), pod("w-0", on="a"), pod("w-1", on="b"))
    other = read(role("v", 1))
    other = replace(other, identity=replace(other.identity, name="other", uid="u2"))
    looked = shown(doing, job(other))
    free, use = plan_writes(looked, plan(looked.snapshot, w={"a": 1}, v={"b": 1}), now=NOW)
    assert [w.job for w in free] == ["ns/job"]
    assert [w.job for w in use] == ["ns/other"]
    stopped, _ = plan_writes(looked, plan(looked.snapshot, v={"b": 1}), now=NOW)
    parameters, at = written(stopped[0])
    assert at["nodes"] == {}
    assert parameters["granted"]["2"] == {"w": 1}, "it waits with its smallest gang"
    assert stopped[0].note is not None
    assert stopped[0].note.reason == "Preempted"


def test_a_job_that_may_not_be_moved_grows_behind_what_it_has() -> None:
    looked = shown(job(read(role(desired=4), nodes=PLACED), pod("w-0", on="a"), pod("w-1", on="b")))
    _, (write,) = plan_writes(looked, plan(looked.snapshot, w={"a": 3, "b": 1}), now=NOW)
    parameters, at = written(write)
    assert parameters["granted"] == {"1": {"w": 4}}
    assert parameters["incarnations"] == {}
    assert at["nodes"] == {"w": ["a", "b", "a", "a"]}
    assert at["first"] == NOW - 1000


def test_a_replica_that_comes_back_is_a_new_incarnation() -> None:
    phases: dict[str, Any] = {"w_2": "Succeeded", "w_3": "Succeeded", "w_3.1": "Failed"}
    doing = read(role(desired=4), nodes=PLACED, tree=tree(**phases))
    looked = shown(job(doing, pod("w-0", on="a"), pod("w-1", on="b")))
    _, (write,) = plan_writes(looked, plan(looked.snapshot, w={"a": 3, "b": 1}), now=NOW)
    assert written(write)[0]["incarnations"] == {"1/w/2": ".1", "1/w/3": ".2"}


def test_a_place_that_was_lost_is_filled_again_without_touching_the_others() -> None:
    looked = shown(job(read(nodes=PLACED), pod("w-0", on="a")), nodes=(node("a"), node("c")))
    assert bounds(looked.snapshot) == [("w", 1, 1, 2)]
    _, (write,) = plan_writes(looked, plan(looked.snapshot, w={"a": 1, "c": 1}), now=NOW)
    parameters, at = written(write)
    assert parameters == {}
    assert at["nodes"] == {"w": ["a", "c"]}


def test_a_job_that_keeps_what_it_has_is_not_written() -> None:
    looked = shown(job(read(nodes=PLACED)))
    assert plan_writes(looked, plan(looked.snapshot, w={"a": 1, "b": 1}), now=NOW) == ([], [])


def test_the_reason_of_a_waiting_job_is_written_when_it_changes() -> None:
    looked = shown(job(read()))
    _, (write,) = plan_writes(looked, plan(looked.snapshot), now=NOW, limit_seconds=1e9)
    said = json.loads(write.body["metadata"]["annotations"][keys.DECISION])
    assert said["action"] == "wait"
    known = shown(job(read(decision=Decision(**said))))
    assert plan_writes(known, plan(known.snapshot), now=NOW + 1000, limit_seconds=1e9) == ([], [])
    _, (late,) = plan_writes(known, plan(known.snapshot), now=NOW)
    decision = json.loads(late.body["metadata"]["annotations"][keys.DECISION])
    assert decision["action"] == "late", "2000 s are too long"
    assert decision["why"].startswith("has not been placed within ")
    assert decision["why"].partition(", and ")[2] == said["why"]
    assert late.note is not None
    assert late.note.is_warning

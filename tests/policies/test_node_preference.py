"""Node preferences of pod templates: which of several eligible nodes is chosen, and what of a template is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diflow.allocator.model.plan import Plan
from diflow.allocator.model.snapshot import Snapshot
from diflow.allocator.model.views import JobView, NodeView, RoleView, build
from diflow.allocator.policies.base import load_policy
from diflow.allocator.policies.fair.policy import FairPolicy
from diflow.allocator.policies.fit.policy import FitPolicy
from diflow.allocator.policies.settings import NodeOrder, PolicySettings
from diflow.allocator.run import journal
from diflow.allocator.watch.records import planning_record_of
from diflow.common.predicates import NODE_NAME, Requirement, Where
from diflow.dijob.conditions import MOST_PREFERRED, read_where
from diflow.workflows import render
from tests.allocator.lab import job, task

IN_SSD = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}
NOT_FAR = {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["far"]}]}
NAMED_C = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["c"]}]}


def template(*preferred: dict[str, Any]) -> dict[str, Any]:
    return {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": list(preferred)}}}


def prefers(weight: Any, preference: Any) -> dict[str, Any]:
    return {"weight": weight, "preference": preference}


SSD = read_where(template(prefers(10, IN_SSD)))


def node(name: str, cpu: int = 4, *, used: int = 0, **labels: str) -> NodeView:
    return NodeView(name, {"cpu": cpu}, foreign={"cpu": used}, labels=labels)


def gang(replicas: int = 1, *, name: str = "job", where: Where = SSD) -> JobView:
    return JobView(name, (RoleView("w", {"cpu": 1}, replicas, replicas, where=where),))


def placed(snapshot: Snapshot, plan: Plan, job: int = 0) -> dict[str, int]:
    mine = snapshot.role_job[plan.role] == job
    nodes, counts = plan.node[mine].tolist(), plan.count[mine].tolist()
    return {snapshot.node_names[n]: c for n, c in zip(nodes, counts, strict=True)}


def test_the_weights_of_the_terms_that_hold_add_up() -> None:
    where = read_where(template(prefers(10, IN_SSD), prefers(5, NOT_FAR), prefers(1, NAMED_C)))
    nodes = [node("a", disk="ssd"), node("b", disk="ssd", zone="far"), node("c", zone="far"), node("d", disk="hdd")]
    snapshot = build(nodes, [gang(where=where), gang(name="other", where=Where())])
    assert snapshot.class_preference.tolist() == [[15, 10, 1, 5], [0, 0, 0, 0]]
    assert snapshot.class_nodes.all(), "what is preferred forbids nothing"


def test_a_required_name_holds_as_a_preferred_one_does() -> None:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [NAMED_C]}}
    snapshot = build([node("b"), node("c")], [gang(where=read_where({"affinity": {"nodeAffinity": required}}))])
    assert snapshot.class_nodes.tolist() == [[False, True]]


@pytest.mark.parametrize("name", ["fit", "fair", "goodput", "fair+goodput"])
def test_of_nodes_with_equal_free_capacity_the_preferred_one_is_chosen(name: str) -> None:
    alike = [node("a"), node("b", disk="ssd"), node("c")]
    snapshot = build(alike, [gang()])
    assert placed(snapshot, load_policy(name).optimize(snapshot)) == {"b": 1}
    indifferent = build(alike, [gang(where=Where())])
    assert placed(indifferent, load_policy(name).optimize(indifferent)) == {"a": 1}


def test_a_gang_larger_than_a_node_takes_the_preferred_ones() -> None:
    snapshot = build([node("a"), node("b", disk="ssd"), node("c"), node("d", disk="ssd")], [gang(8)])
    assert placed(snapshot, FitPolicy().optimize(snapshot)) == {"b": 4, "d": 4}


def test_each_role_follows_its_own_preference() -> None:
    hdd = Where(preferred=((100, (Requirement("disk", "In", ("hdd",)),)),))
    nodes = [node("a"), node("b", disk="ssd"), node("c", disk="hdd")]
    snapshot = build(nodes, [gang(4, name="x"), gang(name="y", where=hdd)])
    plan = FitPolicy().optimize(snapshot)
    assert (placed(snapshot, plan, 0), placed(snapshot, plan, 1)) == ({"b": 4}, {"c": 1})


HALF = [node("half", used=2), node("empty", disk="ssd")]
"""Packing alone would take the node that is half full; the empty one is preferred."""


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ((("most_requested", 1.0),), "half"),
        ((("most_requested", 1.0), ("affinity", 0.0)), "half"),
        ((("most_requested", 1.0), ("affinity", 0.4)), "half"),
        ((("most_requested", 1.0), ("affinity", 0.6)), "empty"),
        ((("affinity", 1.0),), "empty"),
        ((("least_requested", 1.0), ("affinity", -0.6)), "half"),
    ],
)
def test_affinity_is_weighed_against_what_is_requested(
    order: tuple[tuple[NodeOrder, float], ...], expected: str
) -> None:
    """Half of one node is used and nothing of the other: 0.5 against the weight of affinity."""
    snapshot = build(HALF, [gang()])
    plan = FairPolicy(PolicySettings(node_order=order)).optimize(snapshot)
    assert placed(snapshot, plan) == {expected: 1}


def test_a_job_without_preferences_is_packed_as_without_the_score() -> None:
    """Also beside a job with a preference: the score is equal for all nodes, so packing decides."""
    nodes = [node("big", 8, used=5), node("small", 4, used=2), node("ssd", 9, disk="ssd")]
    jobs = [gang(name="a", where=Where()), gang(name="b")]
    for order in ((("most_requested", 1.0),), (("most_requested", 1.0), ("affinity", 2.0))):
        snapshot = build(nodes, jobs)
        plan = FairPolicy(PolicySettings(node_order=order)).optimize(snapshot)
        assert placed(snapshot, plan, 0) == {"small": 1}, (
            "the least capacity to spare, though more of `big` is requested"
        )


def test_the_preference_decides_between_nodes_of_equal_score() -> None:
    snapshot = build([node("a"), node("b", disk="ssd"), node("c"), node("d", disk="ssd")], [gang(8)])
    plan = FairPolicy(PolicySettings(node_order=(("least_requested", 1.0),))).optimize(snapshot)
    assert placed(snapshot, plan) == {"b": 4, "d": 4}
    one = build([node("a"), node("b", disk="ssd")], [gang()])
    assert placed(one, FairPolicy(PolicySettings(node_order=(("balanced", 1.0),))).optimize(one)) == {"b": 1}


def test_the_best_node_that_may_be_used_counts_whole() -> None:
    """Preferences are relative to the largest among eligible nodes: a closed node does not count."""
    terms = ((100, (Requirement("disk", "In", ("nvme",)),)), (1, (Requirement("disk", "In", ("ssd",)),)))
    closed = NodeView("closed", {"cpu": 4}, is_open=False, labels={"disk": "nvme"})
    snapshot = build([*HALF, closed], [gang(where=Where(preferred=terms))])
    order: tuple[tuple[NodeOrder, float], ...] = (("most_requested", 1.0), ("affinity", 0.6))
    assert placed(snapshot, FairPolicy(PolicySettings(node_order=order)).optimize(snapshot)) == {"empty": 1}


@pytest.mark.parametrize("weight", [0, -1, 101, 10**30, "10", None, [], 1.5])
def test_a_weight_that_kubernetes_refuses_is_ignored(weight: Any) -> None:
    assert read_where(template(prefers(weight, IN_SSD), prefers(3, NOT_FAR))).preferred == (
        (3, (Requirement("zone", "NotIn", ("far",)),)),
    )


@pytest.mark.parametrize("preference", [None, {}, {"matchExpressions": []}, {"matchExpressions": None}])
def test_a_term_that_requires_nothing_is_for_no_node(preference: Any) -> None:
    assert read_where(template(prefers(7, preference))) == Where()


def test_an_unknown_operator_holds_nowhere() -> None:
    where = read_where(template(prefers(7, {"matchExpressions": [{"key": "disk", "operator": "Like"}]})))
    assert build([node("a", disk="ssd")], [gang(where=where)]).class_preference.tolist() == [[0]]


def test_no_more_terms_than_the_limit_are_read() -> None:
    where = read_where(template(*[prefers(1, IN_SSD)] * (MOST_PREFERRED + 1)))
    assert where.score({"disk": "ssd"}) == MOST_PREFERRED


def test_no_label_is_taken_for_the_name_of_a_node() -> None:
    where = read_where(template(prefers(1, NAMED_C)))
    assert where.score({"metadata.name": "c"}) == 0
    assert where.score({NODE_NAME: "c"}) == 1


def test_the_preference_is_read_from_the_template_of_a_job() -> None:
    body = _workflow(template(prefers(10, IN_SSD)))
    (role,) = planning_record_of(body).needs.roles
    assert role.where.preferred == ((10, (Requirement("disk", "In", ("ssd",)),)),)


@pytest.mark.parametrize("nonsense", [7, "ssd", [7], [{"weight": 1}], [prefers(1, {"matchExpressions": "x"})]])
def test_the_job_names_what_is_no_list_of_terms(nonsense: Any) -> None:
    body = _workflow(template(prefers(10, IN_SSD)))
    annotations = body["metadata"]["annotations"]
    edited = json.loads(annotations["diflow/dijob"])
    affinity = edited["spec"]["tasks"][0]["template"]["spec"]["affinity"]["nodeAffinity"]
    affinity["preferredDuringSchedulingIgnoredDuringExecution"] = nonsense
    annotations["diflow/dijob"] = json.dumps(edited)
    assert "preferredDuringScheduling" in planning_record_of(body).problem


def test_a_journal_of_an_earlier_version_is_read_without_preferences(tmp_path: Path) -> None:
    path, snapshot = tmp_path / "journal", build([node("a"), node("b", disk="ssd")], [gang()])
    plan = FitPolicy().optimize(snapshot)
    entry = json.loads(journal.line(snapshot, plan))
    path.write_text(f"{json.dumps(entry)}\n", encoding="utf-8")
    (now,) = journal.read(path)
    assert now.snapshot.class_preference.tolist() == [[0, 10]]
    assert journal.compare(path).differences == {"fit": []}
    del entry["snapshot"]["class_preference"]
    path.write_text(f"{json.dumps(entry)}\n", encoding="utf-8")
    (before,) = journal.read(path)
    assert before.snapshot.class_preference.tolist() == [[0, 0]]
    assert placed(before.snapshot, FitPolicy().optimize(before.snapshot)) == {"a": 1}


def _workflow(spec: dict[str, Any]) -> dict[str, Any]:
    one = task()
    with_affinity = one.model_copy(update={"template": {"spec": {**one.template["spec"], **spec}}})
    body = render(job("one", with_affinity))
    return {**body, "metadata": {**body["metadata"], "namespace": "ns", "uid": "u", "resourceVersion": "5"}}

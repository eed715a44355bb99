"""The nodes that meet the conditions of tasks, compared with what Kubernetes says of each node."""

from __future__ import annotations

import random

import numpy as np

from diflow.allocator.model.eligible import Eligible, Labelled
from diflow.allocator.model.views import JobView, NodeView, RoleView, build
from diflow.common.predicates import NODE_NAME, Operator, Requirement, Taint, Toleration, Where

OPERATORS: tuple[Operator, ...] = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
VALUES = ("a", "b", "3", "12", "-1", "1_0", "", "x" * 70)


def _nodes(rng: random.Random) -> list[Labelled]:
    taints = [Taint("t"), Taint("t", "v", "NoExecute"), Taint("p", "", "PreferNoSchedule")]
    return [
        (
            f"n{i}",
            {key: rng.choice(VALUES) for key in ("k", "l", "m") if rng.random() < 0.7},
            tuple(taint for taint in taints if rng.random() < 0.3),
        )
        for i in range(7)
    ]


def _term(rng: random.Random) -> tuple[Requirement, ...]:
    return tuple(
        Requirement(
            key,
            rng.choice(OPERATORS),
            tuple(rng.choice(("n1", "n3") if key == NODE_NAME else VALUES) for _ in range(rng.randrange(3))),
        )
        for key in rng.choices(("k", "l", "none", NODE_NAME), k=rng.randrange(3))
    )


def _where(rng: random.Random) -> Where:
    return Where(
        selector=(("k", rng.choice(VALUES)),) if rng.random() < 0.3 else (),
        affinity=tuple(_term(rng) for _ in range(rng.randrange(3))),
        tolerations=tuple(rng.choice((Toleration("t", "Exists"), Toleration("", "Exists"))) for _ in range(1)),
        preferred=tuple((rng.randrange(1, 101), _term(rng)) for _ in range(rng.randrange(3))),
    )


def test_masks_and_preferences_are_those_of_each_node_by_itself() -> None:
    rng = random.Random(7)
    for _ in range(60):
        nodes = _nodes(rng)
        known = Eligible(nodes)
        wheres = [_where(rng) for _ in range(20)]
        wheres += wheres[:3]
        for _ in range(2):
            mask, preference, of = known.classes(wheres)
            for where, k in zip(wheres, of.tolist(), strict=True):
                labelled = [({**labels, NODE_NAME: name}, taints) for name, labels, taints in nodes]
                assert mask[k].tolist() == [where.admits(*one) for one in labelled]
                assert preference[k].tolist() == [where.score(labels) for labels, _ in labelled]


def test_conditions_that_select_the_same_nodes_are_one_class() -> None:
    mask, _, of = Eligible([("a", {}, ()), ("b", {}, ())]).classes([Where(selector=((str(i), "x"),)) for i in range(9)])
    assert mask.shape == (1, 2)
    assert set(of.tolist()) == {0}


def test_thousands_of_tasks_with_conditions_of_their_own_are_compared_once() -> None:
    asked: list[object] = []

    class Counted(dict[str, str]):
        def get(self, *given: object) -> object:  # type: ignore[override]
            asked.append(given)
            return super().get(*given)  # type: ignore[call-overload]

        def __contains__(self, key: object) -> bool:
            asked.append(key)
            return super().__contains__(key)

    nodes = [NodeView(f"n{i}", {"cpu": 8, "pods": 9}, labels=Counted({"zone": str(i % 3)})) for i in range(50)]
    terms = [(Requirement("zone", "NotIn", (str(i % 3), f"x{i}")),) for i in range(400)]
    jobs = [
        JobView(f"evil/j{i}", (RoleView("w", {"cpu": 1}, where=Where(affinity=(t,))),)) for i, t in enumerate(terms)
    ]
    first = build(nodes, jobs)
    assert len(asked) <= 10 * len(nodes)
    assert len(first.class_nodes) == 3
    asked.clear()
    again = build(nodes, jobs)
    assert len(asked) <= 10 * len(nodes)
    assert np.array_equal(first.class_nodes[first.role_class], again.class_nodes[again.role_class])


def test_other_labels_are_noticed() -> None:
    job = JobView("a/j", (RoleView("w", {"cpu": 1}, where=Where(selector=(("zone", "1"),))),))
    for zone in ("1", "2", "1"):
        made = build([NodeView("n", {"cpu": 1}, labels={"zone": zone})], [job])
        assert made.class_nodes[made.role_class[0]].tolist() == [zone == "1"]

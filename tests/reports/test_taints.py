"""Taints that come later, and nodes that announce their end."""

from __future__ import annotations

import pytest

from diflow.allocator.settings import AllocatorSettings
from diflow.record.node import ENDING_TAINTS
from tests.reports.lab import UsersLab, job, lab, task
from tests.reports.test_scheduler import nodes


def running(at: UsersLab, *, preemptible: bool, replicas: int = 2) -> None:
    made = task(replicas=replicas, ask={"cpu": "4"})
    if preemptible:
        made = made.model_copy(update={"min_replicas": 1, "max_replicas": replicas})
    at.cluster.submit(job("a", made, preemptible=preemptible))
    at.until(lambda: len(at.running("a")) == replicas, "it runs")
    at.rest(seconds=20)


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
@pytest.mark.parametrize("preemptible", [False, True], ids=["fixed", "preemptible"])
def test_a_taint_that_comes_later_is_as_a_cordon(effect: str, *, preemptible: bool) -> None:
    """The pods of the node are evicted, as by whoever has tainted it."""
    with lab() as at:
        nodes(at, 2)
        running(at, preemptible=preemptible)
        (node,) = set(at.running("a").values())
        at.cluster.taint(node, "maintenance", effect)
        if not preemptible:
            for pod in at.cluster.of("a").values():
                at.cluster.evict(pod["metadata"]["name"])
        course = at.watch("a", seconds=60)["a"]
    back = next(second for second, count in course.running if count == 2 and second > 3)
    assert back <= 10.0, course.running
    assert node not in course.where.values()
    assert course.rounds <= 2
    assert course.restarts == 0
    assert at.cluster.refused == {}


def test_a_taint_that_the_pods_tolerate_moves_nobody() -> None:
    """A toleration that admission has added counts as well."""
    with lab() as at:
        nodes(at, 2)
        added = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
        at.cluster.mutate = lambda pod: {**pod, "spec": {**pod["spec"], "tolerations": added}}
        running(at, preemptible=True)
        before = at.running("a")
        at.cluster.taint(next(iter(before.values())), "nvidia.com/gpu")
        course = at.watch("a", seconds=60)["a"]
    assert course.where == before
    assert course.rounds == 1


@pytest.mark.parametrize("key", [*sorted(ENDING_TAINTS), "aws-node-termination-handler/spot-itn"])
@pytest.mark.parametrize("preemptible", [False, True], ids=["fixed", "preemptible"])
def test_a_node_that_announces_its_end_is_left_before_it_ends(key: str, *, preemptible: bool) -> None:
    """Nobody evicts its pods."""
    with lab() as at:
        nodes(at, 2)
        running(at, preemptible=preemptible)
        (node,) = set(at.running("a").values())
        at.cluster.taint(node, key)
        course = at.watch("a", seconds=30)["a"]
    assert len(course.where) == 2
    assert node not in course.where.values()
    assert course.restarts == 0
    assert course.rounds <= 2


def test_a_candidate_for_deletion_is_not_left() -> None:
    with lab() as at:
        nodes(at, 2)
        running(at, preemptible=True)
        before = at.running("a")
        at.cluster.taint(next(iter(before.values())), "DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule")
        assert at.watch("a", seconds=30)["a"].where == before


def test_with_no_other_place_a_fixed_job_stays_until_the_end() -> None:
    with lab() as at:
        nodes(at, 1)
        running(at, preemptible=False)
        at.cluster.taint("n0", "karpenter.sh/disrupted")
        course = at.watch("a", seconds=60)["a"]
        assert len(course.where) == 2
        assert course.says("announces its end (karpenter.sh/disrupted)")
        at.cluster.machine("n1")
        course = at.watch("a", seconds=30)["a"]
    assert set(course.where.values()) == {"n1"}


def test_a_condition_announces_the_end_by_a_setting() -> None:
    settings = AllocatorSettings(
        writers=1, debounce_seconds=0.0, reading_share=100.0, ending_conditions=("PreemptScheduled",)
    )
    with lab(settings=settings) as at:
        nodes(at, 2)
        running(at, preemptible=False)
        (node,) = set(at.running("a").values())
        soon = {"type": "PreemptScheduled", "status": "True"}
        at.cluster._change_node(
            node,
            lambda obj: {**obj, "status": {**obj["status"], "conditions": [*obj["status"]["conditions"], soon]}},
        )
        course = at.watch("a", seconds=30)["a"]
    assert len(course.where) == 2
    assert node not in course.where.values()

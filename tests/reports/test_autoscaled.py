"""Autoscaled pools: gangs that lack nodes are a demand that an autoscaler sees, whole, and nothing else is one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from diflow.allocator.policies.base import load_policy
from diflow.allocator.policies.settings import PolicySettings
from diflow.allocator.reconcile import demand_pods
from diflow.allocator.settings import AllocatorSettings
from diflow.common import keys
from diflow.kube.kinds import CONFIG_MAP
from tests.kube.fakeapi import status
from tests.reports.autoscaler import Autoscaler, Pool
from tests.reports.lab import UsersLab, job, lab, task
from tests.reports.test_scheduler import HOST, POLICIES, apart

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}


def settings(**more: Any) -> AllocatorSettings:
    given = {"autoscaled": True, "writers": 1, "debounce_seconds": 0.0, "reading_share": 100.0}
    return AllocatorSettings(**{**given, **more})


def gpus(replicas: int, each: int, **fields: Any) -> Any:
    return task(replicas=replicas, ask={"cpu": "1", GPU: str(each)}, **fields)


def machine(at: UsersLab, name: str, each: int) -> None:
    more: Json = {"cpu": "32", GPU: str(each)}
    at.cluster.machine(name, **more)


def pool(each: int = 8, **fields: Any) -> Pool:
    return Pool("gpu", {"cpu": "32", "memory": "64Gi", GPU: str(each)}, **fields)


def queues(at: UsersLab, *lines: Json) -> None:
    text = json.dumps({"queues": lines})
    body = {"metadata": {"name": keys.QUEUES}, "data": {"queues.yaml": text}}
    at.api.add(CONFIG_MAP, body, namespace="diflow-system")


def demands(at: UsersLab) -> list[Json]:
    """The pods that stand for replicas."""
    return [pod for pod in at.cluster.pods() if keys.DEMAND in (pod["metadata"].get("labels") or {})]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_gang_gets_its_nodes_from_a_pool_without_nodes_and_starts_all_at_once(policy: str) -> None:
    with lab(settings=settings(policy=policy), policy=load_policy(policy, PolicySettings())) as at:
        at.cluster.machine("n0", cpu="8")  # no node offers GPUs
        at.cluster.autoscaler = scaler = Autoscaler(pool(2))
        at.cluster.submit(job("a", gpus(4, 2)))
        began = at.time.now()
        course = at.watch("a", seconds=60)["a"]
        assert [count for _, count in course.running if count] == [4], course.running
        assert sorted(course.where.values()) == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
        assert max(scaler.asked) - began <= 5.0, "all nodes are asked for at once"
        assert course.since(4) <= 20.0 + 10.0
        assert demands(at) == [], "they go when the gang starts"
        assert course.says("nodes are missing for 4 × worker")
        at.cluster.stop("a")
        at.until(lambda: at.cluster.nodes() == ["n0"], "the empty nodes go", seconds=90)


def test_the_demand_says_what_a_replica_asks_of_its_node() -> None:
    where = {"tolerations": [{"key": "gpu", "operator": "Exists"}], "nodeSelector": {"pool": "a100"}}
    with lab(settings=settings()) as at:
        at.cluster.autoscaler = Autoscaler(
            Pool("small", {"cpu": "64"}),
            pool(8, labels={"pool": "v100"}),
            Pool("a100", {"cpu": "32", GPU: "8"}, labels={"pool": "a100"}, taints=(TAINT,)),
        )
        spread = {**where, **apart(HOST, app="x")}
        at.cluster.submit(job("a", gpus(3, 1, spec=spread, labels={"app": "x"})))
        at.until(lambda: len(demands(at)) == 3, "they are there")
        (spec, *_) = [pod["spec"] for pod in demands(at)]
        course = at.watch("a", seconds=60)["a"]
    assert spec["containers"][0]["resources"]["requests"] == {"cpu": "1000m", GPU: "1"}
    assert (spec["schedulerName"], spec["nodeSelector"]) == (keys.DEMAND_SCHEDULER, {"pool": "a100"})
    assert "schedulingGates" not in spec
    assert sorted(course.where.values()) == ["a100-0", "a100-1", "a100-2"]
    assert course.begins_whole(3)


def test_a_gang_for_which_some_nodes_exist_gets_the_others() -> None:
    with lab(settings=settings()) as at:
        at.cluster.autoscaler = scaler = Autoscaler(pool(8))
        for name in ("n0", "n1"):
            machine(at, name, 8)
        at.cluster.submit(job("a", gpus(4, 8)))
        course = at.watch("a", seconds=60)["a"]
    assert len(scaler.asked) == 2
    assert course.begins_whole(4)
    assert course.most == 4


def test_without_the_setting_nothing_is_made() -> None:
    with lab() as at:
        at.cluster.autoscaler = scaler = Autoscaler(pool(8))
        at.cluster.submit(job("a", gpus(2, 1)))
        at.watch("a", seconds=60)
        assert (demands(at), scaler.asked) == ([], [])


def test_a_job_that_may_not_use_its_queue_asks_for_no_nodes() -> None:
    with lab(begin=False, settings=settings()) as at:
        text = "{queues: [{name: default}, {name: own}], namespaces: [{name: '*', queues: [default]}]}"
        at.api.add(
            CONFIG_MAP, {"metadata": {"name": keys.QUEUES}, "data": {"queues.yaml": text}}, namespace="diflow-system"
        )
        at.begin()
        at.cluster.submit(job("a", gpus(2, 1), queue="own"))
        at.cluster.submit(job("b", gpus(2, 1), queue="nobodys"))
        at.cluster.submit(job("c", gpus(2, 1)))
        at.watch("a", seconds=10)
        assert len(demands(at)) == 2


@pytest.mark.parametrize("policy", ["fit", "fair"])
def test_a_job_that_its_queue_caps_asks_for_no_nodes(policy: str) -> None:
    with lab(begin=False, settings=settings(policy=policy), policy=load_policy(policy, PolicySettings())) as at:
        queues(at, {"name": "default", "cap": {GPU: 4}}, {"name": "users", "parent": "default"})
        at.begin()
        at.cluster.autoscaler = scaler = Autoscaler(pool(1))
        at.cluster.submit(job("big", gpus(5, 1)))
        at.watch("big", seconds=10)
        assert scaler.seen == {}
        at.cluster.submit(job("first", gpus(3, 1)))
        at.until(lambda: len(scaler.asked) == 3, "its nodes are asked for")
        # By the policy fair, a queue that holds less comes first, and takes the nodes.
        at.cluster.submit(job("second", gpus(2, 1), queue="users" if policy == "fit" else "default"))
        at.watch("second", seconds=90)
        assert len(scaler.seen) == 3, "what the first one asks for is taken from the cap"
        assert at.running("second") == {}


def test_guarantees_of_others_are_not_filled_by_nodes_for_a_job_that_may_not_use_them() -> None:
    with lab(begin=False, settings=settings(policy="fair"), policy=load_policy("fair", PolicySettings())) as at:
        queues(at, {"name": "default"}, {"name": "owners", "guarantee": {GPU: 8}})
        at.begin()
        at.cluster.autoscaler = scaler = Autoscaler(pool(1))
        at.cluster.submit(job("a", gpus(2, 1)))
        at.cluster.submit(job("b", gpus(2, 1), queue="owners"))
        at.until(lambda: len(at.running("b")) == 2, "it starts")
        at.watch("a", seconds=60)
        assert len(scaler.asked) == 2


@pytest.mark.parametrize(("demand", "most"), [("minimum", 1), ("desired", 4)])
def test_an_elastic_job_asks_for_its_minimum_or_by_a_setting_of_its_queue_for_what_it_desires(
    demand: str, most: int
) -> None:
    with lab(begin=False, settings=settings()) as at:
        queues(at, {"name": "default", "demand": demand})
        at.begin()
        at.cluster.autoscaler = Autoscaler(pool(1))
        machine(at, "n0", 1)
        elastic = gpus(4, 1, min_replicas=1, max_replicas=4)
        at.cluster.submit(job("a", elastic, preemptible=True))
        course = at.watch("a", seconds=150)["a"]
        assert course.most == most
        assert demands(at) == []
        assert course.says("nodes are missing for 3 × worker") is (demand == "desired")


def test_a_demand_that_brings_no_node_is_withdrawn_and_made_again_after_a_pause() -> None:
    with lab(settings=settings(demand_seconds=120)) as at:
        at.cluster.autoscaler = scaler = Autoscaler(pool(1, most=3))
        at.cluster.submit(job("a", gpus(4, 1)))
        at.until(lambda: len(demands(at)) == 4, "they are there")
        assert "an autoscaler is asked for nodes for 4 × worker, for 2m at most" in at.decision("a")["why"]
        at.until(lambda: not demands(at), "it is withdrawn", seconds=130)
        assert at.watch("a", seconds=5)["a"].says("no nodes came within 2m for 4 × worker")
        at.cluster.submit(job("b", gpus(2, 1)))
        at.until(lambda: len(at.running("b")) == 2, "others use the room")
        scaler.pools = (pool(1),)
        at.until(lambda: len(at.running("a")) == 4, "it is asked for again", seconds=180)


def test_a_demand_that_the_quota_of_the_namespace_refuses_leaves_nothing_behind() -> None:
    with lab(settings=settings()) as at:
        at.cluster.autoscaler = scaler = Autoscaler(pool(1))
        made = []

        def quota(request: Any) -> Any:
            if request.method != "POST" or not request.path.endswith("/pods"):
                return None
            made.append(request.path)
            return status(403, "exceeded quota: pods", reason="Forbidden") if len(made) % 4 == 0 else None

        at.api.rule(quota)
        at.cluster.submit(job("a", gpus(4, 1)))
        at.watch("a", seconds=20)
        assert demands(at) == []
        assert len(made) == 4, "it is not tried again at once"
        assert len(scaler.asked) <= 3
        assert at.watch("a", seconds=70)["a"].says("cannot be made", "exceeded quota: pods")


def test_what_one_namespace_asks_for_is_bounded_and_takes_nothing_from_others() -> None:
    with lab(settings=settings(demand_pods=4), namespaces=("default", "other")) as at:
        for name in ("a", "b"):
            at.cluster.submit(job(name, gpus(3, 1)))
        at.cluster.submit(job("c", gpus(3, 1)), namespace="other")
        at.watch("a", seconds=10)
        assert len(demands(at)) == 6
        assert "DIFLOW_ALLOCATOR_DEMAND_PODS" in at.decision("b")["why"]


def test_a_job_that_is_suspended_or_deleted_asks_for_nothing_any_more() -> None:
    with lab(settings=settings()) as at:
        for name in ("a", "b"):
            at.cluster.submit(job(name, gpus(2, 1)))
        at.until(lambda: len(demands(at)) == 4, "they are there")
        at.cluster.delete("a")
        assert len(demands(at)) == 2, "they belong to the Workflow"
        at.cluster.suspend("b")
        at.until(lambda: not demands(at), "they are gone")


def test_a_new_leader_and_a_crash_between_the_writes_leave_one_pod_for_each_replica() -> None:
    with lab(settings=settings()) as at:
        at.cluster.submit(job("a", gpus(3, 1)))
        at.until(lambda: len(demands(at)) == 3, "they are there")
        at.end()
        (pod, *_) = demands(at)
        at.cluster._change_pod(pod, {"phase": "Pending"})
        at.begin()
        at.watch("a", seconds=5)
        assert len(demands(at)) == 3
        assert all(pod["status"]["conditions"][0]["reason"] == "Unschedulable" for pod in demands(at))


def test_pods_of_users_that_look_like_demands_are_left_alone() -> None:
    with lab(settings=settings()) as at:
        at.cluster.submit(job("a", gpus(2, 1)))
        labels = {keys.DEMAND: "worker"}
        spec = {"schedulerName": keys.DEMAND_SCHEDULER, "nodeName": ""}
        at.cluster.other_pod("mine", "", labels=labels, spec=spec)
        at.until(lambda: len(demands(at)) == 3, "they are there")
        at.cluster.delete("a")
        at.rest(seconds=5)
        assert [pod["metadata"]["name"] for pod in demands(at)] == ["mine"]


@pytest.mark.parametrize("key", ["karpenter.sh/disrupted", "ToBeDeletedByClusterAutoscaler"])
def test_a_replica_leaves_a_node_that_ends_for_one_that_comes(key: str) -> None:
    with lab(settings=settings()) as at:
        at.cluster.autoscaler = scaler = Autoscaler(pool(1))
        at.cluster.submit(job("a", gpus(2, 1)))
        at.until(lambda: len(at.running("a")) == 2, "it runs")
        ending = at.running("a")["worker-0"]
        at.cluster.taint(ending, key)
        if key == "karpenter.sh/disrupted":  # Karpenter replaces such a node by itself, for the pods that are there
            at.watch("a", seconds=5)
            assert demands(at) == []
            machine(at, "next", 1)
        course = at.watch("a", seconds=60)["a"]
    assert len(course.where) == 2
    assert ending not in course.where.values()
    assert len(scaler.asked) == (2 if key == "karpenter.sh/disrupted" else 3)


def test_a_replica_whose_node_has_gone_gets_another_one() -> None:
    """Karpenter evicts the pods of a node that it takes away: the replica has no pod any more that it would see."""
    with lab(settings=settings()) as at:
        at.cluster.autoscaler = Autoscaler(pool(1))
        at.cluster.submit(job("a", gpus(2, 1)))
        at.until(lambda: len(at.running("a")) == 2, "it runs")
        ending = at.running("a")["worker-0"]
        at.cluster.taint(ending, "karpenter.sh/disrupted")
        at.cluster.evict(at.cluster.of("a")["worker-0"]["metadata"]["name"])
        course = at.watch("a", seconds=60)["a"]
    assert len(course.where) == 2
    assert ending not in course.where.values()
    assert course.restarts == 0


def test_a_job_whose_pods_cannot_be_made_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its template is its user's: whatever is wrong with it."""
    made = demand_pods.pod_of

    def fails(read: Any, role: Any, name: str) -> Any:
        if read.name == "a":
            raise TypeError("labels")
        return made(read, role, name)

    monkeypatch.setattr(demand_pods, "pod_of", fails)
    with lab(settings=settings()) as at:
        for name in ("a", "b"):
            at.cluster.submit(job(name, gpus(2, 1)))
        at.watch("a", seconds=5)
        assert len(demands(at)) == 2
        assert at.watch("a", seconds=2)["a"].says("cannot be made")
